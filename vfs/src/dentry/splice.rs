//! A directory that is found by another name: its dentry moves there.
//!
//! DENTRY-5: a directory has one dentry in the cache. Another process may move a directory in
//! the back end, and a lookup may find it by its new name before anyone asks about the old
//! one. Two dentries would be two subtrees of the cache, with wrong paths in one of them, and
//! could make a directory its own ancestor. So the dentry moves to the new directory and name;
//! its children, references and mounts stay with it.
//!
//! **The index.** The inode of a directory has the lower half of the hash that its dentry is
//! filed under ([`Inode::alias_hash`](crate::inode::Inode::alias_hash)): four bytes, which
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
//! for the other one (LOCK-1), so a splice only tries. If it fails, a walk takes all of these
//! locks in order and looks the name up again ([`Busy::lock_all`]); a change ends in
//! [`Error::Stale`](crate::Error::Stale), is tried once more and reports that.
//!
//! `rename_lock` counts a splice as a rename: walks in contained roots check again where they
//! are (WALK-3), and RCU-walks that stand on the dentry find its sequence count changed.
//!
//! **Loops.** A directory does not move below itself. Before a walk says so it asks the back
//! end about all names between the two, of which one may be outdated.

use rcuwalk_sync::atomic::Relaxed;
use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{Shared, rcu};

use super::cache::set_inode;
use super::{Ask, CachedName, Checked, Dcache, Dentry, DentryRef, Flags, NameHash, Validity};
use crate::attr::FileType;
use crate::inode::{DEAD_DIR, HAD_DENTRY, InodeRef, ROOT_DIR};
use crate::name::Name;
use crate::super_block::SuperBlock;

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

/// The locks that a splice needs beside that of its caller: the rename mutex, and the directory
/// where the dentry is.
pub(crate) struct Busy {
    old: Option<(DentryRef, InodeRef)>,
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
    /// Calls `then` with all locks that the splice needs, and the directory `dir` locked
    /// shared. The caller holds none. While it holds these, the directory of the dentry does
    /// not change.
    pub(crate) fn lock_all<R>(
        &self,
        sb: &SuperBlock,
        (dir, dir_inode): (&DentryRef, &InodeRef),
        then: impl FnOnce(&FoundIn<'_>) -> R,
    ) -> R {
        let _one_at_a_time = sb.rename_mutex.lock();
        let other = self.old.as_ref();
        let other = other.filter(|(_, inode)| !InodeRef::ptr_eq(inode, dir_inode));
        let found_in = FoundIn {
            sb,
            dir,
            dir_inode,
            beside: other.map(|(_, inode)| inode),
            alone: true,
        };
        let Some((old, old_inode)) = other else {
            let _shared = dir_inode.rwsem.read();
            return then(&found_in);
        };
        // As a rename locks them (LOCK-1).
        let dcache = &sb.caches.dcache;
        let old_first = if dcache.is_subdir(dir, old_inode) {
            true
        } else if dcache.is_subdir(old, dir_inode) {
            false
        } else {
            old_inode.shared().address() < dir_inode.shared().address()
        };
        let (first, second) = match old_first {
            true => (old_inode, dir_inode),
            false => (dir_inode, old_inode),
        };
        let _first = first.rwsem.read();
        let _second = second.rwsem.read_nested();
        then(&found_in)
    }
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
                Ok(true) => {
                    self.add_to_lru(alias.clone());
                    return Ok(alias);
                }
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
        let alias = {
            let _one_at_a_time = inode.shared().lock(Rank::Inode);
            let alias = self.alias_of(inode);
            if alias.is_none() {
                inode.set_alias_hash(new.hash.load(Relaxed));
                inode.shared().set(HAD_DENTRY);
                self.hash_new(&new, name);
            }
            alias
        };
        if let Some(alias) = alias {
            // Drops the reference to its directory now, and not only when it is freed.
            self.put(new);
            return Err(alias);
        }
        self.add_to_lru(new.clone());
        Ok(new)
    }

    /// Adds a dentry without a request for it, for a directory that has none. The caller holds
    /// the directory above it exclusively.
    pub(super) fn add_unasked_dir(&self, new: &DentryRef, inode: &InodeRef) -> bool {
        let _one_at_a_time = inode.shared().lock(Rank::Inode);
        if self.alias_of(inode).is_some() || inode.shared().has(ROOT_DIR) {
            return false;
        }
        let added = self.hash_unasked(new);
        if added {
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
        // `None` for a dentry that has been cut off.
        let old = alias.parent_ref();
        let old = old.and_then(|old| old.inode_ref().map(|inode| (old, inode)));
        let busy = || Unspliced::Busy(Busy { old: old.clone() });
        let mutex = &at.sb.rename_mutex;
        let _one_at_a_time = match at.alone {
            true => None,
            false => Some(mutex.try_lock_out_of_order().ok_or_else(busy)?),
        };
        let _shared = match &old {
            Some((_, old)) if !at.has_locked(old) => {
                Some(old.rwsem.try_read_out_of_order().ok_or_else(busy)?)
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
        // A thread that adds it to the list found it off the table in between, and took it off.
        self.add_to_lru(dentry.clone());
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
