//! How much may be cached (MEM-1).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rcuwalk_sync::{List, PerThread, rcu};

use crate::setters;

/// Limits on the unused objects in the caches of one [`Vfs`](crate::Vfs).
///
/// MEM-1: cached names, inodes, bytes and descriptors stay within the budget plus the ones in
/// use (open files, current directories, mounts, and the directories above them), with two
/// percent more for moments. Objects that RCU has retired and not yet freed come on top: a bag
/// per thread as a rule ([`Domain::BATCH_OBJECTS`](rcuwalk_sync::rcu::Domain::BATCH_OBJECTS)),
/// and while a reader stalls, more, up to the cap of the domain.
///
/// ```
/// let budget = rcuwalk::Budget::default().dentries(100_000).inodes(100_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budget {
    /// Names, found and missing ones. The missing ones take a quarter of it at most, and go sooner.
    pub dentries: usize,
    /// Inodes.
    pub inodes: usize,
    /// Bytes of names and inodes together: half for either, as a name needs as much as the inode
    /// of its file.
    pub bytes: usize,
    /// Descriptors that back ends keep with inodes; hostfs keeps those of the directories
    /// that were used last.
    pub fds: usize,
    /// Bytes of cached listings, beside `bytes`: 0 for none. A listing takes 40 bytes and the
    /// name for each entry at most, and one that is longer than all of this is not kept. See
    /// [`FileSystem::caches_listings`](crate::FileSystem::caches_listings).
    pub listings: usize,
}

setters!(Budget {
    dentries: usize,
    inodes: usize,
    bytes: usize,
    fds: usize,
    listings: usize,
});

impl Default for Budget {
    /// A million names, a million inodes, 512 MiB, 64 MiB of listings, and 512 descriptors: half
    /// of a process's usual limit. Raise it where the limit has been raised.
    fn default() -> Self {
        Budget {
            dentries: 1 << 20,
            inodes: 1 << 20,
            bytes: 512 << 20,
            fds: 512,
            listings: 64 << 20,
        }
    }
}

/// Objects scanned at a time, with their shard locked.
pub(crate) const BATCH: usize = 64;

/// The budget of one cache, the objects that count against it, and the loop that reclaims.
///
/// All cached objects count, also those in use. The thread that adds an object reclaims: after
/// every few additions it compares the total with the budget, and scans the lists of unused
/// objects until the total is within the budget or the lists are empty.
///
/// **Why the budget holds.** A scan of an object has one of three results. It frees the object. It
/// ends the object's second chance, and the next scan frees it unless it is used in between. Or it
/// takes the object off the list because it is in use; the last put lists it again (LRU-1). So
/// objects in use are not scanned again and again. A call scans [`PATIENT`] objects at most before
/// second chances end, and as many after that, when each scan frees the object or takes it off its list.
/// Before the excess grows by another two percent, calls have scanned every object on the lists.
pub(crate) struct Share {
    objects: usize,
    bytes: usize,
    object_bytes: usize,
    /// A thread compares the total with the budget after this many additions, or after this many
    /// bytes. Powers of two; smaller if there are many threads.
    step: AtomicUsize,
    extra_step: AtomicUsize,
    shards: usize,
    charged: PerThread<Charged>,
}

/// One thread adds this many objects at the most before it looks at the total.
const MOST: usize = 32;

/// A call scans this many objects before second chances end, and this many after that: a batch
/// for each object that may have been added since the previous call.
const PATIENT: usize = BATCH * (MOST + 1);

/// What one thread has added and removed. Each counter runs on by itself: a thread may remove what
/// another one has added.
#[derive(Default)]
struct Charged {
    added: AtomicUsize,
    removed: AtomicUsize,
    extra_added: AtomicUsize,
    extra_removed: AtomicUsize,
}

/// Adds to a counter that only this thread writes to. Returns what it was before.
#[inline]
fn bump(counter: &AtomicUsize, by: usize) -> usize {
    let before = counter.load(Relaxed);
    counter.store(before.wrapping_add(by), Relaxed);
    before
}

impl Share {
    pub(crate) fn new(objects: usize, bytes: usize, object_bytes: usize) -> Share {
        let fits = objects.min(bytes / object_bytes);
        let shards = (fits / 256).clamp(1, 16);
        let share = Share {
            objects,
            bytes,
            object_bytes,
            step: AtomicUsize::new(0),
            extra_step: AtomicUsize::new(0),
            shards,
            charged: PerThread::new(),
        };
        share.set_steps();
        share
    }

