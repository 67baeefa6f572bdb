//! fork(2): makes this crate usable in the child.
//!
//! The child has one thread, the one that forked, and a copy of all memory. The other threads
//! do not exist there, but their writes do: a reader's slot that says "inside", and locks that
//! no thread will release. Without this file the first would stall every grace period of the
//! child, and the second block it for ever. So, as malloc(3) does:
//!
//! | when          | action                                                              |
//! |---------------|---------------------------------------------------------------------|
//! | before fork   | the forking thread takes every static lock of this crate            |
//! | in the parent | it releases them                                                    |
//! | in the child  | it releases them, after it has emptied the slots of other threads   |
//!
//! RCU-1 holds in the child: no thread reaches the objects that a vanished thread could reach
//! in its read section, since none of its instructions is executed any more. The forking
//! thread's own section stays open, and its retired objects stay in its bag. Objects that other
//! threads had retired are freed by the child as well as by the parent: each has its own copy.
//!
//! While another thread frees, it holds [`freeing`](crate::rcu) for as long as foreign `Drop`
//! code takes. The forking thread may hold a lock that this code waits for, so it does not wait
//! for it: the one bag that is being freed at the fork is lost to the child, as everything is
//! that vanished threads had on their stacks.
//!
//! The order in which the locks are taken is that in which they nest: what other crates
//! [have added](also), then the domain's, then the allocator's. The queues that threads sleep
//! in and the numbers of lists nest in nothing.
//!
//! **Not restored:** the locks within objects. A hash table, a list or a cache that another
//! thread was changing at the fork stays locked in the child, and may be half changed. One that
//! other threads only read is as good as before. Threads that belong to an object (a worker) do
//! not exist. And nothing is restored after clone(2) and vfork(2), which call no handlers.

use std::any::Any;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::{clock, lru, rcu, slab, wait};

/// Takes locks, which are released when its result is dropped.
type Hold = fn() -> Box<dyn Any>;

/// The static locks of crates above this one.
static OTHERS: Mutex<Vec<Hold>> = Mutex::new(Vec::new());

/// Registers `hold`. The forking thread calls it before each fork, and drops its result after
/// the fork, in both processes. It takes static locks of the crate that registers it. A thread
/// that holds one of them may call this crate; this crate runs no foreign code under its own.
#[doc(alias = "pthread_atfork(3)")]
pub fn also(hold: Hold) {
    let mut others = OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
    others.push(hold);
}

/// The locks that the forking thread holds over the fork.
struct Held {
    domain: rcu::OverFork,
    _locks: Vec<Box<dyn Any>>,
}

thread_local! {
    /// From `before` on, of the thread that forks. A plain pointer: also a thread whose other
    /// locals are gone can fork.
    static HELD: Cell<*mut Held> = const { Cell::new(ptr::null_mut()) };
    /// How many handlers are at it.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Registers the handlers. Every reader calls it before its first read section.
pub(crate) fn init() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if REGISTERED.load(Relaxed) {
        return;
    }
    // Several may come here at once, and each registers them: to wait for the first would be to
    // wait for ever in a child that was forked meanwhile. `DEPTH` makes one of them.
    //
    // SAFETY: the handlers are functions, so they exist as long as this code does. They do not
    // unwind: an `extern "C"` function aborts instead. They lock nothing that this thread has
    // locked: no foreign code, which might fork, runs under a static lock of this crate.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    REGISTERED.store(true, Relaxed);
}

extern "C" fn before() {
    if enter() > 0 {
        return;
    }
    // Values that are made once: not while another thread is at it.
    clock::millis();
    let others = OTHERS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let mut locks: Vec<_> = others.into_iter().map(|hold| hold()).collect();
    locks.push(Box::new(
        OTHERS.lock().unwrap_or_else(PoisonError::into_inner),
    ));
    let domain = rcu::before_fork();
    locks.push(lru::before_fork());
    locks.extend(slab::before_fork());
    locks.extend(wait::before_fork());
    let held = Held {
        domain,
        _locks: locks,
    };
    HELD.set(Box::into_raw(Box::new(held)));
}

extern "C" fn in_parent() {
    if leave() {
        drop(take());
    }
}

extern "C" fn in_child() {
    if leave()
        && let Some(mut held) = take()
    {
        held.domain.in_child();
    }
}

/// How many handlers of this thread have entered before.
fn enter() -> u32 {
    DEPTH.replace(DEPTH.get() + 1)
}

/// True for the last one to leave.
fn leave() -> bool {
    // A handler that was registered in mid-fork leaves without having entered.
    let depth = DEPTH.get();
    DEPTH.set(depth.saturating_sub(1));
    depth == 1
}

fn take() -> Option<Box<Held>> {
    let held = HELD.replace(ptr::null_mut());
    // SAFETY: `before` made it with `Box::into_raw` on this thread, and each `take` leaves null
    // behind.
    (!held.is_null()).then(|| unsafe { Box::from_raw(held) })
}
