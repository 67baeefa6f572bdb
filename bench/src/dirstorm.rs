//! `rcuwalk bench dirstorm`: many threads list a few large directories at once and look up every
//! name in them.
//!
//! Two measurements:
//!
//! - The *storm*: nothing is cached, and each thread lists each directory and looks up each of its
//!   names, as `find -ls` does. Threads begin in different directories, so a few of them are in
//!   each one at any moment. The kernel does so on a loop mount of ext4; ours through hostfs on
//!   the same mount, and from the image itself.
//! - Lookups of cached names in one directory *beside* a listing of it and a stream of
//!   files made and removed in it: how long each takes, and how long with nothing beside.
//!
//! | read                  | to learn                                                   |
//! |-----------------------|------------------------------------------------------------|
//! | this file             | the run, its settings and its errors                       |
//! | `dirstorm/storm.rs`   | a cold storm, and what all must have seen                  |
//! | `dirstorm/beside.rs`  | lookups timed one by one, beside changes and listings      |
//! | `dirstorm/place.rs`   | the image, and the contenders on it                        |
//! | `dirstorm/report.rs`  | the numbers, as tables and as JSON                         |
//!
//! **No figure is printed unless all saw the same**: the storm's checksums of names and inode
//! numbers are equal, each lookup finds the inode number that the listing had, ours ask the back
//! end for each name once at most, and each listing beside changes has all names that stay
//! exactly once.

mod beside;
mod place;
mod report;
mod storm;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

pub use report::{BesideRow, Details, Report, StormRow};

use crate::measure::{Stopped, TakeTurns};
use crate::progress::{Progress, Steps};
use place::Place;
use storm::{Blocks, STORMERS};

/// The benchmark: the directories, and how many threads are in them.
#[derive(Clone, Debug)]
pub struct Dirstorm {
    /// Directories of the storm.
    pub dirs: u64,
    /// Entries of each of them.
    pub entries: u64,
    /// Threads of the storm.
    pub threads: usize,
    /// Entries of the directory in which lookups run beside changes.
    pub large: u64,
    /// How many lookups are timed there in each turn, at least.
    pub lookups: usize,
    /// How many rounds the medians are of.
    pub rounds: usize,
}

impl Dirstorm {
    /// Each takes some ten seconds.
    pub const ROUNDS: usize = 5;
    /// Entries of a directory of the storm.
    pub const ENTRIES: u64 = 100_000;
    /// Directories of the storm.
    pub const DIRS: u64 = 4;
    /// As many threads as the walks of `walktrees` have.
    pub const THREADS: usize = 20;
    /// Entries of the large directory.
    pub const LARGE: u64 = 600_000;

    /// Four directories of 100,000 files, 20 threads, and one of 600,000.
    pub fn new() -> Dirstorm {
        Dirstorm {
            dirs: Self::DIRS,
            entries: Self::ENTRIES,
            threads: Self::THREADS,
            large: Self::LARGE,
            lookups: 200_000,
            rounds: Self::ROUNDS,
        }
    }

