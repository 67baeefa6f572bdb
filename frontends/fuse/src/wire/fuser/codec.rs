//! Values on their way there and back: ids, errors, attributes, kinds, times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{AccessFlags, Errno, FileAttr, INodeNo, Request, TimeOrNow};
use rcuwalk::inode::NodeId;
use rcuwalk::{Access, Attr, Error, FileType, SetTime, Timestamp};

use crate::caller::Caller;

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
