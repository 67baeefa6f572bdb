//! Metadata, read in windows and kept within a budget.
//!
//! A window is an aligned piece of the image: a block or 32 KiB, whichever is larger. The
//! blocks beside the one that was asked for are likely to be read next, such as the rest of an
//! inode table or of a directory. The cache of windows is an [`InodeCache`], which is not tied
//! to inodes: a hit takes no lock, exactly one thread reads a missing window while others wait
//! for it, and windows that are not used again are evicted first.
//!
//! Data of files does not come through here: it would wash the metadata out.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rcuwalk::inode::{Iget, InodeCache, InodeRef, Key, Stale};

use crate::error::{Error, Result};
use crate::overlay::Overlay;
use crate::source::Source;

/// The least that is read at once.
const WINDOW: usize = 32 << 10;

/// The cache of one image's metadata.
pub(crate) struct Cache {
    windows: InodeCache<WindowKey, Window>,
    block_size: usize,
    /// Blocks of the file system: there may be nothing behind them.
    blocks_count: u64,
    /// Blocks in a window, as a power of two.
    log_blocks: u32,
}

/// The number of a window, counted from the start of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowKey(u64);

impl Key for WindowKey {
    fn hash(&self) -> u64 {
        self.0
    }
}

/// A piece of the image.
pub(crate) struct Window {
    bytes: Box<[u8]>,
    /// A bit for each block that could not be read.
    missing: u64,
    /// A bit for each block whose checksum has been checked, by [`Verified`].
    verified: [AtomicU64; 3],
}

/// A window that stays cached while this is held.
pub(crate) type WindowRef = InodeRef<WindowKey, Window>;

/// As what a block's checksum has been verified. A block that is claimed by two owners of
/// different kinds is looked at as both.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verified {
    /// The kinds of block that [`Block::is_verified`] tells apart.
    Directory = 0,
    /// A node of an extent tree.
    Extents = 1,
    /// A block of extended attributes.
    Attributes = 2,
}

/// One block of metadata. It stays cached while this is held.
pub(crate) struct Block {
    window: WindowRef,
    /// Where in the window.
    start: u32,
    length: u32,
    /// The block's bit in the window.
    bit: u8,
}

impl Cache {
    /// Returns an empty cache for an image of `blocks_count` blocks. `block_size` is a power of
    /// two. Unused windows take at most `bytes`.
    pub(crate) fn new(block_size: usize, blocks_count: u64, bytes: usize) -> Cache {
        let window = block_size.max(WINDOW);
        // A cache that cannot hold what one operation needs would read everything twice.
        let bytes = bytes.max(16 * window);
        Cache {
            windows: InodeCache::<WindowKey, Window>::builder()
                .inodes(bytes / window + 1)
                .bytes(bytes)
                .weight(|window| window.get().map_or(0, |window| window.bytes.len()))
                .build(),
            block_size,
            blocks_count,
            log_blocks: (window / block_size).ilog2(),
        }
    }

    /// The window that `block` is in, and the block's place in it.
    #[inline]
    pub(crate) fn window(
        &self,
        source: &dyn Source,
        overlay: &Overlay,
        block: u64,
    ) -> Result<(WindowRef, u64)> {
        let (number, place) = self.place(block);
        let window = match self.windows.iget(WindowKey(number)) {
            Ok(Iget::Cached(window)) => window,
            Ok(Iget::New(new)) => {
                let window = new.init(self.read_window(source, overlay, number));
                if window.missing != 0 {
                    // Perhaps it can be read next time.
                    window.dont_cache();
                }
                window
            }
            Err(Stale) => unreachable_stale(block)?,
        };
        if window.missing & 1 << place != 0 {
            return Err(why_missing(source, block, self.block_size));
        }
        Ok((window, place))
    }

    /// The number of the window that `block` is in, and the block's place in it.
    #[inline]
    pub(crate) fn place(&self, block: u64) -> (u64, u64) {
        let place = block & (self.blocks_per_window() - 1);
        (block >> self.log_blocks, place)
    }

    /// One block.
    #[inline]
    pub(crate) fn block(
        &self,
        source: &dyn Source,
        overlay: &Overlay,
        block: u64,
    ) -> Result<Block> {
        let (window, place) = self.window(source, overlay, block)?;
        Ok(Block {
            window,
            start: place as u32 * self.block_size as u32,
            length: self.block_size as u32,
            bit: place as u8,
        })
    }

    /// Blocks in a window.
    #[inline]
    pub(crate) fn blocks_per_window(&self) -> u64 {
        1 << self.log_blocks
    }

    #[cold]
    fn read_window(&self, source: &dyn Source, overlay: &Overlay, number: u64) -> Window {
        let mut bytes = vec![0; self.block_size << self.log_blocks].into_boxed_slice();
        let missing = self.read_into(source, overlay, number, &mut bytes);
        Window {
            bytes,
            missing,
            verified: Default::default(),
        }
    }

