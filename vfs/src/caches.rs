//! The caches that all mounts of one [`Vfs`](crate::Vfs) share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rcuwalk_sync::{PerThread, lock, rcu};

use crate::budget::Budget;
use crate::dentry::Dcache;
use crate::descriptors::{Descriptors, HeldDescriptor};
use crate::inode::{InodeCache, Scheme};
use crate::readdir::Listings;
use crate::stats::{self, Counters, Statistics};
use crate::vfs_inode::{Inode, InodeId, VfsInode};

/// Objects scanned in each cache to get descriptors back.
const PRUNE_FOR_DESCRIPTORS: usize = 4096;

/// Names, inodes and counters.
pub(crate) struct Caches {
    pub(crate) icache: Arc<InodeCache<InodeId, VfsInode>>,
    pub(crate) dcache: Dcache,
    pub(crate) counters: PerThread<Counters>,
    pub(crate) descriptors: Arc<Descriptors>,
    pub(crate) listings: Arc<Listings>,
    next_super_block: AtomicU32,
}

impl Caches {
    pub(crate) fn new(budget: Budget, scheme: Scheme) -> Caches {
        let icache = InodeCache::builder()
            .inodes(budget.inodes)
            .bytes(budget.bytes / 2)
            .weight(Inode::extra_bytes)
            .on_last_put(|inode| inode.last_put())
            .scheme(scheme);
        let icache = Arc::new(icache.build());
        Caches {
            dcache: Dcache::new(budget.dentries, budget.bytes / 2, icache.clone()),
            icache,
            counters: PerThread::new(),
            descriptors: Descriptors::new(budget.fds),
            listings: Listings::new(budget.listings),
            next_super_block: AtomicU32::new(1),
        }
    }

    pub(crate) fn new_super_block_id(&self) -> u32 {
        self.next_super_block.fetch_add(1, Relaxed)
    }

    /// Names first: they hold the inodes. Returns how many inodes went.
    pub(crate) fn drop_unused(&self) -> usize {
        self.listings.clear();
        self.dcache.drop_unused();
        self.icache.drop_unused()
    }

    /// Called after names have been added: evicts unused names where they are what keeps the
    /// inodes above their budget (MEM-1).
    #[inline]
    pub(crate) fn make_room(&self) {
        if self.icache.is_too_full() {
            self.dcache.make_room(self.icache.share());
        }
    }

    /// Counts one more descriptor. If that exceeds the budget, this thread reclaims as soon as
    /// it holds no lock and its call is over (CALL-1).
    pub(crate) fn hold_descriptor(self: &Arc<Self>) -> HeldDescriptor {
        let (held, too_many) = self.descriptors.hold();
        if too_many {
            let caches = self.clone();
            lock::when_none_held(move || caches.make_room_for_descriptors());
        }
        held
    }

    fn make_room_for_descriptors(&self) {
        // One of several that were held in one call may have made room for all.
        if self.descriptors.are_too_many() {
            self.dcache.prune(PRUNE_FOR_DESCRIPTORS);
            self.icache.prune_now(PRUNE_FOR_DESCRIPTORS);
            // Descriptors are closed when their inodes are freed, not when those are dropped.
            rcu::barrier();
            self.descriptors.made_room();
        }
    }

    /// Drops everything that is unused, and waits until it is freed. Returns how many inodes
    /// went. The caller holds no lock (CALL-1).
    pub(crate) fn release(&self) -> usize {
        let gone = self.drop_unused();
        rcu::barrier();
        gone
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            dentries: self.dcache.size(),
            inodes: self.icache.size(),
            dentries_evicted: self.dcache.evicted(),
            inodes_evicted: self.icache.evicted(),
            scanned: self.dcache.scanned() + self.icache.scanned(),
            fds: self.descriptors.held(),
            listings: self.listings.size(),
            ..stats::sum(&self.counters)
        }
    }
}
