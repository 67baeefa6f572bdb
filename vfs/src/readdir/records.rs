//! Directory entries in a buffer, laid out as getdents64(2) does.
//!
//! ```text
//!   0      8           16       18     19
//!   | ino  | position  | length | type | name, NUL, zeros to the next multiple of 8 |
//! ```
//!
//! A record is 20 bytes and the name, rounded up: a buffer of 32 KiB holds a thousand short names
//! without an allocation for each.

use std::iter::FusedIterator;
use std::ops::ControlFlow;

use crate::attr::FileType;
use crate::error::{Error, Result};
use crate::filesystem::{Emit, RawEntry};

const HEADER: usize = 19;
/// Where in a record the type is.
pub(super) const TYPE: usize = 18;
/// The type of an entry that has been removed from a [`Blob`](super::blob::Blob).
pub(super) const GONE: u8 = 0xFF;
const ALIGN: usize = 8;

/// Names beyond it do not occur in any file system, and a record has 16 bits for its length.
const LONGEST: usize = 4096;

/// Writes entries to a buffer until one does not fit.
pub(crate) struct Writer<R> {
    room: R,
    /// Entries written.
    pub(crate) count: u32,
    /// The position after the last one.
    pub(super) last: Option<u64>,
    /// An entry did not fit.
    pub(crate) is_full: bool,
    /// The back end has handed over an entry that can have no name.
    pub(crate) is_bad: bool,
}

/// Room for records.
pub(crate) trait Room {
    /// The next `length` bytes, if there are that many.
    fn take(&mut self, length: usize) -> Option<&mut [u8]>;

    /// How many bytes there are.
    fn left(&self) -> usize;

    /// The records written so far.
    fn written(&self) -> &[u8];
}

/// The caller's buffer.
pub(crate) struct Slice<'b> {
    buf: &'b mut [u8],
    pub(crate) used: usize,
}

impl<'b> Slice<'b> {
    pub(crate) fn new(buf: &'b mut [u8]) -> Slice<'b> {
        Slice { buf, used: 0 }
    }
}

impl Room for Slice<'_> {
    #[inline]
    fn take(&mut self, length: usize) -> Option<&mut [u8]> {
        let end = self.used + length;
        let record = self.buf.get_mut(self.used..end)?;
        self.used = end;
        Some(record)
    }

    fn left(&self) -> usize {
        self.buf.len() - self.used
    }

    fn written(&self) -> &[u8] {
        &self.buf[..self.used]
    }
}

/// A buffer that grows up to a limit.
pub(crate) struct Growing<'b> {
    buf: &'b mut Vec<u8>,
    start: usize,
    limit: usize,
}

impl<'b> Growing<'b> {
    /// Takes up to `room` bytes more.
    pub(crate) fn new(buf: &'b mut Vec<u8>, room: usize) -> Growing<'b> {
        let start = buf.len();
        Growing {
            buf,
            start,
            limit: start.saturating_add(room),
        }
    }
}

impl Room for Growing<'_> {
    #[inline]
    fn take(&mut self, length: usize) -> Option<&mut [u8]> {
        let used = self.buf.len();
        if length > self.limit - used {
            return None;
        }
        self.buf.resize(used + length, 0);
        Some(&mut self.buf[used..])
    }

    fn left(&self) -> usize {
        self.limit - self.buf.len()
    }

    fn written(&self) -> &[u8] {
        &self.buf[self.start..]
    }
}

impl<R: Room> Writer<R> {
    pub(crate) fn new(room: R) -> Writer<R> {
        Writer {
            room,
            count: 0,
            last: None,
            is_full: false,
            is_bad: false,
        }
    }

    /// The records written so far.
    pub(super) fn written(&self) -> &[u8] {
        self.room.written()
    }

    /// Copies records, without those of entries that are gone, until one does not fit: false then.
    pub(super) fn copy(&mut self, records: &[u8]) -> bool {
        let mut at = 0;
        while at < records.len() {
            // A run of records that fit and are there.
            let (start, mut last, mut run) = (at, at, 0);
            let mut is_gone = false;
            let room = self.room.left();
            while let Some(length) = length_of(&records[at..]) {
                is_gone = records[at + TYPE] == GONE;
                self.is_full = !is_gone && at + length - start > room;
                if is_gone || self.is_full {
                    break;
                }
                (last, at, run) = (at, at + length, run + 1);
            }
            let records_of_run = &records[start..at];
            if run > 0 {
                self.last = position_of(&records[last..]);
                if let Some(room) = self.room.take(records_of_run.len()) {
                    room.copy_from_slice(records_of_run);
                }
                self.count += run;
            }
            match length_of(&records[at..]) {
                Some(length) if is_gone => at += length,
                _ => break,
            }
        }
        !self.is_full
    }

