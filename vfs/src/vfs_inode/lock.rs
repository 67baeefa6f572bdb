//! `i_rwsem`: an inode is locked exclusively while the back end changes it.
//!
//! Lookups and listings lock a directory shared, so it has a reader-writer lock, beside the other
//! things that only directories have. No call locks another file shared: its lock is one bit in
//! the word that counts its references.

use rcuwalk_sync::LockedShared;
use rcuwalk_sync::lock::{Rank, RwLock, WriteGuard};

use super::extra::Listed;
use super::{Inode, InodeRef};
use crate::attr::FileType;

/// An inode that is locked exclusively.
#[must_use = "dropping it unlocks the inode"]
#[expect(dead_code, reason = "they are held, and dropped")]
pub(crate) enum InodeLock<'a> {
    Dir(WriteGuard<'a, Listed>),
    File(LockedShared<'a, Inode>),
}

impl InodeRef {
    /// Locks it exclusively.
    #[doc(alias("inode_lock", "i_rwsem"))]
    pub(crate) fn lock(&self) -> InodeLock<'_> {
        match self.kind() {
            FileType::Directory => InodeLock::Dir(self.rwsem().write()),
            _ => InodeLock::File(self.shared().lock(Rank::DirRwsem)),
        }
    }

    /// As above, for the second and later of several inodes.
    ///
    /// The caller keeps LOCK-1's tie-break: ancestor first, else by address.
    #[doc(alias = "inode_lock_nested")]
    pub(crate) fn lock_nested(&self) -> InodeLock<'_> {
        match self.kind() {
            FileType::Directory => InodeLock::Dir(self.rwsem().write_nested()),
            _ => InodeLock::File(self.shared().lock_nested(Rank::DirRwsem)),
        }
    }

    /// Locks it exclusively if no thread has it locked, whatever this thread holds.
    #[doc(alias = "inode_trylock")]
    pub(crate) fn try_lock_out_of_order(&self) -> Option<InodeLock<'_>> {
        Some(match self.kind() {
            FileType::Directory => InodeLock::Dir(self.rwsem().try_write_out_of_order()?),
            _ => InodeLock::File(self.shared().try_lock_out_of_order(Rank::DirRwsem)?),
        })
    }
}

impl Inode {
    /// A directory's lock.
    pub(crate) fn rwsem(&self) -> &RwLock<Listed> {
        debug_assert_eq!(self.kind(), FileType::Directory, "others have a bit");
        &self.attr.or_extra().rwsem
    }
}
