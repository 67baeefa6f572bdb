//! From a block of a file to a block of the image.

use crate::error::{Error, Place, Result};
use crate::inode::{InodeFlags, RawInode};
use crate::volume::Volume;

mod extents;
mod indirect;
#[cfg(test)]
mod tests;

/// Where a run of a file's blocks is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// The first block's place in the image; none in a hole.
    pub(crate) physical: Option<u64>,
    /// How many blocks from the one asked for go on likewise, at least 1.
    pub(crate) length: u32,
    /// Allocated and never written: it reads as zeros.
    pub(crate) unwritten: bool,
}

impl Mapping {
    fn hole(length: u64) -> Mapping {
        Mapping {
            physical: None,
            length: u32::try_from(length).unwrap_or(u32::MAX).max(1),
            unwritten: false,
        }
    }
}

/// Where block `logical` of the inode is.
#[inline]
pub(crate) fn map(volume: &Volume, inode: &RawInode, logical: u64) -> Result<Mapping> {
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        return Err(contents_instead(inode));
    }
    // No map has room for more, whatever the size says.
    let Ok(logical) = u32::try_from(logical) else {
        return Ok(Mapping::hole(u64::MAX));
    };
    if inode.flags.contains(InodeFlags::EXTENTS) {
        extents::map(volume, inode, logical)
    } else {
        indirect::map(volume, inode, logical)
    }
}

#[cold]
fn contents_instead(inode: &RawInode) -> Error {
    Error::Corrupt {
        place: Place::Inode(inode.ino),
        field: "i_flags",
        why: "inline data where blocks are wanted".into(),
    }
}
