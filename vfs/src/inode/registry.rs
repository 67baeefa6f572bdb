//! Which cache an inode belongs to, for its last reference.
//!
//! An inode carries its cache's number and not a pointer to it: a counted pointer in every
//! inode would be a line that all threads write to with each inode they make. Only an inode
//! that leaves the cache with its last reference asks here, once, when that goes.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use rcuwalk_sync::{Late, fork};

type AnyCache = Weak<dyn Any + Send + Sync>;

static CACHES: RwLock<Caches> = RwLock::new(Caches {
    by_number: BTreeMap::new(),
    last: 0,
});

struct Caches {
    by_number: BTreeMap<u32, AnyCache>,
    last: u32,
}

/// All locks of this crate that are static, so that the child of a fork does not find one
/// taken by a thread that it has not got.
fn hold_over_fork() -> Box<dyn Any> {
    super::node::seed();
    let writers = crate::vfs_inode::hold_writers();
    let caches = CACHES.write().unwrap_or_else(PoisonError::into_inner);
    Box::new((writers, caches))
}

/// A cache's number. No other cache ever gets it: inodes may outlive their cache.
pub(super) struct Number(u32);

impl Number {
    /// # Panics
    /// For cache number 2^30.
    pub(super) fn of<C: Any + Send + Sync>(cache: Weak<C>) -> Number {
        let mut caches = CACHES.write().unwrap_or_else(PoisonError::into_inner);
        if caches.last == 0 {
            fork::also(hold_over_fork);
        }
        let number = caches.last + 1;
        assert!(number <= Late::<(), ()>::MOST, "under 2^30 caches");
        caches.last = number;
        caches.by_number.insert(number, cache);
        Number(number)
    }

    pub(super) fn get(&self) -> u32 {
        self.0
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut caches = CACHES.write().unwrap_or_else(PoisonError::into_inner);
        caches.by_number.remove(&self.0);
    }
}

/// The cache with this number, if it is still there.
pub(super) fn find<C: Any + Send + Sync>(number: u32) -> Option<Arc<C>> {
    let cache = {
        let caches = CACHES.read().unwrap_or_else(PoisonError::into_inner);
        caches.by_number.get(&number)?.clone()
    };
    cache.upgrade()?.downcast().ok()
}
