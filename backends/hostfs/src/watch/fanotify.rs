//! fanotify(7): one mark for a whole file system.
//!
//! Reports carry handles. A directory's is known since it was pinned, so a change elsewhere on
//! the file system costs one map lookup and no more.
//!
//! The handle of a file is opened if it comes without a directory: a change of the number of
//! its names, or one by a descriptor that no name led to. If it comes with one, the written
//! file may have lost that name, and be cached under another. Both may be about any file,
//! cached or not. Most file systems include the file's number in a handle ([`Numbers`]); there,
//! only handles whose number is cached are opened, and a lookup in a map is enough for the
//! rest. The handle is opened in the root's mount; a file that is cached by way of another
//! mount is found by its new name only.

use std::mem::MaybeUninit;

use rcuwalk::InodeKey;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use super::Id;
use super::heard::{By, Change, NameIs, Report};
use crate::host;
use crate::identity::host_mount;
use crate::sys;

/// Changes of names, contents and attributes, of directories as well.
const MASK: u64 = libc::FAN_CREATE
    | libc::FAN_DELETE
    | libc::FAN_MOVED_FROM
    | libc::FAN_MOVED_TO
    | libc::FAN_MOVE_SELF
    | libc::FAN_MODIFY
    | libc::FAN_ATTRIB
    | libc::FAN_ONDIR;

/// No event is longer: a name of 255 bytes, and three handles of 128.
const LONGEST_EVENT: usize = 4096;
/// Bytes before the first record of an event.
const EVENT: usize = 24;
/// Bytes of a record before its handle: type, padding, length, file system id.
const RECORD: usize = 12;

pub(super) struct Fanotify {
    group: OwnedFd,
    /// The root, open for reading: handles are opened in its mount.
    root: OwnedFd,
    /// The root itself.
    key: InodeKey,
    numbers: Option<Numbers>,
}

/// Where in a handle a file's inode number is. NFS clients keep handles, so their formats do
/// not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    /// ext4, and xfs where all numbers are small: 32 bits, and a generation.
    #[doc(alias = "FILEID_INO32_GEN")]
    Small,
    /// xfs: 64 bits, and a generation. Or the small ones.
    #[doc(alias = "XFS_FILEID_INO64GEN")]
    Xfs,
    /// tmpfs: a generation, and 64 bits.
    Tmpfs,
}

impl Fanotify {
    /// Watches the file system of `root`, which is open for reading, and is `key`.
    pub(super) fn new(root: OwnedFd, key: InodeKey) -> Result<Fanotify, Errno> {
        let mut fanotify = Fanotify {
            group: sys::fanotify_init()?,
            numbers: Numbers::of(root.as_fd()),
            key,
            root,
        };
        let id = fanotify.watch(fanotify.root.as_fd())?;
        // A file system whose handles cannot be opened is as well off with inotify.
        fanotify.open(&id)?;
        if fanotify.key_of(&id) != Some(key) {
            fanotify.numbers = None;
        }
        Ok(fanotify)
    }

    /// Watches the file system of `dir`, unless it is watched already, and returns `dir`'s name
    /// in reports.
    pub(super) fn watch(&self, dir: BorrowedFd<'_>) -> Result<Id, Errno> {
        // Each time: an existing mark costs little to find, and a file system that was
        // unmounted and mounted again has none.
        sys::fanotify_mark_filesystem(self.group.as_fd(), MASK, dir)?;
        sys::name_to_handle(dir)
    }

    /// Returns whether each file of this directory that gets another name has a report of its
    /// own.
    pub(super) fn opens_files_of(&self, dir: InodeKey) -> bool {
        host_mount(dir) == host_mount(self.key)
    }

    /// Returns whether each change of the file with this key has a report that says which file
    /// it is.
    pub(super) fn tells_of(&self, file: InodeKey) -> bool {
        self.numbers.is_some() && self.opens_files_of(file)
    }

    /// The inode key of a report's file, if it is in the root's mount and file system. `None`
    /// where a handle does not say.
    pub(super) fn key_of(&self, handle: &[u8]) -> Option<InodeKey> {
        let ino = self.numbers?.read(handle)?;
        let space = self.key.space;
        Some(InodeKey { ino, space })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }

    /// Opens the file of a report, with O_PATH.
    pub(super) fn open(&self, handle: &[u8]) -> Result<OwnedFd, Errno> {
        sys::open_by_handle(self.root.as_fd(), handle)
    }

