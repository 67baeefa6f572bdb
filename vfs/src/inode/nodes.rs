//! [`NodeTable`]: the inodes that a peer has been told of, by number.
//!
//! A FUSE or 9P daemon hands out a node id with each LOOKUP, and the peer gives each
//! one back with FORGET, later, on another thread, many at a time. Between the two the
//! inode is in use. What goes wrong elsewhere is the moment in which the last FORGET
//! and the next LOOKUP meet.
//!
//! NODE-1: an id stands for its inode from its first [`Entry`] until the last one that
//! was sent has been given back, and a count never goes up from zero. The count is
//! changed under the lock of the id's bucket only, and whoever raises it holds the
//! inode: a LOOKUP that comes second finds the id gone and makes it known again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{BucketGuard, HashKey, PerThread, RcuHash, RcuPtr, Ref, rcu};

use super::iget::Stale;
use super::node::{InodeRef, Key, Node, spread};

/// What a peer calls an inode. Never used for a second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root's, in FUSE.
    #[doc(alias = "FUSE_ROOT_ID")]
    pub const ROOT: NodeId = NodeId(1);
}

/// A part that remembers what peers call its inode, so that all names of an inode get
/// the same id.
pub trait Numbered {
    /// The id, from [`NodeTable::new_id`], the same each time.
    fn node_id(&self) -> NodeId;
}

/// The inodes that a peer knows.
///
/// [`get`](Self::get) takes no lock; the rest takes the lock of the id's bucket.
#[doc(alias = "fuse_inode table")]
pub struct NodeTable<K: Key, P: Numbered + Send + Sync + 'static> {
    table: RcuHash<Known<K, P>>,
    /// Ids are drawn in blocks, so that threads do not share a counter.
    next_block: AtomicU64,
    blocks: PerThread<AtomicU64>,
}

/// Ids drawn at a time by one thread.
const BLOCK: u64 = 1024;

struct Known<K: Key, P: Send + Sync + 'static> {
    id: NodeId,
    /// There until the id is given back.
    inode: RcuPtr<Node<K, P>>,
    /// Changed under the bucket's lock.
    lookups: AtomicU64,
}

impl<K: Key, P: Send + Sync + 'static> HashKey for Known<K, P> {
    fn hash(&self) -> u64 {
        spread(self.id.0)
    }
}

impl<K: Key, P: Send + Sync + 'static> Known<K, P> {
    /// What it held, as a reference whose drop is an `iput`.
    fn let_go(&self) -> Option<InodeRef<K, P>> {
        self.inode.swap(None).map(InodeRef::new)
    }
}

impl<K: Key, P: Send + Sync + 'static> Drop for Known<K, P> {
    fn drop(&mut self) {
        drop(self.let_go());
    }
}

