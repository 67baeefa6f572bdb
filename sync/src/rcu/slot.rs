//! A reader's slot: the line it announces itself on, and its retired objects.

use std::cell::Cell;
use std::sync::atomic::AtomicU64 as OwnU64;
use std::time::Instant;

use super::domain::{Domain, domain};
use super::membarrier;
use crate::atomic::*;
use crate::model::{self, Mutex, atomic::AtomicU64 as PlainU64};

/// Not inside a read section.
pub(super) const QUIESCENT: u64 = 0;

/// One thread's place in a domain. Never freed, so that a thread that scans the slots needs no
/// lock; a later thread takes over the slot of one that ended.
#[repr(align(128))]
pub(super) struct Slot {
    /// The grace period the outermost read section began in, or [`QUIESCENT`].
    /// Written by its thread alone: the standard atomic, not the counting one.
    pub(super) epoch: PlainU64,
    /// How many guards the thread holds. Its own, an atomic only to be `Sync`; too
    /// wide to overflow, however many guards are leaked.
    nesting: OwnU64,
    pub(super) index: usize,
    /// The objects that the thread retired since it last handed over a full bag.
    pub(super) bag: Mutex<Bag>,
    /// The thread's name, and since when it has been in one section, for the statistics.
    pub(super) watch: Mutex<Watch>,
}

/// Retired objects of one thread.
#[derive(Default)]
pub(super) struct Bag {
    pub(super) objects: Vec<Retired>,
    pub(super) bytes: usize,
    /// A barrier waits for it.
    pub(super) owed: bool,
    /// Set when a full bag was sealed where this thread may not free: it frees on the next
    /// occasion.
    pub(super) due: bool,
}

/// A reader's thread, and the section in which the domain last found it.
#[derive(Default)]
pub(super) struct Watch {
    pub(super) thread: String,
    pub(super) inside: Option<(u64, Instant)>,
}

/// Something to do after a grace period.
pub(super) struct Retired {
    what: What,
    pub(super) bytes: usize,
}

enum What {
    Object(*mut (), unsafe fn(*mut ())),
    Callback(Box<dyn FnOnce() + Send>),
}

// SAFETY: the object behind the pointer is `Send` (`Shared<T>` asks `T: Send`), and
// from `retire` on the domain is its only owner.
unsafe impl Send for Retired {}

impl Retired {
    pub(super) fn object(object: *mut (), bytes: usize, free: unsafe fn(*mut ())) -> Retired {
        Retired {
            what: What::Object(object, free),
            bytes,
        }
    }

    pub(super) fn callback(bytes: usize, callback: Box<dyn FnOnce() + Send>) -> Retired {
        Retired {
            what: What::Callback(callback),
            bytes,
        }
    }

    /// The caller has waited for a grace period since this was retired.
    pub(super) fn run(self) {
        match self.what {
            // SAFETY: RCU-1: `retire`'s caller unpublished the object before, and a grace
            // period has passed since, so no other thread can reach it.
            What::Object(object, free) => unsafe { free(object) },
            What::Callback(callback) => callback(),
        }
    }
}

/// A registered reader of a domain.
#[derive(Clone, Copy)]
pub struct Reader(pub(super) &'static Slot);

impl Slot {
    pub(super) fn new(index: usize) -> Slot {
        Slot {
            epoch: PlainU64::new(QUIESCENT),
            nesting: OwnU64::new(0),
            index,
            bag: Mutex::default(),
            watch: Mutex::default(),
        }
    }
}

impl Reader {
    /// Opens a read section of `domain`, the one this reader is registered with.
    #[inline]
    pub fn enter(self, domain: &Domain) {
        let nesting = self.0.nesting.load(Relaxed);
        self.0.nesting.store(nesting + 1, Relaxed);
        if nesting == 0 {
            // Acquire: pairs with the AcqRel of `Domain::next_period`; a section
            // that begins in a period sees everything unpublished before it.
            let period = domain.period.load(Acquire);
            // Release: pairs with the Acquire scan in `Domain::oldest_reader`, which may see
            // this stamp in place of the QUIESCENT before it; an earlier section's reads
            // happened before objects are freed because that section has ended.
            self.0.epoch.store(period, Release);
            // Pairs with `heavy` in `Domain::free_ripe`: either its scan sees our epoch, or our
            // reads come after all unpublishing before it.
            membarrier::light();
        }
    }

    /// Closes the read section.
    #[inline]
    pub fn exit(self) {
        let nesting = self.0.nesting.load(Relaxed);
        debug_assert!(nesting > 0, "RCU-1: a section ends once");
        self.0.nesting.store(nesting - 1, Relaxed);
        if nesting == 1 {
            // Release: pairs with the Acquire scan in `Domain::oldest_reader`; our reads
            // happened before objects are freed because we are gone.
            self.0.epoch.store(QUIESCENT, Release);
        }
    }

    #[inline]
    pub(super) fn index(self) -> usize {
        self.0.index
    }

    /// In the child of a fork, for the slot of a thread that is not there.
    #[cfg(all(unix, not(any(miri, loom, shuttle))))]
    pub(super) fn vanish(self) {
        self.0.nesting.store(0, Relaxed);
        self.0.epoch.store(QUIESCENT, Relaxed);
    }

    pub(super) fn is_inside(self) -> bool {
        self.0.nesting.load(Relaxed) > 0
    }
}

model::local! {
    static READER: Cell<Option<Reader>> = const { Cell::new(None) };
}
#[cfg(not(loom))]
model::local! {
    static GOODBYE: Goodbye = const { Goodbye(Cell::new(None)) };
}

/// This thread's reader of the process-wide domain.
#[inline]
pub(super) fn this_thread() -> Reader {
    match READER.with(Cell::get) {
        Some(reader) => reader,
        None => register_this_thread(),
    }
}

/// Like [`this_thread`], if the thread has a reader already.
#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub(super) fn known_this_thread() -> Option<Reader> {
    READER.with(Cell::get)
}

#[cold]
fn register_this_thread() -> Reader {
    #[cfg(all(unix, not(any(miri, loom, shuttle))))]
    crate::fork::init();
    let reader = domain().register();
    READER.with(|slot| slot.set(Some(reader)));
    // Arms the destructor that gives the slot back. A thread that is past it (it
    // reads from another thread-local's destructor) keeps its slot for good: one
    // slot leaked, nothing unsafe.
    #[cfg(not(loom))]
    let _ = GOODBYE.try_with(|goodbye| goodbye.0.set(Some(reader)));
    reader
}

/// Gives the slot back when the thread ends.
///
/// Loom ends its statics before its threads' locals: there, models call `leave`.
#[cfg(not(loom))]
struct Goodbye(Cell<Option<Reader>>);

#[cfg(not(loom))]
impl Drop for Goodbye {
    fn drop(&mut self) {
        // Under shuttle that one may have been dropped before.
        let _ = READER.try_with(Cell::take);
        if let Some(reader) = self.0.take() {
            give_back(reader);
        }
    }
}

#[cfg(loom)]
pub(super) fn leave() {
    if let Some(reader) = READER.with(Cell::take) {
        give_back(reader);
    }
}

fn give_back(reader: Reader) {
    // A guard leaked with `mem::forget` would be inherited by the next thread; the
    // slot stays with the dead thread instead.
    if !reader.is_inside() {
        domain().unregister(reader);
    }
}
