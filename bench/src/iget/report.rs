//! The numbers, as tables for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

use super::{Cell, Iget, Memory, Mix};
use crate::measure::{Summary, median};
use crate::report::{decimals, grouped, leading};

/// The entrant that all are compared with: what virtiofsd keeps.
const REFERENCE: &str = "btreemap";

/// Above this share of the time the reader is told.
const DISTURBED: f64 = 0.05;

/// The result of the benchmark.
pub type Report = crate::report::Report<Details>;

/// What `bench iget` measured.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// How many inodes were cached.
    pub inodes: u64,
    /// Whether the hash tables had our hash instead of their default one.
    pub fast_hash: bool,
    /// How many rounds the medians are of.
    pub rounds: usize,
    /// By load, then by number of threads; ours first.
    pub rows: Vec<Row>,
    /// What a cached inode takes, if it was asked for.
    pub memory: Option<Memory>,
    /// How much of the time other programs had the cores; the kernel does not count
    /// it where threads share cores.
    pub taken_by_others: f64,
    /// The nanoseconds of a load from a random place in 64 MiB that waits for the one
    /// before, the median of the same rounds: what a table of this size is made of.
    pub memory_ns: f64,
}

/// One entrant under one load with a number of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Whose table.
    pub contender: &'static str,
    /// Under which load.
    pub mix: Mix,
    /// How many threads at once.
    pub threads: usize,
    /// Million operations per second of all threads together, the median of the rounds.
    pub mops: f64,
    /// The slowest round.
    pub min: f64,
    /// The fastest round.
    pub max: f64,
    /// How far the rounds lie apart, as a part of the median.
    pub spread: f64,
    /// How many times the rate of the three-map BTreeMap with as many threads.
    pub ratio_to_btreemap: Option<f64>,
    /// How many times its own rate with one thread.
    pub ratio_to_one_thread: Option<f64>,
    /// Lock acquisitions per operation: counted by ours, by inspection for the others.
    pub locks_per_op: Option<f64>,
    /// How many of the operations found the inode cached, from 0 to 1.
    pub hit_share: f64,
}

impl Report {
    pub(super) fn new(iget: &Iget, cells: &[Cell], memory_ns: Vec<f64>) -> Self {
        let summaries: Vec<_> = cells.iter().map(Cell::summary).collect();
        let of = |contender: &str, mix: Mix, threads: usize| {
            let its =
                |cell: &Cell| (cell.contender, cell.mix, cell.threads) == (contender, mix, threads);
            cells.iter().position(its).map(|at| &summaries[at])
        };
        let rows = cells.iter().zip(&summaries).map(|(cell, summary)| {
            let Cell {
                contender,
                mix,
                threads,
                ..
            } = *cell;
            let ratio_to =
                |other: Option<&Summary>| other.map(|other| leading(other.ratio_to(summary), 4));
            Row {
                contender,
                mix,
                threads,
                mops: leading(1e3 / summary.median(), 4),
                min: leading(1e3 / summary.max(), 4),
                max: leading(1e3 / summary.min(), 4),
                spread: decimals(summary.spread(), 2),
                ratio_to_btreemap: ratio_to(of(REFERENCE, mix, threads)),
                ratio_to_one_thread: ratio_to(of(contender, mix, 1)),
                locks_per_op: cell.median_of_some(|sample| sample.locks_per_op()),
                hit_share: cell
                    .median_of_some(|sample| Some(sample.hit_share()))
                    .unwrap_or(0.0),
            }
        });
        let others = cells.iter().flat_map(|cell| &cell.samples);
        let others: Vec<_> = others.filter_map(|sample| sample.taken_by_others).collect();
        Self::verified(
            "iget",
            Details {
                inodes: iget.inodes,
                fast_hash: iget.fast_hash,
                rounds: iget.rounds,
                rows: rows.collect(),
                memory: None,
                taken_by_others: decimals(
                    others.iter().sum::<f64>() / others.len().max(1) as f64,
                    2,
                ),
                memory_ns: decimals(median(memory_ns), 2),
            },
        )
    }
}

