//! What threads did from a common start to a common end, be they more than cores.
//!
//! [`Together::run`] counts the time in which all threads ran; where they share
//! cores there is no such time. Here all operations count, over the time from the
//! gate's opening to the end.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::crew::{Ended, allowed_cores};
use super::{MeasureError, Together};

/// What all threads did until the end.
#[derive(Clone, Debug, PartialEq)]
pub struct ToDeadline {
    /// Operations, of all threads.
    pub ops: u64,
    /// Operations per second, of all threads. Where each has a core of its own, the
    /// time in which another program had that core does not count.
    pub rate: f64,
    /// How much of the time other programs had the cores, from 0 to 1. Known only
    /// where each thread has a core of its own, and the kernel keeps count.
    pub taken_by_others: Option<f64>,
}

impl Together {
    /// Runs the threads until [`time`](Self::time) has passed since their common
    /// start. `prepare` and its closure are as for [`run`](Self::run).
    pub fn run_to_deadline<W>(
        &self,
        prepare: impl Fn(usize) -> io::Result<W> + Sync,
        stop: &AtomicBool,
    ) -> Result<ToDeadline, MeasureError>
    where
        W: FnMut() -> u64,
    {
        let own_cores = self.threads <= allowed_cores()?.len();
        let all = self.on_all(prepare, |work, start| self.until_end(work, start, stop))?;
        Ok(sum(&all, own_cores))
    }

    fn until_end(
        &self,
        work: &mut impl FnMut() -> u64,
        start: Instant,
        stop: &AtomicBool,
    ) -> Result<Done, Ended> {
        let waited_before = waited_for_core();
        let mut ops = 0;
        loop {
            if stop.load(Relaxed) {
                return Err(Ended::Stopped);
            }
            ops += work();
            let time = start.elapsed();
            if time >= self.time {
                let waited = waited_for_core().zip(waited_before);
                return Ok(Done {
                    ops,
                    time,
                    waited: waited.map(|(after, before)| after.saturating_sub(before)),
                });
            }
        }
    }
}

/// What one thread did.
struct Done {
    ops: u64,
    time: Duration,
    /// How long it could have run, but another thread had its core.
    waited: Option<Duration>,
}

fn sum(all: &[Done], own_cores: bool) -> ToDeadline {
    let ops = all.iter().map(|done| done.ops).sum();
    if !own_cores {
        let time = all.iter().map(|done| done.time).max().unwrap_or_default();
        return ToDeadline {
            ops,
            rate: ops as f64 / time.as_secs_f64(),
            taken_by_others: None,
        };
    }
    let rate = all.iter().map(|done| {
        // A thread that hardly ran says little; it shall not say that it was fast.
        let others = done.waited.unwrap_or_default().min(done.time / 10 * 9);
        done.ops as f64 / (done.time - others).as_secs_f64()
    });
    let waited: Option<Duration> = all.iter().map(|done| done.waited).sum();
    let time: Duration = all.iter().map(|done| done.time).sum();
    ToDeadline {
        ops,
        rate: rate.sum(),
        taken_by_others: waited.map(|waited| (waited.as_secs_f64() / time.as_secs_f64()).min(1.0)),
    }
}

/// How long this thread has been ready to run without a core, if the kernel counts it.
fn waited_for_core() -> Option<Duration> {
    let counts = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let waited = counts.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(waited))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(ops: u64, time: u64, waited: Option<u64>) -> Done {
        Done {
            ops,
            time: Duration::from_millis(time),
            waited: waited.map(Duration::from_millis),
        }
    }

    #[test]
    fn time_that_others_had_the_core_does_not_count() {
        let total = sum(&[done(100, 100, Some(0)), done(50, 100, Some(50))], true);
        assert_eq!((total.ops, total.rate), (150, 2000.0));
        assert_eq!(total.taken_by_others, Some(0.25));
        let unknown = sum(&[done(100, 100, None), done(50, 100, None)], true);
        assert_eq!((unknown.rate, unknown.taken_by_others), (1500.0, None));
    }

    #[test]
    fn threads_that_share_cores_are_counted_over_the_whole_time() {
        let total = sum(&[done(100, 100, Some(90)), done(60, 160, Some(90))], false);
        assert_eq!((total.ops, total.rate), (160, 1000.0));
        assert_eq!(total.taken_by_others, None);
    }

    #[test]
    fn threads_that_share_cores_all_come_to_their_turn() {
        let together = Together {
            threads: 20,
            time: Duration::from_millis(50),
        };
        let run = AtomicBool::new(false);
        let work = || (0..100).map(std::hint::black_box).count() as u64;
        let total = together.run_to_deadline(|_| Ok(work), &run).unwrap();
        assert!(total.ops >= 20 * 100 && total.rate > 0.0, "{total:?}");
    }

    #[test]
    fn a_raised_flag_stops_all_threads_and_leaves_no_result() {
        let together = Together {
            threads: 3,
            time: Duration::from_secs(3600),
        };
        let raised = AtomicBool::new(true);
        let total = together.run_to_deadline(|_| Ok(|| 1), &raised);
        assert!(matches!(total, Err(MeasureError::Stopped)), "{total:?}");
    }
}
