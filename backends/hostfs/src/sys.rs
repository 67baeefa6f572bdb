//! The system calls that rustix has not, or not in safe functions: fanotify(7), file handles,
//! getxattrat(2), statmount(2), truncate(2), unshare(2).
//!
//! All unsafe code of this crate. Each function takes borrowed descriptors and slices,
//! and gives back what it owns.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_long, c_uint};
use std::os::fd::{AsRawFd, FromRawFd};

use rcuwalk::{NAME_MAX, Name};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// The kernel's MAX_HANDLE_SZ.
const MOST_BYTES: usize = 128;
/// `handle_bytes` and `handle_type`, before the bytes themselves.
pub(crate) const HEAD: usize = 8;
/// Since Linux 6.5: any handle will do that tells files apart.
const AT_HANDLE_FID: c_int = 0x200;

/// A `struct file_handle`: its first two fields want to be aligned.
#[repr(C, align(8))]
struct Buffer([u8; HEAD + MOST_BYTES]);

/// A group that is told of changes by directory and name, by file, and by the thread that made
/// them.
pub(crate) fn fanotify_init() -> Result<OwnedFd, Errno> {
    let flags: c_uint = libc::FAN_CLASS_NOTIF
        | libc::FAN_CLOEXEC
        | libc::FAN_NONBLOCK
        | libc::FAN_REPORT_DFID_NAME
        | libc::FAN_REPORT_FID
        | libc::FAN_REPORT_TID;
    // SAFETY: no pointers. The second argument is for descriptors that come with events,
    // which this group does not ask for.
    let fd = returned(unsafe { libc::syscall(libc::SYS_fanotify_init, flags, libc::O_RDONLY) })?;
    // SAFETY: the kernel has just opened it for us, and no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Marks the whole file system that the directory `dir` is in.
pub(crate) fn fanotify_mark_filesystem(
    group: BorrowedFd<'_>,
    mask: u64,
    dir: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM | libc::FAN_MARK_ONLYDIR;
    // SAFETY: the path is a string with its NUL and lives for ever; it is "." because a
    // descriptor of O_PATH is not taken without one. libc's function splits the mask in
    // two where that has to be.
    let done = unsafe {
        libc::fanotify_mark(
            group.as_raw_fd(),
            flags,
            mask,
            dir.as_raw_fd(),
            c".".as_ptr(),
        )
    };
    returned(c_long::from(done)).map(drop)
}

/// Has this process keep the descriptors from `first` on, and the programs that it starts not get
/// them. From Linux 5.11 on.
pub fn close_on_exec_from(first: u32) -> Result<(), Errno> {
    // SAFETY: no pointers. No descriptor is closed here, so that none changes under its owner.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    returned(done).map(drop)
}

/// The `struct file_handle` of an open file: the same as in fanotify's reports.
pub(crate) fn name_to_handle(fd: BorrowedFd<'_>) -> Result<Box<[u8]>, Errno> {
    telling_apart(|flags| name_to_handle_with(fd, c"", libc::AT_EMPTY_PATH | flags))
}

/// Like `name_to_handle`, for `name` in `dir`; does not follow a symbolic link.
pub(crate) fn name_to_handle_at(dir: BorrowedFd<'_>, name: Name<'_>) -> Result<Box<[u8]>, Errno> {
    let mut path = [0; NAME_MAX + 1];
    path[..name.as_bytes().len()].copy_from_slice(name.as_bytes());
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
    telling_apart(|flags| name_to_handle_with(dir, path, flags))
}

fn telling_apart<T>(ask: impl Fn(c_int) -> Result<T, Errno>) -> Result<T, Errno> {
    match ask(AT_HANDLE_FID) {
        // Linux before 6.5, where fanotify had the handles that everyone gets.
        Err(Errno::INVAL) => ask(0),
        handle => handle,
    }
}

/// The `struct file_handle` of a file, to be opened by it later: of `name` in `dir`, of which a
/// symbolic link is not followed, or of `dir` itself if the name is empty.
pub(crate) fn lasting_handle(dir: BorrowedFd<'_>, name: &CStr) -> Result<Box<[u8]>, Errno> {
    let flags = if name.is_empty() {
        libc::AT_EMPTY_PATH
    } else {
        0
    };
    name_to_handle_with(dir, name, flags)
}

/// The type of a `struct file_handle`, and the bytes that only the file system can interpret.
pub(crate) fn handle_parts(handle: &[u8]) -> Option<(i32, &[u8])> {
    let (head, bytes) = handle.split_at_checked(HEAD)?;
    let kind = head[4..].try_into().ok()?;
    Some((i32::from_ne_bytes(kind), bytes))
}

/// The `struct file_handle` of these parts; `None` if no handle is that long.
pub(crate) fn handle_of(kind: i32, bytes: &[u8]) -> Option<Box<[u8]>> {
    if bytes.len() > MOST_BYTES {
        return None;
    }
    let head = (bytes.len() as u32).to_ne_bytes();
    let parts = head.into_iter().chain(kind.to_ne_bytes());
    Some(parts.chain(bytes.iter().copied()).collect())
}

fn name_to_handle_with(fd: BorrowedFd<'_>, path: &CStr, flags: c_int) -> Result<Box<[u8]>, Errno> {
    let mut buffer = Buffer([0; HEAD + MOST_BYTES]);
    buffer.0[..4].copy_from_slice(&(MOST_BYTES as u32).to_ne_bytes());
    let mut mount: c_int = 0;
    // SAFETY: `path` is a string with its NUL. `buffer` is aligned for, and as
    // large as, a `struct file_handle` of the MOST_BYTES that its first field announces;
    // no handle is longer. `mount` has room for an int. Both outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_raw_fd(),
            path.as_ptr(),
            buffer.0.as_mut_ptr(),
            &raw mut mount,
            flags,
        )
    };
    returned(done)?;
    let len = handle_len(&buffer.0).ok_or(Errno::OVERFLOW)?;
    Ok(Box::from(&buffer.0[..len]))
}

