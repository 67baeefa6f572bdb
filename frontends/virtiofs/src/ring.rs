//! A virtqueue: chains are taken from it, and given back with or without an answer.
//!
//! RING-1: once a ring has stopped, nothing is copied from or to the guest's memory for its requests,
//! and each chain that was taken from it has come back; and a request in a ring that runs is seen by
//! a thread, or the guest rings for it.
//!
//! Any thread may take or give back, under the ring's lock, which is held for a few accesses to the
//! guest's memory and for no copy of data. The guest shares the ring and may put anything there: a
//! ring that makes no sense is broken, and is not looked at until the guest has set it up anew.
//!
//! **Runs.** The monitor may stop a ring, and from then on its memory is somebody else's: if the guest
//! starts anew. Or the guest is only paused, goes on later in the same ring, and still waits for all
//! chains before the number that [`Ring::stop`] returns. So that takes nothing more, and waits for the
//! requests that are under way. One may be stuck in the source, and cannot be waited for: it has come
//! back as `EIO` by then. Each request knows the run in which it was taken, and copies nothing once
//! that is over.
//!
//! **Kicks.** Whoever takes a chain asks for a kick with the next one, looks once more, and hears
//! whether there is one already: then there will be no kick for that, and another thread must be
//! told. Asking and looking are in the order that `virtio-queue`'s fence gives them: the guest's
//! chain is seen here, or the guest sees that it must kick.

use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::GuestAddress;

use crate::chain::{Chain, Malformed};
use crate::memory::Mapped;
use crate::request::{Request, UnderWay};

/// The longest ring: monitors have 128 to 1024 entries.
pub(crate) const LONGEST: u16 = 1024;

pub(crate) struct Ring {
    state: Mutex<State>,
    /// Rung when the last copy has ended, and when a request comes back to a ring that stops.
    quiet: Condvar,
}

struct State {
    queue: Queue,
    mapped: Option<Arc<Mapped>>,
    /// Rings the guest.
    call: Option<Arc<File>>,
    /// Tells the monitor that the ring is broken.
    err: Option<File>,
    is_enabled: bool,
    /// The addresses have been checked since it was started.
    is_checked: bool,
    is_broken: bool,
    /// Nothing more is taken: it waits for what is under way.
    is_stopping: bool,
    /// What was taken in this run and has not come back.
    under_way: Vec<Arc<UnderWay>>,
    /// The number of the run. It goes up at each end.
    run: u64,
    /// Copies from or to the guest's memory that are under way.
    copies: usize,
}

/// The result of a look at a ring.
pub(crate) enum Taken {
    Nothing,
    /// A request, and whether there is another one, for which there will be no kick.
    Request(Request, bool),
    /// A chain that makes no sense, given back without an answer.
    Malformed,
}

impl Ring {
    pub(crate) fn new() -> Arc<Ring> {
        let queue = Queue::new(LONGEST).unwrap_or_default();
        Arc::new(Ring {
            state: Mutex::new(State {
                queue,
                mapped: None,
                call: None,
                err: None,
                is_enabled: false,
                is_checked: false,
                is_broken: false,
                is_stopping: false,
                under_way: Vec::new(),
                run: 0,
                copies: 0,
            }),
            quiet: Condvar::new(),
        })
    }

    /// Takes the next chain.
    pub(crate) fn take(self: &Arc<Self>) -> Taken {
        let mut state = self.lock();
        let Some(mapped) = state.serves() else {
            return Taken::Nothing;
        };
        let (chain, more) = match state.next(&mapped) {
            Ok(Some(next)) => next,
            Ok(None) => return Taken::Nothing,
            Err(why) => {
                state.is_broken(why);
                return Taken::Nothing;
            }
        };
        let head = chain.head_index();
        if head >= state.queue.size() {
            state.is_broken("an index is out of range");
            return Taken::Nothing;
        }
        match Chain::read(chain, &mapped, LONGEST) {
            Ok(chain) => {
                let one = Arc::new(UnderWay {
                    head,
                    chain,
                    mapped,
                    since: Instant::now(),
                });
                state.under_way.push(one.clone());
                let request = Request::new(self.clone(), state.run, one);
                Taken::Request(request, more)
            }
            Err(why) => {
                self.malformed(state, head, why);
                Taken::Malformed
            }
        }
    }

