//! Memory for a [`Shared`] object, and what the object takes of it.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::{Flag, Inner, Shared};
use crate::atomic::*;
use crate::slab;

/// Memory for an object, allocated before the locks are taken under which it is filled: no
/// thread waits for the allocator.
pub struct Spare<T> {
    object: NonNull<Shared<T>>,
    _owns: PhantomData<T>,
}

// SAFETY: memory without a `T` in it.
unsafe impl<T> Send for Spare<T> {}

impl<T> Spare<T> {
    /// Allocates it.
    pub fn new() -> Spare<T> {
        Spare {
            object: slab::allocate(layout::<T>()).cast(),
            _owns: PhantomData,
        }
    }

    /// Makes it an object with these marks and this count. The caller makes that many references
    /// from the pointer.
    pub(crate) fn fill(self, value: T, references: u32, marks: Flag) -> NonNull<Shared<T>> {
        let object = self.object;
        std::mem::forget(self);
        // SAFETY: allocated with the layout of `Shared<T>`, and known to no other code.
        unsafe {
            object.write(Shared(UnsafeCell::new(Inner {
                hash_next: AtomicPtr::new(std::ptr::null_mut()),
                word: AtomicU64::new(u64::from(references) | marks.bits()),
                value,
                lru: crate::lru::Links::default(),
            })));
        }
        object
    }
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Spare<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and never filled.
        unsafe { slab::free(self.object.cast(), layout::<T>()) }
    }
}

/// What an object takes of its last cache line is told as well: see `slab.rs`.
pub(super) fn layout<T>() -> Layout {
    let used = std::mem::offset_of!(Inner<T>, lru) + size_of::<crate::lru::Links<T>>();
    let whole = Layout::new::<Shared<T>>();
    Layout::from_size_align(used, whole.align()).unwrap_or(whole)
}
