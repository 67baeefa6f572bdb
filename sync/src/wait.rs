//! Sleeping until a word in shared memory says so.
//!
//! A waiter marks the word (a WAITERS bit that the word's owner sets aside) and sleeps in one
//! of a fixed number of queues, chosen by the word's address. A thread that changes the word
//! and finds the mark wakes the queue. A word needs one bit, not a condition variable.
//!
//! The lock in the word of a [`Shared`](crate::Shared) has a mark of its own, and wakes one of its
//! waiters at a time: threads may hold it as long as a file is written to.

use std::sync::PoisonError;

use crate::atomic::note_store;
use crate::model::{self, Condvar, Mutex, MutexGuard};

/// One in a model, so that the model checks words that share a queue.
const QUEUES: usize = if model::MODEL { 1 } else { 128 };

struct Queue {
    /// Held while a waiter decides to sleep and while a waker wakes, so that a
    /// change between the decision and the sleep is not missed.
    lock: Mutex<()>,
    wakeups: Condvar,
}

impl Queue {
    model::const_unless_loom! {
        fn new() -> Queue {
            Queue {
                lock: Mutex::new(()),
                wakeups: Condvar::new(),
            }
        }
    }
}

model::fresh_static! {
    static TABLE: [Queue; QUEUES] = [Queue::new(); QUEUES];
}

fn queue_of(address: usize) -> &'static Queue {
    // Objects are aligned to cache lines, so the low bits say nothing.
    &TABLE[(address >> 6) % TABLE.len()]
}

/// Locks all queues, for [`fork`](crate::fork). No other code holds two of them at once.
#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub(crate) fn before_fork() -> impl Iterator<Item = Box<dyn std::any::Any>> {
    let queues = TABLE.iter();
    queues.map(|queue| -> Box<dyn std::any::Any> { Box::new(lock(queue)) })
}

fn lock(queue: &Queue) -> MutexGuard<'_, ()> {
    // Nothing panics under this lock, and it guards no data.
    queue.lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `ready` until it says true, sleeping in between.
///
/// `ready` marks the word at `address` as waited for when it says false. It runs
/// under the queue's lock and must neither block nor wake.
#[doc(alias("wait_on_bit", "bit_waitqueue"))]
pub(crate) fn wait_until(address: usize, mut ready: impl FnMut() -> bool) {
    crate::lock::assert_may_sleep();
    note_store();
    let queue = queue_of(address);
    let mut held = lock(queue);
    while !ready() {
        held = queue
            .wakeups
            .wait(held)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// Wakes all threads that wait for the word at `address` (and those that share the queue; they
/// look and sleep again).
///
/// Call it after the word changed and only if it was marked.
#[doc(alias("wake_up_bit"))]
pub(crate) fn wake_all(address: usize) {
    note_store();
    let queue = queue_of(address);
    drop(lock(queue));
    queue.wakeups.notify_all();
}

pub(crate) use one::{sleep, wake_one};

/// The waiters of one word, woken one at a time, by the kernel's queues.
#[cfg(all(target_os = "linux", not(any(miri, loom, shuttle))))]
mod one {
    use libc::{FUTEX_PRIVATE_FLAG, FUTEX_WAIT, FUTEX_WAKE, SYS_futex, syscall};

    use crate::atomic::{AtomicU64, note_store};

    /// Sleeps until [`wake_one`] wakes this thread, or returns earlier: at once if the upper half
    /// of the word is not as in `seen` any more.
    pub(crate) fn sleep(word: &AtomicU64, seen: u64) {
        crate::lock::assert_may_sleep();
        note_store();
        let (half, seen) = (upper_half(word), (seen >> 32) as u32);
        let forever = std::ptr::null::<libc::timespec>();
        // SAFETY: the kernel reads half of a word that the caller has borrowed.
        unsafe {
            syscall(
                SYS_futex,
                half,
                FUTEX_WAIT | FUTEX_PRIVATE_FLAG,
                seen,
                forever,
            )
        };
    }

    /// Wakes one of the threads that [`sleep`] over this word, if there are any. The word may be
    /// gone: it is not read.
    pub(crate) fn wake_one(word: *const AtomicU64) {
        note_store();
        let half = upper_half(word);
        // SAFETY: the kernel compares the address, and reads nothing there.
        unsafe { syscall(SYS_futex, half, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1) };
    }

    fn upper_half(word: *const AtomicU64) -> *const u32 {
        let upper = usize::from(cfg!(target_endian = "little"));
        word.cast::<u32>().wrapping_add(upper)
    }
}

/// The same by the queues above, which wake all.
#[cfg(not(all(target_os = "linux", not(any(miri, loom, shuttle)))))]
mod one {
    use crate::atomic::{AtomicU64, Relaxed};

    pub(crate) fn sleep(word: &AtomicU64, seen: u64) {
        super::wait_until(std::ptr::from_ref(word).addr(), || {
            word.load(Relaxed) >> 32 != seen >> 32
        });
    }

    pub(crate) fn wake_one(word: *const AtomicU64) {
        super::wake_all(word.addr());
    }
}
