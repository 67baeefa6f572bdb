//! One turn: one scheme's caches are filled, then the trees are walked, timed.
//!
//! The caches are new for each turn. First they are filled by walking other trees, not
//! timed: from then on each inode read in pushes one out, as in the middle of a long
//! scan, and nothing of what the timed walk asks for is cached.

use std::io;
use std::ops::Range;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::inode::{InodeStatistics, Scheme};
use rcuwalk_sync::rcu;

use super::subject::{CHUNK, Digest, Level, Subject};
use super::synth::Shape;
use super::{WalkTrees, WalkTreesError};
use crate::usage::{CpuTime, machine_busy, peak_memory, reset_peak_memory};

/// One of ours: a way of locking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) scheme: Scheme,
}

/// What one timed walk of all trees took.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) seen: Digest,
    pub(super) total: Duration,
    pub(super) cpu: CpuTime,
    /// Processor time of all other programs meanwhile.
    pub(super) others: Duration,
    pub(super) counts: Counts,
    /// Of the process, the filling of the caches included; in bytes.
    pub(super) peak_memory: u64,
}

/// What the inode cache did meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) hits: u64,
    pub(super) first_failed: u64,
    pub(super) second_hits: u64,
    /// Second looks that failed: each inserts an inode.
    pub(super) inserted: u64,
    pub(super) evicted: u64,
    pub(super) lookup_locks: u64,
    pub(super) insert_locks: u64,
    pub(super) evict_locks: u64,
    pub(super) contended: u64,
    pub(super) lock_wait: Duration,
}

impl Turn {
    pub(super) fn run(
        bench: &WalkTrees,
        level: Level,
        contender: Contender,
        stop: &AtomicBool,
    ) -> Result<Turn, WalkTreesError> {
        reset_peak_memory();
        let trees = bench.shape.trees;
        // As many trees again, to fill the caches with.
        let shape = Shape {
            trees: 2 * trees,
            ..bench.shape
        };
        let subject = Subject::new(level, contender.scheme, shape, bench.inodes as usize)
            .map_err(WalkTreesError::Mount)?;
        let walk = Walk {
            contender: contender.name,
            subject: &subject,
            shape,
            threads: bench.threads,
            stop,
        };
        // A quarter more than fits: threads do not fill all parts of a cache alike.
        let enough = bench.inodes + bench.inodes / 4;
        walk.run(trees..2 * trees, enough.div_ceil(bench.threads))?;

        let before = subject.statistics();
        let (busy, cpu, start) = (machine_busy(), CpuTime::now(), Instant::now());
        let seen = walk.run(0..trees, u64::MAX)?;
        let (total, cpu) = (start.elapsed(), CpuTime::now().since(cpu));
        let others = machine_busy().saturating_sub(busy + cpu.user + cpu.sys);
        let counts = Counts::between(&before, &subject.statistics());
        let peak_memory = peak_memory();
        drop(subject);
        // The next one starts with this one's memory given back.
        rcu::barrier();
        Ok(Turn {
            seen,
            total,
            cpu,
            others,
            counts,
            peak_memory,
        })
    }
}

/// Threads that walk trees.
struct Walk<'a> {
    contender: &'static str,
    subject: &'a Subject,
    shape: Shape,
    threads: u64,
    stop: &'a AtomicBool,
}

impl Walk<'_> {
    /// Walks `trees`, each by one thread, and each thread no more than `most` files.
    fn run(&self, trees: Range<u64>, most: u64) -> Result<Digest, WalkTreesError> {
        let failed = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for number in 0..self.threads {
                let (trees, failed) = (trees.clone(), &failed);
                let work = move || self.thread(number, trees, most, failed);
                match thread::Builder::new().spawn_scoped(scope, work) {
                    Ok(started) => threads.push(started),
                    Err(err) => {
                        failed.store(true, Relaxed);
                        return Err(self.not_started(number, &err));
                    }
                }
            }
            let mut all = Ok(Digest::default());
            for thread in threads {
                let seen = thread
                    .join()
                    .unwrap_or_else(|err| panic::resume_unwind(err));
                all = match (all, seen) {
                    (Ok(all), Ok(seen)) => Ok(all.and(seen)),
                    // Those who stopped because another failed know nothing of why.
                    (Err(WalkTreesError::Stopped), Err(err)) | (Ok(_), Err(err)) => Err(err),
                    (Err(err), _) => Err(err),
                };
            }
            all
        })
    }

    fn thread(
        &self,
        number: u64,
        trees: Range<u64>,
        most: u64,
        failed: &AtomicBool,
    ) -> Result<Digest, WalkTreesError> {
        let mut walker = self.subject.walker(self.shape);
        let mut seen = Digest::default();
        let mine = trees.skip(number as usize).step_by(self.threads as usize);
        let dirs = mine.flat_map(|tree| (0..self.shape.dirs).map(move |dir| (tree, dir)));
        for dir in dirs {
            for from in (0..self.shape.files).step_by(CHUNK as usize) {
                if self.stop.load(Relaxed) || failed.load(Relaxed) {
                    return Err(WalkTreesError::Stopped);
                }
                let left = most - seen.entries;
                if left == 0 {
                    return Ok(seen);
                }
                let to = self.shape.files.min(from + CHUNK.min(left));
                walker.visit(dir, from..to, &mut seen).map_err(|lost| {
                    failed.store(true, Relaxed);
                    WalkTreesError::Lost {
                        contender: self.contender,
                        path: lost.path,
                        source: lost.source,
                    }
                })?;
            }
        }
        Ok(seen)
    }

    fn not_started(&self, number: u64, err: &io::Error) -> WalkTreesError {
        let which = format!("cannot start thread {} of {}", number + 1, self.threads);
        WalkTreesError::Thread(io::Error::new(
            err.kind(),
            format!("{which}: {err}; try fewer"),
        ))
    }
}

impl Counts {
    /// Between two moments when no thread was walking.
    fn between(before: &InodeStatistics, after: &InodeStatistics) -> Counts {
        Counts {
            hits: after.hits - before.hits,
            first_failed: after.misses - before.misses,
            second_hits: after.second_hits - before.second_hits,
            inserted: after.inserted - before.inserted,
            evicted: after.evicted - before.evicted,
            lookup_locks: after.lookup_locks - before.lookup_locks,
            insert_locks: after.insert_locks - before.insert_locks,
            evict_locks: after.evict_locks - before.evict_locks,
            contended: after.contended - before.contended,
            lock_wait: after.lock_wait - before.lock_wait,
        }
    }
}
