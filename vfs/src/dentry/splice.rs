//! A directory that is found by another name: its dentry moves there.
//!
//! DENTRY-5: a directory has one dentry in the cache. Another process may move a directory in
//! the back end, and a lookup may find it by its new name before anyone asks about the old
//! one. Two dentries would be two subtrees of the cache, with wrong paths in one of them, and
//! could make a directory its own ancestor. So the dentry moves to the new directory and name;
//! its children, references and mounts stay with it.
//!
//! **The index.** The inode of a directory has the lower half of the hash that its dentry is
//! filed under ([`Inode::alias_hash`](crate::vfs_inode::Inode::alias_hash)): four bytes, which
//! would be padding otherwise. The chain of that hash leads to the dentry, and the table says
//! whether it is alive. So the inode holds no pointer, and the shrinker has nothing to clear.
//!
//! **Outdated names.** Where the back end says that a name no longer refers to a directory, the
//! directory is alive elsewhere, as a rule. Its dentry gets `UNHASHED`, so no lookup finds it
//! by name, and stays on the table under a hash of the inode ([`Dcache::park_if`]). A lookup
//! that finds the directory takes it from there; else the shrinker evicts it, before all
//! others.
//!
//! **Why there is one.** The lock of the inode makes a step of "there is none" and "add one",
//! and of parking. A move changes the hash without that lock, in a write section of
//! `rename_lock`: a lookup by inode that finds nothing asks again if there was one.
//!
//! **Which locks a splice needs.** It is a rename, and takes a rename's locks: the super
//! block's rename mutex, so that "is above" stays true for every thread that relies on it, and
//! both directories, shared. So a dentry that was found in a directory locked exclusively keeps
//! its directory and name, also here. The caller has the new directory locked and must not wait
//! for the other one (LOCK-1), so a splice only tries. If it fails, a walk gives up its lock,
//! waits for the one that it could not have, and tries the others ([`Busy::splice`]). It holds
//! nothing while it waits and asks the back end nothing while it holds the mutex: a back end
//! that is stuck in one directory stops no lookup in another one. A change ends in
//! [`Error::Stale`](crate::Error::Stale), and its second attempt walks to the name first.
//!
//! `rename_lock` counts a splice as a rename: walks in contained roots check again where they
//! are (WALK-3), and RCU-walks that stand on the dentry find its sequence count changed.
//!
//! **Loops.** A directory does not move below itself. Before a walk says so it asks the back
//! end about all names between the two, of which one may be outdated.

use rcuwalk_sync::atomic::Relaxed;
use rcuwalk_sync::lock::{MutexGuard, Rank, ReadGuard};
use rcuwalk_sync::{Seq, Shared, rcu};

use super::cache::set_inode;
use super::{Ask, CachedName, Checked, Dcache, Dentry, DentryRef, Flags, NameHash, Validity};
use crate::attr::FileType;
use crate::fresh::NEVER;
use crate::name::Name;
use crate::super_block::SuperBlock;
use crate::vfs_inode::{DEAD_DIR, HAD_DENTRY, InodeRef, Listed, ROOT_DIR};

/// The directory in which the caller has found a name, and the locks that the caller holds.
pub(crate) struct FoundIn<'a> {
    pub(crate) sb: &'a SuperBlock,
    pub(crate) dir: &'a DentryRef,
    /// Locked, at least shared.
    pub(crate) dir_inode: &'a InodeRef,
    /// Another directory that the caller has locked.
    pub(crate) beside: Option<&'a InodeRef>,
    /// The caller holds the rename mutex.
    pub(crate) alone: bool,
}

/// Why a directory that was found has no dentry there.
pub(crate) enum Unspliced {
    /// It would be below itself.
    Loop,
    /// Another thread holds a lock that the splice needs.
    Busy(Busy),
}

