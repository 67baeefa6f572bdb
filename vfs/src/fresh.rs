//! When the cache is valid: the one place that both walkers ask.
//!
//! A dentry keeps one number with the last answer of the back end. Under
//! [`Freshness::Ttl`] that is a time. Under [`Freshness::Watched`] it is a *stamp*, and
//! the dentry is fresh while the stamp is still what it would get now:
//!
//! ```text
//!  +--------------------------+-------------------------------+
//!  | epoch of the super block | version of the directory      |
//!  +--------------------------+-------------------------------+
//!   63   invalidate_all: + 1     32  31   invalidate_names: + 1         0
//! ```
//!
//! FRESH-1: an answer that is valid under a stamp was asked for after the last invalidation.
//! The stamp is read *before* the back end is asked, and a back end invalidates *after* the
//! change. So one of two things holds of every answer and every change:
//!
//! - The stamp was read before the invalidation. Then the invalidation outdates it, whenever
//!   the answer arrives, and the name is asked for once more.
//! - The invalidation came before the stamp was read. Then the change came before the question,
//!   and the answer knows of it. This is what the Acquire in `stamp` is for: it pairs with the
//!   Release of [`Inode::invalidate_names`] or of `invalidate_all`, so that a thread that sees the
//!   invalidation asks after all changes before it.
//!
//! A second change between a report and its invalidation has a report of its own. Stamps wrap:
//! a name that is not used while its directory is invalidated 2³² times exactly would be valid
//! once more.
//!
//! | cached              | valid under `Watched` while                                     |
//! |---------------------|-----------------------------------------------------------------|
//! | a name              | its directory is watched and its stamp is the current one       |
//! | …and its attributes | the file is a directory that is watched, or has one name only, and its key still refers to it |
//! | a path: the start of a walk, `.`, `..`, a root | the directory is watched, and its epoch is the current one |
//!
//! Under `Ttl`, a revalidation of a directory by itself, and not by its name, makes a path that
//! ends in it valid for one more period: a process that keeps a directory open and works in it
//! does not ask each time. The directory's inode has that time, in place of the version.
//!
//! A file with two names changes through either, and only one of the two directories hears of
//! it: so its names are asked for at each use. So are those of an inode that the back end has
//! taken out of the cache ([`SuperBlock::unhash`]): reports about its file reach the inode that
//! comes after it. A directory that is not watched has the version 0, and a file system without
//! reports has the epoch 0 ([`SuperBlock::stop_watching`]): nothing is fresh under either.

use rcuwalk_sync::atomic::{Acquire, Relaxed, Release};
use rcuwalk_sync::{RcuGuard, Shared, clock};

use crate::announce::Announcement;
use crate::attr::FileType;
use crate::dentry::{Dentry, Validity};
use crate::filesystem::Freshness;
use crate::super_block::SuperBlock;
use crate::vfs_inode::{Inode, InodeRef};

/// The first epoch. Never 0, so that the stamp 0 stands for an answer of no moment.
pub(crate) const FIRST_EPOCH: u32 = 1;

/// The epoch of a file system that hears of no changes any more.
const NO_EPOCH: u32 = 0;

/// The stamp that is never fresh: for a name that the back end has not confirmed in its place.
pub(crate) const NEVER: u64 = 0;

impl SuperBlock {
    /// How long an answer of the back end about a name in `dir` is valid, or one about the
    /// root. Take it before asking the back end (FRESH-1): the answer may be older than its
    /// arrival.
    pub(crate) fn validity(&self, dir: Option<&Inode>) -> Validity {
        match self.freshness {
            Freshness::Always => Validity {
                revalidate: false,
                until: u64::MAX,
            },
            Freshness::EachUse => Validity {
                revalidate: true,
                until: NEVER,
            },
            Freshness::Ttl(ttl) => {
                let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                Validity {
                    revalidate: true,
                    until: clock::millis().saturating_add(ttl),
                }
            }
            Freshness::Watched => Validity {
                revalidate: true,
                until: self.stamp(dir.map_or(0, Inode::names_version)),
            },
        }
    }

    /// Whether the cache is still valid for the name `dentry`, with the inode's attributes. For
    /// a dentry with the flag `REVALIDATE`.
    pub(crate) fn is_name_fresh(&self, dentry: &Dentry, guard: &RcuGuard) -> bool {
        match self.freshness {
            Freshness::Always => true,
            Freshness::EachUse => false,
            Freshness::Ttl(_) => clock::is_to_come(dentry.valid_until()),
            Freshness::Watched => {
                let dir = dentry.parent(guard).and_then(|dir| dir.inode(guard));
                let version = dir.map_or(0, |dir| dir.names_version());
                let now = self.stamp(version);
                version != 0
                    && epoch(now) != NO_EPOCH
                    && dentry.valid_until() == now
                    && dentry.inode(guard).is_none_or(is_watched)
            }
        }
    }

