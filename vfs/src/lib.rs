//! The Linux VFS's name and inode caches as a library: dentries, inodes, mounts, and a
//! path walk that tries first under RCU, then with references.
//!
//! | read               | to learn                                                  |
//! |--------------------|-----------------------------------------------------------|
//! | [`Vfs`]            | the interface: walk, stat, list, open, change, mount      |
//! | [`Context`]        | the caller's root, current directory and credentials      |
//! | [`LookupFlags`]    | options of a path walk                                    |
//! | [`FileSystem`]     | the interface of a back end, and the rules it can rely on |
//! | [`inode`]          | the inode cache, usable without the rest                  |
//! | [`Budget`]         | the sizes of the caches                                   |
//!
//! ```
//! use rcuwalk::{Credentials, LookupFlags, Vfs};
//! use rcuwalk_memfs::MemFs;
//!
//! # fn main() -> rcuwalk::Result<()> {
//! let vfs = Vfs::new(MemFs::new())?;
//! let me = vfs.context(Credentials::root());
//! vfs.mkdir(&me, "/srv", 0o755)?;
//! vfs.symlink(&me, "srv", "/link")?;
//! let here = vfs.lookup(&me, "/link/.", LookupFlags::FOLLOW)?;
//! assert_eq!(here.attr().ino, vfs.stat(&me, "/srv", LookupFlags::default())?.ino);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]
// No type of `rcuwalk-sync` in the public interface. The compiler looks only where `cargo xtask
// layers` asks nightly for it.
#![deny(exported_private_dependencies)]

mod access;
mod acl;
mod announce;
mod attr;
mod budget;
mod caches;
mod call;
mod change;
mod context;
mod dentry;
mod descriptors;
mod error;
mod file;
pub mod filesystem;
mod fresh;
mod handle;
pub mod inode;
mod mount;
mod name;
mod namespace;
mod open;
mod permission;
mod readdir;
mod retry;
pub mod scan;
mod setattr;
mod setters;
mod stats;
mod super_block;
mod target;
mod trace;
mod vfs;
mod vfs_inode;
mod walk;
mod xattr;

pub use announce::{Announcement, Listener};
pub use attr::{Attr, FileType, InodeFlags, Timestamp};
pub use budget::Budget;
pub use context::{AsPath, Context, Start, VfsPath};
pub use descriptors::HeldDescriptor;
pub use error::{Error, Result};
pub use file::{File, FileAs};
pub use filesystem::{
    Allocate, At, ByNumber, Caller, Emit, FileHandle, FileSystem, Freshness, NewFile, RawEntry,
    Rename, RenameFlags, SeekTo, SetAttr, SetTime, StatFs, XattrFlags,
};

pub use handle::{Handle, HandleKey};
pub use mount::MountFlags;
pub use name::{NAME_MAX, Name, PATH_MAX};
pub use open::{OpenFlags, OpenHow};
pub use permission::{Access, Caps, Credentials};
pub use readdir::{DirEntry, Entries, ReadDir};
pub use stats::{Statistics, Why};
pub use super_block::SuperBlock;
pub use trace::{Origin, Trace, TraceStep, Walk};
pub use vfs::Vfs;
pub use vfs_inode::{
    Acl, Asked, Iget, Inode, InodeFill, InodeId, InodeKey, InodeRef, LastPut, NewInode, VfsInode,
};
pub use walk::LookupFlags;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