/// Opens a file by its handle, with O_PATH. `in_mount` is any open file of its mount.
///
/// While the kernel gives the inode's number to a new file, ext4 reports ENOMEM: the file of the
/// handle is gone then. Real want of memory for one inode ends the process first.
#[doc(alias("open_by_handle_at(2)", "I_CREATING"))]
pub(crate) fn open_by_handle(in_mount: BorrowedFd<'_>, handle: &[u8]) -> Result<OwnedFd, Errno> {
    let mut buffer = Buffer([0; HEAD + MOST_BYTES]);
    let len = handle_len(handle).ok_or(Errno::INVAL)?;
    buffer
        .0
        .get_mut(..len)
        .ok_or(Errno::INVAL)?
        .copy_from_slice(&handle[..len]);
    // SAFETY: `buffer` is aligned for a `struct file_handle`, holds as many bytes as its
    // first field says (`handle_len`), and outlives the call.
    let fd = returned(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            in_mount.as_raw_fd(),
            buffer.0.as_mut_ptr(),
            libc::O_PATH | libc::O_CLOEXEC,
        )
    });
    let fd = fd.map_err(|errno| match errno {
        Errno::NOMEM => Errno::STALE,
        errno => errno,
    })?;
    // SAFETY: the kernel has just opened it for us, and no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A `struct mnt_id_req`, as Linux 6.8 has it.
#[repr(C)]
struct MountRequest {
    size: u32,
    spare: u32,
    mount: u64,
    what: u64,
}

/// A `struct statmount` of Linux 6.8, which later kernels begin theirs with: 128 words, and behind
/// them room for the text `/`.
#[repr(C, align(8))]
struct MountAnswer([u32; MOUNT_WORDS + 2]);

const MOUNT_WORDS: usize = 128;

/// What statmount(2) tells of the mount with this `unique` id.
#[doc(alias = "statmount(2)")]
fn statmount(unique: u64, what: u64) -> Result<MountAnswer, Errno> {
    let request = MountRequest {
        size: size_of::<MountRequest>() as u32,
        spare: 0,
        mount: unique,
        what,
    };
    let mut answer = MountAnswer([0; MOUNT_WORDS + 2]);
    // SAFETY: `request` is as large as its first field says, and the kernel writes no more to
    // `answer` than it is told there is. Both outlive the call.
    let done = unsafe {
        libc::syscall(
            STATMOUNT,
            &raw const request,
            answer.0.as_mut_ptr(),
            size_of::<MountAnswer>(),
            0,
        )
    };
    returned(done)?;
    Ok(answer)
}

