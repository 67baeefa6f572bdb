//! [`InodeCache`]: its parts, and how to make one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{Lru, PerThread, RcuHash, Shared};

use super::node::{InodeRef, Key, Node};
use super::registry::Number;
use super::scheme::{OneLock, Scheme};
use super::stats::{Counters, InodeStatistics};
use super::worker::Worker;
use crate::budget::Share;

/// A cache of inodes with keys `K` and parts `P`, within a budget.
///
/// ```
/// use rcuwalk::inode::{InodeCache, Iget, Key, Stale};
///
/// #[derive(Clone, PartialEq, Eq)]
/// struct Ino(u64);
/// impl Key for Ino {
///     fn hash(&self) -> u64 {
///         self.0
///     }
/// }
///
/// # fn main() -> Result<(), Stale> {
/// let cache: InodeCache<Ino, String> = InodeCache::builder().inodes(1000).build();
/// let inode = match cache.iget(Ino(7))? {
///     Iget::Cached(inode) => inode,
///     Iget::New(new) => new.init("read from disk".to_owned()),
/// };
/// assert_eq!(**inode, "read from disk");
/// assert!(matches!(cache.iget(Ino(7))?, Iget::Cached(_)));
/// # Ok(())
/// # }
/// ```
pub struct InodeCache<K: Key, P: Send + Sync + 'static> {
    pub(super) inner: Arc<Inner<K, P>>,
    /// Stopped when the cache is dropped.
    _worker: Option<Worker>,
}

pub(super) struct Inner<K: Key, P: Send + Sync + 'static> {
    pub(super) table: RcuHash<Node<K, P>>,
    pub(super) share: Share,
    /// The bytes beside an inode.
    pub(super) weight: fn(&Node<K, P>) -> usize,
    pub(super) scheme: Scheme,
    pub(super) one_lock: Option<OneLock>,
    pub(super) on_evict: Option<OnEvict<K, P>>,
    pub(super) on_last_put: Option<fn(&Node<K, P>)>,
    /// Set while this thread runs the hook.
    pub(super) in_hook: PerThread<AtomicBool>,
    pub(super) counters: PerThread<Counters>,
    /// Set when pruning has not made enough room.
    pub(super) too_full: AtomicBool,
    /// Called when it is time to reclaim.
    pub(super) call_worker: Option<super::worker::Bell>,
    pub(super) number: Number,
}

pub(super) type OnEvict<K, P> = Box<dyn Fn(&Node<K, P>) + Send + Sync>;

/// Settings of an [`InodeCache`]. See [`InodeCache::builder`].
#[must_use]
pub struct Builder<K: Key, P: Send + Sync + 'static> {
    pub(super) inodes: usize,
    pub(super) bytes: usize,
    weight: fn(&Node<K, P>) -> usize,
    pub(super) scheme: Scheme,
    on_evict: Option<OnEvict<K, P>>,
    on_last_put: Option<fn(&Node<K, P>)>,
    pub(super) worker: bool,
}

