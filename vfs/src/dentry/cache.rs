//! The dentry cache: names and the inodes they refer to.
//!
//! A lookup under RCU may miss a name that is being moved and proves nothing; under
//! a reference the bucket's lock settles it. DENTRY-3: during a rename a name is
//! found old or new, never neither: in between it is off the table, a walk misses,
//! goes to the slow path, and waits there for the directory that the rename holds.
//!
//! A dentry's inode changes in place, with the flags, in one write section: an RCU-walk sees
//! the dentry before the change or after it, or starts again (SEQ-1). A negative dentry may
//! become positive at any time: a holder asks it for its inode, and gets none or the new one. A
//! dentry becomes negative, or gets another name, only while the cache and the caller have the
//! only references, and no thread can get one; a walk that therefore fails to takes the slow
//! path and waits for the directory. So a dentry with a reference refers to the same file,
//! under whatever name, for as long.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rcuwalk_sync::atomic::Relaxed;
use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{BucketGuard, Lru, RcuHash, SeqLock, Shared, rcu};

use super::age::Age;
use super::in_lookup::LookupTable;
use super::name::HashKeys;
use super::shrink::Kind;
use super::{Checked, Dentry, DentryRef, Flags, NameHash, Validity};
use crate::attr::FileType;
use crate::budget::Share;
use crate::inode::InodeCache;
use crate::name::Name;
use crate::vfs_inode::{InodeId, InodeRef, VfsInode};

/// All cached names of one [`Vfs`](crate::Vfs).
pub(crate) struct Dcache {
    pub(super) table: RcuHash<Dentry>,
    pub(super) age: Age,
    pub(super) share: Share,
    /// An inode goes with its name.
    pub(super) icache: Arc<InodeCache<InodeId, VfsInode>>,
    pub(super) in_lookup: LookupTable,
    keys: HashKeys,
    /// Written to while a dentry is moved; read by code that reads several dentries at once.
    pub(super) rename_lock: SeqLock,
    pub(super) evicted: Evicted,
}

/// How many dentries were evicted. On a line of its own, as [`Age`].
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Evicted(pub(super) AtomicU64);

