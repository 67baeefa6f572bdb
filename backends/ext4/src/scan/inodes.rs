//! Where a scan has its inodes from: the table that was read before, or the image.
//!
//! A scan in the order of the names meets most pieces of the inode tables a few times, each for
//! a short while: the inodes of a directory lie near each other, though its names do not come in
//! their order. So each thread reads such pieces into a few buffers of its own, and uses the
//! buffers again. The scan touches no new memory for each inode, the bytes stay in the
//! processor's cache, and threads share nothing.
//!
//! Where inodes are scattered, the buffers alone would read a piece again for each of them. So
//! [`Met`] counts, and a piece that was read a few times goes through the cache of windows, which
//! keeps it.

use std::iter;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use rcuwalk::Attr;

use super::table::Table;
use crate::error::Result;
use crate::inode::RawInode;
use crate::volume::{InodeCursor, Volume};

/// Buffers of each thread, 1 MiB with the usual block size: as much as a processor's own cache.
const BUFFERS: usize = 32;

/// How often a window is read past the cache.
const PAST: u8 = 4;

/// Where one thread of a scan has its inodes from.
pub(super) struct Inodes<'s> {
    volume: &'s Volume,
    table: Option<&'s Table>,
    met: &'s Met,
    buffers: Vec<Buffer>,
    cursor: InodeCursor,
}

/// A window of the image, or nothing yet. Its memory is taken when it is first read.
#[derive(Default)]
struct Buffer {
    window: Option<u64>,
    bytes: Vec<u8>,
}

impl<'s> Inodes<'s> {
    pub(super) fn new(volume: &'s Volume, table: Option<&'s Table>, met: &'s Met) -> Self {
        Inodes {
            volume,
            table,
            met,
            buffers: (0..BUFFERS).map(|_| Buffer::default()).collect(),
            cursor: InodeCursor::default(),
        }
    }

    /// Attributes and generation.
    #[inline]
    pub(super) fn get(&mut self, ino: u32) -> Result<(Attr, u32)> {
        if let Some(known) = self.table.and_then(|table| table.get(ino)) {
            return Ok(known);
        }
        // An inode that is missing from the table is unused or could not be read. Reading it
        // from the image tells which.
        let inode = self.read(ino)?;
        Ok((inode.attr(), inode.generation))
    }

    /// The inode from the image, verified.
    #[inline]
    pub(super) fn read(&mut self, ino: u32) -> Result<RawInode> {
        let volume = self.volume;
        let (window, start) = volume.slot_place(ino)?;
        let buffer = &mut self.buffers[window as usize % BUFFERS];
        if buffer.window != Some(window) && self.met.take_turn(window) {
            buffer.read(volume, window);
        }
        if buffer.window != Some(window) {
            return volume.inode_near(&mut self.cursor, ino);
        }
        let size = volume.super_block().inode_size();
        let slot = buffer.bytes.get(start..start + size);
        volume.parse_inode(ino, slot.unwrap_or_default())
    }
}

impl Buffer {
    /// A window that cannot be read as a whole is left to the cache, which tells why.
    #[cold]
    fn read(&mut self, volume: &Volume, window: u64) {
        let whole = volume.read_window(window, &mut self.bytes);
        self.window = whole.then_some(window);
    }
}

/// How often the threads have read each window past the cache. Windows far from each other may
/// share a count; then the cache keeps them sooner.
pub(super) struct Met(Box<[AtomicU8]>);

impl Met {
    /// Enough for the inode tables of thirty million files.
    const COUNTS: usize = 1 << 18;

    pub(super) fn new() -> Met {
        Met(iter::repeat_with(AtomicU8::default)
            .take(Self::COUNTS)
            .collect())
    }

    /// True if the caller is to read the window past the cache, as the first few are.
    fn take_turn(&self, window: u64) -> bool {
        let count = &self.0[window as usize % Self::COUNTS];
        // Relaxed, and two threads may count as one: it decides only where a thread reads.
        let times = count.load(Relaxed);
        if times < PAST {
            count.store(times + 1, Relaxed);
        }
        times < PAST
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::checksum::Checksums;
    use crate::error::Error;
    use crate::source::Source;
    use crate::testing::Image;

    /// How often each offset was read from.
    type Reads = Arc<Mutex<HashMap<u64, u32>>>;

    /// Counts the reads, and cannot read the block at `bad`.
    struct Counting {
        image: Vec<u8>,
        reads: Reads,
        bad: u64,
    }

    impl Source for Counting {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            *self.reads.lock().unwrap().entry(offset).or_default() += 1;
            if offset < self.bad + 4096 && self.bad < offset + buf.len() as u64 {
                return Err(io::Error::other("a bad block"));
            }
            self.image.read_at(buf, offset)
        }

        fn len(&self) -> io::Result<u64> {
            Source::len(&self.image)
        }
    }

