//! Shared by the shuttle models: running one under many schedules for its whole set of
//! outcomes, and a census of the holders of each inode.
//!
//! Shuttle runs the threads of a model one at a time and switches at every atomic and
//! every lock. [`outcomes_are`] tries two ways of choosing: at random, and PCT, which
//! gives threads priorities and changes them a few times (that finds what needs one
//! thread to stand still for long). `RCUWALK_SHUTTLE_ITERATIONS` is the number of
//! schedules of each; `RCUWALK_SEED` chooses others.
//!
//! A failure prints its schedule. Chains depend on addresses, so for replaying it run
//! that one test, by `setarch -R`, with the same settings.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::panic::RefUnwindSafe;
use std::sync::{Arc, Mutex};

use rcuwalk_sync::rcu;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner};

pub(crate) use shuttle::thread::spawn;

/// PCT's depths, a share of its schedules each. One less is how often a thread loses its
/// priority. Once lets one thread stand still while another does all that it does, which
/// more would interrupt; most known bugs of such code take two.
const PCT_DEPTHS: [usize; 3] = [2, 3, 5];

/// A thread that has taken this many steps will take them for ever: no model needs a tenth.
const MOST_STEPS: usize = 50_000;

/// Runs `model` under many schedules: each has one of the `expected` outcomes, and
/// each of those comes about.
///
/// A model claims the whole set: one that never reached the second outcome has proved nothing.
/// Retired objects are freed at the end of each execution.
pub(crate) fn outcomes_are<T>(
    claim: &'static str,
    expected: impl IntoIterator<Item = T>,
    model: impl Fn() -> T + Send + Sync + 'static,
) where
    T: Ord + Clone + Debug + Send + Sync + RefUnwindSafe + 'static,
{
    let expected: BTreeSet<T> = expected.into_iter().collect();
    let counts: Arc<Mutex<BTreeMap<T, usize>>> = Arc::default();
    let execution = {
        let (expected, counts) = (expected.clone(), counts.clone());
        move || {
            let outcome = model();
            // The barrier ends: no thread left a read section open.
            rcu::barrier();
            // In here, so that shuttle prints the schedule.
            assert!(expected.contains(&outcome), "{claim}: {outcome:?}");
            *counts.lock().unwrap().entry(outcome).or_default() += 1;
        }
    };
    let execution = Arc::new(execution);
    let (iterations, seed) = (iterations(), seed());
    let run = execution.clone();
    Runner::new(RandomScheduler::new_from_seed(seed, iterations), config()).run(move || run());
    for depth in PCT_DEPTHS {
        let share = iterations.div_ceil(PCT_DEPTHS.len());
        let run = execution.clone();
        let pct = PctScheduler::new_from_seed(seed, depth, share);
        Runner::new(pct, config()).run(move || run());
    }

    let counts = counts.lock().unwrap();
    println!("{claim}: {counts:?}");
    let seen: BTreeSet<T> = counts.keys().cloned().collect();
    assert_eq!(seen, expected, "{claim}: some never came about");
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    // Shuttle warns that it treats every ordering as SeqCst: loom checks the orderings.
    config.silence_warnings = true;
    config
}

fn iterations() -> usize {
    match std::env::var("RCUWALK_SHUTTLE_ITERATIONS") {
        Ok(n) => n.parse().expect("RCUWALK_SHUTTLE_ITERATIONS is a number"),
        Err(_) => 3000,
    }
}

fn seed() -> u64 {
    let base = std::env::var("RCUWALK_SEED").map_or(0, |seed| seed.parse().unwrap());
    (base + 1u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The holders of each object of each key, kept beside the cache under test.
///
/// Its locks are the standard library's: looking is no step of the model.
#[derive(Clone, Default)]
pub(crate) struct Census(Arc<Mutex<BTreeMap<u64, (usize, usize)>>>);

impl Census {
    /// Notes that the caller holds the object at `address`.
    ///
    /// # Panics
    /// If another object with the same key is held.
    pub(crate) fn hold(&self, key: u64, address: usize) -> Held {
        let mut held = self.0.lock().unwrap();
        let (other, holders) = held.entry(key).or_insert((address, 0));
        assert_eq!(*other, address, "two objects of key {key} are held at once");
        *holders += 1;
        Held(self.clone(), key)
    }
}

/// To be dropped before the reference that it stands for.
pub(crate) struct Held(Census, u64);

impl Drop for Held {
    fn drop(&mut self) {
        let Ok(mut held) = self.0.0.lock() else {
            // The model has failed already.
            return;
        };
        let (_, holders) = held.get_mut(&self.1).expect("it was noted");
        *holders -= 1;
        if *holders == 0 {
            held.remove(&self.1);
        }
    }
}
