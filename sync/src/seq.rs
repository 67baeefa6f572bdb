//! Sequence counts: several words, read as of one moment, without a store.
//!
//! A writer makes the count odd, changes the words it covers, and makes it even again. A reader
//! samples the count, reads, and checks that the count is unchanged. The words themselves are
//! atomics, read and written `Relaxed`.
//!
//! - SEQ-1: a snapshot that passes `read_retry` is one moment.
//! - SEQ-3: hand over hand: the child's count is sampled before the parent's is
//!   rechecked.
//!
//! The count of write sections fills the upper half of a 64-bit word. The lower half
//! is payload: flags that change only inside a write section, so that one load gives
//! a reader the flags together with the moment they belong to. What makes the
//! kernel's count odd is the top bit of that half here, so that a reader tests for
//! it together with the flags.

use crate::atomic::*;
use crate::lock::{Mutex, MutexGuard, Rank};

const ONE: u64 = 1 << 32;
/// A write section is open.
const OPEN: u64 = 1 << 31;
const PAYLOAD: u64 = OPEN - 1;

/// A sequence count with 31 bits of payload.
#[doc(alias = "seqcount_t")]
pub struct SeqCount(AtomicU64);

/// A reader's sample at its beginning: the moment, and the payload of that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seq(u64);

impl Seq {
    /// The payload bits.
    #[inline]
    pub fn payload(self) -> u32 {
        (self.0 & PAYLOAD) as u32
    }

    /// True if no write section was open and the payload under `mask` is `value`.
    #[inline]
    pub fn has(self, mask: u32, value: u32) -> bool {
        self.0 as u32 & (OPEN as u32 | mask) == value
    }

    /// True if no write section was open.
    #[inline]
    pub fn is_even(self) -> bool {
        self.0 & OPEN == 0
    }
}

impl SeqCount {
    /// Starts even, with this payload.
    pub fn new(payload: u32) -> SeqCount {
        SeqCount(AtomicU64::new(u64::from(payload) & PAYLOAD))
    }

    /// Samples the count, odd or even. An odd sample fails `read_retry` only when
    /// the section ends, so check [`Seq::is_even`] where that matters.
    #[inline]
    #[doc(alias = "raw_seqcount_begin")]
    pub fn sample(&self) -> Seq {
        // Acquire: pairs with the Release in `write_end`; an even count comes with
        // every store of the write section that ended there.
        Seq(self.0.load(Acquire))
    }

    /// Samples the count unless a write section is open.
    #[inline]
    #[doc(alias = "read_seqcount_begin")]
    pub fn read_begin(&self) -> Option<Seq> {
        let seq = self.sample();
        seq.is_even().then_some(seq)
    }

    /// True if the data read since `begin` may be torn.
    #[inline]
    #[must_use]
    #[doc(alias = "read_seqcount_retry")]
    pub fn read_retry(&self, begin: Seq) -> bool {
        // Acquire fence: pairs with the Release fence in `write`; a reader that saw a store of
        // a write section sees that section's odd count here.
        fence(Acquire);
        self.0.load(Relaxed) != begin.0
    }

    /// Opens a write section; it ends when the writer is dropped.
    ///
    /// The caller holds the lock that serialises writers of this count.
    #[doc(alias = "write_seqcount_begin")]
    pub fn write(&self) -> SeqWriter<'_> {
        let even = self.0.load(Relaxed);
        debug_assert!(even & OPEN == 0, "SEQ-1: two writers at once");
        self.0.store(even | OPEN, Relaxed);
        // Release fence: pairs with the Acquire fence in `read_retry`, see there.
        fence(Release);
        SeqWriter {
            seq: self,
            next: even.wrapping_add(ONE),
        }
    }

    /// The payload, for holders of the writers' lock.
    pub fn payload(&self) -> u32 {
        (self.0.load(Relaxed) & PAYLOAD) as u32
    }
}

