//! Read-copy-update: readers announce themselves, writers wait for them.
//!
//! RCU-1: an object that a guard can reach is freed only after a grace period: after every read
//! section that was open when it was unpublished has ended.
//!
//! | read                | to learn                                         |
//! |---------------------|--------------------------------------------------|
//! | this file           | the interface, over one process-wide domain      |
//! | `rcu/domain.rs`     | grace periods, the proof, and when bags are freed |
//! | `rcu/free_lock.rs`  | the lock that a freeing thread holds             |
//! | `rcu/slot.rs`       | a reader's stores, and its own retired bag       |
//! | `rcu/membarrier.rs` | the fence that only the writer pays for          |
//!
//! A reader's entry is two stores to a line of its own and a compiler fence. The
//! fence's other half is paid by the writer: `membarrier(PRIVATE_EXPEDITED)` makes
//! every running thread execute a full barrier. Where the kernel has no membarrier
//! both sides use a full fence.
//!
//! After fork(2), the child has the forking thread alone, and grace periods there wait for no
//! other: see [`fork`](crate::fork).
//!
//! RCU-2: no sleeping lock and no back-end call while a guard lives. Debug builds
//! check it at every lock of [`lock`](crate::lock).

mod domain;
mod free_lock;
mod membarrier;
mod slot;

use std::marker::PhantomData;
use std::time::Duration;

pub use domain::Domain;
use domain::domain;
#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub(crate) use domain::fork::{OverFork, before_fork};
pub use slot::Reader;

/// An open read section of this thread. Objects loaded under it stay allocated until it is
/// dropped.
///
/// Guards nest. A guard belongs to its thread:
///
/// ```compile_fail
/// let guard = rcuwalk_sync::rcu::read_lock();
/// std::thread::spawn(move || drop(guard));
/// ```
#[must_use = "the read section ends when the guard is dropped"]
pub struct RcuGuard {
    reader: Reader,
    /// Neither `Send` nor `Sync`: the slot's nesting count is this thread's own.
    _thread: PhantomData<*mut ()>,
}

impl RcuGuard {
    /// A small number that no other live thread has.
    #[inline]
    pub fn thread_index(&self) -> usize {
        self.reader.index()
    }
}

impl Drop for RcuGuard {
    #[inline]
    fn drop(&mut self) {
        self.reader.exit();
    }
}

/// Opens a read section. Never blocks.
#[inline]
#[doc(alias = "rcu_read_lock")]
pub fn read_lock() -> RcuGuard {
    let reader = slot::this_thread();
    reader.enter(domain());
    RcuGuard {
        reader,
        _thread: PhantomData,
    }
}

/// True if this thread has a read section open.
pub fn in_read_section() -> bool {
    slot::this_thread().is_inside()
}

/// True if this thread is freeing retired objects: other threads may wait for that.
pub(crate) fn is_freeing() -> bool {
    domain::is_freeing()
}

/// A small number that no other live thread has.
#[inline]
pub fn thread_index() -> usize {
    slot::this_thread().index()
}

/// Every [`thread_index`] so far is below this.
pub fn threads() -> usize {
    domain::domain().threads()
}

/// Runs `callback` after a grace period, on some thread, with no lock held and in no back
/// end's call (CALL-1).
///
/// `bytes` is how much memory waits for it; see [`Statistics::pending_bytes`].
/// Does not block, unless more than the cap is waiting already
/// ([`Domain::CAP_BYTES`], [`Domain::CAP_OBJECTS`]).
#[doc(alias = "call_rcu")]
pub fn defer(bytes: usize, callback: impl FnOnce() + Send + 'static) {
    domain().retire(
        slot::this_thread(),
        [slot::Retired::callback(bytes, Box::new(callback))],
    );
}

/// Frees an object after a grace period.
///
/// # Safety
/// `object` may be passed to `free` once no reader can reach it any more, and no thread
/// publishes it again after this call.
pub(crate) unsafe fn retire(object: *mut (), bytes: usize, free: unsafe fn(*mut ())) {
    domain().retire(
        slot::this_thread(),
        [slot::Retired::object(object, bytes, free)],
    );
}

/// Frees objects of one kind after a grace period.
///
/// # Safety
/// As for [`retire`], for each of them.
pub(crate) unsafe fn retire_all(
    objects: impl Iterator<Item = *mut ()>,
    bytes: usize,
    free: unsafe fn(*mut ()),
) {
    let retired = objects.map(|object| slot::Retired::object(object, bytes, free));
    domain().retire(slot::this_thread(), retired);
}

/// Frees bags that this thread could not free while it held a lock.
#[cold]
pub(crate) fn free_due() {
    domain().free_due(slot::this_thread());
}

/// Waits for a grace period.
///
/// # Panics
/// In debug builds, if this thread has a read section open: it would wait for itself.
#[doc(alias = "synchronize_rcu")]
pub fn synchronize() {
    crate::lock::assert_may_sleep();
    domain().synchronize();
}

/// Waits until everything retired so far, by any thread, has been freed, together
/// with what freeing it retired in turn.
///
/// CALL-1: that runs foreign `Drop` code, so this thread holds no lock of [`lock`](crate::lock)
/// and is in no back end's call. If it does, release builds free what is due when the last lock
/// is released, and do not wait.
///
/// # Panics
/// In debug builds, if this thread has a read section open, holds a lock or is in a call.
#[doc(alias = "rcu_barrier")]
pub fn barrier() {
    crate::lock::assert_may_sleep();
    match crate::lock::may_run_drops() {
        true => domain().barrier(),
        false => crate::lock::free_later(),
    }
}

/// Ends this thread's part in RCU, for models: elsewhere the thread's end does it.
#[cfg(loom)]
pub fn leave() {
    slot::leave();
}

/// Counters of RCU.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Objects retired since the start.
    pub retired: u64,
    /// Objects freed since the start.
    pub freed: u64,
    /// Bytes retired and not yet freed.
    pub pending_bytes: u64,
    /// Threads that have ever read and are still there.
    pub readers: usize,
    /// The reader that has been inside one read section for longest, if there is
    /// one that outlasted the last look at these statistics or the last attempt
    /// to free something.
    pub stalled: Option<Stall>,
}

/// A reader that holds up freeing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// The name of its thread, or its number.
    pub thread: String,
    /// How long it has been seen inside the same read section.
    pub lasting: Duration,
}

/// Counts and the oldest stalled reader. Takes no lock that a reader takes.
pub fn statistics() -> Statistics {
    domain().statistics()
}
