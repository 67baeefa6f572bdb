//! A `HashMap` behind one lock: libfuse's, libkrun's, mountpoint-s3's shape.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, RwLock};

use rcuwalk_bench::iget::{Got, InodeTable, LocksPer};

use crate::Inode;
use crate::hash::Hashes;

type Map<S> = HashMap<u64, Arc<Inode>, S>;

/// Inserts unless another thread was faster.
fn insert<S: Hashes>(map: &mut Map<S>, inode: Arc<Inode>, key: u64) -> Got<Arc<Inode>> {
    match map.entry(key) {
        Entry::Occupied(entry) => Got::Cached(entry.get().clone()),
        Entry::Vacant(entry) => Got::New(entry.insert(inode).clone()),
    }
}

#[derive(Default)]
pub(crate) struct MutexTable<S>(Mutex<Map<S>>);

impl<S: Hashes> InodeTable for MutexTable<S> {
    type Inode = Arc<Inode>;
    const LOCKS: Option<LocksPer> = Some(LocksPer::new(1.0, 3.0));

    fn iget(&self, key: u64) -> Got<Arc<Inode>> {
        if let Some(inode) = self.0.lock().unwrap().get(&key) {
            return Got::Cached(inode.clone());
        }
        // Not under the lock: reading in takes time, if not here.
        let inode = Inode::read(key);
        insert(&mut self.0.lock().unwrap(), inode, key)
    }

    fn evict(&self, key: u64) {
        let evicted = self.0.lock().unwrap().remove(&key);
        // Freed without the lock.
        drop(evicted);
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[derive(Default)]
pub(crate) struct RwLockTable<S>(RwLock<Map<S>>);

impl<S: Hashes> InodeTable for RwLockTable<S> {
    type Inode = Arc<Inode>;
    const LOCKS: Option<LocksPer> = Some(LocksPer::new(1.0, 3.0));

    fn iget(&self, key: u64) -> Got<Arc<Inode>> {
        if let Some(inode) = self.0.read().unwrap().get(&key) {
            return Got::Cached(inode.clone());
        }
        let inode = Inode::read(key);
        insert(&mut self.0.write().unwrap(), inode, key)
    }

    fn evict(&self, key: u64) {
        let evicted = self.0.write().unwrap().remove(&key);
        drop(evicted);
    }

    fn len(&self) -> usize {
        self.0.read().unwrap().len()
    }
}
