//! Support for the models: running one for its whole set of outcomes, and a payload that
//! reports reads that come too early or too late.

#![allow(dead_code)]

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread::{self, JoinHandle};

/// Runs `model` in every interleaving, and returns every outcome.
///
/// Without a bound on preemptions: for models that take a few seconds so.
pub(crate) fn all_outcomes<T: Ord + Send + 'static>(
    model: impl Fn() -> T + Send + Sync + 'static,
) -> BTreeSet<T> {
    let mut builder = Builder::new();
    builder.preemption_bound = None;
    run(builder, model)
}

/// As `all_outcomes`, with as many preemptions as `LOOM_MAX_PREEMPTIONS` says.
///
/// A model claims the whole set: one that never reached the second outcome has
/// proved nothing.
pub(crate) fn outcomes<T: Ord + Send + 'static>(
    model: impl Fn() -> T + Send + Sync + 'static,
) -> BTreeSet<T> {
    run(Builder::new(), model)
}

/// As `outcomes`, with `least` preemptions or more: for what fewer cannot bring about.
pub(crate) fn outcomes_at<T: Ord + Send + 'static>(
    least: usize,
    model: impl Fn() -> T + Send + Sync + 'static,
) -> BTreeSet<T> {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.max(least));
    run(builder, model)
}

fn run<T: Ord + Send + 'static>(
    builder: Builder,
    model: impl Fn() -> T + Send + Sync + 'static,
) -> BTreeSet<T> {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let executions = Arc::new(AtomicUsize::new(0));
    builder.check({
        let (seen, executions) = (seen.clone(), executions.clone());
        move || {
            executions.fetch_add(1, Relaxed);
            let outcome = model();
            seen.lock().unwrap().insert(outcome);
        }
    });
    println!("{} executions", executions.load(Relaxed));
    std::mem::take(&mut *seen.lock().unwrap())
}

/// As loom's, but safe from its issue 392: it stops exploring when a new thread
/// begins with an atomic load.
pub(crate) fn spawn<T: 'static>(body: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    let begun = AtomicU32::new(0);
    thread::spawn(move || {
        begun.store(1, Relaxed);
        body()
    })
}

/// A number that loom watches: reading it before it was made, or at once with its
/// end, fails the model.
pub(crate) struct Probe(UnsafeCell<u32>);

// SAFETY: loom checks every access; the models look for races.
unsafe impl Send for Probe {}
// SAFETY: as above.
unsafe impl Sync for Probe {}

impl Probe {
    pub(crate) fn new(value: u32) -> Probe {
        Probe(UnsafeCell::new(value))
    }

    pub(crate) fn read(&self) -> u32 {
        // SAFETY: loom fails the model if a write is not ordered before or after.
        self.0.with(|value| unsafe { *value })
    }

    /// The caller claims that no other thread accesses it.
    pub(crate) fn add(&self, more: u32) {
        // SAFETY: loom fails the model if any other access is at once with this.
        self.0.with_mut(|value| unsafe { *value += more })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // SAFETY: as in `add`.
        self.0.with_mut(|value| unsafe { *value = u32::MAX });
    }
}
