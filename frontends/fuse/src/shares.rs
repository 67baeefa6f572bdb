//! Shares of descriptors that a mount may hold, by user.
//!
//! Descriptors belong to the process, and users of the mount hold them: with open files and
//! directories, and with files that have lost their names. If one user held all, other users
//! would get none, nor would the daemon itself, which needs descriptors for lookups. So each
//! kind has a bound, and each user a part of it; root and the daemon's own user, who must be
//! able to clean up after the others, may have more than all other users together.
//!
//! | of the descriptors that the process may have | for                                    |
//! |------|--------------------------------------------------------------------------------|
//! | 3/4  | users' open files, half of it for each user                                    |
//! | 1/16 | more for root and the user who runs the daemon                                 |
//! | 1/8  | files that have lost their last names (`removed.rs`)                           |
//! | 1/16 | the daemon's lookups                                                           |
//!
//! A back end that caches descriptors for speed gives them up when none are left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::process::{Resource, geteuid, getrlimit};

/// Users whose ids agree in the last bits share one bound.
const USERS: usize = 64;

/// Counts of held descriptors, of all users and of each. They guard nothing: relaxed.
pub(crate) struct Shares {
    all: AtomicUsize,
    users: [AtomicUsize; USERS],
    bounds: Bounds,
}

/// Bounds on held descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// For all users together.
    pub(crate) all: usize,
    /// For each user.
    pub(crate) each: usize,
    /// For all users, with root and the daemon's user.
    pub(crate) with_privileged: usize,
}

/// The number of descriptors that this process may have.
pub(crate) fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

impl Shares {
    /// Shares for open files and directories.
    pub(crate) fn of_open() -> Arc<Shares> {
        Shares::new(Bounds::of_open(descriptors()))
    }

    pub(crate) fn new(bounds: Bounds) -> Arc<Shares> {
        Arc::new(Shares {
            all: AtomicUsize::new(0),
            users: [const { AtomicUsize::new(0) }; USERS],
            bounds,
        })
    }

    /// Returns the right to hold one more on behalf of `uid`, or `None` at the bound.
    pub(crate) fn share(self: &Arc<Self>, uid: u32) -> Option<Share> {
        let is_privileged = uid == 0 || uid == geteuid().as_raw();
        self.share_of(uid, is_privileged)
    }

    fn share_of(self: &Arc<Self>, uid: u32, is_privileged: bool) -> Option<Share> {
        let Bounds {
            all,
            each,
            with_privileged,
        } = self.bounds;
        let (each, all) = match is_privileged {
            true => (usize::MAX, with_privileged),
            false => (each, all),
        };
        let user = uid as usize % USERS;
        take(&self.users[user], each)?;
        // If the next `take` fails, dropping this gives the user's share back.
        let mut share = Share {
            of: self.clone(),
            user,
            is_counted: false,
        };
        take(&self.all, all)?;
        share.is_counted = true;
        Some(share)
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        let users: usize = self.users.iter().map(|user| user.load(Relaxed)).sum();
        assert_eq!(users, self.all.load(Relaxed), "all is of a user");
        users
    }
}

impl Bounds {
    fn of_open(descriptors: usize) -> Bounds {
        let all = descriptors / 4 * 3;
        Bounds {
            all,
            each: all / 2,
            with_privileged: all + descriptors / 16,
        }
    }
}

fn take(count: &AtomicUsize, most: usize) -> Option<()> {
    let one_more = |held| (held < most).then_some(held + 1);
    count.fetch_update(Relaxed, Relaxed, one_more).ok()?;
    Some(())
}

/// The right to hold one descriptor.
pub(crate) struct Share {
    of: Arc<Shares>,
    user: usize,
    /// Counted in `all` as well.
    is_counted: bool,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.users[self.user].fetch_sub(1, Relaxed);
        if self.is_counted {
            self.of.all.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MEM-1: a user with many open files leaves others their share, and all of them leave some
    /// to root.
    #[test]
    fn a_user_with_many_open_files_leaves_others_their_share() {
        let shares = Shares::new(Bounds::of_open(64));
        let take = |uid: u32| {
            let one = || shares.share_of(uid, uid == 0);
            let held: Vec<_> = std::iter::from_fn(one).collect();
            held
        };
        let first = take(1);
        assert_eq!(first.len(), 24, "half of what users may have: MEM-1");
        let second = take(2);
        assert_eq!((second.len(), take(3).len()), (24, 0));
        let root = take(0);
        assert_eq!(root.len(), 4, "MEM-1: root's");
        drop(second);
        assert_eq!(take(3).len(), 20, "what was given back");
        drop((first, root));
        assert_eq!(shares.held(), 0);
    }
}
