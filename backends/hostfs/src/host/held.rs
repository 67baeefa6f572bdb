//! Operations on a file that a descriptor holds, whatever becomes of its name.
//!
//! Most descriptors here are `O_PATH`: they need no permission on the file and open
//! nothing. statx(2), fchownat(2), utimensat(2) and linkat(2) take one with an empty path.
//! For changing the mode only new kernels have such a call (fchmodat2(2): 6.6), and for
//! extended attributes and for opening what it holds there is none. There the kernel is
//! given a magic link of procfs ([`through`]), which leads to the file without looking at any
//! name. It works on every kernel, and needs `/proc`; without that, these calls are
//! [`Error::NotSupported`].
//!
//! It is also slow, several times the cost of a call by a descriptor. So a directory's extended
//! attributes are read as those of its `.` where the kernel has getxattrat(2) (6.13): each
//! creation in a directory reads its default ACL.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

use rcuwalk::{Error, InodeFlags, Result, SetTime, StatFs, XattrFlags};
use rcuwalk_procfs::path_of;
use rustix::buffer::spare_capacity;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, Gid, IFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
    XattrFlags as HostXattrFlags,
};
use rustix::io::{Errno, retry_on_intr};

use super::names::bits;
use super::{as_fd, duplicate, err, stat_fd};
use crate::dirs::Pin;
use crate::procfs::through;
use crate::sys;

/// A file, held.
pub(crate) struct Held<'a> {
    fd: Fd<'a>,
    /// `O_PATH`: it stands for the file, and nothing can be read through it.
    path_only: bool,
}

enum Fd<'a> {
    Kept(BorrowedFd<'a>),
    Own(OwnedFd),
    Shared(Arc<OwnedFd>),
    Dir(Pin),
}

impl<'a> Held<'a> {
    /// An open file.
    pub(crate) fn open(fd: BorrowedFd<'a>) -> Held<'a> {
        Held {
            fd: Fd::Kept(fd),
            path_only: false,
        }
    }

    /// An `O_PATH` descriptor that is kept elsewhere.
    pub(crate) fn kept(fd: BorrowedFd<'a>) -> Held<'a> {
        Held {
            fd: Fd::Kept(fd),
            path_only: true,
        }
    }

    /// A directory.
    pub(crate) fn dir(pin: Pin) -> Held<'a> {
        Held {
            fd: Fd::Dir(pin),
            path_only: true,
        }
    }

    /// An `O_PATH` descriptor, for this once.
    pub(crate) fn pinned(fd: OwnedFd) -> Held<'a> {
        Held {
            fd: Fd::Own(fd),
            path_only: true,
        }
    }

