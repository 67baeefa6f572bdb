//! How long a walk takes while names change: nothing that a change holds may be something
//! that a walk's hit path waits for.

use std::ffi::CString;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::ChangeError;
use super::side::{Dir, Side};
use crate::measure::Together;

/// The path that is walked: five components from the side's root.
const DIR: &str = "walked/by/many/threads";
const FILE: &str = "file";

/// Walks between two looks at the stop flag.
const BATCH: u64 = 64;
/// Renames between two looks at it.
const RENAMES: u64 = 64;
/// Names and inodes that the cache has room for where a thread evicts...
pub(super) const ROOM: usize = 4096;
/// ...and the files that it looks up in turn: none is cached any more when its turn comes.
const FILES: usize = 4 * ROOM;

/// What happens beside the walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storm {
    /// Nothing.
    Quiet,
    /// Another thread renames a file to and fro in a directory apart from the path.
    Elsewhere,
    /// Another thread renames a file to and fro in the directory of the file that is
    /// walked to.
    SameDirectory,
    /// Another thread looks up files apart from the path, more than the cache has room for, so
    /// each lookup evicts.
    Evicting,
}

impl Storm {
    /// Of renames. Quiet first: what the others are compared with.
    pub const OF_RENAMES: [Storm; 3] = [Storm::Quiet, Storm::Elsewhere, Storm::SameDirectory];
    /// Beside a small cache.
    pub const OF_LOOKUPS: [Storm; 2] = [Storm::Quiet, Storm::Evicting];
}

/// What one side's walks took in one round.
pub(super) struct Walks {
    pub(super) side: &'static str,
    pub(super) storm: Storm,
    /// Nanoseconds: the median, and what 99 and 99.9 of a hundred walks stayed below.
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    /// Renames per second meanwhile, and evictions, if the side counts those.
    pub(super) renames: f64,
    pub(super) evictions: Option<f64>,
    /// Walks per million that left RCU and continued or restarted with references, if the side
    /// counts them.
    pub(super) slow_per_million: Option<f64>,
}

impl Walks {
    pub(super) fn measure(
        side: &dyn Side,
        storm: Storm,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Walks, ChangeError> {
        let path = CString::new(format!("{DIR}/{FILE}")).expect("no NUL");
        prepare(side, &path)?;
        let (took, missed) = (Mutex::new(Histogram::new()), AtomicU64::new(0));
        let renamed = AtomicU64::new(0);
        if storm == Storm::Evicting {
            make_many(side)?;
        }
        let (slow_before, evicted_before) = (side.slow_walks(), side.evictions());
        let together = Together {
            threads: if storm == Storm::Quiet { 1 } else { 2 },
            time,
        };
        let others = |err: ChangeError| io::Error::other(err);
        let start = Instant::now();
        together.run_to_deadline(
            |thread| {
                let work: Box<dyn FnMut() -> u64> = if thread == 0 {
                    let root = side.dir("").map_err(others)?;
                    let (path, took, missed) = (&path, &took, &missed);
                    Box::new(move || {
                        let mut took = took
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner);
                        for _ in 0..BATCH {
                            let start = Instant::now();
                            let found = root.stat(path);
                            took.add(start.elapsed());
                            if found != Ok(true) {
                                missed.fetch_add(1, Relaxed);
                            }
                        }
                        BATCH
                    })
                } else {
                    let dir = |path| side.dir(path).map_err(others);
                    match storm {
                        Storm::SameDirectory => rename_to_and_fro(dir(DIR)?, &renamed),
                        Storm::Evicting => look_up_in_turn(dir(MANY)?),
                        _ => rename_to_and_fro(dir("stormy")?, &renamed),
                    }
                };
                Ok(work)
            },
            stop,
        )?;
        let elapsed = start.elapsed().as_secs_f64();
        if missed.load(Relaxed) > 0 {
            return Err(ChangeError::Differ(format!(
                "{}: a file that nobody touched was not found in {} walks",
                side.name(),
                missed.load(Relaxed)
            )));
        }
        let took = took
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let slow = side.slow_walks().zip(slow_before);
        let evicted = side.evictions().zip(evicted_before);
        let evictions = evicted.map(|(now, before)| (now - before) as f64 / elapsed);
        if storm == Storm::Evicting && evictions.is_none_or(|rate| rate == 0.0) {
            return Err(ChangeError::Differ(format!(
                "{}: nothing was evicted",
                side.name()
            )));
        }
        Ok(Walks {
            side: side.name(),
            storm,
            p50: took.below(0.5),
            p99: took.below(0.99),
            p999: took.below(0.999),
            renames: renamed.load(Relaxed) as f64 / elapsed,
            evictions,
            slow_per_million: slow
                .map(|(now, before)| (now - before) as f64 * 1e6 / took.count.max(1) as f64),
        })
    }
}

