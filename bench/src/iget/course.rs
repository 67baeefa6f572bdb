//! One entrant's table under one mix: running it, and checking what came out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::mix::{CHUNK, Keys, Lane, Mix};
use super::table::{Contents, Counters, Got, InodeTable, LocksPer, part_of};
use crate::machine;
use crate::measure::{MeasureError, Together};
use crate::random::Random;

/// How long the threads of a core warm it up, together.
const WARM_UP: Duration = Duration::from_millis(8);

/// The percentage of hot keys of the mixed load that a cache may have evicted by guessing
/// wrongly which keys are hot. With more, it would be another load.
const HOT_MISSES: u64 = 10;

/// A cache keeps its budget to within this percentage: checking the total at each insertion
/// would cost more than it saves.
const OVER_BUDGET: u64 = 2;

/// The most that a cache with this budget may have.
pub(crate) fn allowed(budget: u64) -> u64 {
    budget + budget * OVER_BUDGET / 100
}

/// A table that can be run, whatever it is.
pub(super) trait Course {
    /// So many threads, for so long.
    fn run(
        &self,
        threads: usize,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Sample, MeasureError>;
}

/// A table with its inodes.
pub(super) struct Filled<T> {
    table: T,
    keys: Keys,
    lanes: Vec<Lane>,
}

impl<T: InodeTable> Filled<T> {
    pub(super) fn new(table: T, keys: Keys) -> Self {
        for key in keys.at_start() {
            table.iget(key);
        }
        Self {
            table,
            lanes: keys.lanes(),
            keys,
        }
    }
}

impl<T: InodeTable> Course for Filled<T> {
    fn run(
        &self,
        threads: usize,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Sample, MeasureError> {
        let sum = SharedTally::default();
        let before = self.table.counters();
        let warm_up = WARM_UP / threads.div_ceil(machine::cores()) as u32;
        let together = Together { threads, time };
        let prepare = |thread| {
            let mut worker = Worker::new(self, thread, threads, &sum);
            let start = Instant::now();
            while start.elapsed() < warm_up {
                worker.chunk();
            }
            Ok(move || {
                worker.chunk();
                CHUNK
            })
        };
        let total = together.run_to_deadline(prepare, stop)?;
        let tally = sum.load();
        Ok(Sample {
            rate: total.rate,
            taken_by_others: total.taken_by_others,
            mix: self.keys.mix,
            tally,
            cached: self.table.len(),
            budget: self.keys.budget(),
            counted: before
                .zip(self.table.counters())
                .map(|(before, after)| since(before, after)),
            by_inspection: T::LOCKS,
        })
    }
}

fn since(before: Counters, after: Counters) -> Counters {
    Counters {
        hits: after.hits - before.hits,
        misses: after.misses - before.misses,
        locks: after.locks - before.locks,
    }
}

/// One thread at work.
struct Worker<'a, T> {
    table: &'a T,
    keys: Keys,
    /// The lanes that are this thread's now: which, and the next number of each.
    lanes: Vec<(usize, u64)>,
    turn: usize,
    random: Random,
    tally: Tally,
    all_lanes: &'a [Lane],
    sum: &'a SharedTally,
}

impl<'a, T: InodeTable> Worker<'a, T> {
    fn new(course: &'a Filled<T>, thread: usize, threads: usize, sum: &'a SharedTally) -> Self {
        let mine = (thread..course.lanes.len()).step_by(threads);
        Self {
            table: &course.table,
            keys: course.keys,
            lanes: mine.map(|lane| (lane, course.lanes[lane].next())).collect(),
            turn: 0,
            random: Random::new(thread as u64 + 1),
            tally: Tally::default(),
            all_lanes: &course.lanes,
            sum,
        }
    }

    /// [`CHUNK`] operations.
    fn chunk(&mut self) {
        self.turn = (self.turn + 1) % self.lanes.len();
        let (lane, mut next) = self.lanes[self.turn];
        match self.keys.mix {
            Mix::Hit => (0..CHUNK).for_each(|_| self.ask_for_hot()),
            Mix::Stream => {
                for number in next..next + CHUNK {
                    self.ask_for_new(lane, number);
                }
                next += CHUNK;
            }
            Mix::Mixed => {
                for _ in 0..CHUNK {
                    if self.random.below(10) == 0 {
                        self.ask_for_new(lane, next);
                        next += 1;
                    } else {
                        self.ask_for_hot();
                    }
                }
            }
        }
        self.lanes[self.turn].1 = next;
    }

    #[inline]
    fn ask_for_hot(&mut self) {
        let key = self.keys.hot(&mut self.random);
        if self.ask(key) {
            self.tally.hot_hits += 1;
        } else {
            self.tally.hot_misses += 1;
        }
    }

    #[inline]
    fn ask_for_new(&mut self, lane: usize, number: u64) {
        let (key, oldest) = self.keys.streamed(lane, number);
        if self.ask(key) {
            self.tally.new_hits += 1;
        } else {
            self.tally.new_misses += 1;
        }
        self.table.evict(oldest);
    }

    /// Get, look, put. True if it was cached.
    #[inline]
    fn ask(&mut self, key: u64) -> bool {
        let (inode, cached) = match self.table.iget(key) {
            Got::Cached(inode) => (inode, true),
            Got::New(inode) => (inode, false),
        };
        self.tally.wrong += u64::from(inode.contents() != (key, part_of(key)));
        cached
    }
}

impl<T> Drop for Worker<'_, T> {
    fn drop(&mut self) {
        for &(lane, next) in &self.lanes {
            self.all_lanes[lane].set_next(next);
        }
        self.sum.add(&self.tally);
    }
}

