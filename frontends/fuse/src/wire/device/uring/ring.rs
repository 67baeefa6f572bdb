//! A thread's ring, and the memory for its requests: the second of the front end's two places
//! with unsafe code.
//!
//! A thread has an entry for each queue that it serves. An entry is a buffer for the headers
//! and one for the rest, to which the kernel copies a request and from which it takes the
//! answer. The entry changes hands like this:
//!
//! ```text
//!   REGISTER ──► the kernel ──► completion: a request is there ──► this thread
//!                    ▲                                                  │
//!                    └────────────────── COMMIT_AND_FETCH ◄─────────────┘
//! ```
//!
//! **URING-1**: an entry belongs to the kernel from the submission of a command to its
//! completion, and to this thread from then on; never to both. The kernel copies a request
//! before it completes the command, and takes the answer while the next command is submitted.
//! So memory that this thread has borrowed from an entry is never written to meanwhile, and the
//! borrow ends before the entry's next command is made ([`Ring::answer`] takes the whole ring).
#![allow(
    unsafe_code,
    reason = "the kernel is given addresses, which stay valid until the ring is gone"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::squeue::Entry128;
use io_uring::{EnterFlags, IoUring, cqueue, opcode, types};

use super::super::abi;
use super::super::encode::{LONGEST_BODY, Reply};

/// `FUSE_IO_URING_CMD_REGISTER` and `…_COMMIT_AND_FETCH`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// The longest header of an operation (`FUSE_URING_OP_IN_OUT_SZ`).
const OP_HEADER: usize = 128;
/// Room before the rest of a request, for all headers of a message.
const BEFORE: usize = abi::IN_HEADER + OP_HEADER;

/// `struct fuse_uring_req_header`.
#[derive(Debug)]
#[repr(C)]
struct Headers {
    /// `struct fuse_in_header`, or `struct fuse_out_header`.
    in_out: [u8; 128],
    op: [u8; OP_HEADER],
    flags: u64,
    commit_id: u64,
    /// The length of the rest.
    payload_len: u32,
    padding: u32,
    reserved: u64,
}

/// `struct iovec`.
#[repr(C)]
struct Place {
    address: usize,
    len: usize,
}

/// A buffer for requests of one queue, one at a time.
struct Entry {
    queue: u16,
    headers: Box<Headers>,
    /// The rest of a request, and then the answer's body.
    room: Reply,
    /// The addresses of the two, for the kernel.
    places: Box<[Place; 2]>,
    /// The headers of a request without a rest, so that its answer can be made in `room`.
    head: [u8; BEFORE],
}

/// A ring with entries for some queues. Any thread may make it; it belongs to the thread that
/// [registers](Ring::register) the entries.
pub(super) struct Ring {
    // Dropped first: without the ring, the kernel does not use the entries any more.
    ring: IoUring<Entry128, cqueue::Entry>,
    entries: Box<[Entry]>,
    device: i32,
}

impl Ring {
    /// Makes a ring for requests of the device's connection. The device must stay open as long
    /// as the ring exists.
    ///
    /// # Errors
    /// io_uring is not available, or lacks a feature that is needed (Linux 6.15); or no memory.
    pub(super) fn new(device: BorrowedFd<'_>, queues: &[u16]) -> io::Result<Ring> {
        let mut builder = IoUring::<Entry128, cqueue::Entry>::builder();
        // The single issuer is the thread that enables the ring.
        builder.setup_single_issuer().setup_defer_taskrun();
        builder.setup_r_disabled();
        let most = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        let ring = builder.build(most.next_power_of_two())?;
        if !ring.params().is_feature_no_iowait() {
            // A thread waiting for a request would count as waiting for a disk, all the time.
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Ring {
            ring,
            entries: queues.iter().map(|queue| Entry::new(*queue)).collect(),
            device: device.as_raw_fd(),
        })
    }

