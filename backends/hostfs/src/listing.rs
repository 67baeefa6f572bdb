//! Listing a directory: getdents64(2) in large buffers, and positions that last.
//!
//! Each call opens the directory anew and seeks, so a listing between two calls
//! costs no descriptor. That puts DIR-1 in the host's hands twice:
//!
//! * Within one call, POSIX's promise for one open directory holds: an entry that is
//!   there all through comes once; one made or removed meanwhile comes or does not.
//! * Across calls, it holds as far as the host's positions outlive the descriptor.
//!   ext4, xfs, btrfs and tmpfs see to that (they must, for NFS). A merged overlayfs
//!   directory numbers its entries per open, and a FUSE server may do as it likes:
//!   there, a change between two calls can repeat or skip an entry.
//!
//! # Positions
//!
//! The host's position after an entry is `d_off`: opaque, any number, 0 for the
//! start. Ours is `d_off + 1`, and 0 for the start; [`Position`] knows the way there
//! and back. Two kinds of `d_off` name no place to go on from, and become
//! [`Position::NOWHERE`]: 0 (a FUSE server that keeps no positions; going on there
//! would start the listing again, for ever) and negative ones (lseek refuses them).
//! Going on from `NOWHERE` is an error rather than a wrong listing. The largest
//! legal value, `i64::MAX` ("the end", on ext4 and btrfs), is a position like others.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcuwalk::{Emit, Error, FileType, RawEntry, Result};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType as HostType, RawDir, SeekFrom, StatxAttributes, StatxFlags, StatxTimestamp,
    ioctl_getflags,
};
use rustix::io::{Errno, retry_on_intr};

use crate::host::{as_fd, err};

/// Bytes per getdents64(2): a thousand entries with short names, which is about as many as the
/// VFS takes. Entries left over when `emit` breaks were read for nothing.
const BUFFER: usize = 32 * 1024;

/// Hands entries of an open directory after `from` to `emit`: all of a buffer, or until it
/// breaks.
pub(crate) fn read(dir: &OwnedFd, from: u64, emit: &mut dyn Emit) -> Result<()> {
    seek(as_fd(dir), Position(from))?;
    let mut buffer = Vec::with_capacity(BUFFER);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(err(errno)),
        };
        let name = entry.file_name().to_bytes();
        if is_dot(name) {
            continue;
        }
        let next = Position::after(entry.next_entry_cookie());
        let taken = emit.entry(RawEntry {
            name,
            ino: entry.ino(),
            kind: kind(entry.file_type()),
            next: next.0,
        });
        // Not taken, and nothing to undo: the caller goes on from the position of
        // the entry before, which leads back to this one.
        // A second buffer would mostly be read for nothing. Where there is no going on, it
        // is read all the same.
        if taken.is_break() || entries.is_buffer_empty() && next != Position::NOWHERE {
            break;
        }
    }
    Ok(())
}

/// A number that tells whether the listing of a directory is still the same. With `is_told`, changes
/// are known, and any number will do; otherwise it is made of the ctime, on a file system that `has_times`.
///
/// - Two changes within a tick of the host's clock have one ctime, so there is no number until the
///   directory has been left alone for longer. Whole seconds come from file systems with slower clocks.
/// - The names in an encrypted directory are others when a key is added or removed, of which no time
///   and no report tells.
#[doc(alias("STATX_ATTR_ENCRYPTED", "IS_I_VERSION"))]
pub(crate) fn version(dir: BorrowedFd<'_>, is_told: bool, has_times: bool) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::CTIME;
    let statx = retry_on_intr(|| rustix::fs::statx(dir, c"", flags, wanted)).ok()?;
    match () {
        () if statx.stx_attributes.contains(StatxAttributes::ENCRYPTED) => None,
        () if is_told => Some(0),
        () if has_times => version_at(&statx.stx_ctime, SystemTime::now()),
        () => None,
    }
}

/// Longer than one tick of a file system's clock, which at 100 Hz is 10 ms.
const TICK: Duration = Duration::from_millis(20);

