//! [`KnownTable`]: a peer's node ids, with count and part of each in one object.
//!
//! For a daemon whose inodes are cached elsewhere, as those of a [`Vfs`](crate::Vfs) are: its own
//! part of an inode needs no cache, only the id that the peer knows it by. A [`NodeTable`] is for
//! parts that are in an [`InodeCache`](super::InodeCache), and has an object of its own for each.
//!
//! NODE-4: an id refers to its part from its first [`KnownEntry`] until the last one that was sent
//! has been returned. One word counts; it never leaves zero, and the thread that stores the zero
//! takes the object off the table. A LOOKUP that comes second makes a new object, beside the old
//! one for a moment: lookups pass over objects whose count is zero.
//!
//! [`NodeTable`]: super::NodeTable

use std::ops::Deref;

use rcuwalk_sync::atomic::*;
use rcuwalk_sync::lock::{self, Rank};
use rcuwalk_sync::{Flag, HashKey, RcuHash, Ref, Shared, rcu};

use super::iget::{InUse, Stale};
use super::node::spread;
use super::nodes::{NodeId, NodeIds, SweepCursor, all, sweep};

/// A daemon's part of an inode that the peer knows.
pub trait KnownPart: Send + Sync + 'static {
    /// The last reference to it is gone, after the peer has returned its last LOOKUP. Comes
    /// before the drop, which waits for RCU readers; the caller holds no lock of this crate.
    fn forgotten(&self) {}
}

/// The parts that a peer knows, by id.
///
/// ```
/// use rcuwalk::inode::{KnownPart, KnownTable, NodeId};
///
/// struct File(&'static str);
/// impl KnownPart for File {}
///
/// let known = KnownTable::new();
/// let entry = known.insert(NodeId(7), File("a name"), |_| false).unwrap();
/// let id = entry.sent();
/// assert_eq!(known.get(id).unwrap().0, "a name");
/// known.forget(id, 1).unwrap();
/// assert!(known.get(id).is_err());
/// ```
#[doc(alias = "fuse_inode table")]
pub struct KnownTable<P: KnownPart> {
    table: RcuHash<Known<P>>,
    ids: NodeIds,
}

/// A part with its id. It dereferences to the part.
pub struct Known<P> {
    id: NodeId,
    /// See NODE-4.
    lookups: AtomicU64,
    part: P,
}

// For the hash table alone. No bound or signature of the public interface names this trait.
#[doc(hidden)]
#[allow(exported_private_dependencies)]
impl<P> HashKey for Known<P> {
    fn hash(&self) -> u64 {
        spread(self.id.0)
    }
}

impl<P> Deref for Known<P> {
    type Target = P;
    fn deref(&self) -> &P {
        &self.part
    }
}

impl<P> Known<P> {
    /// The id by which the peer knows it, or knew it.
    pub fn id(&self) -> NodeId {
        self.id
    }

    fn is_known(&self) -> bool {
        // Acquire: pairs with the Release in `count`; a thread that finds an id forgotten sees
        // what the forgetting thread did before.
        self.lookups.load(Acquire) != 0
    }

    /// One more LOOKUP, unless the last one has been returned.
    fn raise(&self) -> bool {
        self.count(|lookups| lookups.saturating_add(1)).is_ok()
    }

    /// Returns `count` LOOKUPs. True if none is left: then the caller takes the object off the
    /// table, and no other thread does.
    fn lower(&self, count: u64) -> Result<bool, Stale> {
        self.count(|lookups| lookups.saturating_sub(count))
            .map(|left| left == 0)
    }

    /// Changes the count, unless it is zero. Returns the new one.
    fn count(&self, change: impl Fn(u64) -> u64) -> Result<u64, Stale> {
        let mut now = self.lookups.load(Relaxed);
        while now != 0 {
            let next = change(now);
            // Release: pairs with the Acquire in `is_known`.
            match self
                .lookups
                .compare_exchange_weak(now, next, Release, Relaxed)
            {
                Ok(_) => return Ok(next),
                Err(other) => now = other,
            }
        }
        Err(Stale)
    }
}