    /// Offers its entries to the kernel, which uses them once there are entries for all queues.
    /// From now on the ring belongs to this thread.
    ///
    /// # Errors
    /// The kernel does not accept them.
    pub(super) fn register(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        for at in 0..self.entries.len() {
            self.push(at, REGISTER)?;
        }
        self.submit_if(|_| true)?;
        // The kernel reports an entry that it does not accept at once. An accepted entry gets a
        // request only while this thread itself waits (`DEFER_TASKRUN`).
        match self.ring.completion().next() {
            Some(told) => Err(error(&told).unwrap_or(io::ErrorKind::Other.into())),
            None => Ok(()),
        }
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// What the kernel reports.
    pub(super) fn wait(&mut self) -> io::Result<Completion> {
        loop {
            // Submits answers first: their callers must not wait for the next request as well.
            self.submit_if(|this| !this.ring.completion().is_empty())?;
            if let Some(told) = self.ring.completion().next() {
                // The index of the entry, as given with its command.
                let at = told.user_data() as usize;
                return Ok(match error(&told) {
                    None => Completion::Request(at),
                    Some(err) => Completion::Back(at, err),
                });
            }
            self.enter(1)?;
        }
    }

    /// Offers an entry again that came back without a request.
    ///
    /// # Errors
    /// What the kernel reports.
    pub(super) fn offer_again(&mut self, at: usize) -> io::Result<()> {
        self.push(at, REGISTER)
    }

    /// Returns the request in the entry. `None` if it makes no sense.
    pub(super) fn request<'r>(
        &'r mut self,
        at: usize,
        spare: &'r mut Reply,
    ) -> Option<RingRequest<'r>> {
        let entry = &mut self.entries[at];
        let headers = &*entry.headers;
        let len = u32::from_ne_bytes(*headers.in_out.first_chunk()?);
        let rest = headers.payload_len as usize;
        let before = usize::try_from(len).ok()?.checked_sub(rest)?;
        let op = headers.op.get(..before.checked_sub(abi::IN_HEADER)?)?;
        let first = &headers.in_out[..abi::IN_HEADER];
        if rest > 0 {
            return Some(RingRequest {
                message: entry.room.message([first, op], rest)?,
                out: spare,
                made: Made::InSpare,
            });
        }
        let head = &mut entry.head[..before];
        head[..abi::IN_HEADER].copy_from_slice(first);
        head[abi::IN_HEADER..].copy_from_slice(op);
        Some(RingRequest {
            message: head,
            out: &mut entry.room,
            made: Made::InPlace,
        })
    }

    /// Gives the entry back with the answer that was made in `spare`, or in place; or with
    /// `EIO`, if there is none. The next [`wait`](Ring::wait) submits it.
    ///
    /// # Errors
    /// What the kernel reports.
    pub(super) fn answer(&mut self, at: usize, made: Made, spare: &Reply) -> io::Result<()> {
        let entry = &mut self.entries[at];
        match made {
            Made::InPlace => {}
            Made::InSpare => entry.room.copy_from(spare),
            Made::Nowhere => entry.refuse(),
        }
        let answer = entry.room.answer();
        let (header, body) = answer.split_at(abi::OUT_HEADER);
        entry.headers.in_out[..abi::OUT_HEADER].copy_from_slice(header);
        // The body fits into the room, so its length fits as well.
        entry.headers.payload_len = body.len() as u32;
        self.push(at, COMMIT_AND_FETCH)
    }

    /// Submits the queued commands to the kernel, as long as `wanted` returns true.
    fn submit_if(&mut self, wanted: impl Fn(&mut Self) -> bool) -> io::Result<()> {
        while !self.ring.submission().is_empty() && wanted(self) {
            self.enter(0)?;
        }
        Ok(())
    }

    /// Submits all queued commands, and waits for `want` completions; or fewer, if a signal
    /// comes or the kernel has no memory just now.
    #[doc(alias = "io_uring_enter(2)")]
    fn enter(&mut self, want: u32) -> io::Result<()> {
        let most = self.ring.submission().len() as u32;
        let flags = match want {
            0 => EnterFlags::empty(),
            _ => EnterFlags::GETEVENTS | EnterFlags::NO_IOWAIT,
        };
        let submitter = self.ring.submitter();
        // SAFETY: the queue holds `most` commands, and the call passes no argument.
        let done = unsafe { submitter.enter::<libc::sigset_t>(most, want, flags.bits(), None) };
        match done {
            Ok(_) => Ok(()),
            Err(err) => match err.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(err),
            },
        }
    }

    fn push(&mut self, at: usize, command: u32) -> io::Result<()> {
        let entry = &mut self.entries[at];
        let command = entry.command(self.device, command, at);
        // SAFETY: the device outlives the ring. The memory that the command points to is owned
        // by the entry, stays in place from REGISTER until the ring is gone, and is not
        // borrowed while the kernel uses it (URING-1).
        let pushed = unsafe { self.ring.submission().push(&command) };
        // Each entry is the kernel's or has one command here, so there is room for it.
        pushed.map_err(io::Error::other)
    }
}

