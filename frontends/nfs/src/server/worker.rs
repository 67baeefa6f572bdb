//! A thread that answers: it waits for a connection, reads one request, and executes it.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::connection::{Connection, Input};
use super::{END, Shared};
use crate::dispatch::Outcome;
use crate::record::Record;

/// Bytes read at a time.
const SCRATCH: usize = 256 << 10;

/// A spare thread that has had nothing to do for so long ends.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn run(shared: &Shared, is_spare: bool) {
    answer_all(shared, is_spare);
    if is_spare {
        shared.spares.fetch_sub(1, Relaxed);
    }
}

fn answer_all(shared: &Shared, is_spare: bool) {
    let patience = Timespec::try_from(PATIENCE).ok().filter(|_| is_spare);
    let mut scratch = vec![0; SCRATCH];
    let mut ready = [MaybeUninit::uninit(); 1];
    while !shared.is_over() {
        shared.waiting.fetch_add(1, Relaxed);
        let woken = epoll::wait(&shared.epoll, &mut ready, patience.as_ref());
        shared.waiting.fetch_sub(1, Relaxed);
        let event = match woken {
            Ok(([], _)) if is_spare => return,
            Ok((events, _)) => events.first().map(|event| event.data.u64()),
            Err(Errno::INTR) => None,
            Err(errno) => {
                tracing::error!("a thread has ended: epoll: {errno}");
                return;
            }
        };
        match event {
            Some(END) | None => {}
            Some(id) => {
                // It may have been closed meanwhile.
                if let Some(connection) = shared.connections.get(id) {
                    serve(shared, &connection, &mut scratch);
                }
            }
        }
    }
}

/// Answers one request of a connection that has something to say.
fn serve(shared: &Shared, connection: &Arc<Connection>, scratch: &mut [u8]) {
    match connection.take_request(shared, scratch) {
        Input::Nothing => {}
        Input::Over => close(shared, connection),
        Input::Request(record) => answer(shared, connection, &record),
    }
}

fn answer(shared: &Shared, connection: &Arc<Connection>, record: &Record) {
    let again = || connection.clone();
    let outcome = (shared.dispatcher).record(connection.peer(), record.bytes(), again);
    let is_open = match outcome {
        Outcome::Reply(reply, also) => {
            if let Some(also) = also.filter(|also| !Arc::ptr_eq(also, connection))
                && !also.send(shared, reply.clone(), false)
            {
                close(shared, &also);
            }
            connection.send(shared, reply, true)
        }
        Outcome::Nothing => connection.finish(shared),
        Outcome::HangUp => false,
    };
    if !is_open {
        close(shared, connection);
    }
}

pub(super) fn close(shared: &Shared, connection: &Connection) {
    if shared.connections.close(connection) {
        shared.dispatcher.metrics.cut.fetch_add(1, Relaxed);
    }
}
