//! How much may be cached (MEM-1).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rcuwalk_sync::{LookAfter, Lru};

/// Limits on the unused objects in the caches of one [`Vfs`](crate::Vfs).
///
/// MEM-1: cached names, inodes, bytes and descriptors stay within the budget plus the ones in
/// use (open files, current directories, mounts, and the directories above them), with two
/// percent more for moments. Objects that RCU has retired and not yet freed come on top: a bag
/// per thread as a rule ([`Domain::BATCH_OBJECTS`](rcuwalk_sync::rcu::Domain::BATCH_OBJECTS)),
/// and while a reader stalls, more, up to the cap of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Names, found and missing ones. The missing ones take a quarter of it at most, and go sooner.
    pub dentries: usize,
    /// Inodes.
    pub inodes: usize,
    /// Bytes of names and inodes together; half of them each.
    pub bytes: usize,
    /// Descriptors that back ends keep with inodes; hostfs keeps those of the directories
    /// that were used last.
    pub fds: usize,
}

impl Default for Budget {
    /// A million names, a million inodes, 512 MiB, and 512 descriptors: half of a process's
    /// usual limit. Raise it where the limit has been raised.
    fn default() -> Self {
        Budget {
            dentries: 1 << 20,
            inodes: 1 << 20,
            bytes: 512 << 20,
            fds: 512,
        }
    }
}

/// Objects scanned at a time, with their shard locked.
pub(crate) const BATCH: usize = 64;

/// How much a cache has to reclaim from its unused objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// There is room.
    Nothing,
    /// Some; objects used since the last scan get a second chance.
    Room,
    /// Some; second chances are over.
    RoomAtOnce,
}

/// One cache's budget, and how it reclaims.
///
/// The thread that inserts reclaims: after every few insertions it compares the total with the
/// budget, and scans objects until the budget is met. The scan is bounded, or an insertion
/// would cost more the more objects are in use.
///
/// **Why the budget holds, however often objects are used.** A call that meets the budget adds
/// nothing to the excess. One that reaches its bound first ends the second chances until the
/// budget is met, and the calls after it go over all shards, over each in proportion to its
/// length. They leave only objects in use: so before the excess grows by another two percent,
/// each object has been freed or was in use when it was scanned.
pub(crate) struct Share {
    objects: usize,
    bytes: usize,
    object_bytes: usize,
    /// Set while there are no second chances.
    insists: AtomicBool,
}

impl Share {
    pub(crate) fn new(objects: usize, bytes: usize, object_bytes: usize) -> Share {
        Share {
            objects,
            bytes,
            object_bytes,
            insists: AtomicBool::new(false),
        }
    }

    /// How many objects fit, if they bring nothing beside themselves.
    pub(crate) fn fits(&self) -> usize {
        self.objects.min(self.bytes / self.object_bytes)
    }

    /// The number of shards of the list: few for small budgets, where each would hold next to
    /// nothing.
    pub(crate) fn shards(&self) -> usize {
        (self.fits() / 256).clamp(1, 16)
    }

    /// How much may enter one shard before a thread checks the total: the budget is kept to
    /// within two percent, and no closer than pays.
    pub(crate) fn look_after(&self) -> LookAfter {
        let parts = 64 * self.shards();
        LookAfter {
            objects: (self.fits() / parts).clamp(1, 32),
            weight: (self.bytes / parts).max(1),
        }
    }

    /// True if this number of objects, and bytes beside them, are too many.
    #[inline]
    pub(crate) fn is_over(&self, objects: usize, extra: usize) -> bool {
        objects > self.objects || objects * self.object_bytes + extra > self.bytes
    }

    /// Whether to reclaim ahead of need: a sixteenth of the budget is left.
    pub(crate) fn is_nearly_over(&self, objects: usize, extra: usize) -> bool {
        let bytes = objects * self.object_bytes + extra;
        objects > self.objects - self.objects / 16 || bytes > self.bytes - self.bytes / 16
    }

    /// How much to reclaim with this number of objects, and bytes beside them.
    #[inline]
    pub(crate) fn need(&self, objects: usize, extra: usize) -> Need {
        match self.is_over(objects, extra) {
            false => Need::Nothing,
            true if self.insists.load(Relaxed) => Need::RoomAtOnce,
            true => Need::Room,
        }
    }

    /// Reclaims in a cache that is over its budget: `prune` scans the given number of objects
    /// at the tail of a shard of one of the `lists`, the first ones first, and drops unused ones.
    /// Returns false if the cache is still over its budget.
    pub(crate) fn make_room<T>(
        &self,
        lists: &[&Lru<T>],
        prune: impl Fn(&Lru<T>, usize, usize),
    ) -> bool {
        // A batch for each object that may have come since the last scan: so all objects are
        // scanned before two percent more have come.
        let limit = BATCH * (self.look_after().objects + 1);
        let insists = self.insists.load(Relaxed);
        let has_room = || self.has_room(lists);
        let found_room = lists.iter().any(|list| match insists {
            false => Self::prune_patiently(list, limit, &prune, has_room),
            true => Self::prune_insistently(list, limit, &prune, has_room),
        });
        if found_room == insists {
            self.insists.store(!found_room, Relaxed);
        }
        found_room
    }

    /// Prunes one batch from the shard whose turn it is, and more from the next ones until the
    /// cache is within its budget.
    fn prune_patiently<T>(
        lru: &Lru<T>,
        limit: usize,
        prune: impl Fn(&Lru<T>, usize, usize),
        has_room: impl Fn() -> bool,
    ) -> bool {
        let (mut shard, mut looked, mut round) = (lru.victim(), 0, 0);
        // Empty ones count for next to nothing: all may be on one shard.
        while looked <= limit && (round < lru.shards() || lru.size().0 > 0) {
            looked += lru.len_of(shard).clamp(1, BATCH);
            prune(lru, shard, BATCH);
            if has_room() {
                return true;
            }
            (shard, round) = ((shard + 1) % lru.shards(), round + 1);
        }
        false
    }

    /// From each shard its part.
    fn prune_insistently<T>(
        lru: &Lru<T>,
        limit: usize,
        prune: impl Fn(&Lru<T>, usize, usize),
        has_room: impl Fn() -> bool,
    ) -> bool {
        let first = lru.victim();
        for round in 0..lru.shards() {
            let shard = (first + round) % lru.shards();
            let mut left = lru.part_of(limit, shard);
            while left > 0 {
                let batch = left.min(BATCH);
                left -= batch;
                prune(lru, shard, batch);
                if has_room() {
                    return true;
                }
            }
        }
        false
    }

    fn has_room<T>(&self, lists: &[&Lru<T>]) -> bool {
        let sizes = lists.iter().map(|list| list.size());
        let (objects, extra) = sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
        !self.is_over(objects, extra)
    }
}
