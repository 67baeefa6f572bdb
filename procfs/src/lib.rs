//! A checked descriptor of procfs: files read through it come from the kernel.
//!
//! A daemon reads a caller's groups and capabilities, mounts, and its own descriptors in /proc,
//! and acts on the answer. Another file system that covers /proc would answer in the kernel's
//! place. So would the /proc of a mount namespace that the daemon enters later: a container's
//! root controls that one.
//!
//! [`hold`] opens /proc once, and keeps it if it is the root of procfs. Anything mounted below
//! it, in the namespace that the process started in, was mounted by the administrator of that
//! namespace. [`open`] starts there, and follows neither mounts nor magic links.
//!
//! Some system calls take no `O_PATH` descriptor. For those the kernel is given a magic link:
//! `thread-self/fd/N` leads to the file of descriptor N, without looking at any name. The path
//! leads through the thread, because threads of one process may have different descriptors.
//!
//! | the system call takes             | give it        |
//! |-----------------------------------|----------------|
//! | a directory and a path from there | [`magic_link`] |
//! | only a path                       | [`path_of`]    |

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstat, fstatfs, openat};
use rustix::io::{Errno, retry_on_intr};

/// `PROC_ROOT_INO`: no other directory of procfs has this number.
pub const ROOT_INO: u64 = 1;

/// procfs, if it was found. A failure is not kept: /proc may be mounted later.
static PROCFS: OnceLock<OwnedFd> = OnceLock::new();

/// Opens /proc the first time, and keeps it.
///
/// # Errors
/// There is no /proc, or it is not the root of procfs.
pub fn hold() -> io::Result<BorrowedFd<'static>> {
    if let Some(held) = PROCFS.get() {
        return Ok(held.as_fd());
    }
    let top = open_top(Path::new("/proc"))?;
    Ok(PROCFS.get_or_init(|| top).as_fd())
}

/// Opens a file of procfs to read it.
///
/// # Errors
/// Those of [`hold`] and of openat2(2); `EXDEV` if another file system is mounted over it.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    let (top, path) = (hold()?, path.as_ref());
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let ask = || rustix::fs::openat2(top, path, flags, Mode::empty(), within);
    let opened = match retry_on_intr(ask) {
        // An old kernel, or a filter of system calls that does not know openat2.
        Err(Errno::NOSYS | Errno::PERM) => {
            retry_on_intr(|| openat(top, path, flags, Mode::empty()))
        }
        opened => opened,
    };
    Ok(opened?.into())
}

/// Returns the contents of a file of procfs.
///
/// # Errors
/// Those of [`open`] and of read(2).
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open(path)?.read_to_end(&mut text)?;
    Ok(text)
}

/// Like [`read`], for text.
///
/// # Errors
/// Those of [`read`]; it is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| ErrorKind::InvalidData.into())
}

/// Returns the target of a link of procfs, without following it.
///
/// # Errors
/// Those of [`hold`] and of readlinkat(2).
pub fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let (top, path) = (hold()?, path.as_ref());
    let target = retry_on_intr(|| rustix::fs::readlinkat(top, path, Vec::new()))?;
    Ok(std::ffi::OsString::from_vec(target.into_bytes()).into())
}

/// Returns the top of procfs, and the path from there to the file that `fd` holds.
///
/// # Errors
/// Those of [`hold`].
pub fn magic_link(fd: BorrowedFd<'_>) -> io::Result<(BorrowedFd<'static>, String)> {
    Ok((hold()?, link(fd)))
}

/// Returns a path to the file that `fd` holds, for system calls that take no descriptor.
///
/// `None` if /proc, at this moment, is not the procfs that is held. Only a process that may
/// mount in this mount namespace can change that before the call.
pub fn path_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let held = fstat(hold().ok()?).ok()?;
    let there = fstat(open_top(Path::new("/proc")).ok()?).ok()?;
    let is_same = (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino);
    is_same.then(|| Path::new("/proc").join(link(fd)))
}

/// Returns whether the file that `fd` holds lies on a procfs, the held one or another.
pub fn is_procfs(fd: BorrowedFd<'_>) -> bool {
    retry_on_intr(|| fstatfs(fd)).is_ok_and(|told| told.f_type == PROC_SUPER_MAGIC)
}

fn link(fd: BorrowedFd<'_>) -> String {
    format!("thread-self/fd/{}", fd.as_raw_fd())
}

fn open_top(at: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = retry_on_intr(|| openat(CWD, at, flags, Mode::empty()))?;
    match is_procfs(top.as_fd()) && fstat(&top)?.st_ino == ROOT_INO {
        true => Ok(top),
        false => Err(io::Error::other("/proc is covered: it is not procfs")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_top_of_procfs_is_taken_for_it() {
        assert!(open_top(Path::new("/proc")).is_ok());
        for other in ["/", "/proc/self/task", "/proc/sys", "/sys", "/proc/self"] {
            assert!(open_top(Path::new(other)).is_err(), "{other}");
        }
    }

    #[test]
    fn magic_links_are_read_and_never_followed() {
        assert!(read_link("self/exe").unwrap().is_absolute());
        for magic in ["self/exe", "self/root/etc/passwd", "../etc/passwd"] {
            assert!(open(magic).is_err(), "{magic}");
        }
        let status = read_to_string("thread-self/status").unwrap();
        assert!(status.starts_with("Name:"));
    }

    #[test]
    fn a_descriptor_is_reached_both_ways() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let fd = file.as_file().as_fd();
        let (top, link) = magic_link(fd).unwrap();
        let target = rustix::fs::readlinkat(top, link, Vec::new()).unwrap();
        assert_eq!(target.to_str().unwrap(), file.path().to_str().unwrap());
        let path = path_of(fd).unwrap();
        assert_eq!(std::fs::read_link(path).unwrap(), file.path());
    }
}
