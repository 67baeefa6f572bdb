//! [`InodeCache`]: one live inode per key, looked up without a lock.
//!
//! INODE-1: one live inode per key. A miss takes the bucket's lock once, looks
//! again under it, and inserts; whoever comes second finds the first one's inode.
//!
//! INODE-4: life moves along the drawn arrows; Freeing is final.
//!
//! ```text
//!        init            last reference
//!   New ------> Live <-----------------> Unused
//!    |            |          iget           |
//!    | failed     | forgotten               | pruned
//!    +----------> Freeing <-----------------+     (memory freed by RCU, later)
//! ```
//!
//! Where the states are kept: New is a flag in the object's word, Freeing is its
//! dead mark, and Unused is a count of [`CACHED`]: only the cache's own references
//! are left. All in one word, so no two of them can disagree.

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{Flag, HashKey, Lru, RcuHash, Ref, Shared, Verdict, rcu};

use super::new::NewInode;
use crate::budget::Share;

/// What an inode is found by.
pub trait Key: Eq + Clone + Send + Sync + 'static {
    /// A hash, the same for equal keys. The cache mixes it.
    fn hash(&self) -> u64;
}

/// An inode in the cache: its key, and the part that its reader filled in.
///
/// It dereferences to that part. Whoever has a reference to it got it after it was
/// filled in (INODE-2), or holds the [`NewInode`] that is to do so.
pub struct Node<K, P> {
    key: K,
    part: OnceLock<P>,
}

impl<K, P> Node<K, P> {
    /// What it is found by.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The part, if it has been filled in.
    pub(crate) fn get(&self) -> Option<&P> {
        self.part.get()
    }

    pub(super) fn fill(&self, part: P) {
        let first = self.part.set(part).is_ok();
        debug_assert!(
            first,
            "INODE-2: only the holder of `NewInode` fills it in, once"
        );
    }
}

impl<K, P> Deref for Node<K, P> {
    type Target = P;
    fn deref(&self) -> &P {
        self.part
            .get()
            .expect("INODE-2: references are handed out after the part is there")
    }
}

impl<K: Key, P: Send + Sync + 'static> HashKey for Node<K, P> {
    fn hash(&self) -> u64 {
        spread(&self.key)
    }
}

/// A counted reference to a cached inode.
#[doc(alias("ihold", "iput", "igrab"))]
pub struct InodeRef<K, P>(pub(crate) Ref<Node<K, P>>);

impl<K, P> Clone for InodeRef<K, P> {
    fn clone(&self) -> Self {
        InodeRef(self.0.clone())
    }
}

impl<K, P> Deref for InodeRef<K, P> {
    type Target = Node<K, P>;
    fn deref(&self) -> &Node<K, P> {
        &self.0
    }
}

impl<K, P> InodeRef<K, P> {
    /// True if both refer to the same inode.
    pub fn ptr_eq(a: &Self, b: &Self) -> bool {
        Ref::ptr_eq(&a.0, &b.0)
    }

    /// The counted object itself.
    pub(crate) fn shared(&self) -> &Shared<Node<K, P>> {
        &self.0
    }
}

/// What [`InodeCache::iget`] found.
#[must_use]
pub enum Iget<K: Key, P: Send + Sync + 'static> {
    /// The inode is there, filled in.
    Cached(InodeRef<K, P>),
    /// Nobody has it: the caller is to fill it in, and all others wait for that.
    New(NewInode<K, P>),
}

/// Set while the holder of the [`NewInode`] reads the inode in.
#[doc(alias = "I_NEW")]
pub(super) const NEW: Flag = Flag::new(0);

/// References to an inode that only the cache has: the hash table's and the list's.
const CACHED: u32 = 2;

/// Objects looked at by one insertion that finds its shard over the budget.
const PRUNE_BATCH: usize = 64;

/// A cache of inodes with keys `K` and parts `P`, within a budget.
///
/// ```
/// use rcuwalk::inode::{InodeCache, IgetOf, Key};
///
/// #[derive(Clone, PartialEq, Eq)]
/// struct Ino(u64);
/// impl Key for Ino {
///     fn hash(&self) -> u64 {
///         self.0
///     }
/// }
///
/// let cache: InodeCache<Ino, String> = InodeCache::new(1000, 1 << 20, |name| name.len());
/// let inode = match cache.iget(Ino(7)) {
///     IgetOf::Cached(inode) => inode,
///     IgetOf::New(new) => new.init("read from disk".to_owned()),
/// };
/// assert_eq!(**inode, "read from disk");
/// assert!(matches!(cache.iget(Ino(7)), IgetOf::Cached(_)));
/// ```
pub struct InodeCache<K: Key, P: Send + Sync + 'static> {
    pub(super) inner: std::sync::Arc<Inner<K, P>>,
}

