//! An inode in the cache, and the reference to one.

use std::fmt;
#[cfg(not(shuttle))]
use std::hash::RandomState;
use std::ops::Deref;
#[cfg(not(shuttle))]
use std::sync::LazyLock;

use rcuwalk_sync::{HashKey, Late, Ref, Shared, lock};

use super::cache::Inner;
use super::life::{DONT_CACHE, Life};
use super::registry;

/// The key by which the cache finds an inode.
pub trait Key: Eq + Clone + Send + Sync + 'static {
    /// A hash, the same for equal keys. The cache mixes it, and asks for it under locks
    /// and in the middle of changes: it must not panic.
    fn hash(&self) -> u64;
}

/// An inode in the cache: its key, and the part that its reader filled in.
///
/// It dereferences to that part. A thread with a reference got it after the inode was filled in
/// (INODE-2), or holds the [`NewInode`](super::NewInode) that fills it in. A comparison that
/// runs under RCU or a lock may see it before: see [`get`](Self::get).
#[doc(alias = "struct inode")]
pub struct Node<K, P> {
    /// Key and part. The number is that of the cache it belongs to, for its last reference.
    part: Late<K, P>,
}

impl<K, P> Node<K, P> {
    pub(super) fn new(key: K, cache: u32) -> Self {
        Node {
            part: Late::new(key, cache),
        }
    }

    /// Its key.
    pub fn key(&self) -> &K {
        self.part.beside()
    }

    /// The part, if it has been filled in.
    pub fn get(&self) -> Option<&P> {
        self.part.get()
    }

    pub(super) fn fill(&self, part: P) {
        let first = self.part.set(part);
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

impl<K: Key, P> Node<K, P> {
    /// The hash that it is filed under.
    pub(super) fn filed_under(&self) -> u64 {
        spread(self.key().hash())
    }
}

// For the hash table alone. No bound or signature of the public interface names this trait.
#[doc(hidden)]
#[allow(exported_private_dependencies)]
impl<K: Key, P: Send + Sync + 'static> HashKey for Node<K, P> {
    fn hash(&self) -> u64 {
        self.filed_under()
    }
}

/// The hash that a key is filed under: the caller's own hash may be as simple as the number
/// itself.
///
/// Sixteen consecutive numbers share a group of neighbouring buckets, two cache lines: file
/// systems number inodes in the order they are made, and scans ask for them so. Within its
/// group a number's place is shuffled, so that multiples of sixteen do not meet in one bucket;
/// the place of the group is secret.
#[inline]
pub(super) fn spread(hash: u64) -> u64 {
    let group = u128::from((hash >> 4) ^ seed()) * 0xA076_1D64_78BD_642F;
    (group as u64 ^ (group >> 64) as u64) ^ (hash & 15)
}

/// Another number in each process: a client that chooses inode numbers cannot choose chains.
#[cfg(not(shuttle))]
#[inline]
pub(super) fn seed() -> u64 {
    use std::hash::BuildHasher;
    static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
    *SEED
}

/// A schedule must be repeatable.
#[cfg(shuttle)]
pub(super) fn seed() -> u64 {
    0x9E37_79B9_7F4A_7C15
}

/// A counted reference to a cached inode.
///
/// `clone` is `ihold`, `drop` is `iput`: the last one leaves the inode cached and unused, on the
/// list of what the shrinker may take; or, if it is marked as not to cache, evicts it.
#[doc(alias("ihold", "iput", "igrab"))]
pub struct InodeRef<K: Key, P: Send + Sync + 'static>(
    /// `Some` until it is dropped.
    Option<Ref<Node<K, P>>>,
);

impl<K: Key, P: Send + Sync + 'static> InodeRef<K, P> {
    #[inline]
    pub(crate) fn new(node: Ref<Node<K, P>>) -> Self {
        InodeRef(Some(node))
    }

    /// True if both refer to the same inode.
    pub fn ptr_eq(a: &Self, b: &Self) -> bool {
        a.shared().address() == b.shared().address()
    }

    /// Where the inode is in its life: Live, or Freeing if it was unhashed.
    pub fn life(&self) -> Life {
        Life::of(self.shared())
    }

    /// False once it has been [unhashed](super::InodeCache::unhash): no lookup finds
    /// it any more.
    #[doc(alias = "inode_unhashed")]
    pub fn is_hashed(&self) -> bool {
        self.shared().is_hashed()
    }

    /// Has the inode evicted with its last reference instead of cached: its last name
    /// is gone, say. Until then lookups find it.
    #[doc(alias("I_DONTCACHE", "d_mark_dontcache", "clear_nlink", "generic_drop_inode"))]
    pub fn dont_cache(&self) {
        self.shared().set(DONT_CACHE);
    }

    /// Takes that back: the inode has a name again.
    #[doc(alias = "inc_nlink")]
    pub fn do_cache(&self) {
        self.shared().clear(DONT_CACHE);
    }

    /// The counted object itself.
    #[inline]
    pub(crate) fn shared(&self) -> &Shared<Node<K, P>> {
        self.counted()
    }

    /// Takes the reference out without an `iput`.
    pub(crate) fn into_shared(mut self) -> Ref<Node<K, P>> {
        self.0.take().expect("there until it is dropped")
    }

    #[inline]
    fn counted(&self) -> &Ref<Node<K, P>> {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl<K: Key, P: Send + Sync + 'static> Clone for InodeRef<K, P> {
    fn clone(&self) -> Self {
        InodeRef::new(self.counted().clone())
    }
}

impl<K: Key, P: Send + Sync + 'static> Deref for InodeRef<K, P> {
    type Target = Node<K, P>;
    #[inline]
    fn deref(&self) -> &Node<K, P> {
        self.counted()
    }
}

impl<K: Key + fmt::Debug, P: Send + Sync + fmt::Debug + 'static> fmt::Debug for InodeRef<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeRef")
            .field("key", self.key())
            .field("life", &self.life())
            .field("part", &self.get())
            .finish()
    }
}

impl<K: Key, P: Send + Sync + 'static> Drop for InodeRef<K, P> {
    #[inline]
    fn drop(&mut self) {
        if let Some(node) = self.0.take()
            && let Some(last) = Ref::put_unless_last(node, DONT_CACHE)
        {
            iput_final(last);
        }
    }
}

/// Drops the last reference to an inode that is unhashed, or marked as not to cache.
#[cold]
fn iput_final<K: Key, P: Send + Sync + 'static>(node: Ref<Node<K, P>>) {
    let cache = || registry::find::<Inner<K, P>>(node.part.number());
    if !lock::may_sleep() {
        if !node.is_hashed() && cache().is_none_or(|cache| !cache.sees_off()) {
            // No lookup finds it any more, and there is no hook to call.
            return;
        }
        // Not killed yet: this thread might look for it while it holds that lock.
        return lock::when_none_held(move || iput_final(node));
    }
    let mut node = node;
    loop {
        // Dead objects give no more references; a thread that got one before drops it again and
        // comes here.
        if node.kill_if_last(DONT_CACHE) {
            if let Some(cache) = registry::find::<Inner<K, P>>(node.part.number()) {
                cache.evict_last(node);
            }
            return;
        }
        match Ref::put_unless_last(node, DONT_CACHE) {
            None => return,
            Some(last) => node = last,
        }
    }
}
