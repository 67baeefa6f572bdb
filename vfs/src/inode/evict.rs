//! Staying within the budget (MEM-1), and how an inode leaves.
//!
//! ```text
//!   count is the cache's own, and the second chance is over (or: everything is dropped)
//!        | kill: one compare-and-swap; from here on no thread gets a reference
//!        v
//!   off the list -> on_evict, no lock held -> off the table: waiters wake
//! ```
//!
//! The thread that inserts reclaims, as [`Share`](crate::budget::Share) says. Inodes in use
//! stay and count, but never stop a thread: they are on no list for longer than one scan
//! (LRU-1). Nothing here waits for readers.
//!
//! A hook may look for any inode but its own. So an inode is killed only when it is next to be
//! evicted: otherwise this thread would wait for itself. A hook that reads in inodes does not
//! reclaim for them; its caller goes on with that.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rcuwalk_sync::{Flag, List, LruStatus, Ref, Shared, lock, probe, rcu};

use super::cache::{Inner, InodeCache};
use super::life::{DONT_CACHE, NEW};
use super::node::{InodeRef, Key, Node};
use super::stats::Event;
use crate::budget::{BATCH, Share};

impl<K: Key, P: Send + Sync + 'static> InodeCache<K, P> {
    /// Looks over up to `most` inodes, and drops those that are unused and have had
    /// their second chance, for as long as there are more than the budget allows.
    /// Returns how many went.
    #[doc(alias("prune_icache_sb", "inode_lru_isolate"))]
    pub fn prune(&self, most: usize) -> usize {
        self.inner.prune_all_shards(most, Want::Room)
    }

    /// Drops the unused ones of the `most` inodes that were scanned longest ago, whatever the
    /// budget says. Returns the number dropped.
    pub fn prune_now(&self, most: usize) -> usize {
        self.inner.prune_all_shards(most, Want::These(&|_| true))
    }

    /// Drops all unused inodes. Returns the number dropped.
    #[doc(alias = "drop_caches")]
    pub fn drop_unused(&self) -> usize {
        self.inner.evict_all(|_| true)
    }

    /// How many inodes reclaim and the calls above have looked at so far.
    pub fn scanned(&self) -> u64 {
        self.inner.table.lru().scanned() as u64
    }

    /// Drops the references of evicted names to their inodes. An inode without another user is
    /// evicted too, unless it was looked up by its key after it was read in.
    pub(crate) fn put_with_names(&self, inodes: impl Iterator<Item = InodeRef<K, P>>) {
        self.inner.put_with_names(inodes);
    }

    /// Drops the unused inodes that `wanted` accepts, of one super block for example. Returns
    /// the number dropped. `wanted` runs with a list locked: it must not use the cache.
    #[doc(alias = "invalidate_inodes")]
    pub fn evict_inodes(&self, wanted: impl Fn(&K) -> bool) -> usize {
        self.inner.evict_all(wanted)
    }
}

/// Inodes that have been killed. They are evicted also if the caller's code panics at the next
/// one: other threads may wait for them.
struct Gone<'a, K: Key, P: Send + Sync + 'static> {
    cache: &'a Inner<K, P>,
    nodes: Vec<Ref<Node<K, P>>>,
}

impl<K: Key, P: Send + Sync + 'static> Drop for Gone<'_, K, P> {
    fn drop(&mut self) {
        self.cache.evict(std::mem::take(&mut self.nodes));
    }
}

/// Which unused inodes are to go.
enum Want<'a, K, P> {
    /// Enough to meet the budget. Inodes that were used since the last scan stay.
    Room,
    /// The same, before the budget is full.
    RoomAhead,
    /// Enough to meet the budget.
    RoomAtOnce,
    /// These, and no others.
    These(&'a dyn Fn(&Node<K, P>) -> bool),
}

impl<K, P> Clone for Want<'_, K, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, P> Copy for Want<'_, K, P> {}

/// What a scan has come to.
#[derive(Default)]
struct Pruned {
    scanned: usize,
    gone: usize,
}

