//! Inodes: what a name stands for, once, however many names it has.
//!
//! | read                | to learn                                                |
//! |---------------------|---------------------------------------------------------|
//! | `inode/life.rs`     | an inode's states, drawn                                |
//! | `inode/iget.rs`     | the iget family: find, wait, or become the reader       |
//! | `inode/new.rs`      | [`NewInodeOf`]: an inode that nobody else may read yet  |
//! | `inode/node.rs`     | the inode, the counted reference, the last one          |
//! | `inode/evict.rs`    | how an inode leaves, and how the budget is kept         |
//! | `inode/worker.rs`   | a thread that makes room ahead of need                  |
//! | `inode/cache.rs`    | [`InodeCache`]: what it is made of, and how to make one |
//! | `inode/nodes.rs`    | [`NodeTable`]: the ids that a peer has been told        |
//! | `inode/registry.rs` | which cache an inode belongs to                         |
//! | `inode/stats.rs`    | what is counted                                         |
//! | `inode/attr.rs`     | attributes that are read without a lock                 |
//! | this file           | what the VFS keeps in an inode                          |
//!
//! The cache is generic: a daemon with a node table of its own can use
//! `InodeCache<K, P>` and nothing else of this crate. The VFS uses it with
//! [`InodeId`] as key and [`VfsInode`] as the part that is filled in.

mod attr;
mod cache;
mod evict;
mod iget;
mod life;
mod new;
mod node;
mod nodes;
mod registry;
mod stats;
mod worker;

use std::any::Any;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use rcuwalk_sync::lock::{Rank, RwLock};
use rcuwalk_sync::{Flag, RcuPtr, Ref};

pub use attr::AttrCell;
pub use cache::{Builder, InodeCache, InsertLocks, Lookups, Scheme};
pub use iget::{Iget as IgetOf, InUse, Match, PendingInode, SpareInode, Stale, Unwaited};
pub use life::Life;
pub use new::NewInode as NewInodeOf;
pub use node::{InodeRef as InodeRefOf, Key, Node};
pub use nodes::{Entry, NodeId, NodeTable, Numbered};
pub use stats::InodeStatistics;

use crate::attr::{Attr, FileType};

/// What identifies an inode within its super block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InodeKey {
    /// The inode number.
    pub ino: u64,
    /// Whatever else the back end needs to tell two files apart: a device, a mount,
    /// a generation. 0 where the number is enough.
    pub space: u64,
}

impl InodeKey {
    /// A key that is just a number.
    pub fn new(ino: u64) -> InodeKey {
        InodeKey { ino, space: 0 }
    }
}

/// What identifies an inode among all super blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InodeId {
    /// Within the super block.
    pub key: InodeKey,
    /// The super block's number.
    pub sb: u32,
}

impl Key for InodeId {
    fn hash(&self) -> u64 {
        let InodeKey { ino, space } = self.key;
        ino ^ space.rotate_left(32) ^ u64::from(self.sb).rotate_left(48)
    }
}

/// An inode of the VFS.
#[doc(alias = "struct inode")]
pub type Inode = Node<InodeId, VfsInode>;
/// A counted reference to an [`Inode`].
pub type InodeRef = InodeRefOf<InodeId, VfsInode>;
/// What [`SuperBlock::iget`](crate::SuperBlock::iget) found or made.
pub type Iget<'c> = IgetOf<'c, InodeId, VfsInode>;
/// An [`Inode`] to be filled in.
pub type NewInode<'c> = NewInodeOf<'c, InodeId, VfsInode>;

/// The VFS's own part of an inode, made from an [`InodeFill`].
pub struct VfsInode {
    attr: AttrCell,
    private: Box<dyn Any + Send + Sync>,
    link: RcuPtr<LinkBody>,
    /// Shared while names in this directory are looked up or listed, exclusive
    /// while they change.
    pub(crate) rwsem: RwLock<Listed>,
}

/// How many names of a directory may be read in unasked, because it has been listed; see
/// `walk/around.rs`. A hint, in the padding of the lock.
#[derive(Default)]
pub(crate) struct Listed(AtomicU16);

impl Listed {
    /// Names per unit: so that directories of four million names count exactly enough.
    const UNIT: u32 = 64;

    /// So many names have been handed out by a listing.
    pub(crate) fn set(&self, names: u32) {
        let units = names.div_ceil(Self::UNIT);
        // Relaxed: whoever reads another number reads in more or less names unasked.
        self.0.store(units.try_into().unwrap_or(u16::MAX), Relaxed);
    }