    fn malformed(&self, mut state: MutexGuard<'_, State>, head: u16, why: Malformed) {
        tracing::debug!(?why, "a chain makes no sense");
        let call = state.give_back(head, 0);
        drop(state);
        ring_guest(call);
    }

    /// Lets `copy` access the guest's memory, unless that run is over.
    ///
    /// # Errors
    /// `ENODEV` if it is; those of `copy`.
    pub(crate) fn copy<T>(&self, run: u64, copy: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let mut state = self.lock();
        if state.run != run {
            return Err(Errno::NODEV.into());
        }
        state.copies += 1;
        drop(state);
        let _copying = Copying(self);
        copy()
    }

    pub(crate) fn give_back(&self, run: u64, one: &Arc<UnderWay>, len: u32) -> io::Result<()> {
        let mut state = self.lock();
        if state.run != run {
            return Err(Errno::NODEV.into());
        }
        state.under_way.retain(|other| !Arc::ptr_eq(other, one));
        let call = state.give_back(one.head, len);
        if state.is_stopping {
            self.quiet.notify_all();
        }
        drop(state);
        ring_guest(call);
        Ok(())
    }

    /// Stops it, and returns the number of its next chain. All before that have come back, and
    /// nothing is copied any more.
    ///
    /// Waits for requests that are under way, for each until it is as old as `patience` says; from
    /// then on it is `EIO`, whatever becomes of it.
    pub(crate) fn stop(&self, patience: Duration) -> u16 {
        let mut state = self.lock();
        state.is_stopping = true;
        while let Some(left) = state.longest_wait(patience) {
            let quiet = self.quiet.wait_timeout(state, left);
            state = quiet.unwrap_or_else(PoisonError::into_inner).0;
        }
        state = self.wait_for_copies(state);
        let mut call = None;
        for one in std::mem::take(&mut state.under_way) {
            let len = one.refuse();
            call = state.give_back(one.head, len).or(call);
        }
        state.end_run();
        state.call = None;
        let next = state.queue.next_avail();
        drop(state);
        ring_guest(call);
        next
    }

