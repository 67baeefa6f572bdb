//! Where the structures of a sound image are.
//!
//! This reads what mke2fs has made, and nothing else: it knows the format from the other
//! side than the back end that is tested, and may be simple where that must be careful.

use std::ops::Range;

use super::fields::{self, Field};

/// What a structure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A super block, the primary one or a backup; numbered by its group.
    SuperBlock,
    /// A group's descriptor.
    Group,
    /// An inode that is in use.
    Inode,
    /// The root of an extent tree, in its inode.
    ExtentRoot,
    /// A node of an extent tree, in a block.
    ExtentNode,
    /// A block of block numbers.
    Indirect,
    /// A block of a directory.
    Directory,
    /// The part of an inode that is a directory.
    InlineDirectory,
    /// The root of a directory's index.
    IndexRoot,
    /// A node of it below the root.
    IndexNode,
    /// The attributes in an inode.
    InodeAttributes,
    /// A block of attributes.
    AttributeBlock,
    /// The journal's super block.
    JournalSuper,
    /// A block of tags; numbered by its place in the journal, as those that follow.
    JournalDescriptor,
    /// The end of a transaction.
    JournalCommit,
    /// Transactions that replay must skip.
    JournalRevoke,
    /// A block to be replayed.
    JournalData,
    /// Any place of the image.
    Raw,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 18] = [
        Kind::SuperBlock,
        Kind::Group,
        Kind::Inode,
        Kind::ExtentRoot,
        Kind::ExtentNode,
        Kind::Indirect,
        Kind::Directory,
        Kind::InlineDirectory,
        Kind::IndexRoot,
        Kind::IndexNode,
        Kind::InodeAttributes,
        Kind::AttributeBlock,
        Kind::JournalSuper,
        Kind::JournalDescriptor,
        Kind::JournalCommit,
        Kind::JournalRevoke,
        Kind::JournalData,
        Kind::Raw,
    ];

    /// True for the journal's own blocks, which are big-endian.
    pub(crate) fn is_big_endian(self) -> bool {
        use Kind::*;
        matches!(
            self,
            JournalSuper | JournalDescriptor | JournalCommit | JournalRevoke
        )
    }
}

/// A structure: its kind and its offset.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) kind: Kind,
    /// Its group, inode, or block of the journal.
    pub(crate) number: u32,
    /// Which one of those that the inode has.
    pub(crate) nth: u32,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) fields: Vec<Field>,
}

/// The structures of an image.
#[derive(Debug)]
pub struct Layout {
    pub(crate) block_size: usize,
    pub(crate) spots: Vec<Spot>,
    /// Numbers that mean something in this image: of blocks, of inodes, sizes.
    pub(crate) numbers: Vec<u64>,
}

impl Layout {
    /// That of a sound image.
    pub(crate) fn of(bytes: &[u8]) -> Layout {
        let mut finder = Finder::new(bytes);
        finder.groups();
        finder.inodes();
        let mut numbers = finder.numbers;
        let blocks = finder
            .spots
            .iter()
            .map(|spot| (spot.at / finder.block_size) as u64);
        numbers.extend(blocks);
        numbers.sort_unstable();
        numbers.dedup();
        Layout {
            block_size: finder.block_size,
            spots: finder.spots,
            numbers,
        }
    }

    pub(crate) fn spots_of(&self, kind: Kind) -> impl Iterator<Item = &Spot> {
        self.spots.iter().filter(move |spot| spot.kind == kind)
    }

    /// The kinds that there are.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> {
        let has = |kind: &Kind| self.spots_of(*kind).next().is_some();
        Kind::ALL.into_iter().filter(has)
    }
}

struct Finder<'b> {
    bytes: &'b [u8],
    sb: &'b [u8],
    block_size: usize,
    inode_size: usize,
    numbers: Vec<u64>,
    spots: Vec<Spot>,
    tables: Vec<usize>,
}

