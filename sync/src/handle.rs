//! File handles: name_to_handle_at(2), which no safe crate wraps.
//!
//! It has nothing to do with locking; it is here because unsafe code is nowhere else.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The longest handle there is (`MAX_HANDLE_SZ`).
pub const MAX_HANDLE: usize = 128;

/// The `struct file_handle` that name_to_handle_at(2) reads and fills in.
#[repr(C)]
pub struct FileHandle {
    length: u32,
    kind: i32,
    bytes: [u8; MAX_HANDLE],
}

impl FileHandle {
    /// The handle of `name` in `dir`: of a symbolic link itself, not of its target.
    ///
    /// # Errors
    /// What the system call reports: `EOPNOTSUPP` where the file system has no handles.
    pub fn of(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<FileHandle> {
        let mut handle = FileHandle {
            length: MAX_HANDLE as u32,
            kind: 0,
            bytes: [0; MAX_HANDLE],
        };
        let mut mount_id: libc::c_int = 0;
        // An empty name means `dir` itself.
        let flags = if name.is_empty() {
            libc::AT_EMPTY_PATH
        } else {
            0
        };
        // SAFETY: `name` ends with a NUL and outlives the call; `handle` has the layout of
        // `struct file_handle` with room for the `length` bytes that it claims; the kernel
        // writes one int to `mount_id`.
        let done = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                dir.as_raw_fd(),
                name.as_ptr(),
                &raw mut handle,
                &raw mut mount_id,
                flags,
            )
        };
        if done == 0 {
            Ok(handle)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// The file system's own number for this kind of handle.
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// Its bytes, which only the file system can interpret.
    pub fn bytes(&self) -> &[u8] {
        let length = (self.length as usize).min(MAX_HANDLE);
        &self.bytes[..length]
    }
}

#[cfg(all(test, not(loom), not(shuttle), not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// EDGE-1: a missing name is the kernel's error, not a handle.
    #[test]
    fn a_missing_name_has_no_handle() {
        let root = std::fs::File::open("/").unwrap();
        let missing = FileHandle::of(root.as_fd(), c"no such name");
        assert_eq!(
            missing.err().and_then(|err| err.raw_os_error()),
            Some(libc::ENOENT),
            "EDGE-1"
        );
    }
}
