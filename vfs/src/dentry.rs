//! Dentries: a name in a directory, and the inode it refers to, if any.
//!
//! | read                  | to learn                                              |
//! |-----------------------|-------------------------------------------------------|
//! | this file             | the object: one cache line for the walk, one for rest |
//! | `dentry/name.rs`      | names as words, and their hash                        |
//! | `dentry/cache.rs`     | lookup, adding, filling in, dropping                  |
//! | `dentry/moves.rs`     | a name for another one                                |
//! | `dentry/splice.rs`    | a directory found by another name                     |
//! | `dentry/path.rs`      | from a dentry up to the root                          |
//! | `dentry/in_lookup.rs` | one back-end lookup per missing name                  |
//! | `dentry/revalidate.rs`| whether a cached name is still valid                  |
//! | `dentry/age.rs`       | how long missing names stay                           |
//! | `dentry/shrink.rs`    | the budget                                            |
//!
//! A dentry's sequence count covers its parent, its name, its inode and its flags together
//! (SEQ-1): a reader that does not hold the dentry's lock checks the count afterwards. Writers
//! hold the lock. A dentry without an inode is negative: it caches that the name is missing.

mod age;
mod cache;
mod in_lookup;
mod moves;
mod name;
pub(crate) mod path;
mod revalidate;
mod shrink;
mod splice;

use rcuwalk_sync::atomic::*;
use rcuwalk_sync::model::spin_loop;
use rcuwalk_sync::{HashKey, RcuGuard, RcuPtr, Ref, Seq, SeqCount, Shared};

pub(crate) use cache::Dcache;
pub(crate) use in_lookup::ParallelLookup;
pub(crate) use name::{NameHash, NameWords, in_dir};
pub(crate) use revalidate::{Ask, CachedName, Checked};
pub(crate) use splice::{FoundIn, Unspliced};

use crate::attr::FileType;
use crate::vfs_inode::{Inode, InodeRef, MALLOC_HEADER, ROOT_DIR};

/// A counted reference to a dentry.
pub(crate) type DentryRef = Ref<Dentry>;

/// A name in a directory.
///
/// An RCU-walk reads the first 48 bytes; with the 16 bytes before them in [`Shared`] they fill
/// one cache line.
#[doc(alias = "struct dentry")]
#[repr(C)]
pub(crate) struct Dentry {
    /// Count and [`Flags`].
    pub(crate) seq: SeqCount,
    /// `None` for the root of a file system and for a detached dentry.
    parent: RcuPtr<Dentry>,
    /// `None` for a negative dentry.
    inode: RcuPtr<Inode>,
    /// The name, padded with zeros, if it fits; see [`NameWords`].
    words: [AtomicU64; 3],
    // From here on: not read by a walk that finds short names fresh in the cache.
    /// Where it is hashed: parent and name mixed.
    hash: AtomicU64,
    /// The whole name, if it does not fit.
    long_name: RcuPtr<Box<[u8]>>,
    /// Until when it is valid, or its stamp, if it can expire; see `fresh.rs`.
    valid_until: AtomicU64,
    /// The super block's number.
    sb: u32,
    /// Of a missing name: when its age began.
    stamp: AtomicU32,
}

bitflags::bitflags! {
    /// The state of a dentry that a walk must know, in the payload of its sequence count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u32 {
        /// Stands for something that is no symbolic link. With neither this nor
        /// LINK the dentry is negative.
        const PLAIN = 1;
        /// Stands for a symbolic link.
        #[doc(alias = "DCACHE_SYMLINK_TYPE")]
        const LINK = 2;
        /// Stands for a directory; comes with PLAIN.
        #[doc(alias = "DCACHE_DIRECTORY_TYPE")]
        const DIR = 4;
        /// A directory that everyone may search: mode 0111 and no ACL. Only where cached names
        /// are valid for ever, so that every chmod passes through this VFS.
        #[doc(alias = "IOP_FASTPERM_MAY_EXEC")]
        const SEARCH_ALL = 8;
        /// Something is mounted here in some mount.
        #[doc(alias = "DCACHE_MOUNTED")]
        const MOUNTPOINT = 16;
        /// Must be checked for freshness before use.
        #[doc(alias = "DCACHE_OP_REVALIDATE")]
        const REVALIDATE = 32;
        /// No lookup finds it by its name any more. It is off the hash table; or it is a
        /// directory, and filed under its inode (see `dentry/splice.rs`).
        const UNHASHED = 64;
        /// The name does not fit into the words.
        const LONG = 128;
        /// The root of a file system.
        const ROOT = 256;
        /// Invalidated: the next walk revalidates it.
        const INVALIDATED = 512;
    }
}

