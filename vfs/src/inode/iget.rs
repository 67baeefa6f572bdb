//! The iget family: find an inode, wait for it, or become the thread that reads it in.
//!
//! | read             | to learn                                                    |
//! |------------------|-------------------------------------------------------------|
//! | this file        | the family, and its loops                                   |
//! | `iget/find.rs`   | one lookup, one insertion: the table and its locks          |
//! | `iget/result.rs` | what the calls return                                       |
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

mod find;
mod result;

use rcuwalk_sync::probe::{self, Look};
use rcuwalk_sync::{Flag, Spare, Unsettled};

use super::cache::InodeCache;
use super::life::{CREATING, NEW};
use super::new::NewInode;
use super::node::{InodeRef, Key, Node, spread};
use super::scheme::Lookups;
use super::stats::Event;
use find::{ByKey, ByTest, Met, Tried, Wanted};

pub use result::{Iget, InUse, Match, PendingInode, SpareInode, Stale, Unwaited};

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
