//! A connection without a kernel: this side is its.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rcuwalk::Vfs;
use rcuwalk_fuse::{Options, Served, serve};

use crate::message::{Known, Message, op};

pub(crate) struct Session {
    socket: UnixDatagram,
    pub(crate) served: Served,
    pub(crate) known: Known,
    last: u64,
    /// How many were answered with more than an error.
    pub(crate) done: u64,
}

/// Nothing is answered any more.
#[derive(Debug)]
pub(crate) struct Ended;

impl Session {
    pub(crate) fn new(vfs: Vfs) -> Session {
        let (socket, theirs) = UnixDatagram::pair().unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        socket.send(&Message::init().bytes(1)).unwrap();
        let options = Options {
            allow_other: true,
            threads: 1,
            ..Options::default()
        };
        let served = serve(vfs, OwnedFd::from(theirs), &options).unwrap();
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

    /// Sends a message, and returns its answer, if there is to be one.
    pub(crate) fn send(&mut self, message: &Message) -> Result<Vec<u8>, Ended> {
        self.last += 1;
        let bytes = message.bytes(self.last);
        self.socket.send(&bytes).map_err(|_| Ended)?;
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
        assert!((-4095..=0).contains(&error), "{message:?}: {error}");
        if error == 0 {
            self.done += 1;
            self.known.learn(message.opcode(), &reply[16..]);
        }
        Ok(reply)
    }

    fn receive(&mut self) -> Result<Vec<u8>, Ended> {
        let mut reply = vec![0; 1 << 18];
        for _ in 0..400 {
            match self.socket.recv(&mut reply) {
                Ok(0) => return Err(Ended),
                Ok(len) => {
                    reply.truncate(len);
                    return Ok(reply);
                }
                Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if self.served.is_over() {
                        return Err(Ended);
                    }
                }
                Err(_) => return Err(Ended),
            }
        }
        panic!("no answer for 20 s");
    }

    /// It has ended by itself: cleanly.
    pub(crate) fn ended(self, what: &str) {
        match self.into_served().join() {
            Ok(()) => {}
            Err(err) => assert_eq!(err.kind(), ErrorKind::InvalidData, "{what}: {err}"),
        }
    }

    /// Ends it.
    pub(crate) fn hang_up(mut self, what: &str) {
        self.send(&Message::new(op::DESTROY, 0)).unwrap();
        self.ended(what);
    }

    pub(crate) fn into_served(self) -> Served {
        // Whoever still reads gets nothing, which is no message.
        let _ = self.socket.shutdown(Shutdown::Both);
        self.served
    }
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*bytes[at..].first_chunk().unwrap())
}
