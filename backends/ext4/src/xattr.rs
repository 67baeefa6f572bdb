//! Extended attributes.

use crate::error::Result;
use crate::inode::RawInode;
use crate::volume::Volume;

/// The value of one, as it is stored.
pub(crate) fn find(
    volume: &Volume,
    inode: &RawInode,
    index: u8,
    name: &[u8],
) -> Result<Option<Vec<u8>>> {
    let _ = (volume, inode, index, name);
    Ok(None)
}
