//! Inodes for back ends that compute their trees.

use rcuwalk::{Attr, FileType, Iget, InodeFill, InodeKey, InodeRef, Result, SuperBlock};

/// Gets the inode with this number; a new one has the mode 0755.
///
/// # Errors
/// As [`SuperBlock::iget`].
pub fn iget(sb: &SuperBlock, ino: u64, kind: FileType) -> Result<InodeRef> {
    Ok(match sb.iget(InodeKey::new(ino))? {
        Iget::Cached(inode) => inode,
        Iget::New(new) => new.init(InodeFill::new(Attr::new(ino, kind, 0o755))),
    })
}
