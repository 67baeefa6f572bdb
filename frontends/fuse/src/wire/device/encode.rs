//! An answer, in a buffer that is used again for the next: from values to bytes.

use std::time::Duration;

use rcuwalk::inode::NodeId;
use rcuwalk::{Attr, FileType, StatFs, Timestamp};

use super::abi;
use crate::listing::Listed;

/// Longer answers give their room back.
const KEPT: usize = 2 << 20;

/// An answer in the making.
#[derive(Default)]
pub(super) struct Out {
    /// Room that was cleared once, and then holds what earlier answers held.
    space: Vec<u8>,
    /// Where the answer ends so far.
    used: usize,
}

impl Out {
    /// Begins an answer: with room for its header, to be filled in when all is known.
    pub(super) fn begin(&mut self) {
        if self.space.len() > KEPT {
            self.space = Vec::new();
        }
        self.used = 0;
        self.extend(&[0; abi::OUT_HEADER]);
    }

    /// The whole answer.
    pub(super) fn finish(&mut self, unique: u64, errno: i32) -> &[u8] {
        // Room for 4 GiB is never made.
        let len = self.used as u32;
        self.space[..4].copy_from_slice(&len.to_ne_bytes());
        self.space[4..8].copy_from_slice(&(-errno).to_ne_bytes());
        self.space[8..16].copy_from_slice(&unique.to_ne_bytes());
        &self.space[..self.used]
    }

    /// What follows the header.
    pub(super) fn body(&self) -> &[u8] {
        self.space
            .get(abi::OUT_HEADER..self.used)
            .unwrap_or_default()
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        self.have(end);
        self.space[self.used..end].copy_from_slice(bytes);
        self.used = end;
    }