/// What came out of the operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    hot_hits: u64,
    hot_misses: u64,
    new_hits: u64,
    new_misses: u64,
    /// An inode that is not the one asked for.
    wrong: u64,
}

impl Tally {
    pub(super) fn hits(&self) -> u64 {
        self.hot_hits + self.new_hits
    }

    pub(super) fn misses(&self) -> u64 {
        self.hot_misses + self.new_misses
    }
}

/// The tallies of all threads.
#[derive(Default)]
struct SharedTally([AtomicU64; 5]);

impl SharedTally {
    fn add(&self, tally: &Tally) {
        let Tally {
            hot_hits,
            hot_misses,
            new_hits,
            new_misses,
            wrong,
        } = *tally;
        let counts = [hot_hits, hot_misses, new_hits, new_misses, wrong];
        for (sum, count) in self.0.iter().zip(counts) {
            sum.fetch_add(count, Relaxed);
        }
    }

    fn load(&self) -> Tally {
        let [hot_hits, hot_misses, new_hits, new_misses, wrong] =
            [0, 1, 2, 3, 4].map(|n: usize| self.0[n].load(Relaxed));
        Tally {
            hot_hits,
            hot_misses,
            new_hits,
            new_misses,
            wrong,
        }
    }
}

/// One run: its rate, and the counts to check. Counts include the warm-up.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Operations per second.
    pub(super) rate: f64,
    pub(super) taken_by_others: Option<f64>,
    pub(super) mix: Mix,
    pub(super) tally: Tally,
    pub(super) cached: usize,
    pub(super) budget: u64,
    pub(super) counted: Option<Counters>,
    pub(super) by_inspection: Option<LocksPer>,
}

impl Sample {
    /// The reason why the run does not count, in words.
    pub(super) fn check(&self) -> Result<(), String> {
        let Tally {
            hot_hits,
            hot_misses,
            new_hits,
            wrong,
            ..
        } = self.tally;
        let hot = hot_hits + hot_misses;
        let (hits, misses) = (self.tally.hits(), self.tally.misses());
        let lost = match self.mix {
            Mix::Hit => hot_misses > 0,
            _ => hot_misses * 100 > hot * HOT_MISSES,
        };
        if wrong > 0 {
            return Err(format!("{wrong} inodes were not those asked for"));
        }
        if lost {
            return Err(format!("{hot_misses} of {hot} hot inodes were not cached"));
        }
        if new_hits > 0 {
            return Err(format!("{new_hits} inodes were there before anybody asked"));
        }
        if self.cached as u64 > allowed(self.budget) {
            let Self { cached, budget, .. } = self;
            return Err(format!("{cached} inodes are cached, but {budget} allowed"));
        }
        match self.counted {
            // Who waited for another to read it in may have looked more than once.
            Some(own)
                if own.hits.abs_diff(hits) * 1000 > hits
                    || own.misses.abs_diff(misses) * 1000 > misses =>
            {
                Err(format!(
                    "it counts {} hits and {} misses where there were {hits} and {misses}",
                    own.hits, own.misses
                ))
            }
            _ => Ok(()),
        }
    }

    /// Locks taken per operation, if anybody knows.
    pub(super) fn locks_per_op(&self) -> Option<f64> {
        let (hits, misses) = (self.tally.hits() as f64, self.tally.misses() as f64);
        let counted = self.counted.map(|own| own.locks as f64);
        let inspected = self.by_inspection;
        let locks = counted.or_else(|| inspected.map(|per| per.hit * hits + per.miss * misses))?;
        Some(locks / (hits + misses))
    }

    /// How many of the operations found the inode, from 0 to 1.
    pub(super) fn hit_share(&self) -> f64 {
        self.tally.hits() as f64 / (self.tally.hits() + self.tally.misses()) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(mix: Mix, tally: Tally) -> Sample {
        Sample {
            rate: 1.0,
            taken_by_others: None,
            mix,
            tally,
            cached: 100,
            budget: 100,
            counted: None,
            by_inspection: Some(LocksPer {
                hit: 1.0,
                miss: 3.0,
            }),
        }
    }

    #[test]
    fn a_table_that_gives_what_it_should_passes() {
        let tally = Tally {
            hot_hits: 900,
            new_misses: 100,
            ..Tally::default()
        };
        let good = sample(Mix::Mixed, tally);
        assert_eq!(good.check(), Ok(()));
        assert_eq!((good.locks_per_op(), good.hit_share()), (Some(1.2), 0.9));
    }

    #[test]
    fn whatever_is_wrong_is_said() {
        let hot = |hot_hits, hot_misses| Tally {
            hot_hits,
            hot_misses,
            ..Tally::default()
        };
        let new = |new_hits, wrong| Tally {
            new_hits,
            new_misses: 10,
            wrong,
            ..Tally::default()
        };
        let counts_itself = Sample {
            counted: Some(Counters {
                hits: 9,
                ..Counters::default()
            }),
            ..sample(Mix::Hit, hot(10, 0))
        };
        let too_many = Sample {
            cached: 103,
            ..sample(Mix::Hit, hot(10, 0))
        };
        for (sample, what) in [
            (sample(Mix::Hit, hot(10, 1)), "1 of 11 hot inodes were not"),
            (sample(Mix::Mixed, hot(80, 20)), "20 of 100 hot inodes"),
            (sample(Mix::Stream, new(2, 0)), "2 inodes were there before"),
            (sample(Mix::Stream, new(0, 3)), "3 inodes were not those"),
            (too_many, "103 inodes are cached, but 100 allowed"),
            (counts_itself, "it counts 9 hits and 0 misses where"),
        ] {
            let said = sample.check().unwrap_err();
            assert!(said.contains(what), "`{said}` does not say `{what}`");
        }
    }
}
