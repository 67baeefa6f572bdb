//! Changes of names: one name in one directory that is held, or two of them.
//!
//! None of these calls follows a link: a call that makes a name fails if it exists, and one
//! that moves or removes a name acts on the entry itself, be it a link.

use rcuwalk::{Error, FileType, Name, NewFile, Result};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{err, open_name};

/// Makes a regular file and opens it with `access`.
pub(crate) fn make_file(
    dir: BorrowedFd<'_>,
    name: Name<'_>,
    access: OFlags,
    mode: u16,
) -> Result<OwnedFd> {
    let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open_name(dir, name, flags, bits(mode)).map_err(err)
}

/// Makes a file that is not regular.
pub(crate) fn make_other(
    dir: BorrowedFd<'_>,
    name: Name<'_>,
    new: &NewFile<'_>,
    mode: u16,
) -> Result<()> {
    use rustix::fs::{FileType as Host, mkdirat, mknodat, symlinkat};
    let (path, mode) = (name.as_bytes(), bits(mode));
    let node = |kind| mknodat(dir, path, kind, mode, new.rdev);
    retry_on_intr(|| match new.kind {
        FileType::Directory => mkdirat(dir, path, mode),
        FileType::Symlink => symlinkat(new.target, dir, path),
        FileType::BlockDevice => node(Host::BlockDevice),
        FileType::CharDevice => node(Host::CharacterDevice),
        FileType::Fifo => node(Host::Fifo),
        FileType::Socket => node(Host::Socket),
        FileType::Regular => node(Host::RegularFile),
    })
    .map_err(err)
}

/// Makes a regular file without a name, in the file system of `dir`; open for reading and
/// writing.
pub(crate) fn make_nameless(dir: BorrowedFd<'_>, mode: u16) -> Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match retry_on_intr(|| rustix::fs::openat(dir, c".", flags, bits(mode))) {
        // A file system that does not know the flag opens the directory, which fails with this.
        Err(Errno::ISDIR) => Err(Error::NotSupported),
        made => made.map_err(err),
    }
}

/// Gives the file that `held` holds the name `name` in `dir`.
pub(crate) fn link(held: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: Name<'_>) -> Result<()> {
    use rustix::fs::linkat;
    let path = name.as_bytes();
    match retry_on_intr(|| linkat(held, c"", dir, path, AtFlags::EMPTY_PATH)) {
        // Needs CAP_DAC_READ_SEARCH, or the very credentials that opened `held`. All others get
        // "no file".
        Err(Errno::NOENT) => {
            let (top, source) =
                rcuwalk_procfs::magic_link(held).map_err(|_| Error::NotSupported)?;
            retry_on_intr(|| linkat(top, &*source, dir, path, AtFlags::SYMLINK_FOLLOW))
        }
        done => done,
    }
    .map_err(err)
}

/// Removes a name.
pub(crate) fn remove(dir: BorrowedFd<'_>, name: Name<'_>, kind: FileType) -> Result<()> {
    let flags = match kind {
        FileType::Directory => AtFlags::REMOVEDIR,
        _ => AtFlags::empty(),
    };
    retry_on_intr(|| rustix::fs::unlinkat(dir, name.as_bytes(), flags)).map_err(err)
}

/// Moves a name.
pub(crate) fn rename(
    from: (BorrowedFd<'_>, Name<'_>),
    to: (BorrowedFd<'_>, Name<'_>),
    flags: RenameFlags,
) -> Result<()> {
    let (old, new) = (from.1.as_bytes(), to.1.as_bytes());
    let moved = if flags.is_empty() {
        retry_on_intr(|| rustix::fs::renameat(from.0, old, to.0, new))
    } else {
        retry_on_intr(|| rustix::fs::renameat_with(from.0, old, to.0, new, flags))
    };
    moved.map_err(err)
}

pub(crate) fn bits(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode & 0o7777))
}
