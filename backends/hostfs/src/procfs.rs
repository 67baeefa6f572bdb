//! A checked descriptor of procfs, and the treatment of files that lie on one.
//!
//! Some system calls have no form that takes an `O_PATH` descriptor. For those the kernel is
//! given a magic link: `thread-self/fd/N` of procfs leads to the file of descriptor N, without
//! looking at any name. A mount that covers /proc could have it lead anywhere, and so could the
//! /proc of a mount namespace that the process enters later. So [`hold`] opens /proc once, and
//! keeps it if it is the root of procfs. Anything mounted below it, in the namespace that this
//! process started in, was mounted by the administrator of that namespace.
//!
//! The path leads through the thread: the number means the thread's descriptors, even in a
//! process whose threads do not share theirs.
//!
//! **A procfs in the tree** shows each process what the kernel lets that one see. So its files
//! are opened and read as the caller ([`is_asked_as`]), and links below its top directory lead
//! nowhere: the target that was read first would be every caller's, and `self` is the daemon.
//!
//! A few calls take no descriptor of a directory either (truncate(2), inotify_add_watch(2);
//! those for extended attributes before Linux 6.13). They get `/proc/thread-self/fd/N`
//! if /proc is that same procfs at this moment: [`link_by_path`].

use std::io;
use std::sync::OnceLock;

use rcuwalk::{Credentials, Error, InodeKey, Result};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use crate::actor::may_switch;
use crate::identity::host_device;

/// `PROC_ROOT_INO`: no other directory of procfs has this number.
pub(crate) const ROOT_INO: u64 = 1;

/// procfs, if it was found. A failure is not kept: /proc may be mounted later.
static PROCFS: OnceLock<OwnedFd> = OnceLock::new();

/// Opens /proc the first time, and keeps it: for a process that is about to enter another mount
/// namespace, whose /proc it does not trust.
///
/// # Errors
/// There is no /proc, or it is not the root of procfs.
#[doc(hidden)]
pub fn hold_procfs() -> io::Result<()> {
    hold()?;
    Ok(())
}

fn hold() -> rustix::io::Result<BorrowedFd<'static>> {
    if let Some(held) = PROCFS.get() {
        return Ok(held.as_fd());
    }
    let top = open_top("/proc")?;
    Ok(PROCFS.get_or_init(|| top).as_fd())
}

/// Asks by the magic link of `fd`: a directory, and a path from there.
///
/// # Errors
/// [`Error::NotSupported`] without procfs; the errors of `ask`.
pub(crate) fn through<T>(
    fd: BorrowedFd<'_>,
    mut ask: impl FnMut(BorrowedFd<'_>, &str) -> rustix::io::Result<T>,
) -> Result<T> {
    let (top, path) = magic_link(fd).map_err(|_| Error::NotSupported)?;
    match retry_on_intr(|| ask(top, &path)) {
        // The descriptor is there, so it is procfs that does not show it.
        Err(Errno::NOENT) => Err(Error::NotSupported),
        done => done.map_err(crate::host::err),
    }
}

/// The top of procfs, and the path from there to the file that `fd` holds.
///
/// # Errors
/// There is no procfs.
pub(crate) fn magic_link(fd: BorrowedFd<'_>) -> rustix::io::Result<(BorrowedFd<'static>, String)> {
    Ok((hold()?, link(fd)))
}

fn link(fd: BorrowedFd<'_>) -> String {
    format!("thread-self/fd/{}", fd.as_raw_fd())
}

/// The path of the file that `fd` holds, for calls that take only a path. Only a process that
/// may mount in this mount namespace can have it lead elsewhere before the call.
///
/// # Errors
/// `EOPNOTSUPP` if /proc is not the procfs that is held.
pub(crate) fn link_by_path(fd: BorrowedFd<'_>) -> rustix::io::Result<String> {
    let is_same = || {
        let (held, there) = (fstat(hold()?)?, fstat(open_top("/proc")?)?);
        rustix::io::Result::Ok((held.st_dev, held.st_ino) == (there.st_dev, there.st_ino))
    };
    match is_same() {
        Ok(true) => Ok(format!("/proc/{}", link(fd))),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Returns whether the file `key`, which `fd` holds, lies on procfs.
pub(crate) fn is_on_procfs(key: InodeKey, fd: BorrowedFd<'_>) -> bool {
    // File systems without a device of their own alone have major number 0.
    host_device(key) >> 20 == 0 && is_procfs(fd)
}

fn is_procfs(fd: BorrowedFd<'_>) -> bool {
    retry_on_intr(|| fstatfs(fd)).is_ok_and(|told| told.f_type == PROC_SUPER_MAGIC)
}

/// Returns whether a request of `who` for a file of procfs is made as `who`, and not as this
/// process.
///
/// Modes protect little there: most files can be opened by everybody, and show more to the
/// privileged, or refuse what ptrace(2) would refuse. The kernel checks the thread that opens
/// and reads. Where the caller has all rights of this process, this process opens and reads.
///
/// # Errors
/// [`Error::PermissionDenied`] if this process cannot act as `who`.
pub(crate) fn is_asked_as(who: &Credentials) -> Result<bool> {
    if who.uid == 0 && who.caps.contains(rcuwalk::Caps::all()) {
        return Ok(false);
    }
    match may_switch() {
        Ok(()) => Ok(true),
        Err(_) if who.uid == geteuid().as_raw() => Ok(false),
        Err(_) => Err(Error::PermissionDenied),
    }
}

/// Returns whether a file of procfs, held by `fd`, is about a thread of this process. The
/// kernel lets each thread see that, whichever credentials it has. A name that cannot be read
/// counts as one.
pub(crate) fn is_about_this_process(fd: BorrowedFd<'_>) -> bool {
    let Ok(path) = through(fd, |top, link| {
        rustix::fs::readlinkat(top, link, Vec::new())
    }) else {
        return true;
    };
    let mut names = path.to_bytes().split(|byte| *byte == b'/');
    names.any(|name| {
        let id = str::from_utf8(name)
            .ok()
            .filter(|id| id.parse::<u32>().is_ok());
        let is_ours = |id: &str| {
            let task = format!("self/task/{id}");
            let found = hold().and_then(|top| rustix::fs::statat(top, task, AtFlags::empty()));
            !matches!(found, Err(Errno::NOENT))
        };
        id.is_some_and(is_ours)
    })
}

fn open_top(at: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = retry_on_intr(|| openat(CWD, at, flags, Mode::empty()))?;
    match is_procfs(top.as_fd()) && fstat(&top)?.st_ino == ROOT_INO {
        true => Ok(top),
        false => Err(Errno::OPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_top_of_procfs_is_taken_for_it() {
        assert!(open_top("/proc").is_ok());
        for other in ["/", "/proc/self/task", "/proc/sys", "/sys", "/proc/self"] {
            assert!(open_top(other).is_err(), "{other}");
        }
    }

    #[test]
    fn what_a_descriptor_holds_is_reached_both_ways() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let fd = file.as_file().as_fd();
        let read = |top: BorrowedFd<'_>, path: &str| rustix::fs::readlinkat(top, path, Vec::new());
        let target = through(fd, |top, path| read(top, path)).unwrap();
        let path = link_by_path(fd).unwrap();
        assert_eq!(target, read(CWD, &path).unwrap());
        assert_eq!(target.to_str().unwrap(), file.path().to_str().unwrap());
    }
}
