//! Keeping the dentry cache within its share of the budget (MEM-1).
//!
//! The thread that adds a name reclaims, as [`Share`] says: it scans a few dentries from the tail
//! of the lists. A dentry in use (open, current, a mount point, or a directory with cached
//! children) is on no list for longer than one scan, and its last put lists it again (LRU-1); one
//! used since the last scan gets a second chance; all others are evicted. The reference to the
//! directory goes, and the inode goes with its last name.

use rcuwalk_sync::atomic::Relaxed;
use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{Flag, List, LruStatus, Ref, Shared, rcu};

use super::{Dcache, Dentry, DentryRef, Flags};
use crate::budget::{BATCH, Share};
use crate::vfs_inode::InodeRef;

/// A dentry's list.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Missing names: see `age.rs`. They go first.
    Missing,
    Found,
}

impl Kind {
    pub(super) const NUMBER: usize = 2;

    pub(super) fn number_of(dentry: &Dentry) -> usize {
        let kind = match dentry.flags().is_negative() {
            true => Kind::Missing,
            false => Kind::Found,
        };
        kind as usize
    }
}

/// Which unused dentries are to go.
#[derive(Clone, Copy)]
enum Want<'a> {
    /// Enough to bring this share of the budget within its limit. With `second_chances`, dentries
    /// that were used since the last scan stay.
    Room {
        share: &'a Share,
        second_chances: bool,
    },
    /// These, and no others.
    These(&'a dyn Fn(&Dentry) -> bool),
}

impl Dcache {
    /// The dentry has become positive or negative, so it belongs on the other list. This takes it
    /// off its list; the caller's put, or a later one, lists it again.
    pub(super) fn relist(&self, dentry: &DentryRef) {
        if dentry.flags().is_negative() {
            self.begin_age(dentry);
        }
        drop(self.unlist(dentry));
        // Counts like an addition: otherwise removals alone could fill the cache with missing
        // names.
        let is_time = self.share.charge(0);
        self.share.uncharge(1, 0);
        if is_time {
            self.reclaim();
        }
    }

    /// Takes a dentry off the list that it is on.
    pub(super) fn unlist(&self, dentry: &Shared<Dentry>) -> Option<DentryRef> {
        self.table.lru().remove(dentry)
    }

