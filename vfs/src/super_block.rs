//! A mounted back end: its number, and its door to the inode cache.

use std::sync::{Arc, OnceLock, Weak};

use rcuwalk_sync::atomic::AtomicU32;
use rcuwalk_sync::lock::{Mutex, Rank};

use crate::announce::Listener;
use crate::caches::Caches;
use crate::call::{Called, call};
use crate::descriptors::HeldDescriptor;
use crate::error::{Error, Result};
use crate::filesystem::{FileSystem, Freshness};
use crate::fresh::FIRST_EPOCH;
use crate::inode::{InUse, Stale};
use crate::vfs_inode::{Iget, InodeId, InodeKey, InodeRef, NewInode};

/// A back end in use.
///
/// Each call of its [`FileSystem`] that may need an inode gets a reference to it.
#[doc(alias = "struct super_block")]
pub struct SuperBlock {
    id: u32,
    fs: Box<dyn FileSystem>,
    pub(crate) freshness: Freshness,
    /// Counts [`invalidate_all`](Self::invalidate_all); see `fresh.rs`.
    pub(crate) epoch: AtomicU32,
    /// Hears of changes; see `announce.rs`.
    pub(crate) listener: OnceLock<Weak<dyn Listener>>,
    /// See [`FileSystem::looks_around`].
    pub(crate) looks_around: bool,
    /// Listings are cached: see [`FileSystem::caches_listings`].
    pub(crate) caches_listings: bool,
    /// See [`FileSystem::read_only`].
    #[doc(alias("SB_RDONLY", "sb_rdonly"))]
    pub(crate) read_only: bool,
    /// See [`FileSystem::posix_acl`].
    #[doc(alias("SB_POSIXACL", "IS_POSIXACL"))]
    pub(crate) posix_acl: bool,
    pub(crate) caches: Arc<Caches>,
    /// Held by a rename between two directories and by a splice (DENTRY-5): one thread at a time,
    /// so that "is an ancestor of" stays true while that thread relies on it.
    #[doc(alias = "s_vfs_rename_mutex")]
    pub(crate) rename_mutex: Mutex<()>,
}

impl std::fmt::Debug for SuperBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("SuperBlock");
        shown.field("id", &self.id).field("fs", &self.fs.name());
        shown.finish_non_exhaustive()
    }
}

impl SuperBlock {
    pub(crate) fn new(fs: Box<dyn FileSystem>, caches: Arc<Caches>) -> SuperBlock {
        SuperBlock {
            id: caches.new_super_block_id(),
            freshness: fs.freshness(),
            epoch: AtomicU32::new(FIRST_EPOCH),
            listener: OnceLock::new(),
            looks_around: fs.looks_around(),
            caches_listings: fs.caches_listings() && caches.listings.limit() > 0,
            read_only: fs.read_only(),
            posix_acl: fs.posix_acl(),
            fs,
            caches,
            rename_mutex: Mutex::new(Rank::RenameMutex, ()),
        }
    }

    /// The number that `stat` reports as the device.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The back end, to be called (CALL-1).
    #[inline]
    pub(crate) fn fs(&self) -> Called<'_, dyn FileSystem> {
        call(&*self.fs)
    }

    /// The back end, for its constants, which need no call into it.
    pub(crate) fn about(&self) -> &dyn FileSystem {
        &*self.fs
    }

    /// The cached inode for `key`, or a [`NewInode`](crate::NewInode) to fill in.
    ///
    /// Sleeps while another thread reads that inode in, so a back end holds no lock
    /// of its own that the other's read-in may need.
    ///
    /// # Errors
    /// [`Stale`] if another thread is [creating](Self::insert_inode) it.
    #[doc(alias = "iget_locked")]
    pub fn iget(&self, key: InodeKey) -> Result<Iget<'_>, Stale> {
        self.caches.icache.iget(InodeId { key, sb: self.id })
    }

    /// Has the processor fetch what [`iget`](Self::iget) looks at first: for a back end
    /// that knows which keys it will ask for next. It is only a hint.
    #[inline]
    pub fn prefetch(&self, key: InodeKey) {
        self.caches.icache.prefetch(&InodeId { key, sb: self.id });
    }

    /// The second half of [`prefetch`](Self::prefetch), some keys later: the lines that the
    /// first half has loaded tell which others are needed.
    #[inline]
    pub fn prefetch_chain(&self, key: InodeKey) {
        let id = InodeId { key, sb: self.id };
        self.caches.icache.prefetch_chain(&id);
    }

    /// The cached inode for `key`, if there is one. Sleeps while it is read in.
    ///
    /// # Errors
    /// As for [`iget`](Self::iget).
    pub fn ilookup(&self, key: InodeKey) -> Result<Option<InodeRef>, Stale> {
        self.caches.icache.ilookup(&InodeId { key, sb: self.id })
    }

    /// Reserves `key` for an inode that the back end is creating: until it is filled in, other
    /// threads get [`Stale`] for it.
    ///
    /// # Errors
    /// [`InUse`] if there is one with that key.
    #[doc(alias = "insert_inode_locked")]
    pub fn insert_inode(&self, key: InodeKey) -> Result<NewInode<'_>, InUse> {
        let id = InodeId { key, sb: self.id };
        self.caches.icache.insert_inode(id)
    }

    /// Takes an inode out of the cache whose key now refers to another file: the next
    /// [`iget`](Self::iget) of that key is new. Its holders keep it.
    #[doc(alias("remove_inode_hash", "make_bad_inode"))]
    pub fn unhash(&self, inode: &InodeRef) {
        self.caches.icache.unhash(inode);
    }

    /// Drops everything cached and unused, of all back ends, and waits until it is
    /// freed: for a thread of the back end's own. Returns how many inodes went.
    ///
    /// Not in a call (CALL-1): what would be freed there is freed later, and debug builds
    /// panic. A back end that has run out of descriptors in a call says
    /// [`Error::TooManyOpenFiles`]; then the VFS does this and calls it again.
    pub fn shrink(&self) -> usize {
        self.caches.release()
    }

    /// Drops the unused inodes of this file system: for a thread of the back end that may have
    /// held some while it was unmounted.
    #[doc(alias = "evict_inodes")]
    pub fn evict_unused(&self) {
        self.caches.icache.evict_inodes(|id| id.sb == self.id);
    }

    /// Counts a descriptor that is kept with an inode. If the budget is used up, the VFS closes
    /// others for it when this call is over. Keep the result beside the descriptor.
    pub fn hold_descriptor(&self) -> HeldDescriptor {
        self.caches.hold_descriptor()
    }

    /// Counts a descriptor if the budget has room for it: for a back end that can give
    /// back another one first. One that cannot goes on to
    /// [`hold_descriptor`](Self::hold_descriptor).
    pub fn try_hold_descriptor(&self) -> Option<HeldDescriptor> {
        self.caches.descriptors.try_hold()
    }

    /// True if the back end changes only through this VFS.
    pub(crate) fn never_expires(&self) -> bool {
        self.freshness == Freshness::Always
    }

    /// The inode of the root directory.
    pub(crate) fn read_root(&self) -> Result<InodeRef> {
        let root = self.fs().root(self)?;
        match root.kind() {
            crate::FileType::Directory => Ok(root),
            _ => Err(Error::NotADirectory),
        }
    }
}
