//! Extent trees: runs of blocks, in the inode itself or in a tree of blocks below it.
//!
//! A node is a header, then entries of the same size, ordered by the first logical block
//! they are for. Going down, each level must be one nearer to the leaves than its parent
//! (so there is an end), and stay within what its parent's entry covers.

use std::ops::Range;

use super::Mapping;
use crate::bytes::{lo_hi, u16_at, u32_at};
use crate::cache::Verified;
use crate::checksum::crc32c;
use crate::error::{Error, Place, Result};
use crate::inode::RawInode;
use crate::volume::Volume;

const MAGIC: u16 = 0xf30a;
/// A header, and an entry.
const SIZE: usize = 12;
/// Enough for 2^32 blocks with the smallest nodes.
const MAX_DEPTH: u16 = 5;
/// Above this, the length is that of an extent that has not been written.
const MAX_LENGTH: u16 = 0x8000;

/// Where block `logical` is.
pub(super) fn map(volume: &Volume, inode: &RawInode, logical: u32) -> Result<Mapping> {
    let wanted = u64::from(logical);
    let root = Node::new(inode, None, &inode.block)?;
    // Behind the last block that a file can have, whatever the tree says.
    let all = 0..1 << 32;
    root.check(volume, &all)?;
    let mut depth = root.depth;
    let mut search = root.search(wanted, all);
    loop {
        match search {
            Search::Found(mapping) => return Ok(mapping),
            Search::Child(number, covers) => {
                let block = volume.block(number)?;
                let node = Node::new(inode, Some(number), &block)?;
                if node.depth + 1 != depth {
                    return Err(node.bad("eh_depth", format!("{} below {depth}", node.depth)));
                }
                if !block.is_verified_as(Verified::Extents) {
                    if volume.verifies(number) {
                        node.verify_checksum(inode.checksum_seed(volume.super_block()))?;
                    }
                    node.check(volume, &covers)?;
                    block.set_verified_as(Verified::Extents);
                }
                depth = node.depth;
                search = node.search(wanted, covers);
            }
        }
    }
}

enum Search {
    Found(Mapping),
    /// To the node in this block, which covers these logical blocks.
    Child(u64, Range<u64>),
}

struct Node<'a> {
    ino: u32,
    /// None: in the inode.
    block: Option<u64>,
    depth: u16,
    entries: &'a [[u8; SIZE]],
    max: usize,
    bytes: &'a [u8],
}

impl<'a> Node<'a> {
    fn new(inode: &RawInode, block: Option<u64>, bytes: &'a [u8]) -> Result<Node<'a>> {
        let (slots, _) = bytes.get(SIZE..).unwrap_or_default().as_chunks();
        let count = usize::from(u16_at(bytes, 2));
        let max = usize::from(u16_at(bytes, 4));
        let node = Node {
            ino: inode.ino,
            block,
            depth: u16_at(bytes, 6),
            entries: slots.get(..count).unwrap_or_default(),
            max,
            bytes,
        };
        if u16_at(bytes, 0) != MAGIC {
            return Err(node.bad("eh_magic", format!("{:#06x}", u16_at(bytes, 0))));
        }
        if max == 0 || max > slots.len() {
            return Err(node.bad("eh_max", format!("{max} where {} fit", slots.len())));
        }
        if count > max {
            return Err(node.bad("eh_entries", format!("{count} of at most {max}")));
        }
        if node.depth > MAX_DEPTH {
            return Err(node.bad("eh_depth", format!("{} is too deep", node.depth)));
        }
        if count == 0 && node.depth > 0 {
            return Err(node.bad("eh_entries", "no way down".into()));
        }
        Ok(node)
    }

    /// Checks everything that the descent relies on: the entries are in order, do not overlap,
    /// and lie within `covers`; their blocks are inside the image.
    fn check(&self, volume: &Volume, covers: &Range<u64>) -> Result<()> {
        let mut free_from = covers.start;
        for entry in self.entries {
            let first = first_of(entry);
            if first < free_from || first >= covers.end {
                let why = format!("{first} outside of {free_from}..{}", covers.end);
                return Err(self.bad("ee_block", why));
            }
            let (start, length) = if self.depth == 0 {
                let extent = Extent::parse(entry);
                free_from = first + extent.length;
                if extent.length == 0 || free_from > covers.end {
                    return Err(self.bad("ee_len", format!("{} from {first}", extent.length)));
                }
                (extent.start, extent.length)
            } else {
                free_from = first + 1;
                (child_of(entry), 1)
            };
            if !volume.super_block().may_own(start, length) {
                let field = if self.depth == 0 {
                    "ee_start"
                } else {
                    "ei_leaf"
                };
                return Err(self.bad(field, format!("{length} blocks from {start}")));
            }
        }
        Ok(())
    }

    /// The tail behind the last entry that fits.
    fn verify_checksum(&self, seed: u32) -> Result<()> {
        let tail = SIZE + self.max * SIZE;
        let sound = self
            .bytes
            .get(..tail)
            .is_some_and(|covered| crc32c(seed, covered) == u32_at(self.bytes, tail));
        if sound && self.bytes.len() >= tail + 4 {
            return Ok(());
        }
        Err(Error::Checksum {
            place: self.place(),
            what: "extent block",
        })
    }

    /// Returns the target of the last entry that begins at or before `wanted`.
    fn search(&self, wanted: u64, covers: Range<u64>) -> Search {
        let after = self
            .entries
            .partition_point(|entry| first_of(entry) <= wanted);
        let next = self.entries.get(after).map_or(covers.end, first_of);
        let entry = after
            .checked_sub(1)
            .and_then(|index| self.entries.get(index));
        let Some(entry) = entry else {
            return Search::Found(Mapping::hole(next.saturating_sub(wanted)));
        };
        let first = first_of(entry);
        if self.depth > 0 {
            return Search::Child(child_of(entry), first..next);
        }
        let extent = Extent::parse(entry);
        let skipped = wanted.saturating_sub(first);
        if skipped >= extent.length {
            return Search::Found(Mapping::hole(next.saturating_sub(wanted)));
        }
        Search::Found(Mapping {
            physical: Some(extent.start + skipped),
            length: (extent.length - skipped) as u32,
            unwritten: extent.unwritten,
        })
    }

    fn place(&self) -> Place {
        match self.block {
            None => Place::Inode(self.ino),
            Some(block) => Place::BlockOf {
                ino: self.ino,
                block,
            },
        }
    }

    #[cold]
    fn bad(&self, field: &'static str, why: String) -> Error {
        Error::Corrupt {
            place: self.place(),
            field,
            why,
        }
    }
}

/// An entry of a leaf.
struct Extent {
    start: u64,
    length: u64,
    unwritten: bool,
}

impl Extent {
    fn parse(entry: &[u8; SIZE]) -> Extent {
        let length = u16_at(entry, 4);
        let unwritten = length > MAX_LENGTH;
        Extent {
            start: lo_hi(u32_at(entry, 8), u16_at(entry, 6).into()),
            length: u64::from(if unwritten {
                length - MAX_LENGTH
            } else {
                length
            }),
            unwritten,
        }
    }
}

/// The first logical block that an entry is for.
fn first_of(entry: &[u8; SIZE]) -> u64 {
    u32_at(entry, 0).into()
}

/// The block that an entry above the leaves leads to.
fn child_of(entry: &[u8; SIZE]) -> u64 {
    lo_hi(u32_at(entry, 4), u16_at(entry, 8).into())
}
