//! `rcuwalk mount --metrics`, `--stats` and SIGUSR1.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::ChildStderr;
use std::time::{Duration, Instant};

use super::mount::Mount;
use crate::common::{alone_well, can_mount, rcuwalk};

/// A mount of memfs that answers at a port; unmounted whatever becomes of the test.
struct Metered {
    mount: Mount,
    log: BufReader<ChildStderr>,
    address: String,
}

impl Metered {
    fn new() -> Metered {
        let at = tempfile::tempdir().unwrap();
        let mut command = rcuwalk(["mount", "--metrics", "127.0.0.1:0", "memfs"]);
        command.arg(at.path());
        let mut mount = Mount::started(command, at);
        let mut log = BufReader::new(mount.command.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("metrics are at") {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "has ended");
        }
        let (_, address) = line.trim().split_once("http://").unwrap();
        let address = address.strip_suffix("/metrics").unwrap().to_owned();
        Metered {
            mount,
            log,
            address,
        }
    }

    fn path(&self) -> &Path {
        self.mount.path()
    }

    /// The answer to a request; the server need not read all of the request.
    fn ask(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let _ = stream.write_all(request);
        let mut answer = String::new();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn metrics(&self) -> Exposition {
        let answer = self.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("Content-Type: text/plain; version=0.0.4"),
            "{head}"
        );
        assert!(
            head.contains(&format!("Content-Length: {}", body.len())),
            "{head}"
        );
        Exposition::parse(body)
    }
}

/// Prometheus' text format, parsed by its rules.
struct Exposition {
    /// By name and labels as they stand there.
    samples: BTreeMap<String, f64>,
}

impl Exposition {
    fn parse(text: &str) -> Exposition {
        assert!(text.ends_with('\n'));
        let mut families: BTreeMap<String, String> = BTreeMap::new();
        let mut samples = BTreeMap::new();
        let mut family = (String::new(), String::new());
        let mut helped = String::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(!help.is_empty() && help.ends_with('.'), "{line}");
                helped = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(helped, name, "a help for each type");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(
                    families.insert(name.to_owned(), kind.to_owned()).is_none(),
                    "{name} twice"
                );
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                family = (name.to_owned(), kind.to_owned());
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let name = series.split('{').next().unwrap();
                let suffixes: &[&str] = match &*family.1 {
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                let rest = name
                    .strip_prefix(&family.0)
                    .expect("samples with their type");
                assert!(suffixes.contains(&rest), "{line}");
                assert!(
                    name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                    "{line}"
                );
                let value: f64 = value.parse().unwrap();
                assert!(value >= 0.0, "{line}");
                assert!(
                    samples.insert(series.to_owned(), value).is_none(),
                    "{series} twice"
                );
            }
        }
        let exposition = Exposition { samples };
        for (name, _) in families.iter().filter(|(_, kind)| *kind == "histogram") {
            exposition.check_histogram(name);
        }
        exposition
    }

    fn check_histogram(&self, name: &str) {
        let mut by_labels: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (series, value) in &self.samples {
            let Some(labels) = series.strip_prefix(&*format!("{name}_bucket{{")) else {
                continue;
            };
            let (labels, le) = labels.split_once(",le=\"").unwrap();
            let le = le.strip_suffix("\"}").unwrap();
            let le = if le == "+Inf" {
                f64::INFINITY
            } else {
                le.parse().unwrap()
            };
            by_labels.entry(labels).or_default().push((le, *value));
        }
        for (labels, mut buckets) in by_labels {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(
                buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
                "cumulative"
            );
            let (last, all) = *buckets.last().unwrap();
            assert_eq!(last, f64::INFINITY);
            assert_eq!(self[&format!("{name}_count{{{labels}}}")], all);
            assert!(self[&format!("{name}_sum{{{labels}}}")] > 0.0);
        }
    }
}

impl std::ops::Index<&str> for Exposition {
    type Output = f64;

    fn index(&self, series: &str) -> &f64 {
        let found = self.samples.get(series);
        found.unwrap_or_else(|| panic!("no {series} in {:#?}", self.samples.keys()))
    }
}

