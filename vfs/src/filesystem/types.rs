//! The arguments of [`FileSystem`](super::FileSystem)'s calls.

use std::fmt;

use crate::attr::InodeFlags;
use crate::attr::{Attr, FileType, Timestamp};
use crate::filesystem::FileHandle;
use crate::name::Name;
use crate::permission::Credentials;
use crate::setters;
use crate::super_block::SuperBlock;
use crate::vfs_inode::{Inode, InodeRef};

/// On whose behalf a back end is called, and for which mount of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[doc(alias = "current_cred")]
pub struct Caller<'a> {
    /// The mounted back end.
    pub sb: &'a SuperBlock,
    /// The credentials of the caller. The VFS has checked them against owner, group, mode and
    /// ACL.
    pub credentials: &'a Credentials,
}

impl<'a> Caller<'a> {
    /// The owner of `credentials`, in this mount.
    pub fn new(sb: &'a SuperBlock, credentials: &'a Credentials) -> Caller<'a> {
        Caller { sb, credentials }
    }
}

/// Where a file was found: back ends that hold no descriptor per inode open it again by
/// directory and name, and check that it is still the same.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct At<'a> {
    /// The directory and name it was reached by; `None` for a root, for a file that was made
    /// without a name, and for an open file or current directory that, as the VFS knows, has
    /// lost the name it was reached by. It may have lost that name without the VFS knowing.
    pub parent: Option<(&'a Inode, Name<'a>)>,
    /// The file itself.
    pub inode: &'a Inode,
    /// The file as it is open, if the caller came with one.
    pub open: Option<&'a dyn FileHandle>,
}

impl fmt::Debug for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("At")
            .field("parent", &self.parent)
            .field("inode", &self.inode)
            .field("is_open", &self.open.is_some())
            .finish()
    }
}

impl<'a> At<'a> {
    /// A file without a name, and not open.
    pub fn new(inode: &'a Inode) -> At<'a> {
        At {
            parent: None,
            inode,
            open: None,
        }
    }

    /// The same file, found by this name in this directory.
    #[must_use]
    pub fn below(mut self, dir: &'a Inode, name: Name<'a>) -> At<'a> {
        self.parent = Some((dir, name));
        self
    }

    /// The same file, open.
    #[must_use]
    pub fn open(mut self, open: &'a dyn FileHandle) -> At<'a> {
        self.open = Some(open);
        self
    }
}

/// The result of [`FileSystem::by_number`](super::FileSystem::by_number) and
/// [`FileSystem::open_handle`](super::FileSystem::open_handle).
#[doc(alias = "d_obtain_alias")]
#[derive(Debug)]
#[non_exhaustive]
pub enum ByNumber {
    /// A path from the root of the file system. The VFS walks it, and compares the file it
    /// finds.
    Path(Box<[u8]>),
    /// An inode that is below the root, though the back end knows no name of it; no directory. Its
    /// operations come without a name ([`At::parent`]).
    Inode(InodeRef),
}

/// The file that [`FileSystem::create`](super::FileSystem::create) makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewFile<'a> {
    /// Regular file, directory, symbolic link, device node, …
    pub kind: FileType,
    /// The final permission bits: the umask, or the directory's default ACL, is applied
    /// already.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number for device nodes.
    pub rdev: u64,
    /// Target, for a symbolic link.
    pub target: &'a [u8],
    /// Its access ACL, in the format of `system.posix_acl_access`, if the directory hands
    /// one down.
    pub acl: Option<&'a [u8]>,
    /// Its default ACL, likewise; for a directory.
    pub default_acl: Option<&'a [u8]>,
}

impl<'a> NewFile<'a> {
    /// Something without target and device number, owned by root.
    pub fn new(kind: FileType, mode: u16) -> NewFile<'a> {
        NewFile {
            kind,
            mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: b"",
            acl: None,
            default_acl: None,
        }
    }

    /// The attributes the new inode starts with; all times are zero.
    pub fn attr(&self, ino: u64) -> Attr {
        Attr {
            nlink: if self.kind == FileType::Directory {
                2
            } else {
                1
            },
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.target.len() as u64,
            ..Attr::new(ino, self.kind, self.mode)
        }
    }
}

bitflags::bitflags! {
    /// How a name is moved.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct RenameFlags: u32 {
        /// Fail with [`Error::Exists`](crate::Error::Exists) where the new name is taken.
        #[doc(alias = "RENAME_NOREPLACE")]
        const NOREPLACE = 1;
        /// Both names change places.
        #[doc(alias = "RENAME_EXCHANGE")]
        const EXCHANGE = 2;
        /// Leave a character device 0:0 in place of the old name, which says to an overlay
        /// that there is nothing.
        #[doc(alias = "RENAME_WHITEOUT")]
        const WHITEOUT = 4;
    }
}

