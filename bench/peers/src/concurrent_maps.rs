//! Concurrent hash maps in the place of the one lock.

use std::sync::Arc;

use rcuwalk_bench::iget::{Got, InodeTable, LocksPer};

use crate::Inode;
use crate::hash::Hashes;

/// Shards, each a map behind a reader-writer lock.
#[derive(Default)]
pub(crate) struct DashTable<S: Hashes>(dashmap::DashMap<u64, Arc<Inode>, S>);

impl<S: Hashes> InodeTable for DashTable<S> {
    type Inode = Arc<Inode>;
    /// The shard's, shared for the lookup.
    const LOCKS: Option<LocksPer> = Some(LocksPer::new(1.0, 3.0));

    fn iget(&self, key: u64) -> Got<Arc<Inode>> {
        use dashmap::mapref::entry::Entry;
        if let Some(inode) = self.0.get(&key) {
            return Got::Cached(inode.clone());
        }
        let inode = Inode::read(key);
        match self.0.entry(key) {
            Entry::Occupied(entry) => Got::Cached(entry.get().clone()),
            Entry::Vacant(entry) => Got::New(entry.insert(inode).clone()),
        }
    }

    fn evict(&self, key: u64) {
        self.0.remove(&key);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Open addressing, without locks.
#[derive(Default)]
pub(crate) struct PapayaTable<S: Hashes>(papaya::HashMap<u64, Arc<Inode>, S>);

impl<S: Hashes> InodeTable for PapayaTable<S> {
    type Inode = Arc<Inode>;
    const LOCKS: Option<LocksPer> = Some(LocksPer::new(0.0, 0.0));

    fn iget(&self, key: u64) -> Got<Arc<Inode>> {
        let map = self.0.pin();
        if let Some(inode) = map.get(&key) {
            return Got::Cached(inode.clone());
        }
        match map.try_insert(key, Inode::read(key)) {
            Ok(inode) => Got::New(inode.clone()),
            Err(occupied) => Got::Cached(occupied.current.clone()),
        }
    }

    fn evict(&self, key: u64) {
        self.0.pin().remove(&key);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Buckets of 32 entries, each behind a reader-writer lock.
#[derive(Default)]
pub(crate) struct SccTable<S: Hashes>(scc::HashMap<u64, Arc<Inode>, S>);

impl<S: Hashes> InodeTable for SccTable<S> {
    type Inode = Arc<Inode>;
    /// The bucket's, shared for the lookup.
    const LOCKS: Option<LocksPer> = Some(LocksPer::new(1.0, 3.0));

    fn iget(&self, key: u64) -> Got<Arc<Inode>> {
        use scc::hash_map::Entry;
        if let Some(inode) = self.0.read_sync(&key, |_, inode| inode.clone()) {
            return Got::Cached(inode);
        }
        let inode = Inode::read(key);
        match self.0.entry_sync(key) {
            Entry::Occupied(entry) => Got::Cached(entry.get().clone()),
            Entry::Vacant(entry) => Got::New(entry.insert_entry(inode).get().clone()),
        }
    }

    fn evict(&self, key: u64) {
        self.0.remove_sync(&key);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Like the map above, with lookups under epochs instead of the lock.
#[derive(Default)]
pub(crate) struct SccIndex<S: Hashes>(scc::HashIndex<u64, Arc<Inode>, S>);

impl<S: Hashes> InodeTable for SccIndex<S> {
    type Inode = Arc<Inode>;
    /// The bucket's, for writers only.
    const LOCKS: Option<LocksPer> = Some(LocksPer::new(0.0, 2.0));

    fn iget(&self, key: u64) -> Got<Arc<Inode>> {
        use scc::hash_index::Entry;
        if let Some(inode) = self.0.peek_with(&key, |_, inode| inode.clone()) {
            return Got::Cached(inode);
        }
        let inode = Inode::read(key);
        match self.0.entry_sync(key) {
            Entry::Occupied(entry) => Got::Cached(entry.get().clone()),
            Entry::Vacant(entry) => Got::New(entry.insert_entry(inode).get().clone()),
        }
    }

    fn evict(&self, key: u64) {
        self.0.remove_sync(&key);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
