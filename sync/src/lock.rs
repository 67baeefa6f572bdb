//! Ranked locks: the lock order is code, and debug builds hold threads to it.
//!
//! LOCK-1: lock ranks only descend; equal ranks are taken ancestor first, else by
//! address. RCU-2: no sleeping lock while an RCU guard lives.
//!
//! Release builds keep one counter per thread: how many locks it holds, and whether it is in
//! a back end's [`Call`]. Freeing what RCU retired runs foreign `Drop` code and waits until
//! that is zero (CALL-1).

mod call;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

pub use call::{Call, assert_no_call};

use crate::atomic::note_store;
use crate::{model, rcu};

/// Lock order: a thread locks only further down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// The mount table: one mount or unmount at a time.
    Namespace,
    /// `SuperBlock::rename_mutex`: held by a thread that waits for a second directory.
    RenameMutex,
    /// `Inode::rwsem`, held across a directory change. Two of them: ancestor
    /// first, otherwise by address.
    DirRwsem,
    /// A back end's own locks, taken inside its methods.
    BackEnd,
    /// A bucket of a table of node ids.
    NodeBucket,
    /// One shard of the table of names being looked up.
    InLookup,
    /// The one lock for all of the inode hash, in the schemes that have it.
    InodeHash,
    /// A bucket of the inode hash.
    InodeBucket,
    /// `Inode`'s own lock: life and attributes.
    Inode,
    /// Where names are in the tree, as a whole: held while one is moved.
    RenameLock,
    /// The dentry's own lock: parent, name, inode. Two of them: ancestor first, else by
    /// address.
    Dentry,
    /// A bucket of the dentry hash.
    DentryBucket,
    /// One shard of an LRU list. Innermost.
    Lru,
}

model::local! {
    static HELD: Cell<u32> = const { Cell::new(0) };
}
model::local! {
    static WORK: Work = const { Work(RefCell::new(Vec::new())) };
}

/// Work that a thread does once it may sleep.
struct Work(RefCell<Vec<Box<dyn FnOnce()>>>);

impl Drop for Work {
    /// The thread ends, and gives no lock back any more.
    fn drop(&mut self) {
        // Empty as a rule. Then nothing is asked: a model's other locals are gone by now.
        while !self.0.get_mut().is_empty()
            && may_sleep()
            && let Some(work) = self.0.get_mut().pop()
        {
            // A panic has been reported; here it would take the process along.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        }
    }
}

/// Beside the count: there is work for the moment when no lock is held any more.
const LATER: u32 = 1 << 31;

/// True if this thread holds none of the locks of this module and is in no [`Call`].
pub(crate) fn none_held() -> bool {
    HELD.with(Cell::get) & !LATER == 0
}

/// Has [`rcu::free_due`] called when this thread gives back the last lock it holds.
pub(crate) fn free_later() {
    HELD.with(|held| held.set(held.get() | LATER));
}

/// True if this thread may run foreign code or sleep: it holds none of the locks of this
/// module, is in no [`Call`], has no read section open, and is not freeing retired objects, for
/// which other threads may wait.
pub fn may_sleep() -> bool {
    none_held() && !rcu::in_read_section() && !rcu::is_freeing()
}

/// Runs `work` where it may sleep: now, or when this thread next gives back the last
/// lock that it holds, its call ends, or it ends. If that is later, a panic of it goes no further than there.
#[doc(alias("task_work_add", "delayed_fput"))]
pub fn when_none_held(work: impl FnOnce() + 'static) {
    if may_sleep() {
        return work();
    }
    // A thread whose locals are gone drops it: there is no later for it.
    let _ = WORK.try_with(|queue| queue.0.borrow_mut().push(Box::new(work)));
    free_later();
}

/// Called at the end of a freeing: does the work that was deferred because of it. True if there
/// was any.
pub(crate) fn catch_up() -> bool {
    if HELD.try_with(Cell::get).is_ok_and(|held| held == LATER) {
        HELD.with(|held| held.set(0));
        return do_what_waited();
    }
    false
}

#[cold]
fn do_what_waited() -> bool {
    if rcu::in_read_section() || rcu::is_freeing() {
        // Deferred to the release of the next lock, or the end of the freeing.
        free_later();
        return false;
    }
    // Taken one at a time: each may lock, unlock, and come here again.
    // While the thread's end does it there is nothing here.
    let next = || WORK.try_with(|queue| queue.0.borrow_mut().pop());
    let mut any = false;
    while let Ok(Some(work)) = next() {
        reported(work);
        any = true;
    }
    reported(rcu::free_due);
    any
}

/// Calls foreign code, which has nothing to do with the thread that unlocks here; other threads
/// may wait for its next steps. A panic has been reported, and goes no further.
fn reported(work: impl FnOnce()) {
    if model::MODEL {
        return work();
    }
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
}

/// Checks in debug builds that this thread holds a lock of this rank.
#[inline]
#[doc(alias = "lockdep_assert_held")]
pub fn assert_held(rank: Rank) {
    #[cfg(debug_assertions)]
    assert!(
        order::is_held(rank) != Some(false),
        "LOCK-1: {rank:?} is to be held here"
    );
    let _ = rank;
}

/// Checks in debug builds that this thread holds no lock of this rank.
#[inline]
#[doc(alias = "lockdep_assert_not_held")]
pub fn assert_not_held(rank: Rank) {
    #[cfg(debug_assertions)]
    assert!(
        order::is_held(rank) != Some(true),
        "LOCK-1: {rank:?} is held here"
    );
    let _ = rank;
}

/// RCU-2, checked in debug builds before anything that may sleep.
#[inline]
pub(crate) fn assert_may_sleep() {
    debug_assert!(
        !rcu::in_read_section(),
        "RCU-2: sleeping inside an RCU read section"
    );
}

/// CALL-1, checked in debug builds before deferred foreign code runs.
///
/// True if this thread holds no lock and is in no call.
#[inline]
pub(crate) fn may_run_drops() -> bool {
    let none = none_held();
    debug_assert!(
        none,
        "CALL-1: deferred drops wanted under a lock, or in a back end's call"
    );
    none
}

/// Keeps the books of one held lock, from before it is taken until after it is given back.
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    rank: Rank,
    _counted: Counted,
}

