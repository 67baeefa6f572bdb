//! A value that comes later, once.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::atomic::*;

const EMPTY: u32 = 0;
const WRITING: u32 = 1;
const THERE: u32 = 2;
const STATE_BITS: u32 = 2;
const STATE: u32 = (1 << STATE_BITS) - 1;

/// A place for a `T` that is filled in once, beside a `B` and a number that are there from the
/// start. State and number share a word, which fits into what would be padding after many a `B`.
///
/// Unlike the standard library's `OnceLock`, it makes no thread wait: callers settle elsewhere
/// which of them may fill it.
#[repr(C)]
pub struct Late<B, T> {
    beside: B,
    state: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: it gives out `&T` once the value is there, and takes a `T` from any thread.
unsafe impl<B: Sync, T: Send + Sync> Sync for Late<B, T> {}
// SAFETY: it owns a `T`, if it has one.
unsafe impl<B: Send, T: Send> Send for Late<B, T> {}

impl<B: RefUnwindSafe, T: RefUnwindSafe + UnwindSafe> RefUnwindSafe for Late<B, T> {}

impl<B, T> Late<B, T> {
    /// The largest number.
    pub const MOST: u32 = u32::MAX >> STATE_BITS;

    /// Nothing there yet.
    ///
    /// # Panics
    /// If the number is over [`MOST`](Self::MOST).
    pub fn new(beside: B, number: u32) -> Late<B, T> {
        assert!(number <= Self::MOST, "a number of 30 bits");
        Late {
            beside,
            state: AtomicU32::new(number << STATE_BITS | EMPTY),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The number beside it.
    pub fn number(&self) -> u32 {
        // Relaxed: it does not change.
        self.state.load(Relaxed) >> STATE_BITS
    }

    /// What is beside it.
    #[inline]
    pub fn beside(&self) -> &B {
        &self.beside
    }

    /// The value, once it is there.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // Acquire: pairs with the Release in `set`; the value is written.
        if self.state.load(Acquire) & STATE != THERE {
            return None;
        }
        // SAFETY: written before the state said so, and not written again before `drop`.
        Some(unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Fills it in. Returns false, and drops `value`, if another thread has done so or is about
    /// to.
    pub fn set(&self, value: T) -> bool {
        let number = self.number() << STATE_BITS;
        let first = self
            .state
            .compare_exchange(number | EMPTY, number | WRITING, Relaxed, Relaxed);
        if first.is_err() {
            return false;
        }
        // SAFETY: one thread gets from EMPTY to WRITING, once, and no thread reads the value
        // before the state says THERE.
        unsafe { (*self.value.get()).write(value) };
        // Release: pairs with the Acquire in `get`.
        self.state.store(number | THERE, Release);
        true
    }
}

impl<B, T> Drop for Late<B, T> {
    fn drop(&mut self) {
        // Relaxed: `drop` has exclusive access.
        if self.state.load(Relaxed) & STATE == THERE {
            // SAFETY: written, and dropped only here.
            unsafe { self.value.get_mut().assume_init_drop() }
        }
    }
}

impl<B, T: fmt::Debug> fmt::Debug for Late<B, T> {
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
        let late = Late::new("beside", Late::<&str, Arc<i32>>::MOST);
        let number = late.number();
        assert_eq!((late.get(), number), (None, u32::MAX >> 2));
        assert!(late.set(first.clone()));
        assert!(!late.set(second.clone()));
        assert_eq!((late.get(), *late.beside()), (Some(&first), "beside"));
        assert_eq!(late.number(), number);
        drop(late);
        assert_eq!(
            (Arc::strong_count(&first), Arc::strong_count(&second)),
            (1, 1)
        );
        drop(Late::<(), Arc<u32>>::new((), 0));
    }

    #[test]
    fn it_costs_half_a_word() {
        assert_eq!(size_of::<Late<[u32; 5], u64>>(), 32);
    }
}
