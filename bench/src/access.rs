//! `rcuwalk bench access`: does this path exist? The kernel against ours.
//!
//! The workload of the kernel's own path-walk patches: access(2) for each path of a
//! list, over and over, all of it cached. [`Access::run`] is the whole benchmark:
//!
//! 1. The tree is built in a temporary directory, and once more in memory.
//! 2. Every path's answer is compared with the kernel's. One that differs ends the
//!    run: a faster wrong answer is no result. This also fills all caches.
//! 3. The contenders are timed in turn, round by round: on one thread, then on N.
//!
//! | read                 | to learn                                              |
//! |----------------------|-------------------------------------------------------|
//! | this file            | the run, its settings and its errors                  |
//! | `access/contest.rs`  | the three contenders on one tree, and their answers   |
//! | `access/report.rs`   | the numbers, as table and as JSON                     |
//! | `access/wide.rs`     | a computed list of 45,000 paths                       |
//!
//! What keeps it fair: all get the same bytes, relative to a directory they are in
//! already; all run on the same thread in the same rounds; the kernel's tree lies
//! where it caches missing names, if there is such a place.

mod contest;
mod report;
mod wide;

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

pub use contest::Ours;
pub use report::{Details, Report, Row, Walks};

pub use crate::progress::Progress;

use crate::kernel::InTree;
use crate::measure::{Contender, Lap, MeasureError, Rounds, Stopped, Summary, Together};
use crate::paths::PathList;
use crate::progress::Steps;
use crate::tree::TreeSpec;
use contest::Contest;

/// How long a contender runs in each round on one thread.
const ALONE: Duration = Duration::from_millis(40);
/// How long at least on many: starting the threads must not show.
const TOGETHER: Duration = Duration::from_millis(100);
/// How many paths a thread asks for before it looks at the clock: a long list takes
/// longer than threads can be expected to run undisturbed.
const CHUNK: usize = 512;
/// How often a run of many threads is repeated that did not run at the same time.
const RETRIES: usize = 5;

/// The benchmark: the paths, the tree, and the duration.
#[derive(Clone, Debug)]
pub struct Access {
    /// The paths.
    pub paths: PathList,
    /// The tree they are asked of.
    pub tree: TreeSpec,
    /// Measured with one thread and, if this is more, with so many.
    pub threads: usize,
    /// How many rounds count.
    pub rounds: usize,
}

impl Access {
    /// As many rounds as make a steady median in some ten seconds.
    pub const ROUNDS: usize = 25;

    /// The 205 built-in paths on their tree, with one thread and one per core.
    pub fn builtin() -> Self {
        Self {
            paths: PathList::builtin(),
            tree: TreeSpec::builtin(),
            threads: crate::machine::cores(),
            rounds: Self::ROUNDS,
        }
    }

    /// 45,000 computed paths in 5,000 directories: each lookup waits for memory.
    pub fn wide() -> Self {
        let (paths, tree) = wide::wide();
        Self {
            paths,
            tree,
            ..Self::builtin()
        }
    }

    /// These paths, on as much of the host's tree as they meet.
    ///
    /// # Errors
    ///
    /// As [`TreeSpec::capture`].
    pub fn of_host(paths: PathList) -> io::Result<Self> {
        let tree = TreeSpec::capture(paths.as_slice(), "/".as_ref())?;
        Ok(Self {
            paths,
            tree,
            ..Self::builtin()
        })
    }

