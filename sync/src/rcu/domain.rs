//! Grace periods, and who frees what when.
//!
//! The domain counts periods. A read section is stamped with the period it began
//! in. To free a bag of retired objects: seal it with a new period number, pay for
//! the heavy fence, look at all readers, and free if none is in an older period.
//!
//! Why that is enough (RCU-1): take an object unpublished before its bag was
//! sealed with period `p`, and a reader that could still find it.
//!
//! - The reader's stamp is at least `p`: it loaded the period after the sealing
//!   stored it (Acquire with AcqRel), so it sees the unpublishing. It cannot find
//!   the object.
//! - The reader's stamp is lower and the scan sees it: the bag waits.
//! - The scan sees no stamp: then the reader's light fence came after our heavy
//!   one, and its reads see the unpublishing; or it had left before the scan.
//!
//! Nobody but writers frees: a thread whose bag is full seals it and frees what
//! is ripe, if nobody else is at it. Past the cap a writer waits for a grace
//! period, unless it holds a lock or is itself inside a read section.

use std::cell::Cell;
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard, atomic::AtomicU64 as PlainU64};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard, atomic::AtomicU64 as PlainU64};

use super::slot::{Bag, QUIESCENT, Reader, Retired, Slot};
use super::{Stall, Statistics, membarrier};
use crate::atomic::*;

/// A set of readers and what waits for them. The process has one of its own;
/// model checks make more.
pub struct Domain {
    /// The current period; starts at 1, because 0 means quiescent.
    pub(super) period: PlainU64,
    slots: Mutex<Slots>,
    /// Sealed bags, oldest period first.
    sealed: Mutex<VecDeque<(u64, Bag)>>,
    /// Held by the one thread that frees. A waiter for it may hold `slots` or
    /// `sealed` never, and takes them only after it.
    freeing: Mutex<()>,
    retired: PlainU64,
    freed: PlainU64,
    pending_bytes: PlainU64,
}

#[derive(Default)]
struct Slots {
    all: Vec<&'static Slot>,
    unused: Vec<&'static Slot>,
}

#[cfg(not(loom))]
static DOMAIN: Domain = Domain::new();
#[cfg(loom)]
loom::lazy_static! {
    static ref DOMAIN: Domain = Domain::new();
}

#[inline]
pub(super) fn domain() -> &'static Domain {
    &DOMAIN
}

#[cfg(not(loom))]
thread_local! {
    /// Freeing runs foreign `Drop` code that may retire more: no recursion.
    static FREEING: Cell<bool> = const { Cell::new(false) };
}
#[cfg(loom)]
loom::thread_local! {
    static FREEING: Cell<bool> = Cell::new(false);
}

impl Domain {
    /// A thread's bag is sealed at this many objects...
    pub const BATCH_OBJECTS: usize = if cfg!(loom) { 1 } else { 1024 };
    /// ...or at this many bytes.
    pub const BATCH_BYTES: usize = 512 << 10;
    /// Past this many objects waiting, a writer waits for a grace period...
    pub const CAP_OBJECTS: u64 = 1 << 18;
    /// ...and past this many bytes.
    pub const CAP_BYTES: u64 = 64 << 20;

    /// No readers, nothing retired.
    #[cfg(not(loom))]
    pub const fn new() -> Domain {
        Domain {
            period: PlainU64::new(1),
            slots: Mutex::new(Slots {
                all: Vec::new(),
                unused: Vec::new(),
            }),
            sealed: Mutex::new(VecDeque::new()),
            freeing: Mutex::new(()),
            retired: PlainU64::new(0),
            freed: PlainU64::new(0),
            pending_bytes: PlainU64::new(0),
        }
    }

    /// No readers, nothing retired.
    #[cfg(loom)]
    pub fn new() -> Domain {
        Domain {
            period: PlainU64::new(1),
            slots: Mutex::default(),
            sealed: Mutex::default(),
            freeing: Mutex::new(()),
            retired: PlainU64::new(0),
            freed: PlainU64::new(0),
            pending_bytes: PlainU64::new(0),
        }
    }