impl Dcache {
    pub(crate) fn new(
        dentries: usize,
        bytes: usize,
        icache: Arc<InodeCache<InodeId, VfsInode>>,
    ) -> Dcache {
        let share = Share::new(dentries, bytes, Shared::<Dentry>::BYTES);
        let lru = Lru::new(Rank::Lru, share.shards(), Kind::NUMBER, Kind::number_of);
        Dcache {
            table: RcuHash::new(Rank::DentryBucket).with_lru(lru),
            age: Age::new(&share),
            share,
            icache,
            in_lookup: LookupTable::new(),
            keys: HashKeys::random(),
            rename_lock: SeqLock::new(Rank::RenameLock),
            evicted: Evicted::default(),
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

    /// May miss an existing name (see the hash table); a hit is certain.
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
        // Marks it as used, as an RCU-walk does.
        let found = dentry.try_get_used()?;
        let same = !found.seq.read_retry(seq?) && !Flags::of(seq?).contains(Flags::UNHASHED);
        drop(guard);
        if same {
            return Some(found);
        }
        self.put(found);
        None
    }

    /// Under the bucket's lock a miss is a miss.
    pub(super) fn d_lookup_locked(
        &self,
        parent: &DentryRef,
        name: &NameHash<'_>,
    ) -> Option<DentryRef> {
        let bucket = self.table.lock(name.in_dir(parent.address()));
        let guard = rcu::read_lock();
        let found = bucket.find(|dentry| {
            // A directory without a name may be on any chain.
            let is_found = !dentry.is_dead() && !dentry.flags().contains(Flags::UNHASHED);
            is_found && dentry.is_named(parent.address(), name, &guard)
        })?;
        found.try_get_used()
    }

    /// Adds `name` in `parent`, for `inode`, which is no directory, or as a missing name. The
    /// caller has the right to: it holds the directory exclusively, or an
    /// [`InLookup`](super::InLookup) for the name.
    pub(crate) fn d_add(
        &self,
        parent: &DentryRef,
        name: &NameHash<'_>,
        inode: Option<InodeRef>,
        validity: Validity,
    ) -> DentryRef {
        // Built before locking: no thread waits for the allocator.
        let dentry = Dentry::new(parent.sb(), parent.clone(), name, inode, validity);
        if self.hash_new(&dentry, name) {
            self.reclaim();
        }
        dentry
    }

    /// Puts a new dentry on its chain. True if it is time to [reclaim](Self::reclaim): the caller
    /// does when it holds no dentry's and no inode's lock. Its last put lists the dentry.
    #[must_use]
    pub(super) fn hash_new(&self, dentry: &DentryRef, name: &NameHash<'_>) -> bool {
        let mut bucket = self.table.lock(dentry.hash.load(Relaxed));
        // A dead one that its shrinker has not taken off yet goes now, so that there is one
        // dentry per name on the chain.
        let guard = rcu::read_lock();
        let dead = dentry.parent(&guard).and_then(|parent| {
            let is = |old: &Shared<Dentry>| old.is_named(parent.address(), name, &guard);
            bucket.remove_where(|old| old.is_dead() && is(old))
        });
        drop(guard);
        if let Some(dead) = &dead {
            self.share.uncharge(1, dead.extra_bytes());
        }
        let is_time = self.insert(&mut bucket, dentry.clone());
        drop(bucket);
        drop(dead);
        is_time
    }

    /// Puts a dentry on a chain, and charges it to the budget. True if it is time to
    /// [reclaim](Self::reclaim).
    pub(super) fn insert(&self, bucket: &mut BucketGuard<'_, Dentry>, dentry: DentryRef) -> bool {
        if dentry.flags().is_negative() {
            self.begin_age(&dentry);
        }
        let is_time = self.share.charge(dentry.extra_bytes());
        bucket.insert(dentry);
        is_time
    }

    /// Takes a locked dentry off its chain, if it is on it.
    pub(super) fn unhash(&self, dentry: &Shared<Dentry>) -> Option<DentryRef> {
        let off = self.table.lock(dentry.hash.load(Relaxed)).remove(dentry)?;
        self.share.uncharge(1, dentry.extra_bytes());
        Some(off)
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

    /// The second half of what [`d_alloc`](Self::d_alloc) has begun to fetch.
    #[inline]
    pub(crate) fn prefetch_chain(&self, dentry: &DentryRef) {
        self.table.prefetch_chain(dentry.hash.load(Relaxed));
    }

    /// Adds a dentry without a request for it, unless the name is cached or in lookup. The caller
    /// holds the directory, at least shared.
    pub(crate) fn add_unasked(&self, dentry: DentryRef) {
        let inode = dentry.inode_ref();
        let is_time = self.unless_in_lookup(&dentry, || match &inode {
            Some(inode) if inode.kind() == FileType::Directory => {
                self.add_unasked_dir(&dentry, inode)
            }
            _ => self.hash_unasked(&dentry),
        });
        drop((dentry, inode));
        if is_time == Some(true) {
            self.reclaim();
        }
    }

    /// Puts a new dentry on its chain; `None` if its name is there. A dead one that is still
    /// there is enough to let it be. The caller has the right to add the name, or no thread has.
    /// Otherwise as [`hash_new`](Self::hash_new).
    pub(super) fn hash_unasked(&self, dentry: &DentryRef) -> Option<bool> {
        let mut bucket = self.table.lock(dentry.hash.load(Relaxed));
        let is_new = bucket.find(|old| old.is_like(dentry)).is_none();
        is_new.then(|| self.insert(&mut bucket, dentry.clone()))
    }

    /// Takes a name out of the cache. Holders of the dentry keep it; no lookup finds it
    /// again. A mount point stays.
    pub(crate) fn d_drop(&self, dentry: &DentryRef) {
        self.d_drop_if(dentry, |_| true);
    }

    /// Takes a name out of the cache if `is_it` says, with the dentry locked, that it is the
    /// one that is meant. A mount point stays, and is [valid](Checked::Valid).
    pub(crate) fn d_drop_if(
        &self,
        dentry: &DentryRef,
        is_it: impl FnOnce(&Dentry) -> bool,
    ) -> Checked {
        {
            let locked = dentry.lock(Rank::Dentry);
            let flags = locked.flags();
            if flags.contains(Flags::UNHASHED) || !is_it(&locked) {
                return Checked::Gone;
            }
            if flags.intersects(Flags::ROOT | Flags::MOUNTPOINT) {
                return Checked::Valid;
            }
            let off = self.unhash(&locked);
            locked
                .seq
                .write()
                .set_payload((flags | Flags::UNHASHED).bits());
            drop(locked);
            drop(off);
        }
        drop(self.unlist(dentry));
        Checked::Dropped
    }

    /// The negative dentry of a name that has just been given to `inode`, which is no directory.
    /// The caller holds the directory of the name exclusively.
    pub(crate) fn d_instantiate(&self, dentry: &DentryRef, inode: InodeRef, validity: Validity) {
        set_inode(dentry, Some(inode), validity);
        self.relist(dentry);
    }

    /// Caches that a name is gone: the dentry becomes negative, or leaves the cache if it is in
    /// use; its holders keep it as it is. The caller holds the directory exclusively.
    pub(crate) fn d_delete(&self, dentry: &DentryRef, validity: Validity) {
        let negative = if_unused(dentry, || set_inode(dentry, None, validity));
        match negative {
            true => self.relist(dentry),
            false => self.d_drop(dentry),
        }
    }

    /// Something is going to be mounted here; false if no walk comes here any more.
    #[doc(alias = "d_set_mounted")]
    pub(crate) fn mark_mountpoint(&self, dentry: &DentryRef) -> bool {
        let mut may = false;
        self.change_flags(dentry, |flags| {
            may = !flags.contains(Flags::UNHASHED);
            if may {
                flags.insert(Flags::MOUNTPOINT);
            }
        });
        may
    }

    /// Changes flags under the dentry's lock.
    pub(crate) fn change_flags(&self, dentry: &DentryRef, change: impl FnOnce(&mut Flags)) {
        let locked = dentry.lock(Rank::Dentry);
        let mut flags = locked.flags();
        change(&mut flags);
        locked.seq.write().set_payload(flags.bits());
    }

    /// Invalidates a name: the next walk asks the back end. A lookup in progress may count as
    /// that walk, unless the caller holds the directory exclusively.
    pub(crate) fn d_invalidate(&self, dentry: &DentryRef) {
        self.change_flags(dentry, |flags| {
            let has_name = !flags.intersects(Flags::UNHASHED | Flags::ROOT);
            flags.set(Flags::INVALIDATED, has_name);
        });
    }

    /// Brings the mark "everyone may search" in line with the inode's permissions.
    pub(crate) fn update_search_mark(&self, dentry: &DentryRef) {
        let inode = dentry.inode_ref();
        self.change_flags(dentry, |flags| {
            let never_expires = !flags.contains(Flags::REVALIDATE);
            let now = Flags::of_inode(inode.as_deref(), never_expires);
            flags.set(Flags::SEARCH_ALL, now.contains(Flags::SEARCH_ALL));
        });
    }

    /// Names dropped by the shrinker so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.0.load(Relaxed)
    }

    /// Names cached now, and the bytes they take.
    pub(crate) fn size(&self) -> (usize, usize) {
        let (dentries, extra) = self.share.size();
        (dentries, extra + dentries * Shared::<Dentry>::BYTES)
    }
}

/// Replaces the inode of a dentry.
pub(super) fn set_inode(dentry: &DentryRef, inode: Option<InodeRef>, validity: Validity) {
    let old;
    {
        let locked = dentry.lock(Rank::Dentry);
        let mut flags = locked.flags() - Flags::OF_INODE - Flags::INVALIDATED;
        flags |= Flags::of_inode(inode.as_deref(), !validity.revalidate);
        locked.set_valid_until(validity.until);
        let mut section = locked.seq.write();
        old = locked.inode.swap(inode.map(InodeRef::into_shared));
        section.set_payload(flags.bits());
    }
    drop(old.map(InodeRef::new));
}

/// Runs `change` on a dentry to which only the cache and the caller have references, and lets
/// no thread get one meanwhile. The caller holds its directory exclusively, so no thread is
/// adding it just now, or adds another one for its name. True if `change` ran.
pub(super) fn if_unused(dentry: &DentryRef, change: impl FnOnce()) -> bool {
    dentry.while_unshared(change)
}
