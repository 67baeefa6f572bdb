//! All queues of a device, and the threads that wait for requests in them.
//!
//! One epoll(7) has the kicks of all queues, edge-triggered: a kick wakes one thread, and nobody
//! reads the counter, so it costs one system call. The thread that was woken takes a chain and
//! answers it itself; nothing is handed over. If it finds that there is another chain, for which
//! there is no kick, and another thread sleeps, it rings the bell, which is in the same epoll.
//!
//! **No request is forgotten.** A thread says that it is about to sleep, and then looks once more
//! (`sleeping`, sequentially consistent). Whoever takes a chain and sees one more reads that word
//! afterwards. Both looks are under the ring's lock. If the taker's comes first, the sleeper sees
//! what the taker saw; else the sleeper has said so before the taker reads the word, and the bell
//! wakes it. A chain that comes after both looks has a kick (`ring.rs`).
//!
//! The first queue is for requests that must not wait behind others (FORGET): each look begins
//! there. Of the others, each look begins with another one.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, iter};

use rcuwalk_fuse::{Arrival, Carrier};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::request::Request;
use crate::ring::{Ring, Taken};

pub(crate) struct Queues {
    rings: Box<[Arc<Ring>]>,
    /// The kicks by which rings are watched.
    kicks: Mutex<Vec<Option<File>>>,
    epoll: OwnedFd,
    bell: OwnedFd,
    /// Threads that sleep, or are about to.
    sleeping: AtomicUsize,
    /// Where the next look begins.
    turn: AtomicUsize,
    is_over: AtomicBool,
}

impl Queues {
    /// One for FORGET, and `requests` others.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn new(requests: usize) -> io::Result<Queues> {
        let queues = Queues {
            rings: iter::repeat_with(Ring::new).take(1 + requests).collect(),
            kicks: Mutex::new(iter::repeat_with(|| None).take(1 + requests).collect()),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sleeping: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        };
        epoll::add(&queues.epoll, &queues.bell, NO_DATA, edges())?;
        Ok(queues)
    }

    pub(crate) fn rings(&self) -> &[Arc<Ring>] {
        &self.rings
    }

    /// Watches for kicks of a ring, by this descriptor from now on.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub(crate) fn watch(&self, ring: usize, kick: Option<File>) -> io::Result<()> {
        let mut kicks = self.kicks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = kicks.get_mut(ring) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if let Some(before) = known.take() {
            let _ = epoll::delete(&self.epoll, &before);
        }
        if let Some(kick) = kick {
            epoll::add(&self.epoll, &kick, NO_DATA, edges())?;
            *known = Some(kick);
        }
        Ok(())
    }

    /// Wakes a thread: there may be something in a ring.
    pub(crate) fn wake(&self) {
        // It fails only when it has been rung so often that a thread is awake.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Ends all threads that ask for requests.
    pub(crate) fn end(&self) {
        // Release: pairs with the Acquire in `next`; nothing else is published by it.
        self.is_over.store(true, Release);
        self.wake();
    }

    fn look(&self) -> Look {
        let (first, others) = self.rings.split_at(1);
        let turn = self.turn.fetch_add(1, Relaxed);
        let (before, after) = others.split_at(turn % others.len().max(1));
        let mut look = Look::Nothing;
        for ring in first.iter().chain(after).chain(before) {
            match ring.take() {
                Taken::Nothing => {}
                Taken::Malformed => look = Look::Again,
                Taken::Request(request, more) => {
                    if more && self.sleeping.load(SeqCst) > 0 {
                        self.wake();
                    }
                    return Look::Request(request);
                }
            }
        }
        look
    }

    /// Waits for a kick or the bell. True if there was one in time.
    fn sleep(&self, patience: Duration) -> bool {
        let mut event = [MaybeUninit::uninit(); 1];
        let patience = Timespec::try_from(patience).ok();
        match epoll::wait(&self.epoll, &mut event, patience.as_ref()) {
            Ok((woken, _)) => !woken.is_empty(),
            // A signal: look again.
            Err(_) => true,
        }
    }
}

/// What a look at all rings has found.
enum Look {
    Request(Request),
    /// Only chains that make no sense: there may be more behind them.
    Again,
    Nothing,
}

const NO_DATA: epoll::EventData = epoll::EventData::new_u64(0);

fn edges() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::ET
}

impl Carrier for Queues {
    type Request = Request;

    fn next(&self, patience: Duration) -> Arrival<Request> {
        loop {
            if self.is_over.load(Acquire) {
                // An edge wakes one thread, which wakes the next.
                self.wake();
                return Arrival::End;
            }
            match self.look() {
                Look::Request(request) => return Arrival::Request(request),
                Look::Again => continue,
                Look::Nothing => {}
            }
            self.sleeping.fetch_add(1, SeqCst);
            let look = match self.is_over.load(Acquire) {
                true => Look::Again,
                false => self.look(),
            };
            let is_in_time = !matches!(look, Look::Nothing) || self.sleep(patience);
            self.sleeping.fetch_sub(1, SeqCst);
            match look {
                Look::Request(request) => return Arrival::Request(request),
                _ if !is_in_time => return Arrival::Nothing,
                _ => {}
            }
        }
    }
}
