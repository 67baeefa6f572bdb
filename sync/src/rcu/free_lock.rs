//! The lock that the freeing thread holds: only one thread frees at a time.
//!
//! A lock, but one that the child of a fork can reset: its holder runs foreign `Drop` code, for
//! which no forking thread waits (see `fork.rs`).

use crate::atomic::*;
use crate::wait;

const TAKEN: u64 = 1;
const AWAITED: u64 = 2;

pub(super) struct FreeLock(AtomicU64);

/// Dropping it gives the turn to the next one.
pub(super) struct FreeGuard<'a>(&'a FreeLock);

impl FreeLock {
    crate::model::const_unless_loom! {
        pub(super) fn new() -> FreeLock {
            FreeLock(AtomicU64::new(0))
        }
    }

    /// Waits for it.
    pub(super) fn take(&self) -> FreeGuard<'_> {
        if let Some(mine) = self.try_take() {
            return mine;
        }
        // Each waiter marks the turn as awaited when it takes it: others may still be asleep.
        wait::wait_until(self.address(), || {
            self.0.fetch_or(TAKEN | AWAITED, Acquire) & TAKEN == 0
        });
        FreeGuard(self)
    }

    /// Takes the turn if it is free.
    pub(super) fn try_take(&self) -> Option<FreeGuard<'_>> {
        // Acquire: pairs with the Release in `FreeGuard`'s drop.
        (self.0.fetch_or(TAKEN, Acquire) & TAKEN == 0).then(|| FreeGuard(self))
    }

    /// Frees the turn in the child of a fork, where its holder does not exist.
    #[cfg(all(unix, not(any(miri, loom, shuttle))))]
    pub(super) fn set_back(&self) {
        self.0.store(0, Relaxed);
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Drop for FreeGuard<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(0, Release) & AWAITED != 0 {
            wait::wake_all(self.0.address());
        }
    }
}