    /// The room that is left.
    ///
    /// # Errors
    /// `EIO` if the back end handed over an entry that can have no name.
    #[doc(alias = "verify_dirent_name")]
    pub(crate) fn finish(self) -> Result<R> {
        match self.is_bad {
            true => Err(Error::io(std::io::Error::from_raw_os_error(libc::EIO))),
            false => Ok(self.room),
        }
    }
}

impl<R: Room> Emit for Writer<R> {
    #[inline]
    fn entry(&mut self, entry: RawEntry<'_>) -> ControlFlow<()> {
        let is_name = entry.name.last().is_some_and(|last| *last != 0);
        if !is_name || entry.name.len() > LONGEST {
            self.is_bad = true;
            return ControlFlow::Break(());
        }
        let Some(record) = self.room.take(length(entry.name)) else {
            self.is_full = true;
            return ControlFlow::Break(());
        };
        write(record, &entry);
        (self.count, self.last) = (self.count + 1, Some(entry.next));
        ControlFlow::Continue(())
    }
}

/// The length of the record of an entry with that name.
fn length(name: &[u8]) -> usize {
    (HEADER + name.len() + 1).next_multiple_of(ALIGN)
}

/// The length of the record at the start of a buffer.
#[inline]
fn length_of(buf: &[u8]) -> Option<usize> {
    let length = usize::from(u16::from_ne_bytes(*buf.get(16..)?.first_chunk()?));
    (length > HEADER && length <= buf.len()).then_some(length)
}

/// The position in the record at the start of a buffer.
#[inline]
fn position_of(buf: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(*buf.get(8..)?.first_chunk()?))
}

/// The records at the start of a buffer that fit in `room` bytes, and for which `is_next` is true,
/// which is told their positions.
#[inline]
pub(super) fn run(buf: &[u8], room: usize, mut is_next: impl FnMut(u64) -> bool) -> usize {
    let mut end = 0;
    while let Some(length) = length_of(&buf[end..])
        && end + length <= room
        && position_of(&buf[end..]).is_some_and(&mut is_next)
    {
        end += length;
    }
    end
}

/// Marks the record at the start of a buffer as that of an entry that is gone. Returns its length.
pub(super) fn mark_gone(buf: &mut [u8]) -> usize {
    match length_of(buf) {
        Some(length) => {
            buf[TYPE] = GONE;
            length
        }
        None => 0,
    }
}

#[inline]
fn write(record: &mut [u8], entry: &RawEntry<'_>) {
    // At most `LONGEST` and the header.
    let length = record.len() as u16;
    // First, as the name overwrites a part of it.
    if let Some(tail) = record.last_chunk_mut::<ALIGN>() {
        *tail = [0; ALIGN];
    }
    let kind = entry.kind.map_or(libc::DT_UNKNOWN, dirent_type);
    // By array: each is one store, where a slice's is a call of memcpy(3).
    if let Some((ino, rest)) = record.split_first_chunk_mut()
        && let Some((next, rest)) = rest.split_first_chunk_mut()
        && let Some((record_length, rest)) = rest.split_first_chunk_mut()
        && let Some((dirent_type, rest)) = rest.split_first_mut()
        && let Some(name) = rest.get_mut(..entry.name.len())
    {
        *ino = entry.ino.to_ne_bytes();
        *next = entry.next.to_ne_bytes();
        *record_length = length.to_ne_bytes();
        *dirent_type = kind;
        copy(name, entry.name);
    }
}

/// `copy_from_slice` of names, most of which are short: a call of memcpy(3) takes longer than two
/// words that may overlap.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    if !(8..=16).contains(&from.len()) || to.len() != from.len() {
        return to.copy_from_slice(from);
    }
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<8>(), from.first_chunk()) {
        *to = *from;
    }
    if let (Some(to), Some(from)) = (to.last_chunk_mut::<8>(), from.last_chunk()) {
        *to = *from;
    }
}

#[doc(alias("DT_REG", "DT_DIR", "fs_umode_to_dtype"))]
fn dirent_type(kind: FileType) -> u8 {
    (kind.mode_bits() >> 12) as u8
}

