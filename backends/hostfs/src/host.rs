//! The system calls, one function each, and why they cannot leave the root.
//!
//! | call            | follows a link | opens                        |
//! |-----------------|----------------|------------------------------|
//! | [`stat_at`]     | never          | nothing                      |
//! | [`known_at`]    | never          | nothing                      |
//! | [`pin_at`]      | never          | the name itself, O_PATH      |
//! | [`open_file_at`]| never          | a regular file               |
//! | [`open_dir`]    | —              | a pinned directory, to list  |
//! | [`open_root`]   | as told        | the root, once               |
//! | `dirs/reopen.rs` | —             | a directory by its handle, which was asked for when a descriptor held it |
//! | `handles.rs`    | —              | a file by its number, which counts only if it is below the root |
//! | `host/names.rs` | never          | what it makes, links, moves  |
//! | `host/held.rs`  | —              | what a descriptor holds      |
//!
//! WALK-3 for the host: apart from [`open_root`], the kernel is only ever given a
//! descriptor of a directory below the root and one [`Name`] (which cannot be `..`
//! and cannot hold a `/`), with "do not follow". A link or `..` is the VFS's to walk.
//! openat2's `RESOLVE_BENEATH | NO_SYMLINKS | NO_MAGICLINKS` say the same a second
//! time; where a sandbox or an old kernel refuses openat2, the first time is enough.
//!
//! The one path that is ever built leads to a descriptor of our own, where the kernel
//! has no call that takes it directly: see [`held`].

pub(crate) mod held;
pub(crate) mod names;

use std::path::Path;

use rcuwalk::{Error, Name, Result};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::identity::{Stat, WANTED};

/// Resolution stays at the one name it is given.
const ONE_NAME: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// Opens the directory that becomes the root, and makes sure that it can be listed.
///
/// Follows links, as no other function here does: the path comes from the administrator.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root =
        retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty())).map_err(err)?;
    // O_PATH asks for no permission on the directory itself. Better an error at
    // mount, with the path in it, than one from every listing.
    open_dir(as_fd(&root))?;
    Ok(root)
}

/// What `name` in `dir` is, or `None` if there is no such name.
pub(crate) fn stat_at(dir: BorrowedFd<'_>, name: Name<'_>) -> Result<Option<Stat>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match retry_on_intr(|| rustix::fs::statx(dir, name.as_bytes(), flags, WANTED)) {
        Ok(statx) => Stat::from_statx(&statx).map(Some),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(err(errno)),
    }
}

/// Cached attributes of `name` in `dir` (its file system asks no server), and its device
/// number; `None` if there is no such name.
#[doc(alias = "AT_STATX_DONT_SYNC")]
pub(crate) fn known_at(dir: BorrowedFd<'_>, name: Name<'_>) -> Result<Option<(u64, Result<Stat>)>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match retry_on_intr(|| rustix::fs::statx(dir, name.as_bytes(), flags, WANTED)) {
        Ok(statx) => Ok(Some((device(&statx), Stat::from_statx(&statx)))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(err(errno)),
    }
}

/// The device that an open descriptor's file is on.
pub(crate) fn device_of(fd: BorrowedFd<'_>) -> Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let statx = retry_on_intr(|| rustix::fs::statx(fd, c"", flags, StatxFlags::empty()));
    statx.map(|statx| device(&statx)).map_err(err)
}

fn device(statx: &Statx) -> u64 {
    rustix::fs::makedev(statx.stx_dev_major, statx.stx_dev_minor)
}

/// Attributes of an open descriptor.
pub(crate) fn stat_fd(fd: BorrowedFd<'_>) -> Result<Stat> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    let statx = retry_on_intr(|| rustix::fs::statx(fd, c"", flags, WANTED)).map_err(err)?;
    Stat::from_statx(&statx)
}

/// A descriptor that stands for `name` itself, be it a link, and keeps it.
///
/// Needs no permission on the file, triggers no automount, opens no device.
pub(crate) fn pin_at(dir: BorrowedFd<'_>, name: Name<'_>) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open_name(dir, name, flags, Mode::empty()).map_err(err)
}

