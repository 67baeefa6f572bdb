//! The VFS's inodes: one per file, however many names the file has.
//!
//! | read                 | to learn                                                |
//! |----------------------|---------------------------------------------------------|
//! | `vfs_inode/attr.rs`  | attributes that are read without a lock                 |
//! | `vfs_inode/packed.rs`| in how few bits they are kept                           |
//! | `vfs_inode/acl.rs`   | the access ACL beside them                              |
//! | `vfs_inode/extra.rs` | what most inodes do without                             |
//! | `vfs_inode/lock.rs`  | `i_rwsem`                                               |
//! | this file            | the key, and what a back end fills in                   |

mod acl;
mod attr;
mod extra;
mod lock;
mod packed;

use std::any::Any;
use std::fmt;

use rcuwalk_sync::{AsDyn, Flag, ThinBox};

pub use acl::Asked;
use attr::{AclState, AttrCell};
pub(crate) use attr::{Protection, hold_writers};
use extra::Extra;
pub(crate) use extra::{Allowance, LATE_LINK, LinkTarget, Listed, MALLOC_HEADER};
pub(crate) use lock::InodeLock;

use crate::attr::{Attr, FileType, InodeFlags};
use crate::call::call;
use crate::inode::{self, Key, Node};

/// Identifies an inode within its super block.
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

/// Identifies an inode among all super blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// So that the four bytes after it are of use in a `Node`.
#[repr(C, packed(4))]
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
pub type InodeRef = inode::InodeRef<InodeId, VfsInode>;
/// The result of [`SuperBlock::iget`](crate::SuperBlock::iget).
pub type Iget<'c> = inode::Iget<'c, InodeId, VfsInode>;
/// An [`Inode`] that the caller must fill in.
pub type NewInode<'c> = inode::NewInode<'c, InodeId, VfsInode>;

/// The VFS's own part of an inode, made from an [`InodeFill`].
#[repr(C)]
pub struct VfsInode {
    attr: AttrCell,
    /// The back end's.
    private: Option<ThinBox<dyn Private>>,
}

/// A new inode's contents, which the back end has just read in.
pub struct InodeFill {
    attr: Attr,
    private: Option<ThinBox<dyn Private>>,
    target: Option<Box<[u8]>>,
    acl: Option<Box<[u8]>>,
    may_have_acl: bool,
    watched: bool,
}

/// Private data of a back end in an inode, with a call at the inode's end.
pub trait LastPut: Any + Send + Sync {
    /// The last reference to the inode is gone, and it stays in no cache: its last name is gone
    /// too, or the back end has [unhashed](crate::SuperBlock::unhash) it. Comes before the
    /// drop, which waits for RCU readers. Must not block long. Not called for an inode that is
    /// reclaimed, or that goes with its caches.
    #[doc(alias("evict_inode", "delete_inode"))]
    fn last_put(&self);

    /// About how many bytes it keeps beside itself, for the budget: always the same number,
    /// whatever becomes of it.
    fn bytes(&self) -> usize {
        0
    }
}

/// The private data of a back end, as the inode keeps it.
trait Private: Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn last_put(&self) {}
    /// Its own bytes, and those beside it.
    fn bytes(&self) -> usize;
}

/// For a part that is not told of the last put.
struct Plain<T>(T);

impl<T: Any + Send + Sync> AsDyn<dyn Private> for Plain<T> {
    fn as_dyn(&self) -> &(dyn Private + 'static) {
        self
    }
}

impl<T: Any + Send + Sync> Private for Plain<T> {
    fn as_any(&self) -> &dyn Any {
        &self.0
    }
    fn bytes(&self) -> usize {
        size_of::<T>()
    }
}

/// For a part that is told.
struct Told<T>(T);

impl<T: LastPut> AsDyn<dyn Private> for Told<T> {
    fn as_dyn(&self) -> &(dyn Private + 'static) {
        self
    }
}

impl<T: LastPut> Private for Told<T> {
    fn as_any(&self) -> &dyn Any {
        &self.0
    }
    fn last_put(&self) {
        self.0.last_put();
    }
    fn bytes(&self) -> usize {
        size_of::<T>() + self.0.bytes()
    }
}

/// The back end's knowledge of the access ACL of an inode that it reads in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Acl {
    /// There is none.
    #[default]
    None,
    /// There may be one: [`FileSystem::get_xattr`](crate::FileSystem::get_xattr) is asked
    /// for it when it matters.
    #[doc(alias = "ACL_NOT_CACHED")]
    Unknown,
    /// This, in the format of the extended attribute `system.posix_acl_access`.
    Known(Box<[u8]>),
}

impl fmt::Debug for VfsInode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfsInode")
            .field("attr", &self.attr.load())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for InodeFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeFill")
            .field("attr", &self.attr)
            .field("watched", &self.watched)
            .finish_non_exhaustive()
    }
}

impl InodeFill {
    /// Attributes and nothing else.
    pub fn new(attr: Attr) -> InodeFill {
        InodeFill {
            attr,
            private: None,
            target: None,
            acl: None,
            may_have_acl: false,
            watched: false,
        }
    }

