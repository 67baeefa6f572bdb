//! Numbers in requests that every transport passes on unchanged, and their meaning.

use std::io;

use rcuwalk::inode::NodeId;
use rcuwalk::{Error, InodeFlags, Result, XattrFlags};

use crate::caller::Caller;
use crate::ops::{Offset, Ops};

pub(super) fn xattr_flags(flags: i32) -> Result<XattrFlags> {
    let flags = u32::try_from(flags).ok().and_then(XattrFlags::from_bits);
    flags.ok_or(Error::Invalid)
}

pub(super) fn seek(offset: i64, whence: i32) -> Result<Offset> {
    match (u64::try_from(offset), whence) {
        (Ok(from), libc::SEEK_DATA) => Ok(Offset::Data(from)),
        (Ok(from), libc::SEEK_HOLE) => Ok(Offset::Hole(from)),
        (Err(_), libc::SEEK_DATA | libc::SEEK_HOLE) => Err(Error::NoSuchDevice),
        _ => Err(Error::Invalid),
    }
}

/// IOCTL: the calls of lsattr(1) and chattr(1); any other is `ENOTTY`.
pub(super) fn ioctl(
    ops: &Ops,
    who: Caller,
    id: NodeId,
    (cmd, data, out_size): (u32, &[u8], u32),
) -> Result<Vec<u8>> {
    match cmd {
        GET_FLAGS if out_size >= 4 => Ok(flags_out(ops.flags(id)?).to_vec()),
        GET_XFLAGS if out_size >= 28 => Ok(xflags_out(ops.flags(id)?).to_vec()),
        SET_FLAGS => {
            ops.set_flags(who, id, flags_in(data)?)?;
            Ok(Vec::new())
        }
        SET_XFLAGS => {
            ops.set_flags(who, id, xflags_in(data)?)?;
            Ok(Vec::new())
        }
        _ => Err(Error::io(io::Error::from_raw_os_error(libc::ENOTTY))),
    }
}

/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`: for lsattr(1) and chattr(1). The argument is an
/// `unsigned int`, although the numbers say otherwise.
const GET_FLAGS: u32 = libc::FS_IOC_GETFLAGS as u32;
const SET_FLAGS: u32 = libc::FS_IOC_SETFLAGS as u32;

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`, with a `struct fsxattr`: the kernel sends these
/// before it sets flags.
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;

/// `FS_IMMUTABLE_FL`, `FS_XFLAG_IMMUTABLE` and so on.
const FLAGS: [(u32, u32, InodeFlags); 2] = [
    (0x10, 0x8, InodeFlags::IMMUTABLE),
    (0x20, 0x10, InodeFlags::APPEND),
];

fn flags_out(flags: InodeFlags) -> [u8; 4] {
    let set = FLAGS.iter().filter(|(_, _, flag)| flags.contains(*flag));
    set.fold(0, |all, (bit, _, _)| all | bit).to_ne_bytes()
}

fn xflags_out(flags: InodeFlags) -> [u8; 28] {
    let set = FLAGS.iter().filter(|(_, _, flag)| flags.contains(*flag));
    let xflags: u32 = set.fold(0, |all, (_, bit, _)| all | bit);
    let mut out = [0; 28];
    out[..4].copy_from_slice(&xflags.to_ne_bytes());
    out
}

/// # Errors
/// `EOPNOTSUPP` for flags other than these two.
fn flags_in(data: &[u8]) -> Result<InodeFlags> {
    only(data, |(bit, _, flag)| (bit, flag))
}

/// # Errors
/// `EOPNOTSUPP` for flags other than these two, and for any other field that is not 0.
fn xflags_in(data: &[u8]) -> Result<InodeFlags> {
    match data.get(4..28) {
        Some(rest) if rest.iter().all(|byte| *byte == 0) => {
            only(data, |(_, bit, flag)| (bit, flag))
        }
        Some(_) => Err(Error::NotSupported),
        None => Err(Error::Invalid),
    }
}

fn only(data: &[u8], bit: fn((u32, u32, InodeFlags)) -> (u32, InodeFlags)) -> Result<InodeFlags> {
    let bytes = data.first_chunk().ok_or(Error::Invalid)?;
    let mut left = u32::from_ne_bytes(*bytes);
    let mut flags = InodeFlags::empty();
    for (bit, flag) in FLAGS.map(bit) {
        flags.set(flag, left & bit != 0);
        left &= !bit;
    }
    match left {
        0 => Ok(flags),
        _ => Err(Error::NotSupported),
    }
}