/// For every open of a file. NONBLOCK and NOCTTY for the one that was replaced by a FIFO
/// or a terminal since it was looked up: neither may hold up or take over this process.
const CAREFULLY: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Opens `name` with `access`. The caller checks which file it got.
pub(crate) fn open_file_at(dir: BorrowedFd<'_>, name: Name<'_>, access: OFlags) -> Result<OwnedFd> {
    let opened = open_name(dir, name, access | CAREFULLY, Mode::empty());
    opened.map_err(|errno| match errno {
        // Gone, now a link, a socket or a FIFO, a directory: not the file looked up.
        Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR => Error::Stale,
        // Another process holds a lease on the file, which this open has begun to
        // break. `WouldBlock` would tell the caller that a cache had no answer.
        Errno::AGAIN => Error::Busy,
        errno => err(errno),
    })
}

/// Opens a pinned directory for listing.
///
/// "." is looked up in the directory, so the daemon needs search permission on it
/// besides read permission. Going by its name would not, but the name may have
/// become another directory's.
pub(crate) fn open_dir(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(dir, c".", flags, Mode::empty())).map_err(err)
}

/// The target of a pinned link.
pub(crate) fn read_link(link: BorrowedFd<'_>) -> Result<Box<[u8]>> {
    let target = retry_on_intr(|| rustix::fs::readlinkat(link, c"", Vec::new())).map_err(err)?;
    Ok(target.into_bytes().into_boxed_slice())
}

/// A second descriptor of the same directory.
pub(crate) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(err)
}

/// Opens; if the process or the host is out of descriptors, asks `shrink` to give
/// some back and tries once more.
pub(crate) fn with_descriptors<T>(
    shrink: impl FnOnce(),
    open: impl Fn() -> Result<T>,
) -> Result<T> {
    match open() {
        Err(Error::TooManyOpenFiles) => {
            shrink();
            open()
        }
        done => done,
    }
}

pub(crate) fn err(errno: Errno) -> Error {
    std::io::Error::from(errno).into()
}

pub(crate) fn as_fd(fd: &OwnedFd) -> BorrowedFd<'_> {
    rustix::fd::AsFd::as_fd(fd)
}

fn open_name(
    dir: BorrowedFd<'_>,
    name: Name<'_>,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let opened = retry_on_intr(|| rustix::fs::openat2(dir, name.as_bytes(), flags, mode, ONE_NAME));
    match opened {
        // ENOSYS from an old kernel or a seccomp filter, EPERM from an older filter. A real
        // EPERM comes back from openat just the same. EXDEV if a process has moved the file to
        // another directory meanwhile.
        Err(Errno::NOSYS | Errno::PERM | Errno::XDEV) => open_name_slow(dir, name, flags, mode),
        opened => opened,
    }
}

