//! Three ways to lock an inode cache: the kernel's before it looked up under RCU, with that, and
//! ours.
//!
//! The benchmarks measure the first two beside the third. They take one lock for the whole table,
//! and then the bucket's lock, which is always free.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rcuwalk_sync::lock::{Mutex, MutexGuard, Rank};
use rcuwalk_sync::{BucketGuard, LockStatistics, Ref};

use super::cache::Inner;
use super::node::{Key, Node};
use super::stats::Event;

/// How the cache locks: the two knobs that make the kernel's inode hash before the RCU
/// lookups, after them, and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// The locks for inserting an inode, and for taking one off.
    pub insert_locks: InsertLocks,
    /// Whether a lookup takes that lock, too.
    pub lookups: Lookups,
}

/// The locks for changing the hash table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InsertLocks {
    /// One lock for the whole table.
    #[doc(alias = "inode_hash_lock")]
    One,
    /// One for each bucket.
    PerBucket,
}

/// How the first look for an inode goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lookups {
    /// Under the lock that changes are made under.
    Locked,
    /// Under RCU: no lock.
    Rcu,
}

impl Scheme {
    /// One lock, and lookups take it: a miss takes it twice.
    pub const STOCK: Scheme = Scheme {
        insert_locks: InsertLocks::One,
        lookups: Lookups::Locked,
    };
    /// One lock, lookups under RCU: a hit takes none, a miss takes it once.
    pub const PATCH: Scheme = Scheme {
        insert_locks: InsertLocks::One,
        lookups: Lookups::Rcu,
    };
    /// A lock per bucket, lookups under RCU. The default, and what to use.
    pub const OURS: Scheme = Scheme {
        insert_locks: InsertLocks::PerBucket,
        lookups: Lookups::Rcu,
    };
}

impl Scheme {
    /// For tracers: 0 stock, 1 the patch, 3 ours; 2 for a lock per bucket that lookups take.
    #[inline]
    pub(super) fn number(self) -> u8 {
        2 * self.insert_locks as u8 + self.lookups as u8
    }
}

impl Default for Scheme {
    fn default() -> Self {
        Scheme::OURS
    }
}

impl Scheme {
    pub(super) fn one_lock(self) -> Option<OneLock> {
        (self.insert_locks == InsertLocks::One).then(|| OneLock {
            lock: Mutex::new(Rank::InodeHash, ()),
            contended: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        })
    }
}

/// The lock of [`InsertLocks::One`].
pub(super) struct OneLock {
    lock: Mutex<()>,
    contended: AtomicU64,
    waited_ns: AtomicU64,
}

impl OneLock {
    fn lock(&self) -> MutexGuard<'_, ()> {
        if let Some(held) = self.lock.try_lock_out_of_order() {
            return held;
        }
        let since = Instant::now();
        let held = self.lock.lock();
        let waited = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.contended.fetch_add(1, Relaxed);
        self.waited_ns.fetch_add(waited, Relaxed);
        held
    }
}

/// A locked bucket, and the one lock if there is one. The bucket is given back first.
pub(super) struct Locked<'c, K: Key, P: Send + Sync + 'static> {
    pub(super) bucket: BucketGuard<'c, Node<K, P>>,
    _one: Option<MutexGuard<'c, ()>>,
}

impl<K: Key, P: Send + Sync + 'static> Inner<K, P> {
    /// Locks what has to be locked to change the chain of `hash`, or to look at it for certain.
    #[inline]
    pub(super) fn lock(&self, hash: u64, why: Event) -> Locked<'_, K, P> {
        self.counters.get().count(why);
        let one = self.one_lock.as_ref().map(OneLock::lock);
        Locked {
            bucket: self.table.lock(hash),
            _one: one,
        }
    }

    /// Takes killed inodes off their chains.
    pub(super) fn bury(&self, dead: Vec<Ref<Node<K, P>>>) {
        self.counters.get().add(Event::EvictLock, dead.len() as u64);
        match &self.one_lock {
            None => self.table.bury(dead),
            Some(one) => dead.into_iter().for_each(|node| {
                let _held = one.lock();
                self.table.bury(vec![node]);
            }),
        }
    }

    pub(super) fn lock_statistics(&self) -> LockStatistics {
        let mut locks = self.table.lock_statistics();
        if let Some(one) = &self.one_lock {
            locks.contended += one.contended.load(Relaxed);
            locks.waited += Duration::from_nanos(one.waited_ns.load(Relaxed));
        }
        locks
    }
}
