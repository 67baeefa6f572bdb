//! File attributes, as stat(2) returns them.

use crate::setters;

/// The type of a file, without its permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileType {
    /// The `S_IFMT` bits of this type.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileType::Regular => libc::S_IFREG,
            FileType::Directory => libc::S_IFDIR,
            FileType::Symlink => libc::S_IFLNK,
            FileType::BlockDevice => libc::S_IFBLK,
            FileType::CharDevice => libc::S_IFCHR,
            FileType::Fifo => libc::S_IFIFO,
            FileType::Socket => libc::S_IFSOCK,
        }
    }

    /// The type in the `S_IFMT` bits of `mode`, if they name one.
    pub fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => FileType::Regular,
            libc::S_IFDIR => FileType::Directory,
            libc::S_IFLNK => FileType::Symlink,
            libc::S_IFBLK => FileType::BlockDevice,
            libc::S_IFCHR => FileType::CharDevice,
            libc::S_IFIFO => FileType::Fifo,
            libc::S_IFSOCK => FileType::Socket,
            _ => return None,
        })
    }
}

/// A moment, as file systems store it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC, negative before.
    pub sec: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nsec: u32,
}

bitflags::bitflags! {
    /// Operations that are forbidden on an inode for all users.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct InodeFlags: u8 {
        /// No change at all.
        #[doc(alias("S_IMMUTABLE", "FS_IMMUTABLE_FL", "STATX_ATTR_IMMUTABLE"))]
        const IMMUTABLE = 1;
        /// A file is only appended to, a directory only gains names.
        #[doc(alias("S_APPEND", "FS_APPEND_FL", "STATX_ATTR_APPEND"))]
        const APPEND = 2;
    }
}

/// The attributes of an inode.
///
/// A back end begins with [`Attr::new`] and sets the rest:
///
/// ```
/// use rcuwalk::{Attr, FileType};
///
/// let attr = Attr::new(12, FileType::Regular, 0o644).uid(1000).size(42);
/// assert_eq!((attr.nlink, attr.size), (1, 42));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attr {
    /// The number of the super block; the VFS fills it in, and ignores the back end's value.
    pub dev: u64,
    /// The inode number shown to users.
    pub ino: u64,
    /// The type of the file.
    pub kind: FileType,
    /// Permission bits with set-id and sticky: `mode & 0o7777`.
    pub mode: u16,
    /// Immutable, append-only.
    pub flags: InodeFlags,
    /// How many names it has.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `st_rdev`.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth, zero where the back end does not know it.
    pub btime: Timestamp,
}

impl Attr {
    /// Attributes of a new file with one name, owned by root, all times zero.
    pub fn new(ino: u64, kind: FileType, mode: u16) -> Attr {
        Attr {
            dev: 0,
            ino,
            kind,
            mode: mode & 0o7777,
            flags: InodeFlags::empty(),
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
        }
    }

    /// Type and permission bits together, as `st_mode`.
    pub fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.mode)
    }
}

setters!(Attr {
    dev: u64,
    ino: u64,
    kind: FileType,
    mode: u16,
    flags: InodeFlags,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
    size: u64,
    blocks: u64,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    btime: Timestamp,
});
