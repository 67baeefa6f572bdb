//! The guarantees of a scan, on trees made for it.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rcuwalk::scan::{Ended, ScanEntry, Visitor};
use rcuwalk::{Attr, FileType};
use rustix::fs::{CWD, Mode, OFlags};

use super::{HostScan, Order};

/// Everything that was delivered.
#[derive(Default)]
struct Recorder {
    entries: Vec<(Vec<u8>, Attr, Option<Vec<u8>>)>,
    problems: Vec<(Vec<u8>, String)>,
}

impl Visitor for Recorder {
    fn entry(&mut self, entry: &ScanEntry<'_>) -> ControlFlow<()> {
        let mut path = Vec::new();
        entry.path_into(&mut path);
        let target = entry.target.map(<[u8]>::to_vec);
        self.entries.push((path, *entry.attr, target));
        ControlFlow::Continue(())
    }

    fn problem(&mut self, path: &[u8], error: &dyn std::error::Error) -> ControlFlow<()> {
        self.problems.push((path.to_vec(), error.to_string()));
        ControlFlow::Continue(())
    }
}

fn visitors(threads: usize) -> Vec<Recorder> {
    (0..threads).map(|_| Recorder::default()).collect()
}

/// By path; a path that comes twice fails.
fn scan(scan: &HostScan, threads: usize) -> BTreeMap<Vec<u8>, (Attr, Option<Vec<u8>>)> {
    let (seen, ended) = scan.run(&AtomicBool::new(false), visitors(threads));
    assert_eq!(ended, Ended::Complete);
    let mut all = BTreeMap::new();
    for seen in seen {
        assert_eq!(seen.problems, []);
        for (path, attr, target) in seen.entries {
            let shown = path.escape_ascii().to_string();
            assert!(all.insert(path, (attr, target)).is_none(), "twice: {shown}");
        }
    }
    all
}

/// Scans with std, slowly.
fn expected(root: &Path) -> BTreeMap<Vec<u8>, u64> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let attr = fs::symlink_metadata(&path).unwrap();
        let relative = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
        all.insert(relative.to_vec(), attr.ino());
        if attr.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    all
}

fn tree(dirs: usize, files: usize) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for d in 0..dirs {
        let dir = root.path().join(format!("d{}/e{d}", d % 3));
        fs::create_dir_all(&dir).unwrap();
        for f in 0..files {
            fs::write(dir.join(format!("f{f}")), b"x").unwrap();
        }
    }
    root
}

/// DIR-1: whatever the threads, the order and the descriptors, each entry comes once.
#[test]
fn every_entry_comes_once() {
    let root = tree(20, 30);
    // One directory of several parts, which threads share.
    for i in 0..5000 {
        fs::write(root.path().join(format!("d0/wide{i}")), b"").unwrap();
    }
    let expected = expected(root.path());
    for (threads, order, most) in [
        (1, Order::Listed, 512),
        (4, Order::Listed, 512),
        (4, Order::Inode, 512),
        (3, Order::Inode, 0),
        (8, Order::Listed, 0),
    ] {
        let host = HostScan::new(root.path()).unwrap();
        let seen = scan(&host.order(order).descriptors(most), threads);
        let inos: BTreeMap<_, _> = seen
            .into_iter()
            .map(|(p, (attr, _))| (p, attr.ino))
            .collect();
        assert_eq!(inos, expected, "DIR-1: {threads} threads, {order:?}");
    }
}

/// WALK-3: links are entries, with their targets, and lead nowhere.
#[test]
fn links_are_not_followed() {
    let root = tree(1, 1);
    symlink("..", root.path().join("d0/up")).unwrap();
    symlink("/etc", root.path().join("out")).unwrap();
    let host = HostScan::new(root.path()).unwrap();
    let seen = scan(&host, 2);
    assert_eq!(seen.len(), expected(root.path()).len(), "WALK-3");
    let (attr, target) = &seen[&b"d0/up"[..]];
    assert_eq!(attr.kind, FileType::Symlink);
    assert_eq!(target.as_deref(), Some(&b".."[..]));
    let unread = scan(&HostScan::new(root.path()).unwrap().targets(false), 1);
    assert_eq!(unread[&b"out"[..]].1, None);
}

/// Makes a chain of directories below `root`, each with a file and a sister directory.
fn chain(root: &Path, depth: usize, name: &str) {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut at = rustix::fs::openat(CWD, root, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        for made in [name, "sister"] {
            rustix::fs::mkdirat(&at, made, Mode::RWXU).unwrap();
        }
        at = rustix::fs::openat(&at, name, flags, Mode::empty()).unwrap();
    }
}

/// MEM-1: a tree deeper than `PATH_MAX` and than there are descriptors is scanned whole.
#[test]
fn depth_is_no_limit() {
    let root = tempfile::tempdir().unwrap();
    let (depth, name) = (700, "n".repeat(50));
    chain(root.path(), depth, &name);
    for (threads, most) in [(1, 0), (2, 20), (2, 512)] {
        let host = HostScan::new(root.path()).unwrap().descriptors(most);
        let seen = scan(&host, threads);
        assert_eq!(
            seen.len(),
            1 + 2 * depth,
            "MEM-1: {threads} threads, {most}"
        );
        let deepest = seen.keys().map(Vec::len).max().unwrap();
        assert_eq!(deepest, depth * 51 - 1);
    }
}

