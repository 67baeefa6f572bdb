//! The entries of one block of a directory.
//!
//! A block is filled from its first byte to its last with records, each as long as its
//! `rec_len` says: 4 bytes of inode number (0: unused), `rec_len`, `name_len`,
//! `file_type`, and the name. Nothing in it points anywhere else, so a walk over it
//! ends: every record that is accepted is 12 bytes long at least and ends within the
//! block. With metadata_csum the last record is unused and holds the checksum.
//!
//! What an index block looks like is made so that it reads as records here too: one
//! unused record as long as the block.

use rcuwalk::FileType;

use crate::bytes::{u16_at, u32_at};
use crate::checksum::crc32c;
use crate::error::{Error, Place, Result};

/// The least a record can take: its header and a name of one to four bytes.
const MIN_RECORD: usize = 12;

/// Before the name.
const HEADER: usize = 8;

/// The record with the checksum, at the end of a block.
#[doc(alias = "ext4_dir_entry_tail")]
const TAIL: usize = 12;

/// What a directory's records look like, in one file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// Above this, an inode number is no number.
    pub(crate) inodes_count: u32,
    /// The filetype feature: records say what a name stands for.
    pub(crate) filetype: bool,
    /// Blocks of 64 KiB, whose lengths do not fit 16 bits as they are.
    pub(crate) large_blocks: bool,
}

/// A name, and the inode it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Never 0.
    pub(crate) ino: u32,
    pub(crate) name: &'a [u8],
    /// The file's type, if the directory stores it.
    pub(crate) kind: Option<FileType>,
    /// Where its record begins in the block.
    pub(crate) start: usize,
    /// Where the next one does.
    pub(crate) end: usize,
}

impl Entry<'_> {
    /// `.` or `..`.
    #[inline]
    pub(crate) fn is_dot(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// The used records of a block, in their order on disk; nothing after an error.
#[derive(Clone, Debug)]
pub(crate) struct Entries<'a> {
    bytes: &'a [u8],
    offset: usize,
    format: Format,
    place: Place,
}

impl<'a> Entries<'a> {
    /// Those of `bytes`, which are a whole block, or a part of an inline directory.
    pub(crate) fn of(bytes: &'a [u8], format: Format, place: Place) -> Entries<'a> {
        Entries {
            bytes,
            offset: 0,
            format,
            place,
        }
    }

    /// The inode that `name` stands for. The other names are not looked at further
    /// than their lengths: they go nowhere from here.
    pub(crate) fn find(mut self, name: &[u8]) -> Result<Option<Entry<'a>>> {
        while let Some(entry) = self.next_record()? {
            if entry.name == name {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// The next used record, whatever its name.
    #[inline]
    fn next_record(&mut self) -> Result<Option<Entry<'a>>> {
        while let Some(rest) = self.bytes.get(self.offset..) {
            let Some(header) = rest.first_chunk::<HEADER>() else {
                break;
            };
            // The fields out of one word: this loop is what a scan does most.
            let header = u64::from_le_bytes(*header);
            let ino = header as u32;
            let length = self.record_length((header >> 32) as u16);
            let name_len = usize::from((header >> 48) as u8);
            let Some(name) = rest.get(HEADER..HEADER + name_len) else {
                return Err(self.bad_record());
            };
            let is_bad = !length.is_multiple_of(4)
                || length < (HEADER + name_len).max(MIN_RECORD)
                || length > rest.len()
                || (1..HEADER).contains(&(rest.len() - length))
                || ino > self.format.inodes_count;
            if is_bad {
                return Err(self.bad_record());
            }
            let start = self.offset;
            self.offset += length;
            if ino != 0 {
                let kind = match self.format.filetype {
                    true => KINDS[(header >> 56) as usize & 0xf],
                    false => None,
                };
                return Ok(Some(Entry {
                    ino,
                    name,
                    kind,
                    start,
                    end: self.offset,
                }));
            }
        }
        if self.offset == self.bytes.len() {
            Ok(None)
        } else {
            Err(self.bad_record())
        }
    }

    /// Lengths are multiples of 4, which leaves two bits for what does not fit in 16.
    #[doc(alias = "ext4_rec_len_from_disk")]
    #[inline]
    fn record_length(&self, stored: u16) -> usize {
        let stored = usize::from(stored);
        match stored {
            _ if !self.format.large_blocks => stored,
            0 | 0xffff => 0x1_0000,
            _ => stored & 0xfffc | (stored & 3) << 16,
        }
    }

    /// Why the record at hand cannot be one.
    #[cold]
    fn bad_record(&mut self) -> Error {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let (ino, stored) = (u32_at(rest, 0), u16_at(rest, 4));
        let name_len = rest.get(6).copied().unwrap_or_default();
        let left = rest.len();
        if left >= MIN_RECORD && ino > self.format.inodes_count {
            return self.corrupt("inode", || format!("{ino} is out of bounds"));
        }
        self.corrupt("rec_len", || {
            format!("{stored}, with a name of {name_len} bytes and {left} bytes left")
        })
    }

    /// The error for the record at hand, after which there are none.
    #[cold]
    fn corrupt(&mut self, field: &'static str, why: impl FnOnce() -> String) -> Error {
        let why = format!("{} (record at byte {})", why(), self.offset);
        self.offset = self.bytes.len();
        Error::Corrupt {
            place: self.place,
            field,
            why,
        }
    }

    #[cold]
    fn bad_name(&mut self, entry: &Entry<'_>) -> Error {
        self.offset = entry.start;
        let name = entry.name.escape_ascii();
        self.corrupt("name", || format!("\"{name}\" is no file name"))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Result<Entry<'a>>> {
        match self.next_record() {
            Ok(Some(entry)) if is_no_name(entry.name) => Some(Err(self.bad_name(&entry))),
            Ok(Some(entry)) => Some(Ok(entry)),
            Ok(None) => None,
            Err(err) => Some(Err(err)),
        }
    }
}

/// The types by their numbers; the upper half of the byte is reserved, and the kernel
/// leaves it out too.
const KINDS: [Option<FileType>; 16] = {
    let mut kinds = [None; 16];
    kinds[1] = Some(FileType::Regular);
    kinds[2] = Some(FileType::Directory);
    kinds[3] = Some(FileType::CharDevice);
    kinds[4] = Some(FileType::BlockDevice);
    kinds[5] = Some(FileType::Fifo);
    kinds[6] = Some(FileType::Socket);
    kinds[7] = Some(FileType::Symlink);
    kinds
};

/// Empty, or with a slash or a NUL in it. Eight bytes at a time: listing a directory
/// spends most of its time here.
#[inline]
fn is_no_name(name: &[u8]) -> bool {
    let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) else {
        return name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0));
    };
    has_slash_or_nul(first)
        || has_slash_or_nul(last)
        || name.len() > 16 && name.as_chunks().0.iter().any(has_slash_or_nul)
}

