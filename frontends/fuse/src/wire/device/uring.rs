//! Requests that come by rings that the kernel shares with us, where it offers that
//! (`FUSE_OVER_IO_URING`, with `fuse.enable_uring`; Linux 6.15): one system call gives an
//! answer and waits for the next request, and both happen on the processor of who asks.
//!
//! | read              | to learn                                                     |
//! |-------------------|--------------------------------------------------------------|
//! | this file         | a thread that answers what comes by its ring                 |
//! | `uring/queues.rs` | which thread serves which queues, and where it runs          |
//! | `uring/ring.rs`   | the ring, and the memory that requests come by               |
//!
//! INIT comes by the device, before there is a ring; FORGET and INTERRUPT always do. One
//! thread stays there for them.
//!
//! Three things are otherwise than by the device. Listings are not read ahead: who asks next would
//! wait for this thread, though others are idle. That an answer was not taken is not told: it
//! happens only when the connection ends, and then all is given back
//! ([`Ops::end`](crate::ops::Ops::end)). And an INTERRUPT that overtakes its request does not
//! come again, so that one takes as long as it takes.

mod queues;
mod ring;

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rustix::process::{Resource, getrlimit};

use self::queues::Part;
use self::ring::{Came, Made, Ring};
use super::desk::{Desk, Line};
use super::encode::Out;
use super::session::{Session, Wire};
use crate::interrupt::Slot;
use crate::through::Backing;
use crate::wire::Handler;

/// Threads that have a ring each, and wait for their orders. Dropped, they leave.
#[derive(Default)]
pub(super) struct Crew(Vec<Hand>);

struct Hand {
    thread: JoinHandle<io::Result<()>>,
    /// The first is to register the ring, the second to answer.
    orders: Sender<()>,
    /// What has become of the first.
    registered: Receiver<io::Result<()>>,
    slot: Arc<Slot>,
}

impl Crew {
    /// One for the session's connection: as many threads, or as many more as it takes.
    ///
    /// # Errors
    /// There is no io_uring to be had, or too little else.
    pub(super) fn new(session: &Arc<Session>, threads: usize) -> io::Result<Crew> {
        let parts = queues::parts(threads)?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // Each has a descriptor, and they are not what descriptors are for.
        if parts.len() as u64 > limit / 8 {
            return Err(io::Error::other(
                "too few descriptors for so many processors",
            ));
        }
        let hands = parts.into_iter().enumerate();
        let hands = hands.map(|(at, part)| Hand::new(session, at, part));
        Ok(Crew(hands.collect::<io::Result<_>>()?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What its threads are answering.
    pub(super) fn slots(&self) -> impl Iterator<Item = Arc<Slot>> {
        self.0.iter().map(|hand| hand.slot.clone())
    }

    /// Has requests come to it: from now on they do not come otherwise. Nobody is left if the
    /// kernel has thought better of it.
    ///
    /// # Errors
    /// The kernel does not take a ring. That cannot be undone, so the connection is of no use.
    pub(super) fn register(self) -> io::Result<Crew> {
        for hand in &self.0 {
            let _ = hand.orders.send(());
            let gone = |_| Err(io::Error::other("a thread with a ring is gone"));
            match hand.registered.recv().unwrap_or_else(gone) {
                Ok(()) => {}
                // The offer was withdrawn before it was taken: requests come by the device.
                Err(err) if err.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    return Ok(Crew::default());
                }
                Err(err) => {
                    let why = format!("requests by io_uring, see noio_uring: {err}");
                    return Err(io::Error::new(err.kind(), why));
                }
            }
        }
        Ok(self)
    }

    /// Has them answered.
    pub(super) fn answer(self) -> impl Iterator<Item = JoinHandle<io::Result<()>>> {
        self.0.into_iter().map(|hand| {
            let _ = hand.orders.send(());
            hand.thread
        })
    }
}

impl Hand {
    fn new(session: &Arc<Session>, at: usize, part: Part) -> io::Result<Hand> {
        let (orders, ordered) = mpsc::channel();
        let (tell, registered) = mpsc::channel();
        let ring = Ring::new(session.device(), &part.queues)?;
        let slot = Arc::<Slot>::default();
        let (session, its_slot) = (session.clone(), slot.clone());
        let work = move || {
            let mut ring = ring;
            let is_ordered = || ordered.recv().is_ok();
            if !is_ordered() {
                return Ok(());
            }
            if let Some(cpu) = part.on {
                queues::run_on(cpu);
            }
            let _ = tell.send(ring.register());
            if !is_ordered() {
                return Ok(());
            }
            session.run_with(&its_slot, |handler, device| {
                answer(ring, handler, device, &its_slot)
            })
        };
        let thread = thread::Builder::new().name(format!("rcuwalk-fuse-{}", at + 1));
        Ok(Hand {
            thread: thread.spawn(work)?,
            orders,
            registered,
            slot,
        })
    }
}

/// Answers what comes by the ring, until the connection is gone. What is not about one answer
/// goes by the `device`.
fn answer(
    mut ring: Ring,
    handler: &Handler,
    device: &Wire<'_>,
    slot: &Arc<Slot>,
) -> io::Result<()> {
    let is_made = Cell::new(false);
    let line = RingLine {
        is_made: &is_made,
        device,
    };
    let mut desk = Desk::new(handler, line, slot.clone());
    let mut spare = Out::new();
    let mut refused = None;
    loop {
        let at = match ring.wait()? {
            Came::Request(at) => at,
            Came::Back(_, err) if is_end(&err) || device.is_cut() => return Ok(()),
            Came::Back(at, err) if refused == Some(at) => return Err(err),
            Came::Back(at, err) => {
                tracing::warn!(%err, "an entry for requests has come back");
                refused = Some(at);
                ring.offer_again(at)?;
                continue;
            }
        };
        refused = refused.filter(|refused| *refused != at);
        is_made.set(false);
        let mut made = Made::Nowhere;
        if let Some(request) = ring.request(at, &mut spare) {
            // Operations catch their own; a panic anywhere else must not cost the queue.
            let message = || desk.message(request.message, request.out);
            // After DESTROY there is still that answer to be given, and then the end to be told.
            let _ = catch_unwind(AssertUnwindSafe(message));
            if is_made.get() {
                made = request.made;
            }
        }
        ring.answer(at, made, &spare)?;
    }
}

/// What the kernel says of every entry when the connection ends.
fn is_end(err: &io::Error) -> bool {
    let errno = err.raw_os_error();
    matches!(
        errno,
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED)
    )
}

/// The line by which a request in a ring has come: its answer stays in the entry, which is
/// given back as soon as nobody reads the request any more.
struct RingLine<'s> {
    is_made: &'s Cell<bool>,
    device: &'s Wire<'s>,
}

impl Line for RingLine<'_> {
    fn send(&self, _: &[u8]) -> rustix::io::Result<()> {
        self.is_made.set(true);
        Ok(())
    }

    fn register(&self, host: BorrowedFd<'_>) -> io::Result<Backing> {
        self.device.register(host)
    }

    fn interrupt(&self, unique: u64) -> bool {
        self.device.interrupt(unique)
    }

    fn interrupt_again(&self, answer: &[u8]) {
        self.device.interrupt_again(answer);
    }
}