impl Held {
    /// Checks LOCK-1 in debug builds.
    #[inline]
    pub(crate) fn new(rank: Rank, same_rank_is_ordered: bool) -> Held {
        #[cfg(debug_assertions)]
        order::check(rank, same_rank_is_ordered);
        #[cfg(not(debug_assertions))]
        let _ = same_rank_is_ordered;
        Self::unchecked(rank)
    }

    /// For a lock that the thread does not wait for.
    #[inline]
    pub(crate) fn unchecked(rank: Rank) -> Held {
        note_store();
        #[cfg(debug_assertions)]
        order::push(rank);
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Held {
            #[cfg(debug_assertions)]
            rank,
            _counted: Counted::new(),
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        order::pop(self.rank);
    }
}

/// One reason why this thread runs no foreign code. The last one to go has it do what waited.
struct Counted {
    /// Not `Send`: the count is this thread's.
    _thread: PhantomData<*mut ()>,
}

impl Counted {
    #[inline]
    fn new() -> Counted {
        HELD.with(|held| held.set(held.get() + 1));
        Counted {
            _thread: PhantomData,
        }
    }
}

impl Drop for Counted {
    #[inline]
    fn drop(&mut self) {
        let now = HELD.with(|held| {
            held.set(held.get() - 1);
            held.get()
        });
        if now == LATER {
            HELD.with(|held| held.set(0));
            do_what_waited();
        }
    }
}

#[cfg(debug_assertions)]
mod order {
    use super::Rank;
    use std::cell::RefCell;

