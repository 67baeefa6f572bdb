//! Grace periods, and freeing of retired objects after them.
//!
//! The domain counts periods. A read section is stamped with the period it began
//! in. To free a bag of retired objects: seal it with a new period number, pay for
//! the heavy fence, look at all readers, and free if none is in an older period.
//!
//! Why that is enough (RCU-1): take an object unpublished before its bag was
//! sealed with period `p`, and a reader that could still find it.
//!
//! - The reader's stamp is at least `p`: it loaded the period after the sealing
//!   stored it (Acquire with Release), so it sees the unpublishing. It cannot find
//!   the object.
//! - The reader's stamp is lower and the scan sees it: the bag waits.
//! - The scan sees no stamp: then the reader's light fence came after our heavy
//!   one, and its reads see the unpublishing; or it had left before the scan.
//!
//! Only writers free: a thread whose bag is full seals it and frees the ripe bags, unless
//! another thread is doing so. Past the cap a writer waits for a grace period. A thread that
//! holds a lock, is in a back end's call (CALL-1) or is itself inside a read section does
//! neither at once, but when it releases its last lock, or at the first object it retires after
//! that.

use std::cell::Cell;
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use super::free_lock::{FreeGuard, FreeLock};
use super::slot::{Bag, QUIESCENT, Reader, Retired, Slot};
use super::{Stall, Statistics, membarrier};
use crate::atomic::*;
use crate::model::{self, MODEL, Mutex, MutexGuard, atomic::AtomicU64 as PlainU64};

/// A set of readers and the objects that wait for them. The process has one of its own; model
/// checks make more.
pub struct Domain {
    /// The current period; starts at 1, because 0 means quiescent.
    pub(super) period: PlainU64,
    slots: Mutex<Slots>,
    /// How many there are.
    threads: PlainU64,
    /// Sealed bags, oldest period first.
    sealed: Mutex<VecDeque<(u64, Bag)>>,
    /// Held by the one thread that frees. A waiter for it may hold `slots` or
    /// `sealed` never, and takes them only after it.
    freeing: FreeLock,
    retired: PlainU64,
    freed: PlainU64,
    pending_bytes: PlainU64,
}

#[derive(Default)]
struct Slots {
    all: Vec<&'static Slot>,
    unused: Vec<&'static Slot>,
}

model::fresh_static! {
    static DOMAIN: Domain = Domain::new();
}

#[inline]
pub(super) fn domain() -> &'static Domain {
    &DOMAIN
}

model::local! {
    /// Freeing runs foreign `Drop` code that may retire more: no recursion.
    static FREEING: Cell<Freeing> = const { Cell::new(Freeing::No) };
}

/// Whether this thread is freeing, and whether a barrier waits for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freeing {
    No,
    Yes,
    /// The barrier also waits for objects that are retired meanwhile.
    Owed,
}

impl Domain {
    /// A thread's bag is sealed at this many objects...
    pub const BATCH_OBJECTS: usize = if MODEL { 1 } else { 1024 };
    /// ...or at this many bytes.
    pub const BATCH_BYTES: usize = 512 << 10;
    /// Past this many objects waiting, a writer waits for a grace period...
    pub const CAP_OBJECTS: u64 = 1 << 18;
    /// ...and past this many bytes.
    pub const CAP_BYTES: u64 = 64 << 20;

    model::const_unless_loom! {
        /// No readers, nothing retired.
        pub fn new() -> Domain {
            Domain {
                period: PlainU64::new(1),
                slots: Mutex::new(Slots {
                    all: Vec::new(),
                    unused: Vec::new(),
                }),
                threads: PlainU64::new(0),
                sealed: Mutex::new(VecDeque::new()),
                freeing: FreeLock::new(),
                retired: PlainU64::new(0),
                freed: PlainU64::new(0),
                pending_bytes: PlainU64::new(0),
            }
        }
    }

    /// Every index of a thread is below this.
    pub(super) fn threads(&self) -> usize {
        self.threads.load(Relaxed) as usize
    }

