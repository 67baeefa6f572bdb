//! Figures in Prometheus' words: its text format, version 0.0.4.

use std::fmt::{Display, Write};
use std::time::Duration;

use rcuwalk::Why;
use rcuwalk_fuse::{OperationStatistics, Statistics};

pub(crate) const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All of them.
pub(crate) fn text(now: &Statistics) -> String {
    let mut text = Exposition(String::new());
    requests(&mut text, now);
    kernel(&mut text, now);
    text.caches(&now.vfs);
    text.0
}

fn requests(text: &mut Exposition, now: &Statistics) {
    let name = "rcuwalk_fuse_request_duration_seconds";
    text.family(name, "histogram", "How long requests took, by kind.");
    for op in &now.operations {
        text.histogram(name, (&op.name, op.time), bounded(op));
    }
    let name = "rcuwalk_fuse_request_errors_total";
    text.family(name, "counter", "Requests answered by an error, by kind.");
    for op in &now.operations {
        text.sample(name, &[("operation", &op.name)], op.errors);
    }
    text.gauge(
        "rcuwalk_fuse_requests_in_flight",
        "Requests being answered.",
        now.in_flight,
    );
    let stuck = &now.stuck;
    text.gauge(
        "rcuwalk_fuse_requests_stuck",
        "Requests that have been answered for more than five seconds.",
        stuck.stuck,
    );
    text.gauge(
        "rcuwalk_fuse_oldest_request_seconds",
        "For how long the oldest request has been answered.",
        stuck.oldest.as_secs_f64(),
    );
    text.counter(
        "rcuwalk_fuse_requests_refused_total",
        "Requests refused because too many others were stuck.",
        stuck.refused,
    );
    text.gauge(
        "rcuwalk_fuse_threads",
        "Threads that answer.",
        stuck.threads,
    );
    let name = "rcuwalk_fuse_notices_total";
    text.family(name, "counter", "Notices of changes behind the mount.");
    for (what, count) in [
        ("name", now.told.names),
        ("inode", now.told.inodes),
        ("everything", now.told.everything),
    ] {
        text.sample(name, &[("of", what)], count);
    }
}

/// The bounds of a histogram, with the requests within each.
fn bounded(op: &OperationStatistics) -> impl Iterator<Item = (Option<Duration>, u64)> {
    let bounds = OperationStatistics::bounds().map(Some).chain([None]);
    bounds.zip(op.within.iter().copied())
}

fn kernel(text: &mut Exposition, now: &Statistics) {
    text.gauge(
        "rcuwalk_fuse_nodes",
        "Nodes that the kernel has looked up and not forgotten.",
        now.nodes,
    );
    let nodes = &now.node_budget;
    text.gauge(
        "rcuwalk_fuse_max_nodes",
        "Nodes that it is to hold at most, beside those that it uses.",
        nodes.max,
    );
    text.gauge(
        "rcuwalk_fuse_peak_nodes",
        "The most that it has held.",
        nodes.peak,
    );
    text.counter(
        "rcuwalk_fuse_notify_asked_total",
        "Nodes that it was asked to drop if it does not use them.",
        nodes.asked,
    );
    text.counter(
        "rcuwalk_fuse_notify_unknown_total",
        "Those that it did not know any more; it tells before kernel 6.18.",
        nodes.unknown,
    );
    text.counter(
        "rcuwalk_fuse_notify_failed_total",
        "Those that it could not be asked about.",
        nodes.failed,
    );
    text.counter(
        "rcuwalk_fuse_notify_in_use_total",
        "Times that it was left alone, using nearly all that it held.",
        nodes.in_use,
    );
    text.counter(
        "rcuwalk_fuse_forgets_total",
        "FORGETs that it has sent.",
        nodes.forgets,
    );
    text.counter(
        "rcuwalk_fuse_requests_slowed_total",
        "Requests that have waited a little because there were too many nodes.",
        nodes.slowed,
    );
    text.gauge(
        "rcuwalk_fuse_open_files",
        "Files and directories that are open through the mount.",
        now.open,
    );
}

fn caches(text: &mut Exposition, vfs: &rcuwalk::Statistics) {
    let held = [
        ("names", vfs.dentries, vfs.dentries_evicted),
        ("inodes", vfs.inodes, vfs.inodes_evicted),
    ];
    let name = "rcuwalk_cache_entries";
    text.family(name, "gauge", "Entries in a cache.");
    for (cache, (entries, _), _) in held {
        text.sample(name, &[("cache", cache)], entries);
    }
    let name = "rcuwalk_cache_bytes";
    text.family(name, "gauge", "Memory of a cache.");
    for (cache, (_, bytes), _) in held {
        text.sample(name, &[("cache", cache)], bytes);
    }
    let name = "rcuwalk_cache_evictions_total";
    text.family(
        name,
        "counter",
        "Entries dropped to stay within the budget.",
    );
    for (cache, _, evicted) in held {
        text.sample(name, &[("cache", cache)], evicted);
    }
    text.gauge(
        "rcuwalk_cache_fds",
        "Descriptors that the back end keeps with cached inodes.",
        vfs.fds,
    );
}

