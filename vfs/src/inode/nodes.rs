//! [`NodeTable`]: the inodes that a peer has been told of, by number.
//!
//! A FUSE or 9P daemon hands out a node id with each LOOKUP, and the peer gives each one back
//! with FORGET, later, on another thread, many at a time. Between the two the inode is in use.
//! Other daemons get the moment wrong in which the last FORGET and the next LOOKUP meet.
//!
//! NODE-1: an id refers to its inode from its first [`Entry`] until the last one that was sent
//! has been returned, and a count never goes up from zero. The count changes under the lock of
//! the id's bucket only, and a thread that raises it holds the inode: a LOOKUP that comes
//! second finds the id gone and makes it known again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{BucketGuard, HashKey, PerThread, RcuGuard, RcuHash, RcuPtr, Ref, rcu};

use super::iget::{InUse, Stale};
use super::node::{InodeRef, Key, Node, spread};

/// A peer's name for an inode. Never used for a second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root's, in FUSE.
    #[doc(alias = "FUSE_ROOT_ID")]
    pub const ROOT: NodeId = NodeId(1);
}

/// A part that remembers the id by which peers know its inode, so that all names of an inode
/// get the same id.
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
    ids: NodeIds,
}

/// Draws ids in blocks, so that threads do not share a counter.
pub(super) struct NodeIds {
    next_block: AtomicU64,
    blocks: PerThread<AtomicU64>,
}

/// Ids drawn at a time by one thread.
const BLOCK: u64 = 1024;

impl NodeIds {
    pub(super) fn new() -> NodeIds {
        NodeIds {
            next_block: AtomicU64::new(0),
            blocks: PerThread::new(),
        }
    }

    /// An id that was never drawn before; the first one is the root's.
    pub(super) fn draw(&self) -> NodeId {
        let mine = self.blocks.get();
        let last = match mine.load(Relaxed) {
            // The block is used up, or this is the first.
            used if used.is_multiple_of(BLOCK) => self.next_block.fetch_add(BLOCK, Relaxed),
            used => used,
        };
        mine.store(last + 1, Relaxed);
        NodeId(last + 1)
    }
}

/// Where a [sweep](NodeTable::sweep) has come to, on its way round the table.
#[derive(Debug, Default)]
#[doc(alias = "clock hand")]
pub struct SweepCursor(usize);

struct Known<K: Key, P: Send + Sync + 'static> {
    id: NodeId,
    /// `Some` until the id is returned.
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
    /// The entry for an inode after its first LOOKUP.
    fn first(id: NodeId, inode: &InodeRef<K, P>) -> Ref<Self> {
        Ref::new(Known {
            id,
            inode: RcuPtr::new(Some(inode.clone().into_shared())),
            lookups: AtomicU64::new(1),
        })
    }

    /// True if the id is this inode's.
    fn is(&self, inode: &InodeRef<K, P>) -> bool {
        let guard = rcu::read_lock();
        let held = self.inode.load(&guard);
        held.is_some_and(|held| held.address() == inode.shared().address())
    }

    /// Its inode, as a reference whose drop is an `iput`.
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
    /// An empty table. The first id is that of the root.
    pub fn new() -> Self {
        NodeTable {
            table: RcuHash::new(Rank::NodeBucket),
            ids: NodeIds::new(),
        }
    }

    /// An id that was never drawn before.
    pub fn new_id(&self) -> NodeId {
        self.ids.draw()
    }

    /// One more LOOKUP of `inode`: the reply carries the id and a count.
    ///
    /// For ids from [`new_id`](Self::new_id), of which no two inodes have the same; else
    /// see [`try_entry`](Self::try_entry).
    #[doc(alias("fuse_reply_entry", "nlookup"))]
    pub fn entry(&self, inode: InodeRef<K, P>) -> Entry<'_, K, P> {
        let id = inode.node_id();
        if self.lock(id).raise().is_none() {
            // Made before locking: no thread waits for the allocator.
            let known = Known::first(id, &inode);
            let mut bucket = self.lock(id);
            match bucket.raise() {
                None => bucket.0.insert(known),
                Some(()) => {
                    // Another thread has made it known. Ours is freed later, and must not hold
                    // the inode until then.
                    drop(bucket);
                    drop(known.let_go());
                }
            }
        }
        Entry::new(self, id, inode)
    }

    /// As [`entry`](Self::entry), for a daemon that chooses ids itself: the inode number,
    /// say, which users see. While the peer knows one inode by an id, no other gets it.
    ///
    /// # Errors
    /// [`InUse`] if the peer knows another inode by this one's id. Give it another, and try
    /// again; a caller that changes an inode's id makes sure that no other thread asks for an
    /// entry of it meanwhile.
    pub fn try_entry(&self, inode: InodeRef<K, P>) -> Result<Entry<'_, K, P>, InUse> {
        let id = inode.node_id();
        let raised = self.lock(id).raise_for(&inode)?;
        if raised.is_none() {
            let known = Known::first(id, &inode);
            let mut bucket = self.lock(id);
            match bucket.raise_for(&inode) {
                Ok(None) => bucket.0.insert(known),
                others => {
                    drop(bucket);
                    drop(known.let_go());
                    others?;
                }
            }
        }
        Ok(Entry::new(self, id, inode))
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

    /// The peer returns `count` LOOKUPs of `id`. A count above its total returns all of them. A
    /// daemon that must survive a peer which forgets the root keeps an [`Entry`] of it.
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

    /// As above for many ids. Ids that the peer did not have are skipped; returns the number of
    /// those.
    #[doc(alias = "FUSE_BATCH_FORGET")]
    pub fn batch_forget(&self, forgets: impl IntoIterator<Item = (NodeId, u64)>) -> usize {
        let results = forgets
            .into_iter()
            .map(|(id, count)| self.forget(id, count));
        results.filter(Result::is_err).count()
    }

    /// Scans `most` ids or a few more, from the position `cursor`, and adds those whose part is
    /// `wanted` to `found`: for a daemon that wants to ask the peer to give some back. Returns
    /// the number scanned; fewer than `most` if that number of chains has been scanned.
    ///
    /// Takes no lock. `wanted` runs under RCU: it does not block (RCU-2), and may see a part
    /// that was given back just now. Once round, the cursor has seen every id that was known
    /// all the time; while the table changes its size it may see one twice, or miss it.
    #[doc(alias = "list_lru_walk")]
    pub fn sweep(
        &self,
        cursor: &mut SweepCursor,
        most: usize,
        found: &mut Vec<NodeId>,
        mut wanted: impl FnMut(&P) -> bool,
    ) -> usize {
        sweep(&self.table, cursor, most, |known, guard| {
            let part = known.inode.load(guard).and_then(|inode| inode.get());
            if part.is_some_and(&mut wanted) {
                found.push(known.id);
            }
        })
    }

    /// All ids that the peer knows all the time that this takes, and some of the others: for a
    /// daemon that tells the peer something about each. Takes no lock.
    pub fn ids(&self) -> Vec<NodeId> {
        all(&self.table, |known| Some(known.id))
    }

    /// How many LOOKUPs of `id` the peer has not given back.
    pub fn lookups(&self, id: NodeId) -> u64 {
        let bucket = self.lock(id);
        bucket.find().map_or(0, |known| known.lookups.load(Relaxed))
    }

    /// How many inodes the peer knows, except for calls under way.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True if it knows none, except for calls under way.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    fn lock(&self, id: NodeId) -> Bucket<'_, K, P> {
        Bucket(self.table.lock(spread(id.0)), id)
    }
}

