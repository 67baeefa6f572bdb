//! The threads that answer: each reads a request, answers it, and reads the next.
//!
//! Of the kernel's device each thread has a descriptor of its own, by which it reads requests
//! and answers those; so they do not meet at a lock. An answer goes back the way its request
//! has come, or it is not taken. Other connections have one descriptor for all.
//!
//! | what reading says              | what it means                                       |
//! |--------------------------------|-----------------------------------------------------|
//! | `EINTR`, `ENOENT`              | that one has gone meanwhile: the next               |
//! | `EAGAIN`                       | there is none yet                                   |
//! | `ENODEV`, nothing, `ECONNRESET` | the other end is gone: the end                     |
//! | anything else                  | the end, and the reason for it                      |
//!
//! Where the kernel puts requests in rings (`uring.rs`), other threads take them from there,
//! and one stays at the device.
//!
//! The last thread to end ends the session ([`Ops::end`](crate::ops::Ops::end)): until then
//! others may still hand nodes out.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::Shutdown;

use super::desk::{Desk, Line, Next};
use super::encode::Out;
use super::init::MAX_WRITE;
use super::ioctl::{self, BackingFile};
use crate::interrupt::{self, Slot};
use crate::through::Backing;
use crate::wire::{Handler, is_cut, is_device};

/// The longest message: a WRITE, with room for what is before its data.
const LONGEST: usize = MAX_WRITE as usize + 4096;

/// What the threads share.
pub(super) struct Session {
    handler: Arc<Handler>,
    places: Vec<Place>,
    /// What threads with rings are answering, if there are such.
    rings: OnceLock<Box<[Arc<Slot>]>>,
    living: AtomicUsize,
    /// DESTROY has come.
    is_over: AtomicBool,
    /// The last of them is done.
    has_ended: AtomicBool,
}

/// Where one of them sits at the device.
struct Place {
    device: Arc<OwnedFd>,
    slot: Arc<Slot>,
}

impl Session {
    /// With places for so many threads.
    ///
    /// # Errors
    /// What the descriptor reports.
    pub(super) fn new(
        handler: Arc<Handler>,
        device: OwnedFd,
        threads: usize,
    ) -> io::Result<Session> {
        Ok(Session {
            places: places(device, threads)?,
            rings: OnceLock::new(),
            living: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            handler,
        })
    }

    /// Waits for an INIT, and agrees on what it offers. `has_rings` makes what it takes to have
    /// requests come by rings, if it can, and if they are offered.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for what is no INIT that is understood;
    /// [`io::ErrorKind::NotConnected`] if none comes; what the descriptor reports.
    pub(super) fn shake_hands(&self, mut has_rings: impl FnMut() -> bool) -> io::Result<()> {
        let mut desk = Desk::new(&self.handler, self.wire(0), self.places[0].slot.clone());
        let (mut message, mut out) = (vec![0; LONGEST], Out::new());
        loop {
            let Some(len) = read(&self.places[0].device, &mut message)? else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            match desk.first_message(&message[..len], &mut out, &mut has_rings) {
                Next::Agreed(terms) => {
                    tracing::debug!(?terms, "connected");
                    return Ok(());
                }
                Next::Disagreed(errno) => {
                    let why = io::Error::from_raw_os_error(errno);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                _ => {}
            }
        }
    }

    /// The connection.
    pub(super) fn device(&self) -> BorrowedFd<'_> {
        // The first: it is there as long as there are threads.
        self.places[0].device.as_fd()
    }

    /// So many threads will answer there, and these by rings. Returns how many at the device:
    /// with rings, one.
    pub(super) fn begin(&self, rings: impl Iterator<Item = Arc<Slot>>) -> usize {
        let rings: Box<[_]> = rings.collect();
        let (at_device, by_ring) = match rings.len() {
            0 => (self.places.len(), 0),
            rings => (1, rings),
        };
        if by_ring > 0 {
            let _ = self.rings.set(rings);
        }
        // Before any of them is there.
        self.living.store(at_device + by_ring, Relaxed);
        at_device
    }

    /// Whether requests come by rings.
    pub(super) fn has_rings(&self) -> bool {
        self.rings.get().is_some()
    }

    /// Answers at the device, until the other end is gone.
    ///
    /// # Errors
    /// What the descriptor reports.
    pub(super) fn run(&self, at: usize) -> io::Result<()> {
        self.run_with(&self.places[at].slot, |_, _| self.run_at_device(at))
    }