    /// A shared descriptor, `O_PATH` or not. Its other owners may close theirs meanwhile.
    pub(crate) fn shared(fd: Arc<OwnedFd>, path_only: bool) -> Held<'a> {
        Held {
            fd: Fd::Shared(fd),
            path_only,
        }
    }

    /// Its own descriptor (a duplicate if needed), and whether it is `O_PATH`.
    pub(crate) fn into_owned(self) -> Result<(OwnedFd, bool)> {
        let fd = match self.fd {
            Fd::Own(fd) => fd,
            Fd::Kept(fd) => duplicate(fd)?,
            Fd::Shared(fd) => duplicate(as_fd(&fd))?,
            Fd::Dir(pin) => duplicate(pin.fd())?,
        };
        Ok((fd, self.path_only))
    }

    /// As a directory.
    pub(crate) fn pin(&self) -> Option<&Pin> {
        match &self.fd {
            Fd::Dir(pin) => Some(pin),
            _ => None,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Fd::Kept(fd) => *fd,
            Fd::Own(fd) => as_fd(fd),
            Fd::Shared(fd) => as_fd(fd),
            Fd::Dir(pin) => pin.fd(),
        }
    }

    /// Opens the file once more with `access`: it must be a regular file or a directory.
    pub(crate) fn reopen(&self, access: OFlags) -> Result<OwnedFd> {
        let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        through(self.fd(), |top, path| {
            rustix::fs::openat(top, path, flags, Mode::empty())
        })
    }

    pub(crate) fn chmod(&self, mode: u16) -> Result<()> {
        if self.path_only {
            let flags = AtFlags::empty();
            through(self.fd(), |top, path| {
                rustix::fs::chmodat(top, path, bits(mode), flags)
            })
        } else {
            retry_on_intr(|| rustix::fs::fchmod(self.fd(), bits(mode))).map_err(err)
        }
    }

    pub(crate) fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
            return Err(Error::Invalid);
        }
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        let flags = AtFlags::EMPTY_PATH;
        retry_on_intr(|| rustix::fs::chownat(self.fd(), c"", uid, gid, flags)).map_err(err)
    }

    /// Clears the set-id bits in `lost`, and any others that a write by another user clears.
    ///
    /// # Errors
    /// [`Error::Stale`] if the owner sets them again and again.
    pub(crate) fn lose_set_ids(&self, lost: u16) -> Result<()> {
        const GROUP_EXECUTE: u16 = 0o010;
        for _ in 0..16 {
            let before = stat_fd(self.fd())?.attr;
            let left = before.mode & lost;
            if left == 0 {
                return Ok(());
            }
            // A chown(2) that names no owner clears them in whatever mode the file has at that
            // moment. A chmod(2) would undo one by the owner that has come in between, so it is
            // for what the other does not clear: the host refuses it, or leaves the bits to a
            // server and changes nothing, or leaves set-gid without execution by the group.
            let is_left = left == 0o2000 && before.mode & GROUP_EXECUTE == 0;
            if !is_left && self.chown(None, None).is_ok() {
                let after = stat_fd(self.fd())?.attr;
                if (after.mode, after.ctime) != (before.mode, before.ctime) {
                    continue;
                }
            }
            return self.chmod(stat_fd(self.fd())?.attr.mode & !lost);
        }
        Err(Error::Stale)
    }

    pub(crate) fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        let times = Timestamps {
            last_access: timespec(atime),
            last_modification: timespec(mtime),
        };
        let flags = AtFlags::EMPTY_PATH;
        match retry_on_intr(|| rustix::fs::utimensat(self.fd(), c"", &times, flags)) {
            // Before 5.8 the flag is unknown.
            Err(Errno::INVAL) => through(self.fd(), |top, path| {
                rustix::fs::utimensat(top, path, &times, AtFlags::empty())
            }),
            done => done.map_err(err),
        }
    }

    /// Opens the file for calls that any descriptor allows: [`set_flags`](Self::set_flags). It
    /// must be a regular file or a directory. Call it as the daemon: the owner may lack read
    /// permission.
    pub(crate) fn opened(&self) -> Result<Held<'_>> {
        let fd = match self.path_only {
            true => Fd::Own(self.reopen(OFlags::RDONLY)?),
            false => Fd::Kept(self.fd()),
        };
        Ok(Held {
            fd,
            path_only: false,
        })
    }

    /// Sets and clears "immutable" and "append only", and leaves the host's other flags. It must
    /// be [open](Self::opened).
    pub(crate) fn set_flags(&self, flags: InodeFlags) -> Result<()> {
        let fd = self.fd();
        let change = || {
            let mut now = rustix::fs::ioctl_getflags(fd)?;
            now.set(IFlags::IMMUTABLE, flags.contains(InodeFlags::IMMUTABLE));
            now.set(IFlags::APPEND, flags.contains(InodeFlags::APPEND));
            rustix::fs::ioctl_setflags(fd, now)
        };
        match change() {
            Err(Errno::NOTTY | Errno::NOSYS) => Err(Error::NotSupported),
            done => done.map_err(err),
        }
    }

    /// Truncates a file to its present size, as truncate(2) does. The file system decides
    /// whether its times change; ftruncate(2) sets them on any.
    ///
    /// Does not wait for another process to give up a lease on the file: that may take
    /// `lease-break-time` (45 s), in which this thread could serve nobody.
    pub(crate) fn truncate_to_its_size(&self, size: u64) -> Result<()> {
        // truncate(2) would wait. This open begins to break the lease, and fails meanwhile; what
        // else it says does not matter, since truncate(2) says it as well.
        if let Err(Error::WouldBlock | Error::Busy) = self.reopen(OFlags::WRONLY) {
            return Err(Error::Busy);
        }
        let truncate = || {
            let path = path_of(self.fd()).ok_or(Errno::OPNOTSUPP)?;
            let path = CString::new(path.into_os_string().into_vec()).map_err(|_| Errno::INVAL)?;
            sys::truncate(&path, size)
        };
        retry_on_intr(truncate).map_err(err)
    }

    pub(crate) fn get_xattr(&self, name: &[u8]) -> Result<Box<[u8]>> {
        let name = attribute(name)?;
        self.whole(
            |value| rustix::fs::fgetxattr(self.fd(), &*name, spare_capacity(value)),
            |dir, value| sys::getxattrat(dir.fd(), c".", &name, value),
            |top, path, value| sys::getxattrat(top, path, &name, value),
            |path, value| rustix::fs::getxattr(path, &*name, spare_capacity(value)),
        )
    }

    /// The names, each with a NUL behind it.
    pub(crate) fn list_xattrs(&self) -> Result<Box<[u8]>> {
        self.whole(
            |list| rustix::fs::flistxattr(self.fd(), spare_capacity(list)),
            |_, _| Err(Errno::NOSYS),
            sys::listxattrat,
            |path, list| rustix::fs::listxattr(path, spare_capacity(list)),
        )
    }

    pub(crate) fn set_xattr(&self, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let name = attribute(name)?;
        let mut how = HostXattrFlags::empty();
        how.set(HostXattrFlags::CREATE, flags.contains(XattrFlags::CREATE));
        how.set(HostXattrFlags::REPLACE, flags.contains(XattrFlags::REPLACE));
        if self.path_only {
            through_at(
                self.fd(),
                |top, path| sys::setxattrat(top, path, &name, value, how.bits()),
                |path| rustix::fs::setxattr(path, &*name, value, how),
            )
        } else {
            let set = || rustix::fs::fsetxattr(self.fd(), &*name, value, how);
            retry_on_intr(set).map_err(err)
        }
    }

    pub(crate) fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let name = attribute(name)?;
        if self.path_only {
            through_at(
                self.fd(),
                |top, path| sys::removexattrat(top, path, &name),
                |path| rustix::fs::removexattr(path, &*name),
            )
        } else {
            retry_on_intr(|| rustix::fs::fremovexattr(self.fd(), &*name)).map_err(err)
        }
    }

    /// A value of any size: most are short, none is longer than 64 KiB.
    fn whole(
        &self,
        by_fd: impl Fn(&mut Vec<u8>) -> rustix::io::Result<usize>,
        by_dir: impl Fn(&Pin, &mut Vec<u8>) -> rustix::io::Result<usize>,
        by_link: impl Fn(BorrowedFd<'_>, &CStr, &mut Vec<u8>) -> rustix::io::Result<usize>,
        by_path: impl Fn(&Path, &mut Vec<u8>) -> rustix::io::Result<usize>,
    ) -> Result<Box<[u8]>> {
        let by_path = |value: &mut Vec<u8>| {
            let value = RefCell::new(value);
            through_at(
                self.fd(),
                |top, path| by_link(top, path, &mut value.borrow_mut()),
                |path| by_path(path, &mut value.borrow_mut()),
            )
        };
        for room in [512, 64 * 1024] {
            let mut value = Vec::with_capacity(room);
            let got = if let Fd::Dir(pin) = &self.fd {
                match retry_on_intr(|| by_dir(pin, &mut value)) {
                    // The kernel is too old (ENOSYS), or a seccomp filter forbids the call
                    // (ENOSYS or EPERM). A caller without search permission on the directory
                    // (EACCES) may still read its attributes.
                    Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => by_path(&mut value),
                    got => got.map_err(err),
                }
            } else if self.path_only {
                by_path(&mut value)
            } else {
                retry_on_intr(|| by_fd(&mut value)).map_err(err)
            };
            match got {
                Err(Error::OutOfRange) => {}
                got => return got.map(|_| value.into_boxed_slice()),
            }
        }
        Err(Error::TooBig)
    }
}

