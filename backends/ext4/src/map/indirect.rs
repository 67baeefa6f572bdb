//! The map of ext2 and ext3: twelve blocks in the inode, then blocks of block numbers, one,
//! two and three levels deep. They have no checksums.

use super::Mapping;
use crate::bytes::u32_at;
use crate::error::{Error, Place, Result};
use crate::inode::RawInode;
use crate::volume::Volume;

/// Blocks whose numbers are in the inode.
const DIRECT: u64 = 12;
const LEVELS: u32 = 3;

/// Where block `logical` is.
pub(super) fn map(volume: &Volume, inode: &RawInode, logical: u32) -> Result<Mapping> {
    let logical = u64::from(logical);
    if logical < DIRECT {
        let direct = &inode.block[..DIRECT as usize * 4];
        return run(volume, inode, None, direct, logical as usize);
    }
    let per_block = u64::from(volume.super_block().block_size() / 4);
    // Which of the three trees it is in, and its place there.
    let mut index = logical - DIRECT;
    for level in 0..LEVELS {
        let size = per_block.pow(level + 1);
        if index < size {
            let root = u32_at(&inode.block, (DIRECT as usize + level as usize) * 4);
            return descend(volume, inode, root, size, index);
        }
        index -= size;
    }
    Ok(Mapping::hole(u64::MAX))
}

/// Down the tree at block `number`, which has `size` blocks, to its block `index`.
fn descend(
    volume: &Volume,
    inode: &RawInode,
    mut number: u32,
    mut size: u64,
    mut index: u64,
) -> Result<Mapping> {
    let per_block = u64::from(volume.super_block().block_size() / 4);
    loop {
        if number == 0 {
            return Ok(Mapping::hole(size - index));
        }
        check(volume, inode, None, number, 1)?;
        let block = volume.block(number.into())?;
        if size == per_block {
            return run(volume, inode, Some(number), &block, index as usize);
        }
        size /= per_block;
        number = u32_at(&block, (index / size) as usize * 4);
        index %= size;
    }
}

/// The run that begins at `index` among the numbers that are side by side in `numbers`.
fn run(
    volume: &Volume,
    inode: &RawInode,
    table: Option<u32>,
    numbers: &[u8],
    index: usize,
) -> Result<Mapping> {
    let (numbers, _) = numbers.as_chunks::<4>();
    let mut rest = numbers
        .iter()
        .skip(index)
        .map(|raw| u32::from_le_bytes(*raw));
    let first = rest.next().unwrap_or(0);
    if first == 0 {
        let more = rest.take_while(|number| *number == 0).count();
        return Ok(Mapping::hole(1 + more as u64));
    }
    let more = rest
        .zip(first as u64 + 1..)
        .take_while(|(number, expected)| u64::from(*number) == *expected)
        .count();
    let length = 1 + more as u32;
    check(volume, inode, table, first, length)?;
    Ok(Mapping {
        physical: Some(first.into()),
        length,
        unwritten: false,
    })
}

fn check(
    volume: &Volume,
    inode: &RawInode,
    table: Option<u32>,
    first: u32,
    length: u32,
) -> Result<()> {
    if volume.super_block().may_own(first.into(), length.into()) {
        return Ok(());
    }
    Err(Error::Corrupt {
        place: match table {
            None => Place::Inode(inode.ino),
            Some(block) => Place::BlockOf {
                ino: inode.ino,
                block: block.into(),
            },
        },
        field: "block number",
        why: format!("{length} blocks from {first}"),
    })
}
