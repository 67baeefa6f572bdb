//! What a walk comes to, in terms that the kernel, the model and rcuwalk share.
//!
//! Inode numbers differ between back ends, so an answer names the node of the
//! generated [`Tree`](crate::tree::Tree) instead; whoever materialised the tree
//! knows which inode number stands for which node.

use std::collections::HashMap;
use std::fmt;

use rcuwalk::FileType;

use crate::tree::NodeIx;

/// The outcome of one walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It ended here.
    Found(Found),
    /// It failed with this errno.
    Errno(i32),
    /// The library under test panicked: never right, and worth shrinking too.
    Panicked(String),
}

impl Answer {
    /// 0 for success.
    pub fn errno(&self) -> i32 {
        match self {
            Answer::Found(_) => 0,
            Answer::Errno(errno) => *errno,
            Answer::Panicked(_) => -1,
        }
    }
}

/// The attributes of the file that was found, as far as all sides must agree on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which node of the tree.
    pub which: Which,
    /// Type and permission bits.
    pub st_mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names it has. `None` for directories: file systems count their
    /// subdirectories differently, or not at all.
    pub nlink: Option<u32>,
    /// Device number; `None` where it means nothing.
    pub rdev: Option<u64>,
    /// Size. `None` for directories, whose size is the file system's own affair.
    pub size: Option<u64>,
}

impl Found {
    /// Takes `raw` over and blanks what has no common meaning for its type.
    pub fn new(which: Which, raw: Raw) -> Found {
        let kind = FileType::from_mode(raw.st_mode);
        let is_dir = kind == Some(FileType::Directory);
        let is_device = matches!(kind, Some(FileType::CharDevice | FileType::BlockDevice));
        Found {
            which,
            st_mode: raw.st_mode,
            uid: raw.uid,
            gid: raw.gid,
            nlink: (!is_dir).then_some(raw.nlink),
            rdev: is_device.then_some(raw.rdev),
            size: (!is_dir).then_some(raw.size),
        }
    }
}

/// Attributes before [`Found::new`] has sorted out which of them count.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields of stat(2)")]
pub struct Raw {
    pub st_mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u64,
    pub size: u64,
}

impl From<rcuwalk::Attr> for Raw {
    fn from(attr: rcuwalk::Attr) -> Raw {
        Raw {
            st_mode: attr.st_mode(),
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            rdev: attr.rdev,
            size: attr.size,
        }
    }
}

/// A node of the tree, or an inode that no node of the tree has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// This node.
    Node(NodeIx),
    /// No node has this inode number: the walk left the tree.
    Stranger(u64),
}

/// Which inode number stands for which node.
#[derive(Clone, Debug, Default)]
pub struct Numbers(HashMap<u64, NodeIx>);

impl Numbers {
    /// Notes that `ino` is `node`.
    ///
    /// # Panics
    /// If the number is taken by another node: two inodes would look the same.
    pub fn note(&mut self, ino: u64, node: NodeIx) {
        let before = self.0.insert(ino, node);
        assert!(
            before.is_none_or(|b| b == node),
            "inode number {ino} given out twice"
        );
    }

    /// The node with this inode number.
    pub fn which(&self, ino: u64) -> Which {
        self.0
            .get(&ino)
            .map_or(Which::Stranger(ino), |&node| Which::Node(node))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Panicked(why) => write!(f, "panic: {why}"),
            Answer::Errno(errno) => f.write_str(&errno_name(*errno)),
            Answer::Found(found) => {
                match found.which {
                    Which::Node(ix) => write!(f, "node {ix}")?,
                    Which::Stranger(ino) => write!(f, "an inode outside the tree ({ino})")?,
                }
                write!(f, " mode {:o} {}:{}", found.st_mode, found.uid, found.gid)?;
                write!(
                    f,
                    " nlink {:?} rdev {:?} size {:?}",
                    found.nlink, found.rdev, found.size
                )
            }
        }
    }
}

/// The name of an errno that a walk may end with.
pub fn errno_name(errno: i32) -> String {
    match errno {
        0 => "success",
        libc::ENOENT => "ENOENT",
        libc::ENOTDIR => "ENOTDIR",
        libc::ELOOP => "ELOOP",
        libc::EACCES => "EACCES",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::EINVAL => "EINVAL",
        libc::ESTALE => "ESTALE",
        libc::EAGAIN => "EAGAIN",
        libc::EPERM => "EPERM",
        libc::ENXIO => "ENXIO",
        libc::E2BIG => "E2BIG",
        libc::EBADF => "EBADF",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::EISDIR => "EISDIR",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::ESPIPE => "ESPIPE",
        libc::EROFS => "EROFS",
        libc::EMLINK => "EMLINK",
        libc::ERANGE => "ERANGE",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ENODATA => "ENODATA",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        other => return format!("errno {other}"),
    }
    .into()
}
