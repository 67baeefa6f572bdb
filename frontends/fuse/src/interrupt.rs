//! That nobody wants an answer any more: who asked has got a signal.
//!
//! Each thread that answers has a [`Slot`], in which stands what it is answering. INTERRUPT
//! names a request, and whoever reads it marks the slot where that stands. What takes long asks
//! [`is_wanted`] between its pieces, and ends with what it has done so far.
//! A number is that of one request only, so one that comes late is nobody else's.
//!
//! The numbers stand for themselves, and nothing is read because of them: relaxed accesses are
//! enough. Who does not see a request yet says so, and is asked again.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rcuwalk::Error;

use crate::watch::Work;

/// What one thread is answering.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The request and its mark in one word, so that a mark is of the request that it is for.
    request: AtomicU64,
    /// The same for the watcher.
    pub(crate) work: Work,
    /// The threads that it belongs to: 0 for those at the device, others by ring queue.
    pub(crate) group: usize,
}

/// The kernel's numbers of requests are even: this bit is free to say that one is interrupted.
const INTERRUPTED: u64 = 1;

impl Slot {
    /// For a thread of this group.
    pub(crate) fn of(group: usize) -> Arc<Slot> {
        Arc::new(Slot {
            group,
            ..Slot::default()
        })
    }

    /// The request of this number, until the result is dropped.
    pub(crate) fn answering(&self, unique: u64) -> Answering<'_> {
        // An odd number is somebody else's idea, and is not interrupted.
        let unique = if unique & INTERRUPTED == 0 { unique } else { 0 };
        self.request.store(unique, Relaxed);
        Answering(self)
    }

    /// True if that request is being answered here, and has heard of it.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        if unique == 0 || unique & INTERRUPTED != 0 {
            return false;
        }
        let marked = unique | INTERRUPTED;
        match self
            .request
            .compare_exchange(unique, marked, Relaxed, Relaxed)
        {
            Ok(_) => true,
            Err(now) => now == marked,
        }
    }

    fn is_interrupted(&self) -> bool {
        self.request.load(Relaxed) & INTERRUPTED != 0
    }
}

/// See [`Slot::answering`].
pub(crate) struct Answering<'s>(&'s Slot);

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.request.store(0, Relaxed);
    }
}

thread_local! {
    static MINE: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

/// What this thread answers stands in `slot`.
pub(crate) fn this_thread_is(slot: &Arc<Slot>) {
    MINE.set(Some(slot.clone()));
}

/// Whether there is still somebody who waits for what this thread is doing.
pub(crate) fn is_wanted() -> bool {
    MINE.with_borrow(|mine| mine.as_ref().is_none_or(|slot| !slot.is_interrupted()))
}

/// The answer for whom nothing has been done yet.
pub(crate) fn interrupted() -> Error {
    Error::io(io::Error::from_raw_os_error(libc::EINTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_is_for_the_request_that_it_names() {
        let slot = Arc::new(Slot::default());
        this_thread_is(&slot);
        assert!(is_wanted());
        assert!(!slot.interrupt(4), "it is not there yet");
        let first = slot.answering(4);
        assert!(is_wanted(), "that was too early");
        assert!(!slot.interrupt(6) && is_wanted());
        assert!(slot.interrupt(4) && !is_wanted());
        drop(first);
        assert!(is_wanted());
        assert!(!slot.interrupt(4), "it is done");
        let _next = slot.answering(6);
        assert!(is_wanted(), "that was another");
        assert!(slot.interrupt(6) && !is_wanted());
    }

    #[test]
    fn threads_without_a_slot_are_never_interrupted() {
        assert!(std::thread::spawn(is_wanted).join().unwrap());
    }
}
