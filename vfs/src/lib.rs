#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod attr;
mod budget;
mod caches;
mod change;
mod context;
mod dentry;
mod descriptors;
mod error;
mod file;
pub mod filesystem;
pub mod inode;
mod mount;
mod name;
mod namespace;
mod permission;
mod readdir;
mod stats;
mod super_block;
mod trace;
mod vfs;
mod walk;

pub use attr::{Attr, FileType, Timestamp};
pub use budget::Budget;
pub use context::{Context, VfsPath};
pub use descriptors::HeldDescriptor;
pub use error::{Error, Result};
pub use file::File;
pub use filesystem::{At, Emit, FileHandle, FileSystem, Freshness, NewFile, RawEntry};
pub use inode::{Iget, Inode, InodeFill, InodeKey, InodeRef, NewInode};
pub use name::{NAME_MAX, Name, PATH_MAX};
pub use permission::{Access, Caps, Credentials};
pub use readdir::{DirEntry, ReadDir};
pub use stats::{Statistics, Why};
pub use super_block::SuperBlock;
pub use trace::{How, Trace, TraceStep, Walk};
pub use vfs::Vfs;
pub use walk::LookupFlags;
