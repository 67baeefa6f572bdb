//! The hash table: lockless readers, a parking lock per bucket, growing meanwhile.
//!
//! Chains run through the objects themselves ([`Shared`] has the link), so a hit
//! touches the head and the object, nothing else. The table holds one counted
//! reference per object on it.
//!
//! | read             | to learn                                              |
//! |------------------|-------------------------------------------------------|
//! | this file        | lookups, and the lock of a bucket                     |
//! | `hash/grow.rs`   | how chains move to a larger or smaller array          |
//! | `hash/heads.rs`  | where an array lies                                   |
//!
//! A head is a pointer with marks in its low bits: LOCKED, WAITERS, MOVED. A chain
//! ends in a marker that names its bucket. An object that is moved (a rename, a
//! resize) carries a reader that stands on it over to another chain; the reader
//! notices by the marker at the end, and looks again. It may still miss an object
//! that is there, so **a miss proves nothing until it is repeated under the
//! bucket's lock**; a hit is one, if the object's own sequence count says so.

mod grow;
mod heads;

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use crate::atomic::*;
use crate::lock::{Held, Rank};
use crate::lru::Lists;
use crate::shared::Flag;
use crate::{Lru, RcuGuard, RcuPtr, Ref, Shared, Spare, wait};
use grow::Buckets;

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

/// The array of a table, held still for several lookups.
pub struct View<'g, T> {
    /// The array's own fields, at hand: a walk looks up several names.
    heads: &'g [AtomicPtr<Shared<T>>],
    mask: usize,
    buckets: &'g Shared<Buckets<T>>,
    guard: &'g RcuGuard,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<'g, T: HashKey> View<'g, T> {
    /// The number of chains. [`find`](Self::find) with each number below that, in place of a
    /// hash, goes along each of them: a caller can so scan the whole table, a piece at a time.
    /// Objects that move meanwhile may be seen twice, or missed.
    pub fn chains(self) -> usize {
        // In the larger array, if they are on their way: the lower bits of a number there
        // are the chain's in the smaller one.
        let next = self.buckets.next.load(self.guard);
        self.mask.max(next.map_or(0, |next| next.mask())) + 1
    }

    /// As [`RcuHash::find`].
    #[inline]
    pub fn find(
        self,
        hash: u64,
        mut wanted: impl FnMut(&'g Shared<T>) -> bool,
    ) -> Option<&'g Shared<T>> {
        let index = grow::index(hash, self.mask);
        match self.look_along(index, &mut wanted) {
            Ok(found) => Some(found),
            Err(end) if end == end_of(index) => None,
            Err(_) => self.find_again(hash, &mut wanted),
        }
    }

    /// As [`find`](Self::find), but tells a miss that proves something from one that
    /// does not: `Err` means that the table is changing its size, and that only the
    /// bucket's lock settles it.
    ///
    /// Finds every object that was inserted before the call and has not been removed since, or
    /// returns `Err`. This relies on objects that stay on their chain until they are removed
    /// for good, as inodes do.
    pub fn find_settled(
        self,
        hash: u64,
        mut wanted: impl FnMut(&'g Shared<T>) -> bool,
    ) -> Result<Option<&'g Shared<T>>, Unsettled> {
        let index = grow::index(hash, self.mask);
        match self.look_along(index, &mut wanted) {
            Ok(found) => Ok(Some(found)),
            // If another thread had begun to move the chain when we loaded its head, or one of
            // its links, that value reached us by the mover's Release, which came after the
            // next array: we see that array. Without a next array, no chain moves, and a miss
            // is a miss.
            Err(end) if end == end_of(index) && self.buckets.next.is_none() => Ok(None),
            Err(_) => match self.find_again(hash, &mut wanted) {
                Some(found) => Ok(Some(found)),
                None => Err(Unsettled),
            },
        }
    }

    /// Like [`find`](Self::find), but gives up at the end of the chain, even if that is another
    /// chain's: for callers with a slow path of their own.
    #[inline(always)]
    pub fn find_at_once(
        self,
        hash: u64,
        wanted: impl FnMut(&'g Shared<T>) -> bool,
    ) -> Option<&'g Shared<T>> {
        self.look_along(grow::index(hash, self.mask), wanted).ok()
    }

    /// The first object wanted on a chain, or the marker that the walk along it ended in.
    #[inline(always)]
    fn look_along(
        self,
        index: usize,
        mut wanted: impl FnMut(&'g Shared<T>) -> bool,
    ) -> Result<&'g Shared<T>, usize> {
        debug_assert!(index < self.heads.len());
        // SAFETY: the array has `mask + 1` heads (`Buckets::new`), and the index is some
        // number under that mask.
        let head = unsafe { self.heads.get_unchecked(index) };
        // Acquire: pairs with the Release of every store that links an object.
        let mut at = head.load(Acquire);
        if at.addr() & MARKS != 0 {
            at = without_marks(at);
        }
        while at.addr() & END == 0 {
            // SAFETY: every linked object was referenced by the table when we loaded the link,
            // and RCU-1 frees it only after a grace period, which `guard` holds open for 'g.
            let object: &'g Shared<T> = unsafe { &*at };
            if wanted(object) {
                return Ok(object);
            }
            // Acquire: as above.
            at = object.hash_next().load(Acquire);
        }
        Err(at.addr())
    }

    /// The chain ended in another bucket's marker: an object we stood on was moved, or
    /// the whole chain was.
    #[cold]
    fn find_again(
        self,
        hash: u64,
        wanted: &mut dyn FnMut(&'g Shared<T>) -> bool,
    ) -> Option<&'g Shared<T>> {
        let mut buckets = self.buckets;
        // A few tries, then a miss: the caller repeats those under the lock anyway.
        for _ in 0..8 {
            let index = buckets.index(hash);
            let head = buckets.head(index).load(Acquire);
            if head.addr() & MOVED != 0 {
                buckets = buckets.next.load(self.guard)?;
                continue;
            }
            let mut at = head.map_addr(|address| address & !MARKS);
            while at.addr() & END == 0 {
                // SAFETY: as in `look_along`.
                let object: &'g Shared<T> = unsafe { &*at };
                if wanted(object) {
                    return Some(object);
                }
                at = object.hash_next().load(Acquire);
            }
            if at.addr() == end_of(index) {
                return None;
            }
        }
        None
    }
}