impl Flags {
    /// The flags to check before a walk steps into a dentry.
    pub(crate) const STEP: Flags = Flags::PLAIN
        .union(Flags::LINK)
        .union(Flags::MOUNTPOINT)
        .union(Flags::REVALIDATE)
        .union(Flags::UNHASHED)
        .union(Flags::INVALIDATED)
        .union(Flags::LONG);

    /// The flags to check before a name is looked up in a dentry...
    pub(crate) const LOOKUP: Flags = Flags::DIR.union(Flags::SEARCH_ALL);
    /// ...and is this where nothing else needs to be.
    pub(crate) const SEARCHABLE: Flags = Flags::LOOKUP;

    /// The flags to check where a walk ends; any walk may end in a directory that is no root
    /// and cannot expire.
    pub(crate) const END: Flags = Flags::DIR.union(Flags::ROOT).union(Flags::REVALIDATE);
    /// The flags that the loop of the RCU-walk checks. It goes on by itself only through a
    /// child that has nothing to check and that everyone may search.
    pub(crate) const WALK: Flags = Flags::STEP.union(Flags::LOOKUP);
    pub(crate) const WALK_ON: Flags = Flags::PLAIN.union(Flags::SEARCHABLE);

    /// The flags that follow from the inode.
    pub(crate) const OF_INODE: Flags = Flags::PLAIN
        .union(Flags::LINK)
        .union(Flags::DIR)
        .union(Flags::SEARCH_ALL);

    pub(crate) fn of(seq: Seq) -> Flags {
        Flags::from_bits_retain(seq.payload())
    }

    fn of_inode(inode: Option<&Inode>, never_expires: bool) -> Flags {
        let Some(inode) = inode else {
            return Flags::empty();
        };
        match inode.kind() {
            FileType::Symlink => Flags::LINK,
            FileType::Directory => {
                let is = inode.protection();
                let everyone = is.mode() & 0o111 == 0o111 && !is.may_have_acl();
                let all = if never_expires && everyone {
                    Flags::SEARCH_ALL
                } else {
                    Flags::empty()
                };
                Flags::PLAIN | Flags::DIR | all
            }
            _ => Flags::PLAIN,
        }
    }

    pub(crate) fn is_negative(self) -> bool {
        !self.intersects(Flags::PLAIN | Flags::LINK)
    }
}

/// How a new dentry's freshness is judged.
#[derive(Clone, Copy)]
pub(crate) struct Validity {
    /// Whether it can expire at all.
    pub(crate) revalidate: bool,
    /// Until when it is good, in `clock::millis`, or its stamp; see `fresh.rs`.
    pub(crate) until: u64,
}

impl Dentry {
    /// The root of a file system.
    pub(crate) fn root(sb: u32, inode: InodeRef, validity: Validity) -> DentryRef {
        let mut flags = Flags::ROOT | Flags::of_inode(Some(&inode), !validity.revalidate);
        flags.set(Flags::REVALIDATE, validity.revalidate);
        inode.shared().set(ROOT_DIR);
        Self::without_parent(sb, flags, inode, validity.until)
    }

    fn without_parent(sb: u32, flags: Flags, inode: InodeRef, valid_until: u64) -> DentryRef {
        Ref::new(Dentry {
            seq: SeqCount::new(flags.bits()),
            parent: RcuPtr::new(None),
            inode: RcuPtr::new(Some(inode.into_shared())),
            words: Default::default(),
            hash: AtomicU64::new(0),
            long_name: RcuPtr::new(None),
            valid_until: AtomicU64::new(valid_until),
            sb,
            stamp: AtomicU32::new(0),
        })
    }

    /// A dentry for an inode without a name: no walk finds it.
    #[doc(alias = "d_tmpfile")]
    pub(crate) fn nameless(sb: u32, inode: InodeRef) -> DentryRef {
        let flags = Flags::UNHASHED | Flags::of_inode(Some(&inode), false);
        Self::without_parent(sb, flags, inode, u64::MAX)
    }

