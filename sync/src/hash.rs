//! The hash table: lockless readers, a parking lock per bucket, growing meanwhile.
//!
//! Chains run through the objects themselves ([`Shared`] has the link), so a hit
//! touches the head and the object, nothing else. The table holds one counted
//! reference per object on it.
//!
//! | read             | to learn                                              |
//! |------------------|-------------------------------------------------------|
//! | this file        | the table                                             |
//! | `hash/view.rs`   | lookups                                               |
//! | `hash/bucket.rs` | a locked bucket: the changes of a chain               |
//! | `hash/grow.rs`   | how chains move to a larger or smaller array          |
//! | `hash/heads.rs`  | where an array lies                                   |
//!
//! A head is a pointer with marks in its low bits: LOCKED, WAITERS, MOVED. A chain
//! ends in a marker that names its bucket. An object that is moved (a rename, a
//! resize) carries a reader that stands on it over to another chain; the reader
//! notices by the marker at the end, and looks again. It may still miss an object
//! that is there, so **a miss proves nothing until it is repeated under the
//! bucket's lock**; a hit is one, if the object's own sequence count says so.

mod bucket;
mod grow;
mod heads;
mod view;

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use crate::atomic::*;
use crate::lock::{Held, Rank};
use crate::lru::Lists;
use crate::{Lru, RcuGuard, RcuPtr, Ref, Shared, wait};
use grow::Buckets;

pub use bucket::BucketGuard;
pub use view::{Unsettled, View};

/// The hash of an object, as the table needs it.
pub trait HashKey {
    /// The hash it was inserted under, with well-mixed lower bits. Asked while the
    /// object's bucket is locked, when the table changes its size.
    fn hash(&self) -> u64;
}

const LOCKED: usize = 1;
const WAITERS: usize = 2;
/// An end marker instead of an object.
const END: usize = 4;
/// In a head: the chain has moved to the next array.
const MOVED: usize = 8;
const MARKS: usize = LOCKED | WAITERS;

/// A hash table of [`Shared`] objects.
#[doc(alias("hlist_bl_head", "rhashtable"))]
pub struct RcuHash<T> {
    buckets: RcuPtr<Buckets<T>>,
    rank: Rank,
    grow: grow::Growth,
    /// Dropped after the chains are.
    lru: Option<Lru<T>>,
}

/// How often the locks of a table were taken, and how long threads waited for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockStatistics {
    /// How often a lock was taken.
    pub taken: u64,
    /// How often another thread held it.
    pub contended: u64,
    /// The total time of those waits.
    pub waited: Duration,
}

