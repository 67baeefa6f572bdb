//! An open image: every read of metadata and data goes through here.

use crate::cache::{Block, Cache, WindowRef};
use crate::checksum::Checksums;
use crate::error::{Error, Place, Result};
use crate::groups::Groups;
use crate::inode::RawInode;
use crate::map::Mapping;
use crate::overlay::Overlay;
use crate::source::Source;
use crate::super_block::SuperBlock;
use crate::{data, journal, map, xattr};

#[cfg(test)]
mod tests;

/// An open image, with its parsed super block, groups and cache.
pub(crate) struct Volume {
    source: Box<dyn Source>,
    super_block: SuperBlock,
    groups: Groups,
    cache: Cache,
    checksums: Checksums,
    overlay: Overlay,
    present_blocks: u64,
}

/// Remembers the window of the last inode read: the next inode is usually beside it. A caller
/// that goes through many inodes keeps one; it pins one window of the cache.
#[derive(Default)]
pub(crate) struct InodeCursor {
    run: Option<Run>,
}

/// Slots of an inode table that are within one window.
struct Run {
    window: WindowRef,
    first: u32,
    count: u32,
    /// Where the first one is in the window.
    start: usize,
}

impl Volume {
    /// Opens the image, and replays its journal if that has to be.
    pub(crate) fn open(
        source: Box<dyn Source>,
        checksums: Checksums,
        cache_bytes: usize,
    ) -> Result<Volume> {
        let super_block = SuperBlock::find(&*source, checksums)?;
        let cache = empty_cache(&super_block, cache_bytes);
        let present_blocks = present_blocks(&*source, &super_block);
        let mut volume = Volume {
            present_blocks,
            source,
            super_block,
            groups: Groups::default(),
            cache,
            checksums,
            overlay: Overlay::default(),
        };
        volume.groups = Groups::read(&volume);
        if volume.super_block.may_need_recovery() {
            let overlay = journal::recover(&volume)?;
            if !overlay.is_empty() {
                return volume.with_overlay(overlay, cache_bytes);
            }
        }
        Ok(volume)
    }

    /// The same image, as it reads with `overlay`.
    fn with_overlay(self, overlay: Overlay, cache_bytes: usize) -> Result<Volume> {
        let super_block = self.super_block.newer(&overlay, self.checksums)?;
        let mut volume = Volume {
            // Windows that are cached show what was there before.
            cache: empty_cache(&super_block, cache_bytes),
            super_block,
            groups: Groups::default(),
            overlay,
            ..self
        };
        volume.groups = Groups::read(&volume);
        Ok(volume)
    }

    #[inline]
    pub(crate) fn super_block(&self) -> &SuperBlock {
        &self.super_block
    }

    /// The size of the file system in blocks when the image was opened. No structure can have
    /// more blocks than this, so it bounds the work that sizes in the image can cause.
    #[inline]
    pub(crate) fn present_blocks(&self) -> u64 {
        self.present_blocks
    }

    pub(crate) fn source(&self) -> &dyn Source {
        &*self.source
    }

    pub(crate) fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// How much is verified. Ask [`Checksums::wanted`] with a block's number.
    #[inline]
    pub(crate) fn checksums(&self) -> Checksums {
        self.checksums
    }

    /// True if the checksum of the metadata in `block` has to be verified.
    #[inline]
    pub(crate) fn verifies(&self, block: u64) -> bool {
        self.super_block.has_checksums() && self.checksums.wanted(block)
    }

    /// One block of metadata, through the cache.
    #[inline]
    pub(crate) fn block(&self, number: u64) -> Result<Block> {
        if number >= self.super_block.blocks_count() {
            return Err(outside(number, self.super_block.blocks_count()));
        }
        self.cache.block(&*self.source, &self.overlay, number)
    }

    /// Returns the inode `ino`, verified; [`Error::NotFound`] if it does not exist or is not in
    /// use.
    pub(crate) fn inode(&self, ino: u32) -> Result<RawInode> {
        self.inode_near(&mut InodeCursor::default(), ino)
    }

    /// As [`inode`](Self::inode); much faster if it is near the last one that `cursor` was
    /// at.
    #[inline]
    pub(crate) fn inode_near(&self, cursor: &mut InodeCursor, ino: u32) -> Result<RawInode> {
        self.parse_inode(ino, self.slot(cursor, ino)?)
    }

    /// The inode in these bytes of its table, verified.
    #[inline]
    pub(crate) fn parse_inode(&self, ino: u32, slot: &[u8]) -> Result<RawInode> {
        let verify = self.checksums.wanted(ino.into());
        RawInode::parse(&self.super_block, ino, slot, verify)
    }

