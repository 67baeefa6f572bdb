//! Records without sockets, for fuzzing and for tests.

use rcuwalk::Vfs;

use crate::Options;
use crate::dispatch::{Dispatcher, Outcome};
use crate::export::Export;
use crate::record::Records;

/// A server without a network.
pub struct Rehearsal(Dispatcher<()>);

impl std::fmt::Debug for Rehearsal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rehearsal(..)")
    }
}

impl Rehearsal {
    /// Serves `vfs`.
    ///
    /// # Errors
    /// Those of the back end.
    pub fn new(vfs: Vfs, options: Options) -> rcuwalk::Result<Rehearsal> {
        Ok(Rehearsal(Dispatcher::new(Export::new(vfs, options)?)))
    }

    /// Answers what a client of this machine has sent, and returns all replies: until it would be
    /// hung up on.
    pub fn stream(&self, sent: &[u8]) -> Vec<Vec<u8>> {
        let (mut records, mut replies) = (Records::default(), Vec::new());
        for bytes in sent.chunks(1 << 16) {
            records.extend(bytes);
            while let Ok(Some(record)) = records.next() {
                match self.record(record.bytes()) {
                    Some(reply) => replies.push(reply),
                    None => return replies,
                }
            }
        }
        replies
    }

    /// Answers one record; `None` hangs up.
    pub fn record(&self, record: &[u8]) -> Option<Vec<u8>> {
        let client = ([127, 0, 0, 1], 1023).into();
        match self.0.record(client, record, || ()) {
            Outcome::Reply(reply, _) => Some(reply),
            Outcome::Nothing | Outcome::HangUp => None,
        }
    }

    /// How many calls have failed by a fault of the server.
    pub fn faults(&self) -> u64 {
        self.0
            .metrics
            .faults
            .load(std::sync::atomic::Ordering::Relaxed)
    }
}