    /// Hands out the queued reports, a bufferful at most; true if that was all.
    pub(super) fn read(
        &self,
        buf: &mut [MaybeUninit<u8>],
        mut report: impl FnMut(Report<'_>),
    ) -> Result<bool, Errno> {
        let mut report = |mut what: Report<'_>| {
            // Without a number each would be opened that is written to anywhere.
            if let Report::In { file, .. } = &mut what
                && self.numbers.is_none()
            {
                *file = None;
            }
            report(what);
        };
        match rustix::io::read(&self.group, buf) {
            Ok((read, left)) => {
                each_event(read, &mut report);
                // The next one would have found room.
                if left.len() >= LONGEST_EVENT {
                    return Ok(true);
                }
            }
            Err(Errno::AGAIN) => return Ok(true),
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        Ok(rustix::io::ioctl_fionread(&self.group)? == 0)
    }
}

impl Numbers {
    fn of(root: BorrowedFd<'_>) -> Option<Numbers> {
        const TMPFS: u64 = 0x0102_1994;
        const XFS: u64 = 0x5846_5342;
        const EXT4: u64 = 0xEF53;
        match host::held::statfs(root).ok()?.kind {
            EXT4 => Some(Numbers::Small),
            XFS => Some(Numbers::Xfs),
            TMPFS => Some(Numbers::Tmpfs),
            _ => None,
        }
    }

    fn read(self, handle: &[u8]) -> Option<u64> {
        let bytes = &handle[..sys::handle_len(handle)?];
        let small = |at| u64::from(u32_at(bytes, at));
        // The length of the following record, and its type.
        match (self, bytes.len() - sys::HEAD, u32_at(bytes, 4)) {
            (Numbers::Small | Numbers::Xfs, 8, 1) => Some(small(sys::HEAD)),
            (Numbers::Xfs, 12, 0x81) => Some(u64_at(bytes, sys::HEAD)),
            (Numbers::Tmpfs, 12, 1) => Some(small(sys::HEAD + 4) | small(sys::HEAD + 8) << 32),
            _ => None,
        }
    }
}

/// Takes events apart; see fanotify(7).
fn each_event(mut bytes: &[u8], report: &mut impl FnMut(Report<'_>)) {
    while let Some(event) = part(bytes, u32_at(bytes, 0), EVENT) {
        let (mask, head) = (u64_at(event, 8), u16_at(event, 6));
        match event.get(usize::from(head)..) {
            // A file has been renamed, which its two directories report as well.
            _ if mask == libc::FAN_MOVE_SELF => {}
            Some(records) if mask & libc::FAN_Q_OVERFLOW == 0 => {
                each_record(records, mask, by(event), report);
            }
            _ => report(Report::Lost),
        }
        bytes = &bytes[event.len()..];
    }
    if !bytes.is_empty() {
        // Cut off, or of another making: whatever it says.
        report(Report::Lost);
    }
}

/// The events of a name. Reports about one name are merged, and their order is lost: then the
/// name may be new, and the one before may have been new as well.
fn changes(mask: u64) -> &'static [Change] {
    let made = mask & (libc::FAN_CREATE | libc::FAN_MOVED_TO) != 0;
    let gone = mask & (libc::FAN_DELETE | libc::FAN_MOVED_FROM) != 0;
    match (made, gone) {
        _ if mask & libc::FAN_ONDIR != 0 => &[Change::Other],
        (true, true) => &[Change::Made, Change::Gone, Change::Made],
        (true, false) => &[Change::Made],
        (false, true) => &[Change::Gone],
        (false, false) => &[Change::Other],
    }
}

/// The thread that made a change; 0 is one that is not visible from here.
fn by(event: &[u8]) -> By {
    match u32_at(event, 20) {
        0 => By::Others,
        thread => By::One(thread),
    }
}

/// Events of a name, rather than of its file.
const OF_NAMES: u64 =
    libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO;

fn each_record(mut records: &[u8], mask: u64, by: By, report: &mut impl FnMut(Report<'_>)) {
    let (mut file, mut place) = (None, None);
    while let Some(record) = part(records, u32::from(u16_at(records, 2)), RECORD) {
        let body = &record[RECORD..];
        let Some(len) = sys::handle_len(body) else {
            return report(Report::Lost);
        };
        let (handle, name) = body.split_at(len);
        match record[0] {
            libc::FAN_EVENT_INFO_TYPE_FID => file = Some(handle),
            libc::FAN_EVENT_INFO_TYPE_DFID => place = Some((handle, &b"."[..])),
            libc::FAN_EVENT_INFO_TYPE_DFID_NAME => {
                let name = name.split(|byte| *byte == 0).next();
                place = Some((handle, name.unwrap_or_default()));
            }
            _ => {}
        }
        records = &records[record.len()..];
    }
    match (place, file) {
        (Some((dir, b".")), _) => report(Report::Itself { dir, by }),
        (Some((dir, name)), file) => {
            for &change in changes(mask) {
                report(Report::In {
                    dir,
                    name,
                    change,
                    name_is: match mask & OF_NAMES {
                        0 => NameIs::Same,
                        libc::FAN_CREATE => NameIs::New,
                        _ => NameIs::Another,
                    },
                    file,
                    by,
                });
            }
        }
        (None, Some(handle)) => report(Report::File { handle, by }),
        (None, None) => report(Report::Lost),
    }
}

/// The first `len` bytes, which are `least` at least.
fn part(bytes: &[u8], len: u32, least: usize) -> Option<&[u8]> {
    let part = bytes.get(..usize::try_from(len).ok()?)?;
    (part.len() >= least).then_some(part)
}

/// 0 where there is too little to read.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |chunk| u16::from_ne_bytes(*chunk))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |chunk| u32::from_ne_bytes(*chunk))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |chunk| u64::from_ne_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, handle: &[u8], name: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(u32::try_from(handle.len()).unwrap().to_ne_bytes());
        body.extend(1i32.to_ne_bytes());
        body.extend(handle);
        body.extend(name);
        let len = u16::try_from(RECORD + body.len()).unwrap();
        let mut record = vec![kind, 0];
        record.extend(len.to_ne_bytes());
        record.extend([0; 8]);
        record.extend(body);
        record
    }

