//! ext2, ext3 and ext4 as a file system for [`rcuwalk`]: read-only, in safe Rust,
//! from an image file or a block device.
#![forbid(unsafe_code)]

mod acl;
mod bytes;
mod cache;
mod checksum;
mod data;
mod dir;
mod error;
mod ext4;
mod features;
mod fs;
mod groups;
mod inode;
mod journal;
mod link;
mod map;
mod overlay;
mod source;
mod super_block;
#[cfg(test)]
mod testing;
mod volume;
mod xattr;

pub use checksum::Checksums;
pub use error::{Error, Place, Result};
pub use ext4::{Ext4, Info, InodeInfo, OpenOptions};
pub use source::{FileSource, Source};
pub use xattr::Xattr;
