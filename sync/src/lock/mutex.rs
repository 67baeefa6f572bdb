//! The mutex.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use super::{Held, Rank, assert_may_sleep};
use crate::model;

/// A mutex with a place in the lock order.
///
/// A panic while it is held does not poison it: this crate changes the guarded data in steps
/// that are each complete.
pub struct Mutex<T> {
    rank: Rank,
    inner: model::Mutex<T>,
}

/// A locked [`Mutex`].
pub struct MutexGuard<'a, T> {
    // The lock is given back before the books are closed: fields drop in order.
    inner: model::MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Mutex<T> {
    model::const_unless_loom! {
        /// Unlocked.
        pub fn new(rank: Rank, value: T) -> Mutex<T> {
            Mutex {
                rank,
                inner: model::Mutex::new(value),
            }
        }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        assert_may_sleep();
        let held = Held::new(self.rank, false);
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { inner, _held: held }
    }

    /// As [`lock`](Self::lock), where a read section may be open: it lasts as long as this waits.
    /// For a lock whose holders never wait for readers.
    pub(crate) fn lock_in_read_section(&self) -> MutexGuard<'_, T> {
        let held = Held::new(self.rank, false);
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { inner, _held: held }
    }

    /// Returns a guard if the lock is free.
    pub(crate) fn try_lock(&self, same_rank_is_ordered: bool) -> Option<MutexGuard<'_, T>> {
        self.try_lock_as(Held::new(self.rank, same_rank_is_ordered))
    }

    /// The lock if no thread holds it, whatever this thread holds. Without waiting there is no
    /// deadlock, so LOCK-1 does not apply.
    #[doc(alias = "mutex_trylock")]
    pub fn try_lock_out_of_order(&self) -> Option<MutexGuard<'_, T>> {
        self.try_lock_as(Held::unchecked(self.rank))
    }

    fn try_lock_as(&self, held: Held) -> Option<MutexGuard<'_, T>> {
        assert_may_sleep();
        let inner = unless_blocked(self.inner.try_lock())?;
        Some(MutexGuard { inner, _held: held })
    }

    /// The guarded data. `&mut self` shows that the lock is free.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// The guard of a lock that was tried; `None` if another thread holds it.
pub(super) fn unless_blocked<G>(tried: Result<G, TryLockError<G>>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(panicked)) => Some(panicked.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