/// A splice that must wait for a lock.
pub(crate) struct Busy {
    alias: DentryRef,
    /// Of the alias, when the back end had answered.
    seq: Seq,
    /// The directory of the alias.
    old: Option<InodeRef>,
    /// The answer.
    found: (InodeRef, Validity),
    contended: Contended,
}

/// A lock that a splice needs.
#[derive(Clone, Copy)]
enum Contended {
    RenameMutex,
    NewDir,
    OldDir,
}

/// All locks that a splice needs.
struct SpliceLocks<'a> {
    _one_at_a_time: MutexGuard<'a, ()>,
    _new: ReadGuard<'a, Listed>,
    /// `None` if it is the new one.
    _old: Option<ReadGuard<'a, Listed>>,
}

impl<'a> FoundIn<'a> {
    /// For a caller that has locked this directory and no other.
    pub(crate) fn only(
        sb: &'a SuperBlock,
        (dir, dir_inode): (&'a DentryRef, &'a InodeRef),
    ) -> FoundIn<'a> {
        FoundIn {
            sb,
            dir,
            dir_inode,
            beside: None,
            alone: false,
        }
    }

    fn has_locked(&self, dir: &InodeRef) -> bool {
        let is = |other| InodeRef::ptr_eq(dir, other);
        is(self.dir_inode) || self.beside.is_some_and(is)
    }
}

impl Busy {
    /// Waits for the locks, and makes the dentry the one of `name` in `dir`, as the back end has
    /// answered. `None` if the cache has changed meanwhile: the caller looks the name up again.
    /// The caller holds no lock.
    pub(crate) fn splice(
        self,
        sb: &SuperBlock,
        (dir, dir_inode): (&DentryRef, &InodeRef),
        name: &NameHash<'_>,
    ) -> Option<DentryRef> {
        let dcache = &sb.caches.dcache;
        let old = self.old.as_ref();
        let spliced = {
            let elsewhere = old.filter(|old| !InodeRef::ptr_eq(old, dir_inode));
            let _locked = lock(sb, (dir_inode, elsewhere), self.contended);
            let at = FoundIn {
                sb,
                dir,
                dir_inode,
                beside: old,
                alone: true,
            };
            // Our own changes since the answer: of the directory that was found, of the one it
            // was found in, and of the name.
            let is_outdated =
                self.alias.seq.read_retry(self.seq) || dir_inode.shared().has(DEAD_DIR);
            let in_lookup = match is_outdated {
                true => None,
                false => dcache.d_alloc_unless_pending(dir, *name),
            };
            // Our own changes may have made and removed the name meanwhile, which leaves no
            // trace here: the next use asks about it.
            let (inode, validity) = self.found;
            let validity = Validity {
                until: NEVER,
                ..validity
            };
            in_lookup.and_then(|in_lookup| in_lookup.done(&at, Some(inode), validity).ok())
        };
        dcache.put(self.alias);
        spliced
    }
}

/// Takes the locks of a splice. Holds none while it waits: it waits for the one that it could
/// not have, and tries the others.
fn lock<'a>(
    sb: &'a SuperBlock,
    dirs: (&'a InodeRef, Option<&'a InodeRef>),
    mut contended: Contended,
) -> SpliceLocks<'a> {
    loop {
        match try_lock(sb, dirs, contended) {
            Ok(locks) => return locks,
            Err(next) => contended = next,
        }
    }
}

