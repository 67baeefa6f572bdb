//! A pointer that readers follow while writers replace it.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crate::atomic::*;
use crate::{RcuGuard, Ref, Shared};

/// A place for an optional [`Ref`] that RCU readers look at without counting.
///
/// It owns the reference it holds. Replacing it drops the old one, and RCU-1 keeps that object
/// until the readers that still look at it have gone.
pub struct RcuPtr<T> {
    object: AtomicPtr<Shared<T>>,
    _owns: PhantomData<Ref<T>>,
}

impl<T> RcuPtr<T> {
    /// Holds `object`.
    pub fn new(object: Option<Ref<T>>) -> RcuPtr<T> {
        RcuPtr {
            object: AtomicPtr::new(raw(object)),
            _owns: PhantomData,
        }
    }

    /// The current object, valid for as long as the guard lives.
    #[inline]
    #[doc(alias = "rcu_dereference")]
    pub fn load<'g>(&self, _guard: &'g RcuGuard) -> Option<&'g Shared<T>> {
        // Acquire: pairs with the Release in `swap`; the object is initialised.
        let object = self.object.load(Acquire);
        // SAFETY: a non-null pointer is an object that we held a reference to when
        // it was published, and RCU-1 frees it only after a grace period, which
        // the guard holds open for 'g.
        unsafe { object.as_ref() }
    }

    /// A counted reference to the current object, if that is still alive.
    pub fn get(&self, guard: &RcuGuard) -> Option<Ref<T>> {
        self.load(guard)?.try_get()
    }

    /// True if it holds the object at this address.
    #[inline]
    pub fn is(&self, address: usize) -> bool {
        self.object.load(Relaxed).addr() == address
    }

    /// True if it holds nothing.
    pub fn is_none(&self) -> bool {
        self.object.load(Relaxed).is_null()
    }

    /// Publishes `object` and returns the one before.
    #[doc(alias("rcu_assign_pointer", "rcu_replace_pointer"))]
    pub fn swap(&self, object: Option<Ref<T>>) -> Option<Ref<T>> {
        // AcqRel: Release pairs with the Acquire in `load`; Acquire with the Release of the
        // swap that published the object we now take out.
        let old = self.object.swap(raw(object), AcqRel);
        // SAFETY: the old pointer came from `into_raw`, and the swap took it out, so no other
        // thread takes it back.
        NonNull::new(old).map(|object| unsafe { Ref::from_raw(object) })
    }
}

impl<T> Default for RcuPtr<T> {
    /// Holds nothing.
    fn default() -> RcuPtr<T> {
        RcuPtr::new(None)
    }
}

fn raw<T>(object: Option<Ref<T>>) -> *mut Shared<T> {
    object.map_or(ptr::null_mut(), |object| Ref::into_raw(object).as_ptr())
}

impl<T> Drop for RcuPtr<T> {
    fn drop(&mut self) {
        drop(self.swap(None));
    }
}

// SAFETY: it gives out `&T` and `Ref<T>`, which ask the same.
unsafe impl<T: Send + Sync> Send for RcuPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for RcuPtr<T> {}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::rcu;

    /// RCU-1: a reader keeps the object it loaded while a writer replaces it.
    #[test]
    fn readers_keep_what_they_loaded() {
        let place = RcuPtr::new(Some(Ref::new(1)));
        let guard = rcu::read_lock();
        let seen = place.load(&guard).unwrap();
        drop(place.swap(Some(Ref::new(2))));
        assert_eq!((**seen, **place.load(&guard).unwrap()), (1, 2));
        assert!(
            seen.try_get().is_none(),
            "RCU-3: its last reference is gone"
        );
        assert_eq!(**place.get(&guard).unwrap(), 2);
    }
}
