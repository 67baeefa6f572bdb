//! A checked descriptor of procfs: files read through it come from the kernel.
//!
//! The daemon reads the groups and capabilities of a caller, the place of a mount, and its own
//! descriptors in /proc, and acts on the answer. Another file system that covers /proc would
//! answer in the kernel's place. So would the /proc of a mount namespace that the daemon enters
//! to mount there (`mount -N`): a container's root controls that one.
//!
//! [`hold`] opens /proc once, before the daemon enters any other namespace, and keeps it if it
//! is the root of procfs. [`open`] starts there, and follows neither mounts nor magic links
//! below it. hostfs has a descriptor of its own: a back end uses nothing of a front end.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstat, fstatfs, openat};
use rustix::io::{Errno, retry_on_intr};

/// `PROC_ROOT_INO`: no other directory of procfs has this number.
const ROOT_INO: u64 = 1;

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

/// Returns a path to the file of `fd`, for system calls that take no descriptor.
///
/// `None` if /proc, at this moment, is not the procfs that is held. Only a process that may
/// mount in this mount namespace can change that before the call.
pub fn path_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let held = fstat(hold().ok()?).ok()?;
    let there = fstat(open_top(Path::new("/proc")).ok()?).ok()?;
    let is_same = (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino);
    is_same.then(|| format!("/proc/self/fd/{}", fd.as_raw_fd()).into())
}

fn open_top(at: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = retry_on_intr(|| openat(CWD, at, flags, Mode::empty()))?;
    let is_procfs = fstatfs(&top)?.f_type == PROC_SUPER_MAGIC;
    match is_procfs && fstat(&top)?.st_ino == ROOT_INO {
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
    fn a_descriptor_is_reached_by_a_path() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = path_of(file.as_file().as_fd()).unwrap();
        assert_eq!(std::fs::read_link(path).unwrap(), file.path());
    }
}
