//! Chunks of 2 MiB, cut into pages of 64 KiB.
//!
//! All size classes share the chunks, so few objects of many sizes take few pages. The first
//! chunks consist of the kernel's small pages: untouched pages never become resident. From
//! [`MANY`] pages on, a new chunk is one huge page, and with each of them an older chunk
//! becomes one.
//!
//! Pages that come back are kept for the next allocation, within MEM-2. Past that, completely
//! free chunks are unmapped, and the free pages of the emptiest other chunks go back to the
//! kernel. That splits a huge page until its chunk is full again, so reclaim goes down to half
//! of the limit: as much as that has to come back before the kernel is asked again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use std::ptr::NonNull;

/// The size of a page and its alignment.
pub(crate) const PAGE: usize = 64 << 10;

/// Pages in use from which on chunks are huge pages: 8 MiB, so that the 31 pages
/// that become resident with the first are within MEM-2.
const MANY: usize = 128;

/// Free pages that may stay resident, however few are in use.
const FEW: usize = 8;

const ALL: u32 = u32::MAX;

/// A chunk's pages are the bits of a `u32`.
struct Chunk {
    start: NonNull<u8>,
    free: u32,
    /// Which pages the kernel has given memory for, at the most.
    resident: u32,
    /// Whether it was last advised to be one huge page.
    huge: bool,
}

// SAFETY: plain memory, owned by the holder of the chunk.
unsafe impl Send for Chunk {}

/// All chunks, by address.
struct Pool {
    chunks: BTreeMap<usize, Chunk>,
    /// Those with free pages. The highest is used first: the kernel maps downwards,
    /// so it is the oldest, and the younger ones get a chance to become free.
    with_room: BTreeSet<usize>,
    /// Pages in use.
    used: usize,
    /// Pages that are free and resident.
    idle: usize,
    /// Chunks that are not huge.
    small: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

/// A page, with anything in it.
pub(crate) fn take() -> NonNull<u8> {
    lock().take()
}

/// Like [`take`], for a caller that is going to write all of it.
pub(crate) fn take_to_fill() -> NonNull<u8> {
    let mut pool = lock();
    let is_huge_or_idle = pool.has_resident_page();
    let page = pool.take();
    drop(pool);
    if !is_huge_or_idle {
        // SAFETY: the page, which is this caller's alone. Its contents stay as they are.
        unsafe { advise(page, PAGE, Advice::Populate) };
    }
    page
}

/// Gives a page back.
///
/// # Safety
/// It came from [`take`], and is no longer used.
pub(crate) unsafe fn give_back(page: NonNull<u8>) {
    // SAFETY: passed on.
    unsafe { lock().give_back(page) }
}

/// Bytes in chunks that the kernel has given no memory for.
pub(super) fn not_resident() -> usize {
    let pool = lock();
    (pool.chunks.len() * ALL.count_ones() as usize - pool.used - pool.idle) * PAGE
}

/// For [`fork`](crate::fork).
#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub(crate) fn before_fork() -> Box<dyn std::any::Any> {
    Box::new(lock())
}

