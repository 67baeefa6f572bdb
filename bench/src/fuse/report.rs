//! The numbers, as a table for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

use super::daemon::{Daemon, Ours};
use super::tree::Tree;
use super::turn::Turn;
use super::{Fuse, Work};
use crate::measure::{Summary, median};
use crate::report::{Table, decimals, grouped, leading};

/// The result of the benchmark.
pub type Report = crate::report::Report<Details>;

/// What `bench fuse` measured.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// How many rounds the medians are of.
    pub rounds: usize,
    /// By work, then by contender.
    pub rows: Vec<Row>,
    /// Whether our daemon had the kernel read and write contents by itself.
    pub passthrough: bool,
    /// Whether requests came to it by io_uring.
    pub io_uring: bool,
    /// The kernel did not offer that before, and does not any more: the setting was changed for
    /// the benchmark, and put back.
    pub io_uring_was_off: bool,
    /// What a ratio to the baseline is to: the plain daemon.
    pub baseline: &'static str,
    /// Threads that walked, that made and removed files, and that answered in each daemon.
    pub threads: [usize; 3],
    /// Where the tree was: its file system.
    pub within: String,
}

/// One contender doing one thing: medians of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The operation.
    pub work: Work,
    /// By whom.
    pub contender: &'static str,
    /// Entries, files or bytes in a round.
    pub count: u64,
    /// From the start of the first thread to the end of the last one.
    pub seconds: f64,
    /// The fastest round.
    pub min: f64,
    /// The slowest round.
    pub max: f64,
    /// How far the rounds lie apart, as a part of the median.
    pub spread: f64,
    /// Entries or files per second, or bytes.
    pub per_second: f64,
    /// Processor time of the client and the daemon in seconds, in steps of a clock tick
    /// (usually 10 ms): the median of the rounds. Other load on the machine affects it less
    /// than elapsed time.
    pub cpu_s: f64,
    /// How many times faster than the plain daemon: the median of the rounds' ratios.
    pub ratio_to_baseline: f64,
    /// How many times faster than the kernel without a daemon; of contents, than it was just
    /// before each pass.
    pub ratio_to_kernel: f64,
}

impl Report {
    pub(super) fn new(
        size: &Fuse,
        tree: &Tree,
        baseline: &'static str,
        turns: &[Turn],
        io_uring_was_off: bool,
    ) -> Report {
        let mut contenders: Vec<&'static str> = Vec::new();
        for turn in turns {
            if !contenders.contains(&turn.contender) {
                contenders.push(turn.contender);
            }
        }
        let summary = |contender, work: Work| {
            let its = turns.iter().filter(|turn| turn.contender == contender);
            let seconds = its.map(|turn| turn.done[work as usize].time.as_secs_f64());
            Summary::new(contender, seconds.collect())
        };
        // What the kernel took itself: just before, or in its own turn.
        let direct = |contender, work: Work| {
            let its = turns.iter().filter(|turn| turn.contender == contender);
            let seconds: Option<Vec<f64>> = its
                .map(|turn| Some(turn.done[work as usize].direct?.as_secs_f64()))
                .collect();
            seconds.map_or_else(
                || summary("kernel", work),
                |seconds| Summary::new("kernel", seconds),
            )
        };
        let cpu = |contender, work: Work| {
            let its = turns.iter().filter(|turn| turn.contender == contender);
            median(
                its.map(|turn| turn.done[work as usize].cpu.as_secs_f64())
                    .collect(),
            )
        };
        let row = |work: Work, contender: &'static str| {
            let its = summary(contender, work);
            let count = turns[0].done[work as usize].count;
            Row {
                work,
                contender,
                count,
                seconds: decimals(its.median(), 6),
                min: decimals(its.min(), 6),
                max: decimals(its.max(), 6),
                spread: decimals(its.spread(), 2),
                cpu_s: decimals(cpu(contender, work), 3),
                per_second: (count as f64 / its.median()).round(),
                ratio_to_baseline: leading(summary(baseline, work).ratio_to(&its), 3),
                ratio_to_kernel: leading(direct(contender, work).ratio_to(&its), 3),
            }
        };
        let rows = Work::ALL.into_iter().flat_map(|work| {
            let row = &row;
            contenders.iter().map(move |contender| row(work, contender))
        });
        Self::verified(
            "fuse",
            Details {
                rounds: size.rounds,
                rows: rows.collect(),
                passthrough: turns.iter().any(|turn| turn.passes_through),
                io_uring: (turns.iter())
                    .filter(|turn| turn.contender == Ours::ALL[0].name())
                    .all(|turn| turn.is_by_io_uring),
                io_uring_was_off,
                baseline,
                threads: [size.walkers, size.makers, size.servers],
                within: tree.file_system(),
            },
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [walkers, makers, servers] = self.threads;
        writeln!(
            f,
            "fuse: a directory on {} directly, and through daemons with {servers} threads each\n\
             {}\n",
            self.within, self.machine
        )?;
        let mut table = Table::new(
            2,
            " |  | seconds | (range) | cpu | per second | to plain | to kernel",
        );
        let mut work = None;
        for row in &self.rows {
            let is_new = work.replace(row.work) != Some(row.work);
            let per_second = row.per_second as u64;
            table.row([
                if is_new {
                    row.work.words().to_owned()
                } else {
                    String::new()
                },
                row.contender.to_owned(),
                format!("{:.4}", row.seconds),
                format!("({:.3}–{:.3})", row.min, row.max),
                format!("{:.2}", row.cpu_s),
                match row.work {
                    Work::Read | Work::Write => format!("{} MiB", grouped(per_second >> 20)),
                    _ => grouped(per_second),
                },
                format!("{:.2}x", row.ratio_to_baseline),
                format!("{:.2}x", row.ratio_to_kernel),
            ]);
        }
        table.fmt(f)?;
        let passthrough = match self.passthrough {
            true => "the kernel reads and writes by itself",
            false => "there is no passthrough here",
        };
        let io_uring = match self.io_uring {
            true => "by io_uring, with a thread for each processor at least, and one more",
            false => "read from /dev/fuse, there is no io_uring here",
        };
        let meanwhile = match self.io_uring_was_off {
            true => "\nfuse.enable_uring was on meanwhile, and is off again.",
            false => "",
        };
        writeln!(
            f,
            "\nMedians of {} rounds; ratios are of speeds, more is faster; {} is the plain \
             daemon.\n{walkers} threads walk, {makers} make and remove files. Cold: mounted \
             anew, the host's caches warm.\nrcuwalk's contents: {passthrough}.\nIts requests: \
             {io_uring}.\nbare: without io_uring, passthrough, and a watch of the \
             host.{meanwhile}",
            self.rounds, self.baseline
        )
    }
}
