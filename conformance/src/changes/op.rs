//! An operation as plain data. What `{:?}` prints is what a person replays.

use std::fmt;

use rustix::fs::{FallocateFlags, OFlags, RenameFlags};

use crate::changes::users::User;

/// How many open files a sequence has at most.
pub const SLOTS: usize = 5;

/// One operation and its user.
#[derive(Clone, PartialEq)]
pub struct Step {
    /// Whose permissions count.
    pub user: User,
    /// The call.
    pub op: Op,
    /// Whether the files it names are looked at afterwards. Not always: looking
    /// fills caches, and some mistakes need them empty.
    pub watch: bool,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { user, op, watch } = self;
        write!(f, "step({user:?}, {op:?}, {watch})")
    }
}

/// Which file an operation is about.
#[derive(Clone, Debug, PartialEq)]
pub enum At {
    /// Where this path leads, through links.
    Path(String),
    /// The same, but for a link in the last place.
    NoFollow(String),
    /// The open file in this slot, by AT_EMPTY_PATH.
    Handle(usize),
}

impl At {
    /// The path, if it is one.
    pub fn path(&self) -> Option<&str> {
        match self {
            At::Path(path) | At::NoFollow(path) => Some(path),
            At::Handle(_) => None,
        }
    }
}

/// A timestamp to set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// UTIME_NOW.
    Now,
    /// UTIME_OMIT.
    Omit,
    /// This moment: seconds and nanoseconds.
    At(i64, i64),
}

/// What mknod(2) makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Node {
    /// A regular file.
    Regular,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device: major, minor. 0, 0 is a whiteout.
    Char(u32, u32),
    /// A block device.
    Block(u32, u32),
    /// A directory, which it does not make.
    Directory,
}

/// A system call with its arguments. Offsets are explicit throughout: where an open
/// file stands is not the VFS's affair.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are the system calls' arguments")]
pub enum Op {
    /// openat(2), with O_CLOEXEC and O_NONBLOCK. What the slot held before is closed.
    Open {
        slot: usize,
        path: String,
        flags: OFlags,
        mode: Bits,
    },
    /// close(2).
    Close { slot: usize },
    /// pread(2).
    Read { slot: usize, at: i64, len: usize },
    /// pwrite(2) of this number of bytes of this value. It appends under O_APPEND.
    Write {
        slot: usize,
        at: i64,
        len: usize,
        fill: u8,
    },
    /// ftruncate(2).
    SetLen { slot: usize, len: i64 },
    /// truncate(2).
    Truncate { path: String, len: i64 },
    /// fallocate(2).
    Allocate {
        slot: usize,
        mode: FallocateFlags,
        at: i64,
        len: i64,
    },
    /// lseek(2) with SEEK_DATA.
    SeekData { slot: usize, at: i64 },
    /// lseek(2) with SEEK_HOLE.
    SeekHole { slot: usize, at: i64 },
    /// fsync(2), or fdatasync(2).
    Sync { slot: usize, data_only: bool },
    /// open(2) with O_CREAT|O_EXCL|O_WRONLY, and close(2).
    Create { path: String, mode: Bits },
    /// mkdir(2).
    Mkdir { path: String, mode: Bits },
    /// mknod(2).
    Mknod {
        path: String,
        kind: Node,
        mode: Bits,
    },
    /// symlink(2).
    Symlink { target: String, path: String },
    /// linkat(2): `Path` is AT_SYMLINK_FOLLOW, `Handle` AT_EMPTY_PATH.
    Link { old: At, new: String },
    /// unlink(2).
    Unlink { path: String },
    /// rmdir(2).
    Rmdir { path: String },
    /// renameat2(2).
    Rename {
        old: String,
        new: String,
        flags: RenameFlags,
    },
    /// fchmodat2(2).
    Chmod { at: At, mode: Bits },
    /// fchownat(2); `None` is -1.
    Chown {
        at: At,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// utimensat(2).
    Utimes { at: At, atime: When, mtime: When },
    /// faccessat2(2); with AT_EACCESS unless `real`.
    Access { at: At, mode: u8, real: bool },
    /// statx(2).
    Stat { at: At },
    /// readlink(2); of a handle, readlinkat(2) with an empty path.
    ReadLink { at: At },
    /// All that getdents64(2) gives, sorted: of a path opened for it, or of a handle
    /// from its beginning.
    List { at: At },
    /// getxattrat(2).
    GetXattr { at: At, name: String },
    /// setxattrat(2); `flags` is XATTR_CREATE or XATTR_REPLACE.
    SetXattr {
        at: At,
        name: String,
        value: Bytes,
        flags: u32,
    },
    /// listxattrat(2), sorted.
    ListXattr { at: At },
    /// removexattrat(2).
    RemoveXattr { at: At, name: String },
    /// statfs(2).
    StatFs { at: At },
    /// umask(2).
    Umask { mask: Bits },
    /// chdir(2), fchdir(2).
    Chdir { at: At },
    /// file_setattr(2): these two flags, and no others.
    SetFlags {
        at: At,
        immutable: bool,
        append: bool,
    },
    /// Not a call: the whole tree, and all that is open, is compared.
    Tree,
}

impl Op {
    /// The name of the variant: what coverage counts.
    pub fn kind(&self) -> &'static str {
        use Op::*;
        match self {
            Open { .. } => "Open",
            Close { .. } => "Close",
            Read { .. } => "Read",
            Write { .. } => "Write",
            SetLen { .. } => "SetLen",
            Truncate { .. } => "Truncate",
            Allocate { .. } => "Allocate",
            SeekData { .. } => "SeekData",
            SeekHole { .. } => "SeekHole",
            Sync { .. } => "Sync",
            Create { .. } => "Create",
            Mkdir { .. } => "Mkdir",
            Mknod { .. } => "Mknod",
            Symlink { .. } => "Symlink",
            Link { .. } => "Link",
            Unlink { .. } => "Unlink",
            Rmdir { .. } => "Rmdir",
            Rename { .. } => "Rename",
            Chmod { .. } => "Chmod",
            Chown { .. } => "Chown",
            Utimes { .. } => "Utimes",
            Access { .. } => "Access",
            Stat { .. } => "Stat",
            ReadLink { .. } => "ReadLink",
            List { .. } => "List",
            GetXattr { .. } => "GetXattr",
            SetXattr { .. } => "SetXattr",
            ListXattr { .. } => "ListXattr",
            RemoveXattr { .. } => "RemoveXattr",
            StatFs { .. } => "StatFs",
            Umask { .. } => "Umask",
            Chdir { .. } => "Chdir",
            SetFlags { .. } => "SetFlags",
            Tree => "Tree",
        }
    }