/// A lookup missed while the table was changing its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled;

/// A locked bucket: the only way to change a chain.
pub struct BucketGuard<'a, T: HashKey + Send + Sync + 'static> {
    /// This thread's share in the table's counts.
    mine: &'a grow::Counts,
    buckets: NonNull<Shared<Buckets<T>>>,
    index: usize,
    /// Where its objects go while they have no user; null if nowhere.
    lists: *const Lists<T>,
    /// The head's lock has been given back already.
    unlocked: bool,
    _table: PhantomData<&'a RcuHash<T>>,
    /// Given back after the chain is: fields drop last.
    _held: Held,
}

impl<T: HashKey + Send + Sync + 'static> BucketGuard<'_, T> {
    /// The first object that `wanted` accepts. Nothing joins or leaves the chain
    /// while the guard lives, so here a miss is a miss.
    pub fn find(&self, mut wanted: impl FnMut(&Shared<T>) -> bool) -> Option<&Shared<T>> {
        let mut at = self.first();
        while at.addr() & END == 0 {
            // SAFETY: the chain holds references to its objects, and the lock keeps
            // it as it is for as long as the guard is borrowed.
            let object = unsafe { &*at };
            if wanted(object) {
                return Some(object);
            }
            at = object.hash_next().load(Relaxed);
        }
        None
    }

    /// Puts an object at the head of the chain: new objects are looked up again soon.
    ///
    /// # Panics
    /// If it is on a table already.
    #[doc(alias = "hlist_bl_add_head_rcu")]
    pub fn insert(&mut self, object: Ref<T>) {
        match object.listed() {
            Some(list) => {
                // SAFETY: the guard borrows the table, which owns its lists.
                let lists = unsafe { self.lists.as_ref() };
                assert!(
                    lists.is_some_and(|lists| lists.has(list)),
                    "an object is in one cache at a time"
                );
            }
            // Before the mark, and published by it: an object enters a list only with that.
            None => object.lru().set_lists(self.lists),
        }
        assert!(
            object.set(Flag::HASHED),
            "an object is on one chain at a time"
        );
        debug_assert_eq!(
            self.buckets().index(object.hash()),
            self.index,
            "inserted elsewhere"
        );
        let object = Ref::into_raw(object);
        // SAFETY: the table's reference keeps it alive.
        let next = unsafe { object.as_ref() }.hash_next();
        // Release, both: pair with the Acquires in `find`. A reader that stands on the object
        // since it was on another chain follows the link, every other reader the head; both
        // find initialised objects.
        next.store(self.first(), Release);
        self.buckets()
            .set_first(self.index, object.as_ptr(), Release);
        self.mine.count(1);
    }