impl<K: Key, P: Send + Sync + 'static> Inner<K, P> {
    /// Makes a freshly filled inode visible to all threads, and reclaims if it is time to. Its
    /// last user puts it on a list.
    pub(super) fn unlock_new_inode(self: &Arc<Self>, node: &Shared<Node<K, P>>) {
        let look = self.share.charge((self.weight)(node));
        node.clear(NEW);
        if look {
            self.make_room();
        }
    }

    #[cold]
    fn make_room(self: &Arc<Self>) {
        let (inodes, extra) = self.share.size();
        if let Some(bell) = &self.call_worker
            && self.share.is_nearly_too_much(inodes, extra)
        {
            bell.ring();
        }
        if !self.share.is_too_much(inodes, extra) {
            return;
        }
        if self.on_evict.is_some() {
            if self.in_hook.get().load(Relaxed) {
                return;
            }
            if !lock::may_sleep() {
                // The hook runs with no lock held.
                let cache = self.clone();
                return lock::when_none_held(move || cache.prune_to_budget());
            }
        }
        self.prune_to_budget();
    }

    fn list(&self) -> List<'_, Node<K, P>> {
        self.table.lru().kind(0)
    }

    fn prune_to_budget(&self) {
        let is_done = || !self.share.is_over();
        let found_room = Share::make_room(&[self.list()], is_done, |list, shard, at_once| {
            let want = if at_once {
                Want::RoomAtOnce
            } else {
                Want::Room
            };
            self.prune_shard(list, shard, BATCH, want).scanned
        });
        if !found_room {
            self.too_full.store(true, Relaxed);
        }
    }

    /// Makes room before it is needed: the worker's part.
    pub(super) fn prune_ahead(&self) {
        let list = self.list();
        // One round over everything is enough.
        let mut left = list.len() + BATCH * list.shards();
        while left > 0
            && let Some(shard) = list.victim()
        {
            let (inodes, extra) = self.share.size();
            if !self.share.is_nearly_too_much(inodes, extra) {
                return;
            }
            let pruned = self.prune_shard(&list, shard, BATCH, Want::RoomAhead);
            left = left.saturating_sub(pruned.scanned.max(1));
        }
    }

    fn prune_all_shards(&self, most: usize, want: Want<'_, K, P>) -> usize {
        let list = self.list();
        let each = (0..list.shards()).map(|shard| (shard, list.part_of(most, shard)));
        each.map(|(shard, part)| self.prune_shard(&list, shard, part, want).gone)
            .sum()
    }

    pub(super) fn evict_all(&self, wanted: impl Fn(&K) -> bool) -> usize {
        self.prune_all_shards(usize::MAX, Want::These(&|node| wanted(node.key())))
    }

    /// Evicts unused inodes among the `most` at the tail of a shard.
    fn prune_shard(
        &self,
        list: &List<'_, Node<K, P>>,
        shard: usize,
        most: usize,
        want: Want<'_, K, P>,
    ) -> Pruned {
        // With a hook one goes at a time, so that it may look for its neighbours.
        let one_at_a_time = self.on_evict.is_some();
        // Inodes that enter meanwhile are for other threads to scan.
        let mut left = most.min(list.len_of(shard));
        let mut all = Pruned::default();
        while left > 0 {
            let (mut inodes, mut extra) = self.share.size();
            let (mut wants_one, mut stopped) = (true, false);
            let mut gone = Gone {
                cache: self,
                nodes: Vec::new(),
            };
            // In batches, also when everything is dropped: other threads wait for the shard,
            // and for killed inodes.
            let scanned = list.scan(shard, left.min(BATCH), &mut gone.nodes, |node| {
                if !wants_one {
                    return LruStatus::Stop;
                }
                if !node.has(DONT_CACHE) {
                    let share = &self.share;
                    let (needed, patient) = match want {
                        Want::These(wanted) if wanted(node) => (true, false),
                        Want::These(_) => return LruStatus::Rotate,
                        Want::Room => (share.is_too_much(inodes, extra), true),
                        Want::RoomAtOnce => (share.is_too_much(inodes, extra), false),
                        Want::RoomAhead => (share.is_nearly_too_much(inodes, extra), true),
                    };
                    if !needed {
                        stopped = true;
                        return LruStatus::Stop;
                    }
                    if patient && !node.age() {
                        return LruStatus::Rotate;
                    }
                }
                inodes = inodes.saturating_sub(1);
                extra = extra.saturating_sub((self.weight)(node));
                wants_one = !one_at_a_time;
                LruStatus::Kill
            });
            all.gone += gone.nodes.len();
            all.scanned += scanned;
            self.evict(std::mem::take(&mut gone.nodes));
            // Or there was nothing any more to scan.
            if stopped || scanned == 0 {
                break;
            }
            left = left.saturating_sub(scanned);
        }
        all
    }

    fn put_with_names(&self, inodes: impl Iterator<Item = InodeRef<K, P>>) {
        let mut gone = Gone {
            cache: self,
            nodes: Vec::new(),
        };
        for inode in inodes {
            let node = inode.shared();
            let goes = self.on_evict.is_none()
                && node.has(Flag::AGED)
                && !node.has(DONT_CACHE)
                && node.kill_if_users_are(1);
            if goes {
                drop(self.table.lru().remove(node));
                gone.nodes.push(inode.into_shared());
            }
        }
    }

    /// Evicts inodes that have been killed and are off their list.
    fn evict(&self, gone: Vec<Ref<Node<K, P>>>) {
        if gone.is_empty() {
            return;
        }
        let weight = self.count_evicted(&gone);
        match &self.on_evict {
            Some(hook) => gone.iter().for_each(|node| self.evict_with(hook, node)),
            None => {
                self.share.uncharge(gone.len(), weight);
                self.bury(gone);
            }
        }
        defer_weight(weight);
    }

    /// Counts evicted inodes. Returns the bytes that hang on them.
    fn count_evicted(&self, gone: &[Ref<Node<K, P>>]) -> usize {
        let counters = self.counters.get();
        counters.add(Event::Evicted, gone.len() as u64);
        probe::evict(gone.iter().map(|node| node.key().hash()));
        gone.iter().map(|node| (self.weight)(node)).sum()
    }

    /// True if a hook is called when an inode goes.
    pub(super) fn sees_off(&self) -> bool {
        self.on_evict.is_some() || self.on_last_put.is_some()
    }

    /// Drops the last reference to an inode that was killed because it is not to stay in the
    /// cache.
    pub(super) fn evict_last(&self, node: Ref<Node<K, P>>) {
        /// Also if the hook panics: other threads wait for this.
        struct Leave<'a, K: Key, P: Send + Sync + 'static>(
            &'a Inner<K, P>,
            Option<Ref<Node<K, P>>>,
        );
        impl<K: Key, P: Send + Sync + 'static> Drop for Leave<'_, K, P> {
            fn drop(&mut self) {
                if let Some(node) = self.1.take() {
                    self.0.bury_last(node);
                }
            }
        }
        let leave = Leave(self, Some(node));
        if let (Some(hook), Some(node)) = (self.on_last_put, &leave.1)
            && node.get().is_some()
        {
            hook(node);
        }
    }

    fn bury_last(&self, node: Ref<Node<K, P>>) {
        drop(self.table.lru().remove(&node));
        let weight = self.count_evicted(std::slice::from_ref(&node));
        match &self.on_evict {
            Some(hook) => self.evict_with(hook, &node),
            None => drop(self.unhash(&node)),
        }
        drop(node);
        defer_weight(weight);
    }

    fn evict_with(&self, hook: &super::cache::OnEvict<K, P>, node: &Ref<Node<K, P>>) {
        /// Also if the hook panics: other threads wait for this.
        struct Leave<'a, K: Key, P: Send + Sync + 'static> {
            cache: &'a Inner<K, P>,
            node: &'a Ref<Node<K, P>>,
            /// Whether this hook runs within another one.
            nested: bool,
        }
        impl<K: Key, P: Send + Sync + 'static> Drop for Leave<'_, K, P> {
            fn drop(&mut self) {
                self.cache.in_hook.get().store(self.nested, Relaxed);
                drop(self.cache.unhash(self.node));
            }
        }
        let nested = self.in_hook.get().swap(true, Relaxed);
        let _leave = Leave {
            cache: self,
            node,
            nested,
        };
        if node.get().is_some() {
            // A thread that had the lock when the inode was killed may be showing it to `test`,
            // which must not see the hook's work.
            drop(self.lock(node.filed_under(), Event::EvictLock));
            hook(node);
        }
    }

    /// Takes an inode off the table, if it is on it, and wakes its waiters.
    pub(super) fn unhash(&self, node: &Shared<Node<K, P>>) -> Option<Ref<Node<K, P>>> {
        let weight = (self.weight)(node);
        let off = self.take_off(node)?;
        self.share.uncharge(1, weight);
        Some(off)
    }

    /// As above for an inode that was never charged: it has not been filled in.
    pub(super) fn take_off(&self, node: &Shared<Node<K, P>>) -> Option<Ref<Node<K, P>>> {
        if !node.is_hashed() {
            return None;
        }
        self.lock(node.filed_under(), Event::EvictLock)
            .bucket
            .remove(node)
    }
}

/// RCU knows the size of an inode, but not of the data that hangs on it: without this, a
/// thousand pieces of any size could wait to be freed.
fn defer_weight(weight: usize) {
    if weight > 0 {
        rcu::defer(weight, || ());
    }
}