fn prepare(side: &dyn Side, path: &CString) -> Result<(), ChangeError> {
    let failed = |why| ChangeError::Failed {
        side: side.name(),
        what: "prepare the walked file",
        why,
    };
    let (dir, root) = (side.dir(DIR)?, side.dir("")?);
    if !root.stat(path).map_err(failed)? {
        let name = CString::new(FILE).expect("no NUL");
        dir.create(&name).map_err(failed)?;
    }
    Ok(())
}

fn rename_to_and_fro<'a>(
    dir: Box<dyn Dir + 'a>,
    renamed: &'a AtomicU64,
) -> Box<dyn FnMut() -> u64 + 'a> {
    let [mut from, mut to] = ["here", "there"].map(|name| CString::new(name).expect("no NUL"));
    // Whatever the round before has left.
    if dir.stat(&to) == Ok(true) {
        std::mem::swap(&mut from, &mut to);
    } else if dir.stat(&from) != Ok(true) {
        // If it cannot be made, no rename is counted, and that shows.
        let _ = dir.create(&from);
    }
    Box::new(move || {
        for _ in 0..RENAMES {
            if dir.rename(&from, &to).is_ok() {
                renamed.fetch_add(1, Relaxed);
                std::mem::swap(&mut from, &mut to);
            }
        }
        RENAMES
    })
}

/// The directory of the files that are looked up in turn.
const MANY: &str = "many";

fn many() -> Vec<CString> {
    let name = |number| CString::new(format!("f{number}")).expect("no NUL");
    (0..FILES).map(name).collect()
}

fn make_many(side: &dyn Side) -> Result<(), ChangeError> {
    let failed = |why| ChangeError::Failed {
        side: side.name(),
        what: "make many files",
        why,
    };
    let (dir, names) = (side.dir(MANY)?, many());
    if dir.stat(&names[0]).map_err(failed)? {
        // An earlier round has made them.
        return Ok(());
    }
    names
        .iter()
        .try_for_each(|name| dir.create(name).map_err(failed))
}

fn look_up_in_turn<'a>(dir: Box<dyn Dir + 'a>) -> Box<dyn FnMut() -> u64 + 'a> {
    let (names, mut next) = (many(), 0);
    Box::new(move || {
        for _ in 0..RENAMES {
            let _ = dir.stat(&names[next % FILES]);
            next += 1;
        }
        RENAMES
    })
}

/// How many walks took how many nanoseconds.
struct Histogram {
    /// A bucket per nanosecond, up to a time that is hardly ever seen; the last bucket counts
    /// the rest.
    buckets: Vec<u32>,
    count: u64,
}

impl Histogram {
    const LONGEST: usize = 1 << 17;

    fn new() -> Histogram {
        Histogram {
            buckets: vec![0; Self::LONGEST],
            count: 0,
        }
    }

    fn add(&mut self, took: Duration) {
        let at = (took.as_nanos() as usize).min(Self::LONGEST - 1);
        self.buckets[at] += 1;
        self.count += 1;
    }

    /// What a share of all walks stayed below.
    fn below(&self, share: f64) -> f64 {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (ns, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                return ns as f64;
            }
        }
        Self::LONGEST as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_walks_stays_below() {
        let mut took = Histogram::new();
        for ns in 1..=100 {
            took.add(Duration::from_nanos(ns));
        }
        assert_eq!([took.below(0.5), took.below(0.99)], [50.0, 99.0]);
        took.add(Duration::from_secs(1));
        assert_eq!(took.below(1.0), (Histogram::LONGEST - 1) as f64);
    }
}