    /// Private data of the back end. It is dropped some time after the inode left the cache, on
    /// any thread.
    pub fn private<T: Any + Send + Sync>(mut self, private: T) -> Self {
        self.private = Some(ThinBox::new(Plain(private)));
        self
    }

    /// Like [`private`](Self::private), for data that is told when the last reference to an
    /// inode without a name is gone.
    pub fn private_last_put<T: LastPut>(mut self, private: T) -> Self {
        self.private = Some(ThinBox::new(Told(private)));
        self
    }

    /// The target of a symbolic link; then `read_link` is not asked for it.
    pub fn link(mut self, target: impl Into<Box<[u8]>>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// Its access ACL; not for a symbolic link, which has none.
    pub fn acl(mut self, acl: Acl) -> Self {
        self.may_have_acl = acl != Acl::None;
        if let Acl::Known(acl) = acl {
            self.acl = Some(acl);
        }
        self
    }

    /// Marks a directory of a file system of [`Freshness::Watched`](crate::Freshness::Watched)
    /// as watched, since before its attributes were asked for: the back end answers each later
    /// change of its names, and of attributes of its files, with
    /// [`SuperBlock::invalidate_names`](crate::SuperBlock::invalidate_names), and one of its own
    /// attributes with [`Inode::set_attr`]. Without this, its names are always stale.
    pub fn watched(mut self) -> Self {
        self.watched = self.attr.kind == FileType::Directory;
        self
    }
}

impl From<InodeFill> for VfsInode {
    fn from(fill: InodeFill) -> VfsInode {
        let is_link = fill.attr.kind == FileType::Symlink;
        let acl = fill.acl.filter(|acl| !is_link && acl::is_kept(acl));
        let extra = Extra::of(&fill.attr, fill.target, acl);
        let cell = AttrCell::new(&fill.attr, extra);
        cell.change_acl(None, || match fill.may_have_acl && !is_link {
            true => AclState::Some,
            false => AclState::None,
        });
        if fill.watched {
            cell.set_watched();
        }
        VfsInode {
            attr: cell,
            private: fill.private,
        }
    }
}

/// Set on a directory that has been removed: it takes no new names.
#[doc(alias = "S_DEAD")]
pub(crate) const DEAD_DIR: Flag = Flag::new(1);

/// Set on a file that was made without a name and may get one.
#[doc(alias = "I_LINKABLE")]
pub(crate) const LINKABLE: Flag = Flag::new(4);

/// Set on a directory once it has had a dentry: before, there is none to look for.
pub(crate) const HAD_DENTRY: Flag = Flag::new(5);

/// Set on the root directory of a file system: it has no name.
pub(crate) const ROOT_DIR: Flag = Flag::new(6);

impl Inode {
    /// Identifies it within its super block.
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
    /// On a file system whose names are valid for ever
    /// ([`Freshness::Always`](crate::Freshness::Always)) use [`Vfs::chmod`](crate::Vfs::chmod)
    /// for the permissions of directories: their cached names remember whether everyone may
    /// search them.
    pub fn set_attr(&self, attr: &Attr) {
        self.attr.store(attr);
    }

    /// The file type; it never changes.
    pub fn kind(&self) -> FileType {
        self.attr.kind()
    }

    /// Owner, group, mode and ACL, all of one moment. Takes no lock.
    #[inline]
    pub(crate) fn protection(&self) -> Protection {
        self.attr.protection()
    }

    /// A directory's: see `fresh.rs`.
    pub(crate) fn names_version(&self) -> u32 {
        self.attr.names_version()
    }

    /// Of a directory under [`Freshness::Ttl`](crate::Freshness::Ttl): until when its
    /// attributes are valid, apart from its name.
    pub(crate) fn path_valid_until(&self) -> u32 {
        self.attr.path_valid_until()
    }

    pub(crate) fn set_path_valid_until(&self, until: u32) {
        self.attr.set_path_valid_until(until);
    }

    /// Makes all names of this directory stale.
    pub(crate) fn invalidate_names(&self) {
        self.attr.invalidate_names();
    }

    /// How many names it has, as far as the cache knows: one look, apart from the other
    /// attributes. Takes no lock.
    #[doc(alias = "i_nlink")]
    pub fn nlink(&self) -> u32 {
        self.attr.nlink()
    }

    /// The back end's private part, if it is a `T`.
    pub fn private<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.private.as_ref()?.as_any().downcast_ref()
    }

    /// See [`LastPut`].
    pub(crate) fn last_put(&self) {
        if let Some(private) = &self.private {
            call(&**private).last_put();
        }
    }

    /// Immutable and append-only.
    pub fn flags(&self) -> InodeFlags {
        self.attr.flags()
    }

    /// Bytes beside the inode itself, always the same number.
    pub(crate) fn extra_bytes(&self) -> usize {
        let Some(part) = self.get() else { return 0 };
        let private = part.private.as_ref().map_or(0, |private| {
            ThinBox::<dyn Private>::HEADER + MALLOC_HEADER + private.bytes()
        });
        private + part.attr.extra().map_or(0, Extra::bytes)
    }
}
