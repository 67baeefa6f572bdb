//! `rcuwalk bench walktrees`: trees larger than the cache, with three ways of locking.
//!
//! The workload of the kernel patch that made inode lookups lockless: each thread walks a tree
//! of its own, with a `stat` per file, while the cache holds only a part of the trees. No inode
//! is found cached; each costs two failed lookups and an insertion. The contenders differ in
//! how the inode cache locks: once for each of the three, once for the patch, and once per
//! bucket for ours ([`Scheme`]).
//!
//! [`WalkTrees::run`] is the whole benchmark: what every walk has to see is computed, the
//! contenders walk in turn, round by round, first through the VFS, then with the inode
//! cache alone; a walk that saw anything else ends the run.
//!
//! | read                   | to learn                                                |
//! |------------------------|---------------------------------------------------------|
//! | this file              | the run, its settings and its errors                    |
//! | `walktrees/turn.rs`    | one turn: filling the caches, the timed walk, threads   |
//! | `walktrees/subject.rs` | what is walked, and the checksum over what was seen     |
//! | `walktrees/synth.rs`   | the trees: a file system that is computed               |
//! | `walktrees/report.rs`  | the numbers, as table and as JSON                       |

mod report;
mod subject;
mod synth;
mod turn;

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::atomic::AtomicBool;

use rcuwalk::inode::Scheme;

pub use crate::progress::Progress;
pub use report::{Details, Report, Row};
pub use synth::{Place, Shape, SynthFs};

use crate::measure::{Stopped, TakeTurns};
use crate::progress::Steps;
use subject::{Digest, Level};
use turn::{Contender, Turn};

/// In the order of history, each with one lock less than the one before.
const CONTENDERS: [Contender; 3] = [
    Contender {
        name: "stock",
        scheme: Scheme::STOCK,
    },
    Contender {
        name: "patch",
        scheme: Scheme::PATCH,
    },
    Contender {
        name: "ours",
        scheme: Scheme::OURS,
    },
];

/// The benchmark: the trees, the threads, and the size of the cache.
#[derive(Clone, Debug)]
pub struct WalkTrees {
    /// The trees.
    pub shape: Shape,
    /// Threads. Each tree is walked by one of them.
    pub threads: u64,
    /// Inodes that the cache holds, and as many names.
    pub inodes: u64,
    /// How many rounds count.
    pub rounds: usize,
}

impl WalkTrees {
    /// Enough for a median, in less than a minute.
    pub const ROUNDS: usize = 5;

    /// As many threads as the patch was measured with, and a million files: a twentieth of the
    /// patch's own workload. A debug build, which measures nothing, uses a fiftieth of that.
    pub const SHAPE: Shape = Shape {
        trees: 20,
        dirs: if cfg!(debug_assertions) { 1 } else { 50 },
        files: 1000,
    };

    /// The most inodes that are cached unless told otherwise: with their names, some
    /// 1.8 GB.
    pub const MOST_INODES: u64 = 4_000_000;

    /// A thread per tree, and a cache of a quarter of the trees.
    pub fn of(shape: Shape) -> Self {
        let quarter = shape.inodes().map_or(0, |inodes| inodes / 4);
        Self {
            shape,
            threads: shape.trees,
            inodes: quarter.clamp(1, Self::MOST_INODES),
            rounds: Self::ROUNDS,
        }
    }

