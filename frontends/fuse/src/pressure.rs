//! Limits how many nodes the kernel holds, and calls the worker when there are too many.
//!
//! ```text
//!   0                        target   start   most   slow          1.1 × most
//!   |--------------------------|--------|-------|------|---------------|
//!                       the worker     it is   the    requests for
//!                       stops here     called  limit  more wait a little
//! ```
//!
//! Handlers count and call the worker; they never ask the kernel for anything. A handler waits
//! with nothing locked, half a millisecond at most, and one thread always goes on, to take the
//! FORGETs. When the worker has found that all nodes are in use, no handler waits.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::{Error, Result};

use crate::interrupt;

/// The longest wait of a handler.
const A_LITTLE: Duration = Duration::from_micros(500);

/// Counters of nodes, and of the work that keeps them few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatistics {
    /// Nodes that the kernel holds, give or take requests under way.
    pub nodes: usize,
    /// The most that the kernel has held.
    pub peak: usize,
    /// The limit, beside nodes in use.
    pub max: usize,
    /// FORGETs that the kernel has sent, each for one node.
    pub forgets: u64,
    /// Nodes that the kernel has been asked to drop unless it uses them.
    pub asked: u64,
    /// Those of them whose name the kernel no longer knew. Asked by node id, as from Linux 6.18
    /// on, the kernel does not say.
    pub unknown: u64,
    /// Those for which the notification failed.
    pub failed: u64,
    /// Times that nearly all nodes were found in use, and the worker rested.
    pub in_use: u64,
    /// Requests that have waited a little because there were too many nodes.
    pub slowed: u64,
}

/// See the module.
pub(crate) struct Pressure {
    most: usize,
    /// There are never more, for a kernel that cannot be asked for nodes back.
    bound: usize,
    /// Handlers that may wait at the same time.
    may_wait: usize,
    waiting: AtomicUsize,
    /// Set by the handler that calls the worker, until the worker is done.
    called: AtomicBool,
    /// Waiting does not help: the nodes are in use.
    is_in_use: AtomicBool,
    /// The worker rests until there are more nodes than this.
    rests_until: AtomicUsize,
    is_over: Mutex<bool>,
    bell: Condvar,
    pub(crate) counts: Counts,
}

#[derive(Default)]
pub(crate) struct Counts {
    peak: AtomicUsize,
    pub(crate) forgets: AtomicU64,
    pub(crate) asked: AtomicU64,
    pub(crate) unknown: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) in_use: AtomicU64,
    slowed: AtomicU64,
}

impl Pressure {
    /// Limits the nodes to `most`, with that number of handlers.
    pub(crate) fn new(most: usize, handlers: usize) -> Pressure {
        Pressure {
            most,
            bound: usize::MAX,
            may_wait: handlers.saturating_sub(1),
            waiting: AtomicUsize::new(0),
            called: AtomicBool::new(false),
            is_in_use: AtomicBool::new(false),
            rests_until: AtomicUsize::new(usize::MAX),
            is_over: Mutex::new(false),
            bell: Condvar::new(),
            counts: Counts::default(),
        }
    }

    /// Limits the nodes to `bound` in any case.
    pub(crate) fn bounded(self, bound: usize) -> Pressure {
        Pressure { bound, ..self }
    }

    /// # Errors
    /// `ENFILE` if there are as many nodes as there may be.
    pub(crate) fn has_room(&self, nodes: usize) -> Result<()> {
        match nodes < self.bound {
            true => Ok(()),
            false => Err(Error::io(io::Error::from_raw_os_error(libc::ENFILE))),
        }
    }

    /// The limit, beside nodes in use.
    pub(crate) fn most(&self) -> usize {
        self.most.min(self.bound)
    }

    /// The number of nodes at which the worker stops.
    pub(crate) fn target(&self) -> usize {
        self.most - self.most / 8
    }

    /// The number of nodes above which the worker is called.
    fn start(&self) -> usize {
        self.most - self.most / 16
    }

