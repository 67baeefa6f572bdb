//! What a thread does, again and again, and how fast.

use std::ffi::CString;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::ChangeError;
use super::side::{Dir, Side};
use crate::measure::{Lap, Together};

/// Files in a lap.
const FILES: usize = 256;

/// A part of a lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Empty files are made.
    Create,
    /// Each gets another name in the same directory.
    Rename,
    /// All are removed.
    Unlink,
}

impl Op {
    /// In the order of a lap.
    pub const ALL: [Op; 3] = [Op::Create, Op::Rename, Op::Unlink];
}

/// One thread's work: its directory, and the names.
struct Lane<'a> {
    dir: Box<dyn Dir + 'a>,
    old: Vec<CString>,
    new: Vec<CString>,
}

impl<'a> Lane<'a> {
    fn new(side: &'a dyn Side, thread: usize) -> Result<Lane<'a>, ChangeError> {
        let name = |prefix: &str, n: usize| {
            CString::new(format!("{prefix}{n:05}.txt")).expect("a name without NUL")
        };
        Ok(Lane {
            dir: side.dir(&format!("lane{thread}"))?,
            old: (0..FILES).map(|n| name("file", n)).collect(),
            new: (0..FILES).map(|n| name("moved", n)).collect(),
        })
    }

    /// One part of a lap, timed.
    fn run(&self, op: Op) -> Result<Lap, String> {
        let start = Instant::now();
        match op {
            Op::Create => self.old.iter().try_for_each(|name| self.dir.create(name)),
            Op::Rename => (self.old.iter().zip(&self.new))
                .try_for_each(|(old, new)| self.dir.rename(old, new)),
            Op::Unlink => self.new.iter().try_for_each(|name| self.dir.unlink(name)),
        }?;
        Ok(Lap {
            ops: FILES as u64,
            time: start.elapsed(),
        })
    }
}

/// Does a lap on each side, and compares the directories after each operation.
pub(super) fn check_same(sides: [&dyn Side; 2]) -> Result<(), ChangeError> {
    let [ours, theirs] = [Lane::new(sides[0], 0)?, Lane::new(sides[1], 0)?];
    for op in Op::ALL {
        let mut lists = Vec::new();
        for lane in [&ours, &theirs] {
            let list = lane.run(op).and_then(|_| lane.dir.list());
            lists.push(list.map_err(ChangeError::Differ)?);
        }
        let expected = if op == Op::Unlink { 0 } else { FILES };
        if lists[0] != lists[1] || lists[0].len() != expected {
            return Err(ChangeError::Differ(format!(
                "after {op:?}, {} and {} names are there, or others",
                lists[0].len(),
                lists[1].len()
            )));
        }
    }
    Ok(())
}

/// How fast one side was in one round.
pub(super) struct Rates {
    pub(super) side: &'static str,
    pub(super) threads: usize,
    /// Operations per second of all threads together, by operation.
    pub(super) per_second: [f64; 3],
}

impl Rates {
    /// So many threads, each in a directory of its own, for so long.
    pub(super) fn measure(
        side: &dyn Side,
        threads: usize,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Rates, ChangeError> {
        let done: Vec<_> = (0..threads)
            .map(|_| Mutex::new([Lap::default(); 3]))
            .collect();
        let failure = Mutex::new(None);
        let together = Together { threads, time };
        together.run_to_deadline(
            |thread| {
                let lane = Lane::new(side, thread).map_err(io::Error::other)?;
                let (done, failure) = (&done[thread], &failure);
                Ok(move || {
                    for (at, op) in Op::ALL.into_iter().enumerate() {
                        match lane.run(op) {
                            Ok(lap) => add(&mut lock(done)[at], lap),
                            Err(why) => *lock(failure) = Some((op, why)),
                        }
                    }
                    3 * FILES as u64
                })
            },
            stop,
        )?;
        if let Some((op, why)) = lock(&failure).take() {
            return Err(ChangeError::Failed {
                side: side.name(),
                what: match op {
                    Op::Create => "create",
                    Op::Rename => "rename",
                    Op::Unlink => "unlink",
                },
                why,
            });
        }
        let rate = |op: usize| {
            let rates = done.iter().map(|done| {
                let Lap { ops, time } = lock(done)[op];
                ops as f64 / time.as_secs_f64()
            });
            rates.sum()
        };
        Ok(Rates {
            side: side.name(),
            threads,
            per_second: [rate(0), rate(1), rate(2)],
        })
    }
}

fn add(sum: &mut Lap, lap: Lap) {
    sum.ops += lap.ops;
    sum.time += lap.time;
}

/// Nothing panics while these are held.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