/// Waits for the lock that was `contended`, and tries the others.
fn try_lock<'a>(
    sb: &'a SuperBlock,
    (new, old): (&'a InodeRef, Option<&'a InodeRef>),
    contended: Contended,
) -> Result<SpliceLocks<'a>, Contended> {
    let (mut mutex, mut new_guard, mut old_guard) = (None, None, None);
    match (contended, old) {
        (Contended::RenameMutex, _) => mutex = Some(sb.rename_mutex.lock()),
        (Contended::OldDir, Some(old)) => old_guard = Some(old.rwsem().read()),
        (Contended::NewDir | Contended::OldDir, _) => new_guard = Some(new.rwsem().read()),
    }
    let mutex = mutex.or_else(|| sb.rename_mutex.try_lock_out_of_order());
    let new_guard = new_guard.or_else(|| new.rwsem().try_read_out_of_order());
    if let (None, Some(old)) = (&old_guard, old) {
        let tried = old.rwsem().try_read_out_of_order();
        old_guard = Some(tried.ok_or(Contended::OldDir)?);
    }
    Ok(SpliceLocks {
        _one_at_a_time: mutex.ok_or(Contended::RenameMutex)?,
        _new: new_guard.ok_or(Contended::NewDir)?,
        _old: old_guard,
    })
}

impl Dcache {
    /// Adds a name that has just been looked up, for `inode` or as a missing one. If it is a
    /// directory that has a dentry, that one moves here.
    ///
    /// The caller has the right to [add](Self::d_add) the name.
    #[doc(alias = "d_splice_alias")]
    pub(crate) fn d_splice(
        &self,
        at: &FoundIn<'_>,
        name: &NameHash<'_>,
        inode: Option<InodeRef>,
        validity: Validity,
    ) -> Result<DentryRef, Unspliced> {
        match inode {
            Some(inode) if inode.kind() == FileType::Directory => {
                self.splice_dir(at, name, &inode, validity)
            }
            inode => Ok(self.d_add(at.dir, name, inode, validity)),
        }
    }

    fn splice_dir(
        &self,
        at: &FoundIn<'_>,
        name: &NameHash<'_>,
        inode: &InodeRef,
        validity: Validity,
    ) -> Result<DentryRef, Unspliced> {
        if inode.shared().has(ROOT_DIR) {
            return Err(Unspliced::Loop);
        }
        loop {
            let alias = match self.add_first(at.dir, name, inode, validity) {
                Ok(added) => return Ok(added),
                Err(alias) => alias,
            };
            match self.move_alias(at, name, (&alias, inode), validity) {
                Ok(true) => return Ok(alias),
                Ok(false) => self.put(alias),
                Err(unspliced) => {
                    self.put(alias);
                    return Err(unspliced);
                }
            }
        }
    }

    /// Adds a directory's first dentry, or finds the one that it has.
    fn add_first(
        &self,
        dir: &DentryRef,
        name: &NameHash<'_>,
        inode: &InodeRef,
        validity: Validity,
    ) -> Result<DentryRef, DentryRef> {
        // Built before locking.
        let new = Dentry::new(dir.sb(), dir.clone(), name, Some(inode.clone()), validity);
        let added = {
            let _one_at_a_time = inode.shared().lock(Rank::Inode);
            match self.alias_of(inode) {
                Some(alias) => Err(alias),
                None => {
                    inode.set_alias_hash(new.hash.load(Relaxed));
                    inode.shared().set(HAD_DENTRY);
                    Ok(self.hash_new(&new, name))
                }
            }
        };
        match added {
            Ok(is_time) => {
                if is_time {
                    self.reclaim();
                }
                Ok(new)
            }
            Err(alias) => {
                // Drops the reference to its directory now, and not only when it is freed.
                self.put(new);
                Err(alias)
            }
        }
    }

    /// Adds a dentry without a request for it, for a directory that has none. The caller holds
    /// the directory above it, and no thread has the name in lookup.
    pub(super) fn add_unasked_dir(&self, new: &DentryRef, inode: &InodeRef) -> Option<bool> {
        let _one_at_a_time = inode.shared().lock(Rank::Inode);
        if self.alias_of(inode).is_some() || inode.shared().has(ROOT_DIR) {
            return None;
        }
        let added = self.hash_unasked(new);
        if added.is_some() {
            inode.set_alias_hash(new.hash.load(Relaxed));
            inode.shared().set(HAD_DENTRY);
        }
        added
    }