impl<K: Key, P: Numbered + Send + Sync + 'static> NodeTable<K, P> {
    /// Nobody knows anything. The first id is that of the root.
    pub fn new() -> Self {
        NodeTable {
            table: RcuHash::new(Rank::NodeBucket),
            next_block: AtomicU64::new(0),
            blocks: PerThread::new(),
        }
    }

    /// An id that was never drawn before.
    pub fn new_id(&self) -> NodeId {
        let mine = self.blocks.get();
        let last = match mine.load(Relaxed) {
            // The block is used up, or this is the first.
            used if used.is_multiple_of(BLOCK) => self.next_block.fetch_add(BLOCK, Relaxed),
            used => used,
        };
        mine.store(last + 1, Relaxed);
        NodeId(last + 1)
    }

    /// One more LOOKUP of `inode`: the reply carries the id and a count.
    #[doc(alias("fuse_reply_entry", "nlookup"))]
    pub fn entry(&self, inode: InodeRef<K, P>) -> Entry<'_, K, P> {
        let id = inode.node_id();
        if self.lock(id).raise().is_none() {
            // Made before locking: nobody waits for the allocator.
            let known = Ref::new(Known {
                id,
                inode: RcuPtr::new(Some(inode.clone().into_shared())),
                lookups: AtomicU64::new(1),
            });
            let mut bucket = self.lock(id);
            match bucket.raise() {
                None => bucket.0.insert(known),
                Some(()) => {
                    // Somebody else has made it known. What we made is freed later, and
                    // is not to hold the inode until then.
                    drop(bucket);
                    drop(known.let_go());
                }
            }
        }
        Entry {
            table: self,
            inode,
            counted: true,
        }
    }

    /// The inode that the peer calls `id`. Takes no lock.
    ///
    /// # Errors
    /// [`Stale`] if the peer has given the id back, or never had it.
    pub fn get(&self, id: NodeId) -> Result<InodeRef<K, P>, Stale> {
        {
            let guard = rcu::read_lock();
            let view = self.table.view(&guard);
            match view.find_settled(spread(id.0), |known| known.id == id) {
                Ok(Some(known)) => return known.inode.get(&guard).map(InodeRef::new).ok_or(Stale),
                Ok(None) => return Err(Stale),
                // The table is changing its size.
                Err(_) => {}
            }
        }
        let bucket = self.lock(id);
        let guard = rcu::read_lock();
        let known = bucket.find().ok_or(Stale)?;
        known.inode.get(&guard).map(InodeRef::new).ok_or(Stale)
    }

    /// The peer gives `count` LOOKUPs of `id` back. More than it had count as all. A
    /// daemon that is to survive a peer which forgets the root keeps an [`Entry`] of it.
    ///
    /// # Errors
    /// [`Stale`] if it had none.
    #[doc(alias = "FUSE_FORGET")]
    pub fn forget(&self, id: NodeId, count: u64) -> Result<(), Stale> {
        let gone = {
            let mut bucket = self.lock(id);
            let known = bucket.find().ok_or(Stale)?;
            let left = known.lookups.load(Relaxed).saturating_sub(count);
            known.lookups.store(left, Relaxed);
            match left {
                0 => bucket.0.remove_where(|known| known.id == id),
                _ => None,
            }
        };
        // Unlocked: this may be the inode's last reference.
        drop(gone.and_then(|known| known.let_go()));
        Ok(())
    }

    /// The same for many ids. Those that the peer did not have are passed over; returns
    /// how many of them there were.
    #[doc(alias = "FUSE_BATCH_FORGET")]
    pub fn batch_forget(&self, forgets: impl IntoIterator<Item = (NodeId, u64)>) -> usize {
        let results = forgets
            .into_iter()
            .map(|(id, count)| self.forget(id, count));
        results.filter(Result::is_err).count()
    }

    /// How many LOOKUPs of `id` the peer has not given back.
    pub fn lookups(&self, id: NodeId) -> u64 {
        let bucket = self.lock(id);
        bucket.find().map_or(0, |known| known.lookups.load(Relaxed))
    }

    /// How many inodes the peer knows, give or take what is under way.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True if it knows none, give or take what is under way.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    fn lock(&self, id: NodeId) -> Bucket<'_, K, P> {
        Bucket(self.table.lock(spread(id.0)), id)
    }
}

impl<K: Key, P: Numbered + Send + Sync + 'static> Default for NodeTable<K, P> {
    fn default() -> Self {
        Self::new()
    }
}

/// The locked bucket of an id.
struct Bucket<'t, K: Key, P: Send + Sync + 'static>(BucketGuard<'t, Known<K, P>>, NodeId);

impl<K: Key, P: Send + Sync + 'static> Bucket<'_, K, P> {
    fn find(&self) -> Option<&Known<K, P>> {
        let found = self.0.find(|known| known.id == self.1)?;
        Some(found)
    }

    /// One more LOOKUP, if the id is known.
    fn raise(&self) -> Option<()> {
        let known = self.find()?;
        let lookups = known.lookups.load(Relaxed).saturating_add(1);
        known.lookups.store(lookups, Relaxed);
        Some(())
    }
}

/// The answer to a LOOKUP: an inode with its id, and a count for it that the peer does
/// not have yet.
///
/// Dropping it gives the count back: a reply that could not be sent.
#[must_use = "dropping it takes the LOOKUP back"]
pub struct Entry<'t, K: Key, P: Numbered + Send + Sync + 'static> {
    table: &'t NodeTable<K, P>,
    inode: InodeRef<K, P>,
    counted: bool,
}

impl<K: Key, P: Numbered + Send + Sync + 'static> Entry<'_, K, P> {
    /// What the peer is to call it.
    pub fn id(&self) -> NodeId {
        self.inode.node_id()
    }

    /// What it is.
    pub fn inode(&self) -> &InodeRef<K, P> {
        &self.inode
    }

    /// The peer has it: the count is the peer's now, to be given back with
    /// [`NodeTable::forget`].
    pub fn sent(mut self) -> NodeId {
        self.counted = false;
        self.id()
    }
}

impl<K: Key, P: Numbered + Send + Sync + 'static> Drop for Entry<'_, K, P> {
    fn drop(&mut self) {
        if self.counted {
            // It is there: the count that we give back is ours.
            let _ = self.table.forget(self.id(), 1);
        }
    }
}
