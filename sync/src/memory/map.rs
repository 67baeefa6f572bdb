//! Address space from the kernel, aligned to huge pages.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

/// A huge page, and the alignment of everything mapped here.
pub(crate) const HUGE: usize = 2 << 20;

/// Advice to the kernel about mapped memory. None of it changes what a program sees, except
/// `Forget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    any(miri, loom, shuttle, rcuwalk_system_alloc),
    expect(dead_code, reason = "there are no pages then, only arrays of heads")
)]
pub(crate) enum Advice {
    /// Huge pages: all of one is resident once a byte of it is.
    Huge,
    /// A huge page at once, in the place of small ones in use.
    Collapse,
    /// All of it resident at once: a page fault for each small page costs a microsecond or several.
    Populate,
    /// No huge pages, even on a machine that always uses them.
    Small,
    /// The contents are no longer wanted, the memory is the kernel's until it is
    /// touched again.
    Forget,
}

/// Maps `bytes`, a multiple of [`HUGE`], all zero.
pub(crate) fn map(bytes: usize) -> NonNull<u8> {
    system::map(bytes).unwrap_or_else(|| handle_alloc_error(layout(bytes)))
}

/// Gives back what [`map`] gave.
///
/// # Safety
/// `start` came from `map(bytes)`, and is no longer used.
pub(crate) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: passed on.
    unsafe { system::unmap(start, bytes) }
}

/// Advises the kernel. Whether it listens does not matter.
///
/// # Safety
/// The range is part of one mapping of [`map`], in whole pages of the kernel's; with
/// [`Advice::Forget`] it is not in use.
pub(crate) unsafe fn advise(start: NonNull<u8>, bytes: usize, advice: Advice) {
    // SAFETY: passed on.
    unsafe { system::advise(start, bytes, advice) }
}

/// Bytes mapped now, and calls to the kernel so far.
pub(super) fn mapped_and_calls() -> (usize, usize) {
    system::mapped_and_calls()
}

fn layout(bytes: usize) -> Layout {
    debug_assert!(bytes > 0 && bytes.is_multiple_of(HUGE));
    Layout::from_size_align(bytes, HUGE).expect("sizes of tables are far below isize::MAX")
}

#[cfg(all(
    target_os = "linux",
    not(any(miri, loom, shuttle, rcuwalk_system_alloc))
))]
mod system {
    use std::ptr;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// Since Linux 6.1; libc has it for glibc only.
    const MADV_COLLAPSE: libc::c_int = 25;
    /// Since Linux 5.14; likewise.
    const MADV_POPULATE_WRITE: libc::c_int = 23;

    static MAPPED: AtomicUsize = AtomicUsize::new(0);
    static CALLS: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
        // Maps one alignment more, and unmaps the memory before and behind.
        let length = layout(bytes).size().checked_add(HUGE)?;
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: a new mapping, wherever the kernel has room for it.
        let all = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if all == libc::MAP_FAILED {
            return None;
        }
        let all: *mut u8 = all.cast();
        let before = all.addr().next_multiple_of(HUGE) - all.addr();
        let start = all.wrapping_add(before);
        // SAFETY: the two ends of the mapping just made, which no other code knows.
        unsafe {
            unmap_some(all, before);
            unmap_some(start.wrapping_add(bytes), HUGE - before);
        }
        MAPPED.fetch_add(bytes, Relaxed);
        NonNull::new(start)
    }

    pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        MAPPED.fetch_sub(bytes, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { unmap_some(start.as_ptr(), bytes) };
    }

    /// # Safety
    /// Mapped by us and no longer used.
    unsafe fn unmap_some(start: *mut u8, bytes: usize) {
        if bytes == 0 {
            return;
        }
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise. Where it fails (too many mappings), the memory
        // stays behind unused.
        unsafe { libc::munmap(start.cast(), bytes) };
    }

    pub(super) unsafe fn advise(start: NonNull<u8>, bytes: usize, advice: Advice) {
        let advice = match advice {
            Advice::Huge => libc::MADV_HUGEPAGE,
            Advice::Collapse => MADV_COLLAPSE,
            Advice::Populate => MADV_POPULATE_WRITE,
            Advice::Small => libc::MADV_NOHUGEPAGE,
            Advice::Forget => libc::MADV_DONTNEED,
        };
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise: our own memory, and contents that may go.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) };
    }

    pub(super) fn mapped_and_calls() -> (usize, usize) {
        (MAPPED.load(Relaxed), CALLS.load(Relaxed))
    }
}

/// The system allocator instead, which lets the tools see each block.
#[cfg(not(all(
    target_os = "linux",
    not(any(miri, loom, shuttle, rcuwalk_system_alloc))
)))]
mod system {
    use std::alloc::{alloc_zeroed, dealloc};

    use super::*;

    pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)) })
    }

    pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise: allocated above with this layout.
        unsafe { dealloc(start.as_ptr(), layout(bytes)) }
    }

    pub(super) unsafe fn advise(_: NonNull<u8>, _: usize, _: Advice) {}

    pub(super) fn mapped_and_calls() -> (usize, usize) {
        (0, 0)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_aligned_and_zero() {
        for bytes in [HUGE, 3 * HUGE] {
            let start = map(bytes);
            assert!(start.as_ptr().addr().is_multiple_of(HUGE));
            // SAFETY: mapped above, readable and writable, used by no other code; it lives
            // until `unmap`.
            unsafe {
                advise(start, bytes, Advice::Huge);
                let last = start.add(bytes - 1);
                assert_eq!((start.read(), last.read()), (0, 0));
                last.write(1);
                unmap(start, bytes);
            }
        }
    }
}
