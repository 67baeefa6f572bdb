//! The iget family: find an inode, wait for it, or become the thread that reads it in.
//!
//! INODE-1: one live inode per key. A miss takes the lock of insertions once, looks again under
//! it, and inserts; a thread that comes second finds the first one's inode.
//!
//! ```text
//!   find_inode ---- Live, Referenced, Unused ----> a reference: done
//!       |  ^------- New: sleep until filled in, unhashed then? look again
//!       |  |------- Freeing: let go of every lock, sleep until it is gone
//!       |  |        Creating -----> Stale
//!    nothing
//!       v  |
//!   lock, look again ---- something: unlock, as above
//!       |
//!    nothing: `set`, insert as New, unlock ----> NewInode
//! ```
//!
//! **What `test` may see.** Under the lock: an inode whose key is complete and whose part is
//! either complete or not there ([`Node::get`]), that stays on its chain until `test` returns,
//! and that is not Freeing: `on_evict` has not seen it. Under RCU (`…_rcu`, and
//! [`iget`](InodeCache::iget)'s own comparison): also one in mid-teardown, during or after
//! `on_evict`, and one that is off its chain already. It is never freed memory, and key and
//! part are never replaced; but the part's contents, such as a descriptor that `on_evict` has
//! closed, may be gone. So a `test` under RCU compares, and does not act. An accepted inode is
//! checked again before it is handed out.

use std::fmt;

use rcuwalk_sync::lock::{self, Rank};
use rcuwalk_sync::probe::{self, Look, Wait};
use rcuwalk_sync::rcu;
use rcuwalk_sync::{BucketGuard, Dying, Flag, Ref, Shared, Spare, Unsettled};

use super::cache::{Inner, InodeCache};
use super::life::{CREATING, Life, NEW};
use super::new::NewInode;
use super::node::{InodeRef, Key, Node, spread};
use super::scheme::Lookups;
use super::stats::Event;

/// The result of [`InodeCache::iget`].
#[must_use]
#[derive(Debug)]
pub enum Iget<'c, K: Key, P: Send + Sync + 'static> {
    /// The inode is there, filled in.
    Cached(InodeRef<K, P>),
    /// It is not cached: the caller fills it in, and all other threads wait for that.
    New(NewInode<'c, K, P>),
}

/// The key belongs to an inode that its creator has not finished, or that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ESTALE")]
pub struct Stale;

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stale: the inode is being created, or is gone")
    }
}

impl std::error::Error for Stale {}

impl From<Stale> for std::io::Error {
    fn from(_: Stale) -> Self {
        std::io::ErrorKind::StaleNetworkFileHandle.into()
    }
}

/// A lookup that did not wait met this.
#[derive(Debug)]
pub enum Unwaited<K: Key, P: Send + Sync + 'static> {
    /// The inode, filled in.
    Inode(InodeRef<K, P>),
    /// Another thread is reading it in.
    New(PendingInode<K, P>),
}

/// An inode that another thread is reading in.
#[derive(Debug)]
pub struct PendingInode<K: Key, P: Send + Sync + 'static>(InodeRef<K, P>);

impl<K: Key, P: Send + Sync + 'static> PendingInode<K, P> {
    /// Where it is in its life.
    pub fn life(&self) -> Life {
        self.0.life()
    }

    /// Sleeps until it is read in. `None` if that failed, or if it has been unhashed since:
    /// then the caller looks again.
    #[doc(alias = "wait_on_inode")]
    pub fn wait(self) -> Option<InodeRef<K, P>> {
        self.0.shared().wait_until_clear(NEW);
        (self.0.get().is_some() && self.0.is_hashed()).then_some(self.0)
    }
}

/// The state of an inode that a lookup has found, with a reference.
pub(super) enum Met<K: Key, P: Send + Sync + 'static> {
    Inode(InodeRef<K, P>),
    New(PendingInode<K, P>),
    Creating(InodeRef<K, P>),
    Freeing(Dying<Node<K, P>>),
    /// It left while we looked.
    Gone,
}

