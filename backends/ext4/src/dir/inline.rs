//! A directory that fits into its inode.
//!
//! `i_block` holds the number of the parent, for there is no `..`, and entries; the
//! value of the attribute `system.data`, behind the inode, holds more. The entries of
//! both are as in a block of that size.

use crate::bytes::u32_at;
use crate::error::{Place, Result};

use super::{Contents, Directory, Leaf};

/// The attribute's name space, `system`, and its name in it.
const DATA: (u8, &[u8]) = (7, b"data");

/// The parent's number.
const PARENT: usize = 4;

impl Directory<'_> {
    /// The parts as leaves.
    pub(super) fn inline_leaves(&self) -> impl Iterator<Item = Result<Leaf>> + use<> {
        let in_block = self.inode.block.get(PARENT..).unwrap_or_default();
        let first = Ok(self.inline_leaf(PARENT, in_block.to_vec()));
        let rest = self
            .volume
            .inode_xattr(self.inode, DATA.0, DATA.1)
            .map(|value| value.map(|value| self.inline_leaf(self.inode.block.len(), value)));
        [Some(first), rest.transpose()].into_iter().flatten()
    }

    /// The parent, if this is an inline directory: others have an entry for it.
    pub(crate) fn inline_parent(&self) -> Option<u32> {
        self.is_inline().then(|| u32_at(&self.inode.block, 0))
    }

    fn inline_leaf(&self, position: usize, bytes: Vec<u8>) -> Leaf {
        Leaf {
            contents: Contents::Inline(bytes),
            place: Place::Inode(self.inode.ino),
            format: self.format,
            position: position as u64,
            found: None,
        }
    }
}
