//! Counters that explain performance later: per thread, summed when asked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rcuwalk_sync::PerThread;
use rcuwalk_sync::rcu;

/// Why an RCU-walk started again or went on with references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Why {
    /// A name on the way was not in the cache.
    NotCached,
    /// Something on the way was moved, removed or evicted while the walk was there.
    Moved,
    /// A mount appeared or went away.
    MountsChanged,
    /// A cached name had to be revalidated.
    Revalidate,
    /// The target of a symbolic link was not cached, or has a NUL in it.
    LinkNotCached,
    /// A directory has an ACL that was not cached.
    AclNotCached,
    /// A reference was wanted and the object was on its way out.
    Dying,
}

const REASONS: usize = 7;

impl Why {
    /// Every reason, in the order of [`Statistics::unlazied`].
    pub const ALL: [Why; REASONS] = [
        Why::NotCached,
        Why::Moved,
        Why::MountsChanged,
        Why::Revalidate,
        Why::LinkNotCached,
        Why::AclNotCached,
        Why::Dying,
    ];
}

/// One thread's counters. Plain loads and stores: no other thread writes them.
#[derive(Default)]
pub(crate) struct Counters {
    hits: AtomicU64,
    negative_hits: AtomicU64,
    refused: AtomicU64,
    ref_walks: AtomicU64,
    slow_lookups: AtomicU64,
    revalidations: AtomicU64,
    listed_from_cache: AtomicU64,
    missing_by_listing: AtomicU64,
    unlazied: [AtomicU64; REASONS],
    restarts: [AtomicU64; REASONS],
}

#[inline]
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

impl Counters {
    #[inline]
    pub(crate) fn hit(&self) {
        bump(&self.hits);
    }
    #[inline]
    pub(crate) fn negative_hit(&self) {
        bump(&self.negative_hits);
    }
    #[inline]
    pub(crate) fn refused(&self) {
        bump(&self.refused);
    }
    pub(crate) fn ref_walk(&self) {
        bump(&self.ref_walks);
    }
    /// Returns how many that makes.
    pub(crate) fn slow_lookup(&self) -> u64 {
        bump(&self.slow_lookups);
        self.slow_lookups.load(Relaxed)
    }
    pub(crate) fn revalidation(&self) {
        bump(&self.revalidations);
    }
    pub(crate) fn listed_from_cache(&self) {
        bump(&self.listed_from_cache);
    }
    pub(crate) fn missing_by_listing(&self) {
        bump(&self.missing_by_listing);
    }
    pub(crate) fn unlazied(&self, why: Why) {
        bump(&self.unlazied[why as usize]);
    }
    pub(crate) fn restart(&self, why: Why) {
        bump(&self.restarts[why as usize]);
    }
}

/// The caches' work so far, and their contents.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Walks answered under RCU: found.
    pub hits: u64,
    /// Walks answered under RCU: the name is cached as missing.
    pub negative_hits: u64,
    /// Walks answered under RCU: with an error other than a missing name.
    pub refused: u64,
    /// Walks that took references, from the start or from somewhere on the way.
    pub ref_walks: u64,
    /// Names the back end was asked for.
    pub slow_lookups: u64,
    /// Cached names the back end was asked to confirm.
    pub revalidations: u64,
    /// RCU-walks that went on with references, by [`Why::ALL`].
    pub unlazied: [u64; REASONS],
    /// RCU-walks that started again, by [`Why::ALL`].
    pub restarts: [u64; REASONS],
    /// Names in the cache, and the bytes they take.
    pub dentries: (usize, usize),
    /// Inodes in the cache, and the bytes they take.
    pub inodes: (usize, usize),
    /// Names dropped to stay within the budget or on request.
    pub dentries_evicted: u64,
    /// Inodes dropped to stay within the budget or on request.
    pub inodes_evicted: u64,
    /// Unused names and inodes that a thread has looked at to evict some of them.
    #[doc(alias = "pgscan")]
    pub scanned: u64,
    /// Directories with a cached listing, and the bytes of all listings.
    pub listings: (usize, usize),
    /// Batches of entries copied from a cached listing.
    pub listed_from_cache: u64,
    /// Missing names that a cached listing has answered for.
    pub missing_by_listing: u64,
    /// Descriptors that back ends keep with inodes.
    pub fds: usize,
    /// Bytes of retired objects that wait for readers, process-wide.
    pub rcu_pending_bytes: u64,
    /// The thread that has been inside one RCU read section for longest, and for how long, if
    /// there is one that holds up freeing.
    pub rcu_stalled: Option<(String, Duration)>,
}

/// The counters of all threads together.
pub(crate) fn sum(counters: &PerThread<Counters>) -> Statistics {
    let rcu = rcu::statistics();
    let mut sum = Statistics {
        rcu_pending_bytes: rcu.pending_bytes,
        rcu_stalled: rcu.stalled.map(|stall| (stall.thread, stall.lasting)),
        ..Statistics::default()
    };
    for one in counters.iter() {
        sum.hits += one.hits.load(Relaxed);
        sum.negative_hits += one.negative_hits.load(Relaxed);
        sum.refused += one.refused.load(Relaxed);
        sum.ref_walks += one.ref_walks.load(Relaxed);
        sum.slow_lookups += one.slow_lookups.load(Relaxed);
        sum.revalidations += one.revalidations.load(Relaxed);
        sum.listed_from_cache += one.listed_from_cache.load(Relaxed);
        sum.missing_by_listing += one.missing_by_listing.load(Relaxed);
        for (total, part) in sum.unlazied.iter_mut().zip(&one.unlazied) {
            *total += part.load(Relaxed);
        }
        for (total, part) in sum.restarts.iter_mut().zip(&one.restarts) {
            *total += part.load(Relaxed);
        }
    }
    sum
}
