//! Reading the contents of a file: through its map, or out of the inode.
//!
//! Contents go straight from the image into the reader's buffer. What the journal has
//! newer (with `data=journal`, contents too) is put over that.

use crate::cache::{copy_block, read_some};
use crate::error::Result;
use crate::inode::{InodeFlags, RawInode};
use crate::map::Mapping;
use crate::volume::Volume;
use crate::xattr;

/// Reads from `offset` into `buf`: less than all of it only at the end, or where what
/// follows cannot be read; then going on from there says why.
pub(crate) fn read(
    volume: &Volume,
    inode: &RawInode,
    buf: &mut [u8],
    offset: u64,
) -> Result<usize> {
    inode.check_readable()?;
    let left = inode.size.saturating_sub(offset);
    let length = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
    let buf = &mut buf[..length];
    if buf.is_empty() {
        return Ok(0);
    }
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        return read_inline(volume, inode, buf, offset);
    }
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match read_run(volume, inode, rest, offset + done as u64) {
            Ok(read) => done += read,
            Err(err) if done == 0 => return Err(err),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Reads as much as lies in one run of blocks, at least a byte.
fn read_run(volume: &Volume, inode: &RawInode, buf: &mut [u8], offset: u64) -> Result<usize> {
    let block_size = u64::from(volume.super_block().block_size());
    let within = offset % block_size;
    let Mapping {
        physical,
        length,
        unwritten,
    } = volume.map(inode, offset / block_size)?;
    let run = u64::from(length) * block_size - within;
    let length = usize::try_from(run).map_or(buf.len(), |run| run.min(buf.len()));
    let buf = &mut buf[..length];
    match physical {
        Some(block) if !unwritten => read_blocks(volume, buf, block, within),
        _ => {
            buf.fill(0);
            Ok(length)
        }
    }
}

/// Reads from `within` the first of consecutive blocks, as they are with the journal.
fn read_blocks(volume: &Volume, buf: &mut [u8], first: u64, within: u64) -> Result<usize> {
    let block_size = u64::from(volume.super_block().block_size());
    // The map has checked that it is in the file system, which is below 2^64 bytes.
    let place = first.saturating_mul(block_size).saturating_add(within);
    let read = read_some(volume.source(), buf, place)?;
    if !volume.overlay().is_empty() {
        put_newer_over(volume, &mut buf[..read], first, within as usize);
    }
    Ok(read)
}

#[cold]
fn put_newer_over(volume: &Volume, buf: &mut [u8], first: u64, within: usize) {
    let block_size = volume.super_block().block_size() as usize;
    let (head, rest) = buf.split_at_mut(buf.len().min(block_size - within));
    if let Some(newer) = volume.overlay().get(first) {
        copy_block(head, newer.get(within..).unwrap_or_default());
    }
    for (bytes, block) in rest.chunks_mut(block_size).zip(first + 1..) {
        if let Some(newer) = volume.overlay().get(block) {
            copy_block(bytes, newer);
        }
    }
}

/// Contents stored in the inode: the first part in `i_block`, the rest in an extended
/// attribute.
fn read_inline(volume: &Volume, inode: &RawInode, buf: &mut [u8], offset: u64) -> Result<usize> {
    let more = match inode.size {
        ..=60 => Vec::new(),
        _ => inline_rest(volume, inode)?,
    };
    let held: Vec<u8> = inode.block.iter().chain(&more).copied().collect();
    // A file that has grown by truncate(2), or that mke2fs has copied and that is one
    // hole, reads as zeros where nothing is stored: its size may be any.
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let stored = held.get(from..).unwrap_or_default();
    let stored = &stored[..stored.len().min(buf.len())];
    let (head, rest) = buf.split_at_mut(stored.len());
    head.copy_from_slice(stored);
    rest.fill(0);
    Ok(buf.len())
}

fn inline_rest(volume: &Volume, inode: &RawInode) -> Result<Vec<u8>> {
    Ok(xattr::find(volume, inode, xattr::SYSTEM, b"data")?.unwrap_or_default())
}
