//! System calls that rustix has no function for, or has made safer than they are.

use std::ffi::{CStr, c_long};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::AtFlags;
use rustix::io::Errno;

// The numbers of new system calls are the same on every architecture.
const FACCESSAT2: c_long = 439;
const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const GETXATTRAT: c_long = 464;
const LISTXATTRAT: c_long = 465;
const REMOVEXATTRAT: c_long = 466;
const FILE_SETATTR: c_long = 469;

/// What setxattrat(2) and getxattrat(2) are given.
#[repr(C)]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// What file_setattr(2) is given.
#[repr(C)]
#[derive(Default)]
struct FileAttr {
    xflags: u64,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
}

fn result(returned: c_long) -> Result<usize, Errno> {
    if returned < 0 {
        // Just set by the call: nothing has come between.
        let errno = std::io::Error::last_os_error().raw_os_error();
        return Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EIO)));
    }
    Ok(returned as usize)
}

pub(super) fn fchmodat2(
    dir: BorrowedFd<'_>,
    path: &CStr,
    mode: u16,
    flags: AtFlags,
) -> Result<(), Errno> {
    let dir = dir.as_raw_fd();
    // SAFETY: the kernel reads the path up to its NUL; the rest are numbers.
    let returned =
        unsafe { libc::syscall(FCHMODAT2, dir, path.as_ptr(), u32::from(mode), flags.bits()) };
    result(returned).map(drop)
}

pub(super) fn faccessat2(
    dir: BorrowedFd<'_>,
    path: &CStr,
    mode: u8,
    flags: AtFlags,
) -> Result<(), Errno> {
    let dir = dir.as_raw_fd();
    // SAFETY: as above.
    let returned = unsafe {
        libc::syscall(
            FACCESSAT2,
            dir,
            path.as_ptr(),
            u32::from(mode),
            flags.bits(),
        )
    };
    result(returned).map(drop)
}

pub(super) fn setxattrat(
    (dir, path, at): (BorrowedFd<'_>, &CStr, AtFlags),
    name: &CStr,
    value: &[u8],
    flags: u32,
) -> Result<(), Errno> {
    let args = XattrArgs {
        value: value.as_ptr() as u64,
        size: value.len() as u32,
        flags,
    };
    // SAFETY: the kernel reads `args`, and `size` bytes of the value, which outlives
    // the call.
    let returned = unsafe {
        libc::syscall(
            SETXATTRAT,
            dir.as_raw_fd(),
            path.as_ptr(),
            at.bits(),
            name.as_ptr(),
            &raw const args,
            size_of::<XattrArgs>(),
        )
    };
    result(returned).map(drop)
}

pub(super) fn getxattrat(
    (dir, path, at): (BorrowedFd<'_>, &CStr, AtFlags),
    name: &CStr,
    value: &mut [u8],
) -> Result<usize, Errno> {
    let args = XattrArgs {
        value: value.as_mut_ptr() as u64,
        size: value.len() as u32,
        flags: 0,
    };
    // SAFETY: the kernel reads `args` and writes at most `size` bytes to the value.
    let returned = unsafe {
        libc::syscall(
            GETXATTRAT,
            dir.as_raw_fd(),
            path.as_ptr(),
            at.bits(),
            name.as_ptr(),
            &raw const args,
            size_of::<XattrArgs>(),
        )
    };
    result(returned)
}

pub(super) fn listxattrat(
    (dir, path, at): (BorrowedFd<'_>, &CStr, AtFlags),
    names: &mut [u8],
) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most `names.len()` bytes to it.
    let returned = unsafe {
        libc::syscall(
            LISTXATTRAT,
            dir.as_raw_fd(),
            path.as_ptr(),
            at.bits(),
            names.as_mut_ptr(),
            names.len(),
        )
    };
    result(returned)
}

pub(super) fn removexattrat(
    (dir, path, at): (BorrowedFd<'_>, &CStr, AtFlags),
    name: &CStr,
) -> Result<(), Errno> {
    // SAFETY: the kernel reads both strings up to their NUL.
    let returned = unsafe {
        libc::syscall(
            REMOVEXATTRAT,
            dir.as_raw_fd(),
            path.as_ptr(),
            at.bits(),
            name.as_ptr(),
        )
    };
    result(returned).map(drop)
}

/// Sets `xflags` (`FS_XFLAG_*`), which all others are cleared for.
pub(super) fn file_setattr(
    dir: BorrowedFd<'_>,
    path: &CStr,
    at: AtFlags,
    xflags: u64,
) -> Result<(), Errno> {
    let attr = FileAttr {
        xflags,
        ..FileAttr::default()
    };
    // SAFETY: the kernel reads the path and `attr`, of the size it is told.
    let returned = unsafe {
        libc::syscall(
            FILE_SETATTR,
            dir.as_raw_fd(),
            path.as_ptr(),
            &raw const attr,
            size_of::<FileAttr>(),
            at.bits(),
        )
    };
    result(returned).map(drop)
}

pub(super) fn truncate(path: &CStr, len: i64) -> Result<(), Errno> {
    // SAFETY: the kernel reads the path up to its NUL.
    result(c_long::from(unsafe { libc::truncate(path.as_ptr(), len) })).map(drop)
}

pub(super) fn ftruncate(file: BorrowedFd<'_>, len: i64) -> Result<(), Errno> {
    // SAFETY: numbers only.
    result(c_long::from(unsafe {
        libc::ftruncate(file.as_raw_fd(), len)
    }))
    .map(drop)
}

pub(super) fn fallocate(file: BorrowedFd<'_>, mode: u32, at: i64, len: i64) -> Result<(), Errno> {
    // SAFETY: numbers only.
    result(c_long::from(unsafe {
        libc::fallocate(file.as_raw_fd(), mode as i32, at, len)
    }))
    .map(drop)
}

pub(super) fn lseek(file: BorrowedFd<'_>, at: i64, whence: i32) -> Result<i64, Errno> {
    // SAFETY: numbers only.
    let returned = unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
    result(returned as c_long).map(|offset| offset as i64)
}

pub(super) fn pread(file: BorrowedFd<'_>, buf: &mut [u8], at: i64) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`.
    let returned = unsafe { libc::pread(file.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), at) };
    result(returned as c_long)
}

pub(super) fn pwrite(file: BorrowedFd<'_>, buf: &[u8], at: i64) -> Result<usize, Errno> {
    // SAFETY: the kernel reads at most `buf.len()` bytes of `buf`.
    let returned = unsafe { libc::pwrite(file.as_raw_fd(), buf.as_ptr().cast(), buf.len(), at) };
    result(returned as c_long)
}
