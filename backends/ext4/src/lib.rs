//! ext2, ext3 and ext4 as a file system for [`rcuwalk`]: read-only, in safe Rust,
//! from an image file or a block device.
//!
//! ```no_run
//! let ext4 = rcuwalk_ext4::Ext4::open("disk.img")?;
//! let root = ext4.inode(2)?;
//! println!("{} names lead to the root of {:?}", root.attr.nlink, ext4.info().label);
//! # Ok::<(), rcuwalk_ext4::Error>(())
//! ```
//!
//! | read             | to learn                                                     |
//! |------------------|--------------------------------------------------------------|
//! | `ext4.rs`        | the public API, and how an image is opened                   |
//! | `volume.rs`      | the open image that everything else reads through            |
//! | `super_block.rs` | where everything is; backups, and foreign file systems       |
//! | `cache.rs`       | metadata, read in windows and kept within a budget           |
//! | `groups.rs`      | where the inode tables are                                   |
//! | `inode.rs`       | an inode, parsed and verified                                |
//! | `map.rs`         | from a block of a file to a block of the image               |
//! | `data.rs`        | contents; `link.rs` targets; `xattr.rs` attributes           |
//! | `dir.rs`         | names in directories: listed, and looked up by hash          |
//! | `journal.rs`     | blocks that an unclean image has only in its journal         |
//! | `checksum.rs`    | the checksums, and how much is verified                      |
//! | `fs.rs`          | the [`FileSystem`](rcuwalk::FileSystem) for the VFS          |
//!
//! The rule that holds it together: **no value in an image is trusted.** Every offset is
//! checked, every count has a limit, every descent has a maximum depth, and damage is an
//! [`Error`] that names the place and the field. The crate never writes.
#![warn(missing_debug_implementations)]
#![cfg_attr(not(feature = "mmap"), forbid(unsafe_code))]
#![cfg_attr(feature = "mmap", deny(unsafe_code))]

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
mod scan;
mod source;
mod super_block;
#[cfg(test)]
mod testing;
mod volume;
mod xattr;

pub use checksum::Checksums;
pub use error::{Error, Place, Result};
pub use ext4::{Ext4, Info, InodeInfo, OpenOptions};
pub use scan::{ImageScan, Order};
#[cfg(feature = "mmap")]
pub use source::mmap;
pub use source::{FileSource, Source};
pub use xattr::Xattr;

/// The examples of README.md are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
