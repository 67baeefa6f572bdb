//! The three passes over the log: find its end, collect what was revoked, replay.
//!
//! A transaction is one or more descriptor blocks, each followed by the blocks it has
//! tags for, revoke blocks, and a commit block. All of the log's own blocks have the
//! transaction's number, so the log ends at the first block that has not the next one.
//! Numbers wrap around and are compared as such; the blocks of a pass are counted, so
//! that a log whose blocks lead in a circle is an error and not an endless loop.

use std::collections::HashMap;

use crate::bytes::be32_at;
use crate::checksum::crc32c;
use crate::error::{Error, Place, Result};
use crate::overlay::Overlay;

use super::descriptor::{Tag, Tags, revoked_blocks};
use super::log::{Header, JournalChecksums, Log, MAGIC, block_type};

/// Replays `log`, for a file system of `blocks_count` blocks.
#[doc(alias = "jbd2_journal_recover")]
pub(super) fn replay(log: &Log<'_>, blocks_count: u64) -> Result<Overlay> {
    if log.start == 0 {
        // Unmounted cleanly, whatever the file system's super block says.
        return Ok(Overlay::default());
    }
    let end = find_end(log)?;
    if log.has_fast_commit(end)? {
        return Err(Error::Unsupported {
            feature: "fast_commit (pending commits)".into(),
        });
    }
    let revoked = collect_revoked(log, end)?;
    let mut overlay = Overlay::of_transactions(end.wrapping_sub(log.sequence));
    let mut walk = Walk::start(log, Some(end));
    while let Some(header) = walk.next()? {
        match header.block_type {
            block_type::DESCRIPTOR => {
                if !log.tail_matches(&walk.block) {
                    return Err(walk.bad_checksum("journal descriptor block"));
                }
                let tags: Vec<Tag> = walk.tags().collect();
                for tag in tags {
                    // The kernel does not read revoked blocks either, so damage in them is
                    // ignored.
                    if revoked.covers(tag.block, walk.sequence) {
                        walk.advance()?;
                    } else {
                        overlay.insert(tag.block, walk.contents(tag, blocks_count)?);
                    }
                }
            }
            block_type::COMMIT => walk.commit(),
            _ => {}
        }
    }
    Ok(overlay)
}

/// The number after that of the last transaction that is complete.
#[doc(alias = "PASS_SCAN")]
fn find_end(log: &Log<'_>) -> Result<u32> {
    let mut walk = Walk::start(log, None);
    let mut bad_block = None;
    let mut bad_commit = None;
    let mut last_commit_time = 0;
    let mut transaction_sum = !0;
    while let Some(header) = walk.next()? {
        match header.block_type {
            block_type::DESCRIPTOR => {
                if !log.tail_matches(&walk.block) {
                    bad_block = Some(walk.bad_checksum("journal descriptor block"));
                }
                let sums = log.format.checksums == JournalChecksums::V1;
                if sums && bad_block.is_none() && bad_commit.is_none() {
                    transaction_sum = walk.sum_up(transaction_sum)?;
                } else {
                    walk.skip_contents()?;
                }
            }
            block_type::REVOKE => {
                if !log.tail_matches(&walk.block) {
                    bad_block = Some(walk.bad_checksum("journal revoke block"));
                }
            }
            block_type::COMMIT => {
                let commit = Commit(&walk.block);
                let is_older = commit.time() < last_commit_time;
                match bad_block.take() {
                    // What the ring held before, from when it was last written around.
                    Some(_) if is_older => break,
                    Some(err) => return Err(err),
                    None => {}
                }
                if log.format.checksums == JournalChecksums::V1 && bad_commit.is_some() {
                    // So the one before was not the last, interrupted while written.
                    return Err(walk.bad_checksum("journal commit block"));
                }
                if commit.matches(log.format.checksums, transaction_sum) {
                    transaction_sum = !0;
                } else if is_older {
                    break;
                } else if log.format.async_commit {
                    // It may have been interrupted. The log ends with the one before it.
                    bad_commit = Some(walk.sequence);
                } else {
                    return Err(walk.bad_checksum("journal commit block"));
                }
                last_commit_time = commit.time();
                walk.commit();
            }
            _ => break,
        }
    }
    Ok(bad_commit.unwrap_or(walk.sequence))
}

