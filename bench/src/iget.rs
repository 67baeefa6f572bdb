//! `rcuwalk bench iget`: the inode cache against the node tables that daemons keep.
//!
//! One operation is the work of a file server for a LOOKUP: get the inode of a number with a
//! reference, reading it in if it is not cached; look at it; put the reference. [`Iget::run`]
//! is the whole benchmark. For each [`Mix`]:
//!
//! 1. Every entrant's table is filled with as many inodes.
//! 2. Round by round, for each number of threads, all entrants run in turn.
//! 3. What each run got is checked. One wrong inode ends the benchmark.
//!
//! | read             | to learn                                                  |
//! |------------------|-----------------------------------------------------------|
//! | this file        | the run, its settings and its errors                      |
//! | `iget/table.rs`  | what an entrant must be able to do                        |
//! | `iget/mix.rs`    | which keys are asked for, in which order                  |
//! | `iget/course.rs` | one entrant's table under one mix: running and checking   |
//! | `iget/ours.rs`   | ours as entrants: the three locking schemes               |
//! | `iget/array.rs`  | no table at all: what the machine allows                  |
//! | `iget/memory.rs` | what a cached inode takes                                 |
//! | `iget/report.rs` | the numbers, as tables and as JSON                        |
//!
//! The comparison is fair: all contenders see the same keys in the same rounds on the same
//! cores; all hand out counted references to inodes of the same size; none is told beforehand
//! how many inodes will come.

mod array;
mod course;
mod memory;
mod mix;
mod ours;
mod report;
mod table;

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

pub(crate) use course::allowed;
pub use memory::{InodeBytes, Memory, resident_bytes};
pub use mix::Mix;
pub use ours::{OursTable, schemes};
pub use report::{Details, Report, Row};
pub use table::{Contents, Counters, Entrant, Got, InodeTable, LocksPer, part_of};

use crate::machine::{self, MemoryLatency};
use crate::measure::{MeasureError, order};
use crate::progress::{Progress, Steps};
use course::{Course, Sample};

/// How long an entrant runs in a round, where each thread has a core.
const OWN_CORE: Duration = Duration::from_millis(60);
/// How long where threads share cores: each is to have a few turns.
const SHARED_CORE: Duration = Duration::from_millis(100);

/// The benchmark: how many inodes, whose tables, and how long.
pub struct Iget {
    /// How many inodes are cached.
    pub inodes: u64,
    /// With how many threads at once.
    pub threads: Vec<usize>,
    /// How many rounds count.
    pub rounds: usize,
    /// Under which loads.
    pub mixes: Vec<Mix>,
    /// Whose tables; ours first.
    pub entrants: Vec<Entrant>,
    /// Whether the peers were given our hash: only for the report.
    pub fast_hash: bool,
}

impl Iget {
    /// As many inodes as a busy file server caches.
    pub const INODES: u64 = 1_000_000;
    /// Steady medians in about a minute.
    pub const ROUNDS: usize = 7;
    /// One thread, the usual small machines, and a daemon's pool.
    pub const THREADS: [usize; 4] = [1, 2, 4, 20];

    /// Ours, the `peers`, and what the machine allows.
    pub fn new(peers: Vec<Entrant>) -> Self {
        let mut entrants = ours::schemes();
        entrants.extend(peers);
        entrants.push(array::entrant());
        Self {
            inodes: Self::INODES,
            threads: Self::THREADS.to_vec(),
            rounds: Self::ROUNDS,
            mixes: Mix::ALL.to_vec(),
            entrants,
            fast_hash: false,
        }
    }

    /// The usual numbers of threads up to `most`, which is one of them itself.
    pub fn threads_up_to(most: usize) -> Vec<usize> {
        let fewer = Self::THREADS.iter().copied();
        fewer.filter(|&n| n < most).chain([most]).collect()
    }