setters!(NewFile<'a> {
    uid: u32,
    gid: u32,
    rdev: u64,
    target: &'a [u8],
    acl: Option<&'a [u8]>,
    default_acl: Option<&'a [u8]>,
});

/// The rename that [`FileSystem::rename`](super::FileSystem::rename) makes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Rename<'a> {
    /// The directory and name it has now.
    pub from: (&'a Inode, Name<'a>),
    /// The directory and name it gets.
    pub to: (&'a Inode, Name<'a>),
    /// The inode that moves.
    pub moved: &'a Inode,
    /// The inode that has the new name now: it is replaced, or exchanged.
    pub replaced: Option<&'a Inode>,
    /// The VFS has checked NOREPLACE; a back end with other writers checks it again.
    pub flags: RenameFlags,
    /// With WHITEOUT: the device that takes the old name.
    pub whiteout: Option<&'a NewFile<'a>>,
}

impl<'a> Rename<'a> {
    /// One that replaces nothing, without flags.
    pub fn new(
        from: (&'a Inode, Name<'a>),
        to: (&'a Inode, Name<'a>),
        moved: &'a Inode,
    ) -> Rename<'a> {
        Rename {
            from,
            to,
            moved,
            replaced: None,
            flags: RenameFlags::empty(),
            whiteout: None,
        }
    }
}

setters!(Rename<'a> {
    replaced: Option<&'a Inode>,
    flags: RenameFlags,
    whiteout: Option<&'a NewFile<'a>>,
});

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the back end's clock.
    #[doc(alias = "UTIME_NOW")]
    Now,
    /// This.
    To(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
///
/// The VFS has checked the caller's rights, and `mode` includes the side effects of the change:
/// a change of owner clears the set-id bits, a chmod by a caller outside of the group the
/// set-gid bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "struct iattr")]
#[non_exhaustive]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<SetTime>,
    /// Time of the last change of the contents.
    pub mtime: Option<SetTime>,
    /// Immutable, append-only.
    pub flags: Option<InodeFlags>,
}

setters!(SetAttr some {
    mode: u16,
    uid: u32,
    gid: u32,
    size: u64,
    atime: SetTime,
    mtime: SetTime,
    flags: InodeFlags,
});

bitflags::bitflags! {
    /// How an extended attribute is set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct XattrFlags: u32 {
        /// Fail with [`Error::Exists`](crate::Error::Exists) if there is one.
        #[doc(alias = "XATTR_CREATE")]
        const CREATE = 1;
        /// Fail with [`Error::NoData`](crate::Error::NoData) if there is none.
        #[doc(alias = "XATTR_REPLACE")]
        const REPLACE = 2;
    }
}

bitflags::bitflags! {
    /// How a range of a file is changed. Without flags, space is allocated, and the file grows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Allocate: u32 {
        /// The size stays.
        #[doc(alias = "FALLOC_FL_KEEP_SIZE")]
        const KEEP_SIZE = 1;
        /// The range becomes a hole; comes with `KEEP_SIZE`.
        #[doc(alias = "FALLOC_FL_PUNCH_HOLE")]
        const PUNCH_HOLE = 2;
        /// The range reads as zeros.
        #[doc(alias = "FALLOC_FL_ZERO_RANGE")]
        const ZERO_RANGE = 16;
    }
}

/// The target of a seek in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The next byte that is not in a hole.
    #[doc(alias = "SEEK_DATA")]
    Data,
    /// The next hole; the end of the file counts as one.
    #[doc(alias = "SEEK_HOLE")]
    Hole,
}

/// How full a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "struct kstatfs")]
#[non_exhaustive]
pub struct StatFs {
    /// Its type, as in statfs(2): a magic number.
    pub kind: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users other than root.
    pub blocks_available: u64,
    /// Inodes in all, 0 if they are not limited.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// The longest name.
    pub name_max: u32,
}

impl Default for StatFs {
    /// One that counts nothing.
    #[doc(alias = "simple_statfs")]
    fn default() -> StatFs {
        StatFs {
            kind: 0,
            block_size: 4096,
            blocks: 0,
            blocks_free: 0,
            blocks_available: 0,
            files: 0,
            files_free: 0,
            name_max: crate::NAME_MAX as u32,
        }
    }
}
