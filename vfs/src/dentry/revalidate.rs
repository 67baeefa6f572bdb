//! Whether a cached name is still valid: the one decision of walks with references and of
//! changes.
//!
//! An RCU-walk never asks the back end. It uses a name that
//! [is fresh](SuperBlock::is_name_fresh), and leaves every other one to this decision.
//!
//! FRESH-2: an answer of the back end applies to a dentry only if the dentry still is what
//! the question was about. Between question and answer another thread may drop the dentry,
//! move it to another name, give it an inode or invalidate it. So the dentry's lock is taken
//! after the answer, and the dentry is compared with a snapshot from before the question:
//!
//! - "Yes" makes the dentry valid if directory, name and inode are the same. It clears
//!   `INVALIDATED` only if the sequence count is the same, too: each invalidation changes it,
//!   and the answer may be older than the second of two.
//! - "No" drops the dentry, under the same condition. The directory is locked for that, at
//!   least shared: then no rename is halfway, known to the back end and not to the cache, and
//!   the dentry that it is about to move stays hashed.
//! - Otherwise the dentry is [gone](Checked::Gone): the caller looks the name up once more.
//!
//! A dentry that has lost its name is never valid, whoever dropped it.

use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{Seq, rcu};

use super::{Dentry, DentryRef, Flags, NameHash};
use crate::error::Result;
use crate::super_block::SuperBlock;
use crate::vfs_inode::InodeRef;

/// The result of the check of a cached name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// The name still refers to the dentry's inode, or is still missing.
    Valid,
    /// The back end says otherwise, and the dentry is off the hash table.
    Dropped,
    /// Another thread has dropped the dentry, moved it or given it an inode: the caller looks
    /// the name up again.
    Gone,
}

/// When the back end is asked about a name that no one has invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// When the file system's [`Freshness`](crate::Freshness) says so.
    IfStale,
    /// Always, unless the cache is the only source of changes.
    #[doc(alias = "LOOKUP_REVAL")]
    Always,
}

/// A dentry that the caller has found as `name` in `dir`.
pub(crate) struct CachedName<'a> {
    pub(crate) sb: &'a SuperBlock,
    pub(crate) dir: &'a DentryRef,
    pub(crate) dir_inode: &'a InodeRef,
    pub(crate) name: NameHash<'a>,
    pub(crate) dentry: &'a DentryRef,
}

/// The dentry before the question.
struct Before {
    seq: Seq,
    inode: Option<InodeRef>,
}