    /// A reader for the calling thread.
    pub fn register(&self) -> Reader {
        membarrier::init();
        let mut slots = lock(&self.slots);
        let slot = slots.unused.pop().unwrap_or_else(|| {
            let slot: &'static Slot = Box::leak(Box::new(Slot::new(slots.all.len())));
            slots.all.push(slot);
            // A thread that learns of the new thread's actions sees this store, which precedes them.
            self.threads.store(slots.all.len() as u64, Relaxed);
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

    /// Takes charge of things to free later.
    pub(super) fn retire(&self, reader: Reader, retired: impl IntoIterator<Item = Retired>) {
        let freeing = FREEING.with(Cell::get);
        // Freeing runs `Drop` code that may lock anything: not under a lock (LOCK-1), not in
        // a back end's call (CALL-1), not inside a read section (RCU-2).
        let may_free = freeing == Freeing::No && crate::lock::none_held() && !reader.is_inside();

        let mut bag = lock(&reader.0.bag);
        bag.owed |= freeing == Freeing::Owed;
        let mut due = bag.due;
        for retired in retired {
            bag.bytes += retired.bytes;
            bag.objects.push(retired);
            if bag.objects.len() >= Self::BATCH_OBJECTS || bag.bytes >= Self::BATCH_BYTES {
                self.seal(&mut bag);
                due = true;
                bag.owed |= freeing == Freeing::Owed;
            }
        }
        bag.due = due && !may_free;
        drop(bag);
        if due && may_free {
            self.free_some();
            crate::lock::catch_up();
        } else if due && !crate::lock::none_held() {
            // A thread that retires under locks only would never free otherwise.
            crate::lock::free_later();
        }
    }

    /// See [`super::free_due`].
    pub(super) fn free_due(&self, reader: Reader) {
        if reader.is_inside() || FREEING.with(Cell::get) != Freeing::No {
            // Deferred to the next `retire`: the bag's mark is still set.
            return;
        }
        // Other work waits for the last lock as well, and far more often.
        if std::mem::take(&mut lock(&reader.0.bag).due) {
            self.free_some();
            crate::lock::catch_up();
        }
    }

    fn free_some(&self) {
        // `freed` first: `retired`, loaded later, then includes all objects counted in it.
        let freed = self.freed.load(Relaxed);
        let objects = self.retired.load(Relaxed).saturating_sub(freed);
        if self.pending_bytes.load(Relaxed) > Self::CAP_BYTES || objects > Self::CAP_OBJECTS {
            let freeing = self.freeing.take();
            self.free_all_sealed(&freeing);
            return;
        }
        let Some(freeing) = self.freeing.try_take() else {
            return;
        };
        self.free_ripe(&freeing);
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
        self.free_all_owed();
        // Work that was deferred until after the freeing may retire more.
        while crate::lock::catch_up() {
            self.free_all_owed();
        }
    }

    fn free_all_owed(&self) {
        if FREEING.with(Cell::get) != Freeing::No {
            // Called from `Drop` code that this thread runs while it frees: it would wait for
            // itself. The freeing that it would wait for is under way.
            return;
        }
        // First: the thread that is freeing now has retired all it will before we collect.
        let freeing = self.freeing.take();
        self.seal_all(|_| true);
        // Only bags that exist now, and objects that those retire: other threads that keep
        // retiring would keep us here for ever.
        lock(&self.sealed)
            .iter_mut()
            .for_each(|(_, bag)| bag.owed = true);
        loop {
            while lock(&self.sealed).iter().any(|(_, bag)| bag.owed) {
                self.free_all_sealed(&freeing);
            }
            if !self.seal_all(|bag| bag.owed) {
                return;
            }
        }
    }

    /// Seals the bags that `wanted` accepts. False if there was none with anything in it.
    fn seal_all(&self, wanted: impl Fn(&Bag) -> bool) -> bool {
        let slots = lock(&self.slots).all.clone();
        let mut any = false;
        for slot in slots {
            let mut bag = lock(&slot.bag);
            if wanted(&bag) && !bag.objects.is_empty() {
                self.seal(&mut bag);
                any = true;
            }
        }
        any
    }

    /// Waits for a grace period and frees all that was sealed before.
    fn free_all_sealed(&self, freeing: &FreeGuard<'_>) {
        if !lock(&self.sealed).is_empty() {
            self.synchronize();
            self.free_ripe(freeing);
        }
    }

    /// Frees the bags whose grace period is over.
    fn free_ripe(&self, _freeing: &FreeGuard<'_>) {
        // Looked at before the fence: a bag sealed after it has objects that were unpublished
        // after it, and the scan proves nothing about them (module doc).
        let Some(newest) = lock(&self.sealed).back().map(|(period, _)| *period) else {
            return;
        };
        membarrier::heavy();
        let mut ripe = Ripe {
            domain: self,
            until: newest.min(self.oldest_reader()),
            bag: None,
            count: 0,
            bytes: 0,
        };
        while let Some(retired) = ripe.next() {
            retired.run();
        }
    }

    fn seal(&self, bag: &mut Bag) {
        if bag.objects.is_empty() {
            return;
        }
        // The next one will be as large.
        let objects = Vec::with_capacity(bag.objects.len());
        let full = std::mem::replace(
            bag,
            Bag {
                objects,
                ..Bag::default()
            },
        );
        self.retired.fetch_add(full.objects.len() as u64, Relaxed);
        self.pending_bytes.fetch_add(full.bytes as u64, Relaxed);
        // The number is drawn under the queue's lock, so the queue stays in order.
        let mut sealed = lock(&self.sealed);
        let period = self.next_period();
        sealed.push_back((period, full));
    }

    fn next_period(&self) -> u64 {
        // Release: pairs with the Acquire in `Reader::enter`. A reader stamped with
        // this period sees all that we unpublished; with a later one, too, because
        // later numbers are drawn by read-modify-writes on top of ours.
        self.period.fetch_add(1, Release) + 1
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
        let freed = self.freed.load(Relaxed);
        let mut stats = Statistics {
            retired: self.retired.load(Relaxed),
            freed,
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

/// Bags whose grace period is over, being freed one by one: the others stay in the queue, where
/// the child of a fork finds them. If `Drop` code panics, the rest of the bag goes back.
struct Ripe<'a> {
    domain: &'a Domain,
    /// The last period whose bags may be freed. No other thread takes bags out of the queue.
    until: u64,
    bag: Option<(u64, Bag)>,
    /// Freed, and not yet told the domain.
    count: u64,
    bytes: u64,
}

impl Ripe<'_> {
    fn next(&mut self) -> Option<Retired> {
        loop {
            if self.bag.is_none() {
                let mut sealed = lock(&self.domain.sealed);
                self.bag = sealed.pop_front_if(|(period, _)| *period <= self.until);
            }
            let (_, bag) = self.bag.as_mut()?;
            if let Some(retired) = bag.objects.pop() {
                let state = if bag.owed {
                    Freeing::Owed
                } else {
                    Freeing::Yes
                };
                FREEING.with(|freeing| freeing.set(state));
                bag.bytes -= retired.bytes;
                self.count += 1;
                self.bytes += retired.bytes as u64;
                return Some(retired);
            }
            self.bag = None;
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.domain
            .freed
            .fetch_add(std::mem::take(&mut self.count), Relaxed);
        self.domain
            .pending_bytes
            .fetch_sub(std::mem::take(&mut self.bytes), Relaxed);
    }
}

impl Drop for Ripe<'_> {
    fn drop(&mut self) {
        FREEING.with(|freeing| freeing.set(Freeing::No));
        if let Some(bag) = self.bag.take() {
            self.tell();
            lock(&self.domain.sealed).push_front(bag);
        }
    }
}

/// The slots of dropped domains. A caller may have kept a [`Reader`], so they are not freed;
/// here leak checkers find them.
#[cfg(not(any(loom, shuttle)))]
static ABANDONED: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());

#[cfg(not(any(loom, shuttle)))]
impl Drop for Domain {
    fn drop(&mut self) {
        lock(&ABANDONED).append(&mut lock(&self.slots).all);
    }
}

/// Shuttle drops the domain at the end of each of its many executions.
#[cfg(shuttle)]
impl Drop for Domain {
    fn drop(&mut self) {
        let slots = self
            .slots
            .get_mut()
            .map(|slots| std::mem::take(&mut slots.all));
        for slot in slots.unwrap_or_default() {
            // SAFETY: `register` made it with `Box::leak`. The execution is over, with
            // all its threads: models keep no `Reader` for another one.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(slot).cast_mut()) });
        }
    }
}

pub(super) fn is_freeing() -> bool {
    FREEING
        .try_with(Cell::get)
        .is_ok_and(|freeing| freeing != Freeing::No)
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
        if MODEL || self.0 < 64 {
            model::yield_now();
        } else {
            thread::sleep(Duration::from_micros(50 << (self.0 / 64).min(5)));
        }
    }
}

#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub(super) mod fork;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
