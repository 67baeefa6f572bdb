//! The threads that answer: each reads a request, answers it, and reads the next.
//!
//! Each thread has its own descriptor of the kernel's device, by which it reads and answers
//! requests, so threads do not contend for a lock. An answer must go back the way its request
//! has come. Other connections have one descriptor for all threads.
//!
//! | result of a read               | meaning                                             |
//! |--------------------------------|-----------------------------------------------------|
//! | `EINTR`, `ENOENT`              | that request has gone meanwhile: read the next      |
//! | `EAGAIN`                       | there is none yet                                   |
//! | `ENODEV`, nothing, `ECONNRESET` | the other end is gone: the end                     |
//! | anything else                  | the end, and the reason for it                      |
//!
//! Where the kernel puts requests in rings (`uring.rs`), other threads take them from there,
//! and one stays at the device.
//!
//! While threads are blocked, the watcher adds more (WATCH-1). Such a spare thread waits for a
//! request by epoll(7), so that it can stop waiting, and ends between two requests once the other
//! threads have been enough for a while. It waits exclusively (`EPOLLEXCLUSIVE`): a request wakes
//! one thread, at the device or at an epoll. If a spare thread is not waiting at that moment, the
//! kernel wakes another one, so none takes a wakeup along when it ends. Those of a ring stay: the kernel may be putting a request into an entry just as the
//! thread gives it up.
//!
//! The last thread to end ends the session ([`Ops::end`](crate::ops::Ops::end)): until then
//! other threads may still hand nodes out.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::Shutdown;
use rustix::thread::gettid;

use super::dispatch::{Channel, Dispatcher, Next};
use super::encode::Reply;
use super::init::MAX_WRITE;
use super::ioctl::{self, BackingFile};
use super::members::{Member, Members};
use super::uring::{self, Part};
use super::watcher::Watched;
use crate::interrupt::{self, Slot};
use crate::through::Backing;
use crate::watch::{TICK, Watch};
use crate::wire::{Handler, is_cut, is_device};

/// The longest message: a WRITE, with room for the headers before its data.
pub(super) const LONGEST: usize = MAX_WRITE as usize + 4096;

/// How often a spare thread checks whether it is still needed.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The state that all threads share.
pub(super) struct Session {
    pub(super) handler: Arc<Handler>,
    /// The connection, by its first descriptor.
    device: Arc<OwnedFd>,
    /// The connection is /dev/fuse: each thread may have a descriptor of its own.
    is_device: bool,
    /// Number of threads at the device, if there are no rings.
    configured: usize,
    pub(super) members: Members,
    groups: OnceLock<Box<[Group]>>,
    /// `None` if another process has mounted it.
    pub(super) mount_point: Option<PathBuf>,
    /// DESTROY has come.
    is_over: AtomicBool,
}

/// Threads that take requests from the same source.
pub(super) struct Group {
    /// The number of threads while none is blocked.
    pub(super) wanted: usize,
    /// The queues that they serve; `None` at the device.
    pub(super) part: Option<Part>,
}

impl Session {
    /// Makes a session that has `threads` threads if requests come by the device.
    ///
    /// # Errors
    /// Those of the descriptor.
    pub(super) fn new(
        handler: Arc<Handler>,
        device: OwnedFd,
        mount_point: Option<PathBuf>,
        threads: usize,
    ) -> io::Result<Session> {
        Ok(Session {
            is_device: is_device(&device)?,
            device: Arc::new(device),
            configured: threads,
            members: Members::default(),
            groups: OnceLock::new(),
            mount_point,
            is_over: AtomicBool::new(false),
            handler,
        })
    }

