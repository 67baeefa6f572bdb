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
//! stay and count, but never stop a thread. Nothing here waits for readers.
//!
//! A hook may look for any inode but its own. So an inode is killed only when it is next to be
//! evicted: otherwise this thread would wait for itself. A hook that reads in inodes does not
//! reclaim for them; its caller goes on with that.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rcuwalk_sync::{Ref, Shared, Unlisted, Verdict, lock, probe, rcu};

use super::cache::{Inner, InodeCache};
use super::life::{CACHED, DONT_CACHE, NEW};
use super::node::{Key, Node};
use super::stats::Event;
use crate::budget::{BATCH, Need};

impl<K: Key, P: Send + Sync + 'static> InodeCache<K, P> {
    /// Looks over up to `most` inodes, and drops those that are unused and have had
    /// their second chance, for as long as there are more than the budget allows.
    /// Returns how many went.
    #[doc(alias("prune_icache_sb", "inode_lru_isolate"))]
    pub fn prune(&self, most: usize) -> usize {
        self.inner.prune_all_shards(most, Verdict::Stop, |_| false)
    }

    /// Drops the unused ones of the `most` inodes that were scanned longest ago, whatever the
    /// budget says. Returns the number dropped.
    pub fn prune_now(&self, most: usize) -> usize {
        self.inner.prune_all_shards(most, Verdict::Rotate, |_| true)
    }

    /// Drops all unused inodes. Returns the number dropped.
    #[doc(alias = "drop_caches")]
    pub fn drop_unused(&self) -> usize {
        self.inner.evict_all(|_| true)
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

impl<K: Key, P: Send + Sync + 'static> Inner<K, P> {
    /// Puts a freshly filled inode on its list, makes it visible to all threads, and reclaims
    /// if it is time to.
    pub(super) fn unlock_new_inode(self: &Arc<Self>, unlisted: Unlisted<Node<K, P>>) {
        if self.lru.insert_new(unlisted, NEW) {
            self.make_room();
        }
    }

    #[cold]
    fn make_room(self: &Arc<Self>) {
        let (inodes, extra) = self.lru.size();
        if let Some(bell) = &self.call_worker
            && self.share.is_nearly_over(inodes, extra)
        {
            bell.ring();
        }
        if !self.share.is_over(inodes, extra) {
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

    fn prune_to_budget(&self) {
        let need = |inodes, extra| self.share.need(inodes, extra);
        let found_room = self.share.make_room(&[&self.lru], |_, shard, most| {
            self.prune_shard(shard, most, need, Verdict::Stop, |_| false);
        });
        if !found_room {
            self.too_full.store(true, Relaxed);
        }
    }

    /// Makes room before it is needed: the worker's part.
    pub(super) fn prune_ahead(&self) {
        let need = |inodes, extra| match self.share.need(inodes, extra) {
            Need::Nothing if self.share.is_nearly_over(inodes, extra) => Need::Room,
            need => need,
        };
        let shards = self.lru.shards();
        // Inodes in use are skipped: one round over everything is enough.
        let mut left = self.lru.size().0 / BATCH + shards;
        let (mut shard, mut idle) = (self.lru.victim(), 0);
        while left > 0 && idle < shards {
            let (inodes, extra) = self.lru.size();
            if need(inodes, extra) == Need::Nothing {
                return;
            }
            match self.prune_shard(shard, BATCH, need, Verdict::Stop, |_| false) {
                0 => (shard, idle) = ((shard + 1) % shards, idle + 1),
                _ => (shard, idle) = (self.lru.victim(), 0),
            }
            left -= 1;
        }
    }

    fn prune_all_shards(
        &self,
        most: usize,
        otherwise: Verdict,
        at_once: impl Fn(&Node<K, P>) -> bool,
    ) -> usize {
        let need = |inodes, extra| match self.share.is_over(inodes, extra) {
            true => Need::Room,
            false => Need::Nothing,
        };
        let shards = self.lru.shards();
        let part = |shard| self.lru.part_of(most, shard);
        (0..shards)
            .map(|shard| self.prune_shard(shard, part(shard), need, otherwise, &at_once))
            .sum()
    }

    pub(super) fn evict_all(&self, wanted: impl Fn(&K) -> bool) -> usize {
        self.prune_all_shards(usize::MAX, Verdict::Rotate, |node| wanted(node.key()))
    }

    /// Skips inodes in use. Once the budget is met, returns `otherwise` for idle ones that are
    /// not wanted `at_once`: `Stop` when reclaiming, `Rotate` when searching.
    fn prune_shard(
        &self,
        shard: usize,
        most: usize,
        need: impl Fn(usize, usize) -> Need,
        otherwise: Verdict,
        at_once: impl Fn(&Node<K, P>) -> bool,
    ) -> usize {
        // With a hook one goes at a time, so that it may look for its neighbours.
        let one_at_a_time = self.on_evict.is_some();
        // Inodes that enter meanwhile are for other threads to scan.
        let mut left = most.min(self.lru.len_of(shard));
        let mut all_gone = 0;
        loop {
            let (mut inodes, mut extra) = self.lru.size();
            let (mut killed, mut stopped) = (false, false);
            let before = left;
            let mut gone = Gone {
                cache: self,
                nodes: Vec::new(),
            };
            // In batches, also when everything is dropped: other threads wait for the shard,
            // and for killed inodes.
            let batch = left.min(BATCH);
            self.lru.scan_into(shard, batch, &mut gone.nodes, |node| {
                if killed {
                    return Verdict::Stop;
                }
                left -= 1;
                if node.count() != CACHED {
                    return Verdict::Rotate;
                }
                if !at_once(node) && !node.has(DONT_CACHE) {
                    match need(inodes, extra) {
                        Need::Nothing => {
                            stopped = otherwise == Verdict::Stop;
                            return otherwise;
                        }
                        Need::Room if !node.age() => return Verdict::Rotate,
                        Need::Room | Need::RoomAtOnce => {}
                    }
                }
                inodes = inodes.saturating_sub(1);
                extra = extra.saturating_sub(self.lru.weight_of(node));
                if !one_at_a_time {
                    return Verdict::TakeIfCountIs(CACHED);
                }
                killed = node.kill_if_count_is(CACHED);
                match killed {
                    true => Verdict::Take,
                    false => Verdict::Rotate,
                }
            });
            all_gone += gone.nodes.len();
            self.evict(std::mem::take(&mut gone.nodes));
            // Or there was nothing any more to look at.
            if stopped || left == 0 || left == before {
                return all_gone;
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
                let counters = self.counters.get();
                counters.add(Event::EvictLock, gone.len() as u64);
                self.table.bury(gone);
            }
        }
        defer_weight(weight);
    }

    /// Counts evicted inodes. Returns the bytes that hang on them.
    fn count_evicted(&self, gone: &[Ref<Node<K, P>>]) -> usize {
        let counters = self.counters.get();
        counters.add(Event::Evicted, gone.len() as u64);
        probe::evict(gone.iter().map(|node| node.key().hash()));
        gone.iter().map(|node| self.lru.weight_of(node)).sum()
    }

    /// True if a hook is called when an inode goes.
    pub(super) fn sees_off(&self) -> bool {
        self.on_evict.is_some() || self.on_last.is_some()
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
        if let (Some(hook), Some(node)) = (self.on_last, &leave.1)
            && node.get().is_some()
        {
            hook(node);
        }
    }

    fn bury_last(&self, node: Ref<Node<K, P>>) {
        drop(self.lru.remove(&node));
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
        if !node.is_hashed() {
            return None;
        }
        self.lock(node.filed_under(), Event::EvictLock).remove(node)
    }
}

/// RCU knows the size of an inode, but not of the data that hangs on it: without this, a
/// thousand pieces of any size could wait to be freed.
fn defer_weight(weight: usize) {
    if weight > 0 {
        rcu::defer(weight, || ());
    }
}