#[test]
fn metrics_say_what_was_done() {
    if !can_mount() {
        return;
    }
    let mount = Metered::new();
    let before = mount.metrics();
    for n in 0..20 {
        fs::write(mount.path().join(format!("f{n}")), "x").unwrap();
        assert!(fs::metadata(mount.path().join("none")).is_err());
    }
    let open = fs::File::open(mount.path().join("f0")).unwrap();
    let after = mount.metrics();
    let of = |what: &str, op: &str| format!("rcuwalk_fuse_request_{what}{{operation=\"{op}\"}}");
    assert_eq!(after[&of("duration_seconds_count", "create")], 20.0);
    assert_eq!(after[&of("errors_total", "create")], 0.0);
    let refused = after[&of("errors_total", "lookup")];
    assert!(refused >= 20.0, "of names that are not there: {refused}");
    assert!(after[&of("duration_seconds_count", "lookup")] >= refused);
    assert_eq!(
        after["rcuwalk_fuse_nodes"],
        before["rcuwalk_fuse_nodes"] + 20.0
    );
    assert_eq!(after["rcuwalk_fuse_open_files"], 1.0);
    assert!(after["rcuwalk_cache_entries{cache=\"names\"}"] >= 20.0);
    assert!(after["rcuwalk_cache_bytes{cache=\"inodes\"}"] > 0.0);
    assert!(after["rcuwalk_cache_evictions_total{cache=\"inodes\"}"] >= 0.0);
    assert!(after["rcuwalk_walks_total{outcome=\"hit\"}"] >= 0.0);
    let fds = fs::read_dir(format!("/proc/{}/fd", mount.mount.command.id()));
    let (fds, said) = (fds.unwrap().count() as f64, after["process_open_fds"]);
    // The connection that asks is one of them.
    assert!((said - fds).abs() <= 2.0, "{said} of {fds}");
    drop(open);
}

#[test]
fn bad_and_slow_readers_are_sent_away_and_hold_nobody_up() {
    if !can_mount() {
        return;
    }
    let mount = Metered::new();
    // More than are served at once, that never say anything. The next one is answered while they
    // are open.
    let silent: Vec<TcpStream> = (0..64)
        .map(|_| TcpStream::connect(&mount.address).unwrap())
        .collect();
    fs::write(mount.path().join("f"), "the mount does not mind").unwrap();
    assert!(mount.is_answering(), "idle connections hold the port");
    drop(silent);
    let giant = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 20_000]].concat();
    for (request, status) in [
        (b"GET /nothing HTTP/1.1\r\n\r\n".as_slice(), "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\x16\x03\x01\x00 \xff\xfe\r\n\r\n", "400"),
        (&giant, "431"),
    ] {
        let answer = mount.ask(request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    // Gone in the middle of a word.
    let mut stream = TcpStream::connect(&mount.address).unwrap();
    stream.write_all(b"GET /met").unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    // One byte after the other, for ever: cut off after some seconds.
    let began = Instant::now();
    let mut stream = TcpStream::connect(&mount.address).unwrap();
    while stream.write_all(b"x").is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        assert!(began.elapsed() < Duration::from_secs(60), "still listens");
    }
    mount.metrics();
}

impl Metered {
    fn is_answering(&self) -> bool {
        let mut answer = String::new();
        let asked = TcpStream::connect(&self.address).and_then(|mut stream| {
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
            stream.read_to_string(&mut answer)
        });
        asked.is_ok() && answer.contains(" 200 OK")
    }
}

#[test]
fn a_signal_shows_statistics() {
    if !can_mount() {
        return;
    }
    let mut mount = Metered::new();
    fs::write(mount.path().join("f"), "x").unwrap();
    let pid = rustix::process::Pid::from_child(&mount.mount.command);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    let mut table = String::new();
    while !table.contains("descriptors") {
        assert_ne!(
            mount.log.read_line(&mut table).unwrap(),
            0,
            "has ended: {table}"
        );
    }
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("statistics after "), "{table}");
    assert!(
        lines[1].starts_with("request              count    errors       mean"),
        "{table}"
    );
    let create = lines
        .iter()
        .find(|line| line.starts_with("create "))
        .unwrap();
    assert_eq!(create.split_whitespace().nth(1), Some("1"), "{table}");
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("the kernel's  2 nodes, 0 open")),
        "{table}"
    );
}

#[test]
fn a_daemon_tells_its_port_and_its_statistics() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        ip link set lo up 2> said || true
        "$RCUWALK" mount -d --stats --log-file log --metrics 127.0.0.1:0 memfs mnt 2> said
        grep -q '^rcuwalk: metrics are at http://127.0.0.1:[0-9]*/metrics$' said
        "$RCUWALK" mounts --json | grep -q '"metrics": "http://127.0.0.1:[0-9]*/metrics"'
        touch mnt/f
        umount mnt; gone
        grep -q '^create  *1 ' log
        # By a socket, whose name goes with it, and makes way if it could not.
        "$RCUWALK" mount -d -o metrics=unix:here memfs mnt 2> said
        kill -KILL $(daemon); gone; "$RCUWALK" umount mnt; [ -S here ]
        "$RCUWALK" mount -d -o metrics=unix:here memfs mnt 2> said
        perl -MIO::Socket::UNIX -e '
            my $s = IO::Socket::UNIX->new(Peer => "here") or die;
            print $s "GET /metrics HTTP/1.1\r\n\r\n"; print while <$s>;
        ' | grep '^rcuwalk_fuse_nodes'
        fails "$RCUWALK" mount --metrics unix:here memfs src
        umount mnt; gone
        ls here 2> said || echo gone
        "#,
    );
    assert_eq!(ended.out, "rcuwalk_fuse_nodes 1\ngone\n");
    assert_eq!(
        ended.err,
        "rcuwalk: cannot listen at unix:/run/here: address in use\n"
    );
}