/// Shows `visit` about `most` objects from `cursor` on; see [`NodeTable::sweep`].
pub(super) fn sweep<T: HashKey + Send + Sync + 'static>(
    table: &RcuHash<T>,
    cursor: &mut SweepCursor,
    most: usize,
    mut visit: impl FnMut(&T, &RcuGuard),
) -> usize {
    let mut looked = 0;
    for _ in 0..most {
        // One chain at a time: a long sweep would delay the freeing of retired objects.
        let guard = rcu::read_lock();
        let view = table.view(&guard);
        let chain = cursor.0 % view.chains();
        view.find(chain as u64, |object| {
            looked += 1;
            visit(object, &guard);
            false
        });
        cursor.0 = chain + 1;
        if looked >= most {
            break;
        }
    }
    looked
}

/// The ids of all objects that are on the table all the time that this takes; see
/// [`NodeTable::ids`].
pub(super) fn all<T: HashKey + Send + Sync + 'static>(
    table: &RcuHash<T>,
    id: impl Fn(&T) -> Option<NodeId>,
) -> Vec<NodeId> {
    loop {
        let mut found = Vec::new();
        let mut chain = 0;
        let chains = table.view(&rcu::read_lock()).chains();
        while chain < chains {
            // One chain at a time, as above.
            let guard = rcu::read_lock();
            let view = table.view(&guard);
            if view.chains() != chains {
                break;
            }
            view.find(chain as u64, |object| {
                found.extend(id(object));
                false
            });
            chain += 1;
        }
        // Otherwise the table has changed its size, and some may have moved past us.
        if chain == chains {
            return found;
        }
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

    /// Like [`raise`](Self::raise), if the id is this inode's.
    fn raise_for(&self, inode: &InodeRef<K, P>) -> Result<Option<()>, InUse> {
        match self.find() {
            Some(known) if !known.is(inode) => Err(InUse),
            _ => Ok(self.raise()),
        }
    }
}

/// The answer to a LOOKUP: an inode with its id, and a count for it that the peer does
/// not have yet.
///
/// Dropping it gives the count back: a reply that could not be sent.
#[must_use = "dropping it takes the LOOKUP back"]
pub struct Entry<'t, K: Key, P: Numbered + Send + Sync + 'static> {
    table: &'t NodeTable<K, P>,
    /// The table that counts it.
    pub(super) id: NodeId,
    inode: InodeRef<K, P>,
    counted: bool,
}

impl<'t, K: Key, P: Numbered + Send + Sync + 'static> Entry<'t, K, P> {
    fn new(table: &'t NodeTable<K, P>, id: NodeId, inode: InodeRef<K, P>) -> Self {
        Entry {
            table,
            id,
            inode,
            counted: true,
        }
    }

    /// The id to send to the peer.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The id.
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
            // It exists: the count that we return is ours.
            let _ = self.table.forget(self.id(), 1);
        }
    }
}
