//! Measuring contenders so that their ratio can be trusted.
//!
//! A machine's speed drifts: clocks change, neighbours come and go. So contenders take turns in
//! short rounds, a slow moment hits all of them, and the medians of the rounds are compared
//! ([`Rounds`]). Rates of many threads at once are counted only over the time in which all of
//! them ran, or, where threads share cores, up to a common end ([`Together`]).
//!
//! Both look at a stop flag between laps. A stopped measurement yields nothing at
//! all: half a comparison is not a result.

mod together;
mod turns;

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

pub use together::{MeasureError, ToDeadline, Together, TogetherRate};
pub(crate) use turns::{TakeTurns, order};

/// Some operations, and the time that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lap {
    /// How many operations.
    pub ops: u64,
    /// How long all of them took.
    pub time: Duration,
}

/// Something to be measured, by laps of its own choice.
pub struct Contender<'a> {
    name: String,
    run: Box<dyn FnMut() -> Lap + 'a>,
}

impl<'a> Contender<'a> {
    /// `run` does a lap and times it. A lap is best some microseconds long: laps
    /// are repeated to fill a round, and reading the clock should not show.
    pub fn new(name: impl Into<String>, run: impl FnMut() -> Lap + 'a) -> Self {
        Self {
            name: name.into(),
            run: Box::new(run),
        }
    }

    /// Laps until they add up to `round`. Returns nanoseconds per operation.
    fn round(&mut self, round: Duration, stop: &AtomicBool) -> Result<f64, Stopped> {
        let mut sum = Lap::default();
        while sum.time < round {
            if stop.load(Relaxed) {
                return Err(Stopped);
            }
            let lap = (self.run)();
            assert!(
                lap.ops > 0 && !lap.time.is_zero(),
                "{}: an empty lap",
                self.name
            );
            sum.ops += lap.ops;
            sum.time += lap.time;
        }
        Ok(sum.time.as_nanos() as f64 / sum.ops as f64)
    }
}

/// How contenders take turns.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// How many rounds count, after one that does not and warms all caches.
    pub rounds: usize,
    /// How long each contender runs in each round.
    pub time: Duration,
}

impl Default for Rounds {
    /// 15 rounds of 5 ms.
    fn default() -> Self {
        Self {
            rounds: 15,
            time: Duration::from_millis(5),
        }
    }
}

impl Rounds {
    /// Runs the contenders in turn. The summaries come in their order.
    ///
    /// # Panics
    ///
    /// If there are no rounds, or a contender's lap has no operations or no time.
    pub fn run(
        &self,
        contenders: &mut [Contender<'_>],
        stop: &AtomicBool,
    ) -> Result<Vec<Summary>, Stopped> {
        self.run_telling(contenders, stop, &mut || {})
    }

    /// As [`run`](Self::run); calls `round_done` after each round that counts.
    pub fn run_telling(
        &self,
        contenders: &mut [Contender<'_>],
        stop: &AtomicBool,
        round_done: &mut dyn FnMut(),
    ) -> Result<Vec<Summary>, Stopped> {
        assert!(self.rounds > 0, "no rounds, no median");
        let turns = TakeTurns {
            contenders: contenders.len(),
            rounds: self.rounds,
            warm_up: true,
            stop,
        };
        let mut done = 0;
        let samples = turns.run(
            |next| contenders[next].round(self.time, stop),
            |_, _| Ok::<_, Stopped>(()),
            || {
                done += 1;
                if done % turns.contenders == 0 {
                    round_done();
                }
            },
        )?;
        let names = contenders.iter().map(|contender| contender.name.clone());
        Ok(names
            .zip(samples)
            .map(|(name, samples)| Summary { name, samples })
            .collect())
    }
}

/// What a contender took, in nanoseconds per operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The contender.
    pub name: String,
    /// One sample per round, in order; at least one.
    samples: Vec<f64>,
}

impl Summary {
    /// Of samples taken elsewhere, one per round, in order.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn new(name: impl Into<String>, samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "no samples, no median");
        let name = name.into();
        Self { name, samples }
    }

