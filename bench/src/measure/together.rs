//! Many threads at once: the rate of all.
//!
//! | read          | to learn                                                      |
//! |---------------|---------------------------------------------------------------|
//! | this file     | rates over the time in which all ran, at most one per core    |
//! | `deadline.rs` | what all did until a moment, however many they are            |
//! | `crew.rs`     | starting threads together, and ending them together           |

mod crew;
mod deadline;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{fmt, io};

pub use deadline::ToDeadline;

use super::Stopped;
use crew::Ended;

/// How often a thread notes how far it is. Often against the time measured, and
/// seldom enough not to show in it.
const MARK_EVERY: Duration = Duration::from_millis(1);

/// Threads that do the same work at the same time, each on a core of its own.
#[derive(Clone, Copy, Debug)]
pub struct Together {
    /// How many threads. If there are fewer cores, they share them.
    pub threads: usize,
    /// How long each runs.
    pub time: Duration,
}

/// What all threads did together.
#[derive(Clone, Debug, PartialEq)]
pub struct TogetherRate {
    /// Operations per second, of each thread.
    pub per_thread: Vec<f64>,
    /// How long all threads ran at the same time; only this time counts.
    pub overlap: Duration,
}

impl TogetherRate {
    /// Operations per second, of all threads.
    pub fn total(&self) -> f64 {
        self.per_thread.iter().sum()
    }
}

impl Together {
    /// Runs the threads and adds up their rates.
    ///
    /// `prepare` is called on each thread, with its number, after it was pinned to
    /// its core. It returns the thread's work: a closure that does some operations,
    /// for some microseconds, and says how many.
    pub fn run<W>(
        &self,
        prepare: impl Fn(usize) -> io::Result<W> + Sync,
        stop: &AtomicBool,
    ) -> Result<TogetherRate, MeasureError>
    where
        W: FnMut() -> u64,
    {
        rate_of(&self.on_all(prepare, |work, _start| self.marks(work, stop))?)
    }

    /// Works for the time set, and notes now and then how far it is.
    fn marks(&self, work: &mut impl FnMut() -> u64, stop: &AtomicBool) -> Result<Marks, Ended> {
        let expected = self.time.as_nanos() / MARK_EVERY.as_nanos();
        let mut marks = Marks::with_capacity(expected as usize + 2);
        let start = Instant::now();
        let mut ops = 0;
        marks.push(Mark { at: start, ops });
        loop {
            if stop.load(Relaxed) {
                return Err(Ended::Stopped);
            }
            ops += work();
            let now = Instant::now();
            let last = marks[marks.len() - 1].at;
            let over = now - start >= self.time;
            if over || now - last >= MARK_EVERY {
                marks.push(Mark { at: now, ops });
            }
            if over {
                return Ok(marks);
            }
        }
    }
}

/// How far a thread was at a moment.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    ops: u64,
}

type Marks = Vec<Mark>;

/// Each thread's rate between its first and its last mark in the common time.
fn rate_of(all: &[Marks]) -> Result<TogetherRate, MeasureError> {
    let start = all.iter().map(|marks| marks[0].at).max();
    let end = all.iter().map(|marks| marks[marks.len() - 1].at).min();
    let (Some(start), Some(end)) = (start, end) else {
        return Err(MeasureError::NeverTogether);
    };
    let per_thread = all.iter().map(|marks| rate_within(marks, start, end));
    Ok(TogetherRate {
        per_thread: per_thread
            .collect::<Option<_>>()
            .ok_or(MeasureError::NeverTogether)?,
        overlap: end.saturating_duration_since(start),
    })
}

fn rate_within(marks: &[Mark], start: Instant, end: Instant) -> Option<f64> {
    let first = marks.iter().find(|mark| mark.at >= start)?;
    let last = marks.iter().rfind(|mark| mark.at <= end)?;
    let time = last.at.checked_duration_since(first.at)?;
    (!time.is_zero()).then(|| (last.ops - first.ops) as f64 / time.as_secs_f64())
}

/// Why there is no rate.
#[derive(Debug)]
#[non_exhaustive]
pub enum MeasureError {
    /// The stop flag was raised.
    Stopped,
    /// The threads did not run at the same time: the machine is too busy, or the
    /// time too short.
    NeverTogether,
    /// A thread could not be prepared.
    Io(io::Error),
}

