//! Values on their way there and back: ids, errors, attributes, kinds, times.

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{AccessFlags, Errno, FileAttr, INodeNo, Request, TimeOrNow};
use rcuwalk::inode::NodeId;
use rcuwalk::{Access, Attr, Error, FileType, InodeFlags, Result, SetTime, Timestamp, XattrFlags};

use crate::caller::Caller;
use crate::ops::Offset;

pub(super) fn full(is_full: bool) -> ControlFlow<()> {
    if is_full {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

pub(super) fn errno(err: &Error) -> Errno {
    Errno::from_i32(err.errno())
}

pub(super) fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

pub(super) fn caller(req: &Request) -> Caller {
    Caller {
        uid: req.uid(),
        gid: req.gid(),
        pid: req.pid(),
    }
}

pub(super) fn access(mask: AccessFlags) -> Access {
    let mut wanted = Access::empty();
    wanted.set(Access::READ, mask.contains(AccessFlags::R_OK));
    wanted.set(Access::WRITE, mask.contains(AccessFlags::W_OK));
    wanted.set(Access::EXEC, mask.contains(AccessFlags::X_OK));
    wanted
}

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

/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`: for lsattr(1) and chattr(1). What is passed is
/// an `unsigned int`, whatever the numbers say.
pub(super) const GET_FLAGS: u32 = libc::FS_IOC_GETFLAGS as u32;
pub(super) const SET_FLAGS: u32 = libc::FS_IOC_SETFLAGS as u32;

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`, with a `struct fsxattr`: the kernel asks so
/// before it sets flags.
pub(super) const GET_XFLAGS: u32 = 0x801c_581f;
pub(super) const SET_XFLAGS: u32 = 0x401c_5820;

/// `FS_IMMUTABLE_FL`, `FS_XFLAG_IMMUTABLE` and so on.
const FLAGS: [(u32, u32, InodeFlags); 2] = [
    (0x10, 0x8, InodeFlags::IMMUTABLE),
    (0x20, 0x10, InodeFlags::APPEND),
];

pub(super) fn flags_out(flags: InodeFlags) -> [u8; 4] {
    let set = FLAGS.iter().filter(|(_, _, flag)| flags.contains(*flag));
    set.fold(0, |all, (bit, _, _)| all | bit).to_ne_bytes()
}

pub(super) fn xflags_out(flags: InodeFlags) -> [u8; 28] {
    let set = FLAGS.iter().filter(|(_, _, flag)| flags.contains(*flag));
    let xflags: u32 = set.fold(0, |all, (_, bit, _)| all | bit);
    let mut out = [0; 28];
    out[..4].copy_from_slice(&xflags.to_ne_bytes());
    out
}

/// # Errors
/// `EOPNOTSUPP` for other flags than these two.
pub(super) fn flags_in(data: &[u8]) -> Result<InodeFlags> {
    only(data, |(bit, _, flag)| (bit, flag))
}

/// # Errors
/// `EOPNOTSUPP` for other flags than these two, and for anything else that is not 0.
pub(super) fn xflags_in(data: &[u8]) -> Result<InodeFlags> {
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

pub(super) fn encode(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(attr.kind),
        perm: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The lower half is what the kernel has, for numbers that it knows.
        rdev: attr.rdev as u32,
        blksize: 4096,
        flags: 0,
    }
}

pub(super) fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
    }
}

/// What is out of the library's range becomes the epoch.
pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let nsec = Duration::from_nanos(u64::from(time.nsec));
    let sec = Duration::from_secs(time.sec.unsigned_abs());
    let at = match time.sec {
        0.. => UNIX_EPOCH.checked_add(sec),
        _ => UNIX_EPOCH.checked_sub(sec),
    };
    at.and_then(|at| at.checked_add(nsec)).unwrap_or(UNIX_EPOCH)
}

/// A time to be set. Before the epoch, fuser subtracts both numbers that the kernel sent,
/// where the nanoseconds count forwards: here they are taken apart again as they came.
pub(super) fn time(time: TimeOrNow) -> SetTime {
    let time = match time {
        TimeOrNow::Now => return SetTime::Now,
        TimeOrNow::SpecificTime(time) => time,
    };
    let (sec, nsec) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            // 2^63 seconds before it is the one number that has no positive one.
            let sec = i64::try_from(before.as_secs()).map_or(i64::MIN, |sec| -sec);
            (Ok(sec), before.subsec_nanos())
        }
    };
    SetTime::To(Timestamp {
        sec: sec.unwrap_or(i64::MAX),
        nsec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_there() {
        for (sec, nsec) in [(0, 0), (5, 999_999_999), (-1, 0), (-1, 500_000_000)] {
            let time = Timestamp { sec, nsec };
            let shown = system_time(time);
            let floor = match shown.duration_since(UNIX_EPOCH) {
                Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
                Err(before) => {
                    let before = before.duration();
                    match before.subsec_nanos() {
                        0 => (-(before.as_secs() as i64), 0),
                        nanos => (-(before.as_secs() as i64) - 1, 1_000_000_000 - nanos),
                    }
                }
            };
            assert_eq!(floor, (sec, nsec));
        }
    }

    /// EDGE-1: a time before the epoch with a fraction is the one that was asked for.
    #[test]
    fn times_before_the_epoch_are_taken_as_the_kernel_sent_them() {
        // As fuser makes it of -1 s and 500 ms.
        let made = UNIX_EPOCH - Duration::new(1, 500_000_000);
        let expected = SetTime::To(Timestamp {
            sec: -1,
            nsec: 500_000_000,
        });
        assert_eq!(time(TimeOrNow::SpecificTime(made)), expected, "EDGE-1");
    }
}