impl<P: KnownPart> KnownTable<P> {
    /// An empty table.
    pub fn new() -> Self {
        KnownTable {
            table: RcuHash::new(Rank::NodeBucket),
            ids: NodeIds::new(),
        }
    }

    /// An id that was never drawn before; the first one is the root's.
    pub fn new_id(&self) -> NodeId {
        self.ids.draw()
    }

    /// The part that the peer calls `id`. Takes no lock, unless the table is changing its size.
    ///
    /// # Errors
    /// [`Stale`] if the peer has given the id back, or never had it.
    pub fn get(&self, id: NodeId) -> Result<KnownRef<P>, Stale> {
        let is_it = |known: &Shared<Known<P>>| known.id == id && known.is_known();
        let take = |found: &Shared<Known<P>>| found.try_get().map(KnownRef::new).ok_or(Stale);
        {
            let guard = rcu::read_lock();
            if let Ok(found) = self.table.view(&guard).find_settled(spread(id.0), is_it) {
                return found.map_or(Err(Stale), take);
            }
        }
        // The table is changing its size.
        let bucket = self.table.lock(spread(id.0));
        bucket.find(is_it).map_or(Err(Stale), take)
    }

    /// One more LOOKUP of a part that the caller has: the reply carries its id and a count.
    /// Takes no lock.
    ///
    /// # Errors
    /// [`Stale`] if the peer has given it back meanwhile. Then that object is done with: make
    /// a new one known.
    #[doc(alias("fuse_reply_entry", "nlookup"))]
    pub fn entry(&self, known: KnownRef<P>) -> Result<KnownEntry<'_, P>, Stale> {
        match known.raise() {
            true => Ok(KnownEntry::new(self, known)),
            false => Err(Stale),
        }
    }

    /// The first LOOKUP of a part: the peer is to know it by `id`. If the peer knows a part by
    /// that id which is the `same`, this is one more LOOKUP of that one, and `part` is dropped.
    ///
    /// `same` runs with a bucket locked: it does not block, and does not use the table.
    ///
    /// # Errors
    /// [`InUse`] if the peer knows another part by that id.
    pub fn insert(
        &self,
        id: NodeId,
        part: P,
        same: impl Fn(&P) -> bool,
    ) -> Result<KnownEntry<'_, P>, InUse> {
        // Made before locking: no thread waits for the allocator.
        let new = KnownRef::new(Ref::new(Known {
            id,
            lookups: AtomicU64::new(1),
            part,
        }));
        let mut bucket = self.table.lock(spread(id.0));
        loop {
            let Some(there) = bucket.find(|known| known.id == id && known.is_known()) else {
                bucket.insert(new.counted().clone());
                drop(bucket);
                return Ok(KnownEntry::new(self, new));
            };
            if !same(there) {
                return Err(InUse);
            }
            // The table has a reference, so there is one to be had.
            let there = there.try_get().map(KnownRef::new).ok_or(InUse)?;
            // Otherwise another thread has returned the last LOOKUP just now.
            if there.raise() {
                drop(bucket);
                return Ok(KnownEntry::new(self, there));
            }
        }
    }

    /// The peer returns `count` LOOKUPs of `id`. A count above its total returns all of them.
    ///
    /// # Errors
    /// [`Stale`] if it had none.
    #[doc(alias = "FUSE_FORGET")]
    pub fn forget(&self, id: NodeId, count: u64) -> Result<(), Stale> {
        self.give_back(&self.get(id)?, count)
    }

    /// As [`forget`](Self::forget), for a caller that has looked the id up.
    ///
    /// # Errors
    /// [`Stale`] if the peer had none, also if it has been told of the id again since.
    pub fn give_back(&self, known: &KnownRef<P>, count: u64) -> Result<(), Stale> {
        if known.lower(count)? {
            let off = self.table.lock(spread(known.id.0)).remove(known.counted());
            // Unlocked: this may be the last reference.
            drop(off.map(KnownRef::new));
        }
        Ok(())
    }

    /// As [`NodeTable::sweep`](super::NodeTable::sweep).
    #[doc(alias = "list_lru_walk")]
    pub fn sweep(
        &self,
        cursor: &mut SweepCursor,
        most: usize,
        found: &mut Vec<NodeId>,
        mut wanted: impl FnMut(&Known<P>) -> bool,
    ) -> usize {
        sweep(&self.table, cursor, most, |known, _| {
            if known.is_known() && wanted(known) {
                found.push(known.id);
            }
        })
    }

    /// As [`NodeTable::ids`](super::NodeTable::ids).
    pub fn ids(&self) -> Vec<NodeId> {
        all(&self.table, |known| known.is_known().then_some(known.id))
    }

    /// How many LOOKUPs of `id` the peer has not given back.
    pub fn lookups(&self, id: NodeId) -> u64 {
        self.get(id).map_or(0, |known| known.lookups.load(Relaxed))
    }

    /// How many parts the peer knows, except for calls under way.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True if it knows none, except for calls under way.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl<P: KnownPart> Default for KnownTable<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// A counted reference to a part, whether the peer still knows it or not.