pub(super) struct Inner<K: Key, P: Send + Sync + 'static> {
    table: RcuHash<Node<K, P>>,
    lru: Lru<Node<K, P>>,
    share: Share,
    evicted: AtomicU64,
    /// Set when pruning has not made enough room.
    too_full: AtomicBool,
}

impl<K: Key, P: Send + Sync + 'static> InodeCache<K, P> {
    /// A cache that keeps at most so many unused inodes and bytes.
    ///
    /// `weight` tells what a node's part takes beside the node itself, in bytes; it
    /// must say the same each time.
    pub fn new(inodes: usize, bytes: usize, weight: fn(&Node<K, P>) -> usize) -> Self {
        let share = Share::new(inodes, bytes, Shared::<Node<K, P>>::BYTES);
        let lru = Lru::new(Rank::Lru, share.shards(), weight);
        let table = RcuHash::new(Rank::InodeBucket);
        InodeCache {
            inner: std::sync::Arc::new(Inner {
                table,
                lru,
                share,
                evicted: AtomicU64::new(0),
                too_full: AtomicBool::new(false),
            }),
        }
    }

    /// The cached inode for `key`, or a [`NewInode`] to fill in.
    ///
    /// A hit takes no lock. Sleeps while another thread reads the inode in; if that
    /// one fails, this call may become the new reader.
    #[doc(alias("iget_locked", "iget5_locked", "find_inode_fast"))]
    pub fn iget(&self, key: K) -> Iget<K, P> {
        loop {
            if let Some(found) = self.find(&key) {
                match Self::wait_read_in(found) {
                    Some(inode) => return Iget::Cached(inode),
                    None => continue,
                }
            }
            // Allocated before locking: nobody waits for the allocator.
            let node: Node<K, P> = Node {
                key: key.clone(),
                part: OnceLock::new(),
            };
            let new = Ref::with_flags(node, &[NEW]);
            if self.inner.insert_if_absent(new.clone()) {
                return Iget::New(NewInode::new(self.inner.clone(), new));
            }
        }
    }

    /// The cached inode for `key`, if there is one. Sleeps while it is New.
    ///
    /// A hit takes no lock; a miss is repeated under the bucket's lock, which settles
    /// it: a lookup may miss what is there while the table changes its size.
    #[doc(alias("ilookup5", "find_inode_fast"))]
    pub fn ilookup(&self, key: &K) -> Option<InodeRef<K, P>> {
        loop {
            let found = self.find(key).or_else(|| self.find_locked(key))?;
            if let Some(inode) = Self::wait_read_in(found) {
                return Some(inode);
            }
        }
    }

    /// May miss what is there; what it finds is there.
    #[doc(alias = "__find_inode_rcu")]
    fn find(&self, key: &K) -> Option<Ref<Node<K, P>>> {
        let guard = rcu::read_lock();
        self.inner
            .table
            .find(spread(key), &guard, |node| node.key == *key)?
            .try_get()
    }

    /// Under the bucket's lock a miss is a miss.
    fn find_locked(&self, key: &K) -> Option<Ref<Node<K, P>>> {
        let bucket = self.inner.table.lock(spread(key));
        bucket
            .find(|node| node.key == *key && !node.is_dead())?
            .try_get()
    }

    /// Sleeps while the inode is New. `None` if the read-in failed: it is off the table
    /// then (INODE-3), and to be looked for again.
    fn wait_read_in(found: Ref<Node<K, P>>) -> Option<InodeRef<K, P>> {
        found.wait_until_clear(NEW);
        found.get()?;
        found.mark_used();
        Some(InodeRef(found))
    }

    /// Looks at up to `most` objects, and drops those that are unused and have had
    /// their second chance. Returns how many went.
    #[doc(alias = "prune_icache_sb")]
    pub fn prune(&self, most: usize) -> usize {
        let shards = self.inner.lru.shards();
        (0..shards)
            .map(|shard| {
                self.inner
                    .prune_shard(shard, most.div_ceil(shards), |_| false)
            })
            .sum()
    }

    /// Drops what nobody uses of the `most` inodes that were looked over longest ago,
    /// whatever the budget says. Returns how many went.
    pub fn prune_now(&self, most: usize) -> usize {
        let shards = self.inner.lru.shards();
        (0..shards)
            .map(|shard| {
                self.inner
                    .prune_shard(shard, most.div_ceil(shards), |_| true)
            })
            .sum()
    }

    /// Drops everything that nobody uses. Returns how many went.
    #[doc(alias = "drop_caches")]
    pub fn drop_unused(&self) -> usize {
        self.drop_unused_where(|_| true)
    }

    /// Drops what nobody uses and `wanted` accepts. Returns how many went.
    #[doc(alias("evict_inodes", "invalidate_inodes"))]
    pub fn drop_unused_where(&self, wanted: impl Fn(&K) -> bool) -> usize {
        let at_once = |node: &Node<K, P>| wanted(&node.key);
        let shards = 0..self.inner.lru.shards();
        shards
            .map(|shard| self.inner.prune_shard(shard, usize::MAX, at_once))
            .sum()
    }

    /// Takes an inode out of the cache, for good: the next lookup of its key reads
    /// a new one in. References to this one stay valid.
    #[doc(alias("remove_inode_hash", "make_bad_inode"))]
    pub fn forget(&self, inode: &Node<K, P>) {
        // By identity: a newer inode with the same key stays.
        let hashed = self
            .inner
            .table
            .lock(spread(&inode.key))
            .remove_where(|node| {
                let node: &Node<K, P> = node;
                std::ptr::eq(node, inode)
            });
        if let Some(node) = hashed {
            self.inner.lru.remove(&node);
        }
    }

    /// True once after pruning has not made enough room: then others have to let go
    /// of inodes first.
    pub(crate) fn is_too_full(&self) -> bool {
        self.inner.too_full.load(Relaxed) && self.inner.too_full.swap(false, Relaxed)
    }

    /// Inodes dropped by pruning so far.
    pub fn evicted(&self) -> u64 {
        self.inner.evicted.load(Relaxed)
    }

    /// Inodes cached now, used or not, and the bytes they take.
    pub fn size(&self) -> (usize, usize) {
        let (inodes, extra) = self.inner.lru.size();
        (inodes, extra + inodes * Shared::<Node<K, P>>::BYTES)
    }
}

