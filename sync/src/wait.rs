//! Sleeping until a word in shared memory says so.
//!
//! A waiter marks the word (a WAITERS bit that the word's owner sets aside) and sleeps in one
//! of a fixed number of queues, chosen by the word's address. A thread that changes the word
//! and finds the mark wakes the queue. A word needs one bit, not a condition variable.

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
