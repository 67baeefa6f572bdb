//! One connection: what has arrived of the next request, and answers that its client has not taken.
//!
//! Its event is registered for one thread at a time (`EPOLLONESHOT`), and again by each thread
//! that changes what the connection waits for. Reading and writing do not block, so the lock is held
//! for a copy between kernel and memory at most.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::connections::Charge;
use super::{MOST_WAITING, Shared};
use crate::record::{Record, Records};

/// A connection.
pub(crate) struct Connection {
    id: u64,
    stream: TcpStream,
    peer: SocketAddr,
    state: Mutex<State>,
}

struct State {
    input: Records,
    /// Since when part of a request is here.
    partial_since: Option<Instant>,
    /// Answers that the client has not taken; of the first, `sent` bytes are gone.
    output: VecDeque<Vec<u8>>,
    sent: usize,
    output_bytes: usize,
    /// Since when the client has taken nothing of them.
    stalled_since: Option<Instant>,
    /// Requests that are being answered.
    in_flight: usize,
    /// Waits to be read, as the kernel knows.
    is_armed: bool,
    /// Not over a limit: more of it is read.
    is_read: bool,
    /// The client sends nothing more.
    has_ended: bool,
    is_closed: bool,
    last_used: Instant,
    has_called: bool,
    charge: Charge,
}

/// What a connection has for a thread.
pub(super) enum Input {
    /// Nothing yet, or another thread has it.
    Nothing,
    /// A request, which counts as under way until its answer is sent.
    Request(Record),
    /// The connection must be closed.
    Over,
}

/// How a connection stands among the others, when one of them must go: first those without a call
/// that counts, then those without one under way, the one that has been silent for longest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Standing {
    has_called: bool,
    is_busy: bool,
    last_used: Instant,
}

