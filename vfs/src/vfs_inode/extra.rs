//! What most inodes do without, in memory of its own: so that the inode of a regular file is
//! two cache lines.
//!
//! A directory and a symbolic link have it from the start. Any other file gets it with its first
//! access ACL, or with the first attributes that [`AttrCell`](super::attr::AttrCell) cannot keep
//! in few bits, and keeps it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use once_cell::race::OnceBox;
use rcuwalk_sync::lock::{Rank, Ranked, RwLock};
use rcuwalk_sync::{RcuPtr, Ref, Shared};

use super::Inode;
use super::packed::fits;
use crate::attr::{Attr, FileType};
use crate::readdir::{DirCache, Listings};

/// See the head of this file.
#[derive(Default)]
pub(super) struct Extra {
    /// A directory's `i_rwsem`: shared while names in it are looked up or listed, exclusive while
    /// they change.
    pub(super) rwsem: RwLock<Listed>,
    /// A directory's: see [`Inode::alias_hash`].
    alias: AtomicU32,
    /// A directory's: see [`Inode::names_version`].
    pub(super) names_version: AtomicU32,
    /// A directory's: see [`Inode::path_valid_until`].
    pub(super) path_valid_until: AtomicU32,
    /// A directory's: see [`Inode::listing`].
    listing: OnceBox<Arc<DirCache>>,
    /// What the budget counts for this and for what hangs on it.
    bytes: u32,
    /// The target of a symbolic link, once it is known.
    target: RcuPtr<LinkTarget>,
    /// The access ACL, if there is one and it has been read.
    pub(super) acl: RcuPtr<Box<[u8]>>,
    /// Attributes that need all their bits.
    pub(super) wide: OnceBox<Wide>,
}

/// Attributes with all their bits; under the same sequence count as the others.
#[derive(Default)]
pub(super) struct Wide {
    pub(super) nlink: AtomicU32,
    pub(super) rdev: AtomicU32,
    pub(super) size: AtomicU64,
    pub(super) blocks: AtomicU64,
    pub(super) seconds: [AtomicU64; 4],
    pub(super) nanoseconds: [AtomicU32; 4],
}

/// The target of a symbolic link, as the walk reads it under RCU.
pub(crate) type LinkTarget = Box<[u8]>;

/// The longest target that is cached when the back end gives it later than the inode; every link
/// is taken to have one of that length at least. An inode's weight may not change while it is on
/// the list.
pub(crate) const LATE_LINK: usize = 64;

/// What a directory has beside its cached listing, once it has been listed; every directory is
/// taken to have it. The listing itself is counted by [`Listings`].
const LATE_LISTING: usize = size_of::<DirCache>() + 4 * size_of::<usize>() + 2 * MALLOC_HEADER;

/// What the system allocator spends beside a small object.
pub(crate) const MALLOC_HEADER: usize = 8;

impl Extra {
    /// What a new inode with these attributes has of it, if anything.
    pub(super) fn of(
        attr: &Attr,
        target: Option<LinkTarget>,
        acl: Option<Box<[u8]>>,
    ) -> Option<Box<Extra>> {
        let (is_dir, is_link) = (
            attr.kind == FileType::Directory,
            attr.kind == FileType::Symlink,
        );
        let is_wide = !fits(attr);
        if !is_dir && !is_link && !is_wide && acl.is_none() {
            return None;
        }
        let beside = |bytes: usize| Shared::<LinkTarget>::BYTES + bytes;
        let mut bytes = size_of::<Extra>() + MALLOC_HEADER;
        if is_dir {
            bytes += LATE_LISTING;
        }
        if is_link {
            let length = target.as_ref().map_or(0, |target| target.len());
            bytes += beside(length.max(LATE_LINK));
        }
        if is_wide {
            bytes += size_of::<Wide>() + MALLOC_HEADER;
        }
        bytes += acl.as_ref().map_or(0, |acl| beside(acl.len()));
        Some(Box::new(Extra {
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            target: RcuPtr::new(target.filter(|_| is_link).map(Ref::new)),
            acl: RcuPtr::new(acl.map(Ref::new)),
            ..Extra::default()
        }))
    }

    /// What the budget counts: always the same number. What comes later is not counted: an ACL,
    /// or attributes that need all their bits, 500 bytes at the most, in few inodes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

/// How many names of a directory may be read in unasked, because it has been listed; see
/// `walk/around.rs`. A hint, so relaxed orderings do: a thread that reads another number reads in
/// more or fewer names unasked.
#[derive(Default)]
pub(crate) struct Listed {
    units: AtomicU16,
    /// A thread reads names in unasked.
    is_used: AtomicBool,
}

/// The right to read in names of a directory unasked: one thread's at a time.
pub(crate) struct Allowance<'a> {
    listed: &'a Listed,
    allowed: u32,
    used: u32,
    /// Any number, another one each time.
    chance: u64,
}

