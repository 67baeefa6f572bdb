//! Where an array of heads lies: large ones on huge pages.
//!
//! A lookup at random goes to any of the heads, so the page tables of a large array
//! of small pages fit no cache. An array of less than a huge page is the system
//! allocator's: it would not fill one, and the rest would be resident for nothing.

use std::ops::Deref;

use super::*;
use crate::memory::{self, Advice};

/// An array of heads, each the end of its own empty chain.
pub(super) struct Heads<T>(NonNull<[AtomicPtr<Shared<T>>]>);

// SAFETY: it owns its atomics, as a `Box` would; the table answers for the objects that they
// point to.
unsafe impl<T: Send + Sync> Send for Heads<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Heads<T> {}

impl<T> Heads<T> {
    /// `len` is a power of two.
    pub(super) fn new(len: usize) -> Heads<T> {
        let ends = (0..len).map(|index| AtomicPtr::new(end_marker(index)));
        let bytes = Self::bytes(len);
        memory::count_heads(bytes);
        if bytes < memory::HUGE {
            return Heads(NonNull::from(Box::leak(ends.collect())));
        }
        let start = memory::map(bytes);
        let heads = start.cast::<AtomicPtr<Shared<T>>>();
        // SAFETY: just mapped, large enough and aligned for this number of heads; a power of
        // two that is not less than a huge page is a multiple of one.
        unsafe {
            memory::advise(start, bytes, Advice::Huge);
            for (index, end) in ends.enumerate() {
                heads.add(index).write(end);
            }
        }
        Heads(NonNull::slice_from_raw_parts(heads, len))
    }

    fn bytes(len: usize) -> usize {
        len * size_of::<AtomicPtr<Shared<T>>>()
    }
}

impl<T> Deref for Heads<T> {
    type Target = [AtomicPtr<Shared<T>>];
    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: initialised by `new`, and ours until dropped.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Heads<T> {
    fn drop(&mut self) {
        let bytes = Self::bytes(self.len());
        memory::uncount_heads(bytes);
        // SAFETY: made by `new` in the way that goes with this size, and no longer in use; the
        // atomics of a mapped array have nothing to drop.
        unsafe {
            if bytes < memory::HUGE {
                drop(Box::from_raw(self.0.as_ptr()));
            } else {
                memory::unmap(self.0.cast(), bytes);
            }
        }
    }
}