    /// Runs the benchmark. `progress` is told how much of it is done.
    ///
    /// # Errors
    ///
    /// [`IgetError::Wrong`] if a table does not give what it should, and
    /// [`IgetError::Stopped`] once `stop` is raised.
    ///
    /// # Panics
    ///
    /// If there are no rounds, threads or entrants, or fewer than
    /// [`least_inodes`](Self::least_inodes).
    pub fn run(
        &self,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, IgetError> {
        assert!(self.rounds > 0 && !self.threads.is_empty() && !self.entrants.is_empty());
        assert!(self.inodes >= Self::least_inodes(&self.threads));
        let steps = self.mixes.len() * self.rounds * self.threads.len();
        let mut steps = Steps::new(steps, progress);
        let mut cells = Vec::new();
        let mut memory = MemoryLatency::new();
        let mut memory_ns = Vec::new();
        for &mix in &self.mixes {
            let load = &mut || memory_ns.push(memory.sample());
            cells.extend(self.run_mix(mix, load, stop, &mut steps)?);
        }
        Ok(Report::new(self, &cells, memory_ns))
    }

    /// With fewer, a thread would evict what it has just read in.
    pub fn least_inodes(threads: &[usize]) -> u64 {
        // Half of them are for the stream of the mixed load.
        let most = threads.iter().copied().max().unwrap_or(1) as u64;
        (most * 2 * mix::CHUNK).max(10_000)
    }

    /// All entrants under one mix. Their tables are gone afterwards: those of all
    /// mixes at once would take three times the memory.
    fn run_mix(
        &self,
        mix: Mix,
        each_round: &mut dyn FnMut(),
        stop: &AtomicBool,
        steps: &mut Steps<'_>,
    ) -> Result<Vec<Cell>, IgetError> {
        let lanes = self.threads.iter().copied().max().unwrap_or(1);
        let entrants = self.entrants.iter().filter(|one| one.takes_part(mix));
        let courses = entrants.clone().map(|entrant| {
            // Filling takes seconds in all; a signal is not to wait for that.
            if stop.load(Relaxed) {
                return Err(IgetError::Stopped);
            }
            Ok(entrant.course(mix.keys(self.inodes, lanes)))
        });
        let courses = courses.collect::<Result<Vec<_>, _>>()?;

        let mut cells: Vec<_> = (self.threads.iter())
            .flat_map(|&threads| entrants.clone().map(move |one| (one.name, threads)))
            .map(|(contender, threads)| Cell::new(contender, mix, threads))
            .collect();
        for round in 0..self.rounds {
            each_round();
            let turns = cells.chunks_mut(courses.len().max(1));
            for (cells, &threads) in turns.zip(&self.threads) {
                for next in order(round, courses.len()) {
                    let sample = cells[next].run(&*courses[next], time_for(threads), stop)?;
                    cells[next].samples.push(sample);
                }
                steps.one_done();
            }
        }
        Ok(cells)
    }
}

fn time_for(threads: usize) -> Duration {
    if threads <= machine::cores() {
        OWN_CORE
    } else {
        SHARED_CORE
    }
}

/// One entrant under one mix with a number of threads.
struct Cell {
    contender: &'static str,
    mix: Mix,
    threads: usize,
    /// One per round.
    samples: Vec<Sample>,
}

impl Cell {
    fn new(contender: &'static str, mix: Mix, threads: usize) -> Self {
        Self {
            contender,
            mix,
            threads,
            samples: Vec::new(),
        }
    }

    fn run(
        &self,
        course: &dyn Course,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Sample, IgetError> {
        let sample = course.run(self.threads, time, stop)?;
        sample.check().map_err(|what| IgetError::Wrong {
            contender: self.contender,
            mix: self.mix,
            threads: self.threads,
            what,
        })?;
        Ok(sample)
    }
}

/// Why there is no report.
#[derive(Debug)]
#[non_exhaustive]
pub enum IgetError {
    /// The stop flag was raised.
    Stopped,
    /// A table does not do what it should.
    Wrong {
        /// Whose.
        contender: &'static str,
        /// Under which load.
        mix: Mix,
        /// With how many threads.
        threads: usize,
        /// The reason.
        what: String,
    },
    /// The measurement failed.
    Measure(MeasureError),
}

impl From<MeasureError> for IgetError {
    fn from(err: MeasureError) -> Self {
        match err {
            MeasureError::Stopped => Self::Stopped,
            err => Self::Measure(err),
        }
    }
}

impl fmt::Display for IgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => write!(f, "stopped before the benchmark was complete"),
            Self::Wrong {
                contender,
                mix,
                threads,
                what,
            } => write!(
                f,
                "{contender} is wrong ({mix}, threads: {threads}): {what}; no figures then"
            ),
            Self::Measure(err) => err.fmt(f),
        }
    }
}

// No `source`: the message already says it all.
impl Error for IgetError {}

#[cfg(test)]
mod tests;
