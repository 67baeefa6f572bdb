//! Files found again by number, for clients that come back with a handle.
//!
//! HANDLE-1: no number is given twice, and the generation tells one tree from another, so a handle
//! leads to its file or to nothing. A node is found by number from its first handle to its last
//! name.

use std::sync::{Arc, Weak};

use rcuwalk::{ByNumber, Error, FileType, InodeRef, Result};

use crate::MemFs;
use crate::node::{Node, recover};

/// Paths of more names are longer than the VFS walks.
const DEEPEST: usize = 4096;

impl MemFs {
    /// The handle of a node: its number and the tree's generation.
    #[doc(alias = "shmem_encode_fh")]
    pub(crate) fn encode(&self, node: &Arc<Node>) -> Result<Box<[u8]>> {
        self.number(node);
        let number = node.ino.to_le_bytes().into_iter();
        Ok(number.chain(self.tree.generation.to_le_bytes()).collect())
    }

    /// The file that has `number`, if it has a handle and a name.
    #[doc(alias("shmem_fh_to_dentry", "shmem_get_parent"))]
    pub(crate) fn find(
        &self,
        number: u64,
        iget: impl FnOnce(&Arc<Node>) -> Result<InodeRef>,
    ) -> Result<ByNumber> {
        let root = &self.tree.root;
        if number == root.ino {
            return Ok(ByNumber::Path(Box::default()));
        }
        // Locked until the inode is there. Whoever removes the last name waits for the lock before
        // the VFS takes the inode out of its cache, so a node does not get a second inode here
        // beside one that is in use.
        let numbered = self.tree.numbered.read().unwrap_or_else(recover);
        let node = numbered.get(&number).and_then(Weak::upgrade);
        let node = node.ok_or(Error::Stale)?;
        if node.kind != FileType::Directory {
            return iget(&node).map(ByNumber::Inode);
        }
        drop(numbered);
        let path = self.path_of(node).ok_or(Error::Stale)?;
        Ok(ByNumber::Path(path.into()))
    }

    /// The path of a directory from the root; `None` if it was removed or is being moved.
    #[doc(alias = "reconnect_path")]
    fn path_of(&self, mut dir: Arc<Node>) -> Option<Vec<u8>> {
        let mut path = Vec::new();
        for _ in 0..DEEPEST {
            if Arc::ptr_eq(&dir, &self.tree.root) {
                return Some(path);
            }
            let above = dir.names().ok()?.above.upgrade()?;
            let name: Box<[u8]> = above.names().ok()?.name_of(&dir)?.into();
            path.splice(0..0, b"/".iter().chain(&*name).copied());
            dir = above;
        }
        None
    }
}
