//! How the types of this module are shown.

use std::fmt;

use super::cache::{Builder, InodeCache};
use super::iget::SpareInode;
use super::known::{Known, KnownEntry, KnownPart, KnownRef, KnownTable};
use super::new::NewInode;
use super::node::{Key, Node};
use super::nodes::{Entry, NodeTable, Numbered};

impl<K: fmt::Debug, P: fmt::Debug> fmt::Debug for Node<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("key", self.key())
            .field("part", &self.get())
            .finish()
    }
}

impl<K: Key + fmt::Debug, P: Send + Sync> fmt::Debug for NewInode<'_, K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NewInode").field(self.key()).finish()
    }
}

impl<K: Key, P: Send + Sync> fmt::Debug for SpareInode<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpareInode").finish_non_exhaustive()
    }
}

impl<K: Key, P: Send + Sync> fmt::Debug for InodeCache<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeCache")
            .field("scheme", &self.scheme())
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

impl<K: Key, P: Send + Sync> fmt::Debug for Builder<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("inodes", &self.inodes)
            .field("bytes", &self.bytes)
            .field("scheme", &self.scheme)
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

impl<K: Key, P: Numbered + Send + Sync> fmt::Debug for NodeTable<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeTable")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<K: Key, P: Numbered + Send + Sync> fmt::Debug for Entry<'_, K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl<P: fmt::Debug> fmt::Debug for Known<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known")
            .field("id", &self.id())
            .field("part", &**self)
            .finish_non_exhaustive()
    }
}

impl<P: KnownPart> fmt::Debug for KnownRef<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KnownRef").field(&self.id()).finish()
    }
}

impl<P: KnownPart> fmt::Debug for KnownTable<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownTable")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<P: KnownPart> fmt::Debug for KnownEntry<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownEntry")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
