//! The numbers, as tables for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

use super::Change;
use super::laps::{Op, Rates};
use super::storm::{Storm, Walks};
use crate::measure::{Summary, median};
use crate::report::{Table, decimals};

/// The result of the benchmark.
pub type Report = crate::report::Report<Details>;

/// What `bench change` measured.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// How many rounds the medians are of.
    pub rounds: usize,
    /// By number of threads, then by operation; memfs first.
    pub rows: Vec<Row>,
    /// How long walks took beside renames; memfs first.
    pub latency: Vec<Latency>,
}

/// One side doing one thing with a number of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `memfs` or `tmpfs`.
    pub contender: &'static str,
    /// The operation.
    pub op: Op,
    /// How many threads at once, each in a directory of its own.
    pub threads: usize,
    /// Million operations per second of all threads together, the median of the rounds.
    pub mops: f64,
    /// The slowest round.
    pub min: f64,
    /// The fastest round.
    pub max: f64,
    /// How far the rounds lie apart, as a part of the median.
    pub spread: f64,
    /// How many times the rate of tmpfs with as many threads, the median of the rounds'
    /// ratios.
    pub ratio_to_tmpfs: f64,
    /// How many times its own rate with one thread.
    pub ratio_to_one_thread: f64,
}

/// How long one side's walks took, in nanoseconds; medians of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// `memfs` or `tmpfs`.
    pub contender: &'static str,
    /// What happened meanwhile.
    pub storm: Storm,
    /// Half of the walks stayed below.
    pub p50_ns: f64,
    /// 99 of a hundred did.
    pub p99_ns: f64,
    /// 999 of a thousand did.
    pub p999_ns: f64,
    /// How many times the p99 of a quiet moment: the median of the rounds' ratios.
    pub p99_to_quiet: f64,
    /// Million renames per second meanwhile.
    pub renames_mops: f64,
    /// Million inodes evicted per second meanwhile.
    pub evictions_mops: f64,
    /// Walks of a million that were given up under RCU and finished with references.
    pub slow_per_million: Option<f64>,
}

impl Report {
    pub(super) fn new(change: &Change, rates: &[Rates], walks: &[Walks]) -> Self {
        let sides = ["memfs", "tmpfs"];
        let summary = |side, threads, at: usize| {
            let its = rates
                .iter()
                .filter(|one| (one.side, one.threads) == (side, threads));
            // In nanoseconds per operation of all threads together.
            Summary::new(side, its.map(|one| 1e9 / one.per_second[at]).collect())
        };
        let mut rows = Vec::new();
        for &threads in &change.threads {
            for (at, op) in Op::ALL.into_iter().enumerate() {
                for side in sides {
                    let its = summary(side, threads, at);
                    rows.push(Row {
                        contender: side,
                        op,
                        threads,
                        mops: decimals(1e3 / its.median(), 3),
                        min: decimals(1e3 / its.max(), 3),
                        max: decimals(1e3 / its.min(), 3),
                        spread: decimals(its.spread(), 2),
                        ratio_to_tmpfs: decimals(summary("tmpfs", threads, at).ratio_to(&its), 2),
                        ratio_to_one_thread: decimals(
                            summary(side, change.threads[0], at).ratio_to(&its),
                            2,
                        ),
                    });
                }
            }
        }
        let mut latency: Vec<Latency> = Vec::new();
        for one in walks {
            let is_there = |row: &Latency| (row.contender, row.storm) == (one.side, one.storm);
            if !latency.iter().any(is_there) {
                latency.push(Latency::new(one.side, one.storm, walks));
            }
        }
        Self::verified(
            "change",
            Details {
                rounds: change.rounds,
                rows,
                latency,
            },
        )
    }
}

impl Latency {
    fn new(side: &'static str, storm: Storm, walks: &[Walks]) -> Latency {
        let of = |storm: Storm, value: fn(&Walks) -> f64| {
            let its = walks
                .iter()
                .filter(|one| (one.side, one.storm) == (side, storm));
            its.map(value).collect::<Vec<_>>()
        };
        let quiet = Summary::new(side, of(Storm::Quiet, |one| one.p99));
        let p99 = Summary::new(side, of(storm, |one| one.p99));
        let slow = walks
            .iter()
            .filter(|one| (one.side, one.storm) == (side, storm))
            .map(|one| one.slow_per_million)
            .collect::<Option<Vec<_>>>();
        Latency {
            contender: side,
            storm,
            p50_ns: median(of(storm, |one| one.p50)),
            p99_ns: p99.median(),
            p999_ns: median(of(storm, |one| one.p999)),
            p99_to_quiet: decimals(p99.ratio_to(&quiet), 2),
            renames_mops: decimals(median(of(storm, |one| one.renames)) / 1e6, 3),
            evictions_mops: decimals(
                median(of(storm, |one| one.evictions.unwrap_or(0.0))) / 1e6,
                3,
            ),
            slow_per_million: slow.map(|slow| decimals(median(slow), 2)),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "change: empty files made, renamed and removed by name, each thread in a directory \
             of its own\n{}\n",
            self.machine
        )?;
        let mut table = Table::new(
            1,
            " | threads | memfs (range) | tmpfs, system calls | ratio",
        );
        for rows in self.rows.chunks(2) {
            let [ours, theirs] = rows else { continue };
            let rate = |row: &Row| format!("{:.3} ({:.3}–{:.3})", row.mops, row.min, row.max);
            table.row([
                format!("{:?}", ours.op).to_lowercase(),
                ours.threads.to_string(),
                rate(ours),
                rate(theirs),
                format!("{:.2}x", ours.ratio_to_tmpfs),
            ]);
        }
        table.fmt(f)?;
        writeln!(
            f,
            "\nMillion operations per second of all threads, median of {} rounds.\n\n\
             A walk of five components beside a storm of renames, or of evictions in a small cache,\n\
             nanoseconds per stat:\n",
            self.rounds
        )?;
        let mut table = Table::new(
            2,
            " | storm | p50 | p99 | p99.9 | p99 to quiet | renames, M/s | evictions, M/s | slow/1e6",
        );
        for one in &self.latency {
            let storm = match one.storm {
                Storm::Quiet => "none",
                Storm::Elsewhere => "elsewhere",
                Storm::SameDirectory => "same directory",
                Storm::Evicting => "evicting",
            };
            let slow = one.slow_per_million;
            table.row([
                one.contender.to_owned(),
                storm.to_owned(),
                format!("{:.0}", one.p50_ns),
                format!("{:.0}", one.p99_ns),
                format!("{:.0}", one.p999_ns),
                format!("{:.2}x", one.p99_to_quiet),
                format!("{:.2}", one.renames_mops),
                format!("{:.2}", one.evictions_mops),
                slow.map_or("?".to_owned(), |slow| format!("{slow:.0}")),
            ]);
        }
        table.fmt(f)?;
        writeln!(
            f,
            "\nReading the clock, some 20 to 40 ns, is in each. The last column: walks of a \
             million that\nRCU gave up and that were finished with references."
        )
    }
}
