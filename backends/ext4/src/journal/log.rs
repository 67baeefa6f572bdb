//! The journal's super block, and the ring of blocks behind it.

use crate::bytes::{be32_at, u16_at, u32_at};
use crate::checksum::crc32c;
use crate::error::{Error, Place, Result};

pub(super) const MAGIC: u32 = 0xc03b_3998;

/// Before what a block of the journal says: magic number, type, sequence number.
pub(super) const HEADER: usize = 12;

/// The checksum in the last bytes of a descriptor and of a revoke block.
const TAIL: usize = 4;

/// Only the first bytes of the super block's block are it.
const SUPER_BLOCK: usize = 1024;

/// How long a log the kernel wants at least, beside an area for fast commits.
const MIN_LOG: u32 = 1024;

/// The type of a block.
pub(super) mod block_type {
    pub(in super::super) const DESCRIPTOR: u32 = 1;
    pub(in super::super) const COMMIT: u32 = 2;
    pub(in super::super) const SUPER_BLOCK_V1: u32 = 3;
    pub(in super::super) const SUPER_BLOCK_V2: u32 = 4;
    pub(in super::super) const REVOKE: u32 = 5;
}

mod incompat {
    pub(super) const REVOKE: u32 = 0x1;
    pub(super) const SIXTY_FOUR_BIT: u32 = 0x2;
    pub(super) const ASYNC_COMMIT: u32 = 0x4;
    pub(super) const CSUM_V2: u32 = 0x8;
    pub(super) const CSUM_V3: u32 = 0x10;
    pub(super) const FAST_COMMIT: u32 = 0x20;
    pub(super) const KNOWN: u32 =
        REVOKE | SIXTY_FOUR_BIT | ASYNC_COMMIT | CSUM_V2 | CSUM_V3 | FAST_COMMIT;
}

/// The feature of the first kind of checksums, among the compatible ones.
const CHECKSUM: u32 = 0x1;

/// Reads a block of the journal, counted from its start.
pub(super) trait ReadLog {
    fn read(&self, block: u32, buf: &mut [u8]) -> Result<()>;
}

/// A journal that has been opened.
pub(super) struct Log<'r> {
    reader: &'r dyn ReadLog,
    pub(super) block_size: usize,
    pub(super) format: Format,
    /// The ring: from here …
    first: u32,
    /// … to before here.
    last: u32,
    /// Where the oldest transaction begins, 0 if there is none.
    pub(super) start: u32,
    /// Its number.
    pub(super) sequence: u32,
    /// The first block of the area for fast commits, if there is one.
    pub(super) fast_commits: Option<u32>,
}

/// How the blocks of this journal are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    pub(super) checksums: JournalChecksums,
    pub(super) sixty_four_bit: bool,
    /// Commit blocks may get to the disk before what they commit.
    pub(super) async_commit: bool,
}

/// Which blocks carry checksums, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalChecksums {
    None,
    /// One over each transaction, in its commit block.
    V1,
    /// One for each block, with this seed; half of it in the tag.
    V2(u32),
    /// As V2, with all of it in the tag.
    V3(u32),
}

impl JournalChecksums {
    /// The seed for structures that have a checksum of their own.
    pub(super) fn seed(self) -> Option<u32> {
        match self {
            JournalChecksums::V2(seed) | JournalChecksums::V3(seed) => Some(seed),
            _ => None,
        }
    }
}

/// What a block says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) block_type: u32,
    pub(super) sequence: u32,
}

impl Header {
    /// `None` if the block is not one of the log's own.
    pub(super) fn of(block: &[u8]) -> Option<Header> {
        (be32_at(block, 0) == MAGIC).then(|| Header {
            block_type: be32_at(block, 4),
            sequence: be32_at(block, 8),
        })
    }
}

impl<'r> Log<'r> {
    /// Reads and checks the super block of a journal that has room for `blocks`.
    #[doc(alias = "journal_get_superblock")]
    pub(super) fn open(reader: &'r dyn ReadLog, block_size: usize, blocks: u32) -> Result<Self> {
        let mut block = vec![0; block_size];
        reader.read(0, &mut block)?;
        let sb = block.get(..SUPER_BLOCK).unwrap_or(&block);
        let version = match Header::of(sb).map(|header| header.block_type) {
            Some(block_type::SUPER_BLOCK_V1) => 1,
            Some(block_type::SUPER_BLOCK_V2) => 2,
            Some(other) => return Err(corrupt("h_blocktype", format!("{other}"))),
            None => return Err(corrupt("h_magic", format!("{:#x}", be32_at(sb, 0)))),
        };
        if be32_at(sb, 0xc) as usize != block_size {
            let why = format!("{}, not {block_size}", be32_at(sb, 0xc));
            return Err(corrupt("s_blocksize", why));
        }
        let format = format(sb, version)?;
        let (length, first) = (be32_at(sb, 0x10), be32_at(sb, 0x14));
        if length > blocks {
            let why = format!("{length} blocks in a file of {blocks}");
            return Err(corrupt("s_maxlen", why));
        }
        let (last, fast_commits) = match version == 2 && has(sb, incompat::FAST_COMMIT) {
            true => split_off_fast_commits(sb, length),
            false => (length, None),
        };
        if first == 0 || first >= last {
            return Err(corrupt("s_first", format!("{first}, of {last}")));
        }
        let start = be32_at(sb, 0x1c);
        if start != 0 && !(first..last).contains(&start) {
            return Err(corrupt("s_start", format!("{start} is not in the log")));
        }
        Ok(Log {
            reader,
            block_size,
            format,
            first,
            last,
            start,
            sequence: be32_at(sb, 0x18),
            fast_commits,
        })
    }

