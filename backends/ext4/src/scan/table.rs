//! All inodes of an image, read in the order they are on it.
//!
//! All threads read the tables in large pieces, past the cache of windows. Each inode in use is
//! kept in one cache line. **The table only saves time:** unreadable inodes, and the few that
//! do not fit into one, are missing from it. Callers then read the image itself and get the
//! reason.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rcuwalk::{Attr, FileType, InodeFlags, Timestamp};

use crate::cache::{copy_block, read_exact};
use crate::error::Result;
use crate::groups::Groups;
use crate::inode::RawInode;
use crate::volume::Volume;

/// Read at a time, at least a block.
const PIECE: usize = 1 << 20;

/// The inodes by their numbers.
pub(super) struct Table {
    per_group: u32,
    groups: Vec<Box<[PackedInode]>>,
}

/// An inode in a cache line; all zeros where there is none.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct PackedInode {
    size: u64,
    /// Blocks, of which there are less than 2^56, below the flags.
    blocks_and_flags: u64,
    /// Access, modification, change, birth; see [`pack`].
    times: [u64; 4],
    uid: u32,
    gid: u32,
    generation: u32,
    links: u16,
    /// Type and permissions; 0: nothing here.
    mode: u16,
}

impl Table {
    /// Reads all inodes with `threads` threads; stops early once `stop` is set.
    pub(super) fn read(volume: &Volume, threads: usize, stop: &AtomicBool) -> Table {
        let super_block = volume.super_block();
        let count = volume.groups().count();
        let next = AtomicU32::new(0);
        let groups = Mutex::new(Vec::new());
        let work = || {
            let mut piece = Vec::new();
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= count || stop.load(Relaxed) {
                    return;
                }
                let inodes = read_group(volume, number, &mut piece);
                let mut groups = groups.lock().unwrap_or_else(PoisonError::into_inner);
                if groups.len() <= number as usize && !inodes.is_empty() {
                    groups.resize_with(number as usize + 1, Box::default);
                }
                if let Some(place) = groups.get_mut(number as usize) {
                    *place = inodes;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
        Table {
            per_group: super_block.inodes_per_group(),
            groups: groups.into_inner().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Attributes and generation, if the inode is here.
    #[inline]
    pub(super) fn get(&self, ino: u32) -> Option<(Attr, u32)> {
        let index = ino.checked_sub(1)?;
        let group = self.groups.get((index / self.per_group) as usize)?;
        let inode = group.get((index % self.per_group) as usize)?;
        Some((inode.attr(ino)?, inode.generation))
    }
}

/// The inodes of one group, up to the last one in use.
fn read_group(volume: &Volume, number: u32, piece: &mut Vec<u8>) -> Box<[PackedInode]> {
    let super_block = volume.super_block();
    let Ok(group) = Groups::descriptor(volume, number) else {
        return Box::default();
    };
    if group.is_inode_uninit() {
        return Box::default();
    }
    let per_group = super_block.inodes_per_group();
    let used = per_group.saturating_sub(group.unused_inodes);
    let block_size = super_block.block_size() as usize;
    let size = super_block.inode_size();
    let per_piece = (PIECE.max(block_size) / size) as u32;
    let first_ino = u64::from(number) * u64::from(per_group) + 1;

    let mut inodes = Vec::new();
    let mut start = 0;
    while start < used {
        let count = per_piece.min(used - start);
        let block = group.inode_table + (start as usize * size / block_size) as u64;
        piece.resize((count as usize * size).next_multiple_of(block_size), 0);
        if read_blocks(volume, piece, block).is_ok() {
            for (index, slot) in (start..start + count).zip(piece.chunks_exact(size)) {
                let Ok(ino) = u32::try_from(first_ino + u64::from(index)) else {
                    break;
                };
                let verify = volume.checksums().wanted(ino.into());
                let Ok(inode) = RawInode::parse(super_block, ino, slot, verify) else {
                    continue;
                };
                inodes.resize(index as usize, PackedInode::default());
                inodes.push(PackedInode::of(&inode));
            }
        }
        start += count;
    }
    inodes.into()
}

/// Blocks of the image as they read with the journal.
fn read_blocks(volume: &Volume, piece: &mut [u8], first: u64) -> Result<()> {
    let block_size = volume.super_block().block_size() as usize;
    read_exact(volume.source(), piece, first * block_size as u64)?;
    for (block, bytes) in (first..).zip(piece.chunks_exact_mut(block_size)) {
        if let Some(newer) = volume.overlay().get(block) {
            copy_block(bytes, newer);
        }
    }
    Ok(())
}

impl PackedInode {
    /// All zeros for a device: its number has no room here.
    fn of(inode: &RawInode) -> PackedInode {
        let attr = inode.attr();
        if attr.rdev != 0 {
            return PackedInode::default();
        }
        PackedInode {
            size: attr.size,
            blocks_and_flags: attr.blocks | u64::from(attr.flags.bits()) << BLOCK_BITS,
            times: [attr.atime, attr.mtime, attr.ctime, attr.btime].map(pack),
            uid: attr.uid,
            gid: attr.gid,
            generation: inode.generation,
            links: inode.links,
            mode: inode.mode,
        }
    }

    #[inline]
    fn attr(&self, ino: u32) -> Option<Attr> {
        let kind = FileType::from_mode(u32::from(self.mode))?;
        let [atime, mtime, ctime, btime] = self.times.map(unpack);
        let flags = InodeFlags::from_bits_truncate((self.blocks_and_flags >> BLOCK_BITS) as u8);
        let attr = Attr::new(u64::from(ino), kind, self.mode)
            .flags(flags)
            .nlink(u32::from(self.links))
            .uid(self.uid)
            .gid(self.gid)
            .size(self.size)
            .blocks(self.blocks_and_flags & ((1 << BLOCK_BITS) - 1))
            .atime(atime)
            .mtime(mtime)
            .ctime(ctime)
            .btime(btime);
        Some(attr)
    }
}

/// 48 bits, times at most 128.
const BLOCK_BITS: u32 = 56;

/// Seconds from the earliest that the format knows, in 34 bits, above nanoseconds in 30.
fn pack(time: Timestamp) -> u64 {
    ((time.sec - EARLIEST) as u64) << 30 | u64::from(time.nsec)
}

fn unpack(packed: u64) -> Timestamp {
    Timestamp {
        sec: (packed >> 30) as i64 + EARLIEST,
        nsec: packed as u32 & ((1 << 30) - 1),
    }
}

const EARLIEST: i64 = i32::MIN as i64;

#[cfg(test)]
mod tests {
    use super::*;

    /// EDGE-1: no time that the format knows changes on its way through the table.
    #[test]
    fn times_come_back_as_they_were() {
        let latest = EARLIEST + (1 << 34) - 1;
        for sec in [EARLIEST, -1, 0, 1, i64::from(i32::MAX) + 1, latest] {
            for nsec in [0, 1, 999_999_999] {
                let time = Timestamp { sec, nsec };
                assert_eq!(unpack(pack(time)), time);
            }
        }
        assert_eq!(size_of::<PackedInode>(), 64);
    }
}
