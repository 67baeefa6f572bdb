//! Requests that another crate's transport brings: by the virtqueues of a guest, for one.
//!
//! That crate has the way in and out, as a [`Carrier`]; decoding, answering and encoding are those
//! of /dev/fuse, and so are the threads, of which there are more while these are blocked (WATCH-1).
//!
//! | /dev/fuse                          | a carrier                                          |
//! |------------------------------------|----------------------------------------------------|
//! | one session, from INIT to the end  | one after the other: a guest may start anew        |
//! | callers are threads of this system | callers are another machine's, see [`Caller::of_guest`] |
//! | notices go to the kernel           | there is no way for them                           |
//!
//! **Sessions.** Each INIT begins a session with a node table and handles of its own ([`Era`]), and
//! ends the one before, as DESTROY does. A request belongs to the session in which its thread
//! finds it; the thread goes on with that session's table, so that an answer that comes late
//! counts nothing in the next one.
//!
//! [`Caller::of_guest`]: crate::caller::Caller::of_guest

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::Vfs;
use rustix::io::Errno;
use rustix::thread::gettid;

use super::abi::op;
use super::dispatch::{Channel, Dispatcher, Next};
use super::encode::Reply;
use super::members::{Member, Members};
use super::session::{LONGEST, PATIENCE};
use super::watcher::{self, Watched};
use crate::interrupt;
use crate::metrics::{Observer, Statistics};
use crate::through::Backing;
use crate::watch::{TICK, Watch};
use crate::wire::Handler;
use crate::{MountError, Options};

/// A transport: it brings requests to the threads of [`carry`], and takes their answers away.
pub trait Carrier: Send + Sync + 'static {
    /// One request.
    type Request: CarriedRequest;

    /// Waits for a request, about as long as `patience`. Many threads call this at the same time,
    /// and each request goes to one of them.
    fn next(&self, patience: Duration) -> Arrival<Self::Request>;
}

/// The result of [`Carrier::next`].
#[derive(Debug)]
pub enum Arrival<R> {
    /// A request.
    Request(R),
    /// None has come in time.
    Nothing,
    /// None will come any more: the thread ends.
    End,
}

/// A request that a [`Carrier`] has brought. Dropped without an answer, it has none: some
/// requests have none, nor have those that make no sense.
pub trait CarriedRequest {
    /// Copies the message to `room`, as much as there is room for, and returns how much that is.
    ///
    /// # Errors
    /// It cannot be read: then it is dropped.
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize>;

    /// Sends the answer, whole or not at all. After an error it may be called once more, with a
    /// short answer that says `EIO`.
    ///
    /// # Errors
    /// `ENODEV` if the other side has gone or has given up the request; anything else if it
    /// cannot take this answer.
    fn answer(&mut self, answer: &[u8]) -> io::Result<()>;
}

/// Serves `vfs` to what `carrier` brings, on threads of its own. Of the [`Options`], those about
/// mounting, `passthrough`, `idmap`, `watch` and `io_uring` have no effect.
///
/// The other side cannot be asked for nodes back: beyond `max_nodes`, what needs another one is
/// `ENFILE`.
///
/// The other side is a machine of its own: its kernel checks permissions, and tells the user and
/// the group that a new file belongs to. Numbers of its threads are not looked at.
///
/// # Errors
/// [`MountError::Source`]; [`MountError::Device`] if there can be no thread.
pub fn carry<C: Carrier>(
    vfs: Vfs,
    carrier: Arc<C>,
    options: &Options,
) -> Result<Carried<C>, MountError> {
    let options = options.clone().passthrough(false).idmap(false);
    let first = Handler::for_guest(vfs.clone(), &options).map_err(MountError::Source)?;
    let threads = options.handlers();
    let session = Arc::new(Session {
        carrier,
        vfs,
        options,
        first,
        era: Mutex::default(),
        members: Members::default(),
        threads,
    });
    let members: Vec<_> = (0..threads).map(|_| Member::carried(false)).collect();
    session.members.begin(members.iter().cloned());
    for (at, member) in members.into_iter().enumerate() {
        match session.start(member.clone(), format!("rcuwalk-fuse-{at}")) {
            Ok(()) => {}
            // Fewer threads are enough.
            Err(_) if at > 0 => session.leave(&member),
            Err(err) => return Err(MountError::Device(err)),
        }
    }
    watcher::start(&session).map_err(MountError::Device)?;
    Ok(Carried(session))
}

/// A tree that is served to what a [`Carrier`] brings. Dropping this does not end the service: it
/// goes on until the carrier says [`Arrival::End`].
pub struct Carried<C: Carrier>(Arc<Session<C>>);