    /// Stands for an inode of which no name is known, though it may well have one: no walk finds the
    /// dentry, and its attributes may change behind the mount.
    #[doc(alias = "d_obtain_alias")]
    pub(crate) fn found_without_name(sb: u32, inode: InodeRef, validity: Validity) -> DentryRef {
        let mut flags = Flags::UNHASHED | Flags::of_inode(Some(&inode), false);
        flags.set(Flags::REVALIDATE, validity.revalidate);
        Self::without_parent(sb, flags, inode, validity.until)
    }

    /// True for a dentry that was made without a name, a root among them.
    pub(crate) fn has_no_parent(&self) -> bool {
        self.parent(&rcuwalk_sync::rcu::read_lock()).is_none()
    }

    /// A name for `inode` that is never hashed: for a caller that has created or found a file
    /// that cannot be cached under its name.
    pub(crate) fn uncached(parent: DentryRef, name: &NameHash<'_>, inode: InodeRef) -> DentryRef {
        let never = Validity {
            revalidate: false,
            until: 0,
        };
        let dentry = Self::new(parent.sb(), parent, name, Some(inode), never);
        let flags = dentry.flags() | Flags::UNHASHED;
        dentry.seq.write().set_payload(flags.bits());
        dentry
    }

    /// A name in `parent`, not hashed yet.
    pub(crate) fn new(
        sb: u32,
        parent: DentryRef,
        name: &NameHash<'_>,
        inode: Option<InodeRef>,
        validity: Validity,
    ) -> DentryRef {
        let mut flags = Flags::of_inode(inode.as_deref(), !validity.revalidate);
        flags.set(Flags::REVALIDATE, validity.revalidate);
        flags.set(Flags::LONG, name.words.is_long());
        let hash = name.in_dir(parent.address());
        Ref::new(Dentry {
            seq: SeqCount::new(flags.bits()),
            parent: RcuPtr::new(Some(parent)),
            inode: RcuPtr::new(inode.map(InodeRef::into_shared)),
            words: name.words.words().map(AtomicU64::new),
            hash: AtomicU64::new(hash),
            long_name: RcuPtr::new(name.long().map(Ref::new)),
            valid_until: AtomicU64::new(validity.until),
            sb,
            stamp: AtomicU32::new(0),
        })
    }

    /// The flags, for a caller that holds the lock or does not mind later changes.
    pub(crate) fn flags(&self) -> Flags {
        Flags::of(self.seq.sample())
    }