impl<'b> Finder<'b> {
    fn new(bytes: &'b [u8]) -> Self {
        let sb = &bytes[1024..2048];
        let block_size = 1024 << u32_at(sb, 0x18);
        let inode_size = match u32_at(sb, 0x4c) {
            0 => 128,
            _ => u16_at(sb, 0x58).into(),
        };
        let sizes = [0x00, 0x04, 0x20, 0x28].map(|at| u64::from(u32_at(sb, at)));
        let mut numbers = vec![block_size as u64, bytes.len() as u64, inode_size as u64];
        numbers.extend(sizes.iter().flat_map(|size| [size - 1, *size, size + 1]));
        Finder {
            bytes,
            sb,
            block_size,
            inode_size,
            numbers,
            spots: Vec::new(),
            tables: Vec::new(),
        }
    }

    fn sb(&self, at: usize) -> u32 {
        u32_at(self.sb, at)
    }

    fn add(&mut self, kind: Kind, number: u32, nth: usize, range: Range<usize>) {
        let contents = &self.bytes[range.clone()];
        let fields = match kind {
            Kind::SuperBlock if number != 0 => fields::of(kind, &self.bytes[1024..2048]),
            _ => fields::of(kind, contents),
        };
        self.spots.push(Spot {
            kind,
            number,
            nth: nth as u32,
            at: range.start,
            len: range.len(),
            fields,
        });
    }

    fn block(&self, number: u64) -> Range<usize> {
        let start = number as usize * self.block_size;
        start..start + self.block_size
    }

    fn groups(&mut self) {
        let first_data = self.sb(0x14) as usize;
        let blocks = self.sb(0x04) as usize;
        let per_group = self.sb(0x20) as usize;
        let wide = self.sb(0x60) & 0x80 != 0;
        let meta_bg = self.sb(0x60) & 0x10 != 0;
        let size = match wide {
            true => u16_at(self.sb, 0xfe).into(),
            false => 32,
        };
        let per_block = self.block_size / size;
        let start_of = |group: usize| group * per_group + first_data;
        let (bytes, block_size) = (self.bytes, self.block_size);
        let has_super = |start: usize| {
            let at = start * block_size;
            bytes.get(at + 0x38..at + 0x3a) == Some(&[0x53, 0xef])
        };
        let count = (blocks - first_data).div_ceil(per_group);
        self.add(Kind::SuperBlock, 0, 0, 1024..2048);
        for group in 1..count {
            if has_super(start_of(group)) {
                let at = start_of(group) * self.block_size;
                self.add(Kind::SuperBlock, group as u32, 0, at..at + 1024);
            }
        }
        for group in 0..count {
            let index = group / per_block;
            let block = match meta_bg {
                false => 1024 / self.block_size + 1 + index,
                true => {
                    let start = start_of(index * per_block);
                    let behind = index == 0 || has_super(start);
                    start + usize::from(behind)
                }
            };
            let at = block * self.block_size + group % per_block * size;
            self.tables.push(u32_at(self.bytes, at + 8) as usize);
            self.add(Kind::Group, group as u32, 0, at..at + size);
        }
    }

    fn inodes(&mut self) {
        let per_group = self.sb(0x28);
        for ino in 1..=self.sb(0x00) {
            let (group, index) = ((ino - 1) / per_group, (ino - 1) % per_group);
            let table = self.tables[group as usize] * self.block_size;
            let at = table + index as usize * self.inode_size;
            let slot = &self.bytes[at..at + self.inode_size];
            if u16_at(slot, 0) != 0 && u16_at(slot, 0x1a) != 0 {
                self.numbers.push(ino.into());
                self.add(Kind::Inode, ino, 0, at..at + self.inode_size);
                self.inode(ino, at);
            }
        }
    }

