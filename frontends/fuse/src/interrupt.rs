//! FUSE_INTERRUPT: cancels a request whose caller was signalled.
//!
//! Each answering thread has a [`Slot`], which holds the number of the request that it is
//! answering. INTERRUPT names a request, and the thread that reads it marks the slot with that
//! number. A long operation calls [`is_wanted`] between its pieces, and stops with the part
//! that it has done. A number belongs to one request only, so a late INTERRUPT marks no other
//! one.
//!
//! The numbers stand for themselves and publish no other data: relaxed accesses are enough. If
//! the reading thread does not see the request in any slot yet, it tells the kernel, which
//! sends the INTERRUPT again.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rcuwalk::Error;

use crate::watch::Work;

/// The request that one thread is answering.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The request and its mark in one word, so that a mark never applies to another request.
    request: AtomicU64,
    /// The request, as the watcher sees it.
    pub(crate) work: Work,
    /// The thread's group: 0 for threads at the device, others by ring queue.
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

    /// Holds the number of a request until the result is dropped.
    pub(crate) fn answering(&self, unique: u64) -> Answering<'_> {
        // The kernel sends even numbers only: a request with an odd one is not interruptible.
        let unique = if unique & INTERRUPTED == 0 { unique } else { 0 };
        self.request.store(unique, Relaxed);
        Answering(self)
    }

    /// Marks the request if this thread is answering it; true if so.
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

/// Makes `slot` the slot of this thread.
pub(crate) fn this_thread_is(slot: &Arc<Slot>) {
    MINE.set(Some(slot.clone()));
}

/// True unless the request that this thread is answering has been interrupted.
pub(crate) fn is_wanted() -> bool {
    MINE.with_borrow(|mine| mine.as_ref().is_none_or(|slot| !slot.is_interrupted()))
}

/// `EINTR`: the answer to an interrupted request that has done nothing yet.
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
