//! Held files by their magic links, and the treatment of files that lie on a procfs.
//!
//! Some system calls have no form that takes an `O_PATH` descriptor. [`through`] makes them by
//! the magic link of the descriptor, from the procfs that `rcuwalk-procfs` has checked and holds.
//!
//! **A procfs in the tree** shows each process what the kernel lets that one see. So its files
//! are opened and read as the caller ([`is_asked_as`]), and links below its top directory lead
//! nowhere: the target that was read first would be every caller's, and `self` is the daemon.

use rcuwalk::{Credentials, Error, InodeKey, Result};
use rcuwalk_procfs::{hold, is_procfs, magic_link};
use rustix::fd::BorrowedFd;
use rustix::fs::AtFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use crate::actor::may_switch;
use crate::identity::host_device;

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

/// Returns whether the file `key`, which `fd` holds, lies on procfs.
pub(crate) fn is_on_procfs(key: InodeKey, fd: BorrowedFd<'_>) -> bool {
    // File systems without a device of their own alone have major number 0.
    host_device(key) >> 20 == 0 && is_procfs(fd)
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
    let read = |top: BorrowedFd<'_>, link: &str| rustix::fs::readlinkat(top, link, Vec::new());
    let (Ok(top), Ok(path)) = (hold(), through(fd, read)) else {
        return true;
    };
    let mut names = path.to_bytes().split(|byte| *byte == b'/');
    names.any(|name| {
        let id = str::from_utf8(name)
            .ok()
            .filter(|id| id.parse::<u32>().is_ok());
        let is_ours = |id: &str| {
            let task = format!("self/task/{id}");
            let found = rustix::fs::statat(top, task, AtFlags::empty());
            !matches!(found, Err(Errno::NOENT))
        };
        id.is_some_and(is_ours)
    })
}
