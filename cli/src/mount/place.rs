//! Checks before a tree is mounted: the mount point is an existing directory, with nothing in it and
//! nothing on it; nothing below the source forbids what the mount would allow.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Words};
use crate::mountinfo::{self, MountInfo};
use crate::runtime::{State, state};

/// The directory behind `given`, without links.
pub(super) fn mount_point(given: &Path, nonempty: bool) -> Result<PathBuf, Failure> {
    let shown = given.display();
    let cannot = |why: &dyn std::fmt::Display| {
        Failure::error(format_args!("cannot mount on {shown}: {why}"))
    };
    let words = |err: io::Error| cannot(&Words(&err));
    let at = mountinfo::resolve(given).map_err(words)?;
    let mounts = mountinfo::mounts().map_err(words)?;
    if let Some(there) = mountinfo::uppermost(&mounts, &at) {
        // Told by the kernel: to look there may mean to wait for a process that is stuck.
        if let Some(why) = in_the_way(there, nonempty) {
            return Err(cannot(&why));
        }
    }
    if !fs::metadata(&at).map_err(words)?.is_dir() {
        return Err(cannot(&"not a directory"));
    }
    // A directory that cannot be listed passes: the mount call will be refused, and says why.
    let is_empty = fs::read_dir(&at).map_or(true, |mut entries| entries.next().is_none());
    match is_empty || nonempty {
        true => Ok(at),
        false => Err(cannot(&"it is not empty (-o nonempty hides what is in it)")),
    }
}

fn in_the_way(there: &MountInfo, nonempty: bool) -> Option<String> {
    let (at, source) = (there.at.display(), there.source.display());
    if there.is_ours() && state(there) == State::Dead {
        return Some(format!(
            "a mount was left there by a process that is gone: rcuwalk umount {at}"
        ));
    }
    match nonempty {
        true => None,
        false if there.is_ours() => Some(format!(
            "{source} is already mounted there: rcuwalk umount {at}"
        )),
        false => Some(format!(
            "{source} ({}) is already mounted there (-o nonempty mounts on top of it)",
            there.kind
        )),
    }
}

/// A tree that shows itself within itself has no end, and would wait for its own answers.
pub(super) fn refuse_inside(source: &Path, mountpoint: &Path) -> Result<(), Failure> {
    let Ok(source) = source.canonicalize() else {
        // Opening the source reports this error with more context.
        return Ok(());
    };
    if source.is_dir() && mountpoint != source && mountpoint.starts_with(&source) {
        return Err(Failure::error(format_args!(
            "cannot mount {} on {}, which is inside of it",
            source.display(),
            mountpoint.display()
        )));
    }
    Ok(())
}

/// Refuses to allow set-id programs (`suid`) or devices (`dev`) where a mount below `source` forbids
/// them: our one mount shows the files of all of these mounts, and has one set of flags. Mounts that
/// come later are not seen.
///
/// # Errors
/// Names the mount that forbids it, and what to do.
pub(super) fn refuse_more_than_below(source: &Path, suid: bool, dev: bool) -> Result<(), String> {
    let wanted = [("suid", "nosuid", suid), ("dev", "nodev", dev)];
    if !wanted.iter().any(|(.., is_wanted)| *is_wanted) {
        return Ok(());
    }
    let Ok(source) = source.canonicalize() else {
        // Opening the source reports this error with more context.
        return Ok(());
    };
    let mounts = mountinfo::mounts().map_err(|err| Words(&err).to_string())?;
    let is_below = |mount: &&MountInfo| mount.at != source && mount.at.starts_with(&source);
    for mount in mounts.iter().filter(is_below) {
        let forbids = |flag: &str| mount.options.iter().any(|option| option == flag);
        let mut refused = wanted.iter().filter(|(_, flag, _)| forbids(flag));
        if let Some((option, flag, _)) = refused.find(|(.., is_wanted)| *is_wanted) {
            let (at, source) = (mount.at.display(), source.display());
            return Err(format!(
                "{at}, mounted below {source}, is {flag}: leave {option} out, or mount a view of \
                 {source} without what is mounted below it (mount --bind {source} ELSEWHERE)"
            ));
        }
    }
    Ok(())
}
