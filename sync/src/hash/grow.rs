//! Arrays of heads, and how chains move from one to the next.
//!
//! A table that is too full (or too empty) gets a second array. Each thread that then locks a
//! bucket moves a few chains over, each under its own head's lock: it relinks every object into
//! the new array and marks the old head MOVED. Readers in the old array follow the mark;
//! readers in mid-chain end in a marker of the new array and look again. When the last chain
//! has moved, the new array takes over and RCU retires the old one. No thread waits for a whole
//! table.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64 as AtomicU64Plain, AtomicUsize};

use super::heads::Heads;
use super::*;
use crate::PerThread;
use crate::lock::Mutex;
use crate::model::MODEL;
use crate::shared::Flag;

/// The size a table starts with and never goes below.
pub(super) const SMALLEST: usize = if MODEL { 2 } else { 1024 };
/// A second object on a chain costs a walk a cache line, a head costs 8 bytes.
const HEADS_PER_OBJECT: usize = if MODEL { 1 } else { 2 };
/// Below this many heads (half a MiB) it grows in fewer, larger steps: each moves all that is
/// there.
const LARGE: usize = if MODEL { 0 } else { 1 << 16 };
/// Chains a locker moves while the table is changing its size.
const STRIDE: usize = 32;
/// How often a thread compares the number of objects with the size of the array.
const CHECK_EVERY: u64 = if MODEL { 1 } else { 256 };

/// One array of heads.
pub(super) struct Buckets<T> {
    heads: Heads<T>,
    mask: usize,
    /// The array that chains move to, once there is one.
    pub(super) next: RcuPtr<Buckets<T>>,
    /// The next chain that no thread has begun to move, and the number of chains that have
    /// moved.
    begun: AtomicUsize,
    moved: AtomicUsize,
    /// Chains whose mover panicked before it came to their end. The standard mutex, in models
    /// as well: nothing waits while it is locked.
    left: std::sync::Mutex<Vec<Range<usize>>>,
}

/// The lower bits of the hash decide. The walk waits for this, so mixing is left to the code
/// that computes the hash, where it costs nothing.
#[inline]
pub(super) fn index(hash: u64, mask: usize) -> usize {
    hash as usize & mask
}

pub(super) enum TryLock {
    Locked,
    Busy,
    Moved,
}

impl<T> Buckets<T> {
    /// `size` is a power of two.
    pub(super) fn new(size: usize) -> Buckets<T> {
        Buckets {
            heads: Heads::new(size),
            mask: size - 1,
            next: RcuPtr::new(None),
            begun: AtomicUsize::new(0),
            moved: AtomicUsize::new(0),
            left: std::sync::Mutex::default(),
        }
    }