    /// Waits for an INIT, and agrees on features. `has_rings` prepares rings for requests, if
    /// they are offered, and returns whether it could.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if the first message is no INIT, or not one that we
    /// support; [`io::ErrorKind::NotConnected`] if none comes; errors of the descriptor.
    pub(super) fn shake_hands(&self, mut has_rings: impl FnMut() -> bool) -> io::Result<()> {
        let mut dispatcher =
            Dispatcher::new(&self.handler, self.channel(&self.device), Arc::default());
        let (mut message, mut out) = (vec![0; LONGEST], Reply::new());
        loop {
            let Received::Message(len) = read(&self.device, &mut message, None)? else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            match dispatcher.first_message(&message[..len], &mut out, &mut has_rings) {
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
        self.device.as_fd()
    }

    /// Adds the members of all threads: those with rings, and others at the device, which is
    /// one if there are rings. Returns the latter.
    pub(super) fn begin(&self, rings: Vec<Group>, by_ring: &[Arc<Slot>]) -> Vec<Arc<Member>> {
        let at_device = match rings.is_empty() {
            true => self.configured,
            false => 1,
        };
        let device = Group {
            wanted: at_device,
            part: None,
        };
        let _ = self.groups.set([device].into_iter().chain(rings).collect());
        let own = |at| match at {
            0 => self.device.clone(),
            _ => self.own_device(OFlags::empty()),
        };
        let at_device: Vec<_> = (0..at_device)
            .map(|at| Member::new(own(at), Slot::of(0), None))
            .collect();
        let by_ring = by_ring.iter().map(|slot| self.ring_member(slot));
        self.members.begin(at_device.iter().cloned().chain(by_ring));
        at_device
    }

    /// Groups of threads with the same source; the first is at the device.
    pub(super) fn groups(&self) -> &[Group] {
        self.groups.get().map_or(&[], |groups| groups)
    }

    /// True if requests come by rings.
    pub(super) fn has_rings(&self) -> bool {
        self.groups().len() > 1
    }

    /// Starts a thread at the device.
    ///
    /// # Errors
    /// Out of threads.
    pub(super) fn start(self: &Arc<Self>, member: Arc<Member>, name: String) -> io::Result<()> {
        let answering = self.clone();
        let thread = thread::Builder::new().name(name);
        self.members.started(
            thread.spawn(move || {
                answering.run_with(&member, |_, _| answering.run_at_device(&member))
            })?,
        );
        Ok(())
    }

    /// Starts one more thread for a group in which too many are blocked.
    ///
    /// # Errors
    /// Out of threads, or of descriptors for a ring.
    pub(super) fn add_spare(self: &Arc<Self>, group: usize) -> io::Result<()> {
        let part = self.groups()[group].part.as_ref();
        let member = match part {
            None => {
                // A request may be another thread's by the time this one reads.
                let device = self.own_device(OFlags::NONBLOCK);
                let requests = exclusively(&device)?;
                Member::new(device, Slot::of(0), Some(requests))
            }
            Some(_) => self.ring_member(&Slot::of(group)),
        };
        if is_cut(&self.device) || !self.members.one_more(member.clone()) {
            return Ok(());
        }
        let started = match part {
            None => self.start(member.clone(), "rcuwalk-fuse-s".to_owned()),
            Some(part) => uring::start_spare(self, &member, part),
        };
        started.inspect_err(|_| self.leave(&member))
    }

    /// Opens the connection once more for one thread. If /dev/fuse cannot be opened, all threads
    /// share one descriptor.
    fn own_device(&self, flags: OFlags) -> Arc<OwnedFd> {
        let own = self.is_device.then(|| cloned(&self.device, flags).ok());
        own.flatten().map_or_else(|| self.device.clone(), Arc::new)
    }

    pub(super) fn ring_member(&self, slot: &Arc<Slot>) -> Arc<Member> {
        Member::new(self.device.clone(), slot.clone(), None)
    }

    /// Runs `answer` on this thread.
    ///
    /// # Errors
    /// Those of `answer`.
    pub(super) fn run_with(
        &self,
        member: &Arc<Member>,
        answer: impl FnOnce(&Handler, &DeviceChannel<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let _last = Leaving(self, member);
        interrupt::this_thread_is(&member.slot);
        let thread = gettid().as_raw_pid().cast_unsigned();
        member.slot.work.is_of(thread);
        let _own = self.handler.own.enter(thread);
        let ended = answer(&self.handler, &self.channel(&self.device));
        ended.inspect_err(|err| tracing::error!(%err, "a thread does not answer any more"))
    }

    fn run_at_device(&self, member: &Arc<Member>) -> io::Result<()> {
        let (device, slot) = (member.device.as_ref().unwrap_or(&self.device), &member.slot);
        let mut dispatcher = Dispatcher::new(&self.handler, self.channel(device), slot.clone());
        let (mut message, mut out) = (vec![0; LONGEST], Reply::new());
        let mut checked = Instant::now();
        while !self.is_over.load(Relaxed) {
            slot.work.idle();
            if member.is_spare && checked.elapsed() >= PATIENCE {
                if self.may_end(member) {
                    return Ok(());
                }
                checked = Instant::now();
            }
            let next = match read(device, &mut message, member.requests.as_ref())? {
                Received::Message(len) => dispatcher.message(&message[..len], &mut out),
                Received::Nothing => Next::Comes,
                Received::End => Next::Over,
            };
            match next {
                Next::Listed(handle) => self.handler.listed(handle),
                Next::Over => {
                    self.is_over.store(true, Relaxed);
                    // Tells the other threads that read from the same socket; those of a device
                    // hear it from the kernel.
                    let _ = rustix::net::shutdown(device, Shutdown::Read);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn may_end(&self, member: &Arc<Member>) -> bool {
        let wanted = self.groups()[member.slot.group].wanted;
        self.members.may_end(member, wanted, &self.handler.watch)
    }

    /// Waits until the session is over. False if the connection is cut, and the remaining
    /// threads are stuck in the back end: they end when they go on, or with the process.
    pub(super) fn wait_for_end(&self) -> bool {
        while !self.members.wait_for_end(TICK) {
            if self.members.are_stuck(&self.handler.watch) && is_cut(&self.device) {
                self.handler.ops.end_notices();
                return false;
            }
        }
        true
    }

    pub(super) fn has_ended(&self) -> bool {
        self.members.has_ended()
    }

    fn channel<'s>(&'s self, device: &'s Arc<OwnedFd>) -> DeviceChannel<'s> {
        DeviceChannel {
            session: self,
            device,
        }
    }

    /// Removes a member whose thread no longer answers.
    pub(super) fn leave(&self, member: &Arc<Member>) {
        // The watcher treats the work at the end like a request.
        member.slot.work.begin(0);
        self.members.leave(member, || self.handler.ops.end());
    }
}

pub(super) fn cloned(of: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
    let device = retry_on_intr(|| open("/dev/fuse", flags, Mode::empty()))?;
    ioctl::clone(device.as_fd(), of.as_fd())?;
    Ok(device)
}

/// Returns an epoll that waits for requests. Of the threads that wait for a request, by such an
/// epoll or by a read, each request wakes one; poll(2) would wake all of them.
#[doc(alias = "EPOLLEXCLUSIVE")]
fn exclusively(device: &OwnedFd) -> io::Result<OwnedFd> {
    let requests = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
    epoll::add(&requests, device, epoll::EventData::new_u64(0), flags)?;
    Ok(requests)
}

/// The result of a read.
enum Received {
    /// A message of this length.
    Message(usize),
    /// No message in time.
    Nothing,
    /// The other end is gone.
    End,
}

/// Reads the next message. With `requests`, an epoll of the device, waits for it there, for
/// [`PATIENCE`] at most.
fn read(device: &OwnedFd, message: &mut [u8], requests: Option<&OwnedFd>) -> io::Result<Received> {
    loop {
        if let Some(requests) = requests {
            let mut ready = [MaybeUninit::uninit(); 1];
            let patience = Timespec::try_from(PATIENCE).ok();
            let wait = || match epoll::wait(requests, &mut ready, patience.as_ref()) {
                Ok((ready, _)) => Ok(ready.len()),
                Err(errno) => Err(errno),
            };
            if retry_on_intr(wait)? == 0 {
                return Ok(Received::Nothing);
            }
        }
        match rustix::io::read(device, &mut *message) {
            Ok(0) | Err(Errno::NODEV | Errno::CONNRESET) => return Ok(Received::End),
            Ok(len) => return Ok(Received::Message(len)),
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(Errno::AGAIN) if requests.is_some() => {}
            // A non-blocking descriptor of the caller's.
            Err(Errno::AGAIN) => {
                let mut device = [PollFd::new(device, PollFlags::IN)];
                retry_on_intr(|| poll(&mut device, None))?;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

impl Watched for Arc<Session> {
    fn members(&self) -> &Members {
        &self.members
    }

    fn watch(&self) -> &Watch {
        &self.handler.watch
    }

    fn wanted(&self) -> Vec<usize> {
        self.groups().iter().map(|group| group.wanted).collect()
    }

    fn add_spare(&self, group: usize) -> io::Result<()> {
        Session::add_spare(self, group)
    }
}

/// Removes a member at the end of its thread; the last one ends the session.
struct Leaving<'s>(&'s Session, &'s Arc<Member>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

/// A thread's end of the connection.
pub(super) struct DeviceChannel<'s> {
    session: &'s Session,
    device: &'s Arc<OwnedFd>,
}

impl DeviceChannel<'_> {
    /// True if the other end is gone.
    pub(super) fn is_cut(&self) -> bool {
        is_cut(self.device)
    }
}

impl Channel for DeviceChannel<'_> {
    fn send(&self, answer: &[u8]) -> rustix::io::Result<()> {
        loop {
            match retry_on_intr(|| rustix::io::write(self.device, answer)) {
                // A non-blocking socket whose other end is slow to read.
                Err(Errno::AGAIN) => {
                    let mut device = [PollFd::new(self.device, PollFlags::OUT)];
                    retry_on_intr(|| poll(&mut device, None))?;
                }
                sent => return sent.map(drop),
            }
        }
    }

    fn register(&self, host: BorrowedFd<'_>) -> io::Result<Backing> {
        // The first descriptor, which exists as long as there are threads.
        Ok(Box::new(BackingFile::new(&self.session.device, host)?))
    }

    fn interrupt(&self, unique: u64) -> bool {
        let members = &self.session.members;
        members.any(|member| member.slot.interrupt(unique))
    }

    /// The kernel looks a request up by the descriptor that it was read from, which may be any.
    fn interrupt_again(&self, answer: &[u8]) {
        for device in self.session.members.devices() {
            if retry_on_intr(|| rustix::io::write(&device, answer)).is_ok() {
                return;
            }
        }
    }
}
