//! A value that comes later, once.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::atomic::*;

const EMPTY: u32 = 0;
const WRITING: u32 = 1;
const THERE: u32 = 2;

/// A place for a `T` that is filled in once, and a number that fits beside it into what would
/// otherwise be padding.
///
/// Unlike the standard library's `OnceLock`, it makes no thread wait: callers settle elsewhere
/// which of them may fill it.
pub struct Late<T> {
    state: AtomicU32,
    number: u32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: it gives out `&T` once the value is there, and takes a `T` from any thread.
unsafe impl<T: Send + Sync> Sync for Late<T> {}
// SAFETY: it owns a `T`, if it has one.
unsafe impl<T: Send> Send for Late<T> {}

impl<T: RefUnwindSafe + UnwindSafe> RefUnwindSafe for Late<T> {}

impl<T> Late<T> {
    /// Nothing there yet.
    pub fn new(number: u32) -> Late<T> {
        Late {
            state: AtomicU32::new(EMPTY),
            number,
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The number beside it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The value, once it is there.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // Acquire: pairs with the Release in `set`; the value is written.
        if self.state.load(Acquire) != THERE {
            return None;
        }
        // SAFETY: written before the state said so, and not written again before `drop`.
        Some(unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Fills it in. Returns false, and drops `value`, if another thread has done so or is about
    /// to.
    pub fn set(&self, value: T) -> bool {
        let first = self
            .state
            .compare_exchange(EMPTY, WRITING, Relaxed, Relaxed);
        if first.is_err() {
            return false;
        }
        // SAFETY: one thread gets from EMPTY to WRITING, once, and no thread reads the value
        // before the state says THERE.
        unsafe { (*self.value.get()).write(value) };
        // Release: pairs with the Acquire in `get`.
        self.state.store(THERE, Release);
        true
    }
}

impl<T> Drop for Late<T> {
    fn drop(&mut self) {
        // Relaxed: `drop` has exclusive access.
        if self.state.load(Relaxed) == THERE {
            // SAFETY: written, and dropped only here.
            unsafe { self.value.get_mut().assume_init_drop() }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Late<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Late").field(&self.get()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_first_value_stays_and_is_dropped_once() {
        let [first, second] = [1, 2].map(Arc::new);
        let late = Late::new(7);
        assert_eq!((late.get(), late.number()), (None, 7));
        assert!(late.set(first.clone()));
        assert!(!late.set(second.clone()));
        assert_eq!(late.get(), Some(&first));
        drop(late);
        assert_eq!(
            (Arc::strong_count(&first), Arc::strong_count(&second)),
            (1, 1)
        );
        drop(Late::<Arc<u32>>::new(0));
    }

    #[test]
    fn it_costs_a_word_beside_the_value() {
        assert_eq!(size_of::<Late<u64>>(), 16);
    }
}