/// An open write section.
pub struct SeqWriter<'a> {
    seq: &'a SeqCount,
    next: u64,
}

impl SeqWriter<'_> {
    /// The payload that readers see from the end of this section on.
    pub fn set_payload(&mut self, payload: u32) {
        self.next = self.next & !PAYLOAD | u64::from(payload) & PAYLOAD;
    }
}

impl Drop for SeqWriter<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `sample`, see there.
        self.seq.0.store(self.next, Release);
    }
}

/// A mutex whose holders bump a sequence count, so that readers need no lock.
///
/// It has cache lines of its own: neighbouring data is not slower to read because a writer
/// writes here.
#[doc(alias = "seqlock_t")]
#[repr(align(128))]
pub struct SeqLock {
    writers: Mutex<()>,
    seq: SeqCount,
}

impl SeqLock {
    /// Unlocked; `rank` is the rank of its mutex in the lock order.
    pub fn new(rank: Rank) -> SeqLock {
        SeqLock {
            writers: Mutex::new(rank, ()),
            seq: SeqCount::new(0),
        }
    }

    /// Samples the count; `None` while a writer is at work.
    #[inline]
    #[doc(alias = "read_seqbegin")]
    pub fn read_begin(&self) -> Option<Seq> {
        self.seq.read_begin()
    }

    /// True if a writer came by since `begin`.
    #[inline]
    #[must_use]
    #[doc(alias = "read_seqretry")]
    pub fn read_retry(&self, begin: Seq) -> bool {
        self.seq.read_retry(begin)
    }

    /// Returns the result of `read`, as of one moment. It is called without a lock first; if a
    /// writer came by meanwhile, once more with writers kept out.
    #[doc(alias("read_seqbegin_or_lock", "need_seqretry"))]
    pub fn read<R>(&self, mut read: impl FnMut() -> R) -> R {
        if let Some(begin) = self.read_begin() {
            let seen = read();
            if !self.read_retry(begin) {
                return seen;
            }
        }
        let _no_writer = self.writers.lock();
        read()
    }

    /// Waits for other writers and opens a write section.
    #[doc(alias = "write_seqlock")]
    pub fn write(&self) -> SeqLockGuard<'_> {
        let lock = self.writers.lock();
        SeqLockGuard {
            _section: self.seq.write(),
            _lock: lock,
        }
    }
}

/// The right to change the data that a [`SeqLock`] covers.
pub struct SeqLockGuard<'a> {
    // The section ends before the next writer may start: fields drop in order.
    _section: SeqWriter<'a>,
    _lock: MutexGuard<'a, ()>,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// SEQ-1: a reader whom a writer has disturbed reads again, and then keeps writers out.
    #[test]
    fn a_disturbed_reader_reads_once_more() {
        let lock = SeqLock::new(Rank::RenameLock);
        let mut times = 0;
        let seen = lock.read(|| {
            times += 1;
            if times == 1 {
                drop(lock.write());
            }
            times
        });
        assert_eq!(seen, 2, "SEQ-1");
        assert_eq!(lock.read(|| 7), 7, "SEQ-1: nobody writes");
    }

    /// SEQ-1: the count tells a reader of every write section since it began.
    #[test]
    fn a_write_section_is_noticed() {
        let seq = SeqCount::new(7);
        let begin = seq.read_begin().unwrap();
        assert_eq!(begin.payload(), 7);
        assert!(!seq.read_retry(begin), "SEQ-1: nothing happened");
        {
            let mut writer = seq.write();
            assert!(seq.read_begin().is_none(), "SEQ-1: a section is open");
            writer.set_payload(9);
            assert_eq!(seq.payload(), 7, "SEQ-1: the payload changes with the end");
        }
        assert!(seq.read_retry(begin), "SEQ-1: a section has passed");
        assert_eq!(seq.read_begin().unwrap().payload(), 9);
    }
}
