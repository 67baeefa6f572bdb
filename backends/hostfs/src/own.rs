//! The mount of this tree, where the tree itself shows it.
//!
//! A front end shows the directory as a mounted file system. If that mount is visible below the
//! directory itself (a bind mount of a directory above it, a mount that is propagated), each
//! request about it would come back to this process, and wait for a thread that waits for the
//! answer. So entries there are [`Error::TooManySymlinks`] (`ELOOP`): a statx(2) of a name does
//! not query the file system that it leads to (`AT_STATX_DONT_SYNC`), and the device number
//! identifies that one.
//!
//! A local file system answers such a question as it does any other, so on that of the root it is
//! the only one. Any other file system may have to ask a server, and is asked once more.
//!
//! A mount that appears between two questions is met by the front end, which knows requests of its
//! own threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rcuwalk::{Error, Name, Result};
use rustix::fd::BorrowedFd;
use rustix::fs::fstatfs;
use rustix::io::retry_on_intr;

use crate::host;
use crate::identity::Stat;

/// So many mounts may show one tree. The numbers guard nothing: relaxed accesses are enough.
const MOST: usize = 4;

/// No device has this number.
const NONE: u64 = 0;

/// Device numbers of this tree's own mounts.
#[derive(Debug)]
pub(crate) struct OwnMounts {
    devices: [AtomicU64; MOST],
    /// The device of the root, if it is a local file system.
    local: Option<u64>,
}

impl OwnMounts {
    /// None yet, of the tree with this root.
    pub(crate) fn of_root(root: BorrowedFd<'_>) -> OwnMounts {
        let is_local =
            retry_on_intr(|| fstatfs(root)).is_ok_and(|told| is_local(told.f_type as u64));
        let device = || host::device_of(root).ok();
        OwnMounts {
            devices: [const { AtomicU64::new(NONE) }; MOST],
            local: is_local.then(device).flatten(),
        }
    }

    /// The tree is shown as a file system with this device number, or not any more.
    pub(crate) fn set(&self, device: u64, is_shown: bool) {
        let (from, to) = match is_shown {
            true => (NONE, device),
            false => (device, NONE),
        };
        let mut devices = self.devices.iter();
        // If more mounts exist than fit, only the front ends detect a loop.
        let _ = devices.any(|one| one.compare_exchange(from, to, Relaxed, Relaxed).is_ok());
    }

    /// What `name` in `dir` is, or `None` if there is no such name.
    ///
    /// # Errors
    /// [`Error::TooManySymlinks`] for this tree's own mount; those of statx(2).
    pub(crate) fn stat_at(&self, dir: BorrowedFd<'_>, name: Name<'_>) -> Result<Option<Stat>> {
        let devices = || self.devices.iter().map(|device| device.load(Relaxed));
        if devices().all(|device| device == NONE) {
            return host::stat_at(dir, name);
        }
        let Some((device, stat)) = host::known_at(dir, name)? else {
            return Ok(None);
        };
        if devices().any(|own| own == device) {
            return Err(Error::TooManySymlinks);
        }
        match self.local == Some(device) {
            true => stat.map(Some),
            false => host::stat_at(dir, name),
        }
    }
}

/// Local file systems, which ask no server: ext4, XFS, btrfs, tmpfs, F2FS.
fn is_local(magic: u64) -> bool {
    const LOCAL: [u64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0xF2F5_2010];
    LOCAL.contains(&(magic & 0xFFFF_FFFF))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_mounts_are_known_as_there_is_room_for() {
        let root = host::open_root(std::env::temp_dir().as_path()).unwrap();
        let own = OwnMounts::of_root(host::as_fd(&root));
        for device in 1..=9 {
            own.set(device, true);
        }
        own.set(2, false);
        own.set(7, false);
        own.set(8, true);
        let known = own.devices.map(|device| device.load(Relaxed));
        assert_eq!(known, [1, 8, 3, 4]);
    }
}
