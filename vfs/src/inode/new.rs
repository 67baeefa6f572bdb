//! [`NewInode`]: hashed, so that no two threads read the same inode in, but not readable by
//! other threads yet.
//!
//! INODE-2: only the holder of `NewInode` sees a New inode; everyone else waits.
//! INODE-3: a failed read-in wakes every waiter.

use std::sync::Arc;

use rcuwalk_sync::Ref;

use super::cache::Inner;
use super::life::{CREATING, NEW};
use super::node::{InodeRef, Key, Node};

/// An inode that its holder must fill in.
///
/// Dropping it without [`init`](Self::init) unhashes it and wakes the waiters, so an early `?`
/// in a back end cannot leave them waiting. A thread that looks up its key while holding it
/// waits for itself.
#[doc(alias("I_NEW", "unlock_new_inode", "iget_failed", "discard_new_inode"))]
#[must_use = "dropping it tells the waiters that the read-in failed"]
pub struct NewInode<'c, K: Key, P: Send + Sync + 'static> {
    cache: &'c Arc<Inner<K, P>>,
    /// `Some` until it is filled in.
    node: Option<Ref<Node<K, P>>>,
}

impl<'c, K: Key, P: Send + Sync + 'static> NewInode<'c, K, P> {
    pub(super) fn new(cache: &'c Arc<Inner<K, P>>, node: Ref<Node<K, P>>) -> Self {
        NewInode {
            cache,
            node: Some(node),
        }
    }

    /// The key to read in.
    pub fn key(&self) -> &K {
        self.node().key()
    }

    /// Fills it in and makes it visible to all threads.
    #[doc(alias("unlock_new_inode", "d_instantiate_new"))]
    pub fn init(mut self, part: impl Into<P>) -> InodeRef<K, P> {
        let part = part.into();
        self.node().fill(part);
        if self.node().has(CREATING) {
            // Lookups wait for the rest of this instead of going away.
            self.node().clear(CREATING);
        }
        // Foreign code asks for the weight: if that panics, it is a failed read-in.
        self.cache.unlock_new_inode(self.node());
        InodeRef::new(self.node.take().expect("until it is filled in"))
    }

    #[inline]
    fn node(&self) -> &Ref<Node<K, P>> {
        self.node.as_ref().expect("until it is filled in")
    }
}

impl<K: Key, P: Send + Sync + 'static> Drop for NewInode<'_, K, P> {
    fn drop(&mut self) {
        let Some(node) = self.node.take() else {
            return;
        };
        if node.has(NEW) {
            // Unhashed before the waiters wake: they look again and do not find it.
            drop(self.cache.take_off(&node));
            node.kill();
            node.clear(NEW);
        } else {
            // A hook has panicked during reclaim.
            drop(InodeRef::new(node));
        }
    }
}
