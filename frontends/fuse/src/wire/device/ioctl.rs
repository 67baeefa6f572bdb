//! The three ioctls of /dev/fuse. No crate has them in a safe form, so this is one of
//! the front end's two places with unsafe code.
#![allow(unsafe_code, reason = "ioctl(2) takes any argument for a pointer")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

/// `FUSE_DEV_IOC_CLONE`, with a `uint32_t`.
const CLONE: libc::Ioctl = libc::_IOR::<u32>(229, 0);
/// `FUSE_DEV_IOC_BACKING_OPEN`, with a `struct fuse_backing_map`.
const BACKING_OPEN: libc::Ioctl = libc::_IOW::<BackingMap>(229, 1);
/// `FUSE_DEV_IOC_BACKING_CLOSE`, with a `uint32_t`.
const BACKING_CLOSE: libc::Ioctl = libc::_IOW::<u32>(229, 2);

#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// Has `device`, which is /dev/fuse opened anew, stand for the connection of `of` as well:
/// with requests of its own, so that threads do not meet.
///
/// # Errors
/// Those of the kernel: one of them is no such device.
#[doc(alias = "FUSE_DEV_IOC_CLONE")]
pub(super) fn clone(device: BorrowedFd<'_>, of: BorrowedFd<'_>) -> io::Result<()> {
    let of: RawFd = of.as_raw_fd();
    // SAFETY: the kernel reads the four bytes that the pointer leads to, and nothing else.
    told(unsafe { libc::ioctl(device.as_raw_fd(), CLONE, &raw const of) }).map(drop)
}

/// A file of the host that the kernel has been given, until this is dropped.
#[doc(alias = "fuse_backing_map")]
pub(super) struct BackingFile {
    id: i32,
    /// The connection does not outlive its end for this.
    device: Weak<OwnedFd>,
}

impl BackingFile {
    /// # Errors
    /// Those of the kernel: `EPERM` without CAP_SYS_ADMIN, `ELOOP` for a file system that
    /// lies upon another.
    #[doc(alias = "FUSE_DEV_IOC_BACKING_OPEN")]
    pub(super) fn new(device: &Arc<OwnedFd>, host: BorrowedFd<'_>) -> io::Result<BackingFile> {
        let map = BackingMap {
            fd: host.as_raw_fd(),
            flags: 0,
            padding: 0,
        };
        // SAFETY: the kernel reads the structure that the pointer leads to, which is laid out
        // as it expects, and nothing else.
        let id = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) };
        Ok(BackingFile {
            id: told(id)?,
            device: Arc::downgrade(device),
        })
    }

    /// What the kernel calls it.
    pub(super) fn id(&self) -> i32 {
        self.id
    }
}

impl Drop for BackingFile {
    /// Unregisters the file; open files keep it.
    #[doc(alias = "FUSE_DEV_IOC_BACKING_CLOSE")]
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade() {
            // SAFETY: the kernel reads the four bytes that the pointer leads to, and nothing
            // else.
            let closed =
                unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const self.id) };
            if let Err(err) = told(closed) {
                // Gone with the connection, as a rule.
                tracing::debug!(%err, id = self.id, "a file of the host stays registered");
            }
        }
    }
}

fn told(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        told => Ok(told),
    }
}