    pub(super) fn read(&self, block: u32, buf: &mut [u8]) -> Result<()> {
        self.reader.read(block, buf)
    }

    /// The block `count` after `block`, in the ring.
    #[doc(alias = "wrap")]
    pub(super) fn after(&self, block: u32, count: u32) -> u32 {
        let place = u64::from(block - self.first) + u64::from(count);
        self.first + (place % u64::from(self.len())) as u32
    }

    /// How many blocks the ring has.
    pub(super) fn len(&self) -> u32 {
        self.last - self.first
    }

    /// How much of a descriptor or revoke block is not its checksum.
    pub(super) fn records<'b>(&self, block: &'b [u8]) -> &'b [u8] {
        match self.format.checksums.seed() {
            Some(_) => &block[..block.len().saturating_sub(TAIL)],
            None => block,
        }
    }

    /// True if a descriptor or revoke block is what was written, or has no checksum.
    #[doc(alias = "jbd2_descriptor_block_csum_verify")]
    pub(super) fn tail_matches(&self, block: &[u8]) -> bool {
        let Some(seed) = self.format.checksums.seed() else {
            return true;
        };
        let records = self.records(block);
        crc32c(crc32c(seed, records), &[0; TAIL]) == be32_at(block, records.len())
    }

    /// True if a fast commit waits for transaction `next`.
    ///
    /// Where its first record says so the kernel applies what follows, or refuses to
    /// mount if that is damaged; in every other case it leaves the area alone.
    #[doc(alias = "ext4_fc_replay_scan")]
    pub(super) fn has_fast_commit(&self, next: u32) -> Result<bool> {
        /// `EXT4_FC_TAG_HEAD`: its length, features, and the transaction's number.
        const HEAD: u16 = 0x9;
        let Some(first) = self.fast_commits else {
            return Ok(false);
        };
        let mut block = vec![0; self.block_size];
        self.read(first, &mut block)?;
        Ok(u16_at(&block, 0) == HEAD && u32_at(&block, 8) == next)
    }
}

fn has(sb: &[u8], incompat: u32) -> bool {
    be32_at(sb, 0x28) & incompat != 0
}

/// What a super block says about the rest; one of the first version says nothing.
fn format(sb: &[u8], version: u32) -> Result<Format> {
    let checksum_v1 = be32_at(sb, 0x24) & CHECKSUM != 0;
    if version == 1 {
        return Ok(Format {
            checksums: JournalChecksums::None,
            sixty_four_bit: false,
            async_commit: false,
        });
    }
    let unknown = be32_at(sb, 0x28) & !incompat::KNOWN | be32_at(sb, 0x2c);
    if unknown != 0 {
        return Err(Error::Unsupported {
            feature: format!("unknown features {unknown:#x} of the journal"),
        });
    }
    let (v2, v3) = (has(sb, incompat::CSUM_V2), has(sb, incompat::CSUM_V3));
    if v2 && v3 || checksum_v1 && (v2 || v3) {
        let why = "several kinds of checksums at the same time".into();
        return Err(corrupt("s_feature_incompat", why));
    }
    let checksums = match (v2, v3) {
        (false, false) if checksum_v1 => JournalChecksums::V1,
        (false, false) => JournalChecksums::None,
        (true, _) => JournalChecksums::V2(verified_seed(sb)?),
        (_, true) => JournalChecksums::V3(verified_seed(sb)?),
    };
    Ok(Format {
        checksums,
        sixty_four_bit: has(sb, incompat::SIXTY_FOUR_BIT),
        async_commit: has(sb, incompat::ASYNC_COMMIT),
    })
}

/// What the checksums begin with, from a super block whose own is right.
fn verified_seed(sb: &[u8]) -> Result<u32> {
    const CRC32C: u8 = 4;
    const TYPE: usize = 0x50;
    const CHECKSUM: usize = 0xfc;
    match sb.get(TYPE) {
        Some(&CRC32C) => {}
        other => return Err(corrupt("s_checksum_type", format!("{other:?}"))),
    }
    let (before, after) = (&sb[..CHECKSUM], &sb[CHECKSUM + 4..]);
    let found = crc32c(crc32c(crc32c(!0, before), &[0; 4]), after);
    if found != be32_at(sb, CHECKSUM) {
        return Err(Error::Checksum {
            place: Place::Journal(0),
            what: "journal super block",
        });
    }
    Ok(crc32c(!0, &sb[0x30..0x40]))
}

/// The end of the log, and the first block of the area for fast commits behind it.
fn split_off_fast_commits(sb: &[u8], length: u32) -> (u32, Option<u32>) {
    const DEFAULT: u32 = 256;
    let area = match be32_at(sb, 0x54) {
        0 => DEFAULT,
        blocks => blocks,
    };
    let last = match length.checked_sub(area) {
        Some(log) if log >= MIN_LOG => log,
        // Too little would be left: the kernel then has a log and no area.
        _ => return (length, None),
    };
    // The block between the two is not used.
    (last, Some(last + 1).filter(|first| *first < length))
}

fn corrupt(field: &'static str, why: String) -> Error {
    Error::Corrupt {
        place: Place::Journal(0),
        field,
        why,
    }
}
