//! `rcuwalk bench readdir`: one large directory, listed again and again.
//!
//! The measure is that of xfs_io's `readdir`: entries per second, first and repeated. All
//! contenders list the same names with buffers of one size, and look at each entry's inode number;
//! a listing of the kernel's is getdents64(2), one of ours [`File::fill`](rcuwalk::File::fill).
//!
//! | read                  | to learn                                             |
//! |-----------------------|------------------------------------------------------|
//! | this file             | the run, its settings and its errors                 |
//! | `readdir/side.rs`     | how a contender lists, and what must be equal        |
//! | `readdir/trees.rs`    | which directories there are, and how they are made   |
//! | `readdir/report.rs`   | the numbers, as a table and as JSON                  |
//!
//! The *first* listing is that of a file system that has just been mounted: nothing of the
//! directory is cached, but for the pages of the image's file. A tmpfs and a memfs hold their
//! directories in memory all along. Files are never read, and no caches of other programs are
//! dropped.

mod report;
mod side;
mod trees;

use std::fmt;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

pub use report::{Details, Report, Row};
use side::{Checksum, Side};
use trees::Trees;

use crate::measure::order;
use crate::progress::{Progress, Steps};

/// The benchmark: how many entries, and how often they are listed.
#[derive(Clone, Debug)]
pub struct Readdir {
    /// Entries of the directory that is made.
    pub entries: u64,
    /// With how many threads at once, each listing the whole directory.
    pub threads: Vec<usize>,
    /// How many repeated listings the medians are of.
    pub rounds: usize,
    /// List this directory, and make none.
    pub target: Option<PathBuf>,
}

impl Readdir {
    /// As many as in Dave Chinner's measurement of 2015.
    pub const ENTRIES: u64 = 923_327;
    /// Steady medians in a few seconds for each contender.
    pub const ROUNDS: usize = 9;

    /// The usual directory, with one thread and with two.
    pub fn new() -> Readdir {
        Readdir {
            entries: Self::ENTRIES,
            threads: vec![1, 2],
            rounds: Self::ROUNDS,
            target: None,
        }
    }

