//! The lock in an object's word: it takes no memory, and sleeps on the word.

use std::ops::Deref;

use super::Shared;
use super::word::{LOCK_WAITERS, LOCKED};
use crate::atomic::*;
use crate::lock::{Held, Rank};
use crate::model::MODEL;
use crate::wait;

impl<T> Shared<T> {
    /// Takes the object's lock, which sleeps in the same word.
    #[doc(alias("d_lock", "i_lock"))]
    pub fn lock(&self, rank: Rank) -> LockedShared<'_, T> {
        self.lock_ranked(rank, false)
    }

    /// Like `lock`, for the second and later of several objects of one rank.
    ///
    /// The caller keeps LOCK-1's tie-break: ancestor first, else by address.
    #[doc(alias = "spin_lock_nested")]
    pub fn lock_nested(&self, rank: Rank) -> LockedShared<'_, T> {
        self.lock_ranked(rank, true)
    }

    /// The lock, if no thread holds it, whatever this thread holds: see
    /// [`Mutex::try_lock_out_of_order`](crate::lock::Mutex::try_lock_out_of_order).
    #[doc(alias = "spin_trylock")]
    pub fn try_lock_out_of_order(&self, rank: Rank) -> Option<LockedShared<'_, T>> {
        crate::lock::assert_may_sleep();
        let held = Held::unchecked(rank);
        self.try_lock_word().then(|| LockedShared {
            object: self,
            _held: held,
        })
    }

    fn lock_ranked(&self, rank: Rank, nested: bool) -> LockedShared<'_, T> {
        crate::lock::assert_may_sleep();
        let held = Held::new(rank, nested);
        if !self.try_lock_word() {
            self.lock_slow();
        }
        LockedShared {
            object: self,
            _held: held,
        }
    }

    #[cold]
    fn lock_slow(&self) {
        // In a model no other thread makes progress meanwhile.
        if !MODEL {
            for _ in 0..64 {
                std::hint::spin_loop();
                if self.try_lock_word() {
                    return;
                }
            }
        }
        loop {
            let word = self.word().load(Relaxed);
            let marked = word | LOCK_WAITERS;
            if word & LOCKED == 0 {
                // With the mark: other threads may be asleep, and one is woken at a time.
                // Acquire: as in `try_lock_word`.
                let took =
                    self.word()
                        .compare_exchange_weak(word, marked | LOCKED, Acquire, Relaxed);
                if took.is_ok() {
                    return;
                }
            } else if word == marked
                || self
                    .word()
                    .compare_exchange_weak(word, marked, Relaxed, Relaxed)
                    .is_ok()
            {
                wait::sleep(self.word(), marked);
            }
        }
    }

    fn try_lock_word(&self) -> bool {
        let mut word = self.word().load(Relaxed);
        while word & LOCKED == 0 {
            // Acquire: pairs with the Release in `LockedShared::drop`.
            match self
                .word()
                .compare_exchange_weak(word, word | LOCKED, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }
}

/// An object whose lock is held. A guard belongs to its thread:
///
/// ```compile_fail
/// let object = rcuwalk_sync::Ref::new(());
/// let locked = object.lock(rcuwalk_sync::lock::Rank::Dentry);
/// std::thread::scope(|scope| scope.spawn(|| drop(locked)));
/// ```
pub struct LockedShared<'a, T> {
    object: &'a Shared<T>,
    _held: Held,
}

impl<T> Deref for LockedShared<'_, T> {
    type Target = Shared<T>;
    fn deref(&self) -> &Shared<T> {
        self.object
    }
}

impl<T> Drop for LockedShared<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `try_lock_word`.
        let word = self.object.word();
        let at = std::ptr::from_ref(word);
        let before = word.fetch_and(!(LOCKED | LOCK_WAITERS), Release);
        if before & LOCK_WAITERS != 0 {
            wait::wake_one(at);
        }
    }
}