/// The completion of an entry's command.
#[derive(Debug)]
pub(super) enum Completion {
    /// A request.
    Request(usize),
    /// No request: the kernel no longer needs the entry, or has not understood the answer.
    Back(usize, io::Error),
}

/// A request in a ring.
pub(super) struct RingRequest<'r> {
    /// The message, as the device would deliver it.
    pub(super) message: &'r [u8],
    /// The buffer for its answer: in place, unless the request lies there.
    pub(super) out: &'r mut Reply,
    pub(super) made: Made,
}

/// Where an answer was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    InPlace,
    InSpare,
    Nowhere,
}

impl Entry {
    fn new(queue: u16) -> Entry {
        let zeroed = Headers {
            in_out: [0; 128],
            op: [0; OP_HEADER],
            flags: 0,
            commit_id: 0,
            payload_len: 0,
            padding: 0,
            reserved: 0,
        };
        let place = || Place { address: 0, len: 0 };
        Entry {
            queue,
            headers: Box::new(zeroed),
            room: Reply::after(BEFORE),
            places: Box::new([place(), place()]),
            head: [0; BEFORE],
        }
    }

    /// `IORING_OP_URING_CMD` with a `struct fuse_uring_cmd_req`.
    fn command(&mut self, device: i32, command: u32, at: usize) -> Entry128 {
        // Taken anew for each command: borrows since the last one have ended.
        let headers = &raw mut *self.headers;
        *self.places = [
            Place {
                address: headers.expose_provenance(),
                len: size_of::<Headers>(),
            },
            Place {
                address: self.room.room().expose_provenance(),
                len: LONGEST_BODY,
            },
        ];
        let places = (&raw const *self.places).expose_provenance() as u64;
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&self.headers.commit_id.to_ne_bytes());
        request[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let built = opcode::UringCmd80::new(types::Fd(device), command)
            .cmd(request)
            .addr(Some(places))
            .build();
        let mut built = built.user_data(at as u64);
        // The number of buffers. The crate does not fill that in for this command.
        const LEN: usize = 24;
        // SAFETY: an `Entry128` is the kernel's `struct io_uring_sqe` of 128 bytes, in which
        // these 32 bits are `len`.
        unsafe {
            (&raw mut built)
                .cast::<u8>()
                .add(LEN)
                .cast::<u32>()
                .write(self.places.len() as u32);
        }
        built
    }

    /// Makes `EIO` the answer.
    fn refuse(&mut self) {
        let unique = self.headers.in_out[8..].first_chunk();
        let unique = u64::from_ne_bytes(unique.copied().unwrap_or_default());
        self.room.begin();
        let _ = self.room.finish(unique, libc::EIO);
    }
}

fn error(told: &cqueue::Entry) -> Option<io::Error> {
    let errno = told.result().saturating_neg();
    (errno > 0).then(|| io::Error::from_raw_os_error(errno))
}

