//! ext2, ext3 and ext4 as a file system for [`rcuwalk`]: read-only, in safe Rust,
//! from an image file or a block device.
#![forbid(unsafe_code)]

mod bytes;
mod dir;
mod error;
mod source;

pub use error::{Error, Result};
pub use source::{FileSource, Source};