/// A visitor that stops the scan after some entries.
struct Stops<'a> {
    left: &'a AtomicU64,
    seen: u64,
}

impl Visitor for Stops<'_> {
    fn entry(&mut self, _: &ScanEntry<'_>) -> ControlFlow<()> {
        self.seen += 1;
        let left = self
            .left
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        if left.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    fn problem(&mut self, _: &[u8], _: &dyn std::error::Error) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// EDGE-1: `Break` from one visitor, or the flag, ends all threads.
#[test]
fn a_scan_can_be_stopped() {
    let root = tree(50, 50);
    let host = HostScan::new(root.path()).unwrap();
    for most in [0, 100] {
        let left = AtomicU64::new(most);
        let visitors = (0..4)
            .map(|_| Stops {
                left: &left,
                seen: 0,
            })
            .collect();
        let (visitors, ended) = host.run(&AtomicBool::new(false), visitors);
        assert_eq!(ended, Ended::Early, "EDGE-1");
        let seen: u64 = visitors.iter().map(|visitor| visitor.seen).sum();
        assert!(seen < most + 10, "EDGE-1: {seen} entries after {most}");
    }
    let (seen, ended) = host.run(&AtomicBool::new(true), visitors(3));
    assert_eq!(ended, Ended::Early, "EDGE-1");
    assert!(seen.iter().map(|seen| seen.entries.len()).sum::<usize>() <= 1);
}

/// EDGE-1: entries that vanish while they are scanned are no problems.
#[test]
fn what_vanishes_is_no_problem() {
    let root = tree(30, 200);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| {
            for d in 0..30 {
                fs::remove_dir_all(root.path().join(format!("d{}/e{d}", d % 3))).unwrap();
            }
            done.store(true, Relaxed);
        });
        let host = HostScan::new(root.path()).unwrap();
        while !done.load(Relaxed) {
            let (seen, ended) = host.run(&AtomicBool::new(false), visitors(3));
            assert_eq!(ended, Ended::Complete);
            let problems: Vec<_> = seen.iter().flat_map(|seen| &seen.problems).collect();
            assert!(problems.is_empty(), "EDGE-1: {problems:?}");
        }
        remover.join().unwrap();
    });
}

/// EDGE-1: handles are the kernel's, and tell the generation where they hold it.
#[test]
fn handles_are_told_if_wanted() {
    struct Handles(u64);
    impl Visitor for Handles {
        fn entry(&mut self, entry: &ScanEntry<'_>) -> ControlFlow<()> {
            if let Some((kind, bytes)) = entry.handle {
                assert!(!bytes.is_empty());
                let inside = bytes.get(..4).and_then(|ino| ino.try_into().ok());
                if (kind, bytes.len()) == (1, 8) {
                    let ino = inside.map(u32::from_ne_bytes).map(u64::from);
                    assert_eq!(ino, Some(entry.attr.ino), "EDGE-1");
                    assert!(entry.generation.is_some(), "EDGE-1");
                }
                self.0 += 1;
            }
            ControlFlow::Continue(())
        }
        fn problem(&mut self, _: &[u8], error: &dyn std::error::Error) -> ControlFlow<()> {
            panic!("{error}")
        }
    }
    let root = tree(2, 2);
    symlink("nowhere", root.path().join("link")).unwrap();
    let plain = HostScan::new(root.path()).unwrap();
    let (none, _) = plain.run(&AtomicBool::new(false), vec![Handles(0)]);
    assert_eq!(none[0].0, 0);
    // A file system may have none; this one may be such.
    let with = plain.handles(true);
    let (some, ended) = with.run(&AtomicBool::new(false), vec![Handles(0)]);
    assert_eq!(ended, Ended::Complete);
    let count = expected(root.path()).len() as u64;
    assert!([0, count].contains(&some[0].0), "{} handles", some[0].0);
}

/// EDGE-1: a root that is no directory is told with its path.
#[test]
fn a_bad_root_is_named() {
    let err = HostScan::new("/dev/null").unwrap_err();
    assert_eq!(
        err.to_string(),
        "cannot use /dev/null as root: not a directory"
    );
}

/// A panic in a visitor comes out of `run`; the other threads do not wait for ever.
#[test]
#[should_panic(expected = "enough")]
fn a_panic_ends_the_scan() {
    struct Panics;
    impl Visitor for Panics {
        fn entry(&mut self, entry: &ScanEntry<'_>) -> ControlFlow<()> {
            assert!(entry.name.is_empty(), "enough");
            ControlFlow::Continue(())
        }
        fn problem(&mut self, _: &[u8], _: &dyn std::error::Error) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
    }
    let root = tree(3, 3);
    let host = HostScan::new(root.path()).unwrap();
    host.run(&AtomicBool::new(false), vec![Panics, Panics, Panics]);
}