    /// Reads a window past the cache, and returns false unless all of it could be read.
    pub(crate) fn read_past(
        &self,
        source: &dyn Source,
        overlay: &Overlay,
        number: u64,
        bytes: &mut Vec<u8>,
    ) -> bool {
        bytes.resize(self.block_size << self.log_blocks, 0);
        self.read_into(source, overlay, number, bytes) == 0
    }

    /// Returns a bit for each block that could not be read.
    fn read_into(
        &self,
        source: &dyn Source,
        overlay: &Overlay,
        number: u64,
        bytes: &mut [u8],
    ) -> u64 {
        let first = number << self.log_blocks;
        let got = first
            .checked_mul(self.block_size as u64)
            .and_then(|offset| read_full(source, bytes, offset).ok())
            .unwrap_or(0);
        let mut missing = 0;
        let blocks = bytes.chunks_exact_mut(self.block_size);
        for (place, (bytes, block)) in blocks.zip(first..self.blocks_count).enumerate() {
            if let Some(newer) = overlay.get(block) {
                copy_block(bytes, newer);
            } else if (place + 1) * self.block_size > got && !read_block(source, bytes, block) {
                // The neighbours of a bad sector, or of the image's end, are as good as
                // ever.
                missing |= 1 << place;
            }
        }
        missing
    }
}

impl Window {
    /// The bytes in `range`; none if that is not in the window.
    #[inline]
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// True if all of it could be read.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.missing == 0
    }
}

impl Block {
    /// True if this block's checksum has been verified since it was read.
    #[inline]
    pub(crate) fn is_verified(&self) -> bool {
        self.is_verified_as(Verified::Directory)
    }

    /// Remembers that the block's checksum is right, for as long as it is cached.
    #[inline]
    pub(crate) fn set_verified(&self) {
        self.set_verified_as(Verified::Directory);
    }

    #[inline]
    pub(crate) fn is_verified_as(&self, kind: Verified) -> bool {
        // Relaxed: the bytes do not change, and were there before anybody got the window.
        self.window.verified[kind as usize].load(Relaxed) & 1 << self.bit != 0
    }

    #[inline]
    pub(crate) fn set_verified_as(&self, kind: Verified) {
        self.window.verified[kind as usize].fetch_or(1 << self.bit, Relaxed);
    }
}

impl Deref for Block {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let start = self.start as usize;
        self.window.bytes(start..start + self.length as usize)
    }
}

/// Reads until `buf` is full or the source ends, and returns the number of bytes read. Bytes
/// read before an error count; the next read returns the error.
pub(crate) fn read_full(
    source: &dyn Source,
    buf: &mut [u8],
    offset: u64,
) -> std::io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let Some(at) = offset.checked_add(done as u64) else {
            break;
        };
        match source.read_at(rest, at) {
            Ok(0) => break,
            // A source that claims to have read more than it was asked for is not trusted.
            Ok(got) => done += got.min(rest.len()),
            Err(err) if err.kind() == std::io::ErrorKind::Interrupted => {}
            Err(err) if done == 0 => return Err(err),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Reads all of `buf`, or says why not.
pub(crate) fn read_exact(source: &dyn Source, buf: &mut [u8], offset: u64) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        done += read_some(source, rest, offset.saturating_add(done as u64))?;
    }
    Ok(())
}

/// Reads as much of `buf` as there is, at least a byte, or says why not.
pub(crate) fn read_some(source: &dyn Source, buf: &mut [u8], offset: u64) -> Result<usize> {
    match read_full(source, buf, offset) {
        Ok(0) if !buf.is_empty() => Err(Error::Truncated {
            offset,
            wanted: buf.len() as u64,
            end: source.len().unwrap_or(offset).min(offset),
        }),
        Ok(got) => Ok(got),
        Err(source) => Err(Error::Io { offset, source }),
    }
}

/// Puts a block's newer contents in place of the image's.
pub(crate) fn copy_block(bytes: &mut [u8], newer: &[u8]) {
    let length = bytes.len().min(newer.len());
    bytes[..length].copy_from_slice(&newer[..length]);
}

fn read_block(source: &dyn Source, bytes: &mut [u8], block: u64) -> bool {
    block
        .checked_mul(bytes.len() as u64)
        .is_some_and(|offset| read_exact(source, bytes, offset).is_ok())
}

/// Asks again, for the reason.
#[cold]
fn why_missing(source: &dyn Source, block: u64, block_size: usize) -> Error {
    let offset = block.saturating_mul(block_size as u64);
    match read_exact(source, &mut vec![0; block_size], offset) {
        Err(err) => err,
        Ok(()) => Error::Io {
            offset,
            source: std::io::Error::other("it could not be read a moment ago"),
        },
    }
}

/// No caller creates windows ahead of reading them, so no lookup meets one.
#[cold]
fn unreachable_stale(block: u64) -> Result<WindowRef> {
    Err(Error::Io {
        offset: block,
        source: Stale.into(),
    })
}