impl Cell {
    /// In nanoseconds per operation of all threads together.
    fn summary(&self) -> Summary {
        let ns = self.samples.iter().map(|sample| 1e9 / sample.rate);
        Summary::new(self.contender, ns.collect())
    }

    fn median_of_some(&self, value: impl Fn(&super::Sample) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<_>> = self.samples.iter().map(value).collect();
        values.map(|values| decimals(median(values), 3))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "iget: get an inode by number, look at it, put it; {} cached; every one checked\n\
             hash tables of others have {}\n{}",
            grouped(self.inodes),
            if self.fast_hash {
                "our hash"
            } else {
                "their default hasher, SipHash; --fast-hash gives them ours"
            },
            self.machine
        )?;
        for mix in Mix::ALL {
            self.fmt_mix(f, mix)?;
        }
        writeln!(
            f,
            "\nMillion operations per second of all threads, median of {} rounds; how far the \
             rounds\nlie apart; how many times the rate of {REFERENCE}. A random load from 64 MiB took \
             {:.0} ns\nin the same rounds; a lookup waits for two or more.",
            self.rounds, self.memory_ns
        )?;
        if let Some(memory) = &self.memory {
            memory.fmt(f)?;
        }
        if self.taken_by_others > DISTURBED {
            writeln!(
                f,
                "Other programs had the cores for {:.0}% of the time. It is left out where each \
                 thread\nhad a core of its own, but caches were shared, and ratios are less \
                 certain.",
                self.taken_by_others * 100.0
            )?;
        }
        Ok(())
    }
}

impl Report {
    fn fmt_mix(&self, f: &mut fmt::Formatter<'_>, mix: Mix) -> fmt::Result {
        let rows: Vec<_> = self.rows.iter().filter(|row| row.mix == mix).collect();
        let Some(first) = rows.first() else {
            return Ok(());
        };
        let what = match mix {
            Mix::Hit => "random cached inodes",
            Mix::Mixed => "nine of ten cached, one new, the oldest evicted for it",
            Mix::Stream => "all new, the oldest evicted for each",
        };
        write!(f, "\n{mix}: {what}\n{:<14}", "contender")?;
        for row in rows.iter().filter(|row| row.contender == first.contender) {
            let threads = if row.threads == 1 {
                "1 thread".to_owned()
            } else {
                format!("{} threads", row.threads)
            };
            write!(f, "{threads:>20}")?;
        }
        writeln!(f, "{:>10}", "locks/op")?;
        for one in rows.iter().filter(|row| row.threads == first.threads) {
            write!(f, "{:<14}", one.contender)?;
            for row in rows.iter().filter(|row| row.contender == one.contender) {
                let ratio = row.ratio_to_btreemap;
                let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.1}x"));
                // Half of what lies between the fastest and the slowest round.
                let spread = format!("±{:.0}%", (row.spread * 50.0).min(999.0));
                write!(f, "{:>8.1}{spread:>5}{ratio:>7}", row.mops)?;
            }
            match one.locks_per_op {
                Some(locks) => writeln!(f, "{locks:>10.2}")?,
                None => writeln!(f, "{:>10}", "?")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = format!(
            "Resident bytes per cached inode, of {}:",
            grouped(self.inodes)
        );
        for (contender, bytes) in &self.bytes_per_inode {
            let item = format!(" {contender} {bytes:.0}");
            if line.len() + item.len() > 88 {
                writeln!(f, "{line}")?;
                line = " ".to_owned();
            }
            line += &item;
        }
        writeln!(f, "{line}")?;
        match self.ours_from_allocator {
            Some(bytes) => writeln!(f, "Ours has {bytes:.0} of these from its allocator."),
            None => Ok(()),
        }
    }
}