const _: () = assert!(size_of::<Headers>() == 288 && size_of::<Entry128>() == 128);

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::super::super::abi::op;
    use super::super::super::decode::{Operation, decode};
    use super::*;

    /// A ring that is never registered: the test does the kernel's part.
    fn ring() -> Option<Ring> {
        let device = File::open("/dev/null").unwrap();
        Ring::new(device.as_fd(), &[0, 1])
            .inspect_err(|err| println!("skipped: needs io_uring: {err}"))
            .ok()
    }

    /// Puts a request into an entry, as the kernel does.
    fn put(entry: &mut Entry, op: u32, header: &[u8], rest: &[u8]) {
        let len = abi::IN_HEADER + header.len() + rest.len();
        let headers = &mut *entry.headers;
        headers.in_out[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        headers.in_out[4..8].copy_from_slice(&op.to_ne_bytes());
        headers.in_out[8..16].copy_from_slice(&77_u64.to_ne_bytes());
        headers.op[..header.len()].copy_from_slice(header);
        headers.payload_len = rest.len() as u32;
        entry.room.begin();
        entry.room.extend(rest);
    }

    #[test]
    fn a_request_is_what_it_would_be_by_the_device() {
        let Some(mut ring) = ring() else { return };
        let mut spare = Reply::new();
        put(&mut ring.entries[1], op::LOOKUP, &[], b"name\0");
        let request = ring.request(1, &mut spare).unwrap();
        assert_eq!(request.made, Made::InSpare, "the request is in its place");
        let (header, operation) = decode(request.message, false).unwrap();
        assert_eq!(header.unique, 77);
        assert!(matches!(operation, Operation::Lookup(b"name")));

        let sync = [9_u64.to_ne_bytes(), 1_u64.to_ne_bytes()].concat();
        put(&mut ring.entries[1], op::FSYNC, &sync, &[]);
        let request = ring.request(1, &mut spare).unwrap();
        assert_eq!(request.made, Made::InPlace);
        let (_, operation) = decode(request.message, false).unwrap();
        assert!(matches!(operation, Operation::Fsync(9, true)));
    }

    #[test]
    fn lengths_that_make_no_sense_are_no_request() {
        let Some(mut ring) = ring() else { return };
        let mut spare = Reply::new();
        for (len, rest) in [
            (0, 0),
            (39, 0),
            (40 + 129, 0),
            (50, 11),
            (u32::MAX, 0),
            (100 + LONGEST_BODY as u32, 60 + LONGEST_BODY as u32),
        ] {
            put(&mut ring.entries[0], op::LOOKUP, &[], b"a\0");
            let headers = &mut *ring.entries[0].headers;
            headers.in_out[..4].copy_from_slice(&len.to_ne_bytes());
            headers.payload_len = rest;
            assert!(ring.request(0, &mut spare).is_none(), "{len} {rest}");
        }
    }

    #[test]
    fn an_answer_is_given_back_from_where_it_was_made() {
        let Some(mut ring) = ring() else { return };
        let number = |bytes: &[u8]| u64::from_ne_bytes(*bytes.first_chunk().unwrap());
        let errno =
            |headers: &Headers| i32::from_ne_bytes(*headers.in_out[4..].first_chunk().unwrap());
        let mut spare = Reply::new();
        for out in [&mut ring.entries[0].room, &mut spare] {
            out.begin();
            out.u64(5);
            out.finish(77, 0).unwrap();
        }
        put(&mut ring.entries[1], op::LOOKUP, &[], b"a\0");
        ring.answer(0, Made::InPlace, &spare).unwrap();
        ring.answer(1, Made::InSpare, &spare).unwrap();
        for entry in &ring.entries {
            assert_eq!(
                (number(entry.room.body()), entry.headers.payload_len),
                (5, 8)
            );
            assert_eq!(
                (number(&entry.headers.in_out[8..]), errno(&entry.headers)),
                (77, 0)
            );
        }
        assert!(
            ring.answer(0, Made::InPlace, &spare).is_err(),
            "there is no room"
        );
        let entry = &mut ring.entries[1];
        put(entry, op::LOOKUP, &[], b"a\0");
        entry.refuse();
        let answer = entry.room.answer();
        assert_eq!(answer.len(), abi::OUT_HEADER);
        assert_eq!(answer[4..8], (-libc::EIO).to_ne_bytes());
        assert_eq!(number(&answer[8..]), 77);
    }
}