    /// Has so much filled in by `fill`, which says how much it was.
    pub(super) fn fill<E>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let start = self.used;
        self.have(start + most);
        let filled = fill(&mut self.space[start..start + most])?;
        self.used += filled.min(most);
        Ok(())
    }

    fn have(&mut self, end: usize) {
        if self.space.len() < end {
            self.space.resize(end.next_multiple_of(4096), 0);
        }
    }

    pub(super) fn u16(&mut self, number: u16) {
        self.put(number.to_ne_bytes());
    }

    #[inline]
    pub(super) fn u32(&mut self, number: u32) {
        self.put(number.to_ne_bytes());
    }

    #[inline]
    pub(super) fn u64(&mut self, number: u64) {
        self.put(number.to_ne_bytes());
    }

    /// A few bytes: most of what is sent are numbers.
    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(room) = self.space.get_mut(self.used..self.used + N) {
            room.copy_from_slice(&bytes);
            self.used += N;
        } else {
            self.extend(&bytes);
        }
    }

    /// How long something is believed: `struct fuse_attr_out` up to the attributes.
    pub(super) fn attr(&mut self, attr: &Attr, ttl: Duration) {
        self.u64(ttl.as_secs());
        self.u32(ttl.subsec_nanos());
        self.u32(0);
        self.fuse_attr(attr);
    }

    /// `struct fuse_attr`.
    fn fuse_attr(&mut self, attr: &Attr) {
        let times = [attr.atime, attr.mtime, attr.ctime];
        for number in [attr.ino, attr.size, attr.blocks] {
            self.u64(number);
        }
        for time in times {
            self.u64(time.sec.cast_unsigned());
        }
        for time in times {
            self.u32(time.nsec);
        }
        // The lower half of `rdev` is what the kernel has, for numbers that it knows.
        let rdev = attr.rdev as u32;
        for number in [attr.st_mode(), attr.nlink, attr.uid, attr.gid, rdev] {
            self.u32(number);
        }
        self.u32(BLOCK_SIZE);
        self.u32(0);
    }

    /// `struct fuse_statx_out`.
    pub(super) fn statx(&mut self, attr: &Attr, ttl: Duration) {
        self.u64(ttl.as_secs());
        self.u32(ttl.subsec_nanos());
        self.extend(&[0; 20]);
        let has_birth = attr.btime != Timestamp::default();
        let birth = if has_birth { abi::STATX_BTIME } else { 0 };
        self.u32(abi::STATX_BASIC | birth);
        self.u32(BLOCK_SIZE);
        // Immutable and append-only, which the kernel does not pass on.
        self.u64(0);
        for number in [attr.nlink, attr.uid, attr.gid] {
            self.u32(number);
        }
        // The upper half of this has no bits.
        self.u16(attr.st_mode() as u16);
        self.u16(0);
        for number in [attr.ino, attr.size, attr.blocks, 0] {
            self.u64(number);
        }
        for time in [attr.atime, attr.btime, attr.ctime, attr.mtime] {
            self.u64(time.sec.cast_unsigned());
            self.u32(time.nsec);
            self.u32(0);
        }
        self.u32(libc::major(attr.rdev));
        self.u32(libc::minor(attr.rdev));
        self.extend(&[0; 8 + 14 * 8]);
    }

    /// `struct fuse_entry_out`.
    pub(super) fn entry(&mut self, (node, generation): (NodeId, u64), attr: &Attr, ttl: Ttl) {
        for number in [node.0, generation, ttl.entry.as_secs(), ttl.attr.as_secs()] {
            self.u64(number);
        }
        self.u32(ttl.entry.subsec_nanos());
        self.u32(ttl.attr.subsec_nanos());
        self.fuse_attr(attr);
    }

    /// `struct fuse_open_out`.
    pub(super) fn open(&mut self, handle: u64, flags: u32, backing: Option<i32>) {
        self.u64(handle);
        let passes = backing.map_or(0, |_| abi::OPEN_PASSTHROUGH);
        self.u32(flags | passes);
        self.u32(backing.unwrap_or(0).cast_unsigned());
    }

    /// `struct fuse_kstatfs`.
    pub(super) fn statfs(&mut self, fs: &StatFs) {
        for number in [
            fs.blocks,
            fs.blocks_free,
            fs.blocks_available,
            fs.files,
            fs.files_free,
        ] {
            self.u64(number);
        }
        for number in [fs.block_size, fs.name_max, fs.block_size] {
            self.u32(number);
        }
        self.extend(&[0; 28]);
    }

    /// `struct fuse_dirent`, if there is room for it within `most` bytes of body, and
    /// for so many before it. `ino` is the number that it shows.
    pub(super) fn dirent(
        &mut self,
        most: usize,
        (entry, ino, kind): (&Listed<'_>, u64, Option<FileType>),
        before: impl FnOnce(&mut Out),
    ) -> bool {
        let start = self.used;
        before(self);
        self.u64(ino);
        self.u64(entry.next);
        // A name is short.
        self.u32(entry.name.len() as u32);
        // As in `st_mode`; 0 is for what the directory does not tell.
        self.u32(kind.map_or(0, |kind| kind.mode_bits() >> 12));
        self.extend(entry.name);
        let len = self.used - start;
        self.extend(&[0; 7][..len.next_multiple_of(8) - len]);
        let fits = self.used - abi::OUT_HEADER <= most;
        if !fits {
            self.used = start;
        }
        fits
    }
}

/// How long names and attributes are believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ttl {
    pub(super) entry: Duration,
    pub(super) attr: Duration,
}

const BLOCK_SIZE: u32 = 4096;

/// The nodes that an answer to READDIRPLUS tells of, each once.
pub(super) fn listed(body: &[u8]) -> impl Iterator<Item = NodeId> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let node = u64::from_ne_bytes(*rest.first_chunk()?);
        let len = rest.get(abi::ENTRY_OUT + 16..)?.first_chunk()?;
        let len = u32::from_ne_bytes(*len) as usize;
        let len = abi::ENTRY_OUT + (abi::DIRENT + len).next_multiple_of(8);
        rest = rest.get(len..)?;
        Some(NodeId(node))
    })
    .filter(|node| node.0 != 0)
}
