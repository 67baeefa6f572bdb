//! The numbers, as a table for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

use super::side::{Checksum, Side};
use super::{Cell, Readdir};
use crate::measure::median;
use crate::report::{Table, decimals, grouped};

/// The result of the benchmark.
pub type Report = crate::report::Report<Details>;

/// What `bench readdir` measured.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// Entries of the directory.
    pub entries: u64,
    /// How many repeated listings the medians are of.
    pub rounds: usize,
    /// By contender, then by number of threads; the kernel's first.
    pub rows: Vec<Row>,
    /// Contenders that this machine does not have, and why.
    pub left_out: Vec<String>,
}

/// One contender with a number of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// A file system of the kernel, or a back end and what it reads.
    pub contender: String,
    /// Whether listings are cached; `None` for the kernel.
    pub cache: Option<bool>,
    /// How many threads at once, each of which lists the whole directory.
    pub threads: usize,
    /// Million entries per second of the first listing, by one thread.
    pub first_meps: f64,
    /// Million entries per second of all threads, the median of the repeated listings.
    pub hot_meps: f64,
    /// The slowest of them.
    pub min: f64,
    /// The fastest of them.
    pub max: f64,
    /// As `hot_meps`, in millions of bytes of records.
    pub hot_mb_s: f64,
    /// Bytes that the cached listing takes for each entry, with the index of its names.
    pub bytes_per_entry: Option<f64>,
    /// How many times the rate of the kernel's best file system with as many threads.
    pub ratio_to_best_kernel: f64,
    /// How many times its own rate with the first number of threads.
    pub ratio_to_one_thread: f64,
}

impl Report {
    pub(super) fn new(
        readdir: &Readdir,
        sum: &Checksum,
        sides: &[Side],
        cells: Vec<Cell>,
        left_out: Vec<String>,
    ) -> Report {
        let hot = |cell: &Cell, at: usize| median(cell.hot[at].clone());
        let best = |at: usize| {
            let kernel = sides
                .iter()
                .zip(&cells)
                .filter(|(side, _)| side.cache.is_none());
            kernel.map(|(_, cell)| hot(cell, at)).fold(0.0, f64::max)
        };
        let bytes = sum.bytes as f64 / sum.entries.max(1) as f64;
        let mut rows = Vec::new();
        for (side, cell) in sides.iter().zip(&cells) {
            let bytes_per_entry = side.cached_bytes(sum.entries);
            for (at, &threads) in readdir.threads.iter().enumerate() {
                let rate = hot(cell, at);
                let all = cell.hot[at].iter().copied();
                rows.push(Row {
                    contender: side.contender.clone(),
                    cache: side.cache,
                    threads,
                    first_meps: decimals(cell.first / 1e6, 3),
                    hot_meps: decimals(rate / 1e6, 3),
                    min: decimals(all.clone().fold(f64::MAX, f64::min) / 1e6, 3),
                    max: decimals(all.fold(0.0, f64::max) / 1e6, 3),
                    hot_mb_s: decimals(rate * bytes / 1e6, 1),
                    bytes_per_entry: bytes_per_entry.map(|bytes| decimals(bytes, 1)),
                    ratio_to_best_kernel: decimals(rate / best(at), 2),
                    ratio_to_one_thread: decimals(rate / hot(cell, 0), 2),
                });
            }
        }
        Self::verified(
            "readdir",
            Details {
                entries: sum.entries,
                rounds: readdir.rounds,
                rows,
                left_out,
            },
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "readdir: {} entries, median of {} listings, million entries per second\n",
            grouped(self.entries),
            self.rounds
        )?;
        let mut table = Table::new(
            2,
            "contender | cache | threads | first | repeated | min | max | MB/s | bytes/entry | to best kernel | to one thread",
        );
        for row in &self.rows {
            let cache = match row.cache {
                Some(true) => "on",
                Some(false) => "off",
                None => "",
            };
            table.row([
                row.contender.clone(),
                cache.into(),
                row.threads.to_string(),
                format!("{:.2}", row.first_meps),
                format!("{:.2}", row.hot_meps),
                format!("{:.2}", row.min),
                format!("{:.2}", row.max),
                format!("{:.0}", row.hot_mb_s),
                row.bytes_per_entry
                    .map_or(String::new(), |bytes| format!("{bytes:.1}")),
                format!("{:.2}x", row.ratio_to_best_kernel),
                format!("{:.2}x", row.ratio_to_one_thread),
            ]);
        }
        write!(f, "{table}")?;
        for left_out in &self.left_out {
            writeln!(f, "left out: {left_out}")?;
        }
        writeln!(f, "\n{}", self.machine)
    }
}
