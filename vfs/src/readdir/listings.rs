//! The budget of cached listings: which directory gives its listing up (MEM-1).
//!
//! A listing is evicted as one thing, and the one that was used least recently goes first
//! (second chance). The queue holds weak references, so it keeps no directory in use.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use rcuwalk_sync::lock::{Mutex, Rank};

use super::cache::DirCache;

/// Entries of the queue that may be of directories that are gone, beside as many as there are others.
const FEW: usize = 64;

/// The cached listings of one [`Vfs`](crate::Vfs).
pub(crate) struct Listings {
    limit: usize,
    bytes: AtomicUsize,
    /// Directories that have something cached.
    directories: AtomicUsize,
    queue: Mutex<VecDeque<Weak<DirCache>>>,
}

impl Listings {
    pub(crate) fn new(limit: usize) -> Arc<Listings> {
        Arc::new(Listings {
            limit,
            bytes: AtomicUsize::new(0),
            directories: AtomicUsize::new(0),
            queue: Mutex::new(Rank::Lru, VecDeque::new()),
        })
    }

    /// Bytes that all listings may have together.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Directories with a cached listing, and the bytes of all.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.directories.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// A directory has so many bytes now, in place of what it had `before`.
    pub(super) fn charge(&self, before: usize, now: usize) {
        // The counters guard nothing. Wrapping: one may take off before another adds.
        self.bytes.fetch_add(now.wrapping_sub(before), Relaxed);
        if before == 0 && now > 0 {
            self.directories.fetch_add(1, Relaxed);
        } else if before > 0 && now == 0 {
            self.directories.fetch_sub(1, Relaxed);
        }
    }

    /// A directory begins to cache its listing.
    pub(super) fn enqueue(&self, dir: &Arc<DirCache>) {
        let mut queue = self.queue.lock();
        if queue.len() > FEW + 2 * self.directories.load(Relaxed) {
            queue.retain(|dir| dir.strong_count() > 0);
        }
        queue.push_back(Arc::downgrade(dir));
    }

    /// True if the listings have more bytes than they may.
    pub(super) fn is_exceeded(&self) -> bool {
        self.bytes.load(Relaxed) > self.limit
    }

    /// Evicts listings until the rest is within the budget. The caller holds no lock.
    pub(crate) fn make_room(&self) {
        if self.is_exceeded() {
            self.evict_to(self.limit);
        }
    }

    /// Evicts all.
    pub(crate) fn clear(&self) {
        self.evict_to(0);
    }

    #[cold]
    fn evict_to(&self, limit: usize) {
        // Twice: the first turn may end only second chances.
        let mut turns = 2 * self.queue.lock().len();
        while self.bytes.load(Relaxed) > limit && turns > 0 {
            turns -= 1;
            let Some(dir) = self.queue.lock().pop_front() else {
                return;
            };
            // Gone with its inode, if it cannot be upgraded.
            if let Some(dir) = dir.upgrade()
                && dir.keeps_second_chance()
            {
                self.queue.lock().push_back(Arc::downgrade(&dir));
            }
        }
    }
}
