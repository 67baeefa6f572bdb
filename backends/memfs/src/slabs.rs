//! The memory of contents: pages in slabs, which go back to the system.
//!
//! ```text
//!   ids:     0    1   (free)  3        a page keeps its id for as long as it lives
//!            |     \          |
//!   slots: | 0 | 3 | 1 |        |      without gaps: the first slots are used, and no others
//!          +-- slab 0 --+ slab 1       mapped for as long as one of its slots is used
//! ```
//!
//! The allocator of the process would keep most of the memory of a removed file: freed pages lie
//! between pages of other files, and only the end of a heap goes back. So when a page is freed, the
//! last page of its shard moves into its slot, and a slab that is then empty is unmapped. In
//! whichever order pages are written and removed, each shard has the memory of its pages and at
//! most two slabs more.
//!
//! **Shards keep threads apart.** A thread adds pages to a shard of its own as a rule, so threads
//! that write different files share no lock.
//!
//! Locks, of each shard: the slots before a slab. A reader holds both shared; a writer of contents
//! holds the slots shared and the slab exclusively. Pages move with the slots locked exclusively, so
//! a page stays in its slot while a thread copies from or to it.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use memmap2::MmapMut;
use rcuwalk::{Error, Result};

use crate::node::recover;
use crate::space::PAGE;

/// Pages in a slab: half a MiB.
const PER_SLAB: usize = 128;

/// The most pages freed under one lock of the slots: then readers and writers get their turn.
const AT_ONCE: usize = 64;

/// Shards, a power of two.
const SHARDS: usize = 8;

/// The pages of all files.
#[derive(Default)]
pub(crate) struct Slabs {
    shards: [Shard; SHARDS],
}

/// A part of the pages, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    slots: RwLock<Slots>,
}

/// A page that holds bytes. Its owner gives it back by [`Slabs::free`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PageId {
    shard: u8,
    number: u32,
}

#[derive(Default)]
struct Slots {
    slabs: Vec<RwLock<MmapMut>>,
    /// By id; anything for an id that is free.
    slot_of: Vec<u32>,
    /// By slot: as long as there are used slots.
    id_at: Vec<u32>,
    free_ids: Vec<u32>,
}

impl Slabs {
    /// Adds a page of zeros with `bytes` at `start`.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the system has no memory, or for more than 2^32 pages in a shard.
    pub(crate) fn add(&self, start: usize, bytes: &[u8]) -> Result<PageId> {
        let shard = shard_of_thread();
        let number = self.shards[shard].write().add()?;
        let id = PageId {
            shard: shard as u8,
            number,
        };
        let end = start + bytes.len();
        self.with_mut(&id, |page| {
            // The slot may have been another page's.
            page[..start].fill(0);
            page[start..end].copy_from_slice(bytes);
            page[end..].fill(0);
        });
        Ok(id)
    }

    /// Calls `read` with the contents of a page.
    pub(crate) fn with(&self, id: &PageId, read: impl FnOnce(&[u8])) {
        let slots = self.shard(id).read();
        let (slab, page) = slots.place(id);
        let slab = slots.slabs[slab].read().unwrap_or_else(recover);
        read(&slab[page]);
    }

    /// Calls `write` with the contents of a page, to change them.
    pub(crate) fn with_mut(&self, id: &PageId, write: impl FnOnce(&mut [u8])) {
        let slots = self.shard(id).read();
        let (slab, page) = slots.place(id);
        let mut slab = slots.slabs[slab].write().unwrap_or_else(recover);
        write(&mut slab[page]);
    }

    /// Frees pages, and gives their memory back to the system.
    pub(crate) fn free(&self, mut ids: Vec<PageId>) {
        ids.sort_unstable_by_key(|id| id.shard);
        for of_shard in ids.chunk_by(|one, other| one.shard == other.shard) {
            self.shard(&of_shard[0]).free(of_shard);
        }
    }

    fn shard(&self, id: &PageId) -> &Shard {
        &self.shards[usize::from(id.shard)]
    }
}

/// The shard that this thread adds pages to.
fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // Relaxed: threads only have to get different numbers.
        static SHARD: usize = NEXT.fetch_add(1, Relaxed) % SHARDS;
    }
    SHARD.with(|shard| *shard)
}