    /// Has `answer` answer on this thread.
    ///
    /// # Errors
    /// What that reports.
    pub(super) fn run_with(
        &self,
        slot: &Arc<Slot>,
        answer: impl FnOnce(&Handler, &Wire<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let _last = Leaving(self);
        interrupt::this_thread_is(slot);
        let ended = answer(&self.handler, &self.wire(0));
        ended.inspect_err(|err| tracing::error!(%err, "a thread does not answer any more"))
    }

    fn run_at_device(&self, at: usize) -> io::Result<()> {
        let Place { device, slot } = &self.places[at];
        let mut desk = Desk::new(&self.handler, self.wire(at), slot.clone());
        let (mut message, mut out) = (vec![0; LONGEST], Out::new());
        while !self.is_over.load(Relaxed) {
            let next = match read(device, &mut message)? {
                Some(len) => desk.message(&message[..len], &mut out),
                None => Next::Over,
            };
            match next {
                Next::Listed(handle) => self.handler.listed(handle),
                Next::Over => {
                    self.is_over.store(true, Relaxed);
                    // Others who read from the same socket hear of it so; the kernel tells them.
                    let _ = rustix::net::shutdown(device, Shutdown::Read);
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn has_ended(&self) -> bool {
        // Acquire: pairs with the Release of the last thread to leave.
        self.has_ended.load(Acquire)
    }

    fn wire(&self, at: usize) -> Wire<'_> {
        Wire { session: self, at }
    }

    /// One that there will not be.
    pub(super) fn one_less(&self) {
        drop(Leaving(self));
    }
}

/// A descriptor for each thread.
fn places(device: OwnedFd, threads: usize) -> io::Result<Vec<Place>> {
    let is_device = is_device(&device)?;
    let first = Arc::new(device);
    let place = |at| {
        // Without /dev/fuse within reach, one is enough for all.
        let own = (at > 0 && is_device).then(|| cloned(&first).ok()).flatten();
        Place {
            device: own.map_or_else(|| first.clone(), Arc::new),
            slot: Arc::default(),
        }
    };
    Ok((0..threads).map(place).collect())
}

fn cloned(of: &OwnedFd) -> io::Result<OwnedFd> {
    let mut device = File::options();
    let device = device.read(true).write(true).open("/dev/fuse")?;
    ioctl::clone(device.as_fd(), of.as_fd())?;
    Ok(device.into())
}

/// The next message, and its length. `None` if the other end is gone.
fn read(device: &OwnedFd, message: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *message) {
            Ok(0) | Err(Errno::NODEV | Errno::CONNRESET) => return Ok(None),
            Ok(len) => return Ok(Some(len)),
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(Errno::AGAIN) => {
                let mut device = [PollFd::new(device, PollFlags::IN)];
                retry_on_intr(|| poll(&mut device, None))?;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// One thread is done; with the last, all is.
struct Leaving<'s>(&'s Session);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        // AcqRel: pairs with itself; the last sees what all others have handed out.
        if self.0.living.fetch_sub(1, AcqRel) == 1 {
            self.0.handler.ops.end();
            // Release: pairs with the Acquire in `has_ended`; who looks whether it is over
            // finds nothing left.
            self.0.has_ended.store(true, Release);
        }
    }
}

/// A thread's end of the connection.
pub(super) struct Wire<'s> {
    session: &'s Session,
    at: usize,
}

impl Wire<'_> {
    fn device(&self) -> &Arc<OwnedFd> {
        &self.session.places[self.at].device
    }

    /// Whether the other end is gone.
    pub(super) fn is_cut(&self) -> bool {
        is_cut(self.device())
    }
}

impl Line for Wire<'_> {
    fn send(&self, answer: &[u8]) -> rustix::io::Result<()> {
        loop {
            match retry_on_intr(|| rustix::io::write(self.device(), answer)) {
                // A socket that does not block, and whose other end is slow to read.
                Err(Errno::AGAIN) => {
                    let mut device = [PollFd::new(self.device(), PollFlags::OUT)];
                    retry_on_intr(|| poll(&mut device, None))?;
                }
                sent => return sent.map(drop),
            }
        }
    }

    fn register(&self, host: BorrowedFd<'_>) -> io::Result<Backing> {
        // The first: it is there as long as there are threads.
        let device = &self.session.places[0].device;
        Ok(Box::new(BackingFile::new(device, host)?))
    }

    fn interrupt(&self, unique: u64) -> bool {
        let at_device = self.session.places.iter().map(|place| &place.slot);
        let by_ring = self.session.rings.get().into_iter().flatten();
        let mut slots = at_device.chain(by_ring);
        slots.any(|slot| slot.interrupt(unique))
    }

    /// The kernel knows a request by the descriptor that it was read by, which may be any.
    fn interrupt_again(&self, answer: &[u8]) {
        let places = &self.session.places;
        for (at, place) in places.iter().enumerate() {
            let is_first = at == 0 || !Arc::ptr_eq(&place.device, &places[0].device);
            let sent = || retry_on_intr(|| rustix::io::write(&place.device, answer));
            if is_first && sent().is_ok() {
                return;
            }
        }
    }
}
