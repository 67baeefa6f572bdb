//! Drawn node ids: of the nodes whose id is not their inode number.
//!
//! Few, as a rule, so that a LOOKUP seldom gets here; but all files of a file system that is
//! mounted below the root are among them. An entry may outlive its node, if an answer could not be
//! sent: the caller compares the node that it finds by the id.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rcuwalk::InodeId;
use rcuwalk::inode::NodeId;

const SHARDS: usize = 16;

/// A shard with fewer entries is not searched for nodes that are gone, nor made smaller.
const FEW: usize = 16;

/// The drawn id of each inode that has one.
#[derive(Default)]
pub(crate) struct Drawn {
    shards: [Mutex<Shard>; SHARDS],
    hash: RandomState,
    /// The number of entries, for callers that need none.
    len: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    ids: HashMap<InodeId, NodeId>,
    /// The length at which entries without a node are removed.
    clean_at: usize,
}

/// A locked part of the table.
pub(crate) struct Locked<'d> {
    shard: MutexGuard<'d, Shard>,
    len: &'d AtomicUsize,
}

impl Drawn {
    /// Returns the id that was drawn for an inode.
    pub(crate) fn find(&self, inode: &InodeId) -> Option<NodeId> {
        if self.is_empty() {
            return None;
        }
        self.lock(inode).get(inode)
    }

    /// True if there are no entries, except for calls under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0
    }

    /// Locks the part with this inode.
    pub(crate) fn lock(&self, inode: &InodeId) -> Locked<'_> {
        let shard = self.hash.hash_one(inode) as usize % SHARDS;
        Locked {
            shard: self.shards[shard]
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
            len: &self.len,
        }
    }
}

impl Locked<'_> {
    pub(crate) fn get(&self, inode: &InodeId) -> Option<NodeId> {
        self.shard.ids.get(inode).copied()
    }

    /// Records the id of an inode of this part. Now and then removes the entries whose id is not
    /// `known` any more: when their number may have doubled since the last time.
    pub(crate) fn insert(&mut self, inode: InodeId, id: NodeId, known: impl Fn(NodeId) -> bool) {
        let before = self.shard.ids.len();
        if before >= self.shard.clean_at.max(FEW) {
            self.shard.ids.retain(|_, id| known(*id));
            self.shard.clean_at = 2 * self.shard.ids.len();
        }
        self.shard.ids.insert(inode, id);
        self.count(before);
    }

    /// Removes the entry of an inode of this part.
    pub(crate) fn remove(&mut self, inode: &InodeId) {
        let ids = &mut self.shard.ids;
        let before = ids.len();
        ids.remove(inode);
        if ids.len().max(FEW) < ids.capacity() / 8 {
            ids.shrink_to(2 * before);
        }
        self.count(before);
    }

    fn count(&self, before: usize) {
        let now = self.shard.ids.len();
        match now >= before {
            true => self.len.fetch_add(now - before, Relaxed),
            false => self.len.fetch_sub(before - now, Relaxed),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcuwalk::InodeKey;

    fn inode(ino: u64) -> InodeId {
        InodeId {
            key: InodeKey::new(ino),
            sb: 1,
        }
    }

    /// MEM-1: memory follows the entries, and entries whose nodes are gone are removed.
    #[test]
    fn the_table_is_no_longer_than_twice_the_nodes() {
        const ALL: u64 = 10_000;
        let drawn = Drawn::default();
        let last_ones = |now: u64| move |id: NodeId| id.0 + 100 > now;
        for n in 0..ALL {
            drawn
                .lock(&inode(n))
                .insert(inode(n), NodeId(n), last_ones(n));
        }
        let entries = drawn.len.load(Relaxed);
        assert!(entries <= 200 + 2 * SHARDS * FEW, "MEM-1: {entries}");
        assert_eq!(drawn.find(&inode(ALL - 1)), Some(NodeId(ALL - 1)));
        for n in 0..ALL {
            drawn.lock(&inode(n)).insert(inode(n), NodeId(n), |_| true);
        }
        (0..ALL).for_each(|n| drawn.lock(&inode(n)).remove(&inode(n)));
        assert!(drawn.is_empty(), "MEM-1");
        let capacity = |shard: &Mutex<Shard>| shard.lock().unwrap().ids.capacity();
        let left: usize = drawn.shards.iter().map(capacity).sum();
        assert!(left < ALL as usize / 8, "MEM-1: {left}");
    }
}
