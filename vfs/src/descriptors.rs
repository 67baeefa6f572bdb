//! The budget for descriptors (MEM-1): code that keeps one with an inode counts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many descriptors the back ends keep with inodes.
#[derive(Debug)]
pub(crate) struct Descriptors {
    held: AtomicUsize,
    budget: usize,
    /// Reclaim begins when more than this are held: the budget, or more after an attempt that
    /// found nearly all in use.
    threshold: AtomicUsize,
}

/// Attempts to reclaim are at least this many descriptors apart.
const STEP: usize = 32;

/// One descriptor that counts against [`Budget::fds`](crate::Budget::fds), for as
/// long as this lives: keep it beside the descriptor.
#[must_use = "dropping it takes the descriptor out of the count"]
#[derive(Debug)]
pub struct HeldDescriptor(Arc<Descriptors>);

impl Descriptors {
    pub(crate) fn new(budget: usize) -> Arc<Descriptors> {
        Arc::new(Descriptors {
            held: AtomicUsize::new(0),
            budget,
            threshold: AtomicUsize::new(budget),
        })
    }

    /// Counts one more. True if the caches should reclaim.
    pub(crate) fn hold(self: &Arc<Self>) -> (HeldDescriptor, bool) {
        let held = self.held.fetch_add(1, Relaxed) + 1;
        if held <= self.budget {
            // Back within the budget, so the next excess is a new one.
            self.threshold.store(self.budget, Relaxed);
        }
        (HeldDescriptor(self.clone()), self.are_too_many())
    }

    /// True if the caches should reclaim.
    pub(crate) fn are_too_many(&self) -> bool {
        self.held() > self.threshold.load(Relaxed)
    }

    /// Counts one more if the budget has room for it.
    pub(crate) fn try_hold(self: &Arc<Self>) -> Option<HeldDescriptor> {
        // Counted first: of two threads that come at once for the last one, both may be
        // refused, but never both served.
        let held = HeldDescriptor(self.clone());
        let before = self.held.fetch_add(1, Relaxed);
        if before >= self.budget {
            return None;
        }
        self.threshold.store(self.budget, Relaxed);
        Some(held)
    }

    /// Called after the caches have made what room they could.
    pub(crate) fn made_room(&self) {
        let held = self.held();
        // Descriptors in use must not make every further one start another attempt.
        let next = if held > self.budget {
            held + STEP
        } else {
            self.budget
        };
        self.threshold.store(next, Relaxed);
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }
}

impl Drop for HeldDescriptor {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Relaxed);
    }
}