    /// Makes a new object, puts it at the head of the chain, and unlocks the bucket.
    ///
    /// The object starts with `marks`. All this takes one step where making, counting, marking,
    /// linking and unlocking one after the other takes seven.
    #[doc(alias = "__insert_inode_hash")]
    pub fn insert_new(mut self, spare: Spare<T>, value: T, marks: Flag) -> Ref<T> {
        debug_assert_eq!(
            self.buckets().index(value.hash()),
            self.index,
            "inserted elsewhere"
        );
        // Two: the table's and the one that we return.
        let object = spare.fill(value, 2, marks | Flag::HASHED);
        // SAFETY: just filled, and the table's reference keeps it alive.
        let shared = unsafe { object.as_ref() };
        shared.lru().set_lists(self.lists);
        // Relaxed: no reader can stand on an object that has never been published.
        shared.hash_next().store(self.first(), Relaxed);
        self.mine.count(1);
        self.publish(object.as_ptr());
        // SAFETY: the other one of the two that the word counts.
        unsafe { Ref::from_raw(object) }
    }

    /// Takes `object` off the chain and unlocks the bucket. False if it is not on it. Its
    /// mark and the chain's reference are left to the caller.
    fn unlink_and_unlock(mut self, object: &Shared<T>) -> bool {
        let next = object.hash_next().load(Relaxed);
        if ptr::eq(self.first(), object) {
            self.mine.count(-1);
            self.publish(next);
            return true;
        }
        let mut at = self.first();
        while at.addr() & END == 0 {
            // SAFETY: as in `look_along`.
            let link = unsafe { &*at }.hash_next();
            at = link.load(Relaxed);
            if ptr::eq(at, object) {
                // Release: as in `remove_where`.
                link.store(next, Release);
                self.mine.count(-1);
                return true;
            }
        }
        false
    }

    /// Makes `object` the first of the chain and gives the lock back.
    fn publish(&mut self, object: *mut Shared<T>) {
        self.unlocked = true;
        let head = ptr::from_ref(self.buckets().head(self.index));
        // Release: pairs with the Acquire in `find`, as in `insert`, and with that in `try_lock`,
        // as in `unlock`.
        // SAFETY: ours, and locked by us.
        unsafe { grow::unlock_with(head, |_| object) };
    }

    /// Takes an object off the chain. Readers that stand on it go on from there.
    #[doc(alias = "hlist_bl_del_rcu")]
    pub fn remove(&mut self, object: &Shared<T>) -> Option<Ref<T>> {
        self.remove_where(|current| ptr::eq(current, object))
    }

    /// Takes the first object that `wanted` accepts off the chain.
    pub fn remove_where(&mut self, mut wanted: impl FnMut(&Shared<T>) -> bool) -> Option<Ref<T>> {
        let mut before: Option<&AtomicPtr<Shared<T>>> = None;
        let mut at = self.first();
        while at.addr() & END == 0 {
            // SAFETY: as in `look_along`.
            let current = unsafe { &*at };
            if !wanted(current) {
                before = Some(current.hash_next());
                at = current.hash_next().load(Relaxed);
                continue;
            }
            let next = current.hash_next().load(Relaxed);
            // Release: pairs with the Acquire in `find`; the thread that inserted the next
            // object published it, and we pass that on.
            match before {
                Some(link) => link.store(next, Release),
                None => self.buckets().set_first(self.index, next, Release),
            }
            current.clear(Flag::HASHED);
            self.mine.count(-1);
            // SAFETY: `insert` made it with `into_raw`; unlinked under the lock, it
            // is taken back only here.
            return NonNull::new(at).map(|object| unsafe { Ref::from_raw(object) });
        }
        None
    }

    fn buckets(&self) -> &Buckets<T> {
        // SAFETY: our locked chain keeps the array from being retired (`lock_head`).
        unsafe { self.buckets.as_ref() }
    }

    fn first(&self) -> *mut Shared<T> {
        self.buckets()
            .head(self.index)
            .load(Relaxed)
            .map_addr(|address| address & !MARKS)
    }
}

impl<T: HashKey + Send + Sync + 'static> Drop for BucketGuard<'_, T> {
    fn drop(&mut self) {
        if self.unlocked {
            return;
        }
        let head = ptr::from_ref(self.buckets().head(self.index));
        // SAFETY: ours, and locked by us.
        unsafe { grow::unlock_with(head, grow::unmarked) };
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
