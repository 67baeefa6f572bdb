//! LRU queue of directory descriptors.
//!
//! A directory enters at the end when it is opened. The one at the front goes to the end once
//! more if it has been used since; a use itself costs no more than a mark. The queue does not
//! keep directories alive.
//!
//! MEM-1: a descriptor is counted before it is opened, and another one is closed first if the
//! budget is used up. So beyond the budget there are only descriptors in use at the moment, of
//! open directories, and of removed ones that are in use.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};

use rcuwalk::{Error, HeldDescriptor, Result, SuperBlock};

use super::Dir;
use crate::host;

/// So many that have been used are passed over for one that is given back.
const CHANCES: usize = 32;

/// So many are given back at least when the process has run out.
const WHEN_OUT: usize = 16;

/// All directories of a [`HostFs`](crate::HostFs).
#[derive(Default)]
pub(crate) struct Dirs {
    queue: Mutex<Queue>,
    /// Held exclusively while a known directory moves, on the host as well, and shared by
    /// threads that go there by name: they would not find it half way.
    moves: RwLock<()>,
    given_back: AtomicU64,
    pub(super) by_handle: AtomicU64,
    pub(super) by_name: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// The number of the last that has entered.
    last: u64,
    waiting: BTreeMap<u64, Weak<Dir>>,
}

impl Dirs {
    /// Puts it at the end. The caller has its slot locked, and notes the number there.
    pub(super) fn enqueue(&self, dir: &Arc<Dir>) -> u64 {
        let mut queue = self.queue();
        queue.last += 1;
        let turn = queue.last;
        queue.waiting.insert(turn, Arc::downgrade(dir));
        turn
    }

    /// Takes it out, wherever it is.
    pub(super) fn leave(&self, turn: u64) {
        if turn != 0 {
            self.queue().waiting.remove(&turn);
        }
    }

    /// Counts a descriptor that is about to be opened, and gives back others for it.
    pub(crate) fn hold_descriptor(&self, sb: &SuperBlock) -> HeldDescriptor {
        let mut chances = CHANCES;
        loop {
            if let Some(counted) = sb.try_hold_descriptor() {
                return counted;
            }
            if !self.give_back(&mut chances) {
                // All are others': files without a name, or of another mount.
                return sb.hold_descriptor();
            }
        }
    }

    /// Opens, with a second and third try after descriptors have been given back (MEM-1).
    ///
    /// # Errors
    /// [`Error::TooManyOpenFiles`] if all open descriptors belong to others. After the
    /// call, the VFS closes unused ones and calls once more.
    pub(crate) fn open<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        match open() {
            Err(Error::TooManyOpenFiles) => self.open_without_room(open),
            done => done,
        }
    }

    /// The budget is more than the process may have, or other code needs it.
    #[cold]
    fn open_without_room<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        let some = WHEN_OUT.max(self.kept() / 4);
        self.give_back_many(some);
        host::with_descriptors(|| self.give_back_many(usize::MAX), open)
    }

    fn give_back_many(&self, most: usize) {
        let most = most.min(self.kept());
        for _ in 0..most {
            if !self.give_back(&mut 0) {
                return;
            }
        }
    }

    /// Gives back one. False if there is none.
    fn give_back(&self, chances: &mut usize) -> bool {
        loop {
            let first = self.queue().waiting.pop_first();
            let Some((turn, dir)) = first else {
                return false;
            };
            // It may be the last to have it: not with the queue locked.
            let Some(dir) = dir.upgrade() else { continue };
            let chance = *chances > 0;
            *chances = chances.saturating_sub(1);
            if dir.give_back(turn, chance) {
                self.given_back.fetch_add(1, Relaxed);
                return true;
            }
        }
    }

    /// Locks out threads that reopen directories by name.
    pub(crate) fn moving(&self) -> RwLockWriteGuard<'_, ()> {
        self.moves.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of directories stay, as far as they are changed from here.
    pub(super) fn going(&self) -> RwLockReadGuard<'_, ()> {
        self.moves.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> usize {
        self.queue().waiting.len()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Dirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dirs({} kept)", self.kept())
    }
}

/// Counters of a [`HostFs`](crate::HostFs)'s directory descriptors: see
/// [`HostFs::descriptors`](crate::HostFs::descriptors).
#[derive(Clone, Debug)]
pub struct DescriptorCounts(pub(crate) Arc<Dirs>);

impl DescriptorCounts {
    /// How many directories have one now.
    pub fn kept(&self) -> usize {
        self.0.kept()
    }

    /// How many have been given back for others.
    pub fn given_back(&self) -> u64 {
        self.0.given_back.load(Relaxed)
    }

    /// How many directories were opened again by their file handle.
    #[doc(alias = "open_by_handle_at(2)")]
    pub fn reopened_by_handle(&self) -> u64 {
        self.0.by_handle.load(Relaxed)
    }

    /// How many were opened again by name: those on the way to another one as well.
    pub fn reopened_by_name(&self) -> u64 {
        self.0.by_name.load(Relaxed)
    }
}