fn kind(dirent_type: u8) -> Option<FileType> {
    Some(match dirent_type {
        libc::DT_REG => FileType::Regular,
        libc::DT_DIR => FileType::Directory,
        libc::DT_LNK => FileType::Symlink,
        libc::DT_BLK => FileType::BlockDevice,
        libc::DT_CHR => FileType::CharDevice,
        libc::DT_FIFO => FileType::Fifo,
        libc::DT_SOCK => FileType::Socket,
        _ => return None,
    })
}

/// The entries in a buffer that [`File::fill`](crate::File::fill) has filled.
#[derive(Clone, Debug)]
pub struct Entries<'b> {
    rest: &'b [u8],
}

impl<'b> Entries<'b> {
    /// `filled` is what `fill` has written. Bytes that are no record end the iteration.
    #[inline]
    pub fn new(filled: &'b [u8]) -> Entries<'b> {
        Entries { rest: filled }
    }
}

impl<'b> Iterator for Entries<'b> {
    type Item = RawEntry<'b>;

    #[inline]
    fn next(&mut self) -> Option<RawEntry<'b>> {
        let (entry, length) = first(self.rest)?;
        self.rest = &self.rest[length..];
        Some(entry)
    }
}

impl FusedIterator for Entries<'_> {}

/// The first record of a buffer, and its length.
#[inline]
pub(crate) fn first(buf: &[u8]) -> Option<(RawEntry<'_>, usize)> {
    let number = |at: usize| Some(u64::from_ne_bytes(*buf.get(at..)?.first_chunk()?));
    let (ino, next) = (number(0)?, number(8)?);
    let length = length_of(buf)?;
    let record = &buf[..length];
    // The name ends in one to eight NULs, which end the record.
    let tail = u64::from_le_bytes(*record.last_chunk()?);
    let end = length - tail.leading_zeros() as usize / 8;
    let name = record.get(HEADER..end)?;
    let entry = RawEntry {
        name,
        ino,
        kind: kind(record[TYPE]),
        next,
    };
    Some((entry, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EDGE-1: the layout is `struct linux_dirent64`, for names of every length and all types.
    #[test]
    fn a_record_is_what_getdents64_writes() {
        let kinds = [
            (None, libc::DT_UNKNOWN),
            (Some(FileType::Regular), libc::DT_REG),
            (Some(FileType::Directory), libc::DT_DIR),
            (Some(FileType::Symlink), libc::DT_LNK),
            (Some(FileType::BlockDevice), libc::DT_BLK),
            (Some(FileType::CharDevice), libc::DT_CHR),
            (Some(FileType::Fifo), libc::DT_FIFO),
            (Some(FileType::Socket), libc::DT_SOCK),
        ];
        let name = [b'n'; 255];
        for length in 1..=255 {
            let (kind, dirent_type) = kinds[length % kinds.len()];
            let entry = RawEntry {
                name: &name[..length],
                ino: u64::MAX - 7,
                kind,
                next: i64::MAX as u64,
            };
            // What was in the buffer before does not show.
            let mut buf = [0xAA; 600];
            let mut writer = Writer::new(Slice::new(&mut buf));
            assert!(writer.entry(entry).is_continue());
            let used = writer.finish().unwrap().used;
            assert_eq!(used, (19 + length + 1).div_ceil(8) * 8, "EDGE-1");
            assert_eq!(buf[16..18], (used as u16).to_ne_bytes(), "EDGE-1: d_reclen");
            assert_eq!(buf[18], dirent_type, "EDGE-1: d_type");
            assert_eq!(&buf[19..19 + length], &name[..length], "EDGE-1: d_name");
            assert_eq!(buf[19 + length], 0, "EDGE-1: a C string");
            let read: Vec<_> = Entries::new(&buf[..used]).collect();
            let [read] = &read[..] else {
                panic!("EDGE-1: one entry, not {read:?}");
            };
            assert_eq!(read.name, entry.name, "EDGE-1");
            assert_eq!((read.ino, read.next), (entry.ino, entry.next), "EDGE-1");
            assert_eq!(read.kind, entry.kind, "EDGE-1");
        }
    }

    /// EDGE-1: bytes that are no records end the iteration, and it comes to an end.
    #[test]
    fn any_bytes_can_be_read() {
        let mut seed = 1_u64;
        for round in 0..20_000 {
            let mut buf = [0; 64];
            for byte in &mut buf {
                seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                *byte = (seed >> 40) as u8;
            }
            // Lengths that may occur.
            buf[16] %= 64;
            buf[17] = 0;
            let entries = Entries::new(&buf[..round % 65]);
            assert!(entries.count() <= 64);
        }
    }
}
