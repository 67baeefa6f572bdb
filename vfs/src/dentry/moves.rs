//! A dentry under another name, in another directory, or both; two that change places.
//!
//! The kernel's order: `rename_lock`, then the locks of the dentries, then one bucket at
//! a time. Names and parents change while the dentries are on no chain, in a write
//! section of each (DENTRY-3: see `cache.rs`).

use rcuwalk_sync::atomic::Relaxed;
use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{LockedShared, Ref, Shared, rcu};

use super::cache::if_unused;
use super::{Dcache, Dentry, DentryRef, Flags, NameHash, Validity};
use crate::attr::FileType;
use crate::fresh::NEVER;
use crate::vfs_inode::InodeRef;

impl Dcache {
    /// Moves a dentry over `target`, the dentry of its new name, which is negative or refers to
    /// the file that has just been replaced.
    ///
    /// If `target` is not in use, it becomes negative and gets the old name, where
    /// `nothing_left` says that the old name is now missing; so the next lookup of the old name
    /// need not ask the back end. Otherwise it leaves the cache.
    ///
    /// The caller holds both directories exclusively.
    #[doc(alias = "__d_move")]
    pub(crate) fn d_move(
        &self,
        dentry: &DentryRef,
        target: &DentryRef,
        (parent, name): (&DentryRef, &NameHash<'_>),
        nothing_left: Option<Validity>,
    ) {
        let has_name = !dentry.flags().contains(Flags::UNHASHED);
        if let Some(validity) = nothing_left.filter(|_| has_name) {
            let mut gone = None;
            let done = if_unused(target, || {
                gone = self.swap_places(dentry, target, Some(validity));
            });
            drop(gone);
            if done {
                self.relist(target);
                return;
            }
        }
        self.d_drop(target);
        self.move_alone(dentry, parent, name);
    }

    /// Two dentries change places. The caller holds both directories exclusively.
    pub(crate) fn d_exchange(&self, a: &DentryRef, b: &DentryRef) {
        self.swap_places(a, b, None);
    }

    /// With `negative`, `b` becomes negative; returns its inode.
    fn swap_places(
        &self,
        a: &DentryRef,
        b: &DentryRef,
        negative: Option<Validity>,
    ) -> Option<InodeRef> {
        let _moving = self.rename_lock.write();
        // LOCK-1: neither is above the other, so by address.
        let (first, second) = match a.address() < b.address() {
            true => (a, b),
            false => (b, a),
        };
        let _first = first.lock(Rank::Dentry);
        let _second = second.lock_nested(Rank::Dentry);
        // A thread that drops a name which the back end no longer confirms may have been
        // faster: then the dentry changes its place and stays off the table.
        let off = [a, b].map(|dentry| self.unhash(dentry));
        let old = swap_names(a, b, negative);
        for (dentry, off) in [a, b].into_iter().zip(off) {
            self.rehash(dentry, off);
        }
        old.map(InodeRef::new)
    }

    fn move_alone(&self, dentry: &DentryRef, parent: &DentryRef, name: &NameHash<'_>) {
        let left = {
            let _moving = self.rename_lock.write();
            let locked = dentry.lock(Rank::Dentry);
            self.give_place(&locked, parent, name, None)
        };
        drop(left);
    }

    /// Moves a locked dentry to another directory and name, in a write section of
    /// `rename_lock`. The caller drops what this returns, without locks.
    ///
    /// With `confirmed`, the back end has said that it is there.
    pub(super) fn give_place(
        &self,
        locked: &LockedShared<'_, Dentry>,
        parent: &DentryRef,
        name: &NameHash<'_>,
        confirmed: Option<Validity>,
    ) -> impl Sized + use<> {
        let mut flags = locked.flags() - Flags::UNHASHED;
        // One that was dropped from the cache has a name again. There is one reference, at
        // least: the caller's.
        let on_chain = self.unhash(locked).or_else(|| locked.try_get());
        let (old_parent, old_name);
        {
            let mut section = locked.seq.write();
            // Stamps of two directories say nothing about each other. Before the parent: a
            // reader that sees the new parent sees this.
            locked.set_valid_until(NEVER);
            old_parent = locked.parent.swap(Some(parent.clone()));
            for (place, word) in locked.words.iter().zip(name.words.words()) {
                place.store(word, Relaxed);
            }
            old_name = locked.long_name.swap(name.long().map(Ref::new));
            locked.set_hash(name.in_dir(parent.address()));
            flags.set(Flags::LONG, name.words.is_long());
            if confirmed.is_some() {
                flags -= Flags::INVALIDATED;
            }
            section.set_payload(flags.bits());
        }
        // After the parent: a reader that sees this stamp finds the dentry in its new place.
        if let Some(validity) = confirmed {
            locked.set_valid_until(validity.until);
        }
        self.rehash(locked, on_chain);
        (old_parent, old_name)
    }

    /// Where its name is now, if it was on a chain before.
    pub(super) fn rehash(&self, dentry: &Shared<Dentry>, off: Option<DentryRef>) {
        if let Some(off) = off {
            let mut bucket = self.table.lock(dentry.hash.load(Relaxed));
            // As many as were taken off: the next addition looks at the budget.
            let _ = self.insert(&mut bucket, off);
        }
    }
}

/// Gives each of two locked dentries the parent and the name of the other.
#[doc(alias = "copy_name")]
fn swap_names(
    a: &Dentry,
    b: &Dentry,
    negative: Option<Validity>,
) -> Option<Ref<crate::vfs_inode::Inode>> {
    let (mut a_flags, mut b_flags) = (a.flags(), b.flags());
    let (a_long, b_long) = (a_flags & Flags::LONG, b_flags & Flags::LONG);
    a_flags = (a_flags - Flags::LONG) | b_long;
    b_flags = (b_flags - Flags::LONG) | a_long;
    let mut a_section = a.seq.write();
    let mut b_section = b.seq.write();
    // As in `move_alone`.
    a.set_valid_until(NEVER);
    b.set_valid_until(NEVER);
    let a_parent = a.parent.swap(b.parent.swap(None));
    b.parent.swap(a_parent);
    let a_name = a.long_name.swap(b.long_name.swap(None));
    b.long_name.swap(a_name);
    let words = a.words.iter().zip(&b.words);
    for (a, b) in words {
        let word = a.load(Relaxed);
        a.store(b.load(Relaxed), Relaxed);
        b.store(word, Relaxed);
    }
    let a_hash = a.hash.load(Relaxed);
    a.set_hash(b.hash.load(Relaxed));
    let mut gone = None;
    if let Some(validity) = negative {
        gone = b.inode.swap(None);
        b_flags -= Flags::OF_INODE | Flags::INVALIDATED;
        b.set_valid_until(validity.until);
    }
    b.set_hash(a_hash);
    a_section.set_payload(a_flags.bits());
    b_section.set_payload(b_flags.bits());
    gone
}

impl Dentry {
    /// Files it elsewhere, and tells its directory where (DENTRY-5). The caller has its lock
    /// and a write section of `rename_lock`.
    fn set_hash(&self, hash: u64) {
        self.hash.store(hash, Relaxed);
        let guard = rcu::read_lock();
        let inode = self.inode.load(&guard);
        if let Some(dir) = inode.filter(|inode| inode.kind() == FileType::Directory) {
            dir.set_alias_hash(hash);
        }
    }
}