    /// Its inode tables take some two hundred windows, most without an inode in use.
    fn volume(bad: u64) -> Option<(Volume, Reads)> {
        let options = ["-b", "4096", "-I", "256", "-N", "25600"];
        let image = Image::make("16M", &options, |tree| {
            std::fs::write(tree.join("f"), b"").unwrap();
        })?;
        let reads = Reads::default();
        let source = Counting {
            image: image.bytes(),
            reads: Arc::clone(&reads),
            bad,
        };
        let volume = Volume::open(Box::new(source), Checksums::Always, 64 << 20).unwrap();
        reads.lock().unwrap().clear();
        Some((volume, reads))
    }

    /// An inode in each of some windows, of which no two are the same.
    fn one_of_each_window(volume: &Volume) -> Vec<u32> {
        let mut seen = Vec::new();
        (1..=volume.super_block().inodes_count())
            .filter(|ino| {
                let (window, _) = volume.slot_place(*ino).unwrap();
                let new = !seen.contains(&window);
                seen.extend(new.then_some(window));
                new
            })
            .collect()
    }

    fn read_all(inodes: &mut Inodes<'_>, inos: &[u32]) {
        inos.iter().for_each(|ino| expect_read(inodes.read(*ino)));
    }

    fn expect_read(read: Result<RawInode>) {
        let unused = matches!(read, Err(Error::NotFound));
        assert!(read.is_ok() || unused, "{read:?}");
    }

    /// Windows that are near each other are read once past the cache, whatever
    /// the order of the inodes in them.
    #[test]
    fn neighbours_are_read_once_and_past_the_cache() {
        let Some((volume, reads)) = volume(u64::MAX >> 1) else {
            return;
        };
        let met = Met::new();
        let mut inodes = Inodes::new(&volume, None, &met);
        let near = &one_of_each_window(&volume)[..BUFFERS];
        for _ in 0..20 {
            read_all(&mut inodes, near);
        }
        let count = || reads.lock().unwrap().values().sum::<u32>() as usize;
        assert_eq!(count(), BUFFERS);
        // The cache has not kept them.
        near.iter().for_each(|ino| expect_read(volume.inode(*ino)));
        assert_eq!(count(), 2 * BUFFERS);
    }

    /// Windows that take each other's buffer are read a few times, not once per inode.
    #[test]
    fn scattered_inodes_bring_their_windows_into_the_cache() {
        let Some((volume, reads)) = volume(u64::MAX >> 1) else {
            return;
        };
        let met = Met::new();
        let mut inodes = Inodes::new(&volume, None, &met);
        let far = one_of_each_window(&volume);
        assert!(far.len() > 4 * BUFFERS);
        for _ in 0..20 {
            read_all(&mut inodes, &far);
        }
        let most = *reads.lock().unwrap().values().max().unwrap();
        assert_eq!(most, u32::from(PAST) + 1);
    }

    /// A bad block costs its own inodes and not those beside it in the window.
    #[test]
    fn a_bad_block_costs_only_its_own_inodes() {
        let Some((volume, _)) = volume(u64::MAX >> 1) else {
            return;
        };
        // An inode in use, the root, and one in the block after it.
        let (window, start) = volume.slot_place(2).unwrap();
        let beside = 2 + 4096 / 256;
        assert_eq!(volume.slot_place(beside).unwrap(), (window, start + 4096));
        let block = window * (32 << 10) + start as u64 / 4096 * 4096 + 4096;
        let Some((volume, _)) = self::volume(block) else {
            return;
        };
        let met = Met::new();
        let mut inodes = Inodes::new(&volume, None, &met);
        assert!(inodes.read(2).is_ok());
        assert!(matches!(inodes.read(beside), Err(Error::Io { .. })));
        assert!(inodes.read(2).is_ok());
    }
}
