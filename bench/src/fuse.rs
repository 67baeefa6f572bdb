//! `rcuwalk bench fuse`: one directory, seen directly, through our daemon, and through
//! a plain one.
//!
//! The contenders are the kernel on the directory itself; hostfs mounted by
//! `rcuwalk-fuse`; and a daemon of the usual shape, which `rcuwalk-bench-peers` has.
//! [`Fuse::run`] is the whole benchmark: it makes a tree, and in each round each contender
//! in turn does all that there is to do on it ([`Work`]).
//!
//! | read               | to learn                                               |
//! |--------------------|--------------------------------------------------------|
//! | this file          | the run, its settings and its errors                   |
//! | `fuse/daemon.rs`   | what a contender must be able to do; ours              |
//! | `fuse/offer.rs`    | that the kernel offers io_uring meanwhile              |
//! | `fuse/tree.rs`     | the directory that is served                           |
//! | `fuse/work.rs`     | what is timed                                          |
//! | `fuse/turn.rs`     | one contender's turn, and how it is checked            |
//! | `fuse/report.rs`   | the numbers, as a table and as JSON                    |
//!
//! The comparison is fair: both daemons run in this process, with the same number of threads
//! (by io_uring, at least one for each processor, and one more), and with the same timeouts for
//! names and attributes. Ours is also measured without the features that the plain daemon
//! lacks: without io_uring, and without passthrough as well. **Cold** means freshly mounted:
//! the kernel knows nothing of the mount, and the daemon knows nothing of the directory. The
//! host's own caches of the directory stay warm, and the kernel's own turn is warm throughout.
//! All contenders must read the same: names, attributes and contents are summed up while they
//! are read, and compared.

mod daemon;
mod report;
mod tree;
mod turn;
mod uring_setting;
mod work;

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fmt, io};

pub use daemon::{Daemon, Mounting, Served};
pub use report::{Details, Report, Row};
pub use work::Work;

use crate::machine;
use crate::measure::{Stopped, TakeTurns};
use crate::progress::{Progress, Steps};
use daemon::Ours;
use tree::Tree;
use turn::{Contender, Turn};
use uring_setting::UringSetting;

/// The benchmark: how much, with how many threads, and how often.
#[derive(Clone, Debug)]
pub struct Fuse {
    /// Threads that walk.
    pub walkers: usize,
    /// Threads that make and remove files, each in a directory of its own.
    pub makers: usize,
    /// Threads that answer, of each daemon.
    pub servers: usize,
    /// Trees that are walked, with `dirs` directories each, and `files` in each of those.
    pub trees: usize,
    /// Directories in each tree.
    pub dirs: usize,
    /// Files in each of these.
    pub files: usize,
    /// Directories, with as many files each, that are walked twice, with a pause.
    pub many: usize,
    /// Files that are made and removed, by all makers together.
    pub made: usize,
    /// Entries of the directory that is listed.
    pub listed: usize,
    /// MiB that are read, and written over.
    pub mib: u64,
    /// How long the kernel caches names and attributes.
    pub timeout: Duration,
    /// How many rounds count.
    pub rounds: usize,
    /// Where the tree is made, if not where temporary memory is, or temporary files.
    pub within: Option<PathBuf>,
}

impl Fuse {
    /// Steady medians in a minute or two.
    pub const ROUNDS: usize = 7;

    /// As the issue that asked for it has it: 20 threads walk 25,000 files, and 200,000, 8 make
    /// and remove 20,000 files, 200,000 entries are listed.
    pub fn new() -> Fuse {
        Fuse {
            walkers: 20,
            makers: 8,
            servers: machine::cores().clamp(2, 8),
            trees: 20,
            dirs: 25,
            files: 50,
            many: 4_000,
            made: 20_000,
            listed: 200_000,
            mib: 256,
            timeout: Duration::from_secs(1),
            rounds: Fuse::ROUNDS,
            within: None,
        }
    }

    /// Runs the benchmark, with `baseline` as the daemon that ours is compared with.
    /// `progress` is told how much of it is done.
    ///
    /// # Errors
    ///
    /// [`FuseError::CannotMount`] where FUSE is not to be had, [`FuseError::Differ`] if
    /// contenders do not see the same, and [`FuseError::Stopped`] once `stop` is raised.
    ///
    /// # Panics
    ///
    /// If there are no rounds, threads, files or bytes.
    pub fn run(
        &self,
        baseline: &dyn Daemon,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, FuseError> {
        assert!(self.rounds > 0 && self.walkers > 0 && self.makers > 0 && self.servers > 0);
        let tree = Tree::make(self)?;
        let [ours, by_device, by_request] = Ours::ALL;
        let contenders = [
            Contender::Kernel,
            Contender::Daemon(&ours),
            Contender::Daemon(&by_device),
            Contender::Daemon(&by_request),
            Contender::Daemon(baseline),
        ];
        // Without it, ours does what it does by the device.
        let setting = UringSetting::turn_on();
        let mut steps = Steps::new(self.rounds * contenders.len(), progress);
        let turns = TakeTurns {
            contenders: contenders.len(),
            rounds: self.rounds,
            // It warms the host's caches.
            warm_up: true,
            stop,
        };
        let (mut stamp, mut first) = (0, None);
        let turns = turns.run(
            |next| {
                stamp += 1;
                contenders[next].turn(self, &tree, stamp)
            },
            |_, turn| turn.must_have_seen_what(first.get_or_insert_with(|| turn.clone())),
            || steps.one_done(),
        )?;
        let turns: Vec<Turn> = turns.into_iter().flatten().collect();
        let is_changed = setting.is_ok_and(|setting| setting.is_changed());
        Ok(Report::new(
            self,
            &tree,
            baseline.name(),
            &turns,
            is_changed,
        ))
    }
}

impl Default for Fuse {
    fn default() -> Fuse {
        Fuse::new()
    }
}

/// Why there is no report.
#[derive(Debug)]
#[non_exhaustive]
pub enum FuseError {
    /// The stop flag was raised.
    Stopped,
    /// A daemon could not be mounted.
    CannotMount {
        /// Which.
        daemon: &'static str,
        /// Why not.
        why: io::Error,
    },
    /// Two contenders did not see the same.
    Differ(String),
    /// Something failed that must not.
    Failed {
        /// The step that failed.
        what: &'static str,
        /// By whom.
        contender: &'static str,
        /// Why it was not.
        why: io::Error,
    },
    /// The tree could not be made.
    NoTree(io::Error),
}

impl From<Stopped> for FuseError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl fmt::Display for FuseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => write!(f, "stopped before the benchmark was complete"),
            Self::CannotMount { daemon, why } => write!(
                f,
                "{daemon} cannot be mounted: {why}; it needs /dev/fuse, and root or fusermount3"
            ),
            Self::Differ(what) => write!(f, "the contenders differ: {what}; no figures then"),
            Self::Failed {
                what,
                contender,
                why,
            } => write!(f, "{contender} cannot {what}: {why}"),
            Self::NoTree(why) => write!(f, "cannot make the tree to be served: {why}"),
        }
    }
}

// No `source`: the message already says it all.
impl Error for FuseError {}

#[cfg(test)]
mod tests;