impl<T: HashKey + Send + Sync + 'static> RcuHash<T> {
    /// An empty table; `rank` is the rank of its bucket locks in the lock order.
    pub fn new(rank: Rank) -> RcuHash<T> {
        RcuHash {
            buckets: RcuPtr::new(Some(Ref::new(Buckets::new(grow::SMALLEST)))),
            rank,
            grow: grow::Growth::new(),
            lru: None,
        }
    }

    /// The same table, with `lru` for the objects on it that have no user (LRU-1).
    pub fn with_lru(mut self, lru: Lru<T>) -> RcuHash<T> {
        self.lru = Some(lru);
        self
    }

    /// The lists.
    ///
    /// # Panics
    /// If the table was made without.
    #[inline]
    pub fn lru(&self) -> &Lru<T> {
        self.lru.as_ref().expect("a table with lists")
    }

    fn lists(&self) -> *const Lists<T> {
        let lists = self.lru.as_ref().map(Lru::lists);
        lists.map_or(ptr::null(), ptr::from_ref)
    }

    /// The first object on the chain of `hash` that `wanted` accepts.
    ///
    /// Takes no lock and stores nothing. `wanted` may see objects that are being
    /// changed or torn down. A miss proves nothing, see the module.
    #[inline]
    #[doc(alias = "hlist_bl_for_each_entry_rcu")]
    pub fn find<'g>(
        &self,
        hash: u64,
        guard: &'g RcuGuard,
        wanted: impl FnMut(&'g Shared<T>) -> bool,
    ) -> Option<&'g Shared<T>> {
        self.view(guard).find(hash, wanted)
    }

    /// The array as it is now, for several lookups under one guard.
    #[inline]
    pub fn view<'g>(&self, guard: &'g RcuGuard) -> View<'g, T> {
        let buckets = self
            .buckets
            .load(guard)
            .expect("a table always has an array");
        View {
            heads: buckets.heads(),
            mask: buckets.mask(),
            buckets,
            guard,
        }
    }

    /// Locks the bucket of `hash`; sleeps while another thread holds it.
    pub fn lock(&self, hash: u64) -> BucketGuard<'_, T> {
        // First, because objects that become ripe during the visit are freed after the
        // unlock: a panic in their `Drop` then leaves no caller half way.
        let held = Held::new(self.rank, false);
        let mine = self.visit();
        let (buckets, index) = self.lock_head(hash);
        BucketGuard {
            mine,
            buckets,
            index,
            lists: self.lists(),
            unlocked: false,
            _table: PhantomData,
            _held: held,
        }
    }

    /// Prefetches the head of `hash`, for a caller that locks its bucket in a moment.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let guard = crate::rcu::read_lock();
        let view = self.view(&guard);
        crate::hint::prefetch(&raw const view.heads[grow::index(hash, view.mask)]);
    }

    /// Like [`prefetch`](Self::prefetch), a while after it: loads the first object of the
    /// chain, which a lookup reads even if it is another one.
    #[inline]
    pub fn prefetch_chain(&self, hash: u64) {
        let guard = crate::rcu::read_lock();
        let view = self.view(&guard);
        let first = view.heads[grow::index(hash, view.mask)].load(Relaxed);
        if first.addr() & (END | MOVED) == 0 {
            crate::hint::prefetch(grow::unmarked(first));
        }
    }

    /// Takes dead objects off their chains and drops both references to each: the chain's, and
    /// the one that is passed. Wakes the threads that wait for that.
    ///
    /// Made for many objects at a time: it prefetches the heads first, and does everything that
    /// one step can do to an object in that step.
    pub fn bury(&self, dead: Vec<Ref<T>>) {
        {
            let guard = crate::rcu::read_lock();
            let view = self.view(&guard);
            let head_of = |object: &Ref<T>| &view.heads[grow::index(object.hash(), view.mask)];
            for object in &dead {
                crate::hint::prefetch(head_of(object));
            }
            // Then the objects before them on their chains: newer than they, and thus first.
            for object in &dead {
                crate::hint::prefetch(head_of(object).load(Relaxed));
            }
        }
        let buried = dead.into_iter().filter_map(|object| {
            let hash = object.hash();
            match self.lock(hash).unlink_and_unlock(&object) {
                true => Ref::bury(object),
                // Off its chain already.
                false => None,
            }
        });
        // Collected first: the lock of a bucket is not taken while they are retired.
        let buried: Vec<_> = buried.collect();
        // SAFETY: `bury` has returned each.
        unsafe { Ref::retire_buried(buried.into_iter()) }
    }

    /// How often the locks of this table were taken so far, by all threads.
    pub fn lock_statistics(&self) -> LockStatistics {
        self.grow.lock_statistics()
    }

    /// Finds and locks the head that is in charge of `hash` now.
    ///
    /// The array is not counted: it is retired when its last chain has moved, and
    /// a locked chain has not. That holds it for as long as the lock is held.
    fn lock_head(&self, hash: u64) -> (NonNull<Shared<Buckets<T>>>, usize) {
        loop {
            let guard = crate::rcu::read_lock();
            let mut buckets = self
                .buckets
                .load(&guard)
                .expect("a table always has an array");
            let index = loop {
                let index = buckets.index(hash);
                match buckets.try_lock(index) {
                    grow::TryLock::Locked => return (NonNull::from(buckets), index),
                    grow::TryLock::Moved => {
                        let next = buckets.next.load(&guard);
                        buckets = next.expect("a moved chain has gone somewhere");
                    }
                    grow::TryLock::Busy => break index,
                }
            };
            let kept = buckets.try_get();
            drop(guard);
            if let Some(kept) = kept {
                let since = Instant::now();
                kept.wait_unlocked(index);
                self.grow.note_wait(since);
            }
        }
    }

    /// How many objects are on the table, except for changes under way.
    pub fn len(&self) -> usize {
        self.grow.len()
    }

    /// True if the table is empty, except for changes under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Seldom: a head is locked for moments only. Out of line, so that the common path follows a
/// loaded head as it is.
#[cold]
fn without_marks<T>(head: *mut Shared<T>) -> *mut Shared<T> {
    head.map_addr(|address| address & !MARKS)
}

/// The marker that ends the chain of bucket `index`.
#[inline]
fn end_of(index: usize) -> usize {
    index << 4 | END
}

fn end_marker<T>(index: usize) -> *mut Shared<T> {
    ptr::without_provenance_mut(end_of(index))
}

impl<T> Drop for RcuHash<T> {
    fn drop(&mut self) {
        if let Some(buckets) = self.buckets.swap(None) {
            buckets.drop_chains();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