impl<C: Carrier> Carried<C> {
    /// As [`Mounted::observer`](crate::Mounted::observer).
    pub fn observer(&self) -> Observer {
        let session = Arc::downgrade(&self.0);
        Observer::by(move || {
            let session = session.upgrade()?;
            let era = session.era().clone();
            Some(Statistics::of(match &era {
                Some(era) => &era.handler,
                None => &session.first,
            }))
        })
    }

    /// True once the last of its threads has ended.
    pub fn is_over(&self) -> bool {
        self.0.members.has_ended()
    }

    /// Waits for the end, but not for threads that are stuck in the back end: call it when the
    /// carrier brings nothing more.
    ///
    /// # Errors
    /// A thread that answers has panicked.
    pub fn join(self) -> io::Result<()> {
        let (members, watch) = (&self.0.members, &self.0.first.watch);
        let mut are_ending = members.wait_for_end(TICK);
        while !are_ending && !members.are_stuck(watch) {
            are_ending = members.wait_for_end(TICK);
        }
        if !are_ending {
            tracing::warn!("requests are stuck in the source: the service ends without them");
        }
        members.join(are_ending)
    }
}

impl<C: Carrier> fmt::Debug for Carried<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Carried({} threads)", self.0.threads)
    }
}

/// What all threads share.
struct Session<C: Carrier> {
    carrier: Arc<C>,
    vfs: Vfs,
    options: Options,
    /// The first handler, which answers nothing: each era's goes on with its counts.
    first: Handler,
    /// `None` before an INIT, and after DESTROY.
    era: Mutex<Option<Arc<Era>>>,
    members: Members,
    /// The number of threads while none is blocked.
    threads: usize,
}

/// One session of the other side: from an INIT to DESTROY, or to the next INIT.
struct Era {
    handler: Handler,
}

impl Drop for Era {
    fn drop(&mut self) {
        // Once more: requests that were under way at its end may have counted something.
        self.handler.ops.end();
    }
}

impl<C: Carrier> Session<C> {
    fn era(&self) -> MutexGuard<'_, Option<Arc<Era>>> {
        self.era.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `next` in the place of the era, if that is `only`; of any era, if that is `None`.
    fn replace(&self, next: Option<Arc<Era>>, only: Option<&Arc<Era>>) {
        let mut era = self.era();
        let is_it = |era: &Arc<Era>| only.is_none_or(|only| Arc::ptr_eq(era, only));
        if era.as_ref().is_some_and(|era| !is_it(era)) {
            return;
        }
        let before = std::mem::replace(&mut *era, next);
        drop(era);
        if let Some(before) = before {
            // Now, and not when the last of its requests has gone: a thread may be stuck.
            before.handler.ops.end();
        }
    }

    fn start(self: &Arc<Self>, member: Arc<Member>, name: String) -> io::Result<()> {
        let answering = self.clone();
        let thread = thread::Builder::new().name(name);
        self.members.started(thread.spawn(move || {
            let _last = Leaving(&answering, &member);
            answering.answer_requests(&member);
            Ok(())
        })?);
        Ok(())
    }

    /// Removes a member whose thread no longer answers. The last one ends the session.
    fn leave(&self, member: &Arc<Member>) {
        // The watcher treats the work at the end like a request.
        member.slot.work.begin(0);
        self.members.leave(member, || self.replace(None, None));
    }

    fn answer_requests(&self, member: &Arc<Member>) {
        let slot = &member.slot;
        interrupt::this_thread_is(slot);
        slot.work.is_of(gettid().as_raw_pid().cast_unsigned());
        let (mut message, mut out) = (vec![0; LONGEST], Reply::new());
        let mut checked = Instant::now();
        loop {
            slot.work.idle();
            if member.is_spare && checked.elapsed() >= PATIENCE {
                if self.may_end(member) {
                    return;
                }
                checked = Instant::now();
            }
            let mut request = match self.carrier.next(PATIENCE) {
                Arrival::Request(request) => request,
                Arrival::Nothing => continue,
                Arrival::End => return,
            };
            let Ok(len) = request.read(&mut message) else {
                continue;
            };
            self.answer(member, request, &message[..len], &mut out);
        }
    }

    fn may_end(&self, member: &Arc<Member>) -> bool {
        self.members
            .may_end(member, self.threads, &self.first.watch)
    }