/// The inode that a lookup wants.
pub(super) trait Wanted<K, P> {
    /// Whether this is it.
    fn test(&self, node: &Node<K, P>) -> bool;

    /// Whether this one, which is Freeing, may have been it.
    fn may_be(&self, node: &Node<K, P>, hash: u64) -> bool;
}

/// By the built-in comparison. It also works on inodes that are Freeing, and so tells the
/// wanted one from others with the same hash: a hook that looks for one of those would wait for
/// itself.
struct ByKey<'k, K>(&'k K);

impl<K: Key, P> Wanted<K, P> for ByKey<'_, K> {
    #[inline]
    fn test(&self, node: &Node<K, P>) -> bool {
        node.key() == self.0
    }

    fn may_be(&self, node: &Node<K, P>, _: u64) -> bool {
        node.key() == self.0
    }
}

/// By the caller's comparison. Under the lock it does not see inodes that are Freeing: if one
/// is another inode with the same hash, we wait for the wrong one, for a moment.
struct ByTest<T>(T);

impl<K: Key, P, T: Fn(&Node<K, P>) -> bool> Wanted<K, P> for ByTest<T> {
    #[inline]
    fn test(&self, node: &Node<K, P>) -> bool {
        self.0(node)
    }

    fn may_be(&self, node: &Node<K, P>, hash: u64) -> bool {
        node.filed_under() == hash
    }
}

/// The result of an attempt to insert.
pub(super) enum Tried<K: Key, P: Send + Sync + 'static> {
    Inserted(Ref<Node<K, P>>),
    /// Another thread was first. The memory is for the next attempt.
    Met(Spare<Node<K, P>>, Met<K, P>),
}