/// Without openat2: NOFOLLOW is in `flags`, and one name needs no more.
#[cold]
fn open_name_slow(
    dir: BorrowedFd<'_>,
    name: Name<'_>,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| rustix::fs::openat(dir, name.as_bytes(), flags, mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcuwalk::FileType;
    use std::cell::Cell;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    fn scratch() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        let fd = open_root(dir.path()).unwrap();
        (dir, fd)
    }

    /// WALK-3: a link is pinned and read, never followed, wherever it leads.
    #[test]
    fn a_link_is_its_own_file() {
        let (dir, root) = scratch();
        for (link, target) in [("out", "/etc"), ("up", ".."), ("magic", "/proc/self/root")] {
            symlink(target, dir.path().join(link)).unwrap();
            let pin = pin_at(as_fd(&root), name(link)).unwrap();
            let stat = stat_fd(as_fd(&pin)).unwrap();
            assert_eq!(stat.attr.kind, FileType::Symlink, "WALK-3: {link}");
            assert_eq!(&*read_link(as_fd(&pin)).unwrap(), target.as_bytes());
            let by_name = stat_at(as_fd(&root), name(link)).unwrap().unwrap();
            assert_eq!(by_name.attr.kind, FileType::Symlink, "WALK-3: {link}");
            let opened = open_file_at(as_fd(&root), name(link), OFlags::RDONLY);
            assert!(
                matches!(opened, Err(Error::Stale)),
                "WALK-3: {link} was opened"
            );
        }
    }

    /// WALK-3: a system without openat2 follows no link either.
    #[test]
    fn the_fallback_follows_nothing() {
        let (dir, root) = scratch();
        symlink("/etc/passwd", dir.path().join("out")).unwrap();
        fs::write(dir.path().join("file"), b"").unwrap();
        let open = |entry, flags| {
            let flags = flags | OFlags::NOFOLLOW;
            open_name_slow(as_fd(&root), name(entry), flags, Mode::empty())
        };
        let pin = open("out", OFlags::PATH).unwrap();
        assert_eq!(
            stat_fd(as_fd(&pin)).unwrap().attr.kind,
            FileType::Symlink,
            "WALK-3"
        );
        assert_eq!(
            open("out", OFlags::RDONLY).unwrap_err(),
            Errno::LOOP,
            "WALK-3"
        );
        assert_eq!(open("none", OFlags::PATH).unwrap_err(), Errno::NOENT);
        assert!(open("file", OFlags::RDONLY).is_ok());
    }

    /// EDGE-1: statx by name and by descriptor agree with each other and with stat(2).
    #[test]
    fn both_ways_to_stat_agree() {
        use std::os::unix::fs::MetadataExt;
        let (dir, root) = scratch();
        fs::write(dir.path().join("file"), b"12345").unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        for entry in ["file", "sub"] {
            let by_name = stat_at(as_fd(&root), name(entry)).unwrap().unwrap();
            let by_fd = stat_fd(as_fd(&pin_at(as_fd(&root), name(entry)).unwrap())).unwrap();
            assert_eq!((by_name.key, by_name.attr), (by_fd.key, by_fd.attr));
            let std = fs::symlink_metadata(dir.path().join(entry)).unwrap();
            let attr = by_name.attr;
            assert_eq!((attr.ino, attr.size), (std.ino(), std.size()));
            assert_eq!((attr.st_mode(), attr.uid), (std.mode(), std.uid()));
            assert_eq!(
                (attr.mtime.sec, i64::from(attr.mtime.nsec)),
                (std.mtime(), std.mtime_nsec())
            );
        }
    }

    /// EDGE-1: a missing name is no error, a missing directory entry to open is stale.
    #[test]
    fn a_missing_name_is_an_answer() {
        let (_dir, root) = scratch();
        assert!(stat_at(as_fd(&root), name("nope")).unwrap().is_none());
        assert!(matches!(
            pin_at(as_fd(&root), name("nope")),
            Err(Error::NotFound)
        ));
        assert!(matches!(
            open_file_at(as_fd(&root), name("nope"), OFlags::RDONLY),
            Err(Error::Stale)
        ));
    }

    /// EDGE-1: a FIFO in the place of a file does not block the open.
    #[test]
    fn opening_a_fifo_returns_at_once() {
        let (_dir, root) = scratch();
        rustix::fs::mknodat(&root, "fifo", rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        let fd = open_file_at(as_fd(&root), name("fifo"), OFlags::RDONLY).unwrap();
        assert_eq!(stat_fd(as_fd(&fd)).unwrap().attr.kind, FileType::Fifo);
    }

    /// MEM-1: out of descriptors means one shrink and one more try, not more.
    #[test]
    fn descriptors_are_asked_back_once() {
        let (tries, shrinks) = (Cell::new(0), Cell::new(0));
        let attempt = |give_up: bool| {
            with_descriptors(
                || shrinks.set(shrinks.get() + 1),
                || {
                    tries.set(tries.get() + 1);
                    if give_up || shrinks.get() == 0 {
                        Err(Error::TooManyOpenFiles)
                    } else {
                        Ok(())
                    }
                },
            )
        };
        assert!(attempt(false).is_ok(), "MEM-1: the second try counts");
        assert_eq!((tries.get(), shrinks.get()), (2, 1));
        assert!(
            matches!(attempt(true), Err(Error::TooManyOpenFiles)),
            "MEM-1"
        );
        assert_eq!((tries.get(), shrinks.get()), (4, 2));
    }
}
