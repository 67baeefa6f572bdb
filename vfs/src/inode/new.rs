//! [`NewInode`]: hashed, so that nobody reads the same inode in twice, but not
//! readable by anyone else yet.
//!
//! INODE-2: only the holder of `NewInode` sees a New inode; everyone else waits.
//! INODE-3: a failed read-in wakes every waiter.

use std::sync::Arc;

use rcuwalk_sync::Ref;

use super::cache::{Inner, InodeRef, Key, NEW, Node};

/// An inode that its holder is to fill in.
///
/// Dropping it without [`init`](Self::init) unhashes it and wakes the waiters, so
/// an early `?` in a back end cannot leave them waiting.
#[doc(alias("I_NEW", "unlock_new_inode", "iget_failed", "discard_new_inode"))]
#[must_use = "dropping it tells the waiters that the read-in failed"]
pub struct NewInode<K: Key, P: Send + Sync + 'static> {
    cache: Arc<Inner<K, P>>,
    node: Ref<Node<K, P>>,
}

impl<K: Key, P: Send + Sync + 'static> NewInode<K, P> {
    pub(super) fn new(cache: Arc<Inner<K, P>>, node: Ref<Node<K, P>>) -> Self {
        NewInode { cache, node }
    }

    /// What is to be read in.
    pub fn key(&self) -> &K {
        self.node.key()
    }

    /// Fills it in and lets everybody see it.
    #[doc(alias = "unlock_new_inode")]
    pub fn init(self, part: impl Into<P>) -> InodeRef<K, P> {
        self.node.fill(part.into());
        self.node.clear(NEW);
        self.cache.add_to_lru(self.node.clone());
        InodeRef(self.node.clone())
    }
}

impl<K: Key, P: Send + Sync + 'static> Drop for NewInode<K, P> {
    fn drop(&mut self) {
        if self.node.has(NEW) {
            // Unhashed before the waiters wake: they look again and do not find it.
            self.cache.unhash(&self.node);
            self.node.clear(NEW);
        }
    }
}
