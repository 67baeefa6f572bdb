//! The asymmetric fence: free for readers, a system call for writers.
//!
//! `light` and `heavy` pair like two full fences. With membarrier the light one
//! only keeps the compiler from reordering; at the heavy one the kernel runs a
//! full barrier on every CPU that executes one of our threads, and a thread that
//! is not running has been through a context switch, which is one too.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed, compiler_fence};

use crate::atomic::{SeqCst, fence};

const UNKNOWN: u8 = 0;
const MEMBARRIER: u8 = 1;
const FENCE: u8 = 2;

/// Decided once, before the first reader registers, and never changed but in the child of a
/// fork.
static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Chooses between membarrier and full fences. Every reader calls it before its
/// first `light`.
pub(super) fn init() {
    decided(&MODE, register);
}

/// The choice, which the first caller makes.
///
/// A thread that has not made it may still read UNKNOWN after another thread has. The
/// exchange then fails with the choice that was made: an exchange never acts on an old value.
fn decided(mode: &AtomicU8, register: impl FnOnce() -> bool) -> u8 {
    let known = mode.load(Relaxed);
    if known != UNKNOWN {
        return known;
    }
    let mine = if register() { MEMBARRIER } else { FENCE };
    // The first answer stays. A later one may differ (a sandbox came in between),
    // and readers that rely on membarrier would not be seen without it.
    match mode.compare_exchange(UNKNOWN, mine, Relaxed, Relaxed) {
        Ok(_) => mine,
        Err(first) => first,
    }
}

/// The reader's half: before it, the announcement; after it, the reading.
#[inline]
pub(super) fn light() {
    #[cfg(loom)]
    order_matters();
    if MODE.load(Relaxed) == MEMBARRIER {
        compiler_fence(SeqCst);
    } else {
        fence(SeqCst);
    }
}

/// The writer's half: before it, unpublishing; after it, looking for readers.
pub(super) fn heavy() {
    #[cfg(loom)]
    order_matters();
    heavy_by(&MODE, register, expedited);
}

/// A writer need not be a reader, so the mode may be unknown here: readers that are about to
/// register rely on membarrier, and a fence of this thread alone would not reach them.
fn heavy_by(mode: &AtomicU8, register: impl FnOnce() -> bool, expedited: impl FnOnce()) {
    fence(SeqCst);
    if decided(mode, register) == MEMBARRIER {
        expedited();
    }
}

/// In the child of a fork, which has one thread. The kernel hands the registration down, as far
/// as known; nothing says that it must, so it is asked again. Should a sandbox refuse that, the
/// child goes on with full fences: what its one thread has announced so far, all threads that it
/// starts will see.
#[cfg(all(target_os = "linux", not(any(miri, loom, shuttle))))]
pub(super) fn after_fork() {
    let registers = || membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
    if MODE.load(Relaxed) == MEMBARRIER && !registers() {
        MODE.store(FENCE, Relaxed);
    }
}

#[cfg(loom)]
crate::model::fresh_static! {
    static ORDER: crate::atomic::AtomicU32 = crate::atomic::AtomicU32::new(0);
}

/// Loom tries both orders of two stores to one place, but not of two fences: so
/// each fence comes with a store, which by itself orders nothing.
#[cfg(loom)]
fn order_matters() {
    ORDER.fetch_add(1, Relaxed);
}

#[cfg(any(miri, loom, shuttle, not(target_os = "linux")))]
fn register() -> bool {
    // No model knows what membarrier does to other threads.
    false
}

#[cfg(any(miri, loom, shuttle, not(target_os = "linux")))]
fn expedited() {}

#[cfg(not(any(miri, loom, shuttle, not(target_os = "linux"))))]
fn register() -> bool {
    if std::env::var_os("RCUWALK_NO_MEMBARRIER").is_some() {
        return false;
    }
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0
}

#[cfg(not(any(miri, loom, shuttle, not(target_os = "linux"))))]
fn expedited() {
    let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    // It was registered, so the kernel has no reason left to refuse; and going on
    // without the barrier would free memory under a reader.
    assert_eq!(done, 0, "membarrier: {}", std::io::Error::last_os_error());
}

#[cfg(not(any(miri, loom, shuttle, not(target_os = "linux"))))]
fn membarrier(command: libc::c_int) -> libc::c_long {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// RCU-1: a writer that comes before all readers runs the barrier that they will rely on,
    /// and keeps to what another thread has chosen.
    #[test]
    fn an_unknown_mode_is_not_taken_for_fences() {
        for (before, registers, runs) in [
            (UNKNOWN, true, true),
            (UNKNOWN, false, false),
            (MEMBARRIER, false, true),
            (FENCE, true, false),
        ] {
            let (mode, mut ran) = (AtomicU8::new(before), false);
            heavy_by(&mode, || registers, || ran = true);
            assert_eq!(ran, runs, "RCU-1: {before}, {registers}");
            let after = if runs { MEMBARRIER } else { FENCE };
            assert_eq!(mode.load(Relaxed), after, "RCU-1: it stays");
        }
    }
}
