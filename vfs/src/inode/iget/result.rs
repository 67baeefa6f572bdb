//! The results of the iget family.

use std::fmt;

use rcuwalk_sync::Spare;

use crate::inode::life::{Life, NEW};
use crate::inode::new::NewInode;
use crate::inode::node::{InodeRef, Key, Node};

/// The result of [`InodeCache::iget`](crate::inode::InodeCache::iget).
#[must_use]
#[derive(Debug)]
pub enum Iget<'c, K: Key, P: Send + Sync + 'static> {
    /// The inode is there, filled in.
    Cached(InodeRef<K, P>),
    /// It is not cached: the caller fills it in, and all other threads wait for that.
    New(NewInode<'c, K, P>),
}

/// The key belongs to an inode that its creator has not finished, or that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ESTALE")]
pub struct Stale;

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stale: the inode is being created, or is gone")
    }
}

impl std::error::Error for Stale {}

impl From<Stale> for std::io::Error {
    fn from(_: Stale) -> Self {
        std::io::ErrorKind::StaleNetworkFileHandle.into()
    }
}

/// A lookup that did not wait met this.
#[derive(Debug)]
pub enum Unwaited<K: Key, P: Send + Sync + 'static> {
    /// The inode, filled in.
    Inode(InodeRef<K, P>),
    /// Another thread is reading it in.
    New(PendingInode<K, P>),
}

/// An inode that another thread is reading in.
#[derive(Debug)]
pub struct PendingInode<K: Key, P: Send + Sync + 'static>(pub(super) InodeRef<K, P>);

impl<K: Key, P: Send + Sync + 'static> PendingInode<K, P> {
    /// Where it is in its life.
    pub fn life(&self) -> Life {
        self.0.life()
    }

    /// Sleeps until it is read in. `None` if that failed, or if it has been unhashed since:
    /// then the caller looks again.
    #[doc(alias = "wait_on_inode")]
    pub fn wait(self) -> Option<InodeRef<K, P>> {
        self.0.shared().wait_until_clear(NEW);
        (self.0.get().is_some() && self.0.is_hashed()).then_some(self.0)
    }
}

/// Memory for an inode that is not in the cache yet.
pub struct SpareInode<K: Key, P: Send + Sync + 'static>(pub(super) Spare<Node<K, P>>);

/// What to do with an inode that
/// [`find_inode_nowait`](crate::inode::InodeCache::find_inode_nowait) shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It is the one.
    #[doc(alias = "igrab")]
    Take,
    /// Show the next.
    Next,
    /// None is.
    Stop,
}

/// There is an inode with that key already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "EBUSY")]
pub struct InUse;

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("in use: there is an inode with that key")
    }
}

impl std::error::Error for InUse {}

impl From<InUse> for std::io::Error {
    fn from(_: InUse) -> Self {
        std::io::ErrorKind::ResourceBusy.into()
    }
}
