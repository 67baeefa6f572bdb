//! A mount point that is held: by the directory above it, and by its name there.
//!
//! A path leads elsewhere once a user renames one of its directories or puts a link in its
//! place. A daemon or an administrator that then unmounts by that path unmounts another mount.
//! The directory above is opened once, through no link. The mount found below it by the name is
//! compared by the kernel's mount id before it is acted on.
//!
//! The directory above is held, not the mount itself: that would keep the mount in use, and
//! umount2(2) refuse it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatVfs, Statx, StatxFlags, fstatvfs,
    makedev, openat, openat2, statx,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};

/// See the module's documentation.
#[derive(Debug)]
pub struct MountPoint {
    above: OwnedFd,
    name: OsString,
    /// Used if there is no procfs to reach the mount point through `above`.
    path: PathBuf,
}

const HOLD: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

impl MountPoint {
    /// Holds the mount point at `path`, which is absolute and has no links in it.
    ///
    /// # Errors
    /// Those of openat2(2); `ELOOP` if there is a link on the way.
    pub fn open(path: &Path) -> io::Result<MountPoint> {
        let (above, name) = match (path.parent(), path.file_name()) {
            (Some(above), Some(name)) => (above, name.to_owned()),
            // The root directory.
            _ => (path, ".".into()),
        };
        let flags = HOLD | OFlags::DIRECTORY;
        let within = ResolveFlags::NO_SYMLINKS;
        let ask = || openat2(CWD, above, flags, Mode::empty(), within);
        let above = match retry_on_intr(ask) {
            // An old kernel, or a filter of system calls that does not know openat2.
            Err(Errno::NOSYS | Errno::PERM) => {
                retry_on_intr(|| openat(CWD, above, flags, Mode::empty()))
            }
            opened => opened,
        }?;
        let path = path.to_owned();
        Ok(MountPoint { above, name, path })
    }

    /// Returns the kernel's id of the topmost mount there. Asks no file system: a mount whose
    /// daemon is gone or stuck has an id as well. `None` without procfs on a kernel before 5.8.
    ///
    /// Opens no descriptor there: a child that another thread forks would have it until it calls
    /// execve(2), and umount2(2) would find the mount in use.
    ///
    /// # Errors
    /// Those of statx(2); `ENOTDIR` if the name is a link's.
    pub fn id(&self) -> io::Result<Option<u64>> {
        Ok(self.topmost()?.0)
    }

    fn topmost(&self) -> rustix::io::Result<(Option<u64>, Statx)> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        // FUSE refuses other users than the mount's own if they ask for anything. The kernel
        // tells the ids of mount and device without being asked.
        let ask = || statx(&self.above, &self.name, flags, StatxFlags::empty());
        let told = retry_on_intr(ask)?;
        let has = |field: StatxFlags| told.stx_mask & field.bits() != 0;
        if has(StatxFlags::TYPE) && !FileType::from_raw_mode(told.stx_mode.into()).is_dir() {
            return Err(Errno::NOTDIR);
        }
        match has(StatxFlags::MNT_ID) {
            true => Ok((Some(told.stx_mnt_id), told)),
            false => Ok((id_of(&self.hold()?), told)),
        }
    }

    /// Returns the device number of the mount `id`, if that is the topmost mount there. Asks no
    /// file system.
    ///
    /// # Errors
    /// `EINVAL` if it is not; those of statx(2).
    #[doc(alias = "AT_STATX_DONT_SYNC")]
    pub(crate) fn device(&self, id: Option<u64>) -> rustix::io::Result<u64> {
        let (topmost, told) = self.topmost()?;
        if id.is_some() && topmost != id {
            return Err(Errno::INVAL);
        }
        Ok(makedev(told.stx_dev_major, told.stx_dev_minor))
    }

    /// Unmounts the mount `id`, if that is the topmost mount there.
    ///
    /// # Errors
    /// `EINVAL` if it is not; those of umount2(2).
    pub fn unmount(&self, id: Option<u64>, flags: UnmountFlags) -> rustix::io::Result<()> {
        if flags.contains(UnmountFlags::DETACH) {
            let root = self.hold()?;
            if id.is_some() && id_of(&root) != id {
                return Err(Errno::INVAL);
            }
            if let Some(root) = rcuwalk_procfs::path_of(root.as_fd()) {
                // Unmounts the mount that was compared, wherever its name leads by now.
                return unmount(&root, flags.difference(UnmountFlags::NOFOLLOW));
            }
        } else if id.is_some() && self.topmost()?.0 != id {
            return Err(Errno::INVAL);
        }
        // From here on the name can lead to another mount only if a process moves a mount point:
        // the kernel allows that only from another mount namespace, and the directory above stays
        // the same.
        let flags = flags | UnmountFlags::NOFOLLOW;
        match rcuwalk_procfs::path_of(self.above.as_fd()) {
            Some(above) => unmount(above.join(&self.name), flags),
            None => unmount(&self.path, flags),
        }
    }

    /// Changes the flags of the mount `id`, if that is the topmost mount there.
    ///
    /// # Errors
    /// `EINVAL` if it is not, those of statvfs(3) and mount(2).
    pub fn remount(
        &self,
        id: Option<u64>,
        flags: impl FnOnce(StatVfs) -> MountFlags,
    ) -> rustix::io::Result<()> {
        let root = self.hold()?;
        if id.is_some() && id_of(&root) != id {
            return Err(Errno::INVAL);
        }
        let flags = flags(fstatvfs(&root)?);
        let path = rcuwalk_procfs::path_of(root.as_fd());
        mount_remount(path.as_ref().unwrap_or(&self.path), flags, c"")
    }

    fn hold(&self) -> rustix::io::Result<OwnedFd> {
        let flags = HOLD | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        retry_on_intr(|| openat(&self.above, &self.name, flags, Mode::empty()))
    }
}

/// The kernel's id of the mount that `fd` lies in. `None` without procfs.
pub fn id_of(fd: &OwnedFd) -> Option<u64> {
    use std::os::fd::AsRawFd;
    // thread-self, because a thread may have its own descriptor table.
    let path = format!("thread-self/fdinfo/{}", fd.as_raw_fd());
    let told = rcuwalk_procfs::read_to_string(path).ok()?;
    let mut lines = told.lines();
    let id = lines.find_map(|line| line.strip_prefix("mnt_id:"))?;
    id.trim().parse().ok()
}