impl<K: Key, P: Send + Sync + 'static> Builder<K, P> {
    /// No more unused inodes than this; a million unless told otherwise.
    pub fn inodes(mut self, most: usize) -> Self {
        self.inodes = most;
        self
    }

    /// No more bytes of unused inodes than this; 256 MiB unless told otherwise.
    pub fn bytes(mut self, most: usize) -> Self {
        self.bytes = most;
        self
    }

    /// The size of a node's part beside the node itself, in bytes; nothing unless told
    /// otherwise. It must return the same each time.
    pub fn weight(mut self, weight: fn(&Node<K, P>) -> usize) -> Self {
        self.weight = weight;
        self
    }

    /// How the cache locks: for comparisons.
    pub fn scheme(mut self, scheme: Scheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// Called once with each inode that leaves the cache for good: to write something back, or
    /// to close something, before its key may be read in again. A lookup of that key sleeps
    /// until it returns.
    ///
    /// It runs on the thread that reclaims or drops the last reference, with none of the
    /// cache's locks held, and may use the cache for everything but its own key. Two hooks that
    /// look for each other's keys wait for each other, and so do a hook and a read-in: let all
    /// look in the same direction, from a file to its directory, say. A lookup with the
    /// caller's comparison may wait for any key that has the same hash: there let a hook look
    /// for other hashes only. Not called for an inode that outlives its cache.
    #[doc(alias("evict_inode", "drop_inode"))]
    pub fn on_evict(mut self, hook: impl Fn(&Node<K, P>) + Send + Sync + 'static) -> Self {
        self.on_evict = Some(Box::new(hook));
        self
    }

    /// Called with each inode that goes with its last reference because it is marked as not to
    /// cache, or is unhashed: so a file whose last name is gone releases its space at once, and
    /// not only when its memory is freed. None of the cache's locks is held; the hook does not
    /// use the cache.
    #[doc(alias = "evict_inode")]
    pub fn on_last_put(mut self, hook: fn(&Node<K, P>)) -> Self {
        self.on_last_put = Some(hook);
        self
    }

    /// Reclaims on a thread of its own, ahead of need. A thread that inserts reclaims as well
    /// if that one does not keep up.
    #[doc(alias = "kswapd")]
    pub fn worker(mut self) -> Self {
        self.worker = true;
        self
    }

    /// An empty cache.
    pub fn build(self) -> InodeCache<K, P> {
        let share = Share::new(self.inodes, self.bytes, Shared::<Node<K, P>>::BYTES);
        let lru = Lru::new(Rank::Lru, share.shards(), 1, |_| 0);
        let bell = self.worker.then(super::worker::Bell::default);
        let inner = Arc::new_cyclic(|weak| Inner {
            table: RcuHash::new(Rank::InodeBucket).with_lru(lru),
            share,
            weight: self.weight,
            scheme: self.scheme,
            one_lock: self.scheme.one_lock(),
            on_evict: self.on_evict,
            on_last_put: self.on_last_put,
            in_hook: PerThread::new(),
            counters: PerThread::new(),
            too_full: AtomicBool::new(false),
            call_worker: bell.clone(),
            number: Number::of(weak.clone()),
        });
        let _worker = bell.map(|bell| Worker::start(bell, &inner));
        InodeCache { inner, _worker }
    }
}

impl<K: Key, P: Send + Sync + 'static> InodeCache<K, P> {
    /// For a cache with a budget, a hook, a worker.
    pub fn builder() -> Builder<K, P> {
        Builder {
            inodes: 1 << 20,
            bytes: 256 << 20,
            weight: |_| 0,
            scheme: Scheme::OURS,
            on_evict: None,
            on_last_put: None,
            worker: false,
        }
    }

    /// Takes an inode off the table that is in use: lookups of its key read a new one
    /// in. References to this one stay valid, and it ends with the last of them.
    #[doc(alias("remove_inode_hash", "make_bad_inode"))]
    pub fn unhash(&self, inode: &InodeRef<K, P>) {
        // By identity: a newer inode with the same key stays.
        let hashed = self.inner.unhash(inode.shared());
        if hashed.is_some() {
            drop(self.inner.table.lru().remove(inode.shared()));
        }
    }

    /// How the cache locks.
    pub fn scheme(&self) -> Scheme {
        self.inner.scheme
    }

    /// Inodes cached now, used or not, and the bytes they take. Takes no lock.
    pub fn size(&self) -> (usize, usize) {
        let (inodes, extra) = self.inner.share.size();
        (inodes, extra + inodes * Shared::<Node<K, P>>::BYTES)
    }

    /// Counters of the cache. Takes no lock.
    pub fn statistics(&self) -> InodeStatistics {
        let locks = self.inner.lock_statistics();
        let (inodes, bytes) = self.size();
        InodeStatistics {
            contended: locks.contended,
            lock_wait: locks.waited,
            inodes,
            bytes,
            ..InodeStatistics::sum(&self.inner.counters)
        }
    }

    /// Inodes evicted so far.
    pub fn evicted(&self) -> u64 {
        self.statistics().evicted
    }

    /// How long threads have waited for the table's locks, all together.
    pub fn lock_wait(&self) -> Duration {
        self.inner.lock_statistics().waited
    }

    /// True once after pruning has not freed enough: then names must drop their inodes first.
    pub(crate) fn is_too_full(&self) -> bool {
        self.inner.too_full.load(Relaxed) && self.inner.too_full.swap(false, Relaxed)
    }

    pub(crate) fn share(&self) -> &Share {
        &self.inner.share
    }
}

impl<K: Key, P: Send + Sync + 'static> Drop for Inner<K, P> {
    /// Unused inodes are passed to the hook as if they were evicted. The numbers go last.
    fn drop(&mut self) {
        if self.on_evict.is_some() {
            self.evict_all(|_| true);
        }
    }
}
