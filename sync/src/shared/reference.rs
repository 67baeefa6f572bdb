//! Counted references: how they are given back, and how the last one retires the object.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use super::spare::layout;
use super::word::{COUNT, DEAD, MOST, WAITERS, is_last, leaves_for_list};
use super::{Flag, Shared, Spare};
use crate::atomic::*;
use crate::{rcu, slab, wait};

/// A counted reference to a [`Shared`] object.
pub struct Ref<T> {
    object: NonNull<Shared<T>>,
    /// For drop check: dropping the last one drops a `T`.
    _owns: PhantomData<T>,
}

// SAFETY: a `Ref` gives `&T` to any thread and may drop the `T` on any thread.
unsafe impl<T: Send + Sync> Send for Ref<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Ref<T> {}

impl<T: Send + Sync + 'static> Ref<T> {
    /// Allocates an object with one reference: the one returned.
    pub fn new(value: T) -> Ref<T> {
        Self::with_flags(value, &[])
    }

    /// Like `new`, with `flags` set from the start.
    pub fn with_flags(value: T, flags: &[Flag]) -> Ref<T> {
        let flags = flags.iter().fold(Flag::NONE, |all, flag| all | *flag);
        // SAFETY: the word says one reference, and here it is.
        unsafe { Ref::from_raw(Spare::new().fill(value, 1, flags)) }
    }
}

/// An object that is being freed, for threads that wait until it is gone.
pub struct Dying<T>(Ref<T>);

impl<T> Dying<T> {
    pub(super) fn new(counted: Ref<T>) -> Dying<T> {
        Dying(counted)
    }

    /// Sleeps until the object is on no hash chain any more.
    #[doc(alias = "__wait_on_freeing_inode")]
    pub fn wait_until_unhashed(self) {
        self.0.wait_until_clear(Flag::HASHED);
    }
}

impl<T> Deref for Dying<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Ref<T> {
    /// Gives up the reference without counting it down: a container keeps it.
    pub(crate) fn into_raw(this: Ref<T>) -> NonNull<Shared<T>> {
        let object = this.object;
        std::mem::forget(this);
        object
    }

    /// The other way round.
    ///
    /// # Safety
    /// `object` came from `into_raw`, and each such pointer is taken back once.
    pub(crate) unsafe fn from_raw(object: NonNull<Shared<T>>) -> Ref<T> {
        Ref {
            object,
            _owns: PhantomData,
        }
    }

    /// One that has been counted already.
    pub(super) fn counted(object: &Shared<T>) -> Ref<T> {
        Ref {
            object: NonNull::from(object),
            _owns: PhantomData,
        }
    }

    /// Drops the reference, unless it is the last one that matters: then the caller has it back
    /// and decides.
    ///
    /// It is the last one where none is left beside it; and, for an object on a hash table that
    /// has `flag`, where only containers have others. A dead object's fate is decided already.
    #[doc(alias("iput_final", "lockref_put_or_lock"))]
    #[inline]
    pub fn put_unless_last(this: Ref<T>, flag: Flag) -> Option<Ref<T>> {
        match this.count_down(|word| is_last(word, flag)) {
            CountedDown::Kept => Some(this),
            CountedDown::Yes => {
                std::mem::forget(this);
                None
            }
            CountedDown::ToZero => {
                // SAFETY: counted down to zero, and not dropped again.
                unsafe { std::mem::ManuallyDrop::new(this).retire() };
                None
            }
        }
    }

    /// True if both refer to the same object.
    pub fn ptr_eq(a: &Ref<T>, b: &Ref<T>) -> bool {
        a.object == b.object
    }
}

impl<T> Deref for Ref<T> {
    type Target = Shared<T>;
    #[inline]
    fn deref(&self) -> &Shared<T> {
        // SAFETY: we hold a reference, and the object lives as long as one is held.
        unsafe { self.object.as_ref() }
    }
}

impl<T> Clone for Ref<T> {
    #[doc(alias("ihold", "dget"))]
    fn clone(&self) -> Ref<T> {
        // Relaxed: we hold a reference, so the object is there, and making one more
        // orders nothing.
        let before = self.word().fetch_add(1, Relaxed);
        if before & COUNT >= MOST {
            // Taken back before the panic: a caller that catches it again and again must not
            // get the count past its margin.
            self.word().fetch_sub(1, Relaxed);
            panic!("RCU-3: over 2^31 references to one object");
        }
        Ref {
            object: self.object,
            _owns: PhantomData,
        }
    }
}