    /// The samples, one per round, in order.
    pub fn samples(&self) -> &[f64] {
        &self.samples
    }

    /// The median of the rounds.
    pub fn median(&self) -> f64 {
        median(self.samples.clone())
    }

    /// The fastest round.
    pub fn min(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The slowest round.
    pub fn max(&self) -> f64 {
        self.samples.iter().copied().fold(0.0, f64::max)
    }

    /// How far the rounds lie apart, as a part of the median: 0.05 is 5%.
    pub fn spread(&self) -> f64 {
        (self.max() - self.min()) / self.median()
    }

    /// How many times longer than `other` it took: the median of the rounds' ratios.
    ///
    /// Steadier than the ratio of the medians, as each pair shared a moment.
    ///
    /// # Panics
    ///
    /// If the two are not from the same run.
    pub fn ratio_to(&self, other: &Summary) -> f64 {
        assert_eq!(
            self.samples.len(),
            other.samples.len(),
            "summaries of different runs"
        );
        let pairs = self.samples.iter().zip(&other.samples);
        median(pairs.map(|(ours, theirs)| ours / theirs).collect())
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

/// The stop flag was raised; measurements made so far are thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped before the measurement was complete")
    }
}

impl Error for Stopped {}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    static RUN: AtomicBool = AtomicBool::new(false);

    fn summary(samples: &[f64]) -> Summary {
        Summary {
            name: "s".into(),
            samples: samples.to_vec(),
        }
    }

    #[test]
    fn a_summary_is_median_least_greatest_and_spread() {
        let odd = summary(&[30.0, 10.0, 20.0]);
        assert_eq!(
            (odd.median(), odd.min(), odd.max(), odd.spread()),
            (20.0, 10.0, 30.0, 1.0)
        );
        assert_eq!(summary(&[4.0, 1.0, 2.0, 100.0]).median(), 3.0);
        assert_eq!(summary(&[7.0]).spread(), 0.0);
    }

    #[test]
    fn a_slow_moment_that_hits_both_does_not_change_the_ratio() {
        let kernel = summary(&[400.0, 4000.0, 800.0]);
        let ours = summary(&[40.0, 400.0, 80.0]);
        assert_eq!(kernel.ratio_to(&ours), 10.0);
    }

    #[test]
    fn contenders_take_turns_after_a_round_that_does_not_count() {
        let order = RefCell::new(String::new());
        let lap = |name| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                Lap {
                    ops: 10,
                    time: Duration::from_millis(1),
                }
            }
        };
        let mut contenders = ['a', 'b', 'c'].map(|name| Contender::new(name, lap(name)));
        let rounds = Rounds {
            rounds: 3,
            time: Duration::from_millis(1),
        };
        let summaries = rounds.run(&mut contenders, &RUN).unwrap();
        assert_eq!(*order.borrow(), "abc".to_owned() + "abc" + "cba" + "bca");
        let names: Vec<_> = summaries.iter().map(|summary| &summary.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(summaries[0].samples(), [100_000.0; 3]);
    }

    #[test]
    fn laps_are_repeated_until_the_round_is_full() {
        let mut laps = 0;
        let lap = || {
            laps += 1;
            Lap {
                ops: 1,
                time: Duration::from_millis(2),
            }
        };
        let rounds = Rounds {
            rounds: 1,
            time: Duration::from_millis(5),
        };
        rounds.run(&mut [Contender::new("x", lap)], &RUN).unwrap();
        assert_eq!(laps, 3 + 3, "warm-up and one round");
    }

    #[test]
    fn a_raised_flag_stops_between_laps_and_leaves_no_result() {
        let stop = AtomicBool::new(false);
        let mut laps = 0;
        let lap = || {
            laps += 1;
            stop.store(laps == 5, Relaxed);
            Lap {
                ops: 1,
                time: Duration::from_millis(1),
            }
        };
        let rounds = Rounds {
            rounds: 100,
            time: Duration::from_millis(1),
        };
        let result = rounds.run(&mut [Contender::new("x", lap)], &stop);
        assert_eq!(result, Err(Stopped));
        assert_eq!(laps, 5);
    }
}
