//! The numbers, as a table for people and as JSON for programs.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::subject::Digest;
use super::turn::Turn;
use super::{CONTENDERS, Shape, WalkTrees};
use crate::measure::Summary;
use crate::report::{Table, decimals, grouped, other_programs, percent};

/// From this number of cores on, the reader is warned.
const BUSY: f64 = 0.1;

/// The result of the benchmark.
pub type Report = crate::report::Report<Details>;

/// What `bench walktrees` measured.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// Files in all trees; each was asked for once per walk.
    pub entries: u64,
    /// One per way of locking, `stat` by path through the VFS.
    pub rows: Vec<Row>,
    /// The same files by their numbers, with the inode cache alone.
    pub inode_cache: Vec<Row>,
    /// Trees.
    pub trees: u64,
    /// Directories in each.
    pub dirs: u64,
    /// Files in each of those.
    pub files: u64,
    /// Inodes of the trees: files, directories, and the trees' own.
    pub inodes: u64,
    /// Inodes that the cache holds, and as many names.
    pub cached_inodes: u64,
    /// Rounds that the medians are of.
    pub rounds: usize,
    /// Over number, inode, type, mode, size and time of every entry, in hexadecimal.
    pub checksum: String,
    /// Cores that other programs kept busy meanwhile, on average: from some 0.1 on, all
    /// times are longer than on an idle machine.
    pub other_programs: f64,
}

/// One way of locking: medians of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `stock`, `patch` or `ours`.
    pub contender: &'static str,
    /// How many threads at once.
    pub threads: u64,
    /// From the start of the first thread to the end of the last one.
    pub seconds: f64,
    /// The fastest round.
    pub min: f64,
    /// The slowest round.
    pub max: f64,
    /// How far the rounds lie apart, as a part of the median.
    pub spread: f64,
    /// Processor time in the library and the benchmark.
    pub user_s: f64,
    /// Processor time in the kernel.
    pub sys_s: f64,
    /// Both, of the time from start to end: 200 is two cores.
    pub cpu_percent: f64,
    /// Entries per second, of all threads together.
    pub entries_per_s: f64,
    /// How many times faster than `stock`: the median of the rounds' ratios.
    pub ratio_to_stock: f64,
    /// First looks for an inode that found nothing.
    pub first_lookups_failed: u64,
    /// Second looks, under the lock of the insertion, that found nothing either.
    pub second_lookups_failed: u64,
    /// Looks, first and second, that found something, in all rounds together.
    pub hits: u64,
    /// Those, of all first looks.
    pub hit_rate: f64,
    /// Inodes read in.
    pub inserted: u64,
    /// Locks taken for both looks and the insertion, for each inode read in.
    pub locks_per_inode: f64,
    /// Inodes that made room.
    pub evicted: u64,
    /// Locks taken to take them off the table, for each of them.
    pub evict_locks_per_inode: f64,
    /// How often another thread had the lock.
    pub contended: u64,
    /// How long threads slept and spun for locks, all together.
    pub lock_wait_s: f64,
    /// The most memory of the process in any round, in MiB.
    pub peak_rss_mib: f64,
}

impl Report {
    pub(super) fn new(
        bench: &WalkTrees,
        seen: Digest,
        vfs: &[Vec<Turn>],
        cache: &[Vec<Turn>],
    ) -> Self {
        let Shape { trees, dirs, files } = bench.shape;
        Self::verified(
            "walktrees",
            Details {
                entries: seen.entries,
                rows: rows(bench, vfs),
                inode_cache: rows(bench, cache),
                trees,
                dirs,
                files,
                inodes: bench.shape.inodes().unwrap_or(u64::MAX),
                cached_inodes: bench.inodes,
                rounds: bench.rounds,
                checksum: format!("{:016x}", seen.checksum),
                other_programs: other_programs(
                    (vfs.iter().chain(cache).flatten()).map(|turn| (turn.total, turn.others)),
                ),
            },
        )
    }
}

fn rows(bench: &WalkTrees, turns: &[Vec<Turn>]) -> Vec<Row> {
    let total = |turns: &Vec<Turn>| {
        let seconds = turns.iter().map(|turn| turn.total.as_secs_f64());
        Summary::new("", seconds.collect())
    };
    let stock = total(&turns[0]);
    let rows = CONTENDERS.iter().zip(turns);
    rows.map(|(contender, turns)| row(contender.name, bench.threads, turns, &stock, &total(turns)))
        .collect()
}

