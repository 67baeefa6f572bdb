//! A connection without a kernel: the test takes the kernel's side.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rcuwalk::Vfs;
use rcuwalk_fuse::{Options, Served, serve};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use crate::message::{Known, Message, op};

pub(crate) struct Session {
    socket: OwnedFd,
    pub(crate) served: Served,
    pub(crate) known: Known,
    last: u64,
    /// The number of requests that were answered with more than an error.
    pub(crate) done: u64,
}

/// How long to wait for an answer before checking whether the session is over.
const A_WHILE: Duration = Duration::from_millis(2);

/// The session is over, and answers nothing any more.
#[derive(Debug)]
pub(crate) struct Ended;

impl Session {
    pub(crate) fn new(vfs: Vfs) -> Session {
        Session::with_threads(vfs, 1)
    }

    pub(crate) fn with_threads(vfs: Vfs, threads: usize) -> Session {
        let kind = SocketType::SEQPACKET;
        let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (socket, theirs) = pair.unwrap();
        rustix::io::write(&socket, &Message::init().bytes(1)).unwrap();
        let options = Options::default().allow_other(true).threads(threads);
        let served = serve(vfs, theirs, &options).unwrap();
        let mut session = Session {
            socket,
            served,
            known: Known::default(),
            last: 1,
            done: 0,
        };
        session.receive().expect("the answer to INIT");
        session
    }

    /// An empty message.
    pub(crate) fn send_nothing(&self) {
        send(&self.socket, b"", SendFlags::NOSIGNAL).unwrap();
    }

    /// Sends a message, and returns its answer, if it gets one.
    pub(crate) fn send(&mut self, message: &Message) -> Result<Vec<u8>, Ended> {
        self.last += 1;
        let bytes = message.bytes(self.last);
        send(&self.socket, &bytes, SendFlags::NOSIGNAL).map_err(|_| Ended)?;
        if message.ends_session() {
            self.last_answer(message);
            return Err(Ended);
        }
        if !message.is_answered() {
            return Ok(Vec::new());
        }
        let reply = self.receive()?;
        let len = u32::from_ne_bytes(*reply.first_chunk().unwrap());
        assert_eq!(len as usize, reply.len(), "{message:?}");
        assert_eq!(
            u64_at(&reply, 8),
            self.last,
            "{message:?} has another's answer"
        );
        let error = i32::from_ne_bytes(*reply[4..].first_chunk().unwrap());
        assert!((-511..=0).contains(&error), "{message:?}: {error}");
        if error == 0 {
            self.done += 1;
            self.known.learn(message.opcode(), &reply[16..]);
        }
        Ok(reply)
    }

    fn last_answer(&mut self, message: &Message) {
        if message.is_answered() {
            let reply = self.receive().expect("the last answer");
            assert_eq!(u64_at(&reply, 8), self.last);
        }
        self.receive().unwrap_err();
    }

    fn receive(&mut self) -> Result<Vec<u8>, Ended> {
        let mut reply = vec![0; 1 << 18];
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            if self.has_something(A_WHILE) {
                let len = rustix::io::read(&self.socket, &mut reply).map_err(|_| Ended)?;
                reply.truncate(len);
                return if len == 0 { Err(Ended) } else { Ok(reply) };
            }
            // Its last answer arrived before it ended.
            if self.served.is_over() && !self.has_something(Duration::ZERO) {
                return Err(Ended);
            }
        }
        panic!("no answer for 20 s");
    }

    fn has_something(&self, within: Duration) -> bool {
        let mut socket = [PollFd::new(&self.socket, PollFlags::IN)];
        let within = Timespec::try_from(within).unwrap();
        poll(&mut socket, Some(&within)).unwrap() > 0
    }

    /// Checks that there is no unsolicited message.
    pub(crate) fn assert_quiet(&self, what: &str) {
        assert!(!self.has_something(Duration::ZERO), "{what}");
    }

    /// Checks that the session has ended by itself, without an error.
    pub(crate) fn ended(self, what: &str) {
        let joined = self.into_served().join();
        assert!(joined.is_ok(), "{what}: {joined:?}");
    }

    /// Ends the session by DESTROY.
    pub(crate) fn hang_up(mut self, what: &str) {
        self.send(&Message::new(op::DESTROY, 0)).unwrap_err();
        self.ended(what);
    }

    /// Returns the served end, with our end of its connection.
    pub(crate) fn into_parts(self) -> (Served, OwnedFd) {
        (self.served, self.socket)
    }

    fn into_served(self) -> Served {
        // Dropping the socket hangs up.
        self.served
    }
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*bytes[at..].first_chunk().unwrap())
}