    /// Whether a listing with that [validity](Self::validity) may still answer: it is what the back
    /// end would list, or was so within the time to live.
    pub(crate) fn is_listing_fresh(&self, dir: &Inode, until: u64) -> bool {
        match self.freshness {
            Freshness::Always => true,
            Freshness::EachUse => false,
            Freshness::Ttl(_) => clock::is_to_come(until),
            Freshness::Watched => {
                let version = dir.names_version();
                let now = self.stamp(version);
                version != 0 && epoch(now) != NO_EPOCH && until == now
            }
        }
    }

    /// Whether the back end's [version](crate::FileSystem::listing_version) of a directory tells if a
    /// cached listing is right, since no changes are told.
    pub(crate) fn lists_by_version(&self) -> bool {
        matches!(self.freshness, Freshness::EachUse | Freshness::Ttl(_))
    }

    /// Whether the cached attributes of a path are still valid, whatever its name refers to
    /// now.
    pub(crate) fn is_place_fresh(&self, dentry: &Dentry, guard: &RcuGuard) -> bool {
        let dir = dentry.inode(guard);
        match (self.freshness, dir) {
            (Freshness::Watched, Some(dir)) if dir.kind() == FileType::Directory => {
                let now = epoch(self.stamp(0));
                is_watched(dir) && now != NO_EPOCH && epoch(dentry.valid_until()) == now
            }
            (Freshness::Ttl(_), Some(dir)) if dir.kind() == FileType::Directory => {
                clock::is_to_come(dentry.valid_until())
                    || clock::is_to_come(in_full(dir.path_valid_until()))
            }
            _ => self.is_name_fresh(dentry, guard),
        }
    }

    /// Records that the attributes of a directory have been asked for, by itself and not by its
    /// name, with that [`validity`](Self::validity). A name is valid by the stamp or time of
    /// its parent's answer, and the parent has not been asked: only a dentry without a parent,
    /// such as a root, has a time of its own.
    pub(crate) fn place_is_fresh(&self, dentry: &Dentry, dir: &Inode, validity: Validity) {
        if dentry.has_no_parent() {
            dentry.set_valid_until(validity.until);
        } else if matches!(self.freshness, Freshness::Ttl(_)) && dir.kind() == FileType::Directory {
            dir.set_path_valid_until(coarse(validity.until));
        }
    }

    /// Makes all names of `dir` stale, found or missing: each is revalidated when it is next
    /// used. For a back end of [`Freshness::Watched`] that has been told of a change in the
    /// directory, and calls this after that change. Takes no lock and never blocks.
    #[doc(alias("inode_inc_iversion", "change attribute"))]
    pub fn invalidate_names(&self, dir: &Inode) {
        if self.freshness == Freshness::Watched {
            dir.invalidate_names();
        }
    }

    /// Makes every name and attribute of this file system stale: for a back end of
    /// [`Freshness::Watched`] that may have missed changes. Takes no lock and never blocks. The
    /// [listener](crate::Listener) is told.
    pub fn invalidate_all(&self) {
        // Release: pairs with the Acquire in `stamp` (FRESH-1).
        let mut epoch = self.epoch.load(Relaxed);
        while epoch != NO_EPOCH {
            let next = epoch.checked_add(1).unwrap_or(FIRST_EPOCH);
            match self.epoch.compare_exchange(epoch, next, Release, Relaxed) {
                Ok(_) => return self.announce(&Announcement::Everything),
                Err(now) => epoch = now,
            }
        }
    }

    /// Makes everything stale from now on, as under [`Freshness::EachUse`]: for a back end of
    /// [`Freshness::Watched`] that gets no more reports of changes. Takes no lock and never
    /// blocks.
    pub fn stop_watching(&self) {
        // Release: as in `invalidate_all`.
        self.epoch.store(NO_EPOCH, Release);
        self.announce(&Announcement::Everything);
    }

    /// True until [`stop_watching`](Self::stop_watching).
    pub(crate) fn is_hearing(&self) -> bool {
        // Relaxed: the listener is told of the end after it.
        self.epoch.load(Relaxed) != NO_EPOCH
    }

    fn stamp(&self, version: u32) -> u64 {
        // Acquire: pairs with the Release in `invalidate_all`; a thread that sees an epoch asks the
        // back end after the changes that began it (FRESH-1).
        u64::from(self.epoch.load(Acquire)) << 32 | u64::from(version)
    }
}

/// A time in 32 bits, rounded down. What runs for longer than the two years that they have
/// room for asks at each use.
fn coarse(millis: u64) -> u32 {
    u32::try_from(millis / 16).unwrap_or(u32::MAX)
}

fn in_full(coarse: u32) -> u64 {
    u64::from(coarse) * 16
}

/// The upper half of a stamp.
fn epoch(stamp: u64) -> u32 {
    (stamp >> 32) as u32
}

/// Like [`is_watched`], for an inode that is held.
pub(crate) fn is_watched_held(inode: &InodeRef) -> bool {
    match inode.kind() {
        FileType::Directory => inode.names_version() != 0,
        _ => inode.nlink() <= 1 && inode.is_hashed(),
    }
}

/// Whether a change of these attributes is sure to be reported.
fn is_watched(inode: &Shared<Inode>) -> bool {
    match inode.kind() {
        FileType::Directory => inode.names_version() != 0,
        _ => inode.nlink() <= 1 && inode.is_hashed(),
    }
}