fn row(
    contender: &'static str,
    threads: u64,
    turns: &[Turn],
    stock: &Summary,
    total: &Summary,
) -> Row {
    let median = |of: &dyn Fn(&Turn) -> f64| {
        Summary::new(contender, turns.iter().map(of).collect()).median()
    };
    let seconds = |of: &dyn Fn(&Turn) -> Duration| median(&|turn| of(turn).as_secs_f64());
    let count = |of: &dyn Fn(&Turn) -> u64| median(&|turn| of(turn) as f64) as u64;
    // Of all rounds, not medians: what happened once in one of them shows.
    let sum = |of: &dyn Fn(&Turn) -> u64| turns.iter().map(of).sum::<u64>();
    let ratio = |part: u64, of: u64| {
        if of == 0 {
            0.0
        } else {
            part as f64 / of as f64
        }
    };

    let (user, sys) = (
        seconds(&|turn| turn.cpu.user),
        seconds(&|turn| turn.cpu.sys),
    );
    let entries = turns[0].seen.entries as f64;
    let found = sum(&|turn| turn.counts.hits + turn.counts.second_hits);
    let looked = sum(&|turn| turn.counts.hits + turn.counts.first_failed);
    let locks = sum(&|turn| turn.counts.lookup_locks + turn.counts.insert_locks);
    let evict_locks = sum(&|turn| turn.counts.evict_locks);
    Row {
        contender,
        threads,
        seconds: decimals(total.median(), 6),
        min: decimals(total.min(), 6),
        max: decimals(total.max(), 6),
        spread: decimals(total.spread(), 6),
        user_s: decimals(user, 6),
        sys_s: decimals(sys, 6),
        cpu_percent: ((user + sys) / total.median() * 100.0).round(),
        entries_per_s: (entries / total.median()).round(),
        ratio_to_stock: decimals(stock.ratio_to(total), 6),
        first_lookups_failed: count(&|turn| turn.counts.first_failed),
        second_lookups_failed: count(&|turn| turn.counts.inserted),
        hits: found,
        hit_rate: ratio(found, looked),
        inserted: count(&|turn| turn.counts.inserted),
        locks_per_inode: ratio(locks, sum(&|turn| turn.counts.inserted)),
        evicted: count(&|turn| turn.counts.evicted),
        evict_locks_per_inode: ratio(evict_locks, sum(&|turn| turn.counts.evicted)),
        contended: count(&|turn| turn.counts.contended),
        lock_wait_s: decimals(seconds(&|turn| turn.counts.lock_wait), 6),
        peak_rss_mib: turns
            .iter()
            .map(|turn| turn.peak_memory as f64 / f64::from(1 << 20))
            .fold(0.0, f64::max)
            .round(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "walktrees: {} trees of {} directories of {} files: {} entries, one stat each\n\
             cache: {} inodes and as many names, full at the start; every entry verified\n\
             {}\n",
            grouped(self.trees),
            grouped(self.dirs),
            grouped(self.files),
            grouped(self.entries),
            grouped(self.cached_inodes),
            self.machine
        )?;
        let threads = self.rows[0].threads;
        writeln!(f, "stat by path, {threads} threads")?;
        table(f, &self.rows)?;
        writeln!(f, "\nthe inode cache alone, by number, {threads} threads")?;
        table(f, &self.inode_cache)?;
        writeln!(
            f,
            "\nMedians of {} rounds; hits are of all rounds. An inode that is not cached is \
             looked for twice,\nin vain, and inserted under the second look's lock; the \
             directories on the way are hits among\nthe names. `locks` and `to evict`: \
             locks per inode read in, and per inode that made room.",
            self.rounds
        )?;
        if self.other_programs >= BUSY {
            writeln!(
                f,
                "Other programs kept {:.1} cores busy meanwhile: all times are longer than on \
                 an idle machine.",
                self.other_programs
            )?;
        }
        Ok(())
    }
}

/// The times as the shell tells them, then the counters that explain them.
fn table(f: &mut fmt::Formatter<'_>, rows: &[Row]) -> fmt::Result {
    let mut times = Table::new(
        1,
        "locking | user | system | total | cpu | entries/s | spread | stock =",
    );
    let mut counters = Table::new(
        1,
        " | 1st failed | 2nd failed | hits | locks | to evict | contended | waited | memory",
    );
    for row in rows {
        times.row([
            row.contender.to_owned(),
            format!("{:.2} s", row.user_s),
            format!("{:.2} s", row.sys_s),
            format!("{:.3} s", row.seconds),
            format!("{:.0}%", row.cpu_percent),
            grouped(row.entries_per_s as u64),
            percent(row.spread),
            format!("{:.2} x", row.ratio_to_stock),
        ]);
        counters.row([
            row.contender.to_owned(),
            grouped(row.first_lookups_failed),
            grouped(row.second_lookups_failed),
            grouped(row.hits),
            format!("{:.3}", row.locks_per_inode),
            format!("{:.3}", row.evict_locks_per_inode),
            grouped(row.contended),
            format!("{:.3} s", row.lock_wait_s),
            format!("{} MiB", row.peak_rss_mib),
        ]);
    }
    write!(f, "{times}{counters}")
}