fn version_at(ctime: &StatxTimestamp, now: SystemTime) -> Option<u64> {
    let seconds = u64::try_from(ctime.tv_sec).ok()?;
    let changed = Duration::new(seconds, ctime.tv_nsec);
    let age = now.duration_since(UNIX_EPOCH).ok()?.checked_sub(changed)?;
    let is_at_rest = age > TICK && ctime.tv_nsec != 0;
    is_at_rest.then(|| seconds << 30 | u64::from(ctime.tv_nsec))
}

/// True if names are found in this directory in another way than they are listed: without regard
/// to case, or encrypted.
#[doc(alias("FS_CASEFOLD_FL", "FS_ENCRYPT_FL"))]
pub(crate) fn has_other_names(dir: &OwnedFd) -> Result<bool> {
    const ENCRYPT: u32 = 0x800;
    const CASEFOLD: u32 = 0x4000_0000;
    match retry_on_intr(|| ioctl_getflags(dir)) {
        Ok(flags) => Ok(flags.bits() & (ENCRYPT | CASEFOLD) != 0),
        // A file system without such flags.
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(err(errno)),
    }
}

fn seek(dir: BorrowedFd<'_>, from: Position) -> Result<()> {
    if from == Position::START {
        return Ok(());
    }
    let offset = from.host().ok_or(Error::NotSupported)?;
    rustix::fs::seek(dir, SeekFrom::Start(offset)).map_err(err)?;
    Ok(())
}

/// A position in a listing as the VFS knows it; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position(u64);

impl Position {
    const START: Position = Position(0);
    const NOWHERE: Position = Position(u64::MAX);

    /// The position after the entry with this `d_off`.
    fn after(d_off: u64) -> Position {
        match i64::try_from(d_off) {
            Ok(1..) => Position(d_off + 1),
            _ => Position::NOWHERE,
        }
    }