#[inline]
fn has_slash_or_nul(bytes: &[u8; 8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = ONES << 7;
    // True if some byte of `word` is 0: only there does taking 1 away borrow.
    let has_zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGH != 0;
    let word = u64::from_le_bytes(*bytes);
    has_zero(word) || has_zero(word ^ (ONES * b'/' as u64))
}

/// True if the checksum in the last record is that of `block`, for the directory whose
/// checksums begin with `seed`.
#[doc(alias = "ext4_dirblock_csum_verify")]
pub(crate) fn checksum_matches(block: &[u8], seed: u32) -> bool {
    let Some((records, tail)) = block.split_last_chunk::<TAIL>() else {
        return false;
    };
    // A record like any other for those who know of no checksums, with a type that
    // no file has.
    let is_tail = u32_at(tail, 0) == 0 && u16_at(tail, 4) == TAIL as u16 && tail[6..8] == [0, 0xde];
    is_tail && crc32c(seed, records) == u32_at(tail, 8)
}

/// True for what stands before the entries of an index block below the root: one
/// unused record that fills the block.
#[doc(alias = "is_dx_internal_node")]
pub(crate) fn may_be_index(block: &[u8], format: Format) -> bool {
    let header = Entries::of(block, format, Place::Block(0));
    u32_at(block, 0) == 0 && header.record_length(u16_at(block, 4)) == block.len()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const FORMAT: Format = Format {
        inodes_count: 1000,
        filetype: true,
        large_blocks: false,
    };

    const PLACE: Place = Place::BlockOf { ino: 2, block: 77 };

    /// A block of these records; the last one takes what is left.
    pub(crate) fn block_of(size: usize, records: &[(u32, &[u8], u8)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (index, (ino, name, file_type)) in records.iter().enumerate() {
            let length = match index + 1 == records.len() {
                true => size - block.len(),
                false => (HEADER + name.len()).next_multiple_of(4),
            };
            let stored = match length {
                0x1_0000 => 0xffff,
                length => (length & 0xfffc | length >> 16) as u16,
            };
            let end = block.len() + length;
            block.extend_from_slice(&ino.to_le_bytes());
            block.extend_from_slice(&stored.to_le_bytes());
            block.extend_from_slice(&[name.len() as u8, *file_type]);
            block.extend_from_slice(name);
            block.resize(end, 0);
        }
        block
    }

    fn names(block: &[u8], format: Format) -> Vec<String> {
        Entries::of(block, format, PLACE)
            .map(|entry| match entry {
                Ok(entry) => String::from_utf8_lossy(entry.name).into_owned(),
                Err(Error::Corrupt { place, field, .. }) => {
                    assert_eq!(place, PLACE);
                    format!("corrupt {field}")
                }
                Err(err) => panic!("{err:?}"),
            })
            .collect()
    }

    /// DIR-1: every used record comes once, with its place in the block; unused ones do not.
    #[test]
    fn entries_come_in_order_with_their_places() {
        let block = block_of(
            1024,
            &[
                (2, b".", 2),
                (2, b"..", 2),
                (0, b"gone", 1),
                (11, b"a-name-of-more-than-eight", 7),
                (12, b"last", 1),
            ],
        );
        let all: Vec<_> = Entries::of(&block, FORMAT, PLACE)
            .map(Result::unwrap)
            .collect();
        let seen: Vec<_> = all.iter().map(|e| (e.ino, e.name, e.kind)).collect();
        assert_eq!(
            seen,
            [
                (2, &b"."[..], Some(FileType::Directory)),
                (2, b"..", Some(FileType::Directory)),
                (11, b"a-name-of-more-than-eight", Some(FileType::Symlink)),
                (12, b"last", Some(FileType::Regular)),
            ]
        );
        assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert_eq!(all.last().unwrap().end, 1024);
        let found = Entries::of(&block, FORMAT, PLACE).find(b"last").unwrap();
        assert_eq!(found.map(|entry| entry.ino), Some(12));
        let missing = Entries::of(&block, FORMAT, PLACE).find(b"gone").unwrap();
        assert_eq!(missing, None);
    }

    /// Without the filetype feature the byte behind the length says nothing.
    #[test]
    fn a_type_is_only_told_where_the_feature_is() {
        let block = block_of(1024, &[(11, b"a", 2), (12, b"b", 0xde)]);
        let format = Format {
            filetype: false,
            ..FORMAT
        };
        for entry in Entries::of(&block, format, PLACE) {
            assert_eq!(entry.unwrap().kind, None);
        }
        let kinds: Vec<_> = Entries::of(&block, FORMAT, PLACE)
            .map(|entry| entry.unwrap().kind)
            .collect();
        assert_eq!(kinds, [Some(FileType::Directory), None]);
    }

    /// Lengths up to 64 KiB fit where 16 bits do not hold them.
    #[test]
    fn records_of_large_blocks_have_their_whole_length() {
        let format = Format {
            large_blocks: true,
            ..FORMAT
        };
        let block = block_of(0x1_0000, &[(11, b"alone", 1)]);
        assert_eq!(names(&block, format), ["alone"]);
        let mut zero = block.clone();
        zero[4..6].fill(0);
        assert_eq!(names(&zero, format), ["alone"]);
        let block = block_of(0x1_0000, &[(11, b"a", 1), (12, b"b", 1)]);
        assert_eq!(names(&block, format), ["a", "b"]);
    }

    /// A record that cannot be right ends the block, with the block and field named.
    #[test]
    fn what_cannot_be_a_record_is_an_error() {
        let good = block_of(1024, &[(11, b"one", 1), (12, b"two", 1)]);
        let broken = |at: usize, with: &[u8]| {
            let mut block = good.clone();
            block[at..at + with.len()].copy_from_slice(with);
            names(&block, FORMAT)
        };
        assert_eq!(broken(16, &[0, 0]), ["one", "corrupt rec_len"]);
        assert_eq!(broken(16, &[8, 0]), ["one", "corrupt rec_len"]);
        assert_eq!(broken(16, &[13, 0]), ["one", "corrupt rec_len"]);
        assert_eq!(broken(16, &[0xff, 0xff]), ["one", "corrupt rec_len"]);
        assert_eq!(
            broken(16, &(1008_u16).to_le_bytes()),
            ["one", "corrupt rec_len"]
        );
        assert_eq!(broken(4, &[12, 0, 200]), ["corrupt rec_len"]);
        assert_eq!(
            broken(12, &1001_u32.to_le_bytes()),
            ["one", "corrupt inode"]
        );
        assert_eq!(broken(18, &[0]), ["one", "corrupt name"]);
        assert_eq!(broken(20, b"t/o"), ["one", "corrupt name"]);
        assert_eq!(broken(20, b"tw\0"), ["one", "corrupt name"]);
        assert_eq!(names(&good[..1020], FORMAT), ["one", "corrupt rec_len"]);
        assert_eq!(names(&[1, 2, 3], FORMAT), ["corrupt rec_len"]);
    }

    /// A slash or a NUL is seen at every place of names of every length.
    #[test]
    fn bad_bytes_are_seen_wherever_they_are() {
        for length in 1..=255 {
            let mut name = vec![b'.'; length];
            name[length - 1] = 0x80;
            assert!(!is_no_name(&name));
            for at in 0..length {
                for bad in [b'/', 0] {
                    let kept = std::mem::replace(&mut name[at], bad);
                    assert!(is_no_name(&name), "{bad} at {at} of {length}");
                    name[at] = kept;
                }
            }
        }
    }
}