impl CachedName<'_> {
    /// Decides for a caller that holds no lock.
    #[doc(alias = "d_revalidate")]
    pub(crate) fn check(&self, ask: Ask) -> Result<Checked> {
        if !self.is_stale(ask) {
            return Ok(self.unasked());
        }
        if self.dentry.flags().contains(Flags::INVALIDATED) {
            // A lookup, which needs the directory's lock.
            let _shared = self.dir_inode.rwsem().read();
            return self.check_locked(ask);
        }
        let Some(before) = self.snapshot() else {
            return Ok(Checked::Gone);
        };
        if let Some(checked) = self.ask(&before, false)? {
            return Ok(checked);
        }
        let _shared = self.dir_inode.rwsem().read();
        // Unchanged since before the question, also by a rename that has just ended.
        match self.dentry.seq.read_retry(before.seq) {
            false => Ok(self.drop_outdated(&before)),
            true => self.check_locked(ask),
        }
    }

    /// Decides for a caller that has locked the directory, shared or exclusively.
    #[doc(alias = "d_invalidate")]
    pub(crate) fn check_locked(&self, ask: Ask) -> Result<Checked> {
        if !self.is_stale(ask) {
            return Ok(self.unasked());
        }
        let Some(before) = self.snapshot() else {
            return Ok(Checked::Gone);
        };
        let invalidated = Flags::of(before.seq).contains(Flags::INVALIDATED);
        let checked = self.ask(&before, invalidated)?;
        Ok(checked.unwrap_or_else(|| self.drop_outdated(&before)))
    }

    /// True if the back end must be asked.
    pub(crate) fn is_stale(&self, ask: Ask) -> bool {
        let flags = self.dentry.flags();
        // A mount point stays as long as the mount does.
        if flags.intersects(Flags::MOUNTPOINT | Flags::UNHASHED) {
            return false;
        }
        let expired =
            || ask == Ask::Always || !self.sb.is_name_fresh(self.dentry, &rcu::read_lock());
        flags.contains(Flags::INVALIDATED) || flags.contains(Flags::REVALIDATE) && expired()
    }

    /// The dentry is fresh, where it is now: a splice may have moved it to a name that was
    /// asked about after this one.
    fn unasked(&self) -> Checked {
        match self.is_here(self.dentry) {
            true => Checked::Valid,
            false => Checked::Gone,
        }
    }

    fn snapshot(&self) -> Option<Before> {
        let locked = self.dentry.lock(Rank::Dentry);
        self.is_here(&locked).then(|| Before {
            seq: locked.seq.sample(),
            inode: locked.inode_ref(),
        })
    }

    /// Asks the back end; `None` if the name now refers to another file. An invalidated name is
    /// looked up: the caller has locked the directory for that.
    fn ask(&self, before: &Before, look_up: bool) -> Result<Option<Checked>> {
        let (sb, name) = (self.sb, self.name.name);
        // Taken before asking: the answer may be older than its arrival (FRESH-1).
        let validity = sb.validity(Some(self.dir_inode));
        let same = if look_up {
            sb.caches.counters.get().slow_lookup();
            let now = sb.fs().lookup(sb, self.dir_inode, name)?;
            match (&now, &before.inode) {
                (Some(now), Some(cached)) => InodeRef::ptr_eq(now, cached),
                (now, cached) => now.is_none() && cached.is_none(),
            }
        } else {
            sb.caches.counters.get().revalidation();
            let inode = before.inode.as_ref();
            // The next lookup does not find an inode that has left the cache.
            let is_cached = inode.is_none_or(InodeRef::is_hashed);
            is_cached
                && sb
                    .fs()
                    .revalidate(sb, self.dir_inode, name, inode.map(|i| &**i))?
        };
        Ok(same.then(|| self.confirm(before, validity.until)))
    }

    fn confirm(&self, before: &Before, until: u64) -> Checked {
        let locked = self.dentry.lock(Rank::Dentry);
        if !self.is_as_before(&locked, before) {
            return Checked::Gone;
        }
        locked.set_valid_until(until);
        let flags = locked.flags();
        let asked_for = Flags::of(before.seq).contains(Flags::INVALIDATED);
        if asked_for && !locked.seq.read_retry(before.seq) {
            let flags = flags - Flags::INVALIDATED;
            locked.seq.write().set_payload(flags.bits());
        }
        Checked::Valid
    }

    /// The back end has said that the name refers to another file. The caller has locked the
    /// directory.
    fn drop_outdated(&self, before: &Before) -> Checked {
        if let Some(listing) = self.dir_inode.listing() {
            listing.forget();
        }
        let dcache = &self.sb.caches.dcache;
        let is_it = |locked: &Dentry| self.is_as_before(locked, before);
        match &before.inode {
            Some(inode) => dcache.park_if(self.dentry, inode, is_it),
            None => dcache.d_drop_if(self.dentry, is_it),
        }
    }

    /// The caller holds the dentry's lock.
    fn is_as_before(&self, locked: &Dentry, before: &Before) -> bool {
        let guard = rcu::read_lock();
        let is = locked.inode(&guard).map(|inode| inode.address());
        let was = before.inode.as_ref().map(|inode| inode.shared().address());
        is == was && self.is_here(locked)
    }

    /// The caller holds the dentry's lock, or is told by chance where it is under way.
    fn is_here(&self, locked: &Dentry) -> bool {
        let guard = rcu::read_lock();
        !locked.flags().contains(Flags::UNHASHED)
            && locked.is_named(self.dir.address(), &self.name, &guard)
    }
}