    crate::model::local! {
        static RANKS: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// `None` for a thread that ends and whose list is gone: another of its locals may be dropped
    /// after that, and lock.
    fn with_held<R>(look: impl FnOnce(&mut Vec<Rank>) -> R) -> Option<R> {
        RANKS.try_with(|held| look(&mut held.borrow_mut())).ok()
    }

    pub(super) fn check(next: Rank, same_rank_is_ordered: bool) {
        with_held(|held| {
            if let Some(last) = held.iter().max() {
                assert!(
                    *last < next || (same_rank_is_ordered && *last == next),
                    "LOCK-1: {next:?} wanted while holding {held:?}"
                );
            }
        });
    }

    pub(super) fn push(next: Rank) {
        with_held(|held| held.push(next));
    }

    pub(super) fn is_held(rank: Rank) -> Option<bool> {
        with_held(|held| held.contains(&rank))
    }

    pub(super) fn pop(rank: Rank) {
        with_held(|held| {
            let at = held
                .iter()
                .rposition(|r| *r == rank)
                .expect("a held lock is in the list");
            held.remove(at);
        });
    }
}

/// A mutex with a place in the lock order.
///
/// A panic while it is held does not poison it: this crate changes the guarded data in steps
/// that are each complete.
pub struct Mutex<T> {
    rank: Rank,
    inner: model::Mutex<T>,
}

/// A locked [`Mutex`].
pub struct MutexGuard<'a, T> {
    // The lock is given back before the books are closed: fields drop in order.
    inner: model::MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Mutex<T> {
    model::const_unless_loom! {
        /// Unlocked.
        pub fn new(rank: Rank, value: T) -> Mutex<T> {
            Mutex {
                rank,
                inner: model::Mutex::new(value),
            }
        }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        assert_may_sleep();
        let held = Held::new(self.rank, false);
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { inner, _held: held }
    }

    /// As [`lock`](Self::lock), where a read section may be open: it lasts as long as this waits.
    /// For a lock whose holders never wait for readers.
    pub(crate) fn lock_in_read_section(&self) -> MutexGuard<'_, T> {
        let held = Held::new(self.rank, false);
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { inner, _held: held }
    }

    /// Returns a guard if the lock is free.
    pub(crate) fn try_lock(&self, same_rank_is_ordered: bool) -> Option<MutexGuard<'_, T>> {
        self.try_lock_as(Held::new(self.rank, same_rank_is_ordered))
    }

    /// The lock if no thread holds it, whatever this thread holds. Without waiting there is no
    /// deadlock, so LOCK-1 does not apply.
    #[doc(alias = "mutex_trylock")]
    pub fn try_lock_out_of_order(&self) -> Option<MutexGuard<'_, T>> {
        self.try_lock_as(Held::unchecked(self.rank))
    }

    fn try_lock_as(&self, held: Held) -> Option<MutexGuard<'_, T>> {
        assert_may_sleep();
        let inner = unless_blocked(self.inner.try_lock())?;
        Some(MutexGuard { inner, _held: held })
    }

    /// The guarded data. `&mut self` shows that the lock is free.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// The guard of a lock that was tried; `None` if another thread holds it.
fn unless_blocked<G>(tried: Result<G, TryLockError<G>>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(panicked)) => Some(panicked.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Names the rank of the [`RwLock`] around a value.
pub trait Ranked {
    /// The place of that lock in the lock order.
    const RANK: Rank;
}

/// A reader-writer lock with a place in the lock order. The place comes with the type of the
/// value: a field for it would cost every lock four bytes.
#[doc(alias = "rw_semaphore")]
pub struct RwLock<T> {
    inner: model::RwLock<T>,
}

/// A [`RwLock`] locked shared.
pub struct ReadGuard<'a, T> {
    inner: model::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// A [`RwLock`] locked exclusively.
pub struct WriteGuard<'a, T> {
    inner: model::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T: Ranked> RwLock<T> {
    /// Unlocked.
    pub fn new(value: T) -> RwLock<T> {
        RwLock {
            inner: model::RwLock::new(value),
        }
    }

    /// Waits until no writer holds it.
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.read_ranked(false)
    }

    /// Like `read`, for the second and later of several locks of one rank.
    ///
    /// The caller keeps LOCK-1's tie-break: ancestor first, else by address.
    #[doc(alias = "down_read_nested")]
    pub fn read_nested(&self) -> ReadGuard<'_, T> {
        self.read_ranked(true)
    }

    fn read_ranked(&self, nested: bool) -> ReadGuard<'_, T> {
        assert_may_sleep();
        let held = Held::new(T::RANK, nested);
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        ReadGuard { inner, _held: held }
    }

    /// The lock, shared, if no writer holds it or waits for it. As
    /// [`Mutex::try_lock_out_of_order`], whatever this thread holds.
    #[doc(alias = "down_read_trylock")]
    pub fn try_read_out_of_order(&self) -> Option<ReadGuard<'_, T>> {
        assert_may_sleep();
        let held = Held::unchecked(T::RANK);
        let inner = unless_blocked(self.inner.try_read())?;
        Some(ReadGuard { inner, _held: held })
    }

    /// Waits until no thread holds it.
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.write_ranked(false)
    }

    /// Like `write`, for the second and later of several locks of one rank.
    ///
    /// The caller keeps LOCK-1's tie-break: ancestor first, else by address.
    #[doc(alias = "down_write_nested")]
    pub fn write_nested(&self) -> WriteGuard<'_, T> {
        self.write_ranked(true)
    }

    /// The lock, exclusively, if no thread holds it. As [`Mutex::try_lock_out_of_order`], whatever
    /// this thread holds.
    #[doc(alias = "down_write_trylock")]
    pub fn try_write_out_of_order(&self) -> Option<WriteGuard<'_, T>> {
        assert_may_sleep();
        let held = Held::unchecked(T::RANK);
        let inner = unless_blocked(self.inner.try_write())?;
        Some(WriteGuard { inner, _held: held })
    }

    fn write_ranked(&self, nested: bool) -> WriteGuard<'_, T> {
        assert_may_sleep();
        let held = Held::new(T::RANK, nested);
        let inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        WriteGuard { inner, _held: held }
    }
}

