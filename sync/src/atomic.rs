//! The atomics that threads share, with a shim around them.
//!
//! Release builds get the standard library's, model-checking builds the checker's. Debug builds
//! count every store and read-modify-write a thread makes, so that a test can show that a
//! cached walk makes none (WALK-2). Values that only their own thread writes (an RCU reader's
//! slot, [`PerThread`](crate::PerThread) counters) use the standard atomics directly and are
//! not counted.

pub use std::sync::atomic::Ordering::{self, *};

pub use crate::model::atomic::fence;

#[cfg(any(loom, shuttle, not(debug_assertions)))]
pub use crate::model::atomic::{AtomicPtr, AtomicU32, AtomicU64};

#[cfg(not(any(loom, shuttle, not(debug_assertions))))]
pub use counted::{AtomicPtr, AtomicU32, AtomicU64};

/// How many stores to shared memory this thread has made so far, for tests.
///
/// Counts only in debug builds; always 0 otherwise.
pub fn stores_by_this_thread() -> u64 {
    #[cfg(not(any(loom, shuttle, not(debug_assertions))))]
    return counted::STORES.get();
    #[cfg(any(loom, shuttle, not(debug_assertions)))]
    return 0;
}

/// Counts one store that the shim cannot see: a lock of the standard library.
pub(crate) fn note_store() {
    #[cfg(not(any(loom, shuttle, not(debug_assertions))))]
    counted::note();
}

#[cfg(not(any(loom, shuttle, not(debug_assertions))))]
mod counted {
    use std::cell::Cell;
    use std::sync::atomic::Ordering;

    thread_local! {
        pub(super) static STORES: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn note() {
        // A thread that is being torn down no longer counts.
        let _ = STORES.try_with(|stores| stores.set(stores.get() + 1));
    }

    /// One counting wrapper per width; the methods are those the crate uses.
    macro_rules! counted_integer {
        ($name:ident, $int:ty) => {
            /// The standard atomic, counting this thread's stores.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(std::sync::atomic::$name);

            #[allow(missing_docs)]
            impl $name {
                pub const fn new(value: $int) -> Self {
                    Self(std::sync::atomic::$name::new(value))
                }
                #[inline]
                pub fn load(&self, order: Ordering) -> $int {
                    self.0.load(order)
                }
                #[inline]
                pub fn store(&self, value: $int, order: Ordering) {
                    note();
                    self.0.store(value, order)
                }
                #[inline]
                pub fn swap(&self, value: $int, order: Ordering) -> $int {
                    note();
                    self.0.swap(value, order)
                }
                #[inline]
                pub fn compare_exchange_weak(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    note();
                    self.0.compare_exchange_weak(current, new, success, failure)
                }
                #[inline]
                pub fn compare_exchange(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    note();
                    self.0.compare_exchange(current, new, success, failure)
                }
                #[inline]
                pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                    note();
                    self.0.fetch_add(value, order)
                }
                #[inline]
                pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                    note();
                    self.0.fetch_sub(value, order)
                }
                #[inline]
                pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                    note();
                    self.0.fetch_or(value, order)
                }
                #[inline]
                pub fn fetch_xor(&self, value: $int, order: Ordering) -> $int {
                    note();
                    self.0.fetch_xor(value, order)
                }
                #[inline]
                pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                    note();
                    self.0.fetch_and(value, order)
                }
            }
        };
    }

    counted_integer!(AtomicU32, u32);
    counted_integer!(AtomicU64, u64);

    /// The standard atomic pointer, counting this thread's stores.
    #[derive(Debug)]
    #[repr(transparent)]
    pub struct AtomicPtr<T>(std::sync::atomic::AtomicPtr<T>);

    #[allow(missing_docs)]
    impl<T> AtomicPtr<T> {
        pub const fn new(ptr: *mut T) -> Self {
            Self(std::sync::atomic::AtomicPtr::new(ptr))
        }
        #[inline]
        pub fn load(&self, order: Ordering) -> *mut T {
            self.0.load(order)
        }
        #[inline]
        pub fn store(&self, ptr: *mut T, order: Ordering) {
            note();
            self.0.store(ptr, order)
        }
        #[inline]
        pub fn swap(&self, ptr: *mut T, order: Ordering) -> *mut T {
            note();
            self.0.swap(ptr, order)
        }
        #[inline]
        pub fn compare_exchange(
            &self,
            current: *mut T,
            new: *mut T,
            success: Ordering,
            failure: Ordering,
        ) -> Result<*mut T, *mut T> {
            note();
            self.0.compare_exchange(current, new, success, failure)
        }
        #[inline]
        pub fn compare_exchange_weak(
            &self,
            current: *mut T,
            new: *mut T,
            success: Ordering,
            failure: Ordering,
        ) -> Result<*mut T, *mut T> {
            note();
            self.0.compare_exchange_weak(current, new, success, failure)
        }
    }
}
