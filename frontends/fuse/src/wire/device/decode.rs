//! Decodes bytes into a request. Makes no calls, allocates nothing, and trusts nothing: every
//! length is checked against the message, a name is one string that ends with its NUL, and
//! bytes left over are as wrong as missing ones.
//!
//! A wrong message becomes [`Refused`], which also says whether it is answered.

mod fields;

use rcuwalk::inode::NodeId;

use self::fields::{Fields, Wrong};
use super::abi::{self, op};
use crate::caller::Caller;
use crate::ops::Change;

/// The header of every request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) op: u32,
    /// The number that the answer must carry.
    pub(super) unique: u64,
    pub(super) node: NodeId,
    pub(super) who: Caller,
}

/// Why a message is not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Shorter than a header, or without a request's number, or of an operation that is never
    /// answered: no answer is sent.
    Dropped,
    /// The request of this number is answered `EINVAL`.
    Answered(u64),
}

/// A request, which borrows names and data from the message.
#[derive(Debug)]
pub(super) enum Operation<'m> {
    Init(Offered),
    Destroy,
    Interrupt(u64),
    Forget(u64),
    BatchForget(Forgets<'m>),
    Lookup(&'m [u8]),
    Getattr,
    Statx,
    /// A change, and whether the caller lacks the right to keep set-id bits.
    Setattr(Change, bool),
    Readlink,
    Symlink(&'m [u8], &'m [u8]),
    Mknod {
        name: &'m [u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    Mkdir {
        name: &'m [u8],
        mode: u32,
        umask: u32,
    },
    Unlink(&'m [u8]),
    Rmdir(&'m [u8]),
    Rename {
        name: &'m [u8],
        to: (NodeId, &'m [u8]),
        flags: u32,
    },
    /// A new name for a node.
    Link(NodeId, &'m [u8]),
    Open(i32),
    Create(&'m [u8], NewFile),
    Tmpfile(NewFile),
    Read(Piece),
    Write {
        fh: u64,
        offset: u64,
        is_cached: bool,
        /// The caller lacks the right to keep set-id bits.
        kills_set_ids: bool,
        data: &'m [u8],
    },
    Statfs,
    Release(u64),
    Fsync(u64, bool),
    Setxattr {
        name: &'m [u8],
        value: &'m [u8],
        flags: i32,
        /// Whether an ACL clears the set-gid bit, if the message says so.
        kills_set_gid: Option<bool>,
    },
    Getxattr(&'m [u8], u32),
    Listxattr(u32),
    Removexattr(&'m [u8]),
    Opendir,
    Readdir(Piece),
    Readdirplus(Piece),
    Releasedir(u64),
    Fsyncdir(u64, bool),
    Access(u32),
    Ioctl {
        cmd: u32,
        data: &'m [u8],
        out_size: u32,
    },
    Fallocate {
        fh: u64,
        offset: u64,
        len: u64,
        mode: i32,
    },
    Lseek {
        fh: u64,
        offset: i64,
        whence: i32,
    },
    CopyFileRange {
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
        /// The answer has 64 bits for the number of bytes copied.
        is_long: bool,
    },
    /// Answered `ENOSYS`: the kernel does without.
    Unknown,
    /// Ignored, and not answered.
    Nothing,
}

/// A file to create.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewFile {
    pub(super) flags: i32,
    pub(super) mode: u32,
    pub(super) umask: u32,
    /// If the file exists and is truncated, the caller may not keep its set-id bits.
    pub(super) kills_set_ids: bool,
}

/// A range of an open file or directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) fh: u64,
    pub(super) offset: u64,
    pub(super) size: u32,
}

/// The fields of an INIT.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offered {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) max_readahead: u32,
    pub(super) flags: u64,
}

/// Forgotten nodes, each with a count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forgets<'m>(&'m [[u8; 16]]);

impl Forgets<'_> {
    pub(super) fn each(self) -> impl Iterator<Item = (NodeId, u64)> {
        self.0.iter().filter_map(|one| {
            let mut fields = Fields(one);
            Some((NodeId(fields.u64().ok()?), fields.u64().ok()?))
        })
    }
}

/// Decodes a whole message, since each carries one request. SETXATTR has two forms, and
/// `long_setxattr` is the agreed one.
///
/// # Errors
/// [`Refused`].
pub(super) fn decode(
    message: &[u8],
    long_setxattr: bool,
) -> Result<(Header, Operation<'_>), Refused> {
    let (len, ext_len, header) = header(message).map_err(|Wrong| Refused::Dropped)?;
    let refused = match header {
        // Notices to the kernel have that number: an answer would be taken for one.
        Header { unique: 0, .. } => Refused::Dropped,
        // Operations that are never answered get no answer if they are wrong, either.
        Header {
            op: op::FORGET | op::BATCH_FORGET | op::NOTIFY_REPLY,
            ..
        } => Refused::Dropped,
        Header { unique, .. } => Refused::Answered(unique),
    };
    // FORGET may come without a number.
    if refused == Refused::Dropped && !matches!(header.op, op::FORGET | op::BATCH_FORGET) {
        return Err(refused);
    }
    if usize::try_from(len) != Ok(message.len()) {
        return Err(refused);
    }
    let body = &message[abi::IN_HEADER..];
    // Extensions at the end, none of which we have agreed to.
    let end = body.len().checked_sub(ext_len).ok_or(refused)?;
    let operation = body_of(&header, &body[..end], long_setxattr).map_err(|Wrong| refused)?;
    Ok((header, operation))
}

/// `struct fuse_in_header`, with the length of the message and of its extensions.
fn header(message: &[u8]) -> Result<(u32, usize, Header), Wrong> {
    let mut fields = Fields(message);
    let len = fields.u32()?;
    let op = fields.u32()?;
    let unique = fields.u64()?;
    let node = NodeId(fields.u64()?);
    let who = Caller {
        uid: fields.u32()?,
        gid: fields.u32()?,
        pid: fields.u32()?,
        keeps_set_ids: None,
        is_checked: false,
        is_guest: false,
    };
    let ext_len = usize::from(fields.u16()?) * 8;
    fields.skip(2)?;
    let header = Header {
        op,
        unique,
        node,
        who,
    };
    Ok((len, ext_len, header))
}

fn body_of<'m>(
    header: &Header,
    body: &'m [u8],
    long_setxattr: bool,
) -> Result<Operation<'m>, Wrong> {
    let mut f = Fields(body);
    let operation = match header.op {
        op::LOOKUP => Operation::Lookup(f.name()?),
        op::FORGET => Operation::Forget(f.u64()?),
        op::BATCH_FORGET => Operation::BatchForget(f.forgets()?),
        op::GETATTR => {
            f.skip(16)?;
            Operation::Getattr
        }
        op::STATX => {
            f.skip(24)?;
            Operation::Statx
        }
        op::SETATTR => {
            let (change, kills_set_ids) = f.change()?;
            Operation::Setattr(change, kills_set_ids)
        }
        op::READLINK => Operation::Readlink,
        op::SYMLINK => Operation::Symlink(f.name()?, f.name()?),
        op::MKNOD => {
            let (mode, rdev, umask) = (f.u32()?, f.u32()?, f.u32()?);
            f.skip(4)?;
            Operation::Mknod {
                name: f.name()?,
                mode,
                umask,
                rdev,
            }
        }
        op::MKDIR => {
            let (mode, umask) = (f.u32()?, f.u32()?);
            Operation::Mkdir {
                name: f.name()?,
                mode,
                umask,
            }
        }
        op::UNLINK => Operation::Unlink(f.name()?),
        op::RMDIR => Operation::Rmdir(f.name()?),
        op::RENAME => f.rename(|_| Ok(0))?,
        op::RENAME2 => f.rename(|f| {
            let flags = f.u32()?;
            f.skip(4).map(|()| flags)
        })?,
        op::LINK => Operation::Link(NodeId(f.u64()?), f.name()?),
        op::OPEN => Operation::Open(f.open()?),
        op::OPENDIR => {
            f.open()?;
            Operation::Opendir
        }
        op::CREATE => {
            let new = f.new_file()?;
            Operation::Create(f.name()?, new)
        }
        op::TMPFILE => {
            let new = f.new_file()?;
            // The name has no meaning.
            f.name()?;
            Operation::Tmpfile(new)
        }
        op::READ => Operation::Read(f.piece()?),
        op::READDIR => Operation::Readdir(f.piece()?),
        op::READDIRPLUS => Operation::Readdirplus(f.piece()?),
        op::WRITE => f.write()?,
        op::STATFS => Operation::Statfs,
        op::RELEASE => Operation::Release(f.release()?),
        op::RELEASEDIR => Operation::Releasedir(f.release()?),
        op::FSYNC => {
            let (fh, data_only) = f.sync()?;
            Operation::Fsync(fh, data_only)
        }
        op::FSYNCDIR => {
            let (fh, data_only) = f.sync()?;
            Operation::Fsyncdir(fh, data_only)
        }
        op::SETXATTR => f.setxattr(long_setxattr)?,
        op::GETXATTR => {
            let size = f.size()?;
            Operation::Getxattr(f.name()?, size)
        }
        op::LISTXATTR => Operation::Listxattr(f.size()?),
        op::REMOVEXATTR => Operation::Removexattr(f.name()?),
        op::INIT => f.init()?,
        op::ACCESS => Operation::Access(f.size()?),
        op::INTERRUPT => Operation::Interrupt(f.u64()?),
        op::DESTROY => Operation::Destroy,
        op::IOCTL => f.ioctl()?,
        op::FALLOCATE => {
            let (fh, offset, len, mode) = (f.u64()?, f.u64()?, f.u64()?, f.i32()?);
            f.skip(4)?;
            Operation::Fallocate {
                fh,
                offset,
                len,
                mode,
            }
        }
        op::LSEEK => {
            let (fh, offset, whence) = (f.u64()?, f.u64()?, f.i32()?);
            f.skip(4)?;
            Operation::Lseek {
                fh,
                offset: offset.cast_signed(),
                whence,
            }
        }
        op::COPY_FILE_RANGE => f.copy(false)?,
        op::COPY_FILE_RANGE_64 => f.copy(true)?,
        op::NOTIFY_REPLY => {
            f.rest();
            Operation::Nothing
        }
        _ => {
            f.rest();
            Operation::Unknown
        }
    };
    f.end().map(|()| operation)
}