    pub(super) fn list(&self, kind: Kind) -> List<'_, Dentry> {
        self.table.lru().kind(kind as usize)
    }

    /// Missing names first.
    fn lists(&self) -> [List<'_, Dentry>; 2] {
        [Kind::Missing, Kind::Found].map(|kind| self.list(kind))
    }

    /// Called after every few additions.
    #[cold]
    pub(super) fn reclaim(&self) {
        self.age_missing();
        if self.share.is_over() {
            self.make_room(&self.share);
        }
    }

    /// Evicts unused names until `share` is within its budget: the names' own, or that of the
    /// inodes which names hold.
    #[cold]
    pub(crate) fn make_room(&self, share: &Share) {
        let is_done = || !share.is_over();
        Share::make_room(&self.lists(), is_done, |list, shard, at_once| {
            let want = Want::Room {
                share,
                second_chances: !at_once,
            };
            let scanned = self.prune_shard(list, shard, BATCH, want).0;
            if std::ptr::eq(share, self.icache.share()) {
                // Inodes that were asked for by their keys do not go with their last names.
                self.icache.prune(BATCH);
            }
            scanned
        });
    }

    /// Drops every unused name, and then its directory if that is unused, and so on up.
    #[doc(alias = "shrink_dcache_sb")]
    pub(crate) fn drop_unused(&self) -> usize {
        self.drop_matching(|_| true)
    }

    /// Drops every unused name of one super block.
    pub(crate) fn drop_super_block(&self, sb: u32) -> usize {
        self.drop_matching(|dentry| dentry.sb() == sb)
    }

    /// Drops the unused dentries among the `most` that were scanned longest ago.
    pub(crate) fn prune(&self, most: usize) {
        for list in self.lists() {
            for shard in 0..list.shards() {
                let part = list.part_of(most, shard);
                self.prune_shard(&list, shard, part, Want::These(&|_| true));
            }
        }
    }

    /// One pass, whatever other threads add meanwhile. A directory goes with the last name in it.
    fn drop_matching(&self, wanted: impl Fn(&Dentry) -> bool) -> usize {
        let mut gone = 0;
        for list in self.lists() {
            for shard in 0..list.shards() {
                let want = Want::These(&wanted);
                gone += self.prune_shard(&list, shard, usize::MAX, want).1;
            }
        }
        gone
    }

    /// How many dentries have been scanned so far.
    pub(crate) fn scanned(&self) -> u64 {
        self.table.lru().scanned() as u64
    }

    /// Scans a shard and evicts unused dentries. Returns how many it has scanned, and how many
    /// are gone.
    fn prune_shard(
        &self,
        list: &List<'_, Dentry>,
        shard: usize,
        most: usize,
        want: Want<'_>,
    ) -> (usize, usize) {
        // Dentries that enter meanwhile are for other threads to scan.
        let mut left = most.min(list.len_of(shard));
        let (mut all_scanned, mut all_gone) = (0, 0);
        // In batches, also when everything is dropped: the puts of other threads wait for the
        // shard, and lookups for the inodes that have been killed.
        while left > 0 {
            let batch = left.min(BATCH);
            let mut gone = Vec::new();
            let scanned = self.scan(list, shard, batch, &mut gone, want);
            all_scanned += scanned;
            all_gone += self.evict(gone, |above| match want {
                Want::Room { share, .. } => share.is_over(),
                Want::These(wanted) => wanted(above),
            });
            if scanned < batch {
                break;
            }
            left -= batch;
        }
        (all_scanned, all_gone)
    }

    fn scan(
        &self,
        list: &List<'_, Dentry>,
        shard: usize,
        most: usize,
        gone: &mut Vec<DentryRef>,
        want: Want<'_>,
    ) -> usize {
        let (mut objects, mut extra) = match want {
            Want::Room { share, .. } => share.size(),
            Want::These(_) => (0, 0),
        };
        list.scan(shard, most, gone, |dentry| {
            match want {
                Want::These(wanted) if wanted(dentry) => {}
                Want::These(_) => return LruStatus::Rotate,
                Want::Room {
                    share,
                    second_chances,
                } => {
                    if !share.is_too_much(objects, extra) {
                        return LruStatus::Stop;
                    }
                    if second_chances && !dentry.age() && !is_out_of_reach(dentry) {
                        return LruStatus::Rotate;
                    }
                    objects = objects.saturating_sub(1);
                    extra = extra.saturating_sub(dentry.extra_bytes());
                }
            }
            LruStatus::Kill
        })
    }

    /// Evicts killed dentries that are off their list, with the directories above them that are
    /// unused then, as long as `goes_too` says so. Returns how many are gone.
    pub(super) fn evict(&self, gone: Vec<DentryRef>, goes_too: impl Fn(&Dentry) -> bool) -> usize {
        if gone.is_empty() {
            return 0;
        }
        let mut inodes = Vec::with_capacity(gone.len());
        let above: usize = gone
            .iter()
            .map(|dentry| self.kill(dentry, &goes_too, &mut inodes))
            .sum();
        let gone = gone.len() + above;
        self.icache.put_with_names(inodes.into_iter());
        self.evicted.0.fetch_add(gone as u64, Relaxed);
        gone
    }

    /// Drops a reference. If it is the last one to a dentry that no walk finds, drops the
    /// dentry's own references now, and not only when it is freed: a file without a name goes
    /// when it is closed.
    #[doc(alias("retain_dentry", "dput"))]
    #[inline]
    pub(crate) fn put(&self, dentry: DentryRef) {
        // Decided by the count alone, in the step that drops it: a thread that first checked
        // whether the name is still hashed would miss that it leaves before the drop. A hashed
        // dentry has the cache's references beside this one.
        if let Some(last) = Ref::put_unless_last(dentry, Flag::NONE) {
            self.put_last(last);
        }
    }

    #[cold]
    fn put_last(&self, dentry: DentryRef) {
        if rcu::in_read_section() {
            // An RCU-walk that gives up a reference. It may take no lock, so the dentry's own
            // references go when it is freed.
            return;
        }
        let mut left = Some(dentry);
        while let Some(last) = left {
            let above = if last.kill_if_count_is(1) {
                self.detach(&last).0
            } else {
                // A concurrent walk has got a reference: try again.
                Some(last)
            };
            left = above.and_then(|dentry| Ref::put_unless_last(dentry, Flag::NONE));
        }
    }

    /// Detaches a killed dentry, and kills the directories above that are unused now that it is
    /// gone, as long as `goes_too` says so. Returns how many.
    ///
    /// A deep tree has few leaves, so looking for them one at a time would find
    /// fewer than come.
    #[doc(alias = "shrink_kill")]
    fn kill(
        &self,
        dentry: &DentryRef,
        goes_too: impl Fn(&Dentry) -> bool,
        inodes: &mut Vec<InodeRef>,
    ) -> usize {
        let mut above = 0;
        let (mut parent, inode) = self.detach(dentry);
        inodes.extend(inode);
        while let Some(dentry) = parent {
            // This thread has the only reference. A root is not hashed, so it stays.
            let goes = dentry.users() == 1 && goes_too(&dentry) && dentry.kill_if_users_are(1);
            if !goes {
                self.put(dentry);
                break;
            }
            drop(self.unlist(&dentry));
            above += 1;
            let inode;
            (parent, inode) = self.detach(&dentry);
            inodes.extend(inode);
        }
        above
    }

    /// Takes a killed dentry off its chain. Returns its parent and its inode. Readers that stand
    /// on it see by its count that it is dead.
    #[doc(alias("__dentry_kill", "dentry_unlink_inode"))]
    fn detach(&self, dentry: &DentryRef) -> (Option<DentryRef>, Option<InodeRef>) {
        let (parent, inode, off);
        {
            let locked = dentry.lock(Rank::Dentry);
            off = self.unhash(&locked);
            let flags = locked.flags() | Flags::UNHASHED;
            let mut section = locked.seq.write();
            parent = locked.parent.swap(None);
            inode = locked.inode.swap(None).map(InodeRef::new);
            section.set_payload((flags - Flags::OF_INODE).bits());
        }
        drop(off);
        (parent, inode)
    }
}

/// A directory without a name, or a name in one: no walk finds it any more.
fn is_out_of_reach(dentry: &Shared<Dentry>) -> bool {
    let guard = rcu::read_lock();
    let has_no_name = |dentry: &Shared<Dentry>| dentry.flags().contains(Flags::UNHASHED);
    has_no_name(dentry) || dentry.parent(&guard).is_some_and(has_no_name)
}
