//! What an image may cost, and how that is measured: time as the processors' for this
//! process, memory by an allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What the cache of metadata may take, as the exercise opens images.
pub(crate) const CACHE: usize = 1 << 20;

/// The most that a mutant may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processors' time, all threads together.
    pub time: Duration,
    /// Bytes that are allocated at the same time, for an image of a byte.
    pub memory: usize,
}

impl Limits {
    /// The promised limits: a second, and the cache, sixteen times the image, and a few
    /// megabytes for the VFS and for buffers. Unoptimised code gets more time.
    pub fn promised(image: usize) -> Limits {
        let seconds = if cfg!(debug_assertions) { 20 } else { 1 };
        Limits {
            time: Duration::from_secs(seconds),
            memory: CACHE + 16 * image + (8 << 20),
        }
    }
}

/// The processors' time that this process has had.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Starts a thread that ends the process and reports the current step if an image takes `most`
/// or longer: otherwise it would never end.
pub fn watch(most: Duration) {
    /// In steps, so that a machine that stood still for a while counts as one of them.
    const STEPS: u32 = 10;
    thread::spawn(move || {
        let (mut before, mut same) = (0, 0);
        loop {
            thread::sleep(most / STEPS);
            let begun = BEGUN.load(Relaxed);
            same = match begun == before && begun % 2 == 1 {
                true => same + 1,
                false => 0,
            };
            before = begun;
            if same == STEPS {
                let busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = writeln!(std::io::stderr(), "no end after {most:?}: {busy}");
                std::process::abort();
            }
        }
    });
}

/// One at a time: the measurement covers the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Odd while something is busy, and more with each.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static BUSY: Mutex<String> = Mutex::new(String::new());

/// Says what the process is busy with, for [`watch`], until it is dropped.
pub(crate) struct Busy {
    _alone: MutexGuard<'static, ()>,
}

impl Busy {
    pub(crate) fn with(what: String) -> Busy {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        *BUSY.lock().unwrap_or_else(PoisonError::into_inner) = what;
        BEGUN.fetch_add(1, Relaxed);
        Busy { _alone }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BEGUN.fetch_add(1, Relaxed);
    }
}

/// The system's allocator, counting. Programs that want to know what an image costs have
/// it as their `#[global_allocator]`; without it, nothing is counted.
#[derive(Debug)]
pub struct Counting;

/// Bytes that are allocated, and the most that have been since it was last asked.
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Forgets the peak; returns what is allocated now.
pub(crate) fn begin_counting() -> usize {
    let now = NOW.load(Relaxed);
    PEAK.store(now, Relaxed);
    now
}

/// The most that was allocated since [`begin_counting`].
pub(crate) fn peak() -> usize {
    PEAK.load(Relaxed)
}

fn took(bytes: usize) {
    let now = NOW.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(now, Relaxed);
}

fn gave(bytes: usize) {
    NOW.fetch_sub(bytes, Relaxed);
}

// SAFETY: passes each call on to the system's allocator with the same arguments; counting
// touches no allocated memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promises are the ones that are asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: as above. Zeros that are never touched count, and take no memory.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both are there while one is copied to the other.
        took(new_size);
        // SAFETY: as above.
        let new = unsafe { System.realloc(ptr, layout, new_size) };
        gave(layout.size());
        new
    }
}