    /// Runs the benchmark. `progress` is told how much of it is done.
    ///
    /// # Errors
    ///
    /// [`WalkTreesError::Different`] or [`WalkTreesError::Lost`] if a walk did not see
    /// what is there, [`WalkTreesError::Stopped`] once `stop` is raised, and others for
    /// settings that make no sense.
    pub fn run(
        &self,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, WalkTreesError> {
        let entries = self.check()?;
        let expected = Digest::expected(self.shape, stop)?;
        assert_eq!(expected.entries, entries, "every file is computed once");
        let mut steps = Steps::new(2 * self.rounds * CONTENDERS.len(), progress);
        let vfs = self.rounds_of(Level::Vfs, expected, stop, &mut steps)?;
        let cache = self.rounds_of(Level::InodeCache, expected, stop, &mut steps)?;
        Ok(Report::new(self, expected, &vfs, &cache))
    }

    /// How many files there are, if the settings make sense.
    fn check(&self) -> Result<u64, WalkTreesError> {
        let Shape { trees, dirs, files } = self.shape;
        let doubled = Shape {
            trees: trees.saturating_mul(2),
            ..self.shape
        };
        let (Some(entries), Some(inodes), Some(_)) =
            (self.shape.entries(), self.shape.inodes(), doubled.entries())
        else {
            return Err(WalkTreesError::TooLarge(self.shape));
        };
        if [trees, dirs, files, self.threads, self.inodes].contains(&0) || self.rounds == 0 {
            return Err(WalkTreesError::Nothing);
        }
        if self.threads > trees {
            let threads = self.threads;
            return Err(WalkTreesError::IdleThreads { threads, trees });
        }
        if self.inodes >= inodes {
            let budget = self.inodes;
            return Err(WalkTreesError::AllCached { budget, inodes });
        }
        Ok(entries)
    }

    /// The turns of each contender.
    fn rounds_of(
        &self,
        level: Level,
        expected: Digest,
        stop: &AtomicBool,
        steps: &mut Steps<'_>,
    ) -> Result<Vec<Vec<Turn>>, WalkTreesError> {
        let turns = TakeTurns {
            contenders: CONTENDERS.len(),
            rounds: self.rounds,
            warm_up: false,
            stop,
        };
        turns.run(
            |next| Turn::run(self, level, CONTENDERS[next], stop),
            |next, turn| match turn.seen == expected {
                true => Ok(()),
                false => Err(WalkTreesError::Different {
                    contender: CONTENDERS[next].name,
                    entries: turn.seen.entries,
                    expected: expected.entries,
                }),
            },
            || steps.one_done(),
        )
    }
}

/// Why there is no report.
#[derive(Debug)]
#[non_exhaustive]
pub enum WalkTreesError {
    /// The stop flag was raised.
    Stopped,
    /// No trees, directories, files, threads, rounds, or no cache.
    Nothing,
    /// More inodes than can be numbered.
    TooLarge(Shape),
    /// More threads than trees.
    IdleThreads {
        /// Threads.
        threads: u64,
        /// Trees.
        trees: u64,
    },
    /// The cache holds all the trees.
    AllCached {
        /// Inodes that the cache holds.
        budget: u64,
        /// Inodes of the trees.
        inodes: u64,
    },
    /// An entry was not found.
    Lost {
        /// By whom.
        contender: &'static str,
        /// Which.
        path: String,
        /// The answer it gave instead.
        source: rcuwalk::Error,
    },
    /// A walk did not see what is there.
    Different {
        /// Whose walk.
        contender: &'static str,
        /// Entries that it saw.
        entries: u64,
        /// Entries that are there.
        expected: u64,
    },
    /// The trees cannot be mounted.
    Mount(rcuwalk::Error),
    /// A thread cannot be started.
    Thread(io::Error),
}

impl From<Stopped> for WalkTreesError {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

impl fmt::Display for WalkTreesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => Stopped.fmt(f),
            Self::Nothing => write!(
                f,
                "trees, directories, files, threads, rounds and cached inodes: \
                 at least one of each"
            ),
            Self::TooLarge(Shape { trees, dirs, files }) => write!(
                f,
                "{trees} trees of {dirs} directories of {files} files are more inodes \
                 than can be numbered; take fewer"
            ),
            Self::IdleThreads { threads, trees } => write!(
                f,
                "each tree is walked by one thread, and {threads} threads are more than \
                 {trees} trees; take fewer threads or more trees"
            ),
            Self::AllCached { budget, inodes } => write!(
                f,
                "a cache of {budget} inodes holds all {inodes} of the trees, and there is \
                 nothing to measure; take fewer cached inodes or larger trees"
            ),
            Self::Lost {
                contender,
                path,
                source,
            } => write!(f, "{contender} did not find {path}: {source}; no figures"),
            Self::Different {
                contender,
                entries,
                expected,
            } if entries == expected => write!(
                f,
                "{contender} was told other attributes than the files have; no figures"
            ),
            Self::Different {
                contender,
                entries,
                expected,
            } => write!(
                f,
                "{contender} saw {entries} entries of {expected}; no figures"
            ),
            Self::Mount(source) => write!(f, "cannot mount the trees: {source}"),
            Self::Thread(err) => err.fmt(f),
        }
    }
}

// No `source`: the message already says it all.
impl Error for WalkTreesError {}

#[cfg(test)]
mod tests;
