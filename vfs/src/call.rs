//! Calls of the VFS into a back end, and the retry when a back end has run out of descriptors.
//!
//! CALL-1 says what holds during a call; see [`filesystem`](crate::filesystem). It does not
//! apply to methods that return constants (a name, a numbering).
//!
//! A back end that is out of descriptors cannot get any in a call: those of unused inodes are
//! closed when RCU frees the inodes, which runs `Drop` code of all back ends. So it says
//! [`Error::TooManyOpenFiles`], having changed nothing. The operation fails with that, gives
//! all its locks back, and is tried [`AGAIN`] after everything that is cached and unused has
//! been released.

use std::ops::Deref;

use rcuwalk_sync::lock::{self, Call};

use crate::caches::Caches;
use crate::error::{Error, Result};

/// How often an operation is tried again for want of descriptors.
const AGAIN: usize = 1;

/// A back end, or a file of it that is open, during a call: until the end of the statement,
/// as a rule.
pub(crate) struct Called<'a, T: ?Sized> {
    back_end: &'a T,
    _call: Call,
}

/// Calls a back end.
#[inline]
pub(crate) fn call<T: ?Sized>(back_end: &T) -> Called<'_, T> {
    Called {
        back_end,
        _call: Call::new(),
    }
}

impl<T: ?Sized> Deref for Called<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.back_end
    }
}

impl Caches {
    /// Does a whole operation, again if a back end has run out of descriptors.
    ///
    /// The caller holds no lock, and nothing that another thread waits for: `Drop` code of back
    /// ends runs in between.
    #[inline]
    pub(crate) fn with_descriptors<R>(
        &self,
        mut operation: impl FnMut() -> Result<R>,
    ) -> Result<R> {
        match operation() {
            Err(Error::TooManyOpenFiles) => self.with_released(operation),
            done => done,
        }
    }

    #[cold]
    fn with_released<R>(&self, mut operation: impl FnMut() -> Result<R>) -> Result<R> {
        let mut done = Err(Error::TooManyOpenFiles);
        for _ in 0..AGAIN {
            // `Drop` code that uses a `Vfs` comes here while its thread frees: all that is
            // under way.
            if !matches!(done, Err(Error::TooManyOpenFiles)) || !lock::may_sleep() {
                break;
            }
            self.release();
            done = operation();
        }
        done
    }
}
