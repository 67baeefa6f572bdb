//! Does our ext4 read what the kernel's reads? Images made in every way mke2fs has,
//! filled through the kernel, then read by both and compared.
//!
//! ```text
//!   recipe --mke2fs--> image --mount, fill--> image --mount -o ro--> the kernel's view
//!                                                   `-- Ext4::open -> ours, compared
//! ```
//!
//! | read            | to learn                                                    |
//! |-----------------|-------------------------------------------------------------|
//! | `recipe.rs`     | the list of images, and how each is made                    |
//! | `workshop.rs`   | where they are made: mounts in a private namespace          |
//! | `fill.rs`       | their contents; `fill/*`: one kind of contents each         |
//! | `collisions.rs` | names that one hash puts into one place                     |
//! | `compare.rs`    | the comparison; `compare/*`: one aspect each                |
//! | `busy.rs`       | an image caught in the middle of changes                    |
//!
//! Everything generated follows from a seed, so that an image can be made again.
//!
//! EDGE-1: this crate reads the same from an image as Linux.

pub mod busy;
pub mod collisions;
pub mod compare;
pub mod fill;
pub mod recipe;
pub mod workshop;