    /// Where the host is to go on, if it can.
    fn host(self) -> Option<u64> {
        let d_off = self.0.checked_sub(1)?;
        i64::try_from(d_off).is_ok().then_some(d_off)
    }
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn kind(host: HostType) -> Option<FileType> {
    Some(match host {
        HostType::RegularFile => FileType::Regular,
        HostType::Directory => FileType::Directory,
        HostType::Symlink => FileType::Symlink,
        HostType::BlockDevice => FileType::BlockDevice,
        HostType::CharacterDevice => FileType::CharDevice,
        HostType::Fifo => FileType::Fifo,
        HostType::Socket => FileType::Socket,
        HostType::Unknown => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::open_root;
    use std::collections::BTreeMap;
    use std::fs;
    use std::ops::ControlFlow;

    /// Takes a number of entries, then breaks.
    struct Take {
        left: usize,
        seen: Vec<(String, Option<FileType>, u64)>,
    }

    impl Emit for Take {
        fn entry(&mut self, entry: RawEntry<'_>) -> ControlFlow<()> {
            if self.left == 0 {
                return ControlFlow::Break(());
            }
            self.left -= 1;
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            self.seen.push((name, entry.kind, entry.next));
            ControlFlow::Continue(())
        }
    }

    /// A whole listing, `batch` entries to a call, the directory opened for each.
    fn list(path: &std::path::Path, batch: usize) -> Vec<(String, Option<FileType>, u64)> {
        let pin = open_root(path).unwrap();
        let mut all: Vec<(String, Option<FileType>, u64)> = Vec::new();
        loop {
            let from = all.last().map_or(0, |(_, _, next)| *next);
            let mut take = Take {
                left: batch,
                seen: Vec::new(),
            };
            let dir = crate::host::open_dir(as_fd(&pin)).unwrap();
            read(&dir, from, &mut take).unwrap();
            if take.seen.is_empty() {
                return all;
            }
            all.append(&mut take.seen);
        }
    }

    /// DIR-1: however a listing is cut into calls, each entry comes once.
    #[test]
    fn breaking_loses_no_entry() {
        let dir = tempfile::tempdir().unwrap();
        let mut expected = BTreeMap::new();
        for i in 0..3000 {
            let name = format!("a-rather-long-name-to-fill-the-buffer-{i}");
            fs::write(dir.path().join(&name), b"").unwrap();
            expected.insert(name, 1);
        }
        for batch in [7, 1000, 2999, 3000, usize::MAX] {
            let mut seen = BTreeMap::new();
            for (name, kind, next) in list(dir.path(), batch) {
                assert!(next != 0, "DIR-1: 0 is the start");
                assert_eq!(kind, Some(FileType::Regular));
                *seen.entry(name).or_insert(0) += 1;
            }
            assert_eq!(seen, expected, "DIR-1: {batch} to a call");
        }
    }

    /// DIR-1: entries made and removed during a listing do not disturb the rest.
    #[test]
    fn entries_that_stay_come_once() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..500 {
            fs::write(dir.path().join(format!("stays-{i}")), b"").unwrap();
            fs::write(dir.path().join(format!("goes-{i}")), b"").unwrap();
        }
        let pin = open_root(dir.path()).unwrap();
        let (mut from, mut stayed, mut round) = (0, BTreeMap::new(), 0);
        loop {
            let mut take = Take {
                left: 10,
                seen: Vec::new(),
            };
            let open = crate::host::open_dir(as_fd(&pin)).unwrap();
            read(&open, from, &mut take).unwrap();
            let Some((_, _, next)) = take.seen.last() else {
                break;
            };
            from = *next;
            for (name, ..) in &take.seen {
                if name.starts_with("stays") {
                    *stayed.entry(name.clone()).or_insert(0) += 1;
                }
            }
            let _ = fs::remove_file(dir.path().join(format!("goes-{round}")));
            fs::write(dir.path().join(format!("comes-{round}")), b"").unwrap();
            round += 1;
        }
        assert_eq!(stayed.len(), 500, "DIR-1: none is lost");
        assert!(
            stayed.values().all(|&times| times == 1),
            "DIR-1: none comes twice"
        );
    }

    /// DIR-1: a position leads back to where the host said, and 0 is only the start.
    #[test]
    fn positions_go_there_and_back() {
        for d_off in [1, 2, 1 << 31, 1 << 32, i64::MAX as u64 - 1, i64::MAX as u64] {
            let position = Position::after(d_off);
            assert_ne!(position, Position::START, "DIR-1: {d_off}");
            assert_eq!(position.host(), Some(d_off), "DIR-1: {d_off}");
        }
    }

    /// DIR-1: a `d_off` that leads nowhere never starts a listing again.
    #[test]
    fn no_position_is_better_than_a_wrong_one() {
        for d_off in [0, i64::MIN as u64, u64::MAX - 1, u64::MAX] {
            let position = Position::after(d_off);
            assert_ne!(position, Position::START, "DIR-1: {d_off}");
            assert_eq!(position.host(), None, "DIR-1: {d_off}");
        }
        let dir = tempfile::tempdir().unwrap();
        let open = open_root(dir.path()).unwrap();
        let open = crate::host::open_dir(as_fd(&open)).unwrap();
        let mut take = Take {
            left: 1,
            seen: Vec::new(),
        };
        let on = read(&open, Position::NOWHERE.0, &mut take);
        assert!(matches!(on, Err(Error::NotSupported)), "DIR-1");
    }

    /// EDGE-1: `.` and `..` are the VFS's; names that only begin so are not.
    #[test]
    fn only_the_dots_are_left_out() {
        assert!(is_dot(b".") && is_dot(b".."));
        assert!(!is_dot(b"...") && !is_dot(b".a") && !is_dot(b""));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("..."), b"").unwrap();
        fs::create_dir(dir.path().join(".d")).unwrap();
        std::os::unix::fs::symlink("x", dir.path().join("..l")).unwrap();
        let mut seen = list(dir.path(), 1);
        seen.sort_by(|a, b| a.0.cmp(&b.0));
        let kinds: Vec<_> = seen
            .iter()
            .map(|(name, kind, _)| (name.as_str(), *kind))
            .collect();
        assert_eq!(
            kinds,
            [
                ("...", Some(FileType::Regular)),
                ("..l", Some(FileType::Symlink)),
                (".d", Some(FileType::Directory)),
            ]
        );
    }
}