    fn answer(&self, member: &Arc<Member>, request: C::Request, message: &[u8], out: &mut Reply) {
        let way = Way {
            members: &self.members,
            request: RefCell::new(request),
        };
        let header = Head::of(message);
        if header.is(op::INIT) {
            return self.begin(member, &way, message, out);
        }
        let Some(era) = self.era().clone() else {
            return way.refuse(&header, out);
        };
        let mut dispatcher = Dispatcher::new(&era.handler, &way, member.slot.clone());
        match dispatcher.message(message, out) {
            Next::Listed(handle) => {
                // The answer is sent.
                drop(way);
                era.handler.listed(handle);
            }
            Next::Over => self.replace(None, Some(&era)),
            _ => {}
        }
    }

    /// Answers an INIT. The next request may come as soon as the answer is sent, to any thread: so
    /// the era is there before.
    fn begin(
        &self,
        member: &Arc<Member>,
        way: &Way<'_, C::Request>,
        message: &[u8],
        out: &mut Reply,
    ) {
        let Ok(handler) = self.first.next(self.vfs.clone(), &self.options) else {
            return way.refuse(&Head::of(message), out);
        };
        let era = Arc::new(Era { handler });
        let kept = Kept::default();
        let mut dispatcher = Dispatcher::new(&era.handler, &kept, member.slot.clone());
        let next = dispatcher.first_message(message, out, || false);
        if let Next::Agreed(terms) = next {
            tracing::debug!(?terms, "a session begins");
            self.replace(Some(era), None);
        }
        let answer = kept.0.take();
        if !answer.is_empty() {
            let _ = way.send(&answer);
        }
    }
}

impl<C: Carrier> Watched for Arc<Session<C>> {
    fn members(&self) -> &Members {
        &self.members
    }

    fn watch(&self) -> &Watch {
        &self.first.watch
    }

    fn wanted(&self) -> Vec<usize> {
        vec![self.threads]
    }

    fn add_spare(&self, _: usize) -> io::Result<()> {
        let member = Member::carried(true);
        if !self.members.one_more(member.clone()) {
            return Ok(());
        }
        let started = self.start(member.clone(), "rcuwalk-fuse-s".to_owned());
        started.inspect_err(|_| self.leave(&member))
    }
}

/// Removes a member at the end of its thread.
struct Leaving<'s, C: Carrier>(&'s Session<C>, &'s Arc<Member>);

impl<C: Carrier> Drop for Leaving<'_, C> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

/// The parts of a header that count outside of a session.
struct Head {
    op: u32,
    unique: u64,
}

impl Head {
    /// Zero for what a short message lacks.
    fn of(message: &[u8]) -> Head {
        let op = message.get(4..8).and_then(|bytes| bytes.first_chunk());
        let unique = message.get(8..16).and_then(|bytes| bytes.first_chunk());
        Head {
            op: op.map_or(0, |bytes| u32::from_ne_bytes(*bytes)),
            unique: unique.map_or(0, |bytes| u64::from_ne_bytes(*bytes)),
        }
    }

    fn is(&self, op: u32) -> bool {
        self.op == op
    }
}

/// The channel of one request.
struct Way<'s, R> {
    members: &'s Members,
    request: RefCell<R>,
}

impl<R: CarriedRequest> Way<'_, R> {
    /// `EIO`: there is no session.
    fn refuse(&self, head: &Head, out: &mut Reply) {
        let has_no_answer = head.is(op::FORGET) || head.is(op::BATCH_FORGET);
        if has_no_answer || head.unique == 0 {
            return;
        }
        out.begin();
        let _ = out
            .finish(head.unique, libc::EIO)
            .and_then(|answer| (&self).send(answer));
    }
}

impl<R: CarriedRequest> Channel for &Way<'_, R> {
    fn send(&self, answer: &[u8]) -> rustix::io::Result<()> {
        let sent = self.request.borrow_mut().answer(answer);
        sent.map_err(|err| Errno::from_io_error(&err).unwrap_or(Errno::IO))
    }

    fn register(&self, _: BorrowedFd<'_>) -> io::Result<Backing> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn interrupt(&self, unique: u64) -> bool {
        self.members.any(|member| member.slot.interrupt(unique))
    }

    /// By the answer to the INTERRUPT itself, if that can have one.
    fn interrupt_again(&self, answer: &[u8]) {
        let _ = self.send(answer);
    }
}

/// A channel that keeps the answer, which is short.
#[derive(Default)]
struct Kept(RefCell<Vec<u8>>);

impl Channel for &Kept {
    fn send(&self, answer: &[u8]) -> rustix::io::Result<()> {
        *self.0.borrow_mut() = answer.to_vec();
        Ok(())
    }

    fn register(&self, _: BorrowedFd<'_>) -> io::Result<Backing> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn interrupt(&self, _: u64) -> bool {
        false
    }

    fn interrupt_again(&self, _: &[u8]) {}
}
