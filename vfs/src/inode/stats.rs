//! Counters of an inode cache: per thread, summed when asked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rcuwalk_sync::PerThread;

/// One thread's counters. Plain loads and stores: no other thread writes them.
#[derive(Default)]
pub(super) struct Counters {
    counts: [AtomicU64; EVENTS],
}

/// The counted events.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum Event {
    Hit,
    FirstMiss,
    SecondHit,
    Inserted,
    WaitedForNew,
    WaitedForFreeing,
    Stale,
    Evicted,
    LookupLock,
    InsertLock,
    EvictLock,
}

const EVENTS: usize = Event::EvictLock as usize + 1;

impl Counters {
    #[inline]
    pub(super) fn count(&self, event: Event) {
        self.add(event, 1);
    }

    #[inline]
    pub(super) fn add(&self, event: Event, more: u64) {
        let counter = &self.counts[event as usize];
        counter.store(counter.load(Relaxed) + more, Relaxed);
    }
}

/// An inode cache's work so far, and its contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InodeStatistics {
    /// Lookups that found the inode at the first look.
    pub hits: u64,
    /// First looks, under RCU or the lock, that found nothing.
    pub misses: u64,
    /// Second looks, under the lock that the insertion happens under, that found what
    /// another thread had inserted meanwhile.
    pub second_hits: u64,
    /// Second looks that found nothing: the inode was inserted.
    pub inserted: u64,
    /// Times a lookup slept until another thread had read the inode in.
    pub waited_for_new: u64,
    /// Times a lookup slept until an inode was gone.
    pub waited_for_freeing: u64,
    /// Lookups that met an inode that its creator had not finished.
    pub stale: u64,
    /// Inodes evicted.
    pub evicted: u64,
    /// Locks taken for first looks.
    pub lookup_locks: u64,
    /// Locks taken for second looks and insertions.
    pub insert_locks: u64,
    /// Locks taken to take an inode off the table.
    pub evict_locks: u64,
    /// How often another thread held the lock.
    pub contended: u64,
    /// The total time that threads waited for it.
    pub lock_wait: Duration,
    /// Inodes cached now,
    pub inodes: usize,
    /// and the bytes they take.
    pub bytes: usize,
}

impl InodeStatistics {
    /// The counters of all threads together.
    pub(super) fn sum(counters: &PerThread<Counters>) -> InodeStatistics {
        let of = |event: Event| {
            let each = counters.iter();
            each.map(|one| one.counts[event as usize].load(Relaxed))
                .sum()
        };
        InodeStatistics {
            hits: of(Event::Hit),
            misses: of(Event::FirstMiss),
            second_hits: of(Event::SecondHit),
            inserted: of(Event::Inserted),
            waited_for_new: of(Event::WaitedForNew),
            waited_for_freeing: of(Event::WaitedForFreeing),
            stale: of(Event::Stale),
            evicted: of(Event::Evicted),
            lookup_locks: of(Event::LookupLock),
            insert_locks: of(Event::InsertLock),
            evict_locks: of(Event::EvictLock),
            ..InodeStatistics::default()
        }
    }
}