impl From<io::Error> for MeasureError {
    fn from(err: io::Error) -> Self {
        Self::Io(err)
    }
}

impl From<Stopped> for MeasureError {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

impl fmt::Display for MeasureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => Stopped.fmt(f),
            Self::NeverTogether => write!(
                f,
                "the threads did not run at the same time: \
                 measure longer, or on a less busy machine"
            ),
            Self::Io(err) => write!(f, "cannot prepare a thread: {err}"),
        }
    }
}

// No `source`: the message already says it all.
impl Error for MeasureError {}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::crew::allowed_cores;
    use super::*;

    fn marks(start: Instant, marks: &[(u64, u64)]) -> Marks {
        let mark = |&(ms, ops)| Mark {
            at: start + Duration::from_millis(ms),
            ops,
        };
        marks.iter().map(mark).collect()
    }

    #[test]
    fn only_the_time_in_which_all_ran_counts() {
        let start = Instant::now();
        // Twice as fast while alone, before 100 ms and after 300 ms.
        let early = marks(start, &[(0, 0), (100, 200), (200, 300), (300, 400)]);
        let late = marks(start, &[(100, 0), (200, 100), (300, 200), (400, 400)]);
        let rate = rate_of(&[early, late]).unwrap();
        assert_eq!(rate.per_thread, [1000.0, 1000.0]);
        assert_eq!(rate.total(), 2000.0);
        assert_eq!(rate.overlap, Duration::from_millis(200));
    }

    #[test]
    fn threads_that_ran_one_after_the_other_have_no_common_rate() {
        let start = Instant::now();
        let early = marks(start, &[(0, 0), (100, 200)]);
        let late = marks(start, &[(150, 0), (250, 100)]);
        let rate = rate_of(&[early, late]);
        assert!(matches!(rate, Err(MeasureError::NeverTogether)), "{rate:?}");
    }

    #[test]
    fn every_thread_is_pinned_to_an_allowed_core_and_has_a_rate() {
        let run = AtomicBool::new(false);
        // More threads than cores: some share.
        let threads = allowed_cores().unwrap().len() + 1;
        let prepare = |_| {
            assert_eq!(sched_getaffinity(None)?.count(), 1);
            Ok(|| (0..1000).map(std::hint::black_box).count() as u64)
        };
        // On a busy machine the threads may need longer to meet.
        let mut time = Duration::from_millis(150);
        let rate = loop {
            match (Together { threads, time }).run(prepare, &run) {
                Err(MeasureError::NeverTogether) if time < Duration::from_secs(20) => time *= 2,
                rate => break rate.unwrap(),
            }
        };
        assert_eq!(rate.per_thread.len(), threads);
        assert!(rate.per_thread.iter().all(|&rate| rate > 0.0), "{rate:?}");
        assert!(rate.overlap > Duration::ZERO);
    }

    #[test]
    fn a_raised_flag_stops_all_threads_and_leaves_no_result() {
        let stop = AtomicBool::new(false);
        let together = Together {
            threads: 2,
            time: Duration::from_secs(3600),
        };
        let prepare = |number| {
            let stop = &stop;
            Ok(move || {
                stop.fetch_or(number == 1, Relaxed);
                1
            })
        };
        let rate = together.run(prepare, &stop);
        assert!(matches!(rate, Err(MeasureError::Stopped)), "{rate:?}");
    }

    #[test]
    fn a_thread_that_cannot_be_prepared_ends_all() {
        let run = AtomicBool::new(false);
        let together = Together {
            threads: 2,
            time: Duration::from_secs(3600),
        };
        let prepare = |number| match number {
            1 => Err(io::Error::other("no more")),
            _ => Ok(|| 1),
        };
        let err = together.run(prepare, &run).unwrap_err();
        assert_eq!(err.to_string(), "cannot prepare a thread: no more");
    }

    #[test]
    #[should_panic(expected = "out of luck")]
    fn a_thread_that_panics_while_preparing_ends_all_with_its_panic() {
        let run = AtomicBool::new(false);
        let together = Together {
            threads: 2,
            time: Duration::from_secs(3600),
        };
        let prepare = |number| match number {
            1 => panic!("out of luck"),
            _ => Ok(|| 1),
        };
        let _ = together.run(prepare, &run);
    }
}