    fn inode(&mut self, ino: u32, at: usize) {
        let slot = &self.bytes[at..at + self.inode_size];
        let (kind, size) = (u16_at(slot, 0) & 0xf000, u32_at(slot, 4));
        let (flags, acl) = (u32_at(slot, 0x20), u32_at(slot, 0x68));
        let is_dir = kind == 0x4000;
        if acl != 0 {
            let range = self.block(acl.into());
            self.add(Kind::AttributeBlock, ino, 0, range);
        }
        if self.inode_size > 128 {
            let start = 128 + usize::from(u16_at(slot, 0x80));
            if slot.len() > start + 8 && u32_at(slot, start) == 0xea02_0000 {
                let range = at + start..at + self.inode_size;
                self.add(Kind::InodeAttributes, ino, 0, range);
            }
        }
        let mut blocks = Vec::new();
        if flags & 0x1000_0000 != 0 {
            if is_dir {
                self.add(Kind::InlineDirectory, ino, 0, at + 0x2c..at + 0x64);
            }
        } else if flags & 0x8_0000 != 0 {
            self.add(Kind::ExtentRoot, ino, 0, at + 0x28..at + 0x64);
            self.extents(ino, at + 0x28..at + 0x64, &mut 0, &mut blocks);
        } else if matches!(kind, 0x4000 | 0x8000) || kind == 0xa000 && size >= 60 {
            blocks.extend((0..12).map(|index| u64::from(u32_at(slot, 0x28 + 4 * index))));
            let mut nth = 0;
            for level in 0..3 {
                let number = u32_at(slot, 0x28 + 4 * (12 + level));
                self.indirect(ino, number, level, &mut nth, &mut blocks);
            }
        }
        if is_dir {
            self.directory(ino, flags & 0x1000 != 0, &blocks);
        }
        if ino == self.sb(0xe0) {
            self.journal(&blocks);
        }
    }

    fn extents(&mut self, ino: u32, node: Range<usize>, nth: &mut usize, blocks: &mut Vec<u64>) {
        let bytes = &self.bytes[node];
        for entry in bytes[12..].chunks_exact(12).take(u16_at(bytes, 2).into()) {
            if u16_at(bytes, 6) == 0 {
                let (length, start) = (u16_at(entry, 4) & 0x7fff, u32_at(entry, 8));
                blocks.extend((0..u64::from(length)).map(|more| u64::from(start) + more));
                continue;
            }
            let range = self.block(u32_at(entry, 4).into());
            self.add(Kind::ExtentNode, ino, *nth, range.clone());
            *nth += 1;
            self.extents(ino, range, nth, blocks);
        }
    }

    fn indirect(
        &mut self,
        ino: u32,
        number: u32,
        level: usize,
        nth: &mut usize,
        blocks: &mut Vec<u64>,
    ) {
        if number == 0 {
            return;
        }
        let range = self.block(number.into());
        self.add(Kind::Indirect, ino, *nth, range.clone());
        *nth += 1;
        for entry in self.bytes[range].chunks_exact(4) {
            let number = u32_at(entry, 0);
            match level {
                0 => blocks.push(number.into()),
                // The resize inode's blocks lead to blocks that are not its own, and to zeros.
                _ if ino == 7 => {}
                _ => self.indirect(ino, number, level - 1, nth, blocks),
            }
        }
    }

    fn directory(&mut self, ino: u32, has_index: bool, blocks: &[u64]) {
        let used = blocks.iter().enumerate().filter(|(_, block)| **block != 0);
        for (nth, block) in used {
            let range = self.block(*block);
            let bytes = &self.bytes[range.clone()];
            let is_node = u32_at(bytes, 0) == 0 && usize::from(u16_at(bytes, 4)) == bytes.len();
            let kind = match has_index {
                true if nth == 0 => Kind::IndexRoot,
                true if is_node => Kind::IndexNode,
                _ => Kind::Directory,
            };
            self.add(kind, ino, nth, range);
        }
    }

    fn journal(&mut self, blocks: &[u64]) {
        for (index, block) in blocks.iter().enumerate() {
            let range = self.block(*block);
            let bytes = &self.bytes[range.clone()];
            let is_own = be32_at(bytes, 0) == 0xc03b_3998;
            let kind = match be32_at(bytes, 4) {
                _ if index == 0 => Kind::JournalSuper,
                1 if is_own => Kind::JournalDescriptor,
                2 if is_own => Kind::JournalCommit,
                5 if is_own => Kind::JournalRevoke,
                // Few of its blocks have ever been written.
                _ if bytes.iter().any(|byte| *byte != 0) => Kind::JournalData,
                _ => continue,
            };
            self.add(kind, index as u32, 0, range);
        }
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    array(bytes, at).map_or(0, u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_le_bytes)
}

pub(crate) fn be32_at(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_be_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
