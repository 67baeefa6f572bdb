//! The reader-writer lock.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::mutex::unless_blocked;
use super::{Held, Rank, assert_may_sleep};
use crate::model;

/// Names the rank of the [`RwLock`] around a value.
pub trait Ranked {
    /// The place of that lock in the lock order.
    const RANK: Rank;
}

/// A reader-writer lock with a place in the lock order. The place comes with the type of the
/// value: a field for it would cost every lock four bytes.
#[doc(alias = "rw_semaphore")]
pub struct RwLock<T> {
    inner: model::RwLock<T>,
}

/// A [`RwLock`] locked shared.
pub struct ReadGuard<'a, T> {
    inner: model::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// A [`RwLock`] locked exclusively.
pub struct WriteGuard<'a, T> {
    inner: model::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T: Ranked> RwLock<T> {
    /// Unlocked.
    pub fn new(value: T) -> RwLock<T> {
        RwLock {
            inner: model::RwLock::new(value),
        }
    }

    /// Waits until no writer holds it.
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.read_ranked(false)
    }

    /// Like `read`, for the second and later of several locks of one rank.
    ///
    /// The caller keeps LOCK-1's tie-break: ancestor first, else by address.
    #[doc(alias = "down_read_nested")]
    pub fn read_nested(&self) -> ReadGuard<'_, T> {
        self.read_ranked(true)
    }

    fn read_ranked(&self, nested: bool) -> ReadGuard<'_, T> {
        assert_may_sleep();
        let held = Held::new(T::RANK, nested);
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        ReadGuard { inner, _held: held }
    }

    /// The lock, shared, if no writer holds it or waits for it. As
    /// [`Mutex::try_lock_out_of_order`](super::Mutex::try_lock_out_of_order), whatever this thread holds.
    #[doc(alias = "down_read_trylock")]
    pub fn try_read_out_of_order(&self) -> Option<ReadGuard<'_, T>> {
        assert_may_sleep();
        let held = Held::unchecked(T::RANK);
        let inner = unless_blocked(self.inner.try_read())?;
        Some(ReadGuard { inner, _held: held })
    }

    /// Waits until no thread holds it.
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.write_ranked(false)
    }

    /// Like `write`, for the second and later of several locks of one rank.
    ///
    /// The caller keeps LOCK-1's tie-break: ancestor first, else by address.
    #[doc(alias = "down_write_nested")]
    pub fn write_nested(&self) -> WriteGuard<'_, T> {
        self.write_ranked(true)
    }

    /// The lock, exclusively, if no thread holds it, whatever this thread holds. As
    /// [`Mutex::try_lock_out_of_order`](super::Mutex::try_lock_out_of_order).
    #[doc(alias = "down_write_trylock")]
    pub fn try_write_out_of_order(&self) -> Option<WriteGuard<'_, T>> {
        assert_may_sleep();
        let held = Held::unchecked(T::RANK);
        let inner = unless_blocked(self.inner.try_write())?;
        Some(WriteGuard { inner, _held: held })
    }

    /// The guarded data. `&mut self` shows that the lock is free.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_ranked(&self, nested: bool) -> WriteGuard<'_, T> {
        assert_may_sleep();
        let held = Held::new(T::RANK, nested);
        let inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        WriteGuard { inner, _held: held }
    }
}

impl<T: Ranked + Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
