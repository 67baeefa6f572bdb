//! Data in the inode itself: links, devices, owners, modes, times, flags.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};

use rustix::fs::{AtFlags, CWD, FileType, IFlags, Mode, Timespec, Timestamps};
use rustix::io::Errno;

use super::{Place, unless};

/// Symbolic links of every kind of length, and files of several names.
pub(super) fn links(place: &Place<'_>) -> io::Result<()> {
    let lengths = [
        1, 10, 58, 59, 60, 61, 62, 95, 96, 97, 130, 131, 132, 155, 156, 157, 158, 400, 999, 1022,
        1023, 1024, 2047, 4094, 4095,
    ];
    for length in lengths {
        let target: Vec<u8> = (0..length)
            .map(|at| b"target/of/a/link/"[at % 17])
            .collect();
        let link = place.path(format!("to-{length}"));
        let made = rustix::fs::symlink(OsStr::from_bytes(&target), &link);
        // Longer than a block.
        unless(made, &[Errno::NAMETOOLONG])?;
    }
    symlink(OsStr::from_bytes(b"\xff\xfe\x80"), place.path("to-no-text"))?;
    symlink("/", place.path("to-root"))?;

    fs::create_dir(place.path("sub"))?;
    fs::write(place.path("first"), "of several names")?;
    for index in 0..20 {
        fs::hard_link(place.path("first"), place.path(format!("sub/{index}")))?;
    }
    Ok(())
}

/// Everything that is neither file, directory nor link; device numbers old and new.
pub(super) fn nodes(place: &Place<'_>) -> io::Result<()> {
    let make = |name: &str, kind, dev| {
        rustix::fs::mknodat(CWD, place.path(name), kind, Mode::RUSR | Mode::WUSR, dev)
    };
    make("fifo", FileType::Fifo, 0)?;
    make("socket", FileType::Socket, 0)?;
    let numbers = [
        (0, 0),
        (1, 3),
        (255, 255),
        (255, 256),
        (256, 3),
        (300, 70_000),
        (4095, 1_048_575),
    ];
    for (major, minor) in numbers {
        let dev = libc::makedev(major, minor);
        make(
            &format!("char-{major}-{minor}"),
            FileType::CharacterDevice,
            dev,
        )?;
        make(
            &format!("block-{major}-{minor}"),
            FileType::BlockDevice,
            dev,
        )?;
    }
    Ok(())
}

/// Owners, modes, times and flags.
pub(super) fn attributes(place: &Place<'_>) -> io::Result<()> {
    owners_and_modes(place)?;
    times(place)?;
    flags(place)
}

fn owners_and_modes(place: &Place<'_>) -> io::Result<()> {
    for id in [
        1,
        1000,
        65_534,
        65_535,
        65_536,
        100_000,
        4_000_000_000,
        u32::MAX - 1,
    ] {
        let path = place.path(format!("owner-{id}"));
        File::create(&path)?;
        lchown(&path, Some(id), Some(id ^ 1))?;
    }
    for mode in [0, 0o1, 0o644, 0o1777, 0o2755, 0o4755, 0o6711, 0o7777] {
        let (file, dir) = (
            place.path(format!("mode-{mode:o}")),
            format!("dir-{mode:o}"),
        );
        File::create(&file)?;
        fs::set_permissions(&file, Permissions::from_mode(mode))?;
        fs::create_dir(place.path(&dir))?;
        fs::set_permissions(place.path(&dir), Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// The borders of the 32-bit seconds and of the two bits that were added to them.
fn times(place: &Place<'_>) -> io::Result<()> {
    let seconds = [
        i64::from(i32::MIN),
        i64::from(i32::MIN) + 1,
        -1_000_000_000,
        -1,
        0,
        1,
        i64::from(i32::MAX),
        i64::from(i32::MAX) + 1,
        i64::from(u32::MAX),
        i64::from(u32::MAX) + 1,
        (1 << 32) + (1 << 31) - 1,
        (1 << 32) + (1 << 31),
        (1 << 33) - 1,
        1 << 33,
        (1 << 33) + (1 << 31) - 1,
        (1 << 33) + (1 << 31),
        15_032_385_535,
    ];
    for (index, tv_sec) in seconds.into_iter().enumerate() {
        for tv_nsec in [0, 1, 500_000_001, 999_999_999] {
            let path = place.path(format!("time-{index}-{tv_nsec}"));
            File::create(&path)?;
            let other = Timespec {
                tv_sec: 1_600_000_000,
                tv_nsec: 999_999_999 - tv_nsec,
            };
            let times = [Timespec { tv_sec, tv_nsec }, other];
            let swapped = index % 2;
            let times = Timestamps {
                last_access: times[swapped],
                last_modification: times[1 - swapped],
            };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
    }
    Ok(())
}

fn flags(place: &Place<'_>) -> io::Result<()> {
    let flags = [
        ("immutable", IFlags::IMMUTABLE),
        ("append", IFlags::APPEND),
        ("noatime", IFlags::NOATIME),
        ("nodump", IFlags::NODUMP),
        ("sync", IFlags::SYNC),
    ];
    for (name, flag) in flags {
        let file = File::create(place.path(name))?;
        let now = rustix::fs::ioctl_getflags(&file)?;
        let set = rustix::fs::ioctl_setflags(&file, now | flag);
        unless(set, &[Errno::OPNOTSUPP, Errno::NOTTY])?;
    }
    Ok(())
}
