//! Files that have lost their last name while the kernel knows them.
//!
//! HOLD-1: a file that the kernel has been told of by LOOKUP can be opened until the kernel
//! forgets it, also if its name is removed or replaced through the mount meanwhile. On a local
//! file system open(2) holds the inode that it has found; here the kernel holds a node id, and
//! a back end may have nothing but a name to open the file by. So UNLINK and RENAME open the
//! victim's place first, and the node keeps it open if it is left without a name.
//!
//! A LOOKUP may find the file while its name is being removed, and tell the kernel afterwards:
//!
//! ```text
//!   LOOKUP                          UNLINK, RENAME
//!   finds the file by its name      opens the place
//!   makes the node known            removes the name
//!   fence                           fence
//!   is the name still there?        is the node known?
//! ```
//!
//! At least one of the two threads sees the other's change. Either LOOKUP tries again, or the
//! node keeps the file open.
//!
//! A descriptor is closed when the kernel forgets the node: mostly at once, since a kernel
//! keeps no unused inode without names. Their number is bounded, for each user as well; beyond
//! that a file without a name can be opened only while it is already open.

use std::sync::Arc;

use rcuwalk::File;

use crate::shares::{self, Bounds, Share, Shares};

/// Shares of an eighth of the process's descriptors; a quarter of these for each user.
pub(crate) fn shares() -> Arc<Shares> {
    at_most(shares::descriptors() / 8)
}

fn at_most(most: usize) -> Arc<Shares> {
    Shares::new(Bounds {
        all: most,
        each: most.div_ceil(4),
        with_privileged: most,
    })
}

/// A file that is about to lose a name, open as a place.
pub(crate) struct HeldFile {
    pub(crate) file: File,
    pub(crate) _share: Share,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HOLD-1: many removals by one user leave other users their share.
    #[test]
    fn a_user_who_removes_many_files_leaves_others_their_share() {
        let removed = at_most(8);
        let mut first: Vec<_> = (0..10).filter_map(|_| removed.share(1)).collect();
        assert_eq!(first.len(), 2, "a quarter");
        let others: Vec<_> = (2..9).filter_map(|uid| removed.share(uid)).collect();
        assert_eq!(others.len(), 6, "all there are");
        assert!(removed.share(9).is_none());
        first.pop();
        assert!(removed.share(9).is_some(), "what was given back");
        drop((first, others));
        assert_eq!(removed.held(), 0);
    }
}
