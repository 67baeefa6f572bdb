//! The numbers, as a table for people and as JSON for programs.

use std::collections::BTreeMap;
use std::fmt;

use rcuwalk::{Statistics, Why};
use serde::Serialize;

use super::Access;
use super::contest::Contest;
use crate::measure::Summary;
use crate::report::{Table, decimals, grouped, percent};

/// Below this share of a core the reader is told.
const BUSY: f64 = 0.95;

/// The result of the benchmark.
pub type Report = crate::report::Report<Details>;

/// What `bench access` measured.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// How many paths a loop asks for.
    pub paths: usize,
    /// One per contender and number of threads, the kernel's first.
    pub rows: Vec<Row>,
    /// Paths that exist.
    pub found: usize,
    /// Paths that do not. Others end in a loop, at a file, or are forbidden.
    pub missing: usize,
    /// The nanoseconds of a system call that does nothing, getppid(2).
    pub syscall_ns: f64,
    /// False if the kernel had to look up each missing name anew, as on tmpfs.
    pub kernel_caches_missing_names: bool,
    /// How much of the time on one thread that thread had a core; less than 1 if
    /// other programs were running, and then all times are too long.
    pub cpu_share: f64,
    /// What answered the timed walks of ours.
    pub walks: Vec<Walks>,
}

/// One contender with a number of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `kernel`, `memfs` or `hostfs`.
    pub contender: &'static str,
    /// How many threads at once.
    pub threads: usize,
    /// The median of the rounds, as each thread sees it.
    pub ns_per_path: f64,
    /// The fastest round.
    pub min: f64,
    /// The slowest round.
    pub max: f64,
    /// Loops over all paths per second, of all threads together.
    pub loops_per_s: f64,
    /// How many times faster than the kernel with as many threads.
    pub ratio_to_kernel: f64,
    /// How far the rounds lie apart, as a part of the median.
    pub spread: f64,
}

/// How the walks of one of ours were answered while they were timed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Walks {
    /// Which of ours.
    pub contender: &'static str,
    /// Under RCU: found.
    pub hits: u64,
    /// Under RCU: known to be missing.
    pub negative_hits: u64,
    /// Under RCU: refused, as the caller may not search a directory on the way.
    pub refused: u64,
    /// With references.
    pub ref_walks: u64,
    /// Why the RCU-walk did not answer those, and how often.
    pub why: BTreeMap<String, u64>,
}