    /// Runs the benchmark. `progress` is told how much of it is done.
    ///
    /// # Errors
    ///
    /// [`AccessError::Different`] if an answer is not the kernel's, and
    /// [`AccessError::Stopped`] once `stop` is raised. Temporary directories are
    /// gone when it returns, in any case.
    pub fn run(
        &self,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, AccessError> {
        let contest = Contest::new(&self.paths, &self.tree, stop)?;
        let passes = if self.threads == 1 { 1 } else { 2 };
        let mut steps = Steps::new(self.rounds * passes, progress);
        let on_own_thread = contest.kernel.on_own_thread(|here| {
            contest.verify(here, stop)?;
            let before = contest.statistics();
            let (alone, cpu_share) = cpu_share_of(|| self.alone(&contest, here, stop, &mut steps))?;
            let together = self.together(&contest, self.time_for_all(&alone), stop, &mut steps)?;
            let walks = contest.walks_since(&before);
            Ok::<_, AccessError>((alone, cpu_share, together, walks))
        });
        let (alone, cpu_share, together, walks) =
            on_own_thread.map_err(AccessError::io("enter the tree"))??;
        Ok(Report::new(
            self,
            &contest,
            &alone,
            together.as_deref(),
            cpu_share,
            walks,
        ))
    }

    /// One thread: all contenders in turn, and a system call that does nothing.
    fn alone(
        &self,
        contest: &Contest,
        here: &InTree,
        stop: &AtomicBool,
        steps: &mut Steps<'_>,
    ) -> Result<Vec<Summary>, AccessError> {
        let mut contenders = vec![Contender::new("kernel", || here.lap(&contest.paths))];
        for ours in &contest.ours {
            contenders.push(Contender::new(ours.name, || ours.lap(&contest.paths)));
        }
        contenders.push(Contender::new("getppid", getppid_lap));
        let rounds = Rounds {
            rounds: self.rounds,
            time: ALONE,
        };
        let done = rounds.run_telling(&mut contenders, stop, &mut || steps.one_done());
        Ok(done?)
    }

    /// N threads: round by round as well, but one contender's threads at a time.
    fn together(
        &self,
        contest: &Contest,
        time: Duration,
        stop: &AtomicBool,
        steps: &mut Steps<'_>,
    ) -> Result<Option<Vec<Summary>>, AccessError> {
        if self.threads == 1 {
            return Ok(None);
        }
        let names = contest.names();
        let mut samples = vec![Vec::with_capacity(self.rounds); names.len()];
        for round in 0..self.rounds {
            for turn in 0..names.len() {
                let next = (round + turn) % names.len();
                samples[next].push(self.threads_on(contest, next, time, stop)?);
            }
            steps.one_done();
        }
        let summaries = names.iter().zip(samples);
        Ok(Some(
            summaries
                .map(|(name, samples)| Summary::new(*name, samples))
                .collect(),
        ))
    }

    /// Long enough for every thread to ask for all paths, even of the slowest.
    fn time_for_all(&self, alone: &[Summary]) -> Duration {
        let slowest = alone.iter().map(Summary::median).fold(0.0, f64::max);
        let per_core = self.threads.div_ceil(crate::machine::cores());
        // Twice, as cores that share a memory are slower together.
        let loops = 2 * self.paths.len() * per_core;
        TOGETHER.max(Duration::from_nanos((slowest * loops as f64) as u64))
    }

    /// Nanoseconds per path, as each of the threads sees it.
    fn threads_on(
        &self,
        contest: &Contest,
        contender: usize,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<f64, AccessError> {
        let together = Together {
            threads: self.threads,
            time,
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let rate = match contender.checked_sub(1) {
                // Each thread gets a current directory of its own, so that they do
                // not share even that.
                None => together.run(
                    |_| {
                        let here = contest.kernel.enter()?;
                        let mut chunks = contest.paths.chunks(CHUNK).cycle();
                        Ok(move || chunks.next().map_or(0, |paths| here.lap(paths).ops))
                    },
                    stop,
                ),
                Some(ours) => {
                    let ours = &contest.ours[ours];
                    together.run(
                        |_| {
                            let mut chunks = contest.paths.chunks(CHUNK).cycle();
                            Ok(move || chunks.next().map_or(0, |paths| ours.lap(paths).ops))
                        },
                        stop,
                    )
                }
            };
            match rate {
                // A moment of a busy machine; the next one may do.
                Err(MeasureError::NeverTogether) if tries < RETRIES => {}
                rate => return Ok(self.threads as f64 * 1e9 / rate?.total()),
            }
        }
    }
}

/// What a system call costs before it does anything: part of each of the kernel's
/// answers, and of none of ours.
fn getppid_lap() -> Lap {
    const CALLS: u64 = 200;
    let start = Instant::now();
    for _ in 0..CALLS {
        std::hint::black_box(rustix::process::getppid());
    }
    Lap {
        ops: CALLS,
        time: start.elapsed(),
    }
}

/// What `work` returns, and how much of its time this thread had a core.
fn cpu_share_of<R, E>(work: impl FnOnce() -> Result<R, E>) -> Result<(R, f64), E> {
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let (start, used_before) = (Instant::now(), used());
    let done = work()?;
    let used = (used() - used_before).as_secs_f64();
    Ok((done, (used / start.elapsed().as_secs_f64()).min(1.0)))
}

/// Why there is no report.
#[derive(Debug)]
#[non_exhaustive]
pub enum AccessError {
    /// The stop flag was raised.
    Stopped,
    /// An answer is not the kernel's.
    Different {
        /// Whose answer.
        contender: &'static str,
        /// About which path.
        path: Vec<u8>,
        /// The kernel's, in words.
        kernel: String,
        /// Ours, in words.
        ours: String,
    },
    /// The tree cannot be built or entered.
    Io {
        /// The step that failed.
        what: &'static str,
        /// Why it was not.
        source: io::Error,
    },
    /// The VFS does not take the tree.
    Vfs {
        /// Which of ours.
        contender: &'static str,
        /// Why.
        source: rcuwalk::Error,
    },
    /// The measurement failed.
    Measure(MeasureError),
}

impl AccessError {
    fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    fn stopped_by(stop: &AtomicBool) -> Result<(), Self> {
        if stop.load(Relaxed) {
            Err(Self::Stopped)
        } else {
            Ok(())
        }
    }
}

impl From<Stopped> for AccessError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<MeasureError> for AccessError {
    fn from(err: MeasureError) -> Self {
        match err {
            MeasureError::Stopped => Self::Stopped,
            err => Self::Measure(err),
        }
    }
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => Stopped.fmt(f),
            Self::Different {
                contender,
                path,
                kernel,
                ours,
            } => write!(
                f,
                "{contender} answers `{}` not as the kernel does: \
                 the kernel says {kernel}, {contender} says {ours}; nothing was timed",
                path.escape_ascii()
            ),
            Self::Io { what, source } => write!(f, "cannot {what}: {source}"),
            Self::Vfs { contender, source } => {
                write!(f, "cannot build the tree of {contender}: {source}")
            }
            Self::Measure(err) => err.fmt(f),
        }
    }
}