    /// So many are left. `chance` is any number, another one each time: it decides what
    /// becomes of a part of a unit, so that in the long run none is lost or won. Rounded
    /// up, blocks of fewer names than a unit has would cost nothing.
    pub(crate) fn leave(&self, names: u32, chance: u64) {
        // Fibonacci hashing: numbers that follow each other are far apart.
        let any = chance.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let units = names.saturating_add(any as u32 % Self::UNIT) / Self::UNIT;
        self.0.store(units.try_into().unwrap_or(u16::MAX), Relaxed);
    }

    /// That number.
    pub(crate) fn names(&self) -> u32 {
        u32::from(self.0.load(Relaxed)) * Self::UNIT
    }
}

/// The target of a symbolic link, as the walk reads it under RCU.
pub(crate) type LinkBody = Box<[u8]>;

/// What a back end knows about an inode that it has just read in.
pub struct InodeFill {
    attr: Attr,
    private: Box<dyn Any + Send + Sync>,
    link: Option<Box<[u8]>>,
}

impl InodeFill {
    /// Attributes and nothing else.
    pub fn new(attr: Attr) -> InodeFill {
        InodeFill {
            attr,
            private: Box::new(()),
            link: None,
        }
    }

    /// What the back end keeps with the inode. It is dropped some time after the
    /// inode left the cache, on any thread.
    pub fn private<T: Any + Send + Sync>(mut self, private: T) -> Self {
        self.private = Box::new(private);
        self
    }

    /// The target of a symbolic link; then `read_link` is not asked for it.
    pub fn link(mut self, target: impl Into<Box<[u8]>>) -> Self {
        self.link = Some(target.into());
        self
    }
}

impl From<InodeFill> for VfsInode {
    fn from(fill: InodeFill) -> VfsInode {
        VfsInode {
            attr: AttrCell::new(&fill.attr),
            private: fill.private,
            link: RcuPtr::new(fill.link.map(Ref::new)),
            rwsem: RwLock::new(Rank::DirRwsem, Listed::default()),
        }
    }
}

/// What a cached link target costs beside its bytes.
const LINK_BYTES: usize = rcuwalk_sync::Shared::<LinkBody>::BYTES;

/// The longest target that is cached when the back end gives it later than the
/// inode; every link is taken to have one of that length at least. An inode's weight
/// may not change while it is on the list.
pub(crate) const LATE_LINK: usize = 64;

/// Set on a directory that has been removed: it takes no new names.
#[doc(alias = "S_DEAD")]
pub(crate) const DEAD_DIR: Flag = Flag::new(1);

impl Inode {
    /// What identifies it within its super block.
    pub fn inode_key(&self) -> InodeKey {
        self.key().key
    }

    /// The attributes, all of one moment. Takes no lock.
    pub fn attr(&self) -> Attr {
        Attr {
            ino: self.key().key.ino,
            dev: u64::from(self.key().sb),
            ..self.attr.load()
        }
    }

    /// Publishes new attributes as one change. The type does not change, and `ino`
    /// and `dev` are the key's.
    ///
    /// On a file system whose names are believed for ever
    /// ([`Freshness::Always`](crate::Freshness::Always)) use
    /// [`Vfs::set_mode`](crate::Vfs::set_mode) for the permissions of directories:
    /// the names they are cached under remember whether everyone may search them.
    pub fn set_attr(&self, attr: &Attr) {
        self.attr.store(attr);
    }

    /// What the file is; it never changes.
    pub fn kind(&self) -> FileType {
        self.attr.kind()
    }

    /// Owner, group and permission bits, of one moment.
    pub(crate) fn owner_and_mode(&self) -> (u32, u32, u16) {
        self.attr.owner_and_mode()
    }

    /// The back end's private part, if it is a `T`.
    pub fn private<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.private.downcast_ref()
    }

    /// The cached link target.
    pub(crate) fn link_body(&self) -> &RcuPtr<LinkBody> {
        &self.link
    }

    /// Bytes beside the inode itself.
    pub(crate) fn extra_bytes(&self) -> usize {
        let Some(part) = self.get() else { return 0 };
        let link = if part.attr.kind() == FileType::Symlink {
            let guard = rcuwalk_sync::rcu::read_lock();
            let target = part.link.load(&guard).map_or(0, |body| body.len());
            LINK_BYTES + target.max(LATE_LINK)
        } else {
            0
        };
        size_of_val(&*part.private) + link
    }
}
