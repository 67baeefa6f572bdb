//! Requests that come by rings that the kernel shares with us, where it offers that
//! (`FUSE_OVER_IO_URING`, with `fuse.enable_uring`; Linux 6.15): one system call gives an
//! answer and waits for the next request, and both happen on the caller's processor.
//!
//! | read              | to learn                                                     |
//! |-------------------|--------------------------------------------------------------|
//! | this file         | a thread that answers requests from its ring                 |
//! | `uring/queues.rs` | which thread serves which queues, and where it runs          |
//! | `uring/ring.rs`   | the ring, and the memory for requests                        |
//!
//! INIT comes by the device, before there is a ring; FORGET and INTERRUPT always do. One
//! thread stays there for them.
//!
//! Three things differ from the device. Listings are not read ahead: the next caller would wait
//! for this thread, though other threads are idle. We do not learn that an answer was not
//! taken: it happens only when the connection ends, and then everything is given back
//! ([`Ops::end`](crate::ops::Ops::end)). And an INTERRUPT that overtakes its request does not
//! come again, so that request runs to its end.

mod queues;
mod ring;

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use rustix::fs::statfs;
use rustix::process::{Resource, getrlimit};
use rustix::thread::gettid;

pub(super) use self::queues::Part;
use self::ring::{Completion, Made, Ring};
use super::dispatch::{Channel, Dispatcher};
use super::encode::Reply;
use super::members::{Handle, Member};
use super::session::{DeviceChannel, Group, Session};
use crate::interrupt::Slot;
use crate::through::Backing;
use crate::wire::Handler;

/// The kernel's setting: whether it offers rings to what is mounted from then on.
const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Logs what rings would bring, if the kernel has them and they are off.
pub(super) fn say_if_off() {
    // A kernel without them has no such setting.
    if fs::read(SETTING).is_ok_and(|setting| setting.first() == Some(&b'N')) {
        tracing::info!(
            "requests come by /dev/fuse; by io_uring, finding, making and removing files takes \
             a fifth to a third less time: as root, `echo Y > {SETTING}` before mounting"
        );
    }
}

/// Threads that have a ring each, and wait for their orders. Dropping them ends them.
#[derive(Default)]
pub(super) struct RingThreads {
    threads: Vec<RingThread>,
    /// Threads that serve the same queues.
    groups: Vec<Group>,
}

/// A thread that answers requests from its ring.
pub(super) struct RingThread {
    thread: Handle,
    /// The first order is to register the ring, the second to answer.
    orders: Sender<()>,
    /// The result of the first order.
    registered: Receiver<io::Result<()>>,
    slot: Arc<Slot>,
}

impl RingThreads {
    /// Starts `count` threads for the session's connection, or more if the queues need more.
    ///
    /// # Errors
    /// io_uring is not available, or there are too few descriptors or threads.
    pub(super) fn new(session: &Arc<Session>, count: usize) -> io::Result<RingThreads> {
        let parts = queues::parts(count)?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // Each ring has a descriptor, and most of them must be left for files.
        if parts.len() as u64 > limit / 8 {
            return Err(io::Error::other(
                "too few descriptors for so many processors",
            ));
        }
        let mut threads = RingThreads::default();
        for (at, part) in parts.into_iter().enumerate() {
            // The first group is that of the device.
            let group = 1 + threads.group_of(&part);
            threads
                .threads
                .push(RingThread::new(session, at, part, group)?);
        }
        Ok(threads)
    }