    /// Runs the benchmark. `progress` is told how much of it is done.
    ///
    /// # Errors
    ///
    /// [`ReaddirError::Differ`] if two contenders do not list the same, and
    /// [`ReaddirError::Stopped`] once `stop` is raised.
    ///
    /// # Panics
    ///
    /// If there are no rounds, threads or entries.
    pub fn run(
        &self,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, ReaddirError> {
        assert!(self.rounds > 0 && self.entries > 0 && !self.threads.is_empty());
        // Mounts are of the thread that makes them, and gone with it.
        thread::scope(|scope| {
            let run = scope.spawn(|| self.run_here(stop, progress));
            run.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn run_here(
        &self,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, ReaddirError> {
        let mut trees = match &self.target {
            Some(target) => Trees::of(target)?,
            None => Trees::make(self.entries, stop)?,
        };
        let sides = trees.sides()?;
        let mut cells = Vec::new();
        for side in &sides {
            check_stop(stop)?;
            let began = Instant::now();
            let entries = side.list()?;
            cells.push(Cell {
                first: rate(entries, began.elapsed()),
                hot: vec![Vec::new(); self.threads.len()],
            });
        }
        let sum = verify(&sides)?;
        let mut steps = Steps::new(self.rounds * self.threads.len(), progress);
        for round in 0..self.rounds {
            for (at, &threads) in self.threads.iter().enumerate() {
                for next in order(round, sides.len()) {
                    check_stop(stop)?;
                    let rate = together(&sides[next], threads)?;
                    cells[next].hot[at].push(rate);
                }
                steps.one_done();
            }
        }
        Ok(Report::new(self, &sum, &sides, cells, trees.left_out()))
    }
}

impl Default for Readdir {
    fn default() -> Self {
        Self::new()
    }
}

/// What one contender has done, in entries per second.
struct Cell {
    first: f64,
    /// By number of threads, then by round.
    hot: Vec<Vec<f64>>,
}

/// All contenders list the same names, and those of one file system the same inode numbers.
fn verify(sides: &[Side]) -> Result<Checksum, ReaddirError> {
    let sums = sides.iter().map(|side| Ok((side, side.checksum()?)));
    let sums = sums.collect::<Result<Vec<_>, ReaddirError>>()?;
    let (first, of_first) = &sums[0];
    for (side, sum) in &sums {
        let beside = sums.iter().find(|(other, _)| other.tree == side.tree);
        let same_inodes = beside.is_none_or(|(_, other)| other.inodes == sum.inodes);
        if (sum.entries, sum.names) != (of_first.entries, of_first.names) || !same_inodes {
            return Err(ReaddirError::Differ(format!(
                "{side} lists {} entries and {first} {}, or others",
                sum.entries, of_first.entries
            )));
        }
    }
    Ok(of_first.clone())
}

/// The rate of a number of threads together, each of which lists the whole directory.
fn together(side: &Side, threads: usize) -> Result<f64, ReaddirError> {
    let barrier = Barrier::new(threads);
    let turn = || {
        barrier.wait();
        let began = Instant::now();
        let entries = side.list();
        (began, Instant::now(), entries)
    };
    let turns = thread::scope(|scope| {
        let turns: Vec<_> = (0..threads).map(|_| scope.spawn(turn)).collect();
        let join = |turn: thread::ScopedJoinHandle<'_, _>| {
            turn.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        turns.into_iter().map(join).collect::<Vec<_>>()
    });
    let began = turns.iter().map(|turn| turn.0).min();
    let ended = turns.iter().map(|turn| turn.1).max();
    let elapsed = ended
        .zip(began)
        .map_or(Duration::ZERO, |(ended, began)| ended - began);
    let mut entries = 0;
    for (_, _, listed) in turns {
        entries += listed?;
    }
    Ok(rate(entries, elapsed))
}

fn rate(entries: u64, elapsed: Duration) -> f64 {
    entries as f64 / elapsed.as_secs_f64()
}

fn check_stop(stop: &AtomicBool) -> Result<(), ReaddirError> {
    match stop.load(Relaxed) {
        true => Err(ReaddirError::Stopped),
        false => Ok(()),
    }
}

/// Why there is no report.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReaddirError {
    /// The stop flag was raised.
    Stopped,
    /// Two contenders do not list the same.
    Differ(String),
    /// A call failed.
    Failed {
        /// The call, in words.
        what: String,
        /// What the system or the back end said.
        why: String,
    },
}

impl ReaddirError {
    fn failed(what: impl fmt::Display) -> impl FnOnce(&dyn fmt::Display) -> ReaddirError {
        let what = what.to_string();
        move |why| ReaddirError::Failed {
            what,
            why: why.to_string(),
        }
    }
}

impl fmt::Display for ReaddirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReaddirError::Stopped => f.write_str("stopped"),
            ReaddirError::Differ(how) => write!(f, "contenders differ: {how}"),
            ReaddirError::Failed { what, why } => write!(f, "cannot {what}: {why}"),
        }
    }
}

impl std::error::Error for ReaddirError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(readdir: &Readdir) -> Result<Report, ReaddirError> {
        readdir.run(&AtomicBool::new(false), &mut |_| {})
    }

    /// Every contender has its rows, and the document has what issue and manual promise.
    #[test]
    fn the_document_has_every_contender() {
        let readdir = Readdir {
            entries: 5_000,
            rounds: 1,
            ..Readdir::new()
        };
        let report = run(&readdir).unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(
            (&json["bench"], &json["verified"]),
            (&"readdir".into(), &true.into())
        );
        assert_eq!(json["entries"], 5_000);
        let rows = json["rows"].as_array().unwrap();
        for (contender, cache) in [
            ("tmpfs", serde_json::Value::Null),
            ("memfs", false.into()),
            ("hostfs on tmpfs", true.into()),
            ("hostfs on tmpfs", false.into()),
        ] {
            for threads in [1, 2] {
                let row = rows.iter().find(|row| {
                    row["contender"] == contender
                        && row["cache"] == cache
                        && row["threads"] == threads
                });
                let row = row.unwrap_or_else(|| panic!("{contender} {cache} {threads}"));
                for number in ["first_meps", "hot_meps", "hot_mb_s", "ratio_to_best_kernel"] {
                    assert!(row[number].as_f64().unwrap() > 0.0, "{contender}: {number}");
                }
            }
        }
        assert!(report.to_string().contains("memfs"));
    }

    #[test]
    fn a_directory_of_the_callers_is_listed_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let readdir = Readdir {
            rounds: 1,
            target: Some(dir.path().into()),
            ..Readdir::new()
        };
        assert_eq!(run(&readdir).unwrap().entries, 3);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        let nowhere = Readdir {
            target: Some(dir.path().join("missing")),
            ..readdir
        };
        let error = run(&nowhere).unwrap_err().to_string();
        assert!(error.contains("missing"), "{error}");
    }

    #[test]
    fn a_raised_flag_ends_it() {
        let stopped = Readdir::new().run(&AtomicBool::new(true), &mut |_| {});
        assert!(matches!(stopped, Err(ReaddirError::Stopped)));
    }
}
