//! Where a symbolic link leads: kept in the inode if it is short, in a block if not.

use rcuwalk::FileType;

use crate::data;
use crate::error::{Error, Place, Result};
use crate::features::Incompat;
use crate::inode::{InodeFlags, RawInode};
use crate::volume::Volume;

/// No path is longer.
const PATH_MAX: u64 = 4096;

/// The target of a symbolic link.
pub(crate) fn read(volume: &Volume, inode: &RawInode) -> Result<Vec<u8>> {
    if inode.kind != FileType::Symlink {
        return Err(Error::WrongType {
            wanted: "a symbolic link",
        });
    }
    inode.check_readable()?;
    if inode.size == 0 || inode.size > PATH_MAX {
        return Err(bad(
            inode,
            "i_size",
            format!("a link of {} bytes", inode.size),
        ));
    }
    let mut target = vec![0; inode.size as usize];
    if is_fast(volume, inode) {
        // One byte is for the zero that ends it.
        let Some(held) = inode.block[..59].get(..target.len()) else {
            let why = format!("{} bytes, and no block for them", target.len());
            return Err(bad(inode, "i_size", why));
        };
        target.copy_from_slice(held);
    } else if data::read(volume, inode, &mut target, 0)? < target.len() {
        return Err(bad(inode, "i_block", "the target cannot be read".into()));
    }
    if target.contains(&0) {
        return Err(bad(inode, "i_block", "a zero byte in the target".into()));
    }
    Ok(target)
}

/// True if the target is where the map would be. No flag tells: such a link has no blocks
/// but that of its attributes. Where attributes' values may be in inodes of their own,
/// those count among its blocks as well, and its size has to tell.
#[doc(alias = "ext4_inode_is_fast_symlink")]
fn is_fast(volume: &Volume, inode: &RawInode) -> bool {
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        return false;
    }
    let features = volume.super_block().features();
    if features.has_incompat(Incompat::EA_INODE) {
        return inode.size < inode.block.len() as u64;
    }
    let attributes = match inode.file_acl {
        0 => 0,
        _ => u64::from(volume.super_block().cluster_size() / 512),
    };
    inode.blocks == attributes
}

#[cold]
fn bad(inode: &RawInode, field: &'static str, why: String) -> Error {
    Error::Corrupt {
        place: Place::Inode(inode.ino),
        field,
        why,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::{Image, open};

    /// As on the kernel: where values of attributes may be in inodes, their blocks count
    /// among the link's, and it is short all the same.
    #[test]
    fn a_short_link_may_have_blocks_of_its_attributes() {
        let Some(image) = Image::make("4M", &["-O", "ea_inode"], |tree| {
            symlink("target", tree.join("l")).unwrap();
        }) else {
            return;
        };
        image.debugfs(&["sif /l blocks 16"]);
        let volume = open(image.bytes()).unwrap();
        let inode = volume.inode(image.ino("/l")).unwrap();
        assert_eq!(inode.attr().blocks, 16);
        assert_eq!(read(&volume, &inode).unwrap(), b"target");
    }
}