fn walks(text: &mut Exposition, vfs: &rcuwalk::Statistics) {
    let name = "rcuwalk_walks_total";
    text.family(
        name,
        "counter",
        "Path walks: answered from the cache (hit, negative_hit, refused), or with references taken (slow).",
    );
    for (outcome, count) in [
        ("hit", vfs.hits),
        ("negative_hit", vfs.negative_hits),
        ("refused", vfs.refused),
        ("slow", vfs.ref_walks),
    ] {
        text.sample(name, &[("outcome", outcome)], count);
    }
    for (name, help, counts) in [
        (
            "rcuwalk_walks_unlazied_total",
            "Walks under RCU that went on with references, by reason.",
            &vfs.unlazied,
        ),
        (
            "rcuwalk_walks_restarted_total",
            "Walks under RCU that started again, by reason.",
            &vfs.restarts,
        ),
    ] {
        text.family(name, "counter", help);
        for (why, count) in Why::ALL.iter().zip(counts) {
            text.sample(name, &[("reason", reason(*why))], count);
        }
    }
    text.counter(
        "rcuwalk_backend_lookups_total",
        "Names that the back end was asked for.",
        vfs.slow_lookups,
    );
    text.counter(
        "rcuwalk_backend_revalidations_total",
        "Cached names that the back end was asked to confirm.",
        vfs.revalidations,
    );
}

fn reason(why: Why) -> &'static str {
    match why {
        Why::NotCached => "not_cached",
        Why::Moved => "moved",
        Why::MountsChanged => "mounts_changed",
        Why::Revalidate => "revalidate",
        Why::LinkNotCached => "link_not_cached",
        Why::AclNotCached => "acl_not_cached",
        Why::Dying => "dying",
    }
}

/// By the names that Prometheus' own libraries have for them.
fn process(text: &mut Exposition) {
    if let Some(fds) = open_descriptors() {
        text.gauge("process_open_fds", "Open descriptors.", fds);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if let Some(limit) = limit.current {
        text.gauge("process_max_fds", "Descriptors that may be open.", limit);
    }
    if let Some(bytes) = resident_bytes() {
        let name = "process_resident_memory_bytes";
        text.gauge(name, "Resident memory.", bytes);
    }
}

/// Descriptors of this process, without the one that they are counted with.
pub(crate) fn open_descriptors() -> Option<usize> {
    let listing = rcuwalk_procfs::open("self/fd").ok()?;
    let entries = rustix::fs::Dir::read_from(listing).ok()?.flatten();
    let is_number = |name: &std::ffi::CStr| name.to_bytes().iter().all(u8::is_ascii_digit);
    let fds = entries.filter(|entry| is_number(entry.file_name())).count();
    // `read_from` opens the directory once more.
    Some(fds.saturating_sub(2))
}

pub(crate) fn resident_bytes() -> Option<usize> {
    let statm = rcuwalk_procfs::read_to_string("self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}

/// A page in the text exposition format of Prometheus. A family has a help, a type, and its
/// samples, all together.
#[derive(Default)]
pub(crate) struct Exposition(pub(crate) String);

impl Exposition {
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// No label's value is anything but letters, figures and `+_.`: nothing to escape.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{value}\""))
            .collect();
        let _ = match labels.is_empty() {
            true => writeln!(self.0, "{name} {value}"),
            false => writeln!(self.0, "{name}{{{}}} {value}", labels.join(",")),
        };
    }

    /// The samples of one kind of request: how many took how long. `within` are the bounds, the last
    /// of which is none, and how many requests each has beyond the previous one.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        (operation, time): (&str, Duration),
        within: impl Iterator<Item = (Option<Duration>, u64)>,
    ) {
        let bucket = format!("{name}_bucket");
        let mut sum = 0;
        for (bound, within) in within {
            sum += within;
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
            self.sample(&bucket, &[("operation", operation), ("le", &bound)], sum);
        }
        let of = [("operation", operation)];
        self.sample(&format!("{name}_sum"), &of, time.as_secs_f64());
        self.sample(&format!("{name}_count"), &of, sum);
    }

    /// The caches behind a front end, and the process.
    pub(crate) fn caches(&mut self, vfs: &rcuwalk::Statistics) {
        caches(self, vfs);
        walks(self, vfs);
        process(self);
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }
}