    /// A reader for the calling thread.
    pub fn register(&self) -> Reader {
        membarrier::init();
        let mut slots = lock(&self.slots);
        let slot = slots.unused.pop().unwrap_or_else(|| {
            let slot: &'static Slot = Box::leak(Box::new(Slot::new(slots.all.len())));
            slots.all.push(slot);
            slot
        });
        drop(slots);
        let current = thread::current();
        let mut watch = lock(&slot.watch);
        watch.thread = current
            .name()
            .map_or_else(|| format!("{:?}", current.id()), str::to_owned);
        watch.inside = None;
        Reader(slot)
    }

    /// Gives a reader's place to the next thread that registers.
    pub fn unregister(&self, reader: Reader) {
        self.seal(&mut lock(&reader.0.bag));
        lock(&self.slots).unused.push(reader.0);
    }

    /// Takes charge of something to free later.
    pub(super) fn retire(&self, reader: Reader, retired: Retired) {
        let bytes = retired.bytes;
        let mut bag = lock(&reader.0.bag);
        bag.bytes += bytes;
        bag.objects.push(retired);
        if bag.objects.len() < Self::BATCH_OBJECTS && bag.bytes < Self::BATCH_BYTES {
            return;
        }
        self.seal(&mut bag);
        drop(bag);
        // Freeing runs `Drop` code that may lock anything: not under a lock (LOCK-1).
        if crate::lock::none_held_or_later() {
            self.free_some(reader);
        }
    }

    /// Frees what is ripe, if nobody else is at it; past the cap, waits until it is.
    pub(super) fn free_some(&self, reader: Reader) {
        if FREEING.with(Cell::get) {
            return;
        }
        let over_cap = self.pending_bytes.load(Relaxed) > Self::CAP_BYTES
            || self.retired.load(Relaxed) - self.freed.load(Relaxed) > Self::CAP_OBJECTS;
        if over_cap && !reader.is_inside() {
            let freeing = lock(&self.freeing);
            self.free_all_sealed(&freeing);
        } else if let Ok(freeing) = self.freeing.try_lock() {
            let bags = std::mem::take(&mut *lock(&self.sealed));
            self.free_before(bags, &freeing);
        }
    }

    /// Waits until every read section open now has ended.
    pub fn synchronize(&self) {
        let period = self.next_period();
        membarrier::heavy();
        let mut wait = Backoff::default();
        while self.oldest_reader() < period {
            wait.pause();
        }
    }

    /// See [`super::barrier`].
    pub fn barrier(&self) {
        if FREEING.with(Cell::get) {
            // Called from `Drop` code that this thread is running while it frees:
            // it would wait for itself. What it waits for is under way.
            return;
        }
        loop {
            let slots = lock(&self.slots).all.clone();
            for slot in slots {
                self.seal(&mut lock(&slot.bag));
            }
            let freeing = lock(&self.freeing);
            if !self.free_all_sealed(&freeing) {
                return;
            }
        }
    }

    /// Waits for a grace period and frees all that was sealed before. False if
    /// there was nothing.
    fn free_all_sealed(&self, freeing: &MutexGuard<'_, ()>) -> bool {
        let bags = std::mem::take(&mut *lock(&self.sealed));
        if bags.is_empty() {
            return false;
        }
        self.synchronize();
        self.free_before(bags, freeing);
        true
    }

