//! The caches that all mounts of one [`Vfs`](crate::Vfs) share.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rcuwalk_sync::PerThread;

use crate::budget::Budget;
use crate::dentry::Dcache;
use crate::inode::{Inode, InodeCache, InodeId, VfsInode};
use crate::stats::{self, Counters, Statistics};

/// Names, inodes and counters.
pub(crate) struct Caches {
    pub(crate) icache: InodeCache<InodeId, VfsInode>,
    pub(crate) dcache: Dcache,
    pub(crate) counters: PerThread<Counters>,
    next_super_block: AtomicU32,
}

impl Caches {
    pub(crate) fn new(budget: Budget) -> Caches {
        Caches {
            icache: InodeCache::new(budget.inodes, budget.bytes / 2, Inode::extra_bytes),
            dcache: Dcache::new(budget.dentries, budget.bytes / 2),
            counters: PerThread::new(),
            next_super_block: AtomicU32::new(1),
        }
    }

    pub(crate) fn new_super_block_id(&self) -> u32 {
        self.next_super_block.fetch_add(1, Relaxed)
    }

    /// Names first: they hold the inodes. Returns how many inodes went.
    pub(crate) fn drop_unused(&self) -> usize {
        self.dcache.drop_unused();
        self.icache.drop_unused()
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            dentries: self.dcache.size(),
            inodes: self.icache.size(),
            dentries_evicted: self.dcache.evicted(),
            inodes_evicted: self.icache.evicted(),
            ..stats::sum(&self.counters)
        }
    }
}