/// Returns whether a mount shows a whole file system, and not a directory of it. From Linux 6.8 on,
/// whose mounts have a `unique` id.
pub(crate) fn is_mount_of_all(unique: u64) -> Result<bool, Errno> {
    const MNT_ROOT: u32 = 8;
    match statmount(unique, MNT_ROOT.into()) {
        // `mask` says what was told, and the text is the path of the root.
        Ok(MountAnswer(told)) => {
            Ok(told[2] & MNT_ROOT != 0 && told[MOUNT_WORDS].to_ne_bytes()[..2] == *b"/\0")
        }
        // The path is longer.
        Err(Errno::OVERFLOW) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns the mount's id in mountinfo. From Linux 6.8 on; a mount has a `unique` id there.
pub(crate) fn id_in_mountinfo(unique: u64) -> Result<u32, Errno> {
    const MNT_BASIC: u64 = 2;
    // `mnt_id_old`, behind 14 other words.
    statmount(unique, MNT_BASIC).map(|answer| answer.0[14])
}

/// truncate(2), by path.
pub(crate) fn truncate(path: &CStr, size: u64) -> Result<(), Errno> {
    let size = libc::off64_t::try_from(size).map_err(|_| Errno::FBIG)?;
    // SAFETY: the path is a string with its NUL, and outlives the call.
    let done = unsafe { libc::truncate64(path.as_ptr(), size) };
    returned(c_long::from(done)).map(drop)
}

/// Gives the calling thread a umask, a root and a current directory of its own, which are those
/// of the process so far.
pub(crate) fn leave_shared_umask() -> Result<(), Errno> {
    // SAFETY: no pointers. Only the thread's own view of later changes differs: the caller is a
    // thread that runs no other code.
    let done = unsafe { libc::unshare(libc::CLONE_FS) };
    returned(c_long::from(done)).map(drop)
}

/// A `struct xattr_args`.
#[repr(C, align(8))]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// An extended attribute of the file at `path` from the directory `dir`, which may be held with
/// O_PATH, to `value`: how many bytes it has. From Linux 6.13 on.
pub(crate) fn getxattrat(
    dir: BorrowedFd<'_>,
    path: &CStr,
    name: &CStr,
    value: &mut Vec<u8>,
) -> Result<usize, Errno> {
    value.clear();
    let room = value.spare_capacity_mut();
    let size = u32::try_from(room.len()).unwrap_or(u32::MAX);
    let args = XattrArgs {
        value: room.as_mut_ptr() as u64,
        size,
        flags: 0,
    };
    // SAFETY: `path` and `name` are strings with their NULs; `args` is as large as
    // the call is told, and announces no more bytes than there is room for in `value`. All
    // outlive the call.
    let len = returned(unsafe {
        libc::syscall(
            GETXATTRAT,
            dir.as_raw_fd(),
            path.as_ptr(),
            0,
            name.as_ptr(),
            &raw const args,
            size_of::<XattrArgs>(),
        )
    })?;
    let len = len.unsigned_abs() as usize;
    // SAFETY: the kernel has written `len` bytes, which is no more than it was given.
    unsafe { value.set_len(len) };
    Ok(len)
}

/// Sets an extended attribute; `path` as for [`getxattrat`].
pub(crate) fn setxattrat(
    dir: BorrowedFd<'_>,
    path: &CStr,
    name: &CStr,
    value: &[u8],
    flags: u32,
) -> Result<(), Errno> {
    let args = XattrArgs {
        value: value.as_ptr() as u64,
        size: u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?,
        flags,
    };
    // SAFETY: `path` and `name` are strings with their NULs; `args` is as large as the call is
    // told, and announces the bytes of `value`, which the kernel only reads. All outlive the call.
    let done = unsafe {
        libc::syscall(
            SETXATTRAT,
            dir.as_raw_fd(),
            path.as_ptr(),
            0,
            name.as_ptr(),
            &raw const args,
            size_of::<XattrArgs>(),
        )
    };
    returned(done).map(drop)
}

/// The names of a file's extended attributes, to `list`; `path` as for [`getxattrat`].
pub(crate) fn listxattrat(
    dir: BorrowedFd<'_>,
    path: &CStr,
    list: &mut Vec<u8>,
) -> Result<usize, Errno> {
    list.clear();
    let room = list.spare_capacity_mut();
    // SAFETY: `path` is a string with its NUL; the kernel writes no more bytes to `room` than it
    // is told there are. Both outlive the call.
    let len = returned(unsafe {
        libc::syscall(
            LISTXATTRAT,
            dir.as_raw_fd(),
            path.as_ptr(),
            0,
            room.as_mut_ptr(),
            room.len(),
        )
    })?;
    let len = len.unsigned_abs() as usize;
    // SAFETY: the kernel has written `len` bytes, which is no more than it was given.
    unsafe { list.set_len(len) };
    Ok(len)
}

/// Removes an extended attribute; `path` as for [`getxattrat`].
pub(crate) fn removexattrat(dir: BorrowedFd<'_>, path: &CStr, name: &CStr) -> Result<(), Errno> {
    // SAFETY: `path` and `name` are strings with their NULs, and outlive the call.
    let done = unsafe {
        libc::syscall(
            REMOVEXATTRAT,
            dir.as_raw_fd(),
            path.as_ptr(),
            0,
            name.as_ptr(),
        )
    };
    returned(done).map(drop)
}

/// The same numbers on all architectures whose numbers begin at 0; elsewhere (MIPS) no call has
/// them, and the result is [`Errno::NOSYS`].
const STATMOUNT: c_long = 457;
const SETXATTRAT: c_long = 463;
const GETXATTRAT: c_long = 464;
const LISTXATTRAT: c_long = 465;
const REMOVEXATTRAT: c_long = 466;

/// How long the `struct file_handle` is that `bytes` starts with; `None` if they are
/// fewer.
pub(crate) fn handle_len(bytes: &[u8]) -> Option<usize> {
    let len = u32::from_ne_bytes(bytes.first_chunk().copied()?);
    let len = HEAD.checked_add(usize::try_from(len).ok()?)?;
    (len <= bytes.len()).then_some(len)
}

/// The result of a system call, a small number, or its errno.
fn returned(value: c_long) -> Result<c_int, Errno> {
    match c_int::try_from(value) {
        Ok(value) if value >= 0 => Ok(value),
        _ => {
            let err = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&err).unwrap_or(Errno::IO))
        }
    }
}

