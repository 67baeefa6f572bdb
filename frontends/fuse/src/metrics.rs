//! Metrics of a mount: how many requests of each kind there were, and how long they took.
//!
//! Each request adds to three counters of its thread's share ([`Shard`]): no lock, and no cache
//! line that other threads write. With the two clock reads that is some 150 ns, a hundredth of
//! the time that the shortest request takes through the kernel. Readers sum the shares.

use std::array;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rcuwalk::Result;

use crate::pressure::NodeStatistics;
use crate::pushed::ToldStatistics;
use crate::watch::Stuck;
use crate::wire::{Handler, Opcode};

/// More threads than this share.
const SHARDS: usize = 16;

/// Bounds of the histograms: 1 µs, 2 µs, 4 µs … 8.4 s, and beyond.
const BOUNDS: usize = 24;

/// The counters of one mount.
pub(crate) struct Metrics {
    shards: [Shard; SHARDS],
}

/// What some of the threads have counted, by [`Opcode`].
// Two cache lines: processors fetch them in pairs.
#[repr(align(128))]
struct Shard {
    begun: AtomicU64,
    ops: [Counters; Opcode::ALL.len()],
}

/// One operation's counters.
#[derive(Default)]
struct Counters {
    /// Number of requests that took longer than the previous bound, and not longer than this
    /// one.
    within: [AtomicU64; BOUNDS + 1],
    nanos: AtomicU64,
    errors: AtomicU64,
}

/// This thread's share.
fn shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    MINE.with(|mine| {
        mine.get().unwrap_or_else(|| {
            let next = THREADS.fetch_add(1, Relaxed) % SHARDS;
            mine.set(Some(next));
            next
        })
    })
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            shards: array::from_fn(|_| Shard {
                begun: AtomicU64::new(0),
                ops: array::from_fn(|_| Counters::default()),
            }),
        }
    }

    /// Runs `work`, and counts it.
    pub(crate) fn measure<T>(&self, op: Opcode, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let shard = &self.shards[shard()];
        shard.begun.fetch_add(1, Relaxed);
        let begin = Instant::now();
        let done = work();
        let time = begin.elapsed();
        let counters = &shard.ops[op as usize];
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        counters.nanos.fetch_add(nanos, Relaxed);
        if done.is_err() {
            counters.errors.fetch_add(1, Relaxed);
        }
        // Last: a reader that loads in this order, and `begun` at the end, never sees a request
        // end before it begins.
        counters.within[bucket(nanos)].fetch_add(1, Relaxed);
        match &done {
            Ok(_) => tracing::debug!(?time, "done"),
            Err(err) => tracing::debug!(?time, errno = err.errno(), "refused"),
        }
        done
    }

    /// Sums all shares: returns each operation that has occurred, and the number of requests
    /// under way.
    fn sum(&self) -> (Vec<OperationStatistics>, u64) {
        let operations: Vec<OperationStatistics> = Opcode::ALL
            .iter()
            .map(|op| self.operation(*op))
            .filter(|operation| operation.count() > 0)
            .collect();
        let over: u64 = operations.iter().map(OperationStatistics::count).sum();
        let begun: u64 = self.shards.iter().map(|s| s.begun.load(Relaxed)).sum();
        (operations, begun.saturating_sub(over))
    }

    fn operation(&self, op: Opcode) -> OperationStatistics {
        let mut sum = OperationStatistics {
            name: snake_case(&format!("{op:?}")),
            errors: 0,
            time: Duration::ZERO,
            within: vec![0; BOUNDS + 1],
        };
        for shard in &self.shards {
            let counters = &shard.ops[op as usize];
            for (total, part) in sum.within.iter_mut().zip(&counters.within) {
                *total += part.load(Relaxed);
            }
            sum.errors += counters.errors.load(Relaxed);
            sum.time += Duration::from_nanos(counters.nanos.load(Relaxed));
        }
        sum
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// The first bound that is not below `nanos`.
fn bucket(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000).max(1);
    let log = micros.next_power_of_two().trailing_zeros() as usize;
    log.min(BOUNDS)
}

/// Counters of one kind of request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OperationStatistics {
    /// FUSE's name for it: `lookup`.
    pub name: String,
    /// Number of errors; a missing name counts as one.
    pub errors: u64,
    /// The total time of all of them.
    pub time: Duration,
    /// Number of requests by time: each count is of those that took longer than the previous
    /// bound ([`OperationStatistics::bounds`]), and not longer than this one; the last is of those beyond
    /// all bounds.
    pub within: Vec<u64>,
}