    /// The bytes of the inode's slot in the table, as they are.
    #[inline]
    pub(crate) fn slot<'c>(&self, cursor: &'c mut InodeCursor, ino: u32) -> Result<&'c [u8]> {
        let known = cursor
            .run
            .as_ref()
            .is_some_and(|run| ino.wrapping_sub(run.first) < run.count);
        if !known {
            cursor.run = Some(self.run_of(ino)?);
        }
        let size = self.super_block.inode_size();
        Ok(cursor.run.as_ref().map_or(&[], |run| {
            let start = run.start + ino.wrapping_sub(run.first) as usize * size;
            run.window.bytes(start..start + size)
        }))
    }

    /// The number of the window that the inode's slot is in, and where it begins in it.
    #[inline]
    pub(crate) fn slot_place(&self, ino: u32) -> Result<(u64, usize)> {
        let (table, index) = self.table_of(ino)?;
        let super_block = &self.super_block;
        let size = super_block.inode_size();
        let per_block = super_block.block_size() / size as u32;
        let (window, place) = self.cache.place(table + u64::from(index / per_block));
        let start = place as usize * super_block.block_size() as usize;
        Ok((window, start + (index % per_block) as usize * size))
    }

    /// Reads a window of the image into `bytes`, past the cache. Returns false unless all of it
    /// could be read.
    pub(crate) fn read_window(&self, number: u64, bytes: &mut Vec<u8>) -> bool {
        let (source, overlay) = (&*self.source, &self.overlay);
        self.cache.read_past(source, overlay, number, bytes)
    }

    /// The first block of the inode table of this inode's group, and its index in the table.
    #[inline]
    fn table_of(&self, ino: u32) -> Result<(u64, u32)> {
        let super_block = &self.super_block;
        if ino == 0 || ino > super_block.inodes_count() {
            return Err(Error::NotFound);
        }
        let per_group = super_block.inodes_per_group();
        let table = self.groups.inode_table(self, (ino - 1) / per_group)?;
        Ok((table, (ino - 1) % per_group))
    }

    /// Parses this inode's slot in its window.
    fn run_of(&self, ino: u32) -> Result<Run> {
        let (table, index) = self.table_of(ino)?;
        let super_block = &self.super_block;
        let per_group = super_block.inodes_per_group();
        let per_block = super_block.block_size() / super_block.inode_size() as u32;
        let (block, within) = (index / per_block, index % per_block);
        let number = table + u64::from(block);
        let (window, place) = self.cache.window(&*self.source, &self.overlay, number)?;
        let block_start = place as usize * super_block.block_size() as usize;
        if !window.is_whole() {
            return Ok(Run {
                first: ino - within,
                count: per_block.min(per_group - (index - within)),
                start: block_start,
                window,
            });
        }
        // As many blocks before and after this one as are both in the window and the table.
        let before = block.min(place as u32);
        let first = (block - before) * per_block;
        let blocks = before + (self.cache.blocks_per_window() - place) as u32;
        Ok(Run {
            first: ino - index + first,
            count: blocks.saturating_mul(per_block).min(per_group - first),
            start: block_start - (before * super_block.block_size()) as usize,
            window,
        })
    }

    /// Where the block `logical` of an inode's contents is.
    #[inline]
    pub(crate) fn map(&self, inode: &RawInode, logical: u64) -> Result<Mapping> {
        map::map(self, inode, logical)
    }

    /// Reads an inode's contents from `offset`; 0 at the end.
    pub(crate) fn read_data(&self, inode: &RawInode, buf: &mut [u8], offset: u64) -> Result<usize> {
        data::read(self, inode, buf, offset)
    }

    /// The value of one extended attribute, as it is stored.
    pub(crate) fn inode_xattr(
        &self,
        inode: &RawInode,
        index: u8,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        xattr::find(self, inode, index, name)
    }
}

fn empty_cache(super_block: &SuperBlock, bytes: usize) -> Cache {
    let block_size = super_block.block_size() as usize;
    Cache::new(block_size, super_block.blocks_count(), bytes)
}
fn present_blocks(source: &dyn Source, super_block: &SuperBlock) -> u64 {
    let claimed = super_block.blocks_count();
    source.len().map_or(claimed, |length| {
        claimed.min(length / u64::from(super_block.block_size()))
    })
}

#[cold]
fn outside(number: u64, blocks_count: u64) -> Error {
    Error::Corrupt {
        place: Place::Block(number),
        field: "block number",
        why: format!("the file system has {blocks_count} blocks"),
    }
}
