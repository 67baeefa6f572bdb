//! ext2, ext3 and ext4 as a file system for [`rcuwalk`]: read-only, in safe Rust,
//! from an image file or a block device.
#![forbid(unsafe_code)]

mod bytes;
mod cache;
mod checksum;
mod data;
mod dir;
mod error;
mod features;
mod groups;
mod inode;
mod journal;
mod map;
mod overlay;
mod source;
mod super_block;
mod volume;
mod xattr;

pub use checksum::Checksums;
pub use error::{Error, Place, Result};
pub use source::{FileSource, Source};