impl OperationStatistics {
    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.within.iter().sum()
    }

    /// The bounds of [`OperationStatistics::within`].
    pub fn bounds() -> impl Iterator<Item = Duration> {
        (0..BOUNDS).map(|log| Duration::from_micros(1 << log))
    }

    /// Returns a bound within which this fraction of the requests stayed. `None` if there is
    /// none.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = part * self.count() as f64;
        let mut sum = 0;
        let mut bounds = OperationStatistics::bounds().zip(&self.within);
        bounds.find_map(|(bound, within)| {
            sum += within;
            (sum as f64 >= wanted && sum > 0).then_some(bound)
        })
    }
}

/// Statistics of a mount: requests and resources.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// Nodes that the kernel knows.
    pub nodes: usize,
    /// The work that keeps the number of nodes low.
    pub node_budget: NodeStatistics,
    /// Files and directories that are open through it.
    pub open: usize,
    /// Requests that are being answered.
    pub in_flight: u64,
    /// Those of them that are stuck, and the threads that answer.
    pub stuck: Stuck,
    /// Notices of changes that were sent to the kernel.
    pub told: ToldStatistics,
    /// Each kind of request that there was.
    pub operations: Vec<OperationStatistics>,
    /// The caches behind it.
    pub vfs: rcuwalk::Statistics,
}

/// Reads the statistics of a mount, from any thread, without keeping the mount alive.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn() -> Option<Statistics> + Send + Sync>);

impl Observer {
    pub(crate) fn of(handler: &Arc<Handler>) -> Observer {
        let handler = Arc::downgrade(handler);
        Observer::by(move || Some(Statistics::of(&*handler.upgrade()?)))
    }

    pub(crate) fn by(look: impl Fn() -> Option<Statistics> + Send + Sync + 'static) -> Observer {
        Observer(Arc::new(look))
    }

    /// Returns the statistics. `None` once it is not mounted any more. Waits for no request.
    pub fn statistics(&self) -> Option<Statistics> {
        (self.0)()
    }
}

impl Statistics {
    pub(crate) fn of(handler: &Handler) -> Statistics {
        let (operations, in_flight) = handler.metrics.sum();
        Statistics {
            nodes: handler.ops.nodes(),
            node_budget: handler.ops.node_statistics(),
            open: handler.ops.open(),
            in_flight,
            stuck: handler.watch.stuck(),
            told: handler.ops.pushed.statistics(),
            operations,
            vfs: handler.ops.vfs_statistics(),
        }
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer(..)")
    }
}

#[cfg(test)]
mod tests {
    use rcuwalk::Error;

    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_it_is_not_beyond() {
        for (nanos, expected) in [
            (0, 0),
            (1000, 0),
            (1001, 1),
            (2000, 1),
            (2001, 2),
            (8_388_608_000, 23),
            (8_388_608_001, 24),
            (u64::MAX, 24),
        ] {
            assert_eq!(bucket(nanos), expected, "{nanos}");
        }
        assert_eq!(
            OperationStatistics::bounds().last(),
            Some(Duration::from_micros(8_388_608))
        );
    }

    #[test]
    fn names_are_in_small_letters() {
        assert_eq!(snake_case("CopyFileRange"), "copy_file_range");
    }

    #[test]
    fn what_all_threads_did_is_summed() {
        let metrics = Metrics::new();
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    let _ = metrics.measure(Opcode::Lookup, || Err::<(), _>(Error::NotFound));
                    let _ = metrics.measure(Opcode::Getattr, || Ok(()));
                });
            }
        });
        let seen = metrics.measure(Opcode::Read, || Ok(metrics.sum()));
        let (operations, in_flight) = seen.unwrap();
        assert_eq!(in_flight, 1, "the one that asks");
        let seen: Vec<_> = operations
            .iter()
            .map(|op| (&*op.name, op.count(), op.errors))
            .collect();
        assert_eq!(seen, [("lookup", 40, 40), ("getattr", 40, 0)]);
        assert!(operations[0].quantile(1.0).is_some());
    }

    /// Sets no bound, but measures the figure in `metrics.rs`: `cargo test -- --ignored
    /// --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn what_measuring_costs() {
        let metrics = Metrics::new();
        let rounds: u32 = 10_000_000;
        let begin = Instant::now();
        for _ in 0..rounds {
            let _ = metrics.measure(Opcode::Getattr, || Ok(std::hint::black_box(0)));
        }
        println!("{:?} for each", begin.elapsed() / rounds);
    }
}