impl Connection {
    pub(super) fn new(id: u64, stream: TcpStream, peer: SocketAddr, charge: Charge) -> Connection {
        Connection {
            id,
            stream,
            peer,
            state: Mutex::new(State {
                input: Records::default(),
                partial_since: None,
                output: VecDeque::new(),
                sent: 0,
                output_bytes: 0,
                stalled_since: None,
                in_flight: 0,
                is_armed: true,
                is_read: true,
                has_ended: false,
                is_closed: false,
                last_used: Instant::now(),
                has_called: false,
                charge,
            }),
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Has the kernel wake a thread for the first bytes.
    pub(super) fn register(&self, shared: &Shared) -> std::io::Result<()> {
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        let data = EventData::new_u64(self.id);
        Ok(epoll::add(&shared.epoll, &self.stream, data, flags)?)
    }

    /// Sends what the socket takes, reads what has arrived, and takes one request.
    pub(super) fn take_request(&self, shared: &Shared, scratch: &mut [u8]) -> Input {
        let mut state = self.state();
        state.is_armed = false;
        if state.is_closed || !self.flush(&mut state) {
            return Input::Over;
        }
        let request = match state.may_read(shared.most_at_once) {
            true => self.read(&mut state, scratch),
            false => Input::Nothing,
        };
        if let Input::Request(_) = request {
            state.in_flight += 1;
            // A port that anyone may use gains no one a place among the clients.
            state.has_called = shared.dispatcher.export.options.heeds(self.peer);
            state.last_used = Instant::now();
        }
        if matches!(request, Input::Over) || !self.settle(shared, &mut state) {
            return Input::Over;
        }
        request
    }

    /// Reads until there is a request, or nothing more.
    fn read(&self, state: &mut State, scratch: &mut [u8]) -> Input {
        loop {
            match state.input.next() {
                Ok(Some(record)) => {
                    state.partial_since = None;
                    return Input::Request(record);
                }
                Ok(None) => {}
                Err(_too_long) => return Input::Over,
            }
            match (&self.stream).read(scratch) {
                Ok(0) => {
                    state.has_ended = true;
                    return Input::Nothing;
                }
                Ok(len) => state.input.extend(&scratch[..len]),
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) if err.kind() == ErrorKind::WouldBlock => return Input::Nothing,
                Err(_) => {
                    state.has_ended = true;
                    return Input::Over;
                }
            }
        }
    }

    /// Sends an answer, or has it wait for the client. `is_own`: it ends a request of this
    /// connection. Returns false if the connection is to be closed.
    pub(super) fn send(&self, shared: &Shared, reply: Vec<u8>, is_own: bool) -> bool {
        let mut state = self.state();
        state.in_flight -= usize::from(is_own);
        state.last_used = Instant::now();
        if state.is_closed {
            return true;
        }
        state.output_bytes += reply.len();
        state.output.push_back(reply);
        self.flush(&mut state) && self.settle(shared, &mut state)
    }

    /// A request of this connection has ended without an answer.
    pub(super) fn finish(&self, shared: &Shared) -> bool {
        let mut state = self.state();
        state.in_flight -= 1;
        state.is_closed || self.settle(shared, &mut state)
    }

    /// Sends what the socket takes. Returns false if the client is gone.
    fn flush(&self, state: &mut State) -> bool {
        while let Some(first) = state.output.front() {
            match (&self.stream).write(&first[state.sent..]) {
                Ok(0) => return false,
                Ok(len) => {
                    state.sent += len;
                    state.output_bytes -= len;
                    state.stalled_since = None;
                    if state.sent == first.len() {
                        state.output.pop_front();
                        state.sent = 0;
                    }
                }
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) if err.kind() == ErrorKind::WouldBlock => {
                    state.stalled_since.get_or_insert_with(Instant::now);
                    return true;
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// Brings limits, and what the kernel is to wake a thread for, in line with the state. Returns
    /// false if the connection is to be closed.
    fn settle(&self, shared: &Shared, state: &mut State) -> bool {
        if state.has_ended && state.in_flight == 0 && state.output.is_empty() {
            return false;
        }
        match state.input.is_partial() {
            true => _ = state.partial_since.get_or_insert_with(Instant::now),
            false => state.partial_since = None,
        }
        let waiting = state.input.held() + state.output_bytes;
        if !state.charge.set(waiting) {
            return false;
        }
        let mut flags = EventFlags::ONESHOT;
        let reads = state.may_read(shared.most_at_once);
        state.is_read = reads;
        flags.set(EventFlags::IN, reads);
        // A socket with room wakes the next thread at once for a request that is here already.
        let has_request = reads && state.input.has_next();
        flags.set(EventFlags::OUT, has_request || !state.output.is_empty());
        if reads && state.is_armed && !flags.contains(EventFlags::OUT) {
            return true;
        }
        // Without either, it stays disarmed: a client that hangs up would wake threads for nothing.
        if !flags.intersects(EventFlags::IN | EventFlags::OUT) {
            return true;
        }
        state.is_armed = reads;
        let data = EventData::new_u64(self.id);
        epoll::modify(&shared.epoll, &self.stream, data, flags).is_ok()
    }

    /// True if the client has taken too long for the rest of a request, or to take an answer.
    pub(super) fn is_too_slow(&self, now: Instant, patience: Duration) -> bool {
        let state = self.state();
        // Not if it is we who do not read.
        let partial = state.partial_since.filter(|_| state.is_read);
        let since = [partial, state.stalled_since];
        let slow = |since: Instant| now.saturating_duration_since(since) > patience;
        since.into_iter().flatten().any(slow)
    }

    pub(super) fn standing(&self) -> Standing {
        let state = self.state();
        Standing {
            is_busy: state.in_flight > 0,
            has_called: state.has_called,
            last_used: state.last_used,
        }
    }

    /// Hangs up. Returns false if that was done before.
    pub(super) fn close(&self) -> bool {
        let mut state = self.state();
        if state.is_closed {
            return false;
        }
        state.is_closed = true;
        state.input = Records::default();
        state.output.clear();
        (state.output_bytes, state.sent) = (0, 0);
        state.charge.set(0);
        // The descriptor is closed when the last thread is done with it.
        let _ = self.stream.shutdown(Shutdown::Both);
        true
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().has_ended
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn may_read(&self, most_at_once: usize) -> bool {
        !self.has_ended && self.in_flight < most_at_once && self.output_bytes <= MOST_WAITING
    }
}
