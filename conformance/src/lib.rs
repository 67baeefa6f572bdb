//! Does rcuwalk answer as Linux does? Generated walks, asked twice, compared.
//!
//! [`differ::run`] is the whole story: grow a tree, think up walks over it, ask
//! the oracle (the running kernel, or the plain [`model`] where the kernel cannot
//! be asked), ask rcuwalk through both walkers, and shrink the first difference
//! to something a person can read.
//!
//! | read             | to learn                                               |
//! |------------------|--------------------------------------------------------|
//! | `differ.rs`      | what is compared, and in which order                   |
//! | `tree.rs`        | a tree as plain data; `tree/grow.rs`: random ones      |
//! | `walks.rs`       | a walk as plain data; `walks/plan.rs`: random ones     |
//! | `materialise.rs` | the same tree on the host and in memfs                 |
//! | `kernel.rs`      | the kernel's answer, chroot'ed and without privileges  |
//! | `model.rs`       | path resolution in its plainest form                   |
//! | `coverage.rs`    | proof that the generators reach their targets          |
//! | `shrink.rs`      | from a difference to a small difference                |
//! | `settings.rs`    | seed, number of cases, skipped parts with reasons      |
//! | `faulty.rs`      | a back end that fails at a call of choice              |
//! | `ext4.rs`        | images of ext4: made, filled, and read by two readers  |
//!
//! `changes.rs` does the same for operations that change files, and has a map of its own.
//! Beside them, without a kernel to compare with: `damage.rs`, damaged ext4 images.
//!
//! EDGE-1: errno and effect as Linux gives them.

pub mod answer;
pub mod changes;
pub mod coverage;
pub mod damage;
pub mod differ;
pub mod ext4;
pub mod faulty;
mod frame;
pub mod kernel;
pub mod materialise;
pub mod model;
pub mod settings;
pub mod shrink;
pub mod tree;
pub mod walks;