    /// The next chains to move. Those that a panic left over come last, and only if `check`
    /// says so: a key whose hash always panics must not make every caller panic.
    fn begin(&self, check: bool) -> Option<Stride<'_, T>> {
        let start = self.begun.fetch_add(STRIDE, Relaxed);
        let end = self.heads.len().min(start.saturating_add(STRIDE));
        let rest = if start < end {
            Some(start..end)
        } else if check {
            self.left().pop()
        } else {
            None
        };
        rest.map(|rest| Stride {
            from: self,
            all: rest.len(),
            rest,
        })
    }

    fn left(&self) -> std::sync::MutexGuard<'_, Vec<Range<usize>>> {
        self.left
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn index(&self, hash: u64) -> usize {
        index(hash, self.mask)
    }

    pub(super) fn heads(&self) -> &[AtomicPtr<Shared<T>>] {
        &self.heads
    }

    pub(super) fn mask(&self) -> usize {
        self.mask
    }

    #[inline]
    pub(super) fn head(&self, index: usize) -> &AtomicPtr<Shared<T>> {
        &self.heads[index]
    }

    pub(super) fn try_lock(&self, index: usize) -> TryLock {
        let head = self.head(index);
        for _ in 0..if MODEL { 1 } else { 32 } {
            let now = head.load(Relaxed);
            if now.addr() & MOVED != 0 {
                // Acquire: pairs with the Release in `set_first`, by which the mover
                // marked the head after it published the next array.
                fence(Acquire);
                return TryLock::Moved;
            }
            if now.addr() & LOCKED == 0 {
                let locked = now.map_addr(|address| address | LOCKED);
                // Acquire: pairs with the Release in `unlock`.
                if head
                    .compare_exchange_weak(now, locked, Acquire, Relaxed)
                    .is_ok()
                {
                    return TryLock::Locked;
                }
            }
            std::hint::spin_loop();
        }
        TryLock::Busy
    }

    /// Sleeps until the head is not locked (or its chain has moved).
    pub(super) fn wait_unlocked(&self, index: usize) {
        let head = self.head(index);
        wait::wait_until(ptr::from_ref(head).addr() << 3, || {
            loop {
                let now = head.load(Relaxed);
                if now.addr() & LOCKED == 0 {
                    return true;
                }
                let marked = now.map_addr(|address| address | WAITERS);
                if head
                    .compare_exchange_weak(now, marked, Relaxed, Relaxed)
                    .is_ok()
                {
                    return false;
                }
            }
        });
    }

    /// Changes the first object of a locked chain, keeping the lock.
    pub(super) fn set_first(&self, index: usize, object: *mut Shared<T>, order: Ordering) {
        let head = self.head(index);
        loop {
            // Only the WAITERS mark can change under the lock.
            let now = head.load(Relaxed);
            let new = object.map_addr(|address| address | now.addr() & MARKS);
            if head.compare_exchange_weak(now, new, order, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Locks a head whose chain has not moved and will not, sleeping if need be.
    fn wait_lock(&self, index: usize) -> LockedHead<'_, T> {
        while !matches!(self.try_lock(index), TryLock::Locked) {
            self.wait_unlocked(index);
        }
        LockedHead {
            buckets: self,
            index,
        }
    }

    /// Gives up every reference. Only the last owner of the table calls it.
    pub(super) fn drop_chains(&self) {
        for index in 0..self.heads.len() {
            let first = self.head(index).load(Acquire);
            self.head(index).store(end_marker(index), Relaxed);
            let mut at = first.map_addr(|address| address & !MARKS);
            while let Some(object) = NonNull::new(at).filter(|at| at.addr().get() & END == 0) {
                // SAFETY: no other thread uses the table any more, so each reference on a chain
                // is taken back once, here.
                let object = unsafe { Ref::from_raw(object) };
                at = object.hash_next().load(Relaxed);
                object.clear(Flag::HASHED);
            }
        }
        if let Some(next) = self.next.swap(None) {
            next.drop_chains();
        }
    }
}

/// Gives the lock of a head back, and changes its first object in the same step.
///
/// By pointer: once it is unlocked, the chain may move and the array may be freed while we
/// still wake waiters by the head's address.
///
/// # Safety
/// The caller has locked it.
#[inline]
pub(super) unsafe fn unlock_with<T>(
    head: *const AtomicPtr<Shared<T>>,
    first: impl Fn(*mut Shared<T>) -> *mut Shared<T>,
) {
    // SAFETY: a locked chain keeps its array from being retired (`lock_head`).
    let mut now = unsafe { (*head).load(Relaxed) };
    loop {
        // Release: pairs with the Acquire in `try_lock`, and in `find`.
        // SAFETY: as above: it is locked until this succeeds.
        let changed = unsafe { (*head).compare_exchange_weak(now, first(now), Release, Relaxed) };
        match changed {
            Ok(_) => break,
            Err(changed) => now = changed,
        }
    }
    if now.addr() & WAITERS != 0 {
        wait::wake_all(head.addr() << 3);
    }
}

/// Fetches the lines in which an object may have its link and its hash.
fn prefetch_object<T>(object: *const Shared<T>) {
    crate::hint::prefetch(object);
    if size_of::<Shared<T>>() > 64 {
        crate::hint::prefetch(object.wrapping_byte_add(64));
    }
}

/// The head without the marks of the lock.
pub(super) fn unmarked<T>(head: *mut Shared<T>) -> *mut Shared<T> {
    head.map_addr(|address| address & !MARKS)
}

/// Chains that one thread moves. If it panics, other threads move the rest.
struct Stride<'a, T> {
    from: &'a Buckets<T>,
    all: usize,
    rest: Range<usize>,
}

impl<T> Stride<'_, T> {
    /// Counts chains as moved. True if these were the last ones.
    fn finish(self) -> bool {
        let (from, all) = (self.from, self.all);
        drop(self);
        // AcqRel: the last thread to count sees the moves of all others.
        from.moved.fetch_add(all, AcqRel) + all == from.heads.len()
    }
}