    /// Runs the benchmark. The storm needs root, for the mounts, and mkfs.ext4; the kernel drops
    /// the caches of the whole machine many times meanwhile. `progress` is told how much is done.
    ///
    /// # Errors
    ///
    /// [`DirstormError::Differ`] if two contenders did not see the same,
    /// [`DirstormError::Stopped`] once `stop` is raised.
    ///
    /// # Panics
    ///
    /// If there are no rounds, threads, directories or entries.
    pub fn run(
        &self,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, DirstormError> {
        let counts = [self.dirs, self.entries, self.large];
        assert!(!counts.contains(&0) && self.threads > 0 && self.rounds > 0 && self.lookups > 0);
        // Mounts are of the thread that makes them, and gone with it.
        thread::scope(|scope| {
            let run = scope.spawn(|| self.run_here(stop, progress));
            run.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
        .map_err(|err| match stop.load(Relaxed) {
            true => DirstormError::Stopped,
            false => err,
        })
    }

    fn run_here(
        &self,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, DirstormError> {
        let mut place = Place::make(self, stop)?;
        let storms = if place.has_image() { STORMERS.len() } else { 0 };
        let besides = place.besides().len();
        let mut steps = Steps::new((2 * storms + besides) * self.rounds, progress);
        let mut turns = |blocks| {
            let turns = TakeTurns {
                contenders: storms,
                rounds: self.rounds,
                // It reads all blocks.
                warm_up: blocks == Blocks::Cached,
                stop,
            };
            let mut first = None;
            turns.run(
                |next| storm::turn(self, STORMERS[next], blocks, &place),
                |next, turn| storm::verify(self, STORMERS[next], turn, &mut first),
                || steps.one_done(),
            )
        };
        let cached = turns(Blocks::Cached)?;
        let cold = turns(Blocks::Cold)?;

        place.make_writable()?;
        let contenders = place.besides();
        let prepared = contenders.iter().map(|contender| contender.prepare(self));
        let prepared = prepared.collect::<Result<Vec<_>, _>>()?;
        let turns = TakeTurns {
            contenders: besides,
            rounds: self.rounds,
            warm_up: true,
            stop,
        };
        let beside = turns.run(
            |next| beside::turn(self, &prepared[next], stop),
            |_, _| Ok::<_, DirstormError>(()),
            || steps.one_done(),
        )?;
        let beside: Vec<_> = prepared
            .iter()
            .map(|one| one.name.clone())
            .zip(beside)
            .collect();
        Ok(Report::new(self, &cached, &cold, &beside, place.left_out()))
    }
}

impl Default for Dirstorm {
    fn default() -> Self {
        Self::new()
    }
}

/// Why there is no report.
#[derive(Debug)]
#[non_exhaustive]
pub enum DirstormError {
    /// The stop flag was raised.
    Stopped,
    /// Two contenders have not seen the same, or one has asked too often.
    Differ(String),
    /// A call failed.
    Failed {
        /// The call, in words.
        what: String,
        /// What the system or the back end said.
        source: io::Error,
    },
}

impl DirstormError {
    fn failed(what: impl fmt::Display) -> impl FnOnce(io::Error) -> DirstormError {
        let what = what.to_string();
        move |source| DirstormError::Failed { what, source }
    }
}

impl From<Stopped> for DirstormError {
    fn from(_: Stopped) -> Self {
        DirstormError::Stopped
    }
}

impl fmt::Display for DirstormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirstormError::Stopped => f.write_str("stopped"),
            DirstormError::Differ(how) => write!(f, "contenders differ: {how}"),
            DirstormError::Failed { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for DirstormError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DirstormError::Failed { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Dirstorm {
        Dirstorm {
            dirs: 2,
            entries: 700,
            threads: 5,
            large: 3_000,
            lookups: 2_000,
            rounds: 1,
        }
    }

    /// Every contender has its rows, and the document has what the manual promises.
    #[test]
    fn the_document_has_every_contender() {
        let report = small().run(&AtomicBool::new(false), &mut |_| {}).unwrap();
        let text = serde_json::to_string(&report).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&json["bench"], &json["verified"]),
            (&"dirstorm".into(), &true.into())
        );
        let beside = json["beside"].as_array().unwrap();
        let kernel = if rustix::process::geteuid().is_root() {
            "ext4"
        } else {
            "tmpfs"
        };
        let names: Vec<_> = beside.iter().map(|row| &row["contender"]).collect();
        assert_eq!(names, [kernel, &format!("hostfs on {kernel}"), "memfs"]);
        for row in beside {
            for number in ["quiet_p50_ns", "quiet_p99_ns", "busy_p50_ns", "busy_p99_ns"] {
                assert!(row[number].as_f64().unwrap() > 0.0, "{number} of {row}");
            }
            assert!(row["listings"].as_u64().unwrap() > 0, "{row}");
            assert!(row["changes"].as_u64().unwrap() > 0, "{row}");
        }
        assert!(report.to_string().contains("memfs"));
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: the storm needs root");
            assert_eq!(report.rows.len(), 0);
            return;
        }
        assert_eq!(report.rows.len(), 2 * STORMERS.len());
        for row in &report.rows {
            assert!(row.names_per_s > 0.0, "{row:?}");
            let is_kernel = row.contender == "kernel";
            assert_eq!(row.asked.is_none(), is_kernel, "{row:?}");
            assert!(row.asked.is_none_or(|asked| asked <= 1_400 + 4), "{row:?}");
        }
    }

    #[test]
    fn a_raised_flag_ends_it() {
        let stopped = small().run(&AtomicBool::new(true), &mut |_| {});
        assert!(matches!(stopped, Err(DirstormError::Stopped)));
    }
}
