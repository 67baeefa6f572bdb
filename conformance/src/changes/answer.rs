//! What an operation comes to.

use std::fmt;

use crate::answer::errno_name;
use crate::changes::op::{At, Bytes};

/// What one side says to one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The operation's result.
    pub outcome: Outcome,
    /// What root sees afterwards at the places it names.
    pub after: Vec<(At, Outcome)>,
}

/// A result, with its data.
#[derive(Clone, PartialEq)]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// It succeeded with this number: of bytes, or an offset.
    Number(i64),
    /// It succeeded with these bytes.
    Data(Bytes),
    /// Attributes.
    Stat(Stat),
    /// A directory's entries, by name.
    Entries(Vec<Entry>),
    /// Names of attributes, in order.
    Names(Vec<String>),
    /// A whole tree.
    Tree(Vec<Found>),
    /// It failed.
    Errno(i32),
    /// The library under test panicked: never right.
    Panicked(String),
}

impl Outcome {
    /// 0 for success.
    pub fn errno(&self) -> i32 {
        match self {
            Outcome::Errno(errno) => *errno,
            Outcome::Panicked(_) => -1,
            _ => 0,
        }
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Number(number) => write!(f, "{number}"),
            Outcome::Data(data) => data.fmt(f),
            Outcome::Stat(stat) => stat.fmt(f),
            Outcome::Entries(entries) => entries.fmt(f),
            Outcome::Names(names) => names.fmt(f),
            Outcome::Tree(found) => write!(f, "a tree of {}", found.len()),
            Outcome::Errno(errno) => f.write_str(&errno_name(*errno)),
            Outcome::Panicked(message) => write!(f, "panicked: {message}"),
        }
    }
}

/// A timestamp: seconds and nanoseconds.
pub type Moment = (i64, u32);

/// Attributes as statx(2) gives them.
#[derive(Clone, Copy, PartialEq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Type and permission bits.
    pub st_mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, 0 where it means nothing.
    pub rdev: u64,
    /// Size.
    pub size: u64,
    /// Last access, last change of contents, last change.
    pub times: [Moment; 3],
    /// Birth, if known.
    pub btime: Option<Moment>,
    /// FS_IMMUTABLE_FL.
    pub immutable: bool,
    /// FS_APPEND_FL.
    pub append: bool,
}

impl Stat {
    /// The `S_IFMT` bits.
    pub fn kind(&self) -> u32 {
        self.st_mode & libc::S_IFMT
    }
}

impl fmt::Debug for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stat {
            ino,
            st_mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            times,
            btime,
            immutable,
            append,
        } = self;
        write!(
            f,
            "ino {ino} mode {st_mode:#o} nlink {nlink} owner {uid}:{gid}"
        )?;
        write!(f, " rdev {rdev:#x} size {size}")?;
        for (name, (sec, nsec)) in ["atime", "mtime", "ctime"].iter().zip(times) {
            write!(f, " {name} {sec}.{nsec:09}")?;
        }
        if btime.is_none() {
            f.write_str(" no btime")?;
        }
        for (name, set) in [("immutable", immutable), ("append-only", append)] {
            if *set {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

/// A directory's entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The `S_IFMT` bits of the file, as listed.
    pub kind: u32,
    /// Its inode number, as listed.
    pub ino: u64,
}

/// A file that was found in a tree, or open.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Where.
    pub place: At,
    /// Its attributes.
    pub stat: Outcome,
    /// Target of a link, contents of a file, or a directory's entries.
    pub inside: Outcome,
    /// Its extended attributes.
    pub xattrs: Vec<(String, Outcome)>,
}
