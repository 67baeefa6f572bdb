//! Files that have lost their last name while the kernel knows them.
//!
//! HOLD-1: what the kernel has been told by LOOKUP can be opened until the kernel forgets it, also
//! if somebody removes or replaces its name through the mount meanwhile. On a local file system
//! open(2) holds the inode that it has found; here the kernel holds a node id, and a back end may
//! have nothing but a name to open the file by. So UNLINK and RENAME open the place of what they
//! take away before they do it, and the node keeps it open if it is left without a name.
//!
//! A LOOKUP may find the file while its name is being taken away, and tell the kernel afterwards:
//!
//! ```text
//!   LOOKUP                          UNLINK, RENAME
//!   finds the file by its name      opens the place
//!   makes the node known            takes the name away
//!   fence                           fence
//!   is the name still there?        is the node known?
//! ```
//!
//! Of the two questions one is answered with what the other thread has done. LOOKUP then asks
//! again, or the node keeps the file open.
//!
//! A descriptor goes back when the kernel forgets the node: mostly at once, since a kernel keeps no
//! inode without names that nobody uses. How many there may be is bounded, for each user as well;
//! beyond that a file without a name is opened only while it is open otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rcuwalk::File;
use rustix::process::{Resource, getrlimit};

/// Users whose numbers agree in the last bits share what one of them may hold.
const USERS: usize = 64;

/// How many files are held, by all and by each user. The counts guard nothing: relaxed.
pub(crate) struct Removed {
    all: AtomicUsize,
    users: [AtomicUsize; USERS],
    most: usize,
}

impl Removed {
    /// An eighth of the descriptors that the process may have.
    pub(crate) fn of_process() -> Arc<Removed> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Removed::at_most(usize::try_from(limit / 8).unwrap_or(usize::MAX))
    }

    fn at_most(most: usize) -> Arc<Removed> {
        Arc::new(Removed {
            all: AtomicUsize::new(0),
            users: [const { AtomicUsize::new(0) }; USERS],
            most,
        })
    }

    /// The right to hold one more on behalf of `uid`, who may take a quarter of all.
    pub(crate) fn share(self: &Arc<Self>, uid: u32) -> Option<Share> {
        let user = uid as usize % USERS;
        take(&self.users[user], self.most.div_ceil(4))?;
        // Dropped, the share of the user is given back.
        let mut share = Share {
            of: self.clone(),
            user,
            is_counted: false,
        };
        take(&self.all, self.most)?;
        share.is_counted = true;
        Some(share)
    }
}

fn take(count: &AtomicUsize, most: usize) -> Option<()> {
    let one_more = |held| (held < most).then_some(held + 1);
    count.fetch_update(Relaxed, Relaxed, one_more).ok()?;
    Some(())
}

/// One file of those that may be held.
pub(crate) struct Share {
    of: Arc<Removed>,
    user: usize,
    /// Among all.
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

/// A file that is about to lose a name, open as a place.
pub(crate) struct HeldFile {
    pub(crate) file: File,
    pub(crate) _share: Share,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HOLD-1: a user who removes many files leaves others their share.
    #[test]
    fn a_user_who_removes_many_files_leaves_others_their_share() {
        let removed = Removed::at_most(8);
        let mut first: Vec<_> = (0..10).filter_map(|_| removed.share(1)).collect();
        assert_eq!(first.len(), 2, "a quarter");
        let others: Vec<_> = (2..9).filter_map(|uid| removed.share(uid)).collect();
        assert_eq!(others.len(), 6, "all there are");
        assert!(removed.share(9).is_none());
        first.pop();
        assert!(removed.share(9).is_some(), "what was given back");
        drop((first, others));
        assert_eq!(removed.all.load(Relaxed), 0);
        assert!(removed.users.iter().all(|user| user.load(Relaxed) == 0));
    }
}
