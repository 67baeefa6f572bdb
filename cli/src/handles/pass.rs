//! Every file of a database asked for its attributes, on many threads.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rcuwalk::{Error, Handle, Result as Asked, VfsPath};

use super::database::{Database, Row};
use crate::failure::Failure;

/// Files that a thread takes at a time.
const BATCH: usize = 256;

/// What became of a file.
pub(super) enum Found {
    There(Row),
    /// The handle led to another file.
    Another,
    Gone,
    Error,
}

impl From<Asked<VfsPath>> for Found {
    fn from(found: Asked<VfsPath>) -> Found {
        match found {
            Ok(place) => Found::There(Row::of(&place.attr())),
            Err(Error::Stale | Error::NotFound) => Found::Gone,
            Err(_) => Found::Error,
        }
    }
}

/// How many files were found so.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) same: u64,
    pub(super) changed: u64,
    pub(super) stale: u64,
    pub(super) another: u64,
    pub(super) errors: u64,
}

impl Tally {
    pub(super) fn all(&self) -> u64 {
        self.same + self.changed + self.stale + self.another + self.errors
    }

    fn count(&mut self, row: &Row, found: &Found) {
        let count = match found {
            Found::There(now) if row == now => &mut self.same,
            Found::There(_) => &mut self.changed,
            Found::Another => &mut self.another,
            Found::Gone => &mut self.stale,
            Found::Error => &mut self.errors,
        };
        *count += 1;
    }

    fn add(&mut self, other: &Tally) {
        self.same += other.same;
        self.changed += other.changed;
        self.stale += other.stale;
        self.another += other.another;
        self.errors += other.errors;
    }
}

/// In a word, for a file that was recorded so and is so now.
pub(super) fn state(row: &Row, now: Option<&Row>) -> &'static str {
    match now {
        None => "gone",
        Some(now) if now == row => "same",
        Some(now) if now.is_one_file(row) => "changed",
        Some(_) => "another",
    }
}

/// How a pass runs.
pub(super) struct Pass<'s> {
    pub(super) threads: usize,
    pub(super) stop: &'s AtomicBool,
}

type Batch = Vec<(Box<[u8]>, Row, Handle)>;

impl Pass<'_> {
    /// Calls `ask` with each file. Ends early when `stop` is raised.
    pub(super) fn run(
        &self,
        database: &Database,
        by_handle: bool,
        ask: impl Fn(&[u8], &Handle, &Row) -> Found + Sync,
    ) -> Result<Tally, Failure> {
        let reading = database.read()?;
        let total = Mutex::new(Tally::default());
        let (to, from) = mpsc::sync_channel::<Batch>(2 * self.threads);
        // The threads alone hold it: if they all panic, sending fails.
        let from = Arc::new(Mutex::new(from));
        let work = |from: Arc<Mutex<Receiver<Batch>>>| {
            let mut tally = Tally::default();
            let next = || from.lock().unwrap_or_else(PoisonError::into_inner).recv();
            while let Ok(batch) = next() {
                for (path, row, handle) in batch {
                    if self.stop.load(Relaxed) {
                        break;
                    }
                    tally.count(&row, &ask(&path, &handle, &row));
                }
            }
            let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
            total.add(&tally);
        };
        thread::scope(|scope| {
            for _ in 0..self.threads {
                let from = from.clone();
                scope.spawn(|| work(from));
            }
            drop(from);
            let mut batch = Batch::new();
            let ended = reading.for_each(by_handle, &mut |path, row, handle| {
                batch.push((path.into(), row, handle));
                let mut is_over = self.stop.load(Relaxed);
                if batch.len() == BATCH {
                    // The scope passes the panics on.
                    is_over |= to.send(std::mem::take(&mut batch)).is_err();
                }
                match is_over {
                    true => Err(Failure::Errors(Vec::new())),
                    false => Ok(()),
                }
            });
            let _ = to.send(batch);
            drop(to);
            match self.stop.load(Relaxed) {
                true => Ok(()),
                false => ended,
            }
        })?;
        Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;
    use std::time::Duration;

    use rcuwalk::{Attr, FileType};

    use super::super::database::Walked;
    use super::*;

    /// A pass whose threads have all panicked ends, and says so.
    #[test]
    fn a_pass_without_threads_ends() {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::create(&dir.path().join("db"), Path::new("/")).unwrap();
        let mut writing = database.write().unwrap();
        // More than wait for a thread.
        for n in 0..4 * BATCH {
            let file = Walked {
                path: format!("/{n}").into_bytes().into(),
                row: Row::of(&Attr::new(n as u64 + 1, FileType::Regular, 0)),
                handle: Some(Handle::from_bytes(&[1, 1, 7]).unwrap()),
            };
            writing.put(&file).unwrap();
        }
        writing.done().unwrap();
        let (ended, end) = mpsc::channel();
        thread::spawn(move || {
            let stop = AtomicBool::new(false);
            let pass = Pass {
                threads: 1,
                stop: &stop,
            };
            let run = || pass.run(&database, false, |_, _, _| panic!("on purpose"));
            let _ = ended.send(catch_unwind(AssertUnwindSafe(run)).is_err());
            drop(dir);
        });
        assert_eq!(end.recv_timeout(Duration::from_secs(60)), Ok(true));
    }
}