impl<K: Key, P: Send + Sync + 'static> InodeCache<K, P> {
    /// The cached inode for `key`, or a [`NewInode`] to fill in.
    ///
    /// A hit takes no lock. Sleeps while another thread reads the inode in; if that
    /// one fails, this call may become the new reader. Sleeps while an inode with that
    /// key is on its way out.
    ///
    /// # Errors
    /// [`Stale`] if the inode is [being created](Self::insert_inode).
    #[doc(alias("iget_locked", "find_inode_fast"))]
    #[inline]
    pub fn iget(&self, key: K) -> Result<Iget<'_, K, P>, Stale> {
        let hash = key.hash();
        let lookups = self.inner.scheme.lookups;
        self.obtain(hash, lookups, &ByKey(&key), || Ok(key.clone()))
    }

    /// Like [`iget`](Self::iget), with the caller's own comparison: `test` among the inodes
    /// that are filed under `hash`, and `set` to make the key of a new one. Both run with the
    /// bucket locked; the module documentation says what they may see. They must not use the
    /// cache.
    ///
    /// # Errors
    /// [`Stale`] as above, and what `set` returns: then nothing has been inserted.
    ///
    /// # Panics
    /// If the hash of the key that `set` made is not `hash`.
    #[doc(alias = "iget5_locked")]
    pub fn iget5<E: From<Stale>>(
        &self,
        hash: u64,
        test: impl Fn(&Node<K, P>) -> bool,
        set: impl FnOnce() -> Result<K, E>,
    ) -> Result<Iget<'_, K, P>, E> {
        self.obtain(hash, Lookups::Locked, &ByTest(test), set)
    }

    /// Like [`iget5`](Self::iget5), but `test` runs under RCU first, and a hit takes no lock:
    /// the module documentation says what `test` must then expect.
    ///
    /// # Errors
    /// As for [`iget5`](Self::iget5).
    ///
    /// # Panics
    /// As [`iget5`](Self::iget5).
    #[doc(alias = "iget5_locked_rcu")]
    pub fn iget5_rcu<E: From<Stale>>(
        &self,
        hash: u64,
        test: impl Fn(&Node<K, P>) -> bool,
        set: impl FnOnce() -> Result<K, E>,
    ) -> Result<Iget<'_, K, P>, E> {
        self.obtain(hash, self.inner.scheme.lookups, &ByTest(test), set)
    }

    /// Prefetches the first memory that a lookup of `key` reads, for callers that look it up in
    /// a moment: with millions of inodes, most of a lookup's time is waiting for that.
    #[inline]
    pub fn prefetch(&self, key: &K) {
        self.inner.table.prefetch(spread(key.hash()));
    }

    /// The second half of [`prefetch`](Self::prefetch), some keys later: the lines that the
    /// first half has loaded tell which others are needed.
    #[inline]
    pub fn prefetch_chain(&self, key: &K) {
        self.inner.table.prefetch_chain(spread(key.hash()));
    }

    /// The cached inode for `key`, if there is one. Sleeps while it is New, and while
    /// one is on its way out.
    ///
    /// Takes no lock, unless the table is changing its size.
    ///
    /// # Errors
    /// [`Stale`] if the inode is [being created](Self::insert_inode).
    #[doc(alias = "find_inode_fast")]
    pub fn ilookup(&self, key: &K) -> Result<Option<InodeRef<K, P>>, Stale> {
        let lookups = self.inner.scheme.lookups;
        let settle = |met| self.inner.settle(met);
        self.look(key.hash(), lookups, &ByKey(key), settle)
    }

    /// As [`ilookup`](Self::ilookup), with the caller's own comparison, which runs with
    /// the bucket locked.
    ///
    /// # Errors
    /// As for [`ilookup`](Self::ilookup).
    pub fn ilookup5(
        &self,
        hash: u64,
        test: impl Fn(&Node<K, P>) -> bool,
    ) -> Result<Option<InodeRef<K, P>>, Stale> {
        self.look(hash, Lookups::Locked, &ByTest(test), |met| {
            self.inner.settle(met)
        })
    }

    /// As [`ilookup5`](Self::ilookup5), with the comparison under RCU.
    ///
    /// # Errors
    /// As for [`ilookup`](Self::ilookup).
    pub fn ilookup5_rcu(
        &self,
        hash: u64,
        test: impl Fn(&Node<K, P>) -> bool,
    ) -> Result<Option<InodeRef<K, P>>, Stale> {
        let lookups = self.inner.scheme.lookups;
        self.look(hash, lookups, &ByTest(test), |met| self.inner.settle(met))
    }

    /// Like [`ilookup5`](Self::ilookup5), but returns an inode that another thread is reading
    /// in instead of waiting for it. Still sleeps while one is being freed.
    ///
    /// # Errors
    /// As for [`ilookup`](Self::ilookup).
    pub fn ilookup5_nowait(
        &self,
        hash: u64,
        test: impl Fn(&Node<K, P>) -> bool,
    ) -> Result<Option<Unwaited<K, P>>, Stale> {
        self.look(hash, Lookups::Locked, &ByTest(test), |met| {
            self.unwaited(met)
        })
    }

    /// As [`ilookup5_nowait`](Self::ilookup5_nowait), with the comparison under RCU.
    ///
    /// # Errors
    /// As for [`ilookup`](Self::ilookup).
    pub fn ilookup5_nowait_rcu(
        &self,
        hash: u64,
        test: impl Fn(&Node<K, P>) -> bool,
    ) -> Result<Option<Unwaited<K, P>>, Stale> {
        let lookups = self.inner.scheme.lookups;
        self.look(hash, lookups, &ByTest(test), |met| self.unwaited(met))
    }

    /// Shows `matches` the inodes that are filed under `hash`, with the bucket locked,
    /// until it takes one or has seen enough. Never sleeps for an inode: those that are
    /// New, Creating or Freeing are not shown.
    pub fn find_inode_nowait(
        &self,
        hash: u64,
        mut matches: impl FnMut(&Node<K, P>) -> Match,
    ) -> Option<InodeRef<K, P>> {
        let hash = spread(hash);
        let locked = self.inner.lock(hash, Event::LookupLock);
        let mut taken = None;
        locked.bucket.find(|node| {
            if node.filed_under() != hash || node.get().is_none() || node.has(NEW) {
                return false;
            }
            // Before it is shown: a referenced inode cannot be Freeing by then.
            let Some(held) = node.try_get_used().map(InodeRef::new) else {
                return false;
            };
            match matches(node) {
                Match::Take => taken = Some(held),
                Match::Next => return false,
                Match::Stop => {}
            }
            true
        });
        drop(locked);
        taken
    }

    /// Memory for an inode, got ahead of [`inode_insert5`](Self::inode_insert5).
    #[doc(alias = "new_inode")]
    pub fn alloc_inode(&self) -> SpareInode<K, P> {
        SpareInode(Spare::new())
    }

    /// Inserts `inode`, unless `test` accepts a cached one: then that is returned. `test` and
    /// `set` are as for [`iget5`](Self::iget5). For callers that usually know that there is
    /// none.
    ///
    /// # Errors
    /// As for [`iget5`](Self::iget5).
    ///
    /// # Panics
    /// As [`iget5`](Self::iget5).
    pub fn inode_insert5<E: From<Stale>>(
        &self,
        inode: SpareInode<K, P>,
        hash: u64,
        test: impl Fn(&Node<K, P>) -> bool,
        set: impl FnOnce() -> Result<K, E>,
    ) -> Result<Iget<'_, K, P>, E> {
        self.insert(inode, hash, &ByTest(test), set)
    }

    fn insert<E: From<Stale>>(
        &self,
        inode: SpareInode<K, P>,
        hash: u64,
        wanted: &impl Wanted<K, P>,
        set: impl FnOnce() -> Result<K, E>,
    ) -> Result<Iget<'_, K, P>, E> {
        let (mut spare, mut set) = (inode.0, Some(set));
        loop {
            match self
                .inner
                .try_insert(spare, hash, wanted, &mut set, Flag::NONE)?
            {
                Tried::Inserted(node) => {
                    return Ok(Iget::New(NewInode::new(&self.inner, node)));
                }
                Tried::Met(back, met) => {
                    if let Some(inode) = self.inner.settle(met)? {
                        return Ok(Iget::Cached(inode));
                    }
                    spare = back;
                }
            }
        }
    }

    /// Reserves `key` for an inode that the caller is creating. Until it is filled in, lookups
    /// of the key get [`Stale`]: no other caller can know it yet.
    ///
    /// Sleeps while an inode with that key is read in or is on its way out.
    ///
    /// # Errors
    /// [`InUse`] if there is one with that key.
    #[doc(alias("insert_inode_locked", "I_CREATING"))]
    pub fn insert_inode(&self, key: K) -> Result<NewInode<'_, K, P>, InUse> {
        let hash = key.hash();
        let mut spare = Spare::new();
        loop {
            let wanted = ByKey(&key);
            let mut set = Some(|| Ok::<K, Stale>(key.clone()));
            let tried = self
                .inner
                .try_insert(spare, hash, &wanted, &mut set, CREATING);
            match tried {
                Ok(Tried::Inserted(node)) => {
                    return Ok(NewInode::new(&self.inner, node));
                }
                Ok(Tried::Met(back, met)) => match self.inner.settle(met) {
                    Ok(None) => spare = back,
                    Ok(Some(_)) | Err(Stale) => return Err(InUse),
                },
                Err(Stale) => return Err(InUse),
            }
        }
    }

    #[inline]
    fn obtain<E: From<Stale>>(
        &self,
        hash: u64,
        lookups: Lookups,
        wanted: &impl Wanted<K, P>,
        set: impl FnOnce() -> Result<K, E>,
    ) -> Result<Iget<'_, K, P>, E> {
        loop {
            match self.inner.find_inode(hash, lookups, wanted) {
                Ok(Some(Met::Inode(inode))) => return Ok(Iget::Cached(inode)),
                Ok(Some(met)) => {
                    if let Some(inode) = self.inner.settle(met)? {
                        return Ok(Iget::Cached(inode));
                    }
                }
                nothing @ (Ok(None) | Err(Unsettled)) => {
                    if nothing.is_err() {
                        self.inner.counters.get().count(Event::FirstMiss);
                        probe::iget(hash, false, self.inner.scheme.number(), Look::First);
                    }
                    // Allocated before locking: no thread waits for the allocator.
                    return self.insert(self.alloc_inode(), hash, wanted, set);
                }
            }
        }
    }

    fn look<T>(
        &self,
        hash: u64,
        lookups: Lookups,
        wanted: &impl Wanted<K, P>,
        settle: impl Fn(Met<K, P>) -> Result<Option<T>, Stale>,
    ) -> Result<Option<T>, Stale> {
        loop {
            let found = self.inner.find_inode(hash, lookups, wanted);
            let found = found.or_else(|Unsettled| {
                // Under the lock a miss is a miss.
                self.inner.find_inode(hash, Lookups::Locked, wanted)
            });
            match found {
                Ok(None) | Err(Unsettled) => return Ok(None),
                Ok(Some(met)) => {
                    if let Some(settled) = settle(met)? {
                        return Ok(Some(settled));
                    }
                }
            }
        }
    }

    fn unwaited(&self, met: Met<K, P>) -> Result<Option<Unwaited<K, P>>, Stale> {
        match met {
            Met::New(pending) => Ok(Some(Unwaited::New(pending))),
            met => Ok(self.inner.settle(met)?.map(Unwaited::Inode)),
        }
    }
}