    /// So that the budget is kept to within two percent, and no closer than pays.
    #[cold]
    fn set_steps(&self) {
        let parts = 64 * self.shards.max(rcu::threads());
        let power_below = |n: usize| 1 << n.max(1).ilog2();
        let set = |step: &AtomicUsize, to| {
            // Nearly never: others read this line.
            if step.load(Relaxed) != to {
                step.store(to, Relaxed);
            }
        };
        set(&self.step, power_below((self.fits() / parts).min(MOST)));
        set(&self.extra_step, power_below(self.bytes / parts));
    }

    /// How many objects fit, if they bring nothing beside themselves.
    pub(crate) fn fits(&self) -> usize {
        self.objects.min(self.bytes / self.object_bytes)
    }

    /// The number of shards of the list: few for small budgets, where each would hold next to
    /// nothing.
    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    /// How many objects one thread may add before it looks at the total, at the most.
    pub(crate) fn step(&self) -> usize {
        (self.fits() / (64 * self.shards)).clamp(1, MOST)
    }

    /// An object has been added, and `extra` bytes beside it. True if it is time to look at the
    /// total.
    #[inline]
    pub(crate) fn charge(&self, extra: usize) -> bool {
        let mine = self.charged.get();
        let before = bump(&mine.added, 1);
        let mut is_time = before & (self.step.load(Relaxed) - 1) == 0;
        if extra > 0 {
            let before = bump(&mine.extra_added, extra);
            is_time |= (before ^ before.wrapping_add(extra)) >= self.extra_step.load(Relaxed);
        }
        if is_time {
            self.set_steps();
        }
        is_time
    }

    /// Objects have left, and the bytes beside them.
    #[inline]
    pub(crate) fn uncharge(&self, objects: usize, extra: usize) {
        let mine = self.charged.get();
        bump(&mine.removed, objects);
        if extra > 0 {
            bump(&mine.extra_removed, extra);
        }
    }

    /// Objects charged, and the bytes beside them, by each thread at the moment it was asked.
    /// Takes no lock.
    pub(crate) fn size(&self) -> (usize, usize) {
        let sum = |counter: fn(&Charged) -> &AtomicUsize| {
            let each = self
                .charged
                .iter()
                .map(|thread| counter(thread).load(Relaxed));
            each.fold(0, usize::wrapping_add)
        };
        // `removed` first: an object is added before it is removed, so the difference is not
        // negative except when other threads change the counters meanwhile.
        let (removed, extra_removed) = (
            sum(|thread| &thread.removed),
            sum(|thread| &thread.extra_removed),
        );
        let (added, extra_added) = (
            sum(|thread| &thread.added),
            sum(|thread| &thread.extra_added),
        );
        let less = |added: usize, removed| added.wrapping_sub(removed).cast_signed().max(0);
        (
            less(added, removed).cast_unsigned(),
            less(extra_added, extra_removed).cast_unsigned(),
        )
    }

    /// True if this is more than the budget.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        let (objects, extra) = self.size();
        self.is_too_much(objects, extra)
    }

    /// True if this number of objects, and bytes beside them, are too many.
    #[inline]
    pub(crate) fn is_too_much(&self, objects: usize, extra: usize) -> bool {
        objects > self.objects || objects * self.object_bytes + extra > self.bytes
    }

    /// True if this number of objects leaves less than a sixteenth of the budget: time to reclaim
    /// ahead of need.
    pub(crate) fn is_nearly_too_much(&self, objects: usize, extra: usize) -> bool {
        let bytes = objects * self.object_bytes + extra;
        objects > self.objects - self.objects / 16 || bytes > self.bytes - self.bytes / 16
    }

    /// Reclaims until `is_done`: `prune` scans a batch at the tail of a shard of one of the
    /// `lists`, the first ones first, and frees what has no second chance; the last argument says
    /// that nothing has any more. It returns how many objects it has scanned. False if the lists, or
    /// the limit, came to an end first.
    pub(crate) fn make_room<T>(
        lists: &[List<'_, T>],
        is_done: impl Fn() -> bool,
        prune: impl Fn(&List<'_, T>, usize, bool) -> usize,
    ) -> bool {
        for list in lists {
            let mut scanned = 0;
            while scanned < 2 * PATIENT {
                if is_done() {
                    return true;
                }
                let Some(shard) = list.victim() else {
                    break;
                };
                // At least one: another thread may have emptied it.
                scanned += prune(list, shard, scanned >= PATIENT).max(1);
            }
        }
        is_done()
    }
}
