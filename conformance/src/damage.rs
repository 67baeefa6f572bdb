//! Damaged ext4 images: sound small ones, changed where it hurts, and read in every way.
//!
//! A **seed** is an image that mke2fs and debugfs made by a recipe. Its **layout** says
//! where its structures are and which fields they have. A **mutation** changes one field,
//! copies one structure over another, or is plain noise; it is plain data that can be
//! written down as a line of text. After mutating, checksums are put right as a rule, so
//! that the damage gets past them. Then the **exercise** opens and reads the result
//! through everything that the back end offers, under **limits** of time and memory.
//!
//! | read                    | to learn                                              |
//! |-------------------------|-------------------------------------------------------|
//! | `damage/seeds.rs`       | the images, and the features they are there for       |
//! | `damage/layout.rs`      | finding the structures of a sound image               |
//! | `damage/fields.rs`      | their fields                                          |
//! | `damage/mutation.rs`    | a change as plain data and as text                    |
//! | `damage/plan.rs`        | thinking up changes, from a seed or a fuzzer's bytes  |
//! | `damage/repair.rs`      | checksums put right                                   |
//! | `damage/exercise.rs`    | what is done with an image                            |
//! | `damage/limits.rs`      | time, and memory by [`Counting`]                      |
//! | `damage/finding.rs`     | from a mutant that fails to the least that still does |
//!
//! The claim, wherever the input comes from: no panic, no more than a second, no memory
//! beyond a few times the image's size, and both orders of a scan deliver the same.

mod exercise;
mod fields;
mod finding;
mod layout;
mod limits;
mod mutation;
mod plan;
mod repair;
mod seeds;

pub use exercise::{Coverage, exercise};
pub use finding::{Finding, examine};
pub use layout::{Kind, Layout};
pub use limits::{Counting, Limits, watch};
pub use mutation::{Mutant, Mutation};
pub use plan::Choices;
pub use seeds::{Seed, seeds};
