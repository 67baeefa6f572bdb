//! What can be wrong with an image, said so that somebody can go and look.

use std::fmt;
use std::io;

/// The result of everything that reads an image.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no ext2, ext3 or ext4 here, and this is what there is instead.
    NotExt4 {
        /// What was found: `an xfs file system`, `a directory`, `no known magic number`.
        found: String,
    },
    /// A feature that would make what we return wrong.
    Unsupported {
        /// Its name as mke2fs and dumpe2fs write it.
        feature: String,
    },
    /// A structure that cannot be what it claims.
    Corrupt {
        /// Where it is.
        place: Place,
        /// The field that is wrong, as the format's documentation names it.
        field: &'static str,
        /// What is wrong with it, with the value.
        why: String,
    },
    /// A structure whose checksum does not match its contents.
    Checksum {
        /// Where it is.
        place: Place,
        /// What was checked: `inode`, `directory block`, …
        what: &'static str,
    },
    /// The image ends before what was to be read: it was cut off, or shrank.
    Truncated {
        /// Where reading began, in bytes.
        offset: u64,
        /// How many bytes were wanted there.
        wanted: u64,
        /// Where the image ends.
        end: u64,
    },
    /// The name or number stands for nothing.
    NotFound,
    /// Not what the operation is for: a directory read as a file, …
    WrongType {
        /// What it should have been.
        wanted: &'static str,
    },
    /// The host could not read.
    Io {
        /// Where, in bytes.
        offset: u64,
        /// What the host said.
        source: io::Error,
    },
}

/// A place in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The super block, in this block group.
    SuperBlock(u32),
    /// The descriptor of this block group.
    Group(u32),
    /// An inode.
    Inode(u32),
    /// A block of the image.
    Block(u64),
    /// A block of the image that belongs to this inode.
    BlockOf {
        /// The inode.
        ino: u32,
        /// The block, counted from the start of the image.
        block: u64,
    },
    /// A block of the journal, counted from the start of the journal.
    Journal(u32),
}