impl<T> Drop for Stride<'_, T> {
    fn drop(&mut self) {
        if self.rest.is_empty() {
            return;
        }
        // Relaxed: the thread that moves the rest counts after the lock below, and sees this.
        let moved = self.all - self.rest.len();
        self.from.moved.fetch_add(moved, Relaxed);
        self.from.left().push(self.rest.clone());
    }
}

/// A head locked by the thread that moves its chain.
struct LockedHead<'a, T> {
    buckets: &'a Buckets<T>,
    index: usize,
}

impl<T> LockedHead<'_, T> {
    /// Leaves `head` in place of the chain, and gives the lock back in the same step.
    fn unlock_as(self, head: *mut Shared<T>) {
        // SAFETY: locked in `wait_lock`.
        unsafe { unlock_with(self.buckets.head(self.index), |_| head) };
        std::mem::forget(self);
    }
}

impl<T> Drop for LockedHead<'_, T> {
    fn drop(&mut self) {
        // SAFETY: locked in `wait_lock`.
        unsafe { unlock_with(self.buckets.head(self.index), unmarked) };
    }
}

/// A thread's share in the number of objects.
#[derive(Default)]
pub(super) struct Counts {
    /// Objects inserted less objects removed.
    net: AtomicI64,
    /// How often this thread locked a bucket.
    visits: AtomicU64Plain,
    /// How often another thread held it, and how long the waits took.
    waits: AtomicU64Plain,
    waited_ns: AtomicU64Plain,
}

/// A table's counts, and the state of its growth.
pub(super) struct Growth {
    counts: OnceLock<Box<PerThread<Counts>>>,
    /// One change of size at a time.
    resizing: Mutex<()>,
    /// True while there is a second array, so that lockers know to help.
    pub(super) moving: AtomicBool,
}

impl Growth {
    pub(super) fn new() -> Growth {
        Growth {
            counts: OnceLock::new(),
            resizing: Mutex::new(Rank::Lru, ()),
            moving: AtomicBool::new(false),
        }
    }

    fn counts(&self) -> &PerThread<Counts> {
        self.counts.get_or_init(Box::default)
    }

    pub(super) fn len(&self) -> usize {
        self.counts()
            .iter()
            .map(|count| count.net.load(Relaxed))
            .sum::<i64>()
            .max(0) as usize
    }

    pub(super) fn note_wait(&self, since: Instant) {
        let mine = self.counts().get();
        let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        mine.waits.store(mine.waits.load(Relaxed) + 1, Relaxed);
        let waited = mine.waited_ns.load(Relaxed);
        mine.waited_ns.store(waited.saturating_add(ns), Relaxed);
    }

    pub(super) fn lock_statistics(&self) -> LockStatistics {
        let counts = self.counts().iter();
        counts.fold(LockStatistics::default(), |sum, counts| LockStatistics {
            taken: sum.taken + counts.visits.load(Relaxed),
            contended: sum.contended + counts.waits.load(Relaxed),
            waited: sum.waited + Duration::from_nanos(counts.waited_ns.load(Relaxed)),
        })
    }
}

impl Counts {
    pub(super) fn count(&self, change: i64) {
        self.net.store(self.net.load(Relaxed) + change, Relaxed);
    }

    /// Counts a visit; true if it is time to compare.
    fn visit(&self) -> bool {
        let visits = self.visits.load(Relaxed) + 1;
        self.visits.store(visits, Relaxed);
        visits.is_multiple_of(CHECK_EVERY)
    }
}

