//! Does rcuwalk change things as Linux does? Generated operations, run twice, compared.
//!
//! [`differ::run`] is the whole story: think up a sequence of operations, run it in an
//! empty directory of the kernel's, run it again in rcuwalk, compare answer by answer,
//! and shrink the first difference to a few lines that a person can replay.
//!
//! | read          | to learn                                                        |
//! |---------------|-----------------------------------------------------------------|
//! | `op.rs`       | an operation as plain data; `users.rs`: the users that make it  |
//! | `generate.rs` | random sequences, about half of whose operations succeed        |
//! | `endings.rs`  | every way to end a path, for every call that takes one          |
//! | `answer.rs`   | the result of an operation                                      |
//! | `side.rs`     | operations on both sides; whole trees                           |
//! | `host.rs`     | the kernel's side, a thread that acts as many users             |
//! | `subject.rs`  | rcuwalk's side                                                  |
//! | `compare.rs`  | when two answers are the same: numbers and moments differ       |
//! | `known.rs`    | every intended difference                                       |
//! | `differ.rs`   | the comparison; `shrink.rs`: from a difference to a small one   |
//! | `coverage.rs` | which operations had which results                              |
//! | `sysctls.rs`  | whether the machine protects sticky directories                 |
//! | `linear.rs`   | whether changes by many threads have a sequential order         |
//! | `crowd.rs`    | many threads in shared directories, and their invariants        |
//!
//! EDGE-1: errno and effect as Linux gives them, for changes.

pub mod answer;
pub mod compare;
pub mod coverage;
pub mod crowd;
pub mod differ;
pub mod endings;
pub mod generate;
pub mod host;
pub mod known;
pub mod linear;
pub mod op;
pub mod shrink;
pub mod side;
pub mod subject;
pub mod sysctls;
pub mod users;