    fn event(mask: u64, records: &[Vec<u8>]) -> Vec<u8> {
        let records = records.concat();
        let mut event = Vec::new();
        event.extend(u32::try_from(EVENT + records.len()).unwrap().to_ne_bytes());
        event.extend([3, 0]);
        event.extend(u16::try_from(EVENT).unwrap().to_ne_bytes());
        event.extend(mask.to_ne_bytes());
        event.extend([0xff; 8]);
        event.extend(records);
        event
    }

    fn reports(bytes: &[u8]) -> Vec<(&'static str, Option<u8>)> {
        let mut seen = Vec::new();
        each_event(bytes, &mut |report| {
            let first = |handle: &[u8]| handle.get(8).copied();
            seen.push(match report {
                Report::In { dir, .. } => ("in", first(dir)),
                Report::Itself { dir, .. } => ("itself", first(dir)),
                Report::File { handle, .. } => ("file", first(handle)),
                Report::Ended { .. } => ("ended", None),
                Report::Lost => ("lost", None),
            });
        });
        seen
    }

    #[test]
    fn each_kind_of_report_is_understood() {
        let bytes = [
            event(
                libc::FAN_MODIFY,
                &[record(2, &[1], b"name\0"), record(1, &[2], b"")],
            ),
            event(libc::FAN_ATTRIB, &[record(2, &[3], b".\0")]),
            event(libc::FAN_ATTRIB, &[record(1, &[4], b"")]),
            event(libc::FAN_CREATE, &[record(2, &[5], b".hidden\0\0\0")]),
            event(libc::FAN_Q_OVERFLOW, &[]),
        ];
        let expected = [
            ("in", Some(1)),
            ("itself", Some(3)),
            ("file", Some(4)),
            ("in", Some(5)),
            ("lost", None),
        ];
        assert_eq!(reports(&bytes.concat()), expected);
    }

    /// No message from the kernel, of any version, ends in a panic.
    #[test]
    fn damaged_reports_are_lost() {
        let whole = event(libc::FAN_MODIFY, &[record(2, &[1; 8], b"name\0")]);
        for len in 1..whole.len() {
            assert_eq!(reports(&whole[..len]), [("lost", None)], "{len} bytes");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                reports(&damaged);
            }
        }
    }

    /// FRESH-1: a handle says the right number, or none: on file systems of each kind that
    /// is here.
    #[test]
    fn a_handle_says_the_number_of_its_file() {
        use std::os::unix::fs::MetadataExt;
        for dir in ["/tmp", "/dev/shm", "/var/tmp", "/proc", "/sys"] {
            let Ok(root) = std::fs::File::open(dir) else {
                continue;
            };
            let Some(numbers) = Numbers::of(root.as_fd()) else {
                continue;
            };
            let scratch = tempfile::tempdir_in(dir).unwrap();
            for n in 0..10 {
                let file = std::fs::File::create(scratch.path().join(n.to_string())).unwrap();
                let handle = sys::name_to_handle(file.as_fd()).unwrap();
                let ino = file.metadata().unwrap().ino();
                assert_eq!(numbers.read(&handle), Some(ino), "FRESH-1: {dir}");
                assert_eq!(numbers.read(&handle[..handle.len() - 1]), None);
                assert_eq!(numbers.read(&handle[..3]), None);
            }
        }
    }

    /// FRESH-1: of a name that was made and removed, in whichever order, nothing is sure.
    #[test]
    fn what_is_merged_is_taken_for_missed() {
        use Change::*;
        assert_eq!(changes(libc::FAN_CREATE), [Made]);
        assert_eq!(changes(libc::FAN_CREATE | libc::FAN_MODIFY), [Made]);
        assert_eq!(changes(libc::FAN_MOVED_FROM), [Gone]);
        assert_eq!(
            changes(libc::FAN_CREATE | libc::FAN_DELETE),
            [Made, Gone, Made]
        );
        assert_eq!(changes(libc::FAN_CREATE | libc::FAN_ONDIR), [Other]);
        assert_eq!(changes(libc::FAN_ATTRIB), [Other]);
    }
}