// No `source`: the message already says it all.
impl Error for AccessError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick(paths: &str, tree: &str) -> Access {
        Access {
            paths: PathList::parse(paths.as_bytes()).unwrap(),
            tree: TreeSpec::parse(tree).unwrap(),
            threads: 2,
            rounds: 1,
        }
    }

    #[test]
    fn every_contender_gets_a_row_per_thread_count_and_no_timed_walk_takes_references() {
        let stop = AtomicBool::new(false);
        let mut told = Vec::new();
        let access = Access {
            rounds: 2,
            threads: 2,
            ..Access::builtin()
        };
        let report = access.run(&stop, &mut |at| told.push(at.done)).unwrap();
        let rows = report.rows.iter().map(|row| (row.contender, row.threads));
        let expected = [1, 2]
            .map(|threads| ["kernel", "memfs", "hostfs"].map(|contender| (contender, threads)));
        assert_eq!(rows.collect::<Vec<_>>(), expected.concat());
        assert_eq!((report.paths, report.found, report.missing), (205, 87, 118));
        assert!(report.verified);
        assert!(report.walks.iter().all(|walks| walks.ref_walks == 0));
        assert!(report.walks.iter().all(|walks| walks.hits > 0));
        assert_eq!(told, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn answers_are_compared_through_links_dots_loops_and_files() {
        let access = quick(
            "/\n/d/\n/d/f\n/l/f\n/d/../l\n/loop\n/d/f/\n/d/f/x\n/no/x\n/l/../d/./f\n//d//f",
            "dir 0755 0 0 d\nfile 0600 0 0 d/f\nlink 0777 0 0 l -> d\nlink 0777 0 0 loop -> loop",
        );
        let report = access.run(&AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!((report.found, report.missing, report.paths), (7, 1, 11));
        let under_rcu = |walks: &Walks| walks.refused > 0 && walks.ref_walks == 0;
        assert!(report.walks.iter().all(under_rcu));
    }

    #[test]
    fn a_stopped_run_reports_nothing() {
        let stop = AtomicBool::new(false);
        let stopped = Access::builtin().run(&stop, &mut |at| {
            stop.store(at.done == 1, Relaxed);
        });
        assert!(matches!(stopped, Err(AccessError::Stopped)));
    }
}