impl<T> Drop for Ref<T> {
    #[doc(alias("iput", "dput"))]
    #[inline]
    fn drop(&mut self) {
        if let CountedDown::ToZero = self.count_down(|_| false) {
            // SAFETY: counted down to zero.
            unsafe { self.retire() }
        }
    }
}

/// What became of a reference.
enum CountedDown {
    /// It is gone, or a list's now.
    Yes,
    /// It was the last one: the caller retires the object.
    ToZero,
    /// The caller has it still.
    Kept,
}

impl<T> Ref<T> {
    /// Drops the reference, unless `keep` says otherwise of the word. Where the object then would
    /// be unused, on a table, and on no list, it goes to a list (LRU-1).
    ///
    /// Each case is one compare-and-swap. With a plain subtraction, a scan could take the object off
    /// its list after this thread has read the word, and no thread would list it again.
    #[inline]
    fn count_down(&self, keep: impl Fn(u64) -> bool) -> CountedDown {
        let mut word = self.word().load(Relaxed);
        loop {
            if word & DEAD == 0 && keep(word) {
                return CountedDown::Kept;
            }
            if leaves_for_list(word) && self.has_lists() {
                if self.enter_list() {
                    return CountedDown::Yes;
                }
                word = self.word().load(Relaxed);
                // It was as before if another thread has come and gone meanwhile.
                continue;
            }
            // Release: pairs with the Acquire fence in `retire`; our use of the object happened
            // before it is freed, or killed and evicted.
            match self
                .word()
                .compare_exchange_weak(word, word - 1, Release, Relaxed)
            {
                Ok(_) if word & COUNT == 1 => return CountedDown::ToZero,
                Ok(_) => return CountedDown::Yes,
                Err(now) => word = now,
            }
        }
    }

    /// True if it is one that lists hold while it has no user. Asked while it is hashed.
    #[cold]
    fn has_lists(&self) -> bool {
        // Acquire: pairs with the Release in `insert`.
        fence(Acquire);
        !self.inner().lru.lists().is_null()
    }
}

impl<T> Ref<T> {
    /// For a dead object that has just been unlinked from its chain: takes off the mark, and
    /// counts down the chain's reference and this one, all in one step. If those were the last,
    /// returns the object for the caller to retire.
    pub(crate) fn bury(this: Ref<T>) -> Option<NonNull<Shared<T>>> {
        let object = Ref::into_raw(this);
        // SAFETY: we hold a reference.
        let shared = unsafe { object.as_ref() };
        let address = shared.address();
        // AcqRel: Release pairs with the Acquire fence below, as in `drop`, and with the
        // Acquire of threads that wait for the mark to go.
        let before = shared.word().fetch_sub(Flag::HASHED.bits() + 2, AcqRel);
        debug_assert!(before & DEAD != 0 && before & Flag::HASHED.bits() != 0);
        if before & WAITERS != 0 {
            // By address: the waiters keep the object, but we do not any more.
            wait::wake_all(address);
        }
        (before & COUNT == 2).then_some(object)
    }

    /// Retires objects that [`bury`](Self::bury) has returned as unreferenced.
    ///
    /// # Safety
    /// It said so, and each is passed once.
    pub(crate) unsafe fn retire_buried(objects: impl Iterator<Item = NonNull<Shared<T>>>) {
        let objects = objects.map(|object| object.as_ptr().cast());
        // SAFETY: as in `retire`.
        unsafe { rcu::retire_all(objects, size_of::<Shared<T>>(), free::<T>) }
    }

    /// Hands the object to RCU.
    ///
    /// # Safety
    /// The reference has been counted down to zero, and is not dropped again.
    #[cold]
    unsafe fn retire(&self) {
        // Acquire: pairs with the Release of every other reference's drop.
        fence(Acquire);
        debug_assert!(
            !self.has(Flag::HASHED) && !self.has(Flag::LISTED),
            "containers hold a Ref"
        );
        // SAFETY: RCU-3: the count is zero and stays zero, and containers hold counted
        // references, so only readers whose guard is older than this call can reach the object;
        // `free` runs after they have ended.
        unsafe {
            rcu::retire(
                self.object.as_ptr().cast(),
                size_of::<Shared<T>>(),
                free::<T>,
            )
        }
    }
}

/// Drops the value and gives back the memory.
///
/// # Safety
/// `object` is a `Shared<T>` from `Ref::new`, and unreachable for other threads.
unsafe fn free<T>(object: *mut ()) {
    let object = object.cast::<Shared<T>>();
    // SAFETY: the caller's promise.
    unsafe {
        object.drop_in_place();
        let memory = NonNull::new_unchecked(object.cast());
        slab::free(memory, layout::<T>());
    }
}
