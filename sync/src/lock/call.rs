//! Calls of a back end, by the crate above.
//!
//! CALL-1: a thread in a call counts as one that holds a lock, so it frees nothing that RCU has
//! retired before the call is over. While a back end holds a mutex of its own, the only `Drop`
//! code on that thread is its own, and a thread that frees may take all locks.
//!
//! A call within a call is refused in debug builds. The outer one may have locks of one tree
//! held, and the inner one takes those of another; two trees that do this to each other
//! deadlock, and which ranks are free depends on what is in the caches.

use super::Counted;

/// A back end's call by this thread, until it is dropped.
///
/// In release builds this is two additions to a value of the thread's own.
#[must_use = "the call is over when it is dropped"]
pub struct Call {
    _counted: Counted,
}

impl Call {
    /// The call begins.
    ///
    /// # Panics
    /// In debug builds, if this thread is in one.
    #[inline]
    #[allow(
        clippy::new_without_default,
        reason = "a call is not a value that somebody fills in"
    )]
    pub fn new() -> Call {
        #[cfg(debug_assertions)]
        {
            assert_no_call();
            IN_CALL.with(|is_in| is_in.set(true));
        }
        Call {
            _counted: Counted::new(),
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Call {
    fn drop(&mut self) {
        // Before the count: work that waited for the end of the call may begin others.
        IN_CALL.with(|is_in| is_in.set(false));
    }
}

#[cfg(debug_assertions)]
crate::model::local! {
    static IN_CALL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Checks in debug builds that this thread is in no call.
///
/// # Panics
/// In debug builds, if it is in one.
#[inline]
pub fn assert_no_call() {
    #[cfg(debug_assertions)]
    assert!(
        !IN_CALL.with(std::cell::Cell::get),
        "CALL-1: a back end uses a Vfs within a call of a Vfs; see `FileSystem`"
    );
}

#[cfg(all(test, not(any(loom, shuttle)), debug_assertions))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;
    use crate::{Ref, rcu};

    /// Counts drops: all, and those by a thread in a call.
    struct Dropped(Arc<[AtomicUsize; 2]>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0[0].fetch_add(1, Relaxed);
            self.0[1].fetch_add(IN_CALL.with(std::cell::Cell::get).into(), Relaxed);
        }
    }

    /// CALL-1: objects that a thread retires in a call are freed when the call is over.
    #[test]
    fn freeing_waits_for_the_end_of_a_back_ends_call() {
        let dropped = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let many = 4 * rcu::Domain::BATCH_OBJECTS;
        let call = Call::new();
        for _ in 0..many {
            drop(Ref::new(Dropped(dropped.clone())));
        }
        drop(call);
        rcu::barrier();
        assert_eq!(dropped[0].load(Relaxed), many, "CALL-1: all are freed");
        assert_eq!(dropped[1].load(Relaxed), 0, "CALL-1: none in a call");
    }

    /// CALL-1: a back end that calls another one through a `Vfs` is refused.
    #[test]
    #[should_panic(expected = "CALL-1")]
    fn a_call_within_a_call_is_refused() {
        let _outer = Call::new();
        let _inner = Call::new();
    }

    /// CALL-1: calls follow each other, also after one that has panicked.
    #[test]
    fn a_call_that_panics_is_over() {
        let panicked = std::panic::catch_unwind(|| {
            let _call = Call::new();
            panic!("in a back end");
        });
        assert!(panicked.is_err());
        drop(Call::new());
        assert!(crate::lock::may_sleep(), "CALL-1: nothing is held");
    }
}
