//! Missing names: how long they stay in the cache.
//!
//! A program may ask for any number of names that do not exist, and a removal leaves one for
//! each name that it takes away. Each is a dentry without an inode. Most of them are never
//! asked for again, and a cache full of them has no room for existing names. So they are on a
//! list of their own, and are evicted sooner than other names (MEM-1):
//!
//! - A missing name that no walk asks for goes once names for a sixteenth of the budget have been
//!   added after it: after half of that it is marked, and after the other half it goes if the mark
//!   is still there. A walk that finds it takes the mark off. (A new name has no mark, or the
//!   first hit would store to it: WALK-2.)
//! - All of them take a quarter of the budget at most.
//! - Under pressure they go first.
//!
//! There is no thread for this. A thread that adds names scans two of the oldest missing ones
//! for each that it adds; so a cache to which nothing is added stays as it is. Age is counted
//! in additions, and not in time, for the same reason: only additions need room.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rcuwalk_sync::LruStatus;

use super::shrink::Kind;
use super::{Dcache, Dentry, DentryRef};
use crate::budget::Share;

/// Missing names may take one part in `MOST` of the budget...
const MOST: usize = 4;
/// ...and are scanned each time that one part in `LIFE` has been added.
const LIFE: usize = 32;

/// Counts additions, in steps of [`Share::step`], and tells which names are old. On a line of its
/// own: walks read the fields beside it.
#[repr(align(128))]
pub(super) struct Age {
    /// How much each step adds, at most.
    step: usize,
    now: AtomicU32,
    /// In steps.
    life: u32,
    most: usize,
}

impl Age {
    pub(super) fn new(share: &Share) -> Age {
        let step = share.step();
        let life = share.fits() / LIFE / step;
        Age {
            step,
            now: AtomicU32::new(0),
            life: u32::try_from(life).unwrap_or(u32::MAX / 2).max(4),
            most: (share.fits() / MOST).max(4 * step),
        }
    }

    fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    fn tick(&self) {
        self.now.fetch_add(1, Relaxed);
    }

    /// The count wraps. A name that was stamped after `now` was read is not old.
    fn is_old(&self, stamp: u32, now: u32) -> bool {
        let age = now.wrapping_sub(stamp).cast_signed();
        age > self.life.cast_signed()
    }
}

impl Dentry {
    /// Starts the name's age again.
    fn set_stamp(&self, now: u32) {
        self.stamp.store(now, Relaxed);
    }
}

impl Dcache {
    /// A name is missing from now on.
    pub(super) fn begin_age(&self, dentry: &DentryRef) {
        dentry.set_stamp(self.age.now());
    }

    /// As many names have been added as make a step: drops missing names that are too old or too
    /// many. Scans two for each that was added.
    pub(super) fn age_missing(&self) {
        self.age.tick();
        let list = self.list(Kind::Missing);
        let mut missing = list.len();
        let Some(shard) = list.victim() else {
            return;
        };
        let now = self.age.now();
        let mut gone = Vec::new();
        list.scan(shard, 2 * self.age.step, &mut gone, |dentry| {
            let too_many = missing > self.age.most;
            if !too_many && !self.age.is_old(dentry.stamp.load(Relaxed), now) {
                // Those behind it are younger, or have been used since.
                return LruStatus::Stop;
            }
            if !dentry.age() && !too_many {
                dentry.set_stamp(now);
                return LruStatus::Rotate;
            }
            missing = missing.saturating_sub(1);
            LruStatus::Kill
        });
        self.evict(gone, |_| self.share.is_over());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MEM-1: a missing name is old after its life, and not before; also where the count wraps.
    #[test]
    fn a_missing_name_is_old_after_its_life() {
        let age = Age::new(&Share::new(1 << 20, 1 << 30, 128));
        assert_eq!(age.step as u32 * age.life, 1 << 15, "half of a sixteenth");
        for stamp in [0, 1000, u32::MAX - 5, i32::MAX as u32 - 5, i32::MAX as u32] {
            let after = |steps: u32| age.is_old(stamp, stamp.wrapping_add(steps));
            assert!(!after(0) && !after(age.life), "MEM-1: {stamp}");
            assert!(after(age.life + 1) && after(1 << 30), "MEM-1: {stamp}");
            // Stamped by another thread just now.
            assert!(!age.is_old(stamp, stamp.wrapping_sub(1)), "MEM-1: {stamp}");
        }
        age.tick();
        assert_eq!(age.now(), 1);
    }
}
