//! A chain of descriptors: where in the guest's memory a request is, and where its answer goes.
//!
//! The guest writes the descriptors, and may write anything. A chain is read once, into a list of
//! our own; each part of it must be mapped; and it must end. It does not if the last descriptor
//! that `virtio-queue` delivers names a next one: there was an error then, or a loop, which it cuts
//! when it has delivered as many descriptors as the table has.

use std::io;
use std::sync::Arc;

use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

use crate::memory::Mapped;

/// The parts of a request in the guest's memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    readable: Vec<Part>,
    writable: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    at: GuestAddress,
    len: usize,
}

/// Why a chain is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// It does not end, or an index or a table is out of range.
    Endless,
    /// It is longer than any queue.
    TooLong,
    /// A part of it is not mapped.
    NotMapped,
    /// A part to read comes after one to write.
    OutOfOrder,
    /// It has nothing to read.
    Empty,
}

impl Chain {
    /// Reads a chain of `most` descriptors at most.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(crate) fn read(
        chain: DescriptorChain<Arc<Mapped>>,
        mapped: &Mapped,
        most: u16,
    ) -> Result<Chain, Malformed> {
        let mut parts = Chain::default();
        let mut ends = false;
        for (count, one) in chain.enumerate() {
            if count >= usize::from(most) {
                return Err(Malformed::TooLong);
            }
            ends = !one.has_next();
            let (at, len) = (one.addr(), one.len() as usize);
            let (parts, access) = match one.is_write_only() {
                true => (&mut parts.writable, Permissions::Write),
                false if !parts.writable.is_empty() => return Err(Malformed::OutOfOrder),
                false => (&mut parts.readable, Permissions::Read),
            };
            if len == 0 {
                continue;
            }
            if !mapped.check_range(at, len, access) {
                return Err(Malformed::NotMapped);
            }
            parts.push(Part { at, len });
        }
        match () {
            () if !ends => Err(Malformed::Endless),
            () if parts.readable.is_empty() => Err(Malformed::Empty),
            () => Ok(parts),
        }
    }

    /// Copies what is to be read to `room`, as much as fits there, and returns how much that is.
    ///
    /// # Errors
    /// It is not mapped any more.
    pub(crate) fn copy_to(&self, mapped: &Mapped, room: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        for part in &self.readable {
            let left = &mut room[done..];
            let len = part.len.min(left.len());
            if len == 0 {
                break;
            }
            mapped
                .read_slice(&mut left[..len], part.at)
                .map_err(io::Error::other)?;
            done += len;
        }
        Ok(done)
    }

    /// Copies `bytes` to where the answer goes.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] if there is too little room, and nothing is copied; it is not
    /// mapped any more.
    pub(crate) fn copy_from(&self, mapped: &Mapped, bytes: &[u8]) -> io::Result<()> {
        let room = self.writable.iter().map(|part| part.len as u64);
        // A chain has no more than 2^16 parts of 2^32 bytes.
        if room.sum::<u64>() < bytes.len() as u64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut left = bytes;
        for part in &self.writable {
            let (here, rest) = left.split_at(part.len.min(left.len()));
            if !here.is_empty() {
                mapped
                    .write_slice(here, part.at)
                    .map_err(io::Error::other)?;
            }
            left = rest;
        }
        Ok(())
    }
}