/// Memory for an inode that is not in the cache yet.
pub struct SpareInode<K: Key, P: Send + Sync + 'static>(Spare<Node<K, P>>);

/// What to do with an inode that [`InodeCache::find_inode_nowait`] shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It is the one.
    #[doc(alias = "igrab")]
    Take,
    /// Show the next.
    Next,
    /// None is.
    Stop,
}

/// There is an inode with that key already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "EBUSY")]
pub struct InUse;

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("in use: there is an inode with that key")
    }
}

impl std::error::Error for InUse {}

impl From<InUse> for std::io::Error {
    fn from(_: InUse) -> Self {
        std::io::ErrorKind::ResourceBusy.into()
    }
}

impl<K: Key, P: Send + Sync + 'static> Inner<K, P> {
    /// The first look. Under RCU a miss may prove nothing: the table is changing its size. Then
    /// it is not counted here, but by the second look, if there is one.
    #[inline]
    fn find_inode(
        &self,
        hash: u64,
        lookups: Lookups,
        wanted: &impl Wanted<K, P>,
    ) -> Result<Option<Met<K, P>>, Unsettled> {
        let filed_under = spread(hash);
        let found = match lookups {
            Lookups::Rcu => self.find_inode_rcu(filed_under, wanted),
            Lookups::Locked => {
                let locked = self.lock(filed_under, Event::LookupLock);
                let met = Self::find_inode_locked(&locked.bucket, filed_under, wanted);
                drop(locked);
                self.counters.get().count(match met {
                    Some(_) => Event::Hit,
                    None => Event::FirstMiss,
                });
                Ok(met)
            }
        };
        if let Ok(met) = &found {
            probe::iget(hash, met.is_some(), self.scheme.number(), Look::First);
        }
        found
    }

    #[inline]
    #[doc(alias = "__find_inode_rcu")]
    fn find_inode_rcu(
        &self,
        hash: u64,
        wanted: &impl Wanted<K, P>,
    ) -> Result<Option<Met<K, P>>, Unsettled> {
        lock::assert_not_held(Rank::InodeBucket);
        let met = {
            let guard = rcu::read_lock();
            let view = self.table.view(&guard);
            let found = view.find_settled(hash, |node| wanted.test(node));
            let counters = self.counters.get_with(&guard);
            match found {
                Ok(Some(node)) => {
                    counters.count(Event::Hit);
                    Self::meet(node)
                }
                Ok(None) => {
                    counters.count(Event::FirstMiss);
                    return Ok(None);
                }
                // The second look, under the lock, counts that.
                Err(Unsettled) => return Err(Unsettled),
            }
        };
        Ok(Some(met.unless_unhashed()))
    }

    fn find_inode_locked(
        bucket: &BucketGuard<'_, Node<K, P>>,
        hash: u64,
        wanted: &impl Wanted<K, P>,
    ) -> Option<Met<K, P>> {
        lock::assert_held(Rank::InodeBucket);
        let node = bucket.find(|node| match node.is_dead() {
            true => wanted.may_be(node, hash),
            false => wanted.test(node),
        })?;
        Some(Self::meet(node))
    }

    /// Takes a reference to the inode, and returns its state.
    #[inline]
    fn meet(node: &Shared<Node<K, P>>) -> Met<K, P> {
        match node.try_get_used() {
            Some(held) if !held.has(NEW) => Met::Inode(InodeRef::new(held)),
            Some(held) if held.has(CREATING) => Met::Creating(InodeRef::new(held)),
            Some(held) => Met::New(PendingInode(InodeRef::new(held))),
            None => node.dying().map_or(Met::Gone, Met::Freeing),
        }
    }

    /// Waits for the inode that was met. `None` means: look again.
    pub(super) fn settle(&self, met: Met<K, P>) -> Result<Option<InodeRef<K, P>>, Stale> {
        let counters = self.counters.get();
        match met {
            Met::Inode(inode) => Ok(Some(inode)),
            Met::New(pending) => {
                counters.count(Event::WaitedForNew);
                probe::wait(|| pending.0.key().hash(), Wait::New);
                Ok(pending.wait())
            }
            Met::Creating(inode) => {
                drop(inode);
                counters.count(Event::Stale);
                Err(Stale)
            }
            Met::Freeing(dying) => {
                counters.count(Event::WaitedForFreeing);
                probe::wait(|| dying.key().hash(), Wait::Freeing);
                dying.wait_until_unhashed();
                Ok(None)
            }
            Met::Gone => Ok(None),
        }
    }

    /// The second look, and the insertion if it finds nothing. INODE-1: both under one
    /// lock.
    pub(super) fn try_insert<E>(
        &self,
        spare: Spare<Node<K, P>>,
        hash: u64,
        wanted: &impl Wanted<K, P>,
        set: &mut Option<impl FnOnce() -> Result<K, E>>,
        marks: Flag,
    ) -> Result<Tried<K, P>, E> {
        let filed_under = spread(hash);
        let counters = self.counters.get();
        let locked = self.lock(filed_under, Event::InsertLock);
        if let Some(met) = Self::find_inode_locked(&locked.bucket, filed_under, wanted) {
            drop(locked);
            counters.count(Event::SecondHit);
            probe::iget(hash, true, self.scheme.number(), Look::Second);
            return Ok(Tried::Met(spare, met));
        }
        probe::iget(hash, false, self.scheme.number(), Look::Second);
        let set = set.take().expect("one insertion per call");
        let key = set()?;
        assert_eq!(
            spread(key.hash()),
            filed_under,
            "INODE-1: a key is filed under the hash that it is looked for by"
        );
        let node = Node::new(key, self.number.get());
        let creating = marks == CREATING;
        // Aged: inodes that are not used again go first.
        let marks = marks | NEW | Flag::AGED;
        let node = locked.bucket.insert_new(spare, node, marks);
        counters.count(Event::Inserted);
        probe::iget_insert(hash, creating);
        Ok(Tried::Inserted(node))
    }
}

impl<K: Key, P: Send + Sync + 'static> Met<K, P> {
    /// The inode may have left the table after RCU showed it to us and before we counted it.
    /// Call this outside of the read section: our reference may be the last.
    #[inline]
    fn unless_unhashed(self) -> Self {
        match self {
            Met::Inode(inode) if !inode.is_hashed() => Met::Gone,
            met => met,
        }
    }
}
