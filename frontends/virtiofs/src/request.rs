//! A request that a thread has: read, answered, and given back to its ring.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use crate::chain::Chain;
use crate::memory::Mapped;
use crate::ring::Ring;

/// A request that was taken from a ring. Dropped without an answer, it is given back so.
pub(crate) struct Request {
    ring: Arc<Ring>,
    /// In which it was taken.
    run: u64,
    one: Arc<UnderWay>,
    is_given_back: bool,
}

/// A chain that a thread has.
pub(crate) struct UnderWay {
    pub(crate) head: u16,
    pub(crate) chain: Chain,
    pub(crate) mapped: Arc<Mapped>,
    /// When it was taken.
    pub(crate) since: Instant,
}

impl Request {
    pub(crate) fn new(ring: Arc<Ring>, run: u64, one: Arc<UnderWay>) -> Request {
        Request {
            ring,
            run,
            one,
            is_given_back: false,
        }
    }
}

impl UnderWay {
    /// Answers `EIO`, if there is room, and returns the answer's length.
    pub(crate) fn refuse(&self) -> u32 {
        // The answer's header: its length, the error, and the request's number. That is read
        // again, and may be another one by now: it is told to who wrote it, and to nobody else.
        let mut header = [0; 16];
        match self.chain.copy_to(&self.mapped, &mut header) {
            Ok(read) if read == header.len() => {}
            _ => return 0,
        }
        header[..4].copy_from_slice(&16_u32.to_ne_bytes());
        header[4..8].copy_from_slice(&(-Errno::IO.raw_os_error()).to_ne_bytes());
        match self.chain.copy_from(&self.mapped, &header) {
            Ok(()) => 16,
            // FORGET has none.
            Err(_) => 0,
        }
    }
}

impl rcuwalk_fuse::CarriedRequest for Request {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.ring
            .copy(self.run, || self.one.chain.copy_to(&self.one.mapped, room))
    }

    fn answer(&mut self, answer: &[u8]) -> io::Result<()> {
        if self.is_given_back {
            return Err(Errno::NODEV.into());
        }
        let copied = || self.one.chain.copy_from(&self.one.mapped, answer);
        self.ring.copy(self.run, copied)?;
        self.is_given_back = true;
        // An answer is no longer than a MiB and its header.
        let len = u32::try_from(answer.len()).unwrap_or(u32::MAX);
        self.ring.give_back(self.run, &self.one, len)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.is_given_back {
            let _ = self.ring.give_back(self.run, &self.one, 0);
        }
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request({}, {:?})", self.one.head, self.one.chain)
    }
}
