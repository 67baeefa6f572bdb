//! The three ioctls of /dev/fuse, and close_range(2). No crate offers them in a safe form, so this is
//! one of the front end's two places with unsafe code.
#![allow(
    unsafe_code,
    reason = "ioctl(2) takes any argument for a pointer, and close_range(2) any descriptor"
)]

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

/// Makes `device`, a new descriptor of /dev/fuse, serve the connection of `of` as well: with a
/// request queue of its own, so that threads do not contend.
///
/// # Errors
/// Those of the kernel: one of the two is no such device.
#[doc(alias = "FUSE_DEV_IOC_CLONE")]
pub(super) fn clone(device: BorrowedFd<'_>, of: BorrowedFd<'_>) -> io::Result<()> {
    let of: RawFd = of.as_raw_fd();
    // SAFETY: the kernel reads the four bytes at the pointer, and nothing else.
    told(unsafe { libc::ioctl(device.as_raw_fd(), CLONE, &raw const of) }).map(drop)
}

/// Gives the calling thread a table of descriptors of its own, with `kept` and standard input, output
/// and error. Other threads keep theirs.
///
/// From then on the thread uses no other descriptor that existed before, and drops no owner of one:
/// its number may stand for another file here, or for none.
///
/// # Errors
/// Those of the kernel: then nothing is changed.
#[doc(alias("CLOSE_RANGE_UNSHARE", "unshare(2)"))]
pub(super) fn keep_alone(kept: BorrowedFd<'_>) -> io::Result<()> {
    const FIRST: u32 = 3;
    let kept = kept.as_raw_fd().cast_unsigned();
    let close = |first: u32, last: u32| match first <= last {
        true => {
            // SAFETY: CLOSE_RANGE_UNSHARE copies the table first, so no other thread's descriptor
            // is closed. This thread has none of its own yet, and by the contract above uses none
            // of the others.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_close_range,
                    first,
                    last,
                    libc::CLOSE_RANGE_UNSHARE,
                )
            };
            match done {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        }
        false => Ok(()),
    };
    close(FIRST.max(kept + 1), u32::MAX)?;
    // Of the table that is this thread's alone now.
    close(FIRST, kept.saturating_sub(1))
}

/// A file of the host that is registered with the kernel, until this is dropped.
#[doc(alias = "fuse_backing_map")]
pub(super) struct BackingFile {
    id: i32,
    /// Weak: this does not keep the connection open.
    device: Weak<OwnedFd>,
}

impl BackingFile {
    /// # Errors
    /// Those of the kernel: `EPERM` without CAP_SYS_ADMIN, `ELOOP` for a stacked file system.
    #[doc(alias = "FUSE_DEV_IOC_BACKING_OPEN")]
    pub(super) fn new(device: &Arc<OwnedFd>, host: BorrowedFd<'_>) -> io::Result<BackingFile> {
        let map = BackingMap {
            fd: host.as_raw_fd(),
            flags: 0,
            padding: 0,
        };
        // SAFETY: the kernel reads the structure at the pointer, which has the layout that it
        // expects, and nothing else.
        let id = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) };
        Ok(BackingFile {
            id: told(id)?,
            device: Arc::downgrade(device),
        })
    }

    /// The kernel's id of the file.
    pub(super) fn id(&self) -> i32 {
        self.id
    }
}

impl Drop for BackingFile {
    /// Unregisters the file; open files keep it.
    #[doc(alias = "FUSE_DEV_IOC_BACKING_CLOSE")]
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade() {
            // SAFETY: the kernel reads the four bytes at the pointer, and nothing else.
            let closed =
                unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const self.id) };
            if let Err(err) = told(closed) {
                // Usually the file has gone with the connection.
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
