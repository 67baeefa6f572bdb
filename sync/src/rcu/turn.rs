//! Whose turn it is to free.
//!
//! A lock, but one that the child of a fork can set back: its holder runs foreign `Drop` code,
//! for which nobody who forks waits (see `fork.rs`).

use crate::atomic::*;
use crate::wait;

const TAKEN: u64 = 1;
const AWAITED: u64 = 2;

pub(super) struct Turn(AtomicU64);

/// Dropping it gives the turn to the next one.
pub(super) struct MyTurn<'a>(&'a Turn);

impl Turn {
    crate::model::const_unless_loom! {
        pub(super) fn new() -> Turn {
            Turn(AtomicU64::new(0))
        }
    }

    /// Waits for it.
    pub(super) fn take(&self) -> MyTurn<'_> {
        if let Some(mine) = self.try_take() {
            return mine;
        }
        // Marked as awaited in the same step, also by who gets it: others may sleep still.
        wait::wait_until(self.address(), || {
            self.0.fetch_or(TAKEN | AWAITED, Acquire) & TAKEN == 0
        });
        MyTurn(self)
    }

    /// The turn, if nobody has it.
    pub(super) fn try_take(&self) -> Option<MyTurn<'_>> {
        // Acquire: pairs with the Release in `MyTurn`'s drop.
        (self.0.fetch_or(TAKEN, Acquire) & TAKEN == 0).then(|| MyTurn(self))
    }

    /// In the child of a fork: whoever had it is not there.
    #[cfg(all(unix, not(any(miri, loom, shuttle))))]
    pub(super) fn set_back(&self) {
        self.0.store(0, Relaxed);
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Drop for MyTurn<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(0, Release) & AWAITED != 0 {
            wait::wake_all(self.0.address());
        }
    }
}
