//! Memory straight from the kernel, on huge pages where there is much of it.
//!
//! Lookups at random among a million objects wait for memory, and a fifth of that
//! wait is for the page tables: an object and the head that leads to it are on two
//! pages of their own each time. On pages of 2 MiB the page tables fit the caches.
//!
//! | read               | to learn                                                |
//! |--------------------|---------------------------------------------------------|
//! | `memory/map.rs`    | mmap(2), madvise(2), and their replacements             |
//! | `memory/block.rs`  | bytes in such a page, for large lists                    |
//! | `memory/pages.rs`  | chunks cut into pages of 64 KiB, and when they go back  |
//!
//! It serves the slab, for its pages, large tables, for their heads, and large lists.
//!
//! MEM-2: free memory that the kernel gave for pages is at most a quarter of the memory in use,
//! and half a MiB.

mod block;
mod map;
#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
pub(crate) mod pages;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub use block::Block;
pub(crate) use map::{Advice, HUGE, advise, map, unmap};

/// Bytes, and how often the kernel was asked. Numbers of the whole process, each of a
/// moment of its own.
///
/// Without slab and chunks (Miri, loom, the address sanitizer) all but `heads` are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Address space taken past the system allocator: chunks and large arrays.
    pub mapped: usize,
    /// The part of it that the kernel has given memory for, at the most.
    pub resident: usize,
    /// The slab's pages, in use or kept for the next object.
    pub pages: usize,
    /// The slots on them that are objects, or at hand for a thread's next ones.
    pub objects: usize,
    /// Heads of all hash tables.
    pub heads: usize,
    /// Calls to mmap, munmap and madvise so far. They stand still while objects come
    /// and go and their number stays about the same.
    pub calls: usize,
}

/// The memory of this process's objects and tables.
pub fn statistics() -> Statistics {
    let (mapped, calls) = map::mapped_and_calls();
    let all = Statistics {
        mapped,
        resident: mapped,
        heads: HEADS.load(Relaxed),
        calls,
        ..Statistics::default()
    };
    with_pages(all)
}

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
fn with_pages(all: Statistics) -> Statistics {
    let (pages, objects) = crate::slab::pages_and_objects();
    Statistics {
        resident: all.mapped.saturating_sub(pages::not_resident()),
        pages,
        objects,
        ..all
    }
}

#[cfg(any(miri, loom, shuttle, rcuwalk_system_alloc))]
fn with_pages(all: Statistics) -> Statistics {
    all
}

static HEADS: AtomicUsize = AtomicUsize::new(0);

/// Counts a new array of heads of this number of bytes.
pub(crate) fn count_heads(bytes: usize) {
    HEADS.fetch_add(bytes, Relaxed);
}

/// Notes that it went.
pub(crate) fn uncount_heads(bytes: usize) {
    HEADS.fetch_sub(bytes, Relaxed);
}
