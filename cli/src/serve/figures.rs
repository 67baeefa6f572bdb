//! Figures of a server: in Prometheus' words, and for people.

use std::fmt::Write;
use std::time::Duration;

use rcuwalk_nfs::{OperationStatistics, Statistics};

use crate::mount::metrics::Exposition;

/// All of them, for Prometheus.
pub(super) fn text(now: &Statistics) -> String {
    let mut text = Exposition::default();
    let name = "rcuwalk_nfs_call_duration_seconds";
    text.family(name, "histogram", "How long calls took, by procedure.");
    for op in &now.operations {
        let bounds = OperationStatistics::bounds().map(Some).chain([None]);
        let within = bounds.zip(op.within.iter().copied());
        text.histogram(name, (&op.name, op.time), within);
    }
    let name = "rcuwalk_nfs_call_errors_total";
    text.family(name, "counter", "Calls answered by an error, by procedure.");
    for op in &now.operations {
        text.sample(name, &[("operation", &op.name)], op.errors);
    }
    for (name, help, value) in [
        (
            "rcuwalk_nfs_calls_in_flight",
            "Calls being answered.",
            now.in_flight,
        ),
        (
            "rcuwalk_nfs_connections",
            "Connections that are open.",
            now.connections,
        ),
        (
            "rcuwalk_nfs_files",
            "Files that are held for clients.",
            now.files,
        ),
        (
            "rcuwalk_nfs_open_files",
            "Files that are open for later reads and writes.",
            now.open,
        ),
        (
            "rcuwalk_nfs_waiting_bytes",
            "Requests and answers that wait for the rest, or for their client.",
            now.waiting_bytes,
        ),
    ] {
        text.gauge(name, help, value);
    }
    for (name, help, value) in [
        (
            "rcuwalk_nfs_connections_cut_total",
            "Connections not accepted, or cut: too many, too slow, or not allowed.",
            now.cut,
        ),
        (
            "rcuwalk_nfs_calls_refused_total",
            "Calls not executed: malformed, unknown, or not allowed.",
            now.refused,
        ),
        (
            "rcuwalk_nfs_calls_repeated_total",
            "Calls that had been executed when they came again.",
            now.repeated,
        ),
        (
            "rcuwalk_nfs_faults_total",
            "Calls that have failed by a fault of the server.",
            now.faults,
        ),
    ] {
        text.counter(name, help, value);
    }
    text.caches(&now.vfs);
    text.0
}

/// A table, after `time` of serving.
pub(super) fn table(now: &Statistics, time: Duration) -> String {
    let mut text = format!("statistics after {:.1} s:\n", time.as_secs_f64());
    let _ = writeln!(
        text,
        "{:<14}{:>12}{:>10}{:>11}",
        "call", "count", "errors", "mean"
    );
    for op in &now.operations {
        let mean = op.time.as_secs_f64() * 1e6 / op.count().max(1) as f64;
        let (name, count, errors) = (&op.name, op.count(), op.errors);
        let _ = writeln!(text, "{name:<14}{count:>12}{errors:>10}{mean:>8.1} us");
    }
    let _ = writeln!(
        text,
        "{} connections, {} cut; {} files held, {} open; {} calls refused, {} repeated",
        now.connections, now.cut, now.files, now.open, now.refused, now.repeated
    );
    let vfs = &now.vfs;
    let _ = writeln!(
        text,
        "{} names and {} inodes cached; {} lookups and {} revalidations of the back end",
        vfs.dentries.0, vfs.inodes.0, vfs.slow_lookups, vfs.revalidations
    );
    text
}
