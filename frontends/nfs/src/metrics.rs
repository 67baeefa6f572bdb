//! Metrics of a server: how many calls of each kind there were, and how long they took.

use std::array;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::mount;
use crate::ops;
use crate::server::Shared;

/// Bounds of the histograms: 1 µs, 2 µs, 4 µs … 8.4 s, and beyond.
const BOUNDS: usize = 24;

const KINDS: usize = ops::PROCEDURES.len() + mount::PROCEDURES.len();

/// A kind of call: its index in the counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind(usize);

impl Kind {
    pub(crate) fn nfs(procedure: usize) -> Kind {
        Kind(procedure)
    }

    pub(crate) fn mount(procedure: usize) -> Kind {
        Kind(ops::PROCEDURES.len() + procedure)
    }

    pub(crate) fn name(self) -> String {
        match ops::PROCEDURES.get(self.0) {
            Some(procedure) => procedure.name.to_owned(),
            None => format!(
                "mount_{}",
                mount::PROCEDURES[self.0 - ops::PROCEDURES.len()]
            ),
        }
    }
}

/// The counters of one server.
pub(crate) struct Metrics {
    kinds: [Counters; KINDS],
    in_flight: AtomicUsize,
    /// Calls that were not executed: malformed, unknown, or not allowed.
    pub(crate) refused: AtomicU64,
    /// Calls that were answered by a reply that was kept.
    pub(crate) repeated: AtomicU64,
    /// Connections that were not accepted, or cut.
    pub(crate) cut: AtomicU64,
    /// Calls that have failed by a fault of ours.
    pub(crate) faults: AtomicU64,
}

#[derive(Default)]
struct Counters {
    within: [AtomicU64; BOUNDS + 1],
    nanos: AtomicU64,
    errors: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            kinds: array::from_fn(|_| Counters::default()),
            in_flight: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        }
    }

    /// Runs `work`, which returns whether it has succeeded, and counts it.
    pub(crate) fn measure<T>(&self, kind: Kind, work: impl FnOnce() -> (T, bool)) -> T {
        self.in_flight.fetch_add(1, Relaxed);
        let begin = Instant::now();
        let (done, is_ok) = work();
        let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let counters = &self.kinds[kind.0];
        counters.nanos.fetch_add(nanos, Relaxed);
        counters.errors.fetch_add(u64::from(!is_ok), Relaxed);
        counters.within[bucket(nanos)].fetch_add(1, Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
        done
    }

    fn operations(&self) -> Vec<OperationStatistics> {
        let all = self.kinds.iter().enumerate();
        let all = all.map(|(kind, counters)| OperationStatistics {
            name: Kind(kind).name(),
            errors: counters.errors.load(Relaxed),
            time: Duration::from_nanos(counters.nanos.load(Relaxed)),
            within: counters.within.iter().map(|n| n.load(Relaxed)).collect(),
        });
        all.filter(|operation| operation.count() > 0).collect()
    }
}

/// The first bound that is not below `nanos`.
fn bucket(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000).max(1);
    let log = micros.next_power_of_two().trailing_zeros() as usize;
    log.min(BOUNDS)
}

/// Counters of one kind of call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OperationStatistics {
    /// The procedure: `lookup`; those of the MOUNT protocol are `mount_mnt` and the like.
    pub name: String,
    /// Number of errors; a missing name counts as one.
    pub errors: u64,
    /// The total time of all of them.
    pub time: Duration,
    /// Number of calls by time: each count is of those that took longer than the previous bound
    /// ([`OperationStatistics::bounds`]), and not longer than this one; the last is of those beyond
    /// all bounds.
    pub within: Vec<u64>,
}

impl OperationStatistics {
    /// The number of calls.
    pub fn count(&self) -> u64 {
        self.within.iter().sum()
    }

    /// The bounds of [`OperationStatistics::within`].
    pub fn bounds() -> impl Iterator<Item = Duration> {
        (0..BOUNDS).map(|log| Duration::from_micros(1 << log))
    }
}

/// Statistics of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// Connections that are open.
    pub connections: usize,
    /// Connections that were not accepted, or cut: too many, too slow, or of no client.
    pub cut: u64,
    /// Calls that are being answered.
    pub in_flight: usize,
    /// Calls that were not executed: malformed, unknown, or not allowed.
    pub refused: u64,
    /// Calls that had been executed when they came again.
    pub repeated: u64,
    /// Calls that have failed by a fault of the server: there should be none.
    pub faults: u64,
    /// Files that are held for clients.
    pub files: usize,
    /// Files that are open for later reads and writes.
    pub open: usize,
    /// Bytes of requests and answers that are waiting for the rest, or for their client.
    pub waiting_bytes: usize,
    /// Each kind of call that there was.
    pub operations: Vec<OperationStatistics>,
    /// The caches behind it.
    pub vfs: rcuwalk::Statistics,
}

/// Reads the statistics of a server, from any thread, without keeping it alive.
#[derive(Clone)]
pub struct Observer(pub(crate) Weak<Shared>);

impl Observer {
    /// Returns the statistics. `None` once the server has ended. Waits for no call.
    pub fn statistics(&self) -> Option<Statistics> {
        let shared = self.0.upgrade()?;
        let (dispatcher, connections) = (&shared.dispatcher, &shared.connections);
        let (export, metrics) = (&dispatcher.export, &dispatcher.metrics);
        Some(Statistics {
            connections: connections.len(),
            cut: metrics.cut.load(Relaxed),
            in_flight: metrics.in_flight.load(Relaxed),
            refused: metrics.refused.load(Relaxed),
            repeated: metrics.repeated.load(Relaxed),
            faults: metrics.faults.load(Relaxed),
            files: export.files.len(),
            open: export.opened.len(),
            waiting_bytes: connections.waiting_bytes(),
            operations: metrics.operations(),
            vfs: export.vfs.statistics(),
        })
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer(..)")
    }
}
