//! The process's domain over a fork; see `fork.rs` of the crate.

use super::super::slot::{self, Bag, Watch};
use super::*;

/// All locks of the domain but the turn to free, in the order in which they nest.
pub(crate) struct OverFork {
    slots: MutexGuard<'static, Slots>,
    _bags: Vec<(MutexGuard<'static, Bag>, MutexGuard<'static, Watch>)>,
    sealed: MutexGuard<'static, VecDeque<(u64, Bag)>>,
}

/// Called by the thread that forks.
pub(crate) fn before_fork() -> OverFork {
    let domain = domain();
    let slots = lock(&domain.slots);
    let of_slot = |slot: &&'static Slot| (lock(&slot.bag), lock(&slot.watch));
    OverFork {
        _bags: slots.all.iter().map(of_slot).collect(),
        sealed: lock(&domain.sealed),
        slots,
    }
}

impl OverFork {
    /// Called in the child.
    ///
    /// Its memory is no snapshot: the kernel copies page after page while the other threads go
    /// on. Data that is changed only under locks is whole nevertheless, since this thread holds
    /// them. Of the data that other threads change without locks, this empties the slots. The
    /// period only grows, and bags are numbered under `sealed`: at whatever moment the period
    /// was copied, it is not below the number of a bag.
    pub(crate) fn in_child(&mut self) {
        let domain = domain();
        #[cfg(target_os = "linux")]
        membarrier::after_fork();
        let mine = slot::known_this_thread().map(|reader| reader.0.index);
        let others = self
            .slots
            .all
            .iter()
            .filter(|slot| Some(slot.index) != mine);
        let others: Vec<&'static Slot> = others.copied().collect();
        for slot in &others {
            Reader(slot).vanish();
        }
        // The next threads get them, with the objects in their bags.
        self.slots.unused = others;
        if !is_freeing() {
            domain.freeing.set_back();
            // Another thread may have been at it: the bag that it had is lost.
            let (mut objects, mut bytes) = (0, 0);
            for (_, bag) in self.sealed.iter() {
                objects += bag.objects.len() as u64;
                bytes += bag.bytes as u64;
            }
            let retired = domain.retired.load(Relaxed);
            domain.freed.store(retired.saturating_sub(objects), Relaxed);
            domain.pending_bytes.store(bytes, Relaxed);
        }
    }
}
