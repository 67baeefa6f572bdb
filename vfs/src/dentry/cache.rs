//! The dentry cache: who is called what.
//!
//! A lookup under RCU may miss a name that is being moved and proves nothing; under
//! a reference the bucket's lock settles it. DENTRY-3: during a rename a name is
//! found old or new, never neither: in between it is off the table, a walk misses,
//! goes to the slow path, and waits there for the directory that the rename holds.

use std::sync::atomic::AtomicU64;

use rcuwalk_sync::atomic::Relaxed;
use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{Lru, RcuHash, Ref, Shared, rcu};

use super::in_lookup::LookupTable;
use super::name::HashKeys;
use super::{Dentry, DentryRef, Flags, NameHash, Validity};
use crate::budget::Share;
use crate::inode::InodeRef;
use crate::name::Name;

/// All cached names of one [`Vfs`](crate::Vfs).
pub(crate) struct Dcache {
    pub(super) table: RcuHash<Dentry>,
    pub(super) lru: Lru<Dentry>,
    pub(super) share: Share,
    pub(super) in_lookup: LookupTable,
    keys: HashKeys,
    pub(super) evicted: AtomicU64,
}

impl Dcache {
    pub(crate) fn new(dentries: usize, bytes: usize) -> Dcache {
        let share = Share::new(dentries, bytes, Shared::<Dentry>::BYTES);
        Dcache {
            table: RcuHash::new(Rank::DentryBucket),
            lru: Lru::new(
                Rank::Lru,
                share.shards(),
                share.look_after(),
                Dentry::extra_bytes,
            ),
            share,
            in_lookup: LookupTable::new(),
            keys: HashKeys::random(),
            evicted: AtomicU64::new(0),
        }
    }

    pub(crate) fn keys(&self) -> HashKeys {
        self.keys
    }

    /// The table itself, for the RCU-walk.
    #[inline]
    pub(crate) fn table(&self) -> &RcuHash<Dentry> {
        &self.table
    }