    /// Stops it, and gives nothing back: the guest starts anew, or has gone.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.end_run();
        self.wait_for_copies(state).call = None;
    }

    fn wait_for_copies<'r>(&self, mut state: MutexGuard<'r, State>) -> MutexGuard<'r, State> {
        while state.copies > 0 {
            let quiet = self.quiet.wait(state);
            state = quiet.unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Starts it, as it is set up.
    pub(crate) fn start(&self) {
        let mut state = self.lock();
        if !state.queue.ready() {
            state.queue.set_ready(true);
            state.is_checked = false;
            state.is_broken = false;
        }
    }

    pub(crate) fn enable(&self, is_enabled: bool) {
        self.lock().is_enabled = is_enabled;
    }

    pub(crate) fn set_event_idx(&self, is_on: bool) {
        self.lock().queue.set_event_idx(is_on);
    }

    pub(crate) fn set_memory(&self, mapped: Option<Arc<Mapped>>) {
        let mut state = self.lock();
        state.mapped = mapped;
        state.is_checked = false;
    }

    /// # Errors
    /// The size is no power of two, or too large.
    pub(crate) fn set_size(&self, size: u32) -> Result<(), virtio_queue::Error> {
        let size = u16::try_from(size).map_err(|_| virtio_queue::Error::InvalidSize)?;
        let mut state = self.lock();
        state.is_checked = false;
        state.queue.try_set_size(size)
    }

    /// # Errors
    /// An address is not aligned, or not mapped.
    pub(crate) fn set_addresses(
        &self,
        descriptors: GuestAddress,
        used: GuestAddress,
        available: GuestAddress,
    ) -> Result<(), virtio_queue::Error> {
        let mut state = self.lock();
        state.is_checked = false;
        state.queue.try_set_desc_table_address(descriptors)?;
        state.queue.try_set_used_ring_address(used)?;
        state.queue.try_set_avail_ring_address(available)?;
        // The other side goes on where the ring says.
        if let Some(mapped) = state.mapped.clone() {
            let next = state
                .queue
                .used_idx(&*mapped, std::sync::atomic::Ordering::Relaxed)?;
            state.queue.set_next_used(next.0);
        }
        Ok(())
    }

    pub(crate) fn set_next(&self, next: u16) {
        self.lock().queue.set_next_avail(next);
    }

    /// Rings the guest by this from now on, and once at once: a monitor may name it after the ring
    /// has started, and an answer may have been given meanwhile.
    pub(crate) fn set_call(&self, call: Option<File>) {
        let call = call.map(Arc::new);
        self.lock().call.clone_from(&call);
        ring_guest(call);
    }

    pub(crate) fn set_err(&self, err: Option<File>) {
        self.lock().err = err;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The memory, if chains may be taken.
    fn serves(&mut self) -> Option<Arc<Mapped>> {
        if !self.is_enabled || !self.queue.ready() || self.is_broken || self.is_stopping {
            return None;
        }
        let mapped = self.mapped.clone()?;
        if !self.is_checked {
            if !self.queue.is_valid(&*mapped) {
                self.is_broken("it is not mapped");
                return None;
            }
            self.is_checked = true;
        }
        Some(mapped)
    }

    /// The next chain, and whether there is one more.
    #[expect(clippy::type_complexity, reason = "the one place that has both")]
    fn next(
        &mut self,
        mapped: &Arc<Mapped>,
    ) -> Result<Option<(DescriptorChain<Arc<Mapped>>, bool)>, &'static str> {
        // Twice: a chain may come between a look and the word that kicks are wanted.
        for _ in 0..2 {
            let chains = self.queue.iter(mapped.clone());
            let chain = chains.map_err(|_| "its index has jumped")?.next();
            let more = self.queue.enable_notification(&**mapped);
            let more = more.map_err(|_| "it is not mapped any more")?;
            match chain {
                Some(chain) => return Ok(Some((chain, more))),
                None if more => {}
                None => return Ok(None),
            }
        }
        Err("its entries cannot be read")
    }

    /// Gives a chain back with an answer of this length. Returns what rings the guest, if that
    /// wants to hear of it.
    fn give_back(&mut self, head: u16, len: u32) -> Option<Arc<File>> {
        let mapped = self.mapped.clone()?;
        if !self.queue.ready() || self.queue.add_used(&*mapped, head, len).is_err() {
            return None;
        }
        let rings = self.queue.needs_notification(&*mapped).unwrap_or(true);
        rings.then(|| self.call.clone()).flatten()
    }

    /// How long a request that is under way may be waited for: the longest time; `None` if there
    /// is none, or each is older than that.
    fn longest_wait(&self, patience: Duration) -> Option<Duration> {
        let left = |one: &Arc<UnderWay>| patience.checked_sub(one.since.elapsed());
        let longest = self.under_way.iter().filter_map(left).max();
        longest.filter(|left| !left.is_zero())
    }

    fn end_run(&mut self) {
        self.run += 1;
        self.queue.set_ready(false);
        self.is_stopping = false;
        self.under_way.clear();
    }

    #[cold]
    fn is_broken(&mut self, why: &str) {
        self.is_broken = true;
        tracing::warn!("a queue of the guest is broken: {why}");
        if let Some(err) = &self.err {
            let _ = rustix::io::write(err, &1_u64.to_ne_bytes());
        }
    }
}

/// Tells the guest that there is something in the ring.
fn ring_guest(call: Option<Arc<File>>) {
    if let Some(call) = call {
        let _ = rustix::io::write(&*call, &1_u64.to_ne_bytes());
    }
}

/// See [`Ring::copy`].
struct Copying<'r>(&'r Ring);

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.copies -= 1;
        if state.copies == 0 {
            self.0.quiet.notify_all();
        }
    }
}