    /// Frees the bags whose grace period is over; the others go back.
    fn free_before(&self, mut bags: VecDeque<(u64, Bag)>, _freeing: &MutexGuard<'_, ()>) {
        // The bags were taken before the fence: one sealed after it has objects
        // that were unpublished after it, and proves nothing (module doc).
        membarrier::heavy();
        let oldest = self.oldest_reader();
        let unripe = bags
            .iter()
            .position(|(period, _)| *period > oldest)
            .unwrap_or(bags.len());
        let mut kept = bags.split_off(unripe);
        if !kept.is_empty() {
            let mut sealed = lock(&self.sealed);
            kept.append(&mut sealed);
            *sealed = kept;
        }
        FREEING.with(|freeing| freeing.set(true));
        for (_, bag) in bags {
            let (count, bytes) = (bag.objects.len() as u64, bag.bytes as u64);
            bag.objects.into_iter().for_each(Retired::run);
            self.freed.fetch_add(count, Relaxed);
            self.pending_bytes.fetch_sub(bytes, Relaxed);
        }
        FREEING.with(|freeing| freeing.set(false));
    }

    fn seal(&self, bag: &mut Bag) {
        if bag.objects.is_empty() {
            return;
        }
        let full = std::mem::take(bag);
        self.retired.fetch_add(full.objects.len() as u64, Relaxed);
        self.pending_bytes.fetch_add(full.bytes as u64, Relaxed);
        // The number is drawn under the queue's lock, so the queue stays in order.
        let mut sealed = lock(&self.sealed);
        let period = self.next_period();
        sealed.push_back((period, full));
    }

    fn next_period(&self) -> u64 {
        // AcqRel: pairs with the Acquire in `Reader::enter`. A reader stamped with
        // this period or a later one sees all that we unpublished.
        self.period.fetch_add(1, AcqRel) + 1
    }

    /// The earliest period that a reader is still in; `u64::MAX` if none is.
    fn oldest_reader(&self) -> u64 {
        let slots = lock(&self.slots);
        // Acquire: pairs with the Release in `Reader::exit`.
        let epochs = slots.all.iter().map(|slot| slot.epoch.load(Acquire));
        epochs
            .filter(|epoch| *epoch != QUIESCENT)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// See [`super::statistics`].
    pub fn statistics(&self) -> Statistics {
        // A new period, so that a reader that leaves and comes back is told from
        // one that stays.
        self.next_period();
        let slots = lock(&self.slots);
        let mut stats = Statistics {
            retired: self.retired.load(Relaxed),
            freed: self.freed.load(Relaxed),
            pending_bytes: self.pending_bytes.load(Relaxed),
            readers: slots.all.len() - slots.unused.len(),
            stalled: None,
        };
        for slot in &slots.all {
            let bag = lock(&slot.bag);
            stats.retired += bag.objects.len() as u64;
            stats.pending_bytes += bag.bytes as u64;
            drop(bag);
            if let Some(stall) = look_at(slot)
                && stats
                    .stalled
                    .as_ref()
                    .is_none_or(|known| known.lasting < stall.lasting)
            {
                stats.stalled = Some(stall);
            }
        }
        stats
    }
}

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}

/// How long this reader has been in the read section it is in.
fn look_at(slot: &Slot) -> Option<Stall> {
    let mut watch = lock(&slot.watch);
    let epoch = slot.epoch.load(Relaxed);
    match watch.inside {
        _ if epoch == QUIESCENT => watch.inside = None,
        Some((seen, since)) if seen == epoch => {
            return Some(Stall {
                thread: watch.thread.clone(),
                lasting: since.elapsed(),
            });
        }
        _ => watch.inside = Some((epoch, Instant::now())),
    }
    None
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waiting for readers: they leave within microseconds, so yield first and sleep
/// only when one does not.
#[derive(Default)]
struct Backoff(u32);

impl Backoff {
    fn pause(&mut self) {
        self.0 += 1;
        if cfg!(loom) || self.0 < 64 {
            #[cfg(loom)]
            loom::thread::yield_now();
            #[cfg(not(loom))]
            thread::yield_now();
        } else {
            thread::sleep(Duration::from_micros(50 << (self.0 / 64).min(5)));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
