//! Statistics for people, as SIGUSR1 and `--stats` print them.

use std::fmt::Write;
use std::time::Duration;

use rcuwalk_fuse::{OperationStatistics, Statistics};

use super::metrics::{open_descriptors, resident_bytes};

/// A table, after `time` of being mounted.
pub(crate) fn table(now: &Statistics, time: Duration) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "statistics after {}:", human(time));
    let _ = writeln!(
        text,
        "{:<14}{:>12}{:>10}{:>11}{:>11}{:>11}",
        "request", "count", "errors", "mean", "50 % in", "99 % in"
    );
    for op in &now.operations {
        let mean = op.time.as_nanos() / u128::from(op.count().max(1));
        let mean = Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX));
        let _ = writeln!(
            text,
            "{:<14}{:>12}{:>10}{:>11}{:>11}{:>11}",
            op.name,
            op.count(),
            op.errors,
            human(mean),
            quantile(op, 0.5),
            quantile(op, 0.99),
        );
    }
    let vfs = &now.vfs;
    let fds = open_descriptors().map_or("?".to_owned(), |fds| fds.to_string());
    let resident = resident_bytes().map_or("?".to_owned(), mib);
    let lines = [
        (
            "the kernel's",
            format!(
                "{} nodes, {} open, {} requests under way",
                now.nodes, now.open, now.in_flight
            ),
        ),
        (
            "the oldest",
            format!(
                "{}, {} requests stuck, {} refused, {} threads",
                human(now.stuck.oldest),
                now.stuck.stuck,
                now.stuck.refused,
                now.stuck.threads
            ),
        ),
        (
            "its budget",
            format!(
                "{} nodes, {} the most that there were, {} asked for, {} forgets",
                now.node_budget.max,
                now.node_budget.peak,
                now.node_budget.asked,
                now.node_budget.forgets
            ),
        ),
        (
            "names",
            format!(
                "{} in {}, {} evicted",
                vfs.dentries.0,
                mib(vfs.dentries.1),
                vfs.dentries_evicted
            ),
        ),
        (
            "inodes",
            format!(
                "{} in {}, {} evicted",
                vfs.inodes.0,
                mib(vfs.inodes.1),
                vfs.inodes_evicted
            ),
        ),
        (
            "walks",
            format!(
                "{} hits, {} of them negative, {} refused, {} slow",
                vfs.hits + vfs.negative_hits + vfs.refused,
                vfs.negative_hits,
                vfs.refused,
                vfs.ref_walks
            ),
        ),
        (
            "back end",
            format!(
                "{} lookups, {} revalidations",
                vfs.slow_lookups, vfs.revalidations
            ),
        ),
        (
            "process",
            format!(
                "{fds} descriptors, {} of them cached; {resident} resident",
                vfs.fds
            ),
        ),
    ];
    for (what, figures) in lines {
        let _ = writeln!(text, "{what:<14}{figures}");
    }
    text
}

fn quantile(op: &OperationStatistics, part: f64) -> String {
    op.quantile(part).map_or("longer".to_owned(), human)
}

fn human(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}

fn mib(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
