//! Ranked locks: the lock order is code, and debug builds hold threads to it.
//!
//! LOCK-1: lock ranks only descend; equal ranks are taken ancestor first, else by
//! address. RCU-2: no sleeping lock while an RCU guard lives.
//!
//! | read              | to learn                                                  |
//! |-------------------|-----------------------------------------------------------|
//! | this file         | the order, and the count of what a thread holds           |
//! | `lock/mutex.rs`, `rw_lock.rs` | the locks                                     |
//! | `lock/order.rs`   | the check of debug builds                                 |
//! | `lock/call.rs`    | a thread in a back end's call                             |
//!
//! Release builds keep one counter per thread: how many locks it holds, and whether it is in
//! a back end's [`Call`]. Freeing what RCU retired runs foreign `Drop` code and waits until
//! that is zero (CALL-1).

mod call;
mod mutex;
#[cfg(debug_assertions)]
mod order;
mod rw_lock;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

pub use call::{Call, assert_no_call};
pub use mutex::{Mutex, MutexGuard};
pub use rw_lock::{Ranked, ReadGuard, RwLock, WriteGuard};

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
    /// The cached listing of a directory.
    Listing,
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

#[cfg(all(test, not(any(loom, shuttle)), debug_assertions))]
mod tests;
