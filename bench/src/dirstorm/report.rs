//! The numbers, as tables for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

use super::Dirstorm;
use super::beside;
use super::storm::{Blocks, STORMERS, Turn};
use crate::measure::median;
use crate::report::{Table, decimals, grouped};

/// The result of the benchmark.
pub type Report = crate::report::Report<Details>;

/// What `bench dirstorm` measured.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// Directories of the storm.
    pub dirs: u64,
    /// Entries of each of them.
    pub entries: u64,
    /// Threads, each of which lists all directories and looks up all names.
    pub threads: usize,
    /// Entries of the directory in which lookups ran beside changes.
    pub large: u64,
    /// How many rounds the medians are of.
    pub rounds: usize,
    /// The storm: with blocks of the image cached, then without; the kernel first in each.
    pub rows: Vec<StormRow>,
    /// Lookups of cached names beside a listing and changes; the kernel first.
    pub beside: Vec<BesideRow>,
    /// What this machine cannot measure, and why.
    pub left_out: Vec<String>,
}

/// One contender of the storm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StormRow {
    /// The kernel, or a back end and what it reads.
    pub contender: String,
    /// `cached` or `cold`: the image's blocks before the storm. Names and inodes are cold.
    pub blocks: &'static str,
    /// How long the storm took, the median of the rounds.
    pub seconds: f64,
    /// Names that all threads together have looked up, per second.
    pub names_per_s: f64,
    /// The same in the slowest round.
    pub min: f64,
    /// The same in the fastest round.
    pub max: f64,
    /// How often ours asked the back end for a name, in the round with the most.
    pub asked: Option<u64>,
    /// `asked` for each name that there is.
    pub asked_per_name: Option<f64>,
    /// How many times the kernel's names per second.
    pub ratio_to_kernel: f64,
}

/// One contender of the lookups beside changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BesideRow {
    /// A file system of the kernel, or a back end.
    pub contender: String,
    /// The median lookup with nothing beside; the medians of the rounds, here and below.
    pub quiet_p50_ns: f64,
    /// One lookup of a hundred takes longer.
    pub quiet_p99_ns: f64,
    /// The median lookup beside a listing and changes.
    pub busy_p50_ns: f64,
    /// One of a hundred takes longer.
    pub busy_p99_ns: f64,
    /// The least `busy_p99_ns` of the rounds.
    pub min: f64,
    /// The greatest one.
    pub max: f64,
    /// `busy_p99_ns` by `quiet_p99_ns`.
    pub p99_ratio: f64,
    /// Whole listings that were made meanwhile, in all rounds.
    pub listings: u64,
    /// Files that were made and removed meanwhile, in all rounds.
    pub changes: u64,
}

impl Report {
    pub(super) fn new(
        bench: &Dirstorm,
        cached: &[Vec<Turn>],
        cold: &[Vec<Turn>],
        beside: &[(String, Vec<beside::Turn>)],
        left_out: Vec<String>,
    ) -> Report {
        let rows = [(Blocks::Cached, cached), (Blocks::Cold, cold)];
        let rows = rows
            .into_iter()
            .flat_map(|(blocks, turns)| storm_rows(bench, blocks, turns));
        Self::verified(
            "dirstorm",
            Details {
                dirs: bench.dirs,
                entries: bench.entries,
                threads: bench.threads,
                large: bench.large,
                rounds: bench.rounds,
                rows: rows.collect(),
                beside: beside
                    .iter()
                    .map(|(name, turns)| beside_row(name, turns))
                    .collect(),
                left_out,
            },
        )
    }
}

