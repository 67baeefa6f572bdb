//! Keeping the dentry cache within its share of the budget (MEM-1).
//!
//! The thread that adds a name reclaims, as [`Share`](crate::budget::Share) says: it scans a
//! few dentries from the tail. A dentry in use (a count above the cache's own two: open,
//! current, a mount point, or a directory with cached children) stays; one used since the last
//! scan gets a second chance; all others are evicted, and drop their references to parent and
//! inode.

use rcuwalk_sync::atomic::Relaxed;
use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{Flag, HashKey, Lru, Ref, Shared, Verdict, rcu};

use super::{Dcache, Dentry, DentryRef, Flags};
use crate::budget::Need;
use crate::inode::InodeRefOf;

/// References to a dentry that only the cache has: the hash table's and the list's.
pub(super) const CACHED: u32 = 2;

/// No dentry has it.
const UNUSED: Flag = Flag::new(1);

impl Dcache {
    /// Puts a new dentry on its list, and reclaims if the cache is now over its budget. Missing
    /// names have a list of their own, see `age.rs`.
    pub(super) fn add_to_lru(&self, dentry: DentryRef) {
        let list = match dentry.flags().is_negative() {
            true => {
                self.begin_age(&dentry);
                &self.missing
            }
            false => &self.lru,
        };
        let mut look = list.insert(dentry.clone());
        // Another thread may have dropped it meanwhile, too early to take it off the list. Or it
        // files it elsewhere (DENTRY-5): it is off the table for a moment, and back before this
        // thread takes it off the list. That thread lists it after filing it, but in vain if it
        // is still listed then. Both marks are in one word: in that case this thread finds it
        // hashed after clearing the list's mark, and lists it again.
        while !dentry.is_hashed() {
            match list.take_if(&dentry, || !dentry.is_hashed()) {
                Some(left) if dentry.is_hashed() => look |= list.insert(left),
                _ => break,
            }
        }
        if look {
            self.age_missing();
            if self.is_over() {
                self.make_room();
            }
        }
    }

    /// Takes a dentry off the list that it is on.
    pub(super) fn unlist(&self, dentry: &Shared<Dentry>) -> Option<DentryRef> {
        let listed = self.lru.remove(dentry);
        listed.or_else(|| self.missing.remove(dentry))
    }

    /// A name has been given to something, or is missing now: it moves to the other list.
    pub(super) fn relist(&self, dentry: &Shared<Dentry>) {
        if let Some(listed) = self.unlist(dentry) {
            self.add_to_lru(listed);
        }
    }

    /// Missing names first.
    fn lists(&self) -> [&Lru<Dentry>; 2] {
        [&self.missing, &self.lru]
    }

    /// Dentries on the lists, and the bytes beside them.
    pub(super) fn listed(&self) -> (usize, usize) {
        let [missing, found] = self.lists().map(Lru::size);
        (missing.0 + found.0, missing.1 + found.1)
    }

    fn is_over(&self) -> bool {
        let (dentries, extra) = self.listed();
        self.share.is_over(dentries, extra)
    }

