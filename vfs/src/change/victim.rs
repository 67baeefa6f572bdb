//! A directory that is removed or replaced, locked beside the one that it is in.
//!
//! LOCK-1: a thread that holds a directory waits for a second one only while it holds the super
//! block's rename mutex, which a removal does not take: a back end that is stuck in one removal
//! would stop them all, and every rename between directories. So the removal tries the victim's
//! lock. If another thread has it, the removal gives up what it holds, waits for the victim
//! alone, and then tries the directory above.

use super::locked::Locked;
use crate::context::{Context, VfsPath};
use crate::error::Result;
use crate::vfs::Vfs;
use crate::vfs_inode::{InodeLock, InodeRef};

/// How an attempt ended.
pub(super) enum Attempt {
    Done,
    /// Another thread has this directory locked, or the one above it.
    Contended(Option<InodeRef>),
}

/// The victim of the attempt before, which could not have its lock then.
pub(super) struct Victim<'v>(Option<(&'v InodeRef, InodeLock<'v>)>);

/// Makes attempts until one is done. Each begins with nothing locked but the directory that the
/// one before could not lock.
pub(super) fn with_victim(mut change: impl FnMut(Victim<'_>) -> Result<Attempt>) -> Result<()> {
    let mut contended = None;
    loop {
        let first: Option<InodeRef> = contended.take();
        let first = first.as_ref().map(|inode| (inode, inode.lock()));
        match change(Victim(first))? {
            Attempt::Done => return Ok(()),
            Attempt::Contended(next) => contended = next,
        }
    }
}

impl<'v> Victim<'v> {
    /// For a change that waits for its victim, and holds the rename mutex.
    pub(super) fn none() -> Victim<'v> {
        Victim(None)
    }

    /// Locks the directory above. `None` if that takes a wait, and the victim is locked already.
    pub(super) fn lock_dir<'a>(
        &self,
        vfs: &'a Vfs,
        ctx: &'a Context,
        dir: &'a VfsPath,
    ) -> Option<Locked<'a>> {
        match self.0 {
            None => Some(Locked::new(vfs, ctx, dir)),
            Some(_) => Locked::try_new(vfs, ctx, dir),
        }
    }

    /// Locks the victim that was found. `None` if another thread has it locked.
    pub(super) fn lock<'w>(self, inode: &'w InodeRef) -> Option<InodeLock<'w>>
    where
        'v: 'w,
    {
        match self.0 {
            Some((first, guard)) if InodeRef::ptr_eq(first, inode) => Some(guard),
            // Another directory has the name by now.
            first => {
                drop(first);
                inode.try_lock_out_of_order()
            }
        }
    }
}