    /// Records that the kernel now holds `nodes` nodes: called with each that is handed out.
    pub(crate) fn are(&self, nodes: usize) {
        if nodes > self.counts.peak.load(Relaxed) {
            self.counts.peak.fetch_max(nodes, Relaxed);
        }
        if nodes > self.start() && !self.called.load(Relaxed) && !self.called.swap(true, Relaxed) {
            self.ring();
        }
        if nodes > self.rests_until.load(Relaxed) {
            self.rests_until.store(usize::MAX, Relaxed);
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // The worker checks its condition under the lock, so it has seen the change or hears
        // the bell.
        let _looks = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        self.bell.notify_all();
    }

    /// Lets a handler wait a little before it hands out more nodes. Called with nothing locked.
    pub(crate) fn slow_down(&self, nodes: usize) {
        if nodes > self.most + self.most / 32 && !self.is_in_use.load(Relaxed) {
            self.slow_down_slow();
        }
    }

    #[cold]
    fn slow_down_slow(&self) {
        if !interrupt::is_wanted() {
            return;
        }
        if self.waiting.fetch_add(1, Relaxed) < self.may_wait {
            self.counts.slowed.fetch_add(1, Relaxed);
            thread::sleep(A_LITTLE);
        }
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// For the worker: waits until it is called. False when the session is over.
    pub(crate) fn wait_for_call(&self) -> bool {
        let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_over && !self.called.load(Relaxed) {
            let woken = self.bell.wait(is_over);
            is_over = woken.unwrap_or_else(PoisonError::into_inner);
        }
        !*is_over
    }

    /// For the worker: it is done, and may be called again.
    pub(crate) fn relieved(&self) {
        self.called.store(false, Relaxed);
    }

    /// For the worker: rests for that long. False when the session is over.
    pub(crate) fn rest(&self, time: Duration) -> bool {
        self.rest_while(time, || true)
    }

    fn rest_while(&self, time: Duration, may_rest: impl Fn() -> bool) -> bool {
        let end = Instant::now() + time;
        let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_over {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !may_rest() {
                return true;
            }
            // The bell also rings for other reasons.
            let woken = self.bell.wait_timeout(is_over, left);
            is_over = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// For the worker: rests because `nodes` are in use, for `time` or until there are a
    /// sixteenth of the budget more, which may not be in use. False when the session is over.
    pub(crate) fn rest_in_use(&self, nodes: usize, time: Duration) -> bool {
        self.rests_until.store(nodes + self.most / 16, Relaxed);
        let rested = self.rest_while(time, || self.rests_until.load(Relaxed) != usize::MAX);
        self.rests_until.store(usize::MAX, Relaxed);
        rested
    }

    /// For the worker: records whether nearly all nodes are in use.
    pub(crate) fn set_in_use(&self, is_in_use: bool) {
        self.is_in_use.store(is_in_use, Relaxed);
        if is_in_use {
            self.counts.in_use.fetch_add(1, Relaxed);
        }
    }

    /// Ends the session, and with it the worker.
    pub(crate) fn end(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }

    pub(crate) fn statistics(&self, nodes: usize) -> NodeStatistics {
        let Counts {
            peak,
            forgets,
            asked,
            unknown,
            failed,
            in_use,
            slowed,
        } = &self.counts;
        NodeStatistics {
            nodes,
            peak: peak.load(Relaxed).max(nodes),
            max: self.most.min(self.bound),
            forgets: forgets.load(Relaxed),
            asked: asked.load(Relaxed),
            unknown: unknown.load(Relaxed),
            failed: failed.load(Relaxed),
            in_use: in_use.load(Relaxed),
            slowed: slowed.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NODE-2: handlers that need nodes wait a little while there are too many, all but one of
    /// them, and none when waiting does not help.
    #[test]
    fn handlers_wait_a_little_and_never_all_of_them() {
        let pressure = Pressure::new(1000, 2);
        pressure.slow_down(1000);
        assert_eq!(pressure.statistics(0).slowed, 0, "NODE-2: not too many");
        pressure.slow_down(1100);
        assert_eq!(pressure.statistics(0).slowed, 1, "NODE-2");
        pressure.waiting.store(1, Relaxed);
        pressure.slow_down(1100);
        assert_eq!(pressure.statistics(0).slowed, 1, "NODE-2: one goes on");
        pressure.waiting.store(0, Relaxed);
        pressure.set_in_use(true);
        pressure.slow_down(1100);
        assert_eq!(pressure.statistics(0).slowed, 1, "NODE-2: no use");
        let alone = Pressure::new(1000, 1);
        alone.slow_down(5000);
        assert_eq!(
            alone.statistics(0).slowed,
            0,
            "NODE-2: nobody else is there"
        );
    }

    /// NODE-2: the worker hears a call that comes before it waits, and the end wherever it
    /// waits or rests.
    #[test]
    fn calls_and_the_end_are_heard() {
        let pressure = Pressure::new(1000, 2);
        pressure.are(950);
        assert!(pressure.wait_for_call(), "NODE-2: called before");
        pressure.relieved();
        thread::scope(|scope| {
            let worker = scope.spawn(|| pressure.wait_for_call());
            thread::sleep(Duration::from_millis(20));
            pressure.are(100);
            pressure.are(950);
            assert!(worker.join().unwrap(), "NODE-2: called while it waits");
            let worker = scope.spawn(|| pressure.rest_in_use(2000, Duration::from_secs(3600)));
            thread::sleep(Duration::from_millis(20));
            pressure.are(2050);
            assert!(!worker.is_finished(), "NODE-2: a few more");
            pressure.are(2100);
            assert!(worker.join().unwrap(), "NODE-2: many more");
            pressure.relieved();
            let waiting = scope.spawn(|| pressure.wait_for_call());
            let resting = scope.spawn(|| pressure.rest(Duration::from_secs(3600)));
            thread::sleep(Duration::from_millis(20));
            pressure.end();
            assert!(!waiting.join().unwrap(), "NODE-2: the end");
            assert!(!resting.join().unwrap(), "NODE-2: the end");
        });
        assert!(!pressure.wait_for_call() && !pressure.rest(Duration::ZERO));
    }
}
