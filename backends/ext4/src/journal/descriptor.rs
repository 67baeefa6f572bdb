//! What the journal's blocks say: which blocks of the image follow ([`Tags`]), and which
//! are no longer to be replayed ([`revoked_blocks`]).

use crate::bytes::{be16_at, be32_at, lo_hi};

use super::log::{Format, HEADER, JournalChecksums, Log};

mod flag {
    pub(super) const ESCAPE: u32 = 1;
    pub(super) const SAME_UUID: u32 = 2;
    pub(super) const LAST_TAG: u32 = 8;
}

/// The bytes of a UUID, behind a tag that does not have the same as the one before it.
const UUID: usize = 16;

/// One block that follows the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// Where in the image it belongs.
    pub(super) block: u64,
    /// Its first bytes were the journal's magic number, and are zeros in the journal.
    pub(super) escaped: bool,
    /// Of its contents; the upper half is missing in some formats.
    pub(super) checksum: u32,
}

/// The tags of a descriptor block, in the order of the blocks that follow it.
pub(super) struct Tags<'b> {
    rest: &'b [u8],
    format: Format,
}

impl<'b> Tags<'b> {
    pub(super) fn of(block: &'b [u8], log: &Log<'_>) -> Tags<'b> {
        Tags {
            rest: log.records(block).get(HEADER..).unwrap_or_default(),
            format: log.format,
        }
    }
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let tag = self.rest.get(..self.format.tag_size())?;
        let v3 = matches!(self.format.checksums, JournalChecksums::V3(_));
        let (flags, high, checksum) = if v3 {
            (be32_at(tag, 4), be32_at(tag, 8), be32_at(tag, 12))
        } else {
            let (checksum, flags) = (be16_at(tag, 4), be16_at(tag, 6));
            (u32::from(flags), be32_at(tag, 8), u32::from(checksum))
        };
        let high = if self.format.sixty_four_bit { high } else { 0 };
        let mut length = tag.len();
        if flags & flag::SAME_UUID == 0 {
            length += UUID;
        }
        self.rest = match flags & flag::LAST_TAG {
            0 => self.rest.get(length..).unwrap_or_default(),
            _ => &[],
        };
        Some(Tag {
            block: lo_hi(be32_at(tag, 0), high),
            escaped: flags & flag::ESCAPE != 0,
            checksum,
        })
    }
}

impl Format {
    /// With the second kind of checksums a tag has two bytes that nothing is in: they
    /// were counted twice when the format was made.
    #[doc(alias = "journal_tag_bytes")]
    fn tag_size(self) -> usize {
        let size = match self.checksums {
            JournalChecksums::V3(_) => return 16,
            JournalChecksums::V2(_) => 10,
            JournalChecksums::None | JournalChecksums::V1 => 8,
        };
        if self.sixty_four_bit { size + 4 } else { size }
    }
}

/// The blocks that a revoke block names, or `None` if it claims to be longer than it is.
#[doc(alias = "scan_revoke_records")]
pub(super) fn revoked_blocks<'b>(
    block: &'b [u8],
    log: &Log<'_>,
) -> Option<impl Iterator<Item = u64> + use<'b>> {
    const COUNT: usize = HEADER + 4;
    let used = be32_at(block, HEADER) as usize;
    let records = log.records(block).get(..used)?;
    let size = if log.format.sixty_four_bit { 8 } else { 4 };
    let records = records.get(COUNT..).unwrap_or_default();
    Some(records.chunks_exact(size).map(move |record| match size {
        8 => lo_hi(be32_at(record, 4), be32_at(record, 0)),
        _ => u64::from(be32_at(record, 0)),
    }))
}