    pub(crate) fn name<'a>(&self, name: Name<'a>) -> NameHash<'a> {
        NameHash::new(name, self.keys)
    }

    /// The dentry of `name` in `parent`, if it is cached. Takes no lock on a hit.
    #[doc(alias = "lookup_dcache")]
    pub(crate) fn d_lookup(&self, parent: &DentryRef, name: &NameHash<'_>) -> Option<DentryRef> {
        self.d_lookup_rcu(parent, name)
            .or_else(|| self.d_lookup_locked(parent, name))
    }

    /// May miss what is there (see the hash table); what it finds is there.
    #[doc(alias = "__d_lookup_rcu")]
    pub(crate) fn d_lookup_rcu(
        &self,
        parent: &DentryRef,
        name: &NameHash<'_>,
    ) -> Option<DentryRef> {
        let guard = rcu::read_lock();
        let mut seq = None;
        let dentry = self
            .table
            .find(name.in_dir(parent.address()), &guard, |dentry| {
                seq = dentry.seq.read_begin();
                seq.is_some() && dentry.is_named(parent.address(), name, &guard)
            })?;
        let found = dentry.try_get()?;
        let same = !found.seq.read_retry(seq?) && !Flags::of(seq?).contains(Flags::UNHASHED);
        drop(guard);
        same.then_some(found)
    }

    /// Under the bucket's lock a miss is a miss.
    fn d_lookup_locked(&self, parent: &DentryRef, name: &NameHash<'_>) -> Option<DentryRef> {
        let bucket = self.table.lock(name.in_dir(parent.address()));
        let guard = rcu::read_lock();
        let found = bucket
            .find(|dentry| !dentry.is_dead() && dentry.is_named(parent.address(), name, &guard))?;
        found.try_get()
    }

    /// Adds `name` in `parent`, standing for `inode` or for nothing. The caller has
    /// the right to: it holds the directory exclusively, or an
    /// [`InLookup`](super::InLookup) for the name.
    #[doc(alias = "d_instantiate")]
    pub(crate) fn d_add(
        &self,
        parent: &DentryRef,
        name: &NameHash<'_>,
        inode: Option<InodeRef>,
        validity: Validity,
    ) -> DentryRef {
        // Built before locking: nobody waits for the allocator.
        let dentry = Dentry::new(parent.sb(), parent.clone(), name, inode, validity);
        let mut bucket = self.table.lock(name.in_dir(parent.address()));
        {
            // A dead one that its shrinker has not taken off yet goes now, so that
            // there is one dentry per name on the chain.
            let guard = rcu::read_lock();
            let dead = bucket
                .remove_where(|old| old.is_dead() && old.is_named(parent.address(), name, &guard));
            drop(guard);
            bucket.insert(dentry.clone());
            drop(bucket);
            drop(dead);
        }
        self.add_to_lru(dentry.clone());
        dentry
    }

    /// A dentry to be [added](Self::add_unasked) soon; its bucket is being fetched.
    pub(crate) fn d_alloc(
        &self,
        parent: &DentryRef,
        name: &NameHash<'_>,
        inode: InodeRef,
        validity: Validity,
    ) -> DentryRef {
        self.table.prefetch(name.in_dir(parent.address()));
        Dentry::new(parent.sb(), parent.clone(), name, Some(inode), validity)
    }

    /// Adds a dentry that nobody has asked for, unless the name is cached. The caller
    /// holds the directory exclusively.
    pub(crate) fn add_unasked(&self, dentry: DentryRef) {
        let mut bucket = self.table.lock(dentry.hash.load(Relaxed));
        // A dead one that is still there is enough to let it be.
        if bucket.find(|old| old.is_like(&dentry)).is_none() {
            bucket.insert(dentry.clone());
            drop(bucket);
            self.add_to_lru(dentry);
        }
    }

    /// Takes a name out of the cache. Who holds the dentry keeps it; nobody finds
    /// it again.
    #[doc(alias = "d_delete")]
    pub(crate) fn d_drop(&self, dentry: &DentryRef) {
        {
            let locked = dentry.lock(Rank::Dentry);
            let flags = locked.flags();
            if flags.intersects(Flags::UNHASHED | Flags::ROOT) {
                return;
            }
            let off = self.table.lock(locked.hash.load(Relaxed)).remove(&locked);
            locked
                .seq
                .write()
                .set_payload((flags | Flags::UNHASHED).bits());
            drop(locked);
            drop(off);
        }
        drop(self.lru.remove(dentry));
    }

    /// Moves a dentry to another name, another directory, or both.
    ///
    /// The caller holds both directories exclusively and has dropped the dentry
    /// that had the new name.
    #[doc(alias = "__d_move")]
    pub(crate) fn d_move(&self, dentry: &DentryRef, parent: &DentryRef, name: &NameHash<'_>) {
        let old_parent;
        let old_name;
        // A name that gets longer or shorter weighs more or less than the list knows.
        let weighs_otherwise = dentry.flags().contains(Flags::LONG) != name.words.is_long();
        let listed = weighs_otherwise.then(|| self.lru.remove(dentry)).flatten();
        {
            let locked = dentry.lock(Rank::Dentry);
            let mut flags = locked.flags();
            if flags.contains(Flags::UNHASHED) {
                return;
            }
            let Some(off) = self.table.lock(locked.hash.load(Relaxed)).remove(&locked) else {
                return;
            };
            let hash = name.in_dir(parent.address());
            {
                let mut section = locked.seq.write();
                old_parent = locked.parent.swap(Some(parent.clone()));
                for (place, word) in locked.words.iter().zip(name.words.words()) {
                    place.store(word, Relaxed);
                }
                old_name = locked.long_name.swap(name.long().map(Ref::new));
                locked.hash.store(hash, Relaxed);
                flags.set(Flags::LONG, name.words.is_long());
                section.set_payload(flags.bits());
            }
            self.table.lock(hash).insert(off);
        }
        drop((old_parent, old_name));
        if let Some(dentry) = listed {
            self.add_to_lru(dentry);
        }
    }

    /// Changes flags under the dentry's lock.
    pub(crate) fn change_flags(&self, dentry: &DentryRef, change: impl FnOnce(&mut Flags)) {
        let locked = dentry.lock(Rank::Dentry);
        let mut flags = locked.flags();
        change(&mut flags);
        locked.seq.write().set_payload(flags.bits());
    }

    /// Brings the mark "everyone may search" in line with the inode's permissions.
    pub(crate) fn update_search_mark(&self, dentry: &DentryRef) {
        let inode = dentry.inode_ref();
        self.change_flags(dentry, |flags| {
            let believed = !flags.contains(Flags::REVALIDATE);
            let now = Flags::of_inode(inode.as_deref(), believed);
            flags.set(Flags::SEARCH_ALL, now.contains(Flags::SEARCH_ALL));
        });
    }

    /// Names dropped by the shrinker so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Names cached now, and the bytes they take.
    pub(crate) fn size(&self) -> (usize, usize) {
        let (dentries, extra) = self.lru.size();
        (dentries, extra + dentries * Shared::<Dentry>::BYTES)
    }
}