/// Which blocks are not to be replayed from which transactions.
#[derive(Default)]
struct Revoked(HashMap<u64, u32>);

impl Revoked {
    /// True if `block` was revoked in transaction `sequence` or in a later one.
    #[doc(alias = "jbd2_journal_test_revoke")]
    fn covers(&self, block: u64, sequence: u32) -> bool {
        match self.0.get(&block) {
            Some(revoked) => !is_after(sequence, *revoked),
            None => false,
        }
    }
}

#[doc(alias = "PASS_REVOKE")]
fn collect_revoked(log: &Log<'_>, end: u32) -> Result<Revoked> {
    let mut revoked = Revoked::default();
    let mut walk = Walk::start(log, Some(end));
    while let Some(header) = walk.next()? {
        match header.block_type {
            block_type::DESCRIPTOR => walk.skip_contents()?,
            block_type::COMMIT => walk.commit(),
            block_type::REVOKE => {
                let Some(blocks) = revoked_blocks(&walk.block, log) else {
                    return Err(walk.corrupt("r_count", "longer than the block".into()));
                };
                for block in blocks {
                    let last = revoked.0.entry(block).or_insert(walk.sequence);
                    if is_after(walk.sequence, *last) {
                        *last = walk.sequence;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(revoked)
}

/// Transaction `a` comes after `b`; numbers wrap around.
#[doc(alias = "tid_gt")]
fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

/// A way through the log, from its oldest block on.
struct Walk<'l> {
    log: &'l Log<'l>,
    /// The block at hand.
    block: Vec<u8>,
    /// Its number.
    at: u32,
    /// The block to be read next.
    next: u32,
    /// How many there may still be.
    left: u32,
    /// The transaction that blocks belong to here.
    sequence: u32,
    /// The transaction to stop before.
    end: Option<u32>,
}

impl<'l> Walk<'l> {
    fn start(log: &'l Log<'l>, end: Option<u32>) -> Walk<'l> {
        Walk {
            log,
            block: vec![0; log.block_size],
            at: log.start,
            next: log.start,
            left: log.len(),
            sequence: log.sequence,
            end,
        }
    }

    /// Reads the next of the log's own blocks; `None` where the log ends.
    fn next(&mut self) -> Result<Option<Header>> {
        if self.end.is_some_and(|end| !is_after(end, self.sequence)) {
            return Ok(None);
        }
        if self.left == 0 {
            return self.is_all();
        }
        self.at = self.advance()?;
        self.log.read(self.at, &mut self.block)?;
        let header = Header::of(&self.block);
        Ok(header.filter(|header| header.sequence == self.sequence))
    }

    /// All blocks of the ring were passed: that ends a log that filled it to the last
    /// block, if the block it began with belongs to another transaction.
    fn is_all(&mut self) -> Result<Option<Header>> {
        if self.sequence == self.log.sequence {
            return Err(self.corrupt("h_sequence", "the log leads in a circle".into()));
        }
        Ok(None)
    }

    /// Goes one block further, and returns where that was.
    fn advance(&mut self) -> Result<u32> {
        let Some(left) = self.left.checked_sub(1) else {
            let why = "more blocks than the log has".into();
            return Err(self.corrupt("h_blocktype", why));
        };
        let at = self.next;
        self.left = left;
        self.next = self.log.after(at, 1);
        Ok(at)
    }

    /// The tags of the descriptor block at hand.
    fn tags(&self) -> Tags<'_> {
        Tags::of(&self.block, self.log)
    }

    /// Passes the blocks that the descriptor block at hand has tags for.
    #[doc(alias = "count_tags")]
    fn skip_contents(&mut self) -> Result<()> {
        for _ in 0..self.tags().count() {
            self.advance()?;
        }
        Ok(())
    }

    /// Goes on with the next transaction.
    fn commit(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// The checksum over a whole transaction, with the descriptor block at hand and
    /// what follows it.
    #[doc(alias = "calc_chksums")]
    fn sum_up(&mut self, sum: u32) -> Result<u32> {
        let mut sum = crc32_be(sum, &self.block);
        let mut contents = vec![0; self.log.block_size];
        for _ in 0..self.tags().count() {
            let at = self.advance()?;
            self.log.read(at, &mut contents)?;
            sum = crc32_be(sum, &contents);
        }
        Ok(sum)
    }

    /// The next block's contents, as they belong into the image.
    fn contents(&mut self, tag: Tag, blocks_count: u64) -> Result<Box<[u8]>> {
        let descriptor = self.at;
        let at = self.advance()?;
        let mut contents = vec![0; self.log.block_size].into_boxed_slice();
        self.log.read(at, &mut contents)?;
        if !self.matches(tag, &contents) {
            return Err(Error::Checksum {
                place: Place::Journal(at),
                what: "block in the journal",
            });
        }
        if tag.block >= blocks_count {
            return Err(Error::Corrupt {
                place: Place::Journal(descriptor),
                field: "t_blocknr",
                why: format!("{} is out of bounds", tag.block),
            });
        }
        if tag.escaped
            && let Some(start) = contents.first_chunk_mut()
        {
            *start = MAGIC.to_be_bytes();
        }
        Ok(contents)
    }

    #[doc(alias = "jbd2_block_tag_csum_verify")]
    fn matches(&self, tag: Tag, contents: &[u8]) -> bool {
        let sum = |seed| crc32c(crc32c(seed, &self.sequence.to_be_bytes()), contents);
        match self.log.format.checksums {
            JournalChecksums::V3(seed) => sum(seed) == tag.checksum,
            JournalChecksums::V2(seed) => sum(seed) & 0xffff == tag.checksum,
            JournalChecksums::None | JournalChecksums::V1 => true,
        }
    }

    fn bad_checksum(&self, what: &'static str) -> Error {
        Error::Checksum {
            place: Place::Journal(self.at),
            what,
        }
    }

    fn corrupt(&self, field: &'static str, why: String) -> Error {
        Error::Corrupt {
            place: Place::Journal(self.at),
            field,
            why,
        }
    }
}

/// A commit block.
struct Commit<'b>(&'b [u8]);

impl Commit<'_> {
    const CHECKSUM: usize = 16;
    /// How much of the block means something.
    const USED: usize = 60;

    /// The second it was written.
    fn time(&self) -> u64 {
        u64::from(be32_at(self.0, 48)) << 32 | u64::from(be32_at(self.0, 52))
    }

    /// True if its checksum is right; `transaction` is the checksum of the transaction it
    /// commits.
    fn matches(&self, checksums: JournalChecksums, transaction: u32) -> bool {
        let said = be32_at(self.0, Self::CHECKSUM);
        match checksums {
            JournalChecksums::None => true,
            JournalChecksums::V1 => {
                let (kind, size) = (self.0.get(12).copied(), self.0.get(13).copied());
                match (kind, size) {
                    (Some(0), Some(0)) if said == 0 => true,
                    // crc32, of four bytes.
                    (Some(1), Some(4)) => said == transaction,
                    _ => false,
                }
            }
            JournalChecksums::V2(seed) | JournalChecksums::V3(seed) => {
                let mut block = self.0.to_vec();
                if let Some(field) = block.get_mut(Self::CHECKSUM..Self::CHECKSUM + 4) {
                    field.fill(0);
                }
                if crc32c(seed, &block) == said {
                    return true;
                }
                // Only its first sector may have got to the disk, over what the block
                // held before; the rest was zeros when it was written.
                if let Some(rest) = block.get_mut(Self::USED..) {
                    rest.fill(0);
                }
                crc32c(seed, &block) == said
            }
        }
    }
}

/// The CRC-32 of the first kind of journal checksums: most significant bit first, not
/// inverted. It is rare enough to be done bit by bit through a table of nibbles.
fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    const fn shifted(nibble: u32) -> u32 {
        let mut crc = nibble << 28;
        let mut bit = 0;
        while bit < 4 {
            crc = if crc >> 31 == 1 {
                crc << 1 ^ 0x04c1_1db7
            } else {
                crc << 1
            };
            bit += 1;
        }
        crc
    }
    const TABLE: [u32; 16] = {
        let mut table = [0; 16];
        let mut nibble = 0;
        while nibble < 16 {
            table[nibble] = shifted(nibble as u32);
            nibble += 1;
        }
        table
    };
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 0xf])
        .fold(seed, |crc, nibble| {
            crc << 4 ^ TABLE[(crc >> 28) as usize ^ usize::from(nibble)]
        })
}
