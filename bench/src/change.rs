//! `rcuwalk bench change`: making, renaming and removing names, beside tmpfs.
//!
//! memfs through a [`Vfs`](rcuwalk::Vfs) and tmpfs through system calls do the same:
//! each thread, in a directory of its own, makes empty files, renames them all, and
//! removes them all. [`Change::run`] is the whole benchmark:
//!
//! 1. Both do one lap of it, checked: the tree after each operation must be the same for both.
//! 2. Round by round, for each number of threads, both run in turn.
//! 3. Round by round, a path is walked again and again, while nothing else happens, beside
//!    a storm of renames elsewhere, and beside one in the file's own directory.
//!
//! | read                | to learn                                              |
//! |---------------------|-------------------------------------------------------|
//! | this file           | the run, its settings and its errors                  |
//! | `change/side.rs`    | the two sides: one call each                          |
//! | `change/laps.rs`    | what a thread does, and how it is checked             |
//! | `change/storm.rs`   | how long walks take beside renames                    |
//! | `change/report.rs`  | the numbers, as tables and as JSON                    |
//!
//! What keeps it fair: neither opens the files it makes; both name them by one component,
//! from a directory that they hold.

mod laps;
mod report;
mod side;
mod storm;

use std::error::Error;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fmt, io};

pub use laps::Op;
pub use report::{Details, Latency, Report, Row};
pub use storm::Storm;

use crate::machine;
use crate::measure::{MeasureError, order};
use crate::progress::{Progress, Steps};
use laps::Rates;
use side::{Memfs, Side, Tmpfs};
use storm::Walks;

/// How long each side runs in a round.
const ROUND: Duration = Duration::from_millis(60);
/// How long a path is walked in a round: long enough for a thousand of the slowest
/// hundredth.
const WALKS: Duration = Duration::from_millis(60);

/// The benchmark: with how many threads, and how long.
pub struct Change {
    /// With how many threads at once.
    pub threads: Vec<usize>,
    /// How many rounds count.
    pub rounds: usize,
}

impl Change {
    /// Steady medians in some ten seconds.
    pub const ROUNDS: usize = 15;

    /// One thread, and one per core.
    pub fn new() -> Self {
        Self {
            threads: Self::threads_up_to(machine::cores().min(2)),
            rounds: Self::ROUNDS,
        }
    }

    /// One thread, and `most`.
    pub fn threads_up_to(most: usize) -> Vec<usize> {
        if most > 1 { vec![1, most] } else { vec![1] }
    }

    /// Runs the benchmark. `progress` is told how much of it is done.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Differ`] if the two sides do not do the same, and
    /// [`ChangeError::Stopped`] once `stop` is raised.
    ///
    /// # Panics
    ///
    /// If there are no rounds or threads.
    pub fn run(
        &self,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, ChangeError> {
        assert!(self.rounds > 0 && !self.threads.is_empty());
        let tmpfs = Tmpfs::new()?;
        let memfs = Memfs::new()?;
        let small = Memfs::small(storm::ROOM)?;
        let sides: [&dyn Side; 2] = [&memfs, &tmpfs];
        laps::check_same(sides)?;

        let mut steps = Steps::new(self.rounds * (self.threads.len() + 1), progress);
        let mut rates = Vec::new();
        let mut walks = Vec::new();
        for round in 0..self.rounds {
            for &threads in &self.threads {
                for side in order(round, sides.len()) {
                    rates.push(Rates::measure(sides[side], threads, ROUND, stop)?);
                }
                steps.one_done();
            }
            for side in order(round, sides.len()) {
                for storm in Storm::OF_RENAMES {
                    walks.push(Walks::measure(sides[side], storm, WALKS, stop)?);
                }
            }
            for storm in Storm::OF_LOOKUPS {
                walks.push(Walks::measure(&small, storm, WALKS, stop)?);
            }
            steps.one_done();
        }
        Ok(Report::new(self, &rates, &walks))
    }
}

impl Default for Change {
    fn default() -> Self {
        Self::new()
    }
}

/// Why there is no report.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChangeError {
    /// The stop flag was raised.
    Stopped,
    /// There is no tmpfs to compare with.
    NoTmpfs(String),
    /// The two sides do not do the same.
    Differ(String),
    /// One side's call failed.
    Failed {
        /// Whose.
        side: &'static str,
        /// The operation that failed.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// The measurement failed.
    Measure(MeasureError),
}

impl From<MeasureError> for ChangeError {
    fn from(err: MeasureError) -> Self {
        match err {
            MeasureError::Stopped => Self::Stopped,
            err => Self::Measure(err),
        }
    }
}

impl From<io::Error> for ChangeError {
    fn from(err: io::Error) -> Self {
        Self::Measure(MeasureError::Io(err))
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => write!(f, "stopped before the benchmark was complete"),
            Self::NoTmpfs(why) => write!(
                f,
                "no tmpfs to compare with: {why}; mount one on /dev/shm: \
                 mount -t tmpfs tmpfs /dev/shm"
            ),
            Self::Differ(what) => write!(f, "the two sides differ: {what}; no figures then"),
            Self::Failed { side, what, why } => write!(f, "{side} cannot {what}: {why}"),
            Self::Measure(err) => err.fmt(f),
        }
    }
}

// No `source`: the message already says it all.
impl Error for ChangeError {}

#[cfg(test)]
mod tests;
