//! Requests that come by rings that the kernel shares with us, where it offers that
//! (`FUSE_OVER_IO_URING`, Linux 6.14, with `fuse.enable_uring`): one system call gives an
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
//! Two things are otherwise than by the device. That an answer was not taken is not told: it
//! happens only when the connection ends, and then all is given back anyway. And an INTERRUPT
//! that overtakes its request does not come again, so that one takes as long as it takes.

mod queues;
mod ring;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use self::queues::Part;
use self::ring::{Made, Ring};
use super::desk::{Desk, Line, Next};
use super::encode::Out;
use crate::interrupt::Slot;
use crate::through::Backing;
use crate::wire::Handler;

/// What a thread needs to answer by its ring.
pub(super) struct Seat {
    ring: Ring,
    part: Part,
}

/// For `threads` threads, or as many more as it takes, rings by which requests of the
/// connection are to come. The device stays open for as long.
///
/// # Errors
/// There is no io_uring to be had.
pub(super) fn seats(device: &impl AsFd, threads: usize) -> io::Result<Vec<Seat>> {
    let parts = queues::parts(threads)?.into_iter();
    let seat = |part: Part| {
        let ring = Ring::new(device.as_fd(), &part.queues)?;
        Ok(Seat { ring, part })
    };
    parts.map(seat).collect()
}

impl Seat {
    /// Has requests come to this thread.
    ///
    /// # Errors
    /// The kernel does not take the ring.
    pub(super) fn take(&mut self) -> io::Result<()> {
        if let Some(cpu) = self.part.on {
            queues::run_on(cpu);
        }
        self.ring.register()
    }

    /// Answers them until the connection is gone. What is not about one answer goes by the
    /// `device`.
    ///
    /// # Errors
    /// What the ring reports.
    pub(super) fn answer(
        mut self,
        handler: &Handler,
        device: &impl Line,
        slot: Arc<Slot>,
    ) -> io::Result<()> {
        let is_made = Cell::new(false);
        let line = Entry {
            is_made: &is_made,
            device,
        };
        let mut desk = Desk::new(handler, line, slot);
        let mut spare = Out::new();
        while let Some(at) = self.ring.wait()? {
            is_made.set(false);
            let (mut next, mut made) = (Next::Comes, Made::Nowhere);
            if let Some(request) = self.ring.request(at, &mut spare) {
                next = desk.message(request.message, request.out);
                if is_made.get() {
                    made = request.made;
                }
            }
            self.ring.answer(at, made, &spare);
            if next == Next::Over || desk.has_more_to_do() {
                self.ring.submit()?;
            }
            desk.go_on();
        }
        Ok(())
    }
}

/// The line by which a request in a ring has come: its answer stays in the entry, which is
/// given back as soon as nobody reads the request any more.
struct Entry<'s, L> {
    is_made: &'s Cell<bool>,
    device: &'s L,
}

impl<L: Line> Line for Entry<'_, L> {
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