fn lock() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    const fn new() -> Pool {
        Pool {
            chunks: BTreeMap::new(),
            with_room: BTreeSet::new(),
            used: 0,
            idle: 0,
            small: 0,
        }
    }

    /// True if the next page has memory already, or gets it with all of its chunk.
    fn has_resident_page(&self) -> bool {
        let chunk = self.with_room.last().and_then(|at| self.chunks.get(at));
        match chunk {
            Some(chunk) => chunk.huge || chunk.free & chunk.resident != 0,
            // A new chunk is huge from then on.
            None => self.used >= MANY,
        }
    }

    fn take(&mut self) -> NonNull<u8> {
        let at = match self.with_room.last() {
            Some(at) => *at,
            None => self.map_chunk(),
        };
        let chunk = self.chunks.get_mut(&at).expect("chunks with room exist");
        if chunk.resident == 0 && chunk.huge {
            chunk.resident = ALL;
            self.idle += ALL.count_ones() as usize;
        }
        let page = match (chunk.free & chunk.resident, chunk.free) {
            (0, free) => lowest(free),
            (idle, _) => {
                self.idle -= 1;
                lowest(idle)
            }
        };
        chunk.resident |= page;
        chunk.free &= !page;
        if chunk.free == 0 {
            self.with_room.remove(&at);
        }
        self.used += 1;
        // SAFETY: the page's place is within the chunk.
        unsafe { chunk.start.add(page.trailing_zeros() as usize * PAGE) }
    }

    /// Maps a chunk. Only when all others are full: a huge page costs nothing then.
    #[cold]
    fn map_chunk(&mut self) -> usize {
        let huge = self.used >= MANY;
        if huge && self.small > 0 {
            // One at a time: copying it takes as long as clearing the new one.
            if let Some(chunk) = self.chunks.values_mut().find(|chunk| !chunk.huge) {
                chunk.make(Advice::Huge);
                chunk.make_now();
                self.small -= 1;
            }
        }
        let mut chunk = Chunk {
            start: map(HUGE),
            free: ALL,
            resident: 0,
            huge,
        };
        chunk.make(if huge { Advice::Huge } else { Advice::Small });
        self.small += usize::from(!huge);
        let at = chunk.start.addr().get();
        self.chunks.insert(at, chunk);
        self.with_room.insert(at);
        at
    }

    /// # Safety
    /// As [`give_back`].
    unsafe fn give_back(&mut self, page: NonNull<u8>) {
        let page = page.addr().get();
        let at = page & !(HUGE - 1);
        let chunk = self.chunks.get_mut(&at).expect("pages are in chunks");
        let bit = 1 << ((page - at) / PAGE);
        debug_assert_eq!(chunk.free & bit, 0, "given back once");
        if chunk.free == 0 {
            self.with_room.insert(at);
        }
        chunk.free |= bit;
        self.used -= 1;
        self.idle += 1;
        if self.idle > self.used / 4 + FEW {
            self.release();
        }
    }

    /// Gives memory back to the kernel, from the emptiest chunks.
    #[cold]
    fn release(&mut self) {
        let keep = (self.used / 4 + FEW) / 2;
        let mut emptiest: Vec<(u32, usize)> = self
            .with_room
            .iter()
            .map(|at| (self.chunks[at].free.count_ones(), *at))
            .collect();
        emptiest.sort_unstable_by(|a, b| b.cmp(a));
        for (_, at) in emptiest {
            if self.chunks[&at].free == ALL {
                self.unmap_chunk(at);
            } else if self.idle > keep {
                self.forget_free_pages(at);
            } else {
                break;
            }
        }
    }

    fn unmap_chunk(&mut self, at: usize) {
        self.with_room.remove(&at);
        let chunk = self.chunks.remove(&at).expect("only known chunks");
        self.idle -= chunk.resident.count_ones() as usize;
        self.small -= usize::from(!chunk.huge);
        // SAFETY: mapped by `map_chunk`, off the books, and no page of it is used.
        unsafe { unmap(chunk.start, HUGE) };
    }

    fn forget_free_pages(&mut self, at: usize) {
        let chunk = self.chunks.get_mut(&at).expect("only known chunks");
        let mut idle = chunk.free & chunk.resident;
        if idle != 0 && chunk.huge {
            // Or the kernel may make it huge again, and resident.
            chunk.make(Advice::Small);
            self.small += 1;
        }
        self.idle -= idle.count_ones() as usize;
        chunk.resident &= !idle;
        // Neighbours together: one call for each run of free pages.
        while idle != 0 {
            let first = idle.trailing_zeros();
            let run = (idle >> first).trailing_ones();
            idle &= !((((1_u64 << run) - 1) << first) as u32);
            // SAFETY: within the chunk; the pages are free, so no code uses them.
            unsafe {
                let start = chunk.start.add(first as usize * PAGE);
                advise(start, run as usize * PAGE, Advice::Forget);
            }
        }
    }
}

impl Chunk {
    fn make(&mut self, advice: Advice) {
        self.huge = advice == Advice::Huge;
        // SAFETY: the chunk as it was mapped; contents stay as they are.
        unsafe { advise(self.start, HUGE, advice) };
    }

    /// Makes a huge page of many small ones, which the kernel would otherwise do some time
    /// later.
    fn make_now(&self) {
        // SAFETY: as above.
        unsafe { advise(self.start, HUGE, Advice::Collapse) };
    }
}

fn lowest(pages: u32) -> u32 {
    pages & pages.wrapping_neg()
}

#[cfg(test)]
mod tests;