    /// Returns the group of the threads that serve these queues, and counts one more in it.
    fn group_of(&mut self, part: &Part) -> usize {
        let mut groups = self.groups.iter_mut().enumerate();
        match groups.find(|(_, group)| group.part.as_ref() == Some(part)) {
            Some((at, group)) => {
                group.wanted += 1;
                at
            }
            None => {
                self.groups.push(Group {
                    wanted: 1,
                    part: Some(part.clone()),
                });
                self.groups.len() - 1
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Returns its threads, and their groups.
    pub(super) fn into_parts(self) -> (Vec<Group>, Vec<RingThread>) {
        (self.groups, self.threads)
    }

    /// Lets the kernel send requests to these threads: from now on they come no other way. No
    /// thread is left if the kernel has withdrawn its offer.
    ///
    /// # Errors
    /// The kernel does not accept a ring. That cannot be undone, so the connection is of no
    /// use.
    pub(super) fn register(self) -> io::Result<RingThreads> {
        for thread in &self.threads {
            let _ = thread.orders.send(());
            let gone = |_| Err(io::Error::other("a thread with a ring is gone"));
            match thread.registered.recv().unwrap_or_else(gone) {
                Ok(()) => {}
                // The kernel withdrew its offer before any ring was registered: requests come
                // by the device.
                Err(err) if err.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    return Ok(RingThreads::default());
                }
                Err(err) => {
                    let why = format!("requests by io_uring, see noio_uring: {err}");
                    return Err(io::Error::new(err.kind(), why));
                }
            }
        }
        Ok(self)
    }
}

impl RingThread {
    fn new(session: &Arc<Session>, at: usize, part: Part, group: usize) -> io::Result<RingThread> {
        let (orders, ordered) = mpsc::channel();
        let (tell, registered) = mpsc::channel();
        let ring = Ring::new(session.device(), &part.queues)?;
        let slot = Slot::of(group);
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
            let member = session.ring_member(&its_slot);
            session.run_with(&member, |handler, device| {
                answer(ring, handler, device, &its_slot)
            })
        };
        let thread = thread::Builder::new().name(format!("rcuwalk-fuse-{}", at + 1));
        Ok(RingThread {
            thread: thread.spawn(work)?,
            orders,
            registered,
            slot,
        })
    }

    /// The slot of the request that it is answering.
    pub(super) fn slot(&self) -> Arc<Slot> {
        self.slot.clone()
    }

    /// Orders it to answer.
    pub(super) fn answer(self) -> Handle {
        let _ = self.orders.send(());
        self.thread
    }
}

/// Starts one more thread for these queues, whose own threads are blocked.
///
/// # Errors
/// No descriptor for a ring, no memory, or no thread.
pub(super) fn start_spare(
    session: &Arc<Session>,
    member: &Arc<Member>,
    part: &Part,
) -> io::Result<()> {
    let mut ring = Ring::new(session.device(), &part.queues)?;
    let (answering, member, on) = (session.clone(), member.clone(), part.on);
    let work = move || {
        if let Some(cpu) = on {
            queues::run_on(cpu);
        }
        answering.run_with(&member, |handler, device| {
            if let Err(err) = ring.register() {
                // The mount may have just ended.
                tracing::debug!(%err, "no further ring");
                return Ok(());
            }
            provoke(&answering, on);
            answer(ring, handler, device, &member.slot)
        })
    };
    let thread = thread::Builder::new().name("rcuwalk-fuse-s".to_owned());
    session.members.started(thread.spawn(work)?);
    Ok(())
}

/// Makes the kernel hand out requests that came while all entries of the queue were taken: a
/// new entry gets only later requests, and the answer to one of those releases the waiting
/// ones. So a thread on that processor makes a system call on the mount, which is answered at
/// once ([`Watch::is_provoked`](crate::watch::Watch::is_provoked)). Without a mount point, or
/// with another mount on top of it, they wait for the next request on that processor.
fn provoke(session: &Arc<Session>, on: Option<u16>) {
    let (Some(mount_point), Some(cpu)) = (session.mount_point.clone(), on) else {
        return;
    };
    let session = session.clone();
    let thread = thread::Builder::new().name("rcuwalk-provoke".to_owned());
    // Not joined at the end.
    let started = thread.spawn(move || {
        queues::run_on(cpu);
        let _provoking = session.handler.watch.provoke(gettid().as_raw_pid());
        let _ = statfs(&mount_point);
    });
    if let Err(err) = started {
        tracing::debug!(%err, "what waits for a ring waits for the next request");
    }
}

/// Answers requests from the ring until the connection is gone. Messages that are not answers
/// go by the `device`.
fn answer(
    mut ring: Ring,
    handler: &Handler,
    device: &DeviceChannel<'_>,
    slot: &Arc<Slot>,
) -> io::Result<()> {
    let is_made = Cell::new(false);
    let channel = RingChannel {
        is_made: &is_made,
        device,
    };
    let mut dispatcher = Dispatcher::new(handler, channel, slot.clone());
    let mut spare = Reply::new();
    let mut refused = None;
    loop {
        slot.work.idle();
        let at = match ring.wait()? {
            Completion::Request(at) => at,
            Completion::Back(_, err) if is_end(&err) || device.is_cut() => return Ok(()),
            Completion::Back(at, err) if refused == Some(at) => return Err(err),
            Completion::Back(at, err) => {
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
            // Operations catch their own panics; a panic anywhere else must not cost the queue.
            let message = || dispatcher.message(request.message, request.out);
            // After DESTROY this thread still gives the answer, and then learns of the end.
            let _ = catch_unwind(AssertUnwindSafe(message));
            if is_made.get() {
                made = request.made;
            }
        }
        ring.answer(at, made, &spare)?;
    }
}

/// True for the errors of all entries when the connection ends.
fn is_end(err: &io::Error) -> bool {
    let errno = err.raw_os_error();
    matches!(
        errno,
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED)
    )
}

/// The channel of a request in a ring: the answer stays in the entry, which is given back as soon
/// as the request is no longer read.
struct RingChannel<'s> {
    is_made: &'s Cell<bool>,
    device: &'s DeviceChannel<'s>,
}

impl Channel for RingChannel<'_> {
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
