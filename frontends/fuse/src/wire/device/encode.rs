//! Encodes an answer, in a buffer that is reused for the next one.

use std::time::Duration;

use rcuwalk::inode::NodeId;
use rcuwalk::{Attr, FileType, StatFs, Timestamp};
use rustix::io::Errno;

use super::abi;
use super::init::MAX_WRITE;
use crate::listing::Listed;

/// The longest body: the most that one READ or READDIR requests, as agreed at INIT.
pub(super) const LONGEST_BODY: usize = MAX_WRITE as usize;

/// An answer under construction. Its buffer has a fixed size and address.
pub(super) struct Reply {
    /// Zeroed once; afterwards it keeps bytes of earlier answers.
    space: Box<[u8]>,
    /// The start of the answer, which is its header.
    start: usize,
    /// The end of the answer so far.
    used: usize,
    /// The answer did not fit.
    is_cut: bool,
}

impl Reply {
    pub(super) fn new() -> Reply {
        Reply::after(0)
    }

    /// Makes a buffer with room before each body for the `headers` of a request, which comes by
    /// the same memory (`uring/ring.rs`).
    pub(super) fn after(headers: usize) -> Reply {
        let start = headers.saturating_sub(abi::OUT_HEADER);
        Reply {
            space: vec![0; start + abi::OUT_HEADER + LONGEST_BODY].into(),
            start,
            used: start,
            is_cut: false,
        }
    }

    /// Begins an answer, with room for its header, which `finish` fills in.
    pub(super) fn begin(&mut self) {
        self.is_cut = false;
        self.used = self.start;
        self.extend(&[0; abi::OUT_HEADER]);
    }

    /// Returns the whole answer.
    ///
    /// # Errors
    /// `EIO` if it is longer than any request allows.
    pub(super) fn finish(&mut self, unique: u64, errno: i32) -> Result<&[u8], Errno> {
        if self.is_cut {
            return Err(Errno::IO);
        }
        // The buffer is far smaller than 4 GiB.
        let len = (self.used - self.start) as u32;
        let header = &mut self.space[self.start..];
        header[..4].copy_from_slice(&len.to_ne_bytes());
        header[4..8].copy_from_slice(&(-errno).to_ne_bytes());
        header[8..16].copy_from_slice(&unique.to_ne_bytes());
        Ok(self.answer())
    }

    /// The finished answer.
    pub(super) fn answer(&self) -> &[u8] {
        &self.space[self.start..self.used]
    }

    /// What follows the header.
    pub(super) fn body(&self) -> &[u8] {
        self.answer().get(abi::OUT_HEADER..).unwrap_or_default()
    }

    #[inline]
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        match self.space.get_mut(self.used..self.used + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.used += bytes.len();
            }
            None => self.is_cut = true,
        }
    }

    /// Copies the answer in `other`.
    pub(super) fn copy_from(&mut self, other: &Reply) {
        self.is_cut = other.is_cut;
        self.used = self.start;
        self.extend(other.answer());
    }

    /// The address of an answer's body, with room for [`LONGEST_BODY`].
    pub(super) fn room(&mut self) -> *mut u8 {
        (&raw mut self.space[self.start + abi::OUT_HEADER..]).cast()
    }

    /// Returns a request as one message: puts `headers` before the rest of it, which is in that
    /// room already. `None` if there is not enough room.
    pub(super) fn message(&mut self, headers: [&[u8]; 2], rest: usize) -> Option<&[u8]> {
        let room = self.start + abi::OUT_HEADER;
        let before = headers.iter().map(|header| header.len()).sum();
        let start = room.checked_sub(before)?;
        let message = self.space.get_mut(start..room.checked_add(rest)?)?;
        let (first, others) = message.split_at_mut(headers[0].len());
        first.copy_from_slice(headers[0]);
        others[..headers[1].len()].copy_from_slice(headers[1]);
        Some(message)
    }

    /// Lets `fill` write up to `most` bytes, fewer if there is less room; `fill` returns how
    /// many it wrote.
    pub(super) fn fill<E>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let room = &mut self.space[self.used..];
        let most = most.min(room.len());
        let filled = fill(&mut room[..most])?;
        self.used += filled.min(most);
        Ok(())
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

    /// Appends a few bytes: answers are mostly numbers.
    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.extend(&bytes);
    }

    /// `struct fuse_attr_out`: the attributes, after the time for which they are valid.
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
        // The kernel's device number is the lower half of `rdev`, for numbers that it knows.
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
        // No immutable and append-only flags: the kernel does not pass them on.
        self.u64(0);
        for number in [attr.nlink, attr.uid, attr.gid] {
            self.u32(number);
        }
        // The upper half of the mode is always zero.
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
    pub(super) fn entry(&mut self, (node, generation): (NodeId, u32), attr: &Attr, ttl: Ttl) {
        for number in [
            node.0,
            generation.into(),
            ttl.entry.as_secs(),
            ttl.attr.as_secs(),
        ] {
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

    /// `struct fuse_dirent`, if there is room within `most` bytes of body for it and for the
    /// bytes that `before` writes in front. `ino` is the number that it shows.
    pub(super) fn dirent(
        &mut self,
        most: usize,
        (entry, ino, kind): (&Listed<'_>, u64, Option<FileType>),
        before: impl FnOnce(&mut Reply),
    ) -> bool {
        let start = self.used;
        before(self);
        self.u64(ino);
        self.u64(entry.next);
        // A name is short.
        self.u32(entry.name.len() as u32);
        // As in `st_mode`; 0 if the directory does not tell.
        self.u32(kind.map_or(0, |kind| kind.mode_bits() >> 12));
        self.extend(entry.name);
        let len = self.used - start;
        self.extend(&[0; 7][..len.next_multiple_of(8) - len]);
        let fits = !self.is_cut && self.body().len() <= most;
        if !fits {
            (self.used, self.is_cut) = (start, false);
        }
        fits
    }
}

/// How long the kernel may cache names and attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ttl {
    pub(super) entry: Duration,
    pub(super) attr: Duration,
}

const BLOCK_SIZE: u32 = 4096;

/// The nodes in an answer to READDIRPLUS, each once.
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
