//! When an operation is attempted again: the one policy of walks, changes and open files.
//!
//! An operation is attempted again if the caches were the reason why it failed, and not the
//! caller. Each of these happens once, so there are at most four attempts:
//!
//! | error | before the next attempt |
//! |---|---|
//! | [`Error::Stale`] | the back end is asked about every name on the way ([`LookupFlags::REVAL`]) |
//! | [`Error::TooManyOpenFiles`] | everything that is cached and unused is released |
//! | [`Error::CrossDevice`] in a contained root | nothing: a rename has moved the walk out of its root, and most often the path leads elsewhere by now (WALK-3) |
//!
//! An RCU-walk that stops is no attempt: the REF-walk goes on with it. Nor is a wait for a lock
//! that another thread holds: a removal (`change/victim.rs`) and a splice (`dentry/splice.rs`)
//! look again at what they found once they have it, as often as another thread is faster.
//!
//! A back end that is out of descriptors cannot get any in a call (CALL-1): those of unused
//! inodes are closed when RCU frees the inodes, which runs `Drop` code of all back ends. So it
//! says [`Error::TooManyOpenFiles`], having changed nothing, and the operation gives all its
//! locks back first.

use rcuwalk_sync::lock;

use crate::caches::Caches;
use crate::error::{Error, Result};
use crate::walk::LookupFlags;

/// The attempts of an operation so far.
struct Attempts {
    /// The flags that the next one adds to the caller's.
    flags: LookupFlags,
    is_contained: bool,
    has_released: bool,
    has_left_root: bool,
}

impl Caches {
    /// Runs a whole operation, which starts at a path: `flags` are the caller's own, and
    /// `is_contained` says whether its root has something above it.
    ///
    /// The caller holds no lock, and nothing that another thread waits for: `Drop` code of back
    /// ends runs in between.
    #[inline]
    #[doc(alias = "retry_estale")]
    pub(crate) fn retry<R>(
        &self,
        flags: LookupFlags,
        is_contained: bool,
        mut attempt: impl FnMut(LookupFlags) -> Result<R>,
    ) -> Result<R> {
        let flags = flags & LookupFlags::REVAL;
        match attempt(flags) {
            Err(err) => {
                let attempts = Attempts {
                    flags,
                    is_contained,
                    has_released: false,
                    has_left_root: false,
                };
                self.retry_after(err, attempts, attempt)
            }
            done => done,
        }
    }

    /// Runs an operation of a file that is held or open.
    #[inline]
    pub(crate) fn retry_held<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        self.retry(LookupFlags::empty(), false, |_| attempt())
    }

    #[cold]
    fn retry_after<R>(
        &self,
        mut err: Error,
        mut attempts: Attempts,
        mut attempt: impl FnMut(LookupFlags) -> Result<R>,
    ) -> Result<R> {
        while attempts.may_differ(&err, self) {
            match attempt(attempts.flags) {
                Err(next) => err = next,
                done => return done,
            }
        }
        Err(err)
    }
}

impl Attempts {
    /// True if another attempt may end differently: prepares it.
    fn may_differ(&mut self, err: &Error, caches: &Caches) -> bool {
        match err {
            Error::Stale if !self.flags.contains(LookupFlags::REVAL) => {
                self.flags |= LookupFlags::REVAL;
                true
            }
            // `Drop` code that uses a `Vfs` comes here while its thread frees: all that can be
            // released is on its way.
            Error::TooManyOpenFiles if !self.has_released && lock::may_sleep() => {
                self.has_released = true;
                caches.release();
                true
            }
            Error::CrossDevice if self.is_contained && !self.has_left_root => {
                self.has_left_root = true;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    /// CALL-1, FRESH-2, WALK-3: each reason for another attempt counts once, in whatever order
    /// they come.
    #[test]
    fn there_are_four_attempts_at_most() {
        let caches = Caches::new(Budget::default(), Default::default());
        let reasons = [Error::Stale, Error::TooManyOpenFiles, Error::CrossDevice];
        for first in 0..3 {
            let (mut attempts, mut with_reval) = (0, 0);
            let end: Result<()> = caches.retry(LookupFlags::FOLLOW, true, |flags| {
                assert!(LookupFlags::REVAL.contains(flags));
                with_reval += usize::from(flags.contains(LookupFlags::REVAL));
                attempts += 1;
                Err(reasons[(first + attempts - 1) % 3].clone())
            });
            // The fourth meets what the first met.
            assert_eq!(attempts, 4, "WALK-3, FRESH-2");
            assert_eq!(end, Err(reasons[first].clone()));
            assert_eq!(
                with_reval,
                3 - (3 - first) % 3,
                "FRESH-2: after Stale alone"
            );
        }
        let count = |flags, is_contained, err: Error| {
            let mut attempts = 0;
            let end: Result<()> = caches.retry(flags, is_contained, |_| {
                attempts += 1;
                Err(err.clone())
            });
            assert_eq!(end, Err(err));
            attempts
        };
        assert_eq!(count(LookupFlags::empty(), false, Error::CrossDevice), 1);
        assert_eq!(count(LookupFlags::empty(), true, Error::CrossDevice), 2);
        assert_eq!(count(LookupFlags::REVAL, false, Error::Stale), 1);
        assert_eq!(count(LookupFlags::empty(), true, Error::NotFound), 1);
    }
}