    /// The negative dentry of a name that has just been given to a directory. If the directory
    /// has been found by another name meanwhile, its dentry moves here.
    ///
    /// The caller holds the directory of the name exclusively.
    #[doc(alias("d_instantiate", "d_splice_alias"))]
    pub(crate) fn instantiate_dir(
        &self,
        at: &FoundIn<'_>,
        (dentry, name): (&DentryRef, &NameHash<'_>),
        inode: &InodeRef,
        validity: Validity,
    ) -> Result<DentryRef, Unspliced> {
        let is_first = {
            let _one_at_a_time = inode.shared().lock(Rank::Inode);
            let is_first = self.alias_of(inode).is_none();
            if is_first {
                inode.set_alias_hash(dentry.hash.load(Relaxed));
                inode.shared().set(HAD_DENTRY);
                set_inode(dentry, Some(inode.clone()), validity);
            }
            is_first
        };
        if is_first {
            self.relist(dentry);
            return Ok(dentry.clone());
        }
        self.d_drop(dentry);
        self.splice_dir(at, name, inode, validity)
    }

    /// The dentry of a directory, wherever it is, if it has one.
    #[doc(alias = "d_find_any_alias")]
    pub(crate) fn dentry_of_dir(&self, inode: &InodeRef) -> Option<DentryRef> {
        let _one_at_a_time = inode.shared().lock(Rank::Inode);
        self.alias_of(inode)
    }

    /// The dentry of a directory, if it has one. The caller holds the inode's lock, so that
    /// none is added or parked.
    #[doc(alias = "d_find_alias")]
    fn alias_of(&self, inode: &InodeRef) -> Option<DentryRef> {
        if !inode.shared().has(HAD_DENTRY) {
            return None;
        }
        let address = inode.shared().address();
        // While it moves from one chain to another it is on none.
        self.rename_lock.read(|| {
            let bucket = self.table.lock(inode.alias_hash());
            let guard = rcu::read_lock();
            let found = bucket.find(|dentry| !dentry.is_dead() && dentry.inode.is(address));
            let found = found.and_then(|dentry| dentry.try_get());
            drop(guard);
            found
        })
    }

    /// Moves a directory's dentry to the name by which the directory was found. False if the
    /// caller must look for the dentry again.
    #[doc(alias = "__d_unalias")]
    fn move_alias(
        &self,
        at: &FoundIn<'_>,
        name: &NameHash<'_>,
        (alias, inode): (&DentryRef, &InodeRef),
        validity: Validity,
    ) -> Result<bool, Unspliced> {
        let seq = alias.seq.sample();
        // `None` for a dentry that has been cut off.
        let old = alias.parent_ref();
        let old = old.and_then(|old| old.inode_ref().map(|inode| (old, inode)));
        let busy = |contended| {
            Unspliced::Busy(Busy {
                alias: alias.clone(),
                seq,
                old: old.as_ref().map(|(_, inode)| inode.clone()),
                found: (inode.clone(), validity),
                contended,
            })
        };
        let mutex = || at.sb.rename_mutex.try_lock_out_of_order();
        let _one_at_a_time = match at.alone {
            true => None,
            false => Some(mutex().ok_or_else(|| busy(Contended::RenameMutex))?),
        };
        let _shared = match &old {
            Some((_, old)) if !at.has_locked(old) => {
                let shared = old.rwsem().try_read_out_of_order();
                Some(shared.ok_or_else(|| busy(Contended::OldDir))?)
            }
            _ => None,
        };
        // Dropped after the locks.
        let (_cut_off, _left);
        let _moving = self.rename_lock.write();
        _cut_off = match way_up(at.dir, inode) {
            WayUp::Clear => None,
            WayUp::Loop => return Err(Unspliced::Loop),
            WayUp::Adrift(dentry) => Some((cut_off(&dentry), dentry)),
        };
        let alias = alias.lock(Rank::Dentry);
        let is_there = match &old {
            Some((old, _)) => alias.parent.is(old.address()),
            None => alias.parent.is_none(),
        };
        if !is_there || !alias.inode.is(inode.shared().address()) {
            return Ok(false);
        }
        _left = self.give_place(&alias, at.dir, name, Some(validity));
        Ok(true)
    }

    /// Takes the name of a directory out of the cache, as [`d_drop_if`](Self::d_drop_if) does,
    /// and files the dentry under its inode.
    pub(super) fn park_if(
        &self,
        dentry: &DentryRef,
        inode: &InodeRef,
        is_it: impl FnOnce(&Dentry) -> bool,
    ) -> Checked {
        let is_gone = !inode.is_hashed() || inode.shared().has(DEAD_DIR);
        if is_gone || inode.kind() != FileType::Directory {
            // No lookup finds it again.
            return self.d_drop_if(dentry, is_it);
        }
        {
            let _one_at_a_time = inode.shared().lock(Rank::Inode);
            let locked = dentry.lock(Rank::Dentry);
            let flags = locked.flags();
            if flags.contains(Flags::UNHASHED) || !is_it(&locked) {
                return Checked::Gone;
            }
            if flags.intersects(Flags::ROOT | Flags::MOUNTPOINT) {
                return Checked::Valid;
            }
            let off = self.unhash(&locked);
            {
                let mut section = locked.seq.write();
                let hash = parked(inode);
                locked.hash.store(hash, Relaxed);
                inode.set_alias_hash(hash);
                section.set_payload((flags | Flags::UNHASHED).bits());
            }
            self.rehash(&locked, off);
        }
        Checked::Dropped
    }
}

impl SuperBlock {
    /// Asks the back end about the name of a directory and all names above it, so that those
    /// which are outdated leave the cache. The caller holds no lock.
    pub(crate) fn ask_names_above(&self, dentry: &DentryRef) {
        let mut at = dentry.clone();
        while let Some((dir, name)) = at.place() {
            if let (Ok(name), Some(dir_inode)) = (Name::new(&name), dir.inode_ref()) {
                let cached = CachedName {
                    sb: self,
                    dir: &dir,
                    dir_inode: &dir_inode,
                    name: self.caches.dcache.name(name),
                    dentry: &at,
                };
                // A name whose revalidation fails stays unchanged.
                let _ = cached.check(Ask::Always);
            }
            self.caches.dcache.put(std::mem::replace(&mut at, dir));
        }
        self.caches.dcache.put(at);
    }
}

/// Whether a directory can move to a place in `dir`.
enum WayUp {
    Clear,
    /// It is above that place, or there itself.
    Loop,
    /// It would be, but this dentry between the two has an outdated name, so its place is not
    /// known.
    Adrift(DentryRef),
}

/// The caller has a write section of `rename_lock`.
fn way_up(dir: &DentryRef, inode: &InodeRef) -> WayUp {
    let guard = rcu::read_lock();
    let mut at: Option<&Shared<Dentry>> = Some(dir);
    let mut adrift = None;
    while let Some(dentry) = at {
        if dentry.inode.is(inode.shared().address()) {
            let adrift: Option<DentryRef> = adrift.and_then(Shared::try_get);
            return adrift.map_or(WayUp::Loop, WayUp::Adrift);
        }
        if dentry.flags().contains(Flags::UNHASHED) {
            adrift = Some(dentry);
        }
        at = dentry.parent.load(&guard);
    }
    WayUp::Clear
}

/// Takes a dentry off the directory that it is no longer in.
fn cut_off(dentry: &DentryRef) -> Option<DentryRef> {
    let locked = dentry.lock(Rank::Dentry);
    let _section = locked.seq.write();
    locked.parent.swap(None)
}

/// The hash that the dentry of a directory is filed under while it has no name.
fn parked(inode: &InodeRef) -> u64 {
    // Fibonacci hashing: the lower bits of the hash choose the chain.
    (inode.shared().address() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}