impl<T: HashKey + Send + Sync + 'static> RcuHash<T> {
    /// Called before a bucket is locked: moves some chains if the table is changing
    /// its size, and sees to it that it does when it should.
    pub(super) fn visit(&self) -> &Counts {
        let mine = self.grow.counts().get();
        let check = mine.visit();
        if self.grow.moving.load(Relaxed) {
            self.move_some(check);
        } else if check {
            self.resize_if_due();
        }
        mine
    }

    #[cold]
    fn resize_if_due(&self) {
        let size = self.size();
        let len = self.len();
        // Shrink far below that only: a table that breathes does not resize with every
        // breath.
        let wanted = if len * HEADS_PER_OBJECT > size {
            size * if size < LARGE { 4 } else { 2 }
        } else if len < size / 32 && size > SMALLEST {
            size / 4
        } else {
            return;
        };
        self.resize(wanted.max(SMALLEST));
    }

    fn size(&self) -> usize {
        let guard = crate::rcu::read_lock();
        self.view(&guard).buckets.heads.len()
    }

    pub(super) fn resize(&self, wanted: usize) {
        // Whoever else is at it makes the array that all of us want. Under the lock, so that
        // only one is made: they are large.
        let Some(_resizing) = self.grow.resizing.try_lock(false) else {
            return;
        };
        if !self.is_wanted(wanted) {
            return;
        }
        let next = Ref::new(Buckets::new(wanted));
        let guard = crate::rcu::read_lock();
        let buckets = self.view(&guard).buckets;
        if buckets.next.is_none() && buckets.heads.len() != wanted {
            buckets.next.swap(Some(next));
            // Release: pairs with the Acquire in `move_some` by way of `next`.
            self.grow.moving.store(true, Release);
        }
    }

    fn is_wanted(&self, size: usize) -> bool {
        let guard = crate::rcu::read_lock();
        let buckets = self.view(&guard).buckets;
        buckets.next.is_none() && buckets.heads.len() != size
    }

    /// Moves the next few chains; the thread that moves the last one finishes.
    #[cold]
    pub(super) fn move_some(&self, check: bool) {
        let (from, to) = {
            let guard = crate::rcu::read_lock();
            let Some(from) = self.view(&guard).buckets.try_get() else {
                return;
            };
            let Some(to) = from.next.get(&guard) else {
                return;
            };
            (from, to)
        };
        let Some(mut stride) = from.begin(check) else {
            return;
        };
        // Moving an object reads its hash, and most are in no cache: all are on their way
        // while the first of them is waited for.
        for index in stride.rest.clone() {
            let first = from.head(index).load(Relaxed);
            if first.addr() & (END | MOVED) == 0 {
                prefetch_object(unmarked(first));
            }
        }
        while !stride.rest.is_empty() {
            self.move_chain(&from, &to, stride.rest.start);
            stride.rest.start += 1;
        }
        if stride.finish() {
            self.grow.moving.store(false, Relaxed);
            drop(self.buckets.swap(Some(to)));
        }
    }

    fn move_chain(&self, from: &Buckets<T>, to: &Buckets<T>, index: usize) {
        let empty = end_marker::<T>(index);
        let moved = empty.map_addr(|address| address | MOVED);
        // Most chains are empty. With nothing to carry over and no holder of the head, marking
        // it is enough: a thread that would add to it changes the head, so one of the two comes
        // second, and sees that. No thread can be waiting, as none has the lock. Release: as at
        // the end, for what this thread saw (`to`); unlinks by earlier threads stay published,
        // because this changes the value that they stored.
        if from
            .head(index)
            .compare_exchange(empty, moved, Release, Relaxed)
            .is_ok()
        {
            return;
        }
        // After the bucket that the mover is about to lock, or under the one lock for all,
        // it is the second of its rank.
        let _from_held = Held::new(self.rank, true);
        let from_locked = from.wait_lock(index);
        // A chain of a larger array gets its first objects from one chain of the smaller one, this
        // one, and no thread locks it before it sees the mark that comes last. A chain of a smaller
        // array gets them from several.
        let is_shared = to.mask < from.mask;
        let mut at = unmarked(from.head(index).load(Relaxed));
        while at.addr() & END == 0 {
            // SAFETY: on a locked chain, hence alive: the table holds a reference,
            // and it goes with the object to the new chain.
            let object = unsafe { &*at };
            let next = object.hash_next().load(Relaxed);
            // Foreign code: if it panics, both chains are as whole as between two moves.
            let target = to.index(object.hash());
            // LOCK-1: buckets of an old array are locked before those of the new.
            let to_locked = is_shared.then(|| {
                let held = Held::new(self.rank, true);
                (to.wait_lock(target), held)
            });
            let first = unmarked(to.head(target).load(Relaxed));
            // Release: pairs with the Acquire in `find`: a reader that is carried
            // over finds the new chain's objects initialised.
            object.hash_next().store(first, Release);
            if is_shared {
                to.set_first(target, at, Release);
            } else {
                to.head(target).store(at, Release);
            }
            // Off the old chain before the new one is another thread's to lock: a thread that
            // removes it there must leave no way for readers to find it (RCU-1).
            if is_shared || next.addr() & END == 0 {
                from.set_first(index, next, Release);
            }
            drop(to_locked);
            at = next;
        }
        // Release: a thread that sees the mark sees the chain in its new place.
        from_locked.unlock_as(moved);
    }
}