    #[cold]
    fn make_room(&self) {
        self.share.make_room(&self.lists(), |list, shard, most| {
            self.prune_shard(list, shard, most, Verdict::Stop, |_| false);
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
    pub(crate) fn prune(&self, most: usize) -> usize {
        let part = |list: &Lru<Dentry>| {
            let shards = 0..list.shards();
            let part = |shard| list.part_of(most, shard);
            shards
                .map(|shard| self.prune_shard(list, shard, part(shard), Verdict::Rotate, |_| true))
                .sum::<usize>()
        };
        self.lists().into_iter().map(part).sum()
    }

    fn drop_matching(&self, at_once: impl Fn(&Dentry) -> bool) -> usize {
        let mut total = 0;
        loop {
            // A round frees leaves; their parents may be leaves in the next.
            let all_of = |list: &Lru<Dentry>| {
                (0..list.shards())
                    .map(|shard| {
                        self.prune_shard(list, shard, usize::MAX, Verdict::Rotate, &at_once)
                    })
                    .sum::<usize>()
            };
            let gone: usize = self.lists().into_iter().map(all_of).sum();
            total += gone;
            if gone == 0 {
                return total;
            }
        }
    }

    /// Scans a shard and evicts unused dentries: those that match `at_once`, and others while
    /// the cache is over its budget. Once it is not, returns `otherwise` for them: `Stop` when
    /// reclaiming, `Rotate` when searching.
    fn prune_shard(
        &self,
        list: &Lru<Dentry>,
        shard: usize,
        most: usize,
        otherwise: Verdict,
        at_once: impl Fn(&Dentry) -> bool,
    ) -> usize {
        let (mut dentries, mut extra) = self.listed();
        let gone = list.scan(shard, most, |dentry| {
            if dentry.count() != CACHED {
                return Verdict::Rotate;
            }
            if !at_once(dentry) {
                let used = || !dentry.age() && !is_out_of_reach(dentry);
                match self.share.need(dentries, extra) {
                    Need::Nothing => return otherwise,
                    Need::Room if used() => return Verdict::Rotate,
                    Need::Room | Need::RoomAtOnce => {}
                }
            }
            // Off the table, a reference is someone else's.
            if !dentry.kill_hashed_if_count_is(CACHED) {
                return Verdict::Rotate;
            }
            // The list may have grown since it was asked for its size.
            dentries = dentries.saturating_sub(1);
            extra = extra.saturating_sub(dentry.extra_bytes());
            Verdict::Take
        });
        let above: usize = gone.iter().map(|dentry| self.kill(dentry)).sum();
        let gone = gone.len() + above;
        self.evicted.fetch_add(gone as u64, Relaxed);
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
        if let Some(last) = Ref::put_unless_last(dentry, 0, UNUSED) {
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
                self.detach(&last)
            } else {
                // A concurrent walk has got a reference: try again.
                Some(last)
            };
            left = above.and_then(|dentry| Ref::put_unless_last(dentry, 0, UNUSED));
        }
    }

    /// Detaches a killed dentry, and kills the directories above that are unused now that it is
    /// gone, as long as the cache is over its budget. Returns how many.
    ///
    /// A deep tree has few leaves, so looking for them one at a time would find
    /// fewer than come.
    #[doc(alias = "shrink_kill")]
    pub(super) fn kill(&self, dentry: &Ref<Dentry>) -> usize {
        let mut above = 0;
        let mut parent = self.detach(dentry);
        while let Some(dentry) = parent {
            // Ours is one more. A dentry that is hashed and on the list is known by the cache's
            // two references; a root is not hashed.
            let killed = self.lru.take_if(&dentry, || {
                self.is_over() && dentry.kill_hashed_if_count_is(CACHED + 1)
            });
            if killed.is_none() {
                self.put(dentry);
                break;
            }
            above += 1;
            parent = self.detach(&dentry);
        }
        above
    }

    /// Takes a killed dentry off its chain and drops its inode. Returns its parent. Readers
    /// that stand on it see by its count that it is dead.
    #[doc(alias("__dentry_kill", "dentry_unlink_inode"))]
    fn detach(&self, dentry: &Ref<Dentry>) -> Option<DentryRef> {
        let (parent, inode, off);
        {
            let locked = dentry.lock(Rank::Dentry);
            off = self.table.lock(locked.hash()).remove(&locked);
            let flags = locked.flags() | Flags::UNHASHED;
            let mut section = locked.seq.write();
            parent = locked.parent.swap(None);
            inode = locked.inode.swap(None).map(InodeRefOf::new);
            section.set_payload((flags - Flags::OF_INODE).bits());
        }
        drop((inode, off));
        parent
    }
}

/// A directory without a name, or a name in one: no walk finds it any more.
fn is_out_of_reach(dentry: &Shared<Dentry>) -> bool {
    let guard = rcu::read_lock();
    let has_no_name = |dentry: &Shared<Dentry>| dentry.flags().contains(Flags::UNHASHED);
    has_no_name(dentry) || dentry.parent(&guard).is_some_and(has_no_name)
}