impl<K: Key, P: Send + Sync + 'static> Inner<K, P> {
    /// INODE-1: looks again under the lock that the insertion happens under.
    fn insert_if_absent(&self, new: Ref<Node<K, P>>) -> bool {
        let mut bucket = self.table.lock(spread(&new.key));
        if bucket
            .find(|node| node.key == new.key && !node.is_dead())
            .is_some()
        {
            return false;
        }
        // One that is Freeing but not unhashed yet goes now: its key is free.
        drop(bucket.remove_where(|node| node.key == new.key));
        bucket.insert(new);
        true
    }

    /// Puts a freshly read inode on the list, and makes room if that was too much.
    pub(super) fn add_to_lru(&self, node: Ref<Node<K, P>>) {
        let shard = self.lru.shard_of(&node);
        let (inodes, extra) = self.lru.insert(node.clone());
        // Forgotten meanwhile? Then that came too early to take it off the list. One
        // of the two sees the other: both go through the shard's lock.
        if !node.is_hashed() {
            drop(self.lru.remove(&node));
        }
        if self.share.is_over(inodes, extra) {
            self.prune_shard(shard, PRUNE_BATCH, |_| false);
            let (inodes, extra) = self.lru.shard_size(shard);
            // The sum is asked for only where this shard says that it may be over.
            if self.share.is_over(inodes, extra) && self.is_over_in_all() {
                self.too_full.store(true, Relaxed);
            }
        }
    }

    fn is_over_in_all(&self) -> bool {
        let (inodes, extra) = self.lru.size();
        self.share.is_over_in_all(inodes, extra)
    }

    pub(super) fn unhash(&self, node: &Ref<Node<K, P>>) -> bool {
        self.table.lock(spread(&node.key)).remove(node).is_some()
    }

    /// What is in use stays, what was used since the last look gets another chance.
    fn prune_shard(
        &self,
        shard: usize,
        most: usize,
        at_once: impl Fn(&Node<K, P>) -> bool,
    ) -> usize {
        let (mut inodes, mut extra) = self.lru.shard_size(shard);
        let gone = self.lru.scan(shard, most, |node| {
            let unused = node.count() == CACHED;
            let wanted = at_once(node) || self.share.is_over(inodes, extra) && node.age();
            if !unused || !wanted || !node.kill_if_count_is(CACHED) {
                return Verdict::Rotate;
            }
            // The list may have grown since it was asked for its size.
            inodes = inodes.saturating_sub(1);
            extra = extra.saturating_sub(self.lru.weight_of(node));
            Verdict::Take
        });
        for node in &gone {
            self.unhash(node);
        }
        self.evicted.fetch_add(gone.len() as u64, Relaxed);
        gone.len()
    }
}

/// The hash that a key is filed under: what the caller makes of it may be as simple
/// as the number itself.
fn spread<K: Key>(key: &K) -> u64 {
    let folded = u128::from(key.hash() ^ 0x9E37_79B9_7F4A_7C15) * 0xA076_1D64_78BD_642F;
    folded as u64 ^ (folded >> 64) as u64
}