impl Shard {
    fn free(&self, ids: &[PageId]) {
        // From the end, as the pages of a file mostly lie in their order: the last page of the
        // shard is then one that is freed itself, and does not move first.
        for batch in ids.rchunks(AT_ONCE) {
            let mut slots = self.write();
            let mut batch: Vec<u32> = batch.iter().map(|id| id.number).collect();
            batch.sort_unstable_by_key(|number| slots.slot_of[*number as usize]);
            while let Some(number) = batch.pop() {
                slots.free(number);
            }
            slots.unmap_unused();
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Slots> {
        self.slots.read().unwrap_or_else(recover)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots> {
        self.slots.write().unwrap_or_else(recover)
    }
}

impl Slots {
    /// The slab of a page, and where in it the page lies.
    fn place(&self, id: &PageId) -> (usize, Range<usize>) {
        place(self.slot_of[id.number as usize] as usize)
    }

    fn add(&mut self) -> Result<u32> {
        let slot = self.id_at.len();
        if slot == self.slabs.len() * PER_SLAB {
            let slab = MmapMut::map_anon(PER_SLAB * PAGE).map_err(|_| Error::NoSpace)?;
            self.slabs.push(RwLock::new(slab));
        }
        let id = match self.free_ids.pop() {
            Some(id) => id,
            None => {
                let id = u32::try_from(self.slot_of.len()).map_err(|_| Error::NoSpace)?;
                self.slot_of.push(0);
                id
            }
        };
        // No more slots than ids.
        self.slot_of[id as usize] = slot as u32;
        self.id_at.push(id);
        Ok(id)
    }

    fn free(&mut self, id: u32) {
        let hole = self.slot_of[id as usize] as usize;
        let last = self.id_at.len() - 1;
        if hole != last {
            self.copy(last, hole);
            self.slot_of[self.id_at[last] as usize] = hole as u32;
        }
        self.id_at.swap_remove(hole);
        self.free_ids.push(id);
    }

    fn copy(&mut self, from: usize, to: usize) {
        let ((from, source), (to, dest)) = (place(from), place(to));
        if from == to {
            let slab = self.slabs[from].get_mut().unwrap_or_else(recover);
            return slab.copy_within(source, dest.start);
        }
        if let Ok([from, to]) = self.slabs.get_disjoint_mut([from, to]) {
            let from = from.get_mut().unwrap_or_else(recover);
            let to = to.get_mut().unwrap_or_else(recover);
            to[dest].copy_from_slice(&from[source]);
        }
    }

    /// One empty slab stays: a file that grows and shrinks at the end of one would map and unmap
    /// the next one each time.
    fn unmap_unused(&mut self) {
        let used = self.id_at.len().div_ceil(PER_SLAB);
        self.slabs.truncate(used + 1);
        if self.id_at.is_empty() {
            (self.slot_of, self.free_ids) = Default::default();
        }
    }
}

/// The slab of a slot, and where in it the slot lies.
fn place(slot: usize) -> (usize, Range<usize>) {
    let start = slot % PER_SLAB * PAGE;
    (slot / PER_SLAB, start..start + PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_byte(slabs: &Slabs, id: &PageId) -> u8 {
        let mut first = 0;
        slabs.with(id, |page| first = page[0]);
        first
    }

    #[test]
    fn pages_are_without_gaps_whichever_go() {
        let slabs = Slabs::default();
        let mut seed = 5_u64;
        let mut kept: Vec<(PageId, u8)> = Vec::new();
        for round in 0..40 {
            for n in 0..300 {
                let byte = (round + n) as u8;
                let id = slabs.add(0, &[byte; 10]).unwrap();
                slabs.with(&id, |page| {
                    assert!(page[10..].iter().all(|byte| *byte == 0), "zeros beyond");
                });
                slabs.with_mut(&id, |page| page[4000..].fill(byte));
                kept.push((id, byte));
            }
            let mut gone = Vec::new();
            for _ in 0..290 + round % 3 * 10 {
                seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                let at = (seed >> 33) as usize % kept.len();
                gone.push(kept.swap_remove(at).0);
            }
            slabs.free(gone);
            for (id, byte) in &kept {
                assert_eq!(first_byte(&slabs, id), *byte);
            }
            let slots = slabs.shards[shard_of_thread()].read();
            assert_eq!(slots.id_at.len(), kept.len());
            assert!(
                slots.slabs.len() <= kept.len() / PER_SLAB + 2,
                "they are unmapped"
            );
            assert_eq!(slots.slot_of.len() - slots.free_ids.len(), kept.len());
        }
        slabs.free(kept.into_iter().map(|(id, _)| id).collect());
        let slots = slabs.shards[shard_of_thread()].read();
        assert_eq!((slots.slabs.len(), slots.slot_of.len()), (1, 0));
    }

    #[test]
    fn pages_that_move_keep_their_contents() {
        let slabs = Slabs::default();
        std::thread::scope(|scope| {
            for thread in 1..4_u8 {
                let slabs = &slabs;
                scope.spawn(move || {
                    for round in 0..60_u8 {
                        let byte = thread * 60 + round;
                        let add = |_| slabs.add(0, &[byte; PAGE]).unwrap();
                        let mut ids: Vec<_> = (0..200).map(add).collect();
                        slabs.free(ids.drain(0..100).collect());
                        for id in &ids {
                            slabs.with(id, |page| assert!(page == [byte; PAGE]));
                        }
                        slabs.free(ids);
                    }
                });
            }
        });
        let mut shards = slabs.shards.iter();
        assert!(shards.all(|shard| shard.read().id_at.is_empty()));
    }
}
