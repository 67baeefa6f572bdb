//! Requests beyond the everyday ones, through the kernel.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use common::on_each;
use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

#[test]
fn ranges_are_copied_without_the_kernel_reading_them() {
    on_each(|mount| {
        let at = |name: &str| mount.path().join(name);
        let data: Vec<u8> = (0..300_000_u32).map(|n| (n / 5) as u8).collect();
        fs::write(at("from"), &data).unwrap();
        fs::write(at("to"), b"0123456789").unwrap();
        let from = File::open(at("from")).unwrap();
        let to = File::options()
            .read(true)
            .write(true)
            .open(at("to"))
            .unwrap();
        let copy = |mut offset, mut to_offset, len| {
            let (from, to) = ((&from, Some(&mut offset)), (&to, Some(&mut to_offset)));
            rustix::fs::copy_file_range(from.0, from.1, to.0, to.1, len)
        };
        assert_eq!(copy(1, 5, 1 << 20), Ok(299_999));
        let expected = [b"01234", &data[1..]].concat();
        assert!(fs::read(at("to")).unwrap() == expected);
        assert_eq!(to.metadata().unwrap().len(), expected.len() as u64);
        assert_eq!(copy(300_000, 0, 10), Ok(0), "at the end");
        if let Some(backing) = &mount.backing {
            assert!(fs::read(backing.path().join("to")).unwrap() == expected);
        }
        let (mut offset, mut to_offset) = (10, 12);
        let same =
            rustix::fs::copy_file_range(&to, Some(&mut offset), &to, Some(&mut to_offset), 100);
        assert_eq!(same, Err(Errno::INVAL), "it overlaps");
    });
}

/// EDGE-1: the first and the last second that there are can be set, and read.
#[test]
fn the_ends_of_time_can_be_set() {
    on_each(|mount| {
        let file = mount.path().join("file");
        fs::write(&file, "").unwrap();
        let times = [
            i64::MIN,
            i64::MIN + 1,
            i64::MAX,
            i64::MAX - 1,
            -1,
            0,
            1 << 33,
        ];
        // Often, so that each thread that answers gets its turn.
        for round in 0..20 {
            for sec in times {
                let time = Timespec {
                    tv_sec: sec,
                    tv_nsec: 500_000_000,
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
                let meta = file.metadata().unwrap();
                if mount.backing.is_none() {
                    assert_eq!((meta.mtime(), meta.atime()), (sec, sec), "EDGE-1, {round}");
                }
            }
        }
    });
}

/// EDGE-1: lsattr and chattr show and set what the VFS keeps to.
#[test]
fn flags_are_shown_and_set() {
    on_each(|mount| {
        let path = mount.path().join("file");
        fs::write(&path, "").unwrap();
        let file = File::open(&path).unwrap();
        match rustix::fs::ioctl_setflags(&file, IFlags::IMMUTABLE) {
            // A host's directory may be one that has no flags.
            Err(Errno::OPNOTSUPP | Errno::NOTTY) if mount.backing.is_some() => return,
            done => done.unwrap(),
        }
        assert_eq!(
            rustix::fs::ioctl_getflags(&file).unwrap(),
            IFlags::IMMUTABLE
        );
        let refused = fs::write(&path, "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM), "EDGE-1");
        rustix::fs::ioctl_setflags(&file, IFlags::empty()).unwrap();
        fs::write(&path, "x").unwrap();
        let unknown = rustix::fs::ioctl_setflags(&file, IFlags::NODUMP);
        assert_eq!(unknown, Err(Errno::OPNOTSUPP));
        let dir = File::open(mount.path()).unwrap();
        assert_eq!(rustix::fs::ioctl_getflags(&dir).unwrap(), IFlags::empty());
    });
}

/// What fuser does not know is refused, and nothing hangs.
#[test]
fn what_there_is_not_is_refused() {
    on_each(|mount| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let nameless = rustix::fs::open(mount.path(), flags, Mode::RWXU);
        assert_eq!(nameless.unwrap_err(), Errno::OPNOTSUPP);
    });
}