impl Walks {
    pub(super) fn between(
        contender: &'static str,
        before: &Statistics,
        after: &Statistics,
    ) -> Self {
        let stopped = |stats: &Statistics, why: usize| stats.unlazied[why] + stats.restarts[why];
        let reasons = Why::ALL.iter().enumerate();
        let counts =
            reasons.map(|(at, why)| (format!("{why:?}"), stopped(after, at) - stopped(before, at)));
        Self {
            contender,
            hits: after.hits - before.hits,
            negative_hits: after.negative_hits - before.negative_hits,
            refused: after.refused - before.refused,
            ref_walks: after.ref_walks - before.ref_walks,
            why: counts.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

impl Report {
    pub(super) fn new(
        access: &Access,
        contest: &Contest,
        alone: &[Summary],
        together: Option<&[Summary]>,
        cpu_share: f64,
        walks: Vec<Walks>,
    ) -> Self {
        let (found, missing) = contest.found_and_missing();
        let names = contest.names();
        let mut rows = rows(&names, alone, 1, access.paths.len());
        if let Some(together) = together {
            rows.extend(self::rows(
                &names,
                together,
                access.threads,
                access.paths.len(),
            ));
        }
        Self::verified(
            "access",
            Details {
                paths: access.paths.len(),
                rows,
                found,
                missing,
                syscall_ns: decimals(alone[names.len()].median(), 2),
                // Unknown counts as the usual: all but two file systems do.
                kernel_caches_missing_names: contest.kernel.caches_missing_names().unwrap_or(true),
                cpu_share,
                walks,
            },
        )
    }
}

/// `summaries` may have more than the contenders; the kernel's is the first.
fn rows(names: &[&'static str], summaries: &[Summary], threads: usize, paths: usize) -> Vec<Row> {
    let rows = names.iter().zip(summaries);
    rows.map(|(contender, summary)| Row {
        contender,
        threads,
        ns_per_path: decimals(summary.median(), 2),
        min: decimals(summary.min(), 2),
        max: decimals(summary.max(), 2),
        loops_per_s: decimals(threads as f64 * 1e9 / summary.median() / paths as f64, 2),
        ratio_to_kernel: decimals(summaries[0].ratio_to(summary), 2),
        spread: decimals(summary.spread(), 2),
    })
    .collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = self.paths - self.found - self.missing;
        write!(
            f,
            "access: {} paths, {} found, {} missing",
            self.paths, self.found, self.missing
        )?;
        if others > 0 {
            write!(f, ", {others} with another error")?;
        }
        writeln!(
            f,
            "; every answer compared with the kernel's\n{}\n",
            self.machine
        )?;
        let mut table = Table::new(
            1,
            "contender | threads | ns/path | fastest-slowest | spread | loops/s | kernel =",
        );
        for row in &self.rows {
            table.row([
                row.contender.to_owned(),
                row.threads.to_string(),
                format!("{:.1}", row.ns_per_path),
                format!("{:.1}-{:.1}", row.min, row.max),
                percent(row.spread),
                grouped(row.loops_per_s as u64),
                format!("{:.2} x", row.ratio_to_kernel),
            ]);
        }
        table.fmt(f)?;
        writeln!(f)?;
        writeln!(
            f,
            "Of the kernel's time per path, about {:.0} ns are the system call itself \
             (getppid, same rounds).",
            self.syscall_ns
        )?;
        if !self.kernel_caches_missing_names {
            writeln!(
                f,
                "The temporary directory is on a file system that does not cache missing \
                 names (tmpfs):\nthe kernel is slower here than it could be. Set TMPDIR to \
                 a directory on a disk."
            )?;
        }
        if self.cpu_share < BUSY {
            writeln!(
                f,
                "Other programs had the processor for {:.0}% of the time on one thread: \
                 all times are\nlonger than on an idle machine, and ratios less certain.",
                (1.0 - self.cpu_share) * 100.0
            )?;
        }
        self.walks.iter().try_for_each(|walks| walks.fmt(f))
    }
}

impl fmt::Display for Walks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let under_rcu = self.hits + self.negative_hits + self.refused;
        write!(
            f,
            "{}: {} timed walks were answered under RCU ({} found, {} missing, {} refused), \
             {} with references",
            self.contender,
            grouped(under_rcu),
            grouped(self.hits),
            grouped(self.negative_hits),
            grouped(self.refused),
            grouped(self.ref_walks)
        )?;
        let reasons = self.why.iter();
        let reasons: Vec<_> = reasons
            .map(|(why, count)| format!("{why} {}", grouped(*count)))
            .collect();
        if reasons.is_empty() {
            return writeln!(f);
        }
        writeln!(f, " ({})", reasons.join(", "))?;
        if self.why.contains_key(&format!("{:?}", Why::NotCached)) {
            writeln!(f, "{}: the tree is larger than its cache", self.contender)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_a_threads_own_and_loops_are_of_all_threads() {
        let summaries = [
            Summary::new("kernel", vec![400.0, 800.0, 400.0]),
            Summary::new("memfs", vec![50.0, 100.0, 40.0]),
        ];
        let rows = rows(&["kernel", "memfs"], &summaries, 2, 200);
        let memfs = &rows[1];
        assert_eq!(
            (memfs.ns_per_path, memfs.min, memfs.max),
            (50.0, 40.0, 100.0)
        );
        // Two threads, 50 ns each: 40 million paths, 200,000 loops per second.
        assert_eq!(memfs.loops_per_s, 200_000.0);
        assert_eq!((rows[0].ratio_to_kernel, memfs.ratio_to_kernel), (1.0, 8.0));
    }
}
