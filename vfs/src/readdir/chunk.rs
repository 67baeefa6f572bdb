//! A piece of a [`Blob`](super::blob::Blob)'s memory.

use std::ops::{Deref, DerefMut};

use rcuwalk_sync::memory::Block;

/// Records that do not move once another chunk follows.
pub(super) enum Chunk {
    /// The first one: most directories are short. And the last one of a whole listing, which has no
    /// more than it needs.
    Small(Vec<u8>),
    Block(Block),
}

impl Chunk {
    /// The most bytes of a chunk.
    pub(super) const ROOM: usize = Block::ROOM;

    /// `first`, if there is none before it.
    pub(super) fn new(first: bool) -> Chunk {
        match first {
            true => Chunk::Small(Vec::new()),
            false => Chunk::Block(Block::new()),
        }
    }

    /// Bytes that it has allocated.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Chunk::Small(bytes) => bytes.capacity(),
            Chunk::Block(_) => Self::ROOM,
        }
    }

    /// Bytes that can be added.
    pub(super) fn room(&self) -> usize {
        Self::ROOM - self.len()
    }

    /// Adds records. False if there is no room for them.
    #[must_use]
    pub(super) fn push(&mut self, records: &[u8]) -> bool {
        match self {
            Chunk::Block(block) => block.push(records),
            Chunk::Small(bytes) => {
                let (used, before) = (bytes.len(), bytes.capacity());
                let needed = used + records.len();
                if needed > Self::ROOM {
                    return false;
                }
                if needed > before {
                    // Twice as much, but no more than a chunk has.
                    let room = (2 * before).min(Self::ROOM).max(needed);
                    bytes.reserve_exact(room - used);
                }
                bytes.extend_from_slice(records);
                true
            }
        }
    }

    /// Gives back what it does not need. Nothing is added any more.
    pub(super) fn shrink(&mut self) {
        match self {
            Chunk::Small(bytes) => bytes.shrink_to_fit(),
            Chunk::Block(block) => *self = Chunk::Small(block.to_vec()),
        }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Chunk::Small(bytes) => bytes,
            Chunk::Block(block) => block,
        }
    }
}

impl DerefMut for Chunk {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Chunk::Small(bytes) => bytes,
            Chunk::Block(block) => block,
        }
    }
}