impl<T: Ranked + Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(all(test, not(any(loom, shuttle)), debug_assertions))]
mod tests {
    use super::*;

    /// LOCK-1: taking a lock further up the list is refused in debug builds.
    #[test]
    #[should_panic(expected = "LOCK-1")]
    fn ranks_only_descend() {
        let inner = Mutex::new(Rank::Lru, ());
        let outer = Mutex::new(Rank::Namespace, ());
        let _inner = inner.lock();
        let _outer = outer.lock();
    }

    struct Names;

    impl Ranked for Names {
        const RANK: Rank = Rank::DirRwsem;
    }

    /// LOCK-1: two locks of one rank need the nested form.
    #[test]
    #[should_panic(expected = "LOCK-1")]
    fn equal_ranks_are_refused_unless_ordered() {
        let (a, b) = (RwLock::new(Names), RwLock::new(Names));
        let _a = a.write();
        drop(b.write_nested());
        let _b = b.write();
    }

    /// LOCK-1: a thread that does not wait may try a lock further up the list; the order still
    /// holds for those that it waits for afterwards.
    #[test]
    #[should_panic(expected = "LOCK-1")]
    fn a_lock_is_tried_out_of_order() {
        let (a, b) = (RwLock::new(Names), RwLock::new(Names));
        let above = Mutex::new(Rank::RenameMutex, ());
        let _a = a.read();
        let above_held = above.try_lock_out_of_order();
        assert!(above_held.is_some() && above.try_lock_out_of_order().is_none());
        assert!(b.try_read_out_of_order().is_some());
        let _b = b.read_nested();
        assert!(a.try_read_out_of_order().is_some() && b.try_read_out_of_order().is_some());
        assert!(a.try_write_out_of_order().is_none());
        let _b = b.read();
    }

    /// RCU-1: objects that a thread retires under a lock are not freed there, and do not pile
    /// up if the thread never retires anything without one.
    #[test]
    fn freeing_waits_for_the_last_lock() {
        use std::sync::{Arc, Weak};
        let lock = Mutex::new(Rank::Lru, ());
        let objects: Vec<Weak<()>> = (0..100)
            .flat_map(|_| {
                let _held = lock.lock();
                let batch = (0..rcu::Domain::BATCH_OBJECTS).map(|_| {
                    let object = Arc::new(());
                    let watched = Arc::downgrade(&object);
                    drop(crate::Ref::new(object));
                    watched
                });
                batch.collect::<Vec<_>>()
            })
            .collect();
        let left = objects.iter().filter(|object| object.strong_count() > 0);
        // Other tests' readers may hold up a batch or two.
        assert!(left.count() < objects.len() / 2, "RCU-1: they pile up");
    }

    /// CALL-1: a thread that holds a lock may not wait for deferred drops.
    #[test]
    #[should_panic(expected = "CALL-1")]
    fn a_barrier_under_a_lock_is_refused() {
        let lock = Mutex::new(Rank::DirRwsem, ());
        let _held = lock.lock();
        rcu::barrier();
    }

    /// RCU-2: a sleeping lock inside a read section is refused in debug builds.
    #[test]
    #[should_panic(expected = "RCU-2")]
    fn no_sleeping_lock_under_a_guard() {
        let lock = Mutex::new(Rank::Lru, ());
        let _rcu = rcu::read_lock();
        let _held = lock.lock();
    }
}