pub struct KnownRef<P: KnownPart>(
    /// `Some` until it is dropped.
    Option<Ref<Known<P>>>,
);

impl<P: KnownPart> KnownRef<P> {
    fn new(known: Ref<Known<P>>) -> Self {
        KnownRef(Some(known))
    }

    fn counted(&self) -> &Ref<Known<P>> {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl<P: KnownPart> Clone for KnownRef<P> {
    fn clone(&self) -> Self {
        KnownRef::new(self.counted().clone())
    }
}

impl<P: KnownPart> Deref for KnownRef<P> {
    type Target = Known<P>;
    #[inline]
    fn deref(&self) -> &Known<P> {
        self.counted()
    }
}

impl<P: KnownPart> Drop for KnownRef<P> {
    #[inline]
    fn drop(&mut self) {
        if let Some(known) = self.0.take()
            && let Some(last) = Ref::put_unless_last(known, Flag::NONE)
        {
            put_last(last);
        }
    }
}

/// Drops the last reference. The table has a reference to each part that it holds, so this one
/// has left it.
#[cold]
fn put_last<P: KnownPart>(mut known: Ref<Known<P>>) {
    if !lock::may_sleep() {
        return lock::when_none_held(move || put_last(known));
    }
    // A reader that found it on the table may take a reference until it is dead, and then drops
    // that one here.
    while !known.kill_if_last(Flag::NONE) {
        match Ref::put_unless_last(known, Flag::NONE) {
            None => return,
            Some(last) => known = last,
        }
    }
    known.forgotten();
}

/// The answer to a LOOKUP: a part with its id, and a count for it that the peer does not have
/// yet.
///
/// Dropping it gives the count back: a reply that could not be sent.
#[must_use = "dropping it takes the LOOKUP back"]
pub struct KnownEntry<'t, P: KnownPart> {
    table: &'t KnownTable<P>,
    known: KnownRef<P>,
    counted: bool,
}

impl<'t, P: KnownPart> KnownEntry<'t, P> {
    fn new(table: &'t KnownTable<P>, known: KnownRef<P>) -> Self {
        KnownEntry {
            table,
            known,
            counted: true,
        }
    }

    /// The id to send to the peer.
    pub fn id(&self) -> NodeId {
        self.known.id
    }

    /// The part that it stands for.
    pub fn known(&self) -> &KnownRef<P> {
        &self.known
    }

    /// The peer has it: the count is the peer's now, to be given back with
    /// [`KnownTable::forget`].
    pub fn sent(mut self) -> NodeId {
        self.counted = false;
        self.id()
    }
}

impl<P: KnownPart> Drop for KnownEntry<'_, P> {
    fn drop(&mut self) {
        if self.counted {
            // It exists: the count that we return is ours.
            let _ = self.table.give_back(&self.known, 1);
        }
    }
}