    /// The inode, for as long as the guard lives. Check the count afterwards.
    #[inline]
    pub(crate) fn inode<'g>(&self, guard: &'g RcuGuard) -> Option<&'g Shared<Inode>> {
        self.inode.load(guard)
    }

    /// A reference to the inode; `None` if the dentry is negative.
    pub(crate) fn inode_ref(&self) -> Option<InodeRef> {
        let guard = rcuwalk_sync::rcu::read_lock();
        self.inode.get(&guard).map(InodeRef::new)
    }

    /// The parent, for as long as the guard lives. Check the count afterwards.
    pub(crate) fn parent<'g>(&self, guard: &'g RcuGuard) -> Option<&'g Shared<Dentry>> {
        self.parent.load(guard)
    }

    /// A reference to the parent; `None` for a root and for a detached dentry.
    #[doc(alias = "dget_parent")]
    pub(crate) fn parent_ref(&self) -> Option<DentryRef> {
        let guard = rcuwalk_sync::rcu::read_lock();
        self.parent.get(&guard)
    }

    /// True if this is the short name `words` in the directory at address `parent`.
    /// For long names the caller compares the whole name afterwards.
    #[inline]
    pub(crate) fn is_at(&self, parent: usize, words: &NameWords) -> bool {
        let [a, b, c] = words.words();
        // The parent first: chains mix names of all directories.
        self.parent.is(parent)
            && (self.words[0].load(Relaxed) ^ a)
                | (self.words[1].load(Relaxed) ^ b)
                | (self.words[2].load(Relaxed) ^ c)
                == 0
    }

    /// True if this is the name, long or short, in the directory at `parent`. The
    /// caller holds a lock that keeps the name, or checks the count afterwards.
    pub(crate) fn is_named(&self, parent: usize, name: &NameHash<'_>, guard: &RcuGuard) -> bool {
        self.is_at(parent, &name.words)
            && self.long_name.load(guard).map(|long| &***long) == name.long_bytes()
    }

    /// The words of its name. The caller holds a lock that keeps the name, or no other thread has
    /// seen the dentry yet.
    fn name_words(&self) -> NameWords {
        let words = self.words.each_ref().map(|word| word.load(Relaxed));
        NameWords::of(words, self.flags().contains(Flags::LONG))
    }

    /// True if both are the same name in the same directory. The caller holds a lock
    /// that keeps this one's name; the other has not been seen by anyone yet.
    pub(crate) fn is_like(&self, other: &Dentry) -> bool {
        let guard = rcuwalk_sync::rcu::read_lock();
        let long = |dentry: &Dentry| dentry.long_name.load(&guard).map(|name| &***name);
        let words = |dentry: &Dentry| dentry.words.each_ref().map(|word| word.load(Relaxed));
        let parent = |dentry: &Dentry| dentry.parent.load(&guard).map(std::ptr::from_ref);
        words(self) == words(other) && parent(self) == parent(other) && long(self) == long(other)
    }

    /// Its directory and its name there, at one moment; `None` for a root and for a detached
    /// dentry.
    #[doc(alias("take_dentry_name_snapshot", "dget_parent"))]
    pub(crate) fn place(&self) -> Option<(DentryRef, Box<[u8]>)> {
        loop {
            let guard = rcuwalk_sync::rcu::read_lock();
            let Some(seq) = self.seq.read_begin() else {
                spin_loop();
                continue;
            };
            let parent = self.parent.load(&guard);
            let name = match self.long_name.load(&guard) {
                Some(long) => (**long).clone(),
                None => NameWords::from_words(self.words.each_ref().map(|word| word.load(Relaxed)))
                    .to_bytes(),
            };
            let parent = parent.map(|parent| parent.try_get());
            if self.seq.read_retry(seq) {
                continue;
            }
            return Some((parent??, name));
        }
    }

    /// The number of the super block it belongs to.
    pub(crate) fn sb(&self) -> u32 {
        self.sb
    }

    /// Until when it is valid; see `fresh.rs`.
    pub(crate) fn valid_until(&self) -> u64 {
        // Acquire: pairs with the Release in `set_valid_until`; a reader that finds the dentry
        // valid finds the attributes that the back end gave with that answer, or later ones.
        self.valid_until.load(Acquire)
    }

    /// Sets until when it is valid. Takes no lock: if a thread with an older answer comes
    /// later, that costs one more revalidation, no worse.
    pub(crate) fn set_valid_until(&self, until: u64) {
        self.valid_until.store(until, Release);
    }

    /// Drops the inode: for the root of an unmounted file system, which no walk can reach any
    /// more.
    #[doc(alias = "shrink_dcache_for_umount")]
    pub(crate) fn forget_inode(&self) {
        // Not the bare count: this may be the inode's last reference.
        drop(self.inode.swap(None).map(InodeRef::new));
    }

    /// Bytes beside the dentry itself. Exact for a caller that holds a lock which keeps the name.
    fn extra_bytes(&self) -> usize {
        if self.long_name.is_none() {
            return 0;
        }
        let guard = rcuwalk_sync::rcu::read_lock();
        self.long_name.load(&guard).map_or(0, |name| {
            Shared::<Box<[u8]>>::BYTES + MALLOC_HEADER + name.len()
        })
    }
}

impl HashKey for Dentry {
    fn hash(&self) -> u64 {
        self.hash.load(Relaxed)
    }
}

impl Drop for Dentry {
    fn drop(&mut self) {
        self.forget_inode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MEM-1: a dentry is two cache lines, an inode three, and an RCU-walk reads only the first
    /// line of a dentry.
    #[test]
    fn the_sizes_are_what_the_budget_counts_with() {
        assert_eq!(Shared::<Dentry>::BYTES, 128);
        assert_eq!(Shared::<Inode>::BYTES, 128);
        let line = Shared::<Dentry>::VALUE_OFFSET + std::mem::offset_of!(Dentry, hash);
        assert_eq!(line, 64, "hot fields end with the first line");
    }
}