impl Ranked for Listed {
    const RANK: Rank = Rank::DirRwsem;
}

impl Listed {
    /// Names per unit: so that directories of four million names count exactly enough.
    const UNIT: u32 = 64;

    /// Sets the number of names that a listing has returned.
    pub(crate) fn set(&self, names: u32) {
        let units = names.div_ceil(Self::UNIT);
        let units = units.try_into().unwrap_or(u16::MAX);
        self.units.store(units, Relaxed);
    }

    /// How many names may come unasked.
    pub(crate) fn names(&self) -> u32 {
        u32::from(self.units.load(Relaxed)) * Self::UNIT
    }

    /// Begins to use the allowance. `None` if nothing is left, or if another thread is using it:
    /// that one reads in the names that this one would. `chance` is any number, another one each
    /// time.
    pub(crate) fn begin(&self, chance: u64) -> Option<Allowance<'_>> {
        if self.names() == 0 || self.is_used.swap(true, Relaxed) {
            return None;
        }
        Some(Allowance {
            listed: self,
            allowed: self.names(),
            used: 0,
            chance,
        })
    }
}

impl Allowance<'_> {
    /// Uses it for one name. False if that was the last one.
    pub(crate) fn use_one(&mut self) -> bool {
        self.used += 1;
        self.used < self.allowed
    }
}

impl Drop for Allowance<'_> {
    /// Subtracts what was used, also if the back end has failed on the way. Part of a unit is
    /// rounded up or down by chance, so that in the long run none is lost or won: if it were
    /// always rounded down, blocks of fewer names than a unit would cost nothing.
    fn drop(&mut self) {
        // Fibonacci hashing: numbers that follow each other are far apart.
        let any = self.chance.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let units = (self.used + any as u32 % Listed::UNIT) / Listed::UNIT;
        let units = u16::try_from(units).unwrap_or(u16::MAX);
        // A listing may have set it meanwhile.
        let subtract = |left: u16| Some(left.saturating_sub(units));
        let _ = self.listed.units.fetch_update(Relaxed, Relaxed, subtract);
        self.listed.is_used.store(false, Relaxed);
    }
}

impl Inode {
    /// The lower half of the hash that the directory's dentry is filed under, or was last; see
    /// `dentry/splice.rs`.
    pub(crate) fn alias_hash(&self) -> u64 {
        // Relaxed: it is a hint. The caller checks the dentry that it finds.
        self.attr
            .extra()
            .map_or(0, |extra| extra.alias.load(Relaxed).into())
    }

    /// The caller holds the inode's lock, or has the dentry's and a write section of
    /// `rename_lock`.
    pub(crate) fn set_alias_hash(&self, hash: u64) {
        self.attr.or_extra().alias.store(hash as u32, Relaxed);
    }

    /// The cached entries of a directory that has been listed.
    pub(crate) fn listing(&self) -> Option<&Arc<DirCache>> {
        self.attr.extra()?.listing.get()
    }

    /// As above, of a directory that is being listed.
    pub(crate) fn or_listing(&self, budget: &Arc<Listings>) -> &Arc<DirCache> {
        let new = || Box::new(Arc::new(DirCache::new(budget.clone())));
        self.attr.or_extra().listing.get_or_init(new)
    }

    /// A symbolic link's target, if it is cached.
    pub(crate) fn link_target(&self) -> &RcuPtr<LinkTarget> {
        &self.attr.or_extra().target
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs_inode::{Acl, InodeFill, VfsInode};

    /// MEM-1: what an inode has from the start beside itself counts, and what most do without
    /// costs the others nothing.
    #[test]
    fn what_is_beside_an_inode_counts() {
        let bytes = |fill: InodeFill| {
            let inode = VfsInode::from(fill);
            inode.attr.extra().map_or(0, Extra::bytes)
        };
        let of = |kind| InodeFill::new(Attr::new(1, kind, 0o644));
        let extra = size_of::<Extra>() + MALLOC_HEADER;
        assert_eq!(bytes(of(FileType::Regular)), 0, "MEM-1");
        let dir = bytes(of(FileType::Directory));
        assert_eq!(dir, extra + LATE_LISTING, "MEM-1");
        let link = |length| bytes(of(FileType::Symlink).link(vec![b'x'; length]));
        assert_eq!(link(1000) - link(100), 900, "MEM-1");
        assert_eq!(
            link(1),
            bytes(of(FileType::Symlink)),
            "MEM-1: it may come later"
        );
        let acl = Acl::Known(Box::new([2; 44]));
        assert!(bytes(of(FileType::Regular).acl(acl)) >= extra + 44, "MEM-1");
        let large = Attr::new(1, FileType::Regular, 0o644).size(1 << 40);
        assert!(
            bytes(InodeFill::new(large)) >= extra + size_of::<Wide>(),
            "MEM-1"
        );
    }
}
