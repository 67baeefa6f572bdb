//! `mount -o remount,…`: changes the flags that the kernel keeps of a mount, in place.
//!
//! mount(8) leaves it to its helper, with the mount's options and after them the requested
//! ones. The process that serves the mount is told only the new limits of a tree in memory. Its
//! other settings stay, so a tree that was mounted read-only takes no changes after
//! `remount,rw` either.

use std::path::Path;

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::in_memory::TreeLimits;
use super::options::MountOptions;
use super::place;
use crate::failure::{Failure, Words, errno_text};
use crate::mountinfo::{self, MountInfo};
use crate::runtime;

pub(super) fn remount(
    mountpoint: &Path,
    options: &[MountOptions],
    limits: TreeLimits,
) -> Result<(), Failure> {
    let given = mountpoint.display();
    let cannot = |why: &str| Failure::error(format_args!("cannot remount {given}: {why}"));
    let (place, mount) = mountinfo::ours(mountpoint).map_err(|why| cannot(&why))?;
    // First, as they may be refused, and flags should not be changed then.
    if !limits.is_none() {
        limit(&mount, limits).map_err(|why| cannot(&why))?;
    }
    let failed = |errno: Errno| cannot(&errno_text(errno.raw_os_error()));
    let mut allowed = Ok(());
    let changed = place.remount(Some(mount.id), |now| {
        let before = flags_of(now.f_flag);
        let mut flags = before;
        for given in options {
            given.change(&mut flags);
        }
        allowed = allow(&mount, before.difference(flags));
        match allowed {
            Ok(()) => flags,
            Err(_) => before,
        }
    });
    changed.map_err(failed)?;
    allowed.map_err(|why| cannot(&why))
}

/// Whether a mount may lose the flags `lost`: as when it is mounted, by what the kernel shows as its
/// source. A name that was given (`fsname=`) leads nowhere.
fn allow(mount: &MountInfo, lost: MountFlags) -> Result<(), String> {
    let source = Path::new(&mount.source);
    let (suid, dev) = (MountFlags::NOSUID, MountFlags::NODEV);
    match source.is_absolute() {
        true => place::refuse_more_than_below(source, lost.contains(suid), lost.contains(dev)),
        false => Ok(()),
    }
}

/// Has the process of the mount limit its tree anew.
fn limit(mount: &MountInfo, limits: TreeLimits) -> Result<(), String> {
    let said = runtime::get(mount, &format!("/limits?{}", limits.query()));
    let said = said.map_err(|err| format!("its process does not answer: {}", Words(&err)))?;
    match said.get("refused") {
        Some(serde_json::Value::Null) => Ok(()),
        Some(serde_json::Value::String(why)) => Err(why.clone()),
        _ => Err("its process is of another version".to_owned()),
    }
}

/// `ST_NOSYMFOLLOW` and `MS_NOSYMFOLLOW` (Linux 5.10), which the libraries do not name.
const NOSYMFOLLOW: (StatVfsMountFlags, MountFlags) = (
    StatVfsMountFlags::from_bits_retain(0x2000),
    MountFlags::from_bits_retain(0x100),
);

/// The mount's flags today; options change only the flags they name. `helper.rs` restores
/// the options that mount(8) removes from its list.
fn flags_of(now: StatVfsMountFlags) -> MountFlags {
    let both = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        (StatVfsMountFlags::SYNCHRONOUS, MountFlags::SYNCHRONOUS),
        NOSYMFOLLOW,
    ];
    let set = both.into_iter().filter(|(is, _)| now.contains(*is));
    set.map(|(_, flag)| flag).collect()
}
