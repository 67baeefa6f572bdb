//! [`Block`]: bytes that are added and stay where they are.

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
use std::ptr::NonNull;

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
use super::pages;

/// Room for 64 KiB of bytes, of which the first [`len`](slice::len) have been written. Where there are
/// many, they lie on huge pages: a table that grows by them takes few page faults.
pub struct Block {
    #[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
    page: NonNull<u8>,
    #[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
    used: usize,
    #[cfg(any(miri, loom, shuttle, rcuwalk_system_alloc))]
    bytes: Vec<u8>,
}

impl Block {
    /// Its room, in bytes.
    pub const ROOM: usize = 64 << 10;
}

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
const _: () = assert!(Block::ROOM == pages::PAGE);

// SAFETY: plain memory that the block owns; shared references only read it.
#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
unsafe impl Send for Block {}
// SAFETY: as above.
#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
unsafe impl Sync for Block {}

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
impl Block {
    /// An empty one.
    pub fn new() -> Block {
        Block {
            page: pages::take_to_fill(),
            used: 0,
        }
    }

    /// Adds bytes. False, and none are added, if there is no room for all.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > Self::ROOM - self.used {
            return false;
        }
        // SAFETY: within the page, which has `ROOM` bytes and is this block's alone (`&mut self`), so
        // that `bytes` lies elsewhere.
        unsafe {
            let to = self.page.as_ptr().add(self.used);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.used += bytes.len();
        true
    }
}

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
impl std::ops::Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `push` has written the first `used` bytes, which only `&mut self` changes.
        unsafe { std::slice::from_raw_parts(self.page.as_ptr(), self.used) }
    }
}

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
impl std::ops::DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.page.as_ptr(), self.used) }
    }
}

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it came from `take`, and its only owner goes.
        unsafe { pages::give_back(self.page) }
    }
}

#[cfg(any(miri, loom, shuttle, rcuwalk_system_alloc))]
impl Block {
    /// An empty one.
    pub fn new() -> Block {
        Block {
            bytes: Vec::with_capacity(Self::ROOM),
        }
    }

    /// Adds bytes. False, and none are added, if there is no room for all.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= Self::ROOM - self.bytes.len();
        if fits {
            self.bytes.extend_from_slice(bytes);
        }
        fits
    }
}

#[cfg(any(miri, loom, shuttle, rcuwalk_system_alloc))]
impl std::ops::Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(any(miri, loom, shuttle, rcuwalk_system_alloc))]
impl std::ops::DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Default for Block {
    fn default() -> Block {
        Block::new()
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MEM-2: a block has the bytes that were added, up to its room, and its memory goes back.
    #[test]
    fn a_block_has_the_bytes_that_were_added() {
        let mut block = Block::new();
        let mut expected = Vec::new();
        for n in 0..4_096_u32 {
            let bytes = n.to_ne_bytes().repeat(4);
            assert!(block.push(&bytes));
            expected.extend(bytes);
        }
        assert_eq!(block.len(), Block::ROOM);
        assert!(!block.push(b"x"), "full");
        assert!(block.push(b""));
        assert_eq!(*block, *expected);
        block[7] = 9;
        expected[7] = 9;
        let others: Vec<_> = (0..300).map(|_| Block::new()).collect();
        assert!(others.iter().all(|other| other.is_empty()));
        drop(others);
        assert_eq!(*block, *expected);
    }
}