/// How full the file system is that holds `fd`.
pub(crate) fn statfs(fd: BorrowedFd<'_>) -> Result<StatFs> {
    let host = retry_on_intr(|| rustix::fs::fstatfs(fd)).map_err(err)?;
    let mut told = StatFs::default();
    told.kind = host.f_type as u64;
    told.block_size = host.f_bsize as u32;
    told.blocks = host.f_blocks;
    told.blocks_free = host.f_bfree;
    told.blocks_available = host.f_bavail;
    told.files = host.f_files;
    told.files_free = host.f_ffree;
    told.name_max = host.f_namelen as u32;
    Ok(told)
}

/// The identity of the file system that holds `fd`.
#[doc(alias = "f_fsid")]
pub(crate) fn file_system_of(fd: BorrowedFd<'_>) -> Result<[u8; 8]> {
    let host = retry_on_intr(|| rustix::fs::fstatvfs(fd)).map_err(err)?;
    Ok(host.f_fsid.to_le_bytes())
}

/// Cuts or extends a file that is open for writing.
pub(crate) fn truncate(fd: BorrowedFd<'_>, size: u64) -> Result<()> {
    retry_on_intr(|| rustix::fs::ftruncate(fd, size)).map_err(err)
}

/// fsync(2) or fdatasync(2).
pub(crate) fn sync(fd: BorrowedFd<'_>, data_only: bool) -> Result<()> {
    let sync = || match data_only {
        true => rustix::fs::fdatasync(fd),
        false => rustix::fs::fsync(fd),
    };
    retry_on_intr(sync).map_err(err)
}

/// Asks for an extended attribute by the magic link of `fd`: `at` from Linux 6.13 on, and `by_path` on
/// older kernels.
fn through_at<T>(
    fd: BorrowedFd<'_>,
    at: impl Fn(BorrowedFd<'_>, &CStr) -> rustix::io::Result<T>,
    by_path: impl Fn(&Path) -> rustix::io::Result<T>,
) -> Result<T> {
    through(fd, |top, link| {
        let path = CString::new(link).map_err(|_| Errno::INVAL)?;
        match at(top, &path) {
            // The kernel is too old, or a seccomp filter forbids the call, with either errno. A
            // refusal by the file itself is repeated below.
            Err(errno @ (Errno::NOSYS | Errno::PERM)) => match path_of(fd) {
                Some(path) => by_path(&path),
                None if errno == Errno::PERM => Err(errno),
                None => Err(Errno::OPNOTSUPP),
            },
            done => done,
        }
    })
}

fn attribute(name: &[u8]) -> Result<CString> {
    CString::new(name).map_err(|_| Error::Invalid)
}

fn timespec(time: Option<SetTime>) -> Timespec {
    let (tv_sec, tv_nsec) = match time {
        None => (0, UTIME_OMIT),
        Some(SetTime::Now) => (0, UTIME_NOW),
        Some(SetTime::To(stamp)) => (stamp.sec, stamp.nsec.into()),
    };
    Timespec { tv_sec, tv_nsec }
}