/// Replaces the open file of `fd` by another, for a test of the failure.
#[cfg(test)]
pub(crate) fn replace(fd: BorrowedFd<'_>, by: BorrowedFd<'_>) {
    // SAFETY: no pointers. Both are open for as long as they are borrowed, and `fd` stays its
    // owner's: it now refers to another file, but nothing here relies on which.
    let done = unsafe { libc::dup2(by.as_raw_fd(), fd.as_raw_fd()) };
    assert_eq!(done, fd.as_raw_fd());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn a_handle_is_the_same_each_time_and_cut_to_its_length() {
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let Ok(handle) = name_to_handle(fd.as_fd()) else {
            return; // A file system that has none.
        };
        assert_eq!(handle, name_to_handle(fd.as_fd()).unwrap());
        assert_eq!(handle_len(&handle), Some(handle.len()));
        assert_eq!(handle_len(&handle[..handle.len() - 1]), None);
        let other = tempfile::tempdir().unwrap();
        let other = std::fs::File::open(other.path()).unwrap();
        assert_ne!(handle, name_to_handle(other.as_fd()).unwrap());
    }

    /// EDGE-1: a missing name is the kernel's error, not a handle.
    #[test]
    fn a_missing_name_has_no_handle() {
        let root = std::fs::File::open("/").unwrap();
        let missing = lasting_handle(root.as_fd(), c"no such name");
        assert_eq!(missing.unwrap_err(), Errno::NOENT, "EDGE-1");
    }

    /// EDGE-1: a handle whose inode number is being given to a new file is stale.
    #[test]
    fn the_handle_of_a_file_that_is_being_made_is_stale() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let path = dir.path().join("file");
        let make = || std::fs::File::create(&path).unwrap();
        let handle = name_to_handle(make().as_fd()).unwrap_or_default();
        if open_by_handle(root.as_fd(), &handle).is_err() {
            return rcuwalk_testkit::skip("needs CAP_DAC_READ_SEARCH, and a host with handles");
        }
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    std::fs::remove_file(&path).unwrap();
                    make();
                }
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let opened = open_by_handle(root.as_fd(), &handle).map(drop);
                assert!(
                    matches!(opened, Ok(()) | Err(Errno::STALE)),
                    "EDGE-1: {opened:?}"
                );
            }
        });
    }

    #[test]
    fn what_is_no_handle_is_not_opened() {
        let fd = std::fs::File::open("/").unwrap();
        for bytes in [&[][..], &[1, 2, 3], &[0xff; 8], &[0xff; 300]] {
            assert_eq!(open_by_handle(fd.as_fd(), bytes).unwrap_err(), Errno::INVAL);
        }
    }
}