    /// The files it names: those worth a look after it.
    pub fn names(&self) -> Vec<At> {
        use Op::*;
        let mut names = Vec::new();
        let mut name = |at: At| {
            if let Some(path) = at.path() {
                names.push(At::NoFollow(path.into()));
                names.push(At::Path(parent(path).into()));
            } else {
                names.push(at);
            }
        };
        match self {
            Open { slot, path, .. } => {
                name(At::NoFollow(path.clone()));
                name(At::Handle(*slot));
            }
            Read { slot, .. }
            | Write { slot, .. }
            | SetLen { slot, .. }
            | Allocate { slot, .. }
            | SeekData { slot, .. }
            | SeekHole { slot, .. }
            | Sync { slot, .. } => name(At::Handle(*slot)),
            Truncate { path, .. }
            | Create { path, .. }
            | Mkdir { path, .. }
            | Mknod { path, .. }
            | Symlink { path, .. }
            | Unlink { path }
            | Rmdir { path } => name(At::NoFollow(path.clone())),
            Link { old, new } => {
                name(old.clone());
                name(At::NoFollow(new.clone()));
            }
            Rename { old, new, .. } => {
                name(At::NoFollow(old.clone()));
                name(At::NoFollow(new.clone()));
            }
            Chmod { at, .. }
            | Chown { at, .. }
            | Utimes { at, .. }
            | Access { at, .. }
            | Stat { at }
            | ReadLink { at }
            | List { at }
            | GetXattr { at, .. }
            | SetXattr { at, .. }
            | ListXattr { at }
            | RemoveXattr { at, .. }
            | StatFs { at }
            | Chdir { at }
            | SetFlags { at, .. } => name(at.clone()),
            Close { .. } | Umask { .. } | Tree => {}
        }
        names
    }
}

/// What stands before the last component, by its letters alone: that is enough for
/// something to look at.
fn parent(path: &str) -> &str {
    let trimmed = path.trim_end_matches('/');
    match trimmed.rfind('/') {
        Some(0) => "/",
        Some(at) => &trimmed[..at],
        None => ".",
    }
}

/// Permission bits; printed in octal.
#[derive(Clone, Copy, PartialEq)]
pub struct Bits(pub u16);

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bits({:#o})", self.0)
    }
}

/// Bytes; long ones are printed as runs of one value each.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() <= 64 {
            return write!(f, "Bytes(vec!{:?})", self.0);
        }
        let runs = self.0.chunk_by(|a, b| a == b);
        let runs: Vec<String> = runs
            .map(|run| format!("vec![{}; {}]", run[0], run.len()))
            .collect();
        match runs.len() {
            0..=12 => write!(f, "Bytes([{}].concat())", runs.join(", ")),
            many => write!(
                f,
                "Bytes([{}, …{many} runs].concat())",
                runs[..12].join(", ")
            ),
        }
    }
}