fn storm_rows(bench: &Dirstorm, blocks: Blocks, all: &[Vec<Turn>]) -> Vec<StormRow> {
    let names = bench.dirs * bench.entries;
    let lookups = (names * bench.threads as u64) as f64;
    let seconds = |turns: &[Turn]| {
        let seconds = turns.iter().map(|turn| turn.elapsed.as_secs_f64());
        seconds.collect::<Vec<_>>()
    };
    let kernel = all.first().map(|turns| median(seconds(turns)));
    let row = |(stormer, turns): (&super::storm::Stormer, &Vec<Turn>)| {
        let all = seconds(turns);
        let (least, greatest) = (
            all.iter().copied().fold(f64::MAX, f64::min),
            all.iter().copied().fold(0.0, f64::max),
        );
        let time = median(all);
        let asked = turns.iter().filter_map(|turn| turn.asked).max();
        StormRow {
            contender: stormer.name().into(),
            blocks: match blocks {
                Blocks::Cached => "cached",
                Blocks::Cold => "cold",
            },
            seconds: decimals(time, 4),
            names_per_s: (lookups / time).round(),
            min: (lookups / greatest).round(),
            max: (lookups / least).round(),
            asked,
            asked_per_name: asked.map(|asked| decimals(asked as f64 / names as f64, 4)),
            ratio_to_kernel: kernel.map_or(0.0, |kernel| decimals(kernel / time, 2)),
        }
    };
    STORMERS.iter().zip(all).map(row).collect()
}

fn beside_row(name: &str, turns: &[beside::Turn]) -> BesideRow {
    let of = |which: fn(&beside::Turn) -> f64| median(turns.iter().map(which).collect());
    let busy = turns.iter().map(|turn| turn.busy.p99);
    let (quiet_p99_ns, busy_p99_ns) = (of(|turn| turn.quiet.p99), of(|turn| turn.busy.p99));
    BesideRow {
        contender: name.into(),
        quiet_p50_ns: of(|turn| turn.quiet.p50),
        quiet_p99_ns,
        busy_p50_ns: of(|turn| turn.busy.p50),
        busy_p99_ns,
        min: busy.clone().fold(f64::MAX, f64::min),
        max: busy.fold(0.0, f64::max),
        p99_ratio: decimals(busy_p99_ns / quiet_p99_ns, 2),
        listings: turns.iter().map(|turn| turn.listings).sum(),
        changes: turns.iter().map(|turn| turn.changes).sum(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.rows.is_empty() {
            writeln!(
                f,
                "dirstorm: {} threads list {} directories of {} files and look up every name; \
                 nothing is cached; median of {} rounds\n",
                self.threads,
                self.dirs,
                grouped(self.entries),
                self.rounds
            )?;
            let mut table = Table::new(
                2,
                "contender | blocks | seconds | names/s | min | max | asked per name | to kernel",
            );
            for row in &self.rows {
                table.row([
                    row.contender.clone(),
                    row.blocks.into(),
                    format!("{:.3}", row.seconds),
                    grouped(row.names_per_s as u64),
                    grouped(row.min as u64),
                    grouped(row.max as u64),
                    row.asked_per_name
                        .map_or(String::new(), |asked| format!("{asked:.3}")),
                    format!("{:.2}x", row.ratio_to_kernel),
                ]);
            }
            writeln!(f, "{table}")?;
        }
        writeln!(
            f,
            "lookups of cached names in a directory of {} files, nanoseconds: alone, and beside a \
             listing of it and files made and removed in it\n",
            grouped(self.large)
        )?;
        let mut table = Table::new(
            1,
            "contender | p50 alone | p99 alone | p50 | p99 | min | max | p99 to alone | listings | changes",
        );
        for row in &self.beside {
            table.row([
                row.contender.clone(),
                format!("{:.0}", row.quiet_p50_ns),
                format!("{:.0}", row.quiet_p99_ns),
                format!("{:.0}", row.busy_p50_ns),
                format!("{:.0}", row.busy_p99_ns),
                format!("{:.0}", row.min),
                format!("{:.0}", row.max),
                format!("{:.2}x", row.p99_ratio),
                row.listings.to_string(),
                grouped(row.changes),
            ]);
        }
        write!(f, "{table}")?;
        for left_out in &self.left_out {
            writeln!(f, "left out: {left_out}")?;
        }
        writeln!(f, "\n{}", self.machine)
    }
}
