//! Scans of images that mke2fs filled, against the directory they were filled from, and of
//! images in which something is wrong.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicUsize;

use rcuwalk::{Attr, FileType};

use super::*;
use crate::checksum::Checksums;
use crate::testing::Image;

const BOTH: [Order; 2] = [Order::Tree, Order::Inode];

/// Attributes, generation and link target of an entry.
type EntryData = (Attr, Option<u32>, Option<Vec<u8>>);

/// Keeps what it gets, and has had enough after so many.
struct Keep<'a> {
    entries: Vec<(Vec<u8>, EntryData)>,
    problems: Vec<(Vec<u8>, String)>,
    /// All visitors' together.
    count: &'a AtomicUsize,
    enough: usize,
    /// Raised when there is enough, in place of breaking.
    stop: Option<&'a AtomicBool>,
}

impl Visitor for Keep<'_> {
    fn entry(&mut self, entry: &ScanEntry<'_>) -> ControlFlow<()> {
        let mut path = Vec::new();
        entry.path_into(&mut path);
        let target = entry.target.map(<[u8]>::to_vec);
        assert!(entry.handle.is_none());
        self.entries
            .push((path, (*entry.attr, entry.generation, target)));
        if self.count.fetch_add(1, Relaxed) + 1 < self.enough {
            return ControlFlow::Continue(());
        }
        match self.stop {
            Some(stop) => {
                stop.store(true, Relaxed);
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        }
    }

    fn problem(&mut self, path: &[u8], error: &dyn std::error::Error) -> ControlFlow<()> {
        self.problems.push((path.to_vec(), error.to_string()));
        ControlFlow::Continue(())
    }
}

/// What a whole scan found, by path.
#[derive(Debug, PartialEq)]
struct Scanned {
    entries: BTreeMap<Vec<u8>, EntryData>,
    problems: Vec<(Vec<u8>, String)>,
}

impl Scanned {
    fn paths(&self) -> Vec<String> {
        let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        self.entries.keys().map(text).collect()
    }

    fn problems(&self) -> Vec<(String, &str)> {
        let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        let problems = self.problems.iter();
        problems
            .map(|(path, why)| (text(path), why.as_str()))
            .collect()
    }
}

fn open(bytes: Vec<u8>) -> Ext4 {
    let options = Ext4::options().cache_bytes(1 << 20);
    options.open_source(bytes).unwrap()
}

/// Scans to the end; each path must come once.
fn scan(ext4: &Ext4, order: Order, threads: usize) -> Scanned {
    scan_with(ext4.scan().order(order), threads)
}

fn scan_with(scan: ImageScan<'_>, threads: usize) -> Scanned {
    let count = AtomicUsize::new(0);
    let never = AtomicBool::new(false);
    let (found, ended) = run(&scan, threads, &count, usize::MAX, &never, false);
    assert_eq!(ended, Ended::Complete);
    let mut problems = Vec::new();
    let mut entries = BTreeMap::new();
    for keep in found {
        problems.extend(keep.problems);
        for (path, said) in keep.entries {
            let path_text = path.escape_ascii().to_string();
            assert_eq!(entries.insert(path, said), None, "{path_text} came twice");
        }
    }
    problems.sort();
    Scanned { entries, problems }
}

/// Scans until `enough` entries have come, and then breaks, or raises `stop`.
fn run<'a>(
    scan: &ImageScan<'_>,
    threads: usize,
    count: &'a AtomicUsize,
    enough: usize,
    stop: &'a AtomicBool,
    raises: bool,
) -> (Vec<Keep<'a>>, Ended) {
    let visitor = |_| Keep {
        entries: Vec::new(),
        problems: Vec::new(),
        count,
        enough,
        stop: raises.then_some(stop),
    };
    scan.run(stop, (0..threads).map(visitor).collect())
}

/// The same from both orders and any number of threads, or a panic.
fn scan_all_ways(ext4: &Ext4, what: &str) -> Scanned {
    let first = scan(ext4, Order::Tree, 1);
    for order in BOTH {
        for threads in [1, 2, 7] {
            let again = scan(ext4, order, threads);
            assert!(again == first, "{what}, {order:?}, {threads} threads");
        }
    }
    first
}

/// A tree with some of everything that can be made without rights.
fn fill(tree: &Path) {
    for dir in 0..30 {
        let dir = tree.join(format!("d{dir}")).join("below");
        fs::create_dir_all(&dir).unwrap();
        for file in 0..10 {
            fs::write(dir.join(format!("f{file}")), vec![b'x'; file * 500]).unwrap();
        }
    }
    // Enough for an index, with names of all lengths.
    let large = tree.join("large");
    fs::create_dir(&large).unwrap();
    for number in 0..700 {
        let name = format!("{number:0>width$}", width = 4 + number % 200);
        fs::write(large.join(name), b"").unwrap();
    }
    for (number, length) in [1, 59, 60, 61, 150, 900].into_iter().enumerate() {
        symlink("t".repeat(length), tree.join(format!("link{number}"))).unwrap();
    }
    fs::hard_link(tree.join("d1/below/f1"), tree.join("large/again")).unwrap();
    fs::hard_link(tree.join("d1/below/f1"), tree.join("d2/and again")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
}

/// What a scan of the tree's image has to say, without what the tree does not know.
fn expect(tree: &Path, at: &Path, all: &mut BTreeMap<Vec<u8>, String>) {
    let path = at.strip_prefix(tree).unwrap().as_os_str().as_bytes();
    let found = fs::symlink_metadata(at).unwrap();
    let target = fs::read_link(at).ok();
    let target = target.map(|target| target.into_os_string().into_encoded_bytes());
    all.insert(path.to_vec(), show_host(&found, target.as_deref()));
    if found.is_dir() {
        for entry in fs::read_dir(at).unwrap() {
            expect(tree, &entry.unwrap().path(), all);
        }
    }
}

fn show_host(found: &fs::Metadata, target: Option<&[u8]>) -> String {
    let size = (!found.is_dir()).then_some(found.len());
    // The root is mke2fs's own, and root's.
    format!(
        "{:o} {:?} {size:?} {} {target:?}",
        found.mode(),
        (found.uid(), found.gid()),
        found.nlink(),
    )
}

fn show_ours(attr: &Attr, target: Option<&[u8]>) -> String {
    let size = (attr.kind != FileType::Directory).then_some(attr.size);
    format!(
        "{:o} {:?} {size:?} {} {target:?}",
        attr.st_mode(),
        (attr.uid, attr.gid),
        attr.nlink,
    )
}

/// What images are made with, and whether their directories get an index.
const KINDS: &[(&str, &[&str], bool)] = &[
    ("the default", &[], true),
    ("small blocks", &["-b", "1024", "-g", "4096"], true),
    ("ext2", &["-t", "ext2", "-b", "1024"], false),
    ("ext3", &["-t", "ext3", "-b", "1024", "-I", "128"], true),
    ("inline_data", &["-O", "inline_data", "-I", "512"], false),
    ("bigalloc", &["-O", "bigalloc", "-C", "16384"], true),
    (
        "no checksums, meta_bg",
        &[
            "-O",
            "^metadata_csum,meta_bg,^resize_inode",
            "-b",
            "1024",
            "-g",
            "1024",
        ],
        false,
    ),
];

/// EDGE-1: every name comes once, with what the file it was made from has; in both orders
/// and with any number of threads.
#[test]
fn every_entry_comes_once_and_as_it_is() {
    for (kind, options, indexed) in KINDS {
        let Some(image) = Image::make("24M", options, fill) else {
            return;
        };
        if *indexed {
            index(&image);
        }
        let ext4 = open(image.bytes());
        let found = scan_all_ways(&ext4, kind);
        assert_eq!(found.problems(), [], "{kind}");

        let mut expected = BTreeMap::new();
        expect(&image.tree(), &image.tree(), &mut expected);
        let mut ours: BTreeMap<_, _> = found
            .entries
            .iter()
            .map(|(path, (attr, _, target))| (path.clone(), show_ours(attr, target.as_deref())))
            .collect();
        assert!(ours.remove(&b"lost+found"[..]).is_some(), "{kind}");
        // mke2fs makes both of these its own way.
        assert!(ours.remove(&b""[..]).is_some() && expected.remove(&b""[..]).is_some());
        assert_eq!(ours.len(), expected.len(), "{kind}");
        for (path, said) in &expected {
            let path_text = path.escape_ascii();
            assert_eq!(ours.get(path), Some(said), "{kind}: {path_text}");
        }

        // The numbers are what debugfs finds, and one for all names of a file.
        let names = [
            "d1/below/f1",
            "large/again",
            "d2/and again",
            "large",
            "link3",
        ];
        let inos = names.map(|name| found.entries[name.as_bytes()].0.ino);
        assert_eq!((inos[0], inos[0]), (inos[1], inos[2]), "{kind}");
        let asked = [0, 1, 3, 4].map(|index| format!("/{}", names[index]));
        let theirs = image.inos(&asked);
        let ours = [inos[0], inos[1], inos[3], inos[4]].map(|ino| ino as u32);
        assert_eq!(ours, *theirs, "{kind}");
        for (path, (attr, generation, _)) in &found.entries {
            let inode = ext4.inode(attr.ino as u32).unwrap();
            let alone = (inode.attr, Some(inode.generation));
            assert_eq!((*attr, *generation), alone, "{}", path.escape_ascii());
        }
    }
}

fn index(image: &Image) {
    let done = Command::new("e2fsck")
        .arg("-fyD")
        .arg(image.path())
        .output()
        .unwrap();
    assert!(matches!(done.status.code(), Some(0 | 1)), "{done:?}");
}

/// Devices, pipes and sockets come with their numbers, also from a table that has no room
/// for them; and so do generations and what else only debugfs can set.
#[test]
fn what_debugfs_alone_can_make_comes_too() {
    let Some(image) = Image::make("4M", &[], |tree| {
        fs::create_dir(tree.join("dir")).unwrap();
        fs::write(tree.join("dir/file"), b"contents").unwrap();
    }) else {
        return;
    };
    image.debugfs(&[
        "mknod old b 8 17",
        "mknod new c 300 60000",
        "mknod pipe p",
        "sif /dir/file generation 77",
        "sif /dir/file uid 4000000001",
        "sif /dir/file mtime 0x10",
        "sif /dir/file mtime_extra 3",
    ]);
    let found = scan_all_ways(&open(image.bytes()), "devices");
    assert_eq!(found.problems(), []);
    let attr = |path: &str| found.entries[path.as_bytes()].0;
    assert_eq!(attr("old").rdev, libc::makedev(8, 17));
    assert_eq!(attr("old").kind, FileType::BlockDevice);
    assert_eq!(attr("new").rdev, libc::makedev(300, 60_000));
    assert_eq!(attr("pipe").kind, FileType::Fifo);
    let (file, generation, _) = &found.entries[&b"dir/file"[..]];
    assert_eq!((file.uid, *generation), (4_000_000_001, Some(77)));
    assert_eq!(file.mtime.sec, (3 << 32) + 0x10);
}

/// Targets are delivered unchanged, or not at all if the visitor does not want them; an
/// unreadable target is a problem, and its link is still delivered.
#[test]
fn targets_are_read_if_they_are_wanted() {
    let Some(image) = Image::make("4M", &["-O", "encrypt"], |tree| {
        symlink("short", tree.join("fast")).unwrap();
        symlink("long/".repeat(100), tree.join("slow")).unwrap();
        symlink("secret", tree.join("crypt")).unwrap();
    }) else {
        return;
    };
    image.debugfs(&["sif /crypt flags 0x800"]);
    let ext4 = open(image.bytes());
    let found = scan_all_ways(&ext4, "targets");
    let target = |path: &str| found.entries[path.as_bytes()].2.clone();
    assert_eq!(target("fast").unwrap(), b"short");
    assert_eq!(target("slow").unwrap(), b"long/".repeat(100));
    assert_eq!(target("crypt"), None);
    let refused = "unsupported feature: encryption";
    assert_eq!(found.problems(), [("crypt".into(), refused)]);

    for order in BOTH {
        let without = scan_with(ext4.scan().order(order).targets(false), 2);
        assert_eq!(without.problems(), []);
        assert_eq!(without.paths(), found.paths());
        assert!(without.entries.values().all(|said| said.2.is_none()));
    }
}

/// A visitor that returns false and a raised stop flag both end the scan soon, on all threads,
/// and the result says so.
#[test]
fn a_scan_that_is_stopped_ends_early() {
    let Some(image) = Image::make("24M", &["-b", "1024"], fill) else {
        return;
    };
    let ext4 = open(image.bytes());
    let all = scan(&ext4, Order::Tree, 1).entries.len();
    for order in BOTH {
        let scan = ext4.scan().order(order);
        for threads in [1, 3] {
            for raises in [false, true] {
                for enough in [1, 50] {
                    let (count, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
                    let (found, ended) = run(&scan, threads, &count, enough, &stop, raises);
                    let what = format!("{order:?}, {threads} threads, {raises}, {enough}");
                    assert_eq!(ended, Ended::Early, "{what}");
                    assert_eq!(found.len(), threads, "{what}");
                    // Entries of a block that is already being delivered may still arrive.
                    let came = count.load(Relaxed);
                    assert!((enough..all).contains(&came), "{what}: {came} of {all}");
                }
            }
            let (count, stop) = (AtomicUsize::new(0), AtomicBool::new(true));
            let (_, ended) = run(&scan, threads, &count, usize::MAX, &stop, false);
            assert_eq!(ended, Ended::Early);
            assert!(count.load(Relaxed) <= 1, "the root, at most");
        }
        // The visitor was told nothing, so the summary must not look complete.
        let (visitors, ended) = scan.run(&AtomicBool::new(false), Vec::<Keep<'_>>::new());
        assert!(visitors.is_empty());
        assert_eq!(ended, Ended::Early);
    }
}

/// Damage is reported where it is, and everything else is delivered.
#[test]
fn damage_costs_what_is_damaged_and_nothing_else() {
    let Some(image) = Image::make("24M", &["-b", "1024", "-g", "4096"], fill) else {
        return;
    };
    let sound = open(image.bytes());
    let all = scan(&sound, Order::Tree, 1).paths();
    let volume = &sound.volume;
    let inode_at = |path: &str| {
        let (ino, per_group) = (image.ino(path), volume.super_block().inodes_per_group());
        let group = (ino - 1) / per_group;
        let table = volume.groups().inode_table(volume, group).unwrap() as usize;
        table * 1024 + ((ino - 1) % per_group) as usize * volume.super_block().inode_size()
    };
    let block_of = |path: &str| {
        let inode = volume.inode(image.ino(path)).unwrap();
        volume.map(&inode, 0).unwrap().physical.unwrap() as usize * 1024
    };
    let below = |dir: &str| {
        let is_below = |path: &&String| path.strip_prefix(dir).is_some_and(|p| p.starts_with('/'));
        all.iter().filter(is_below).count()
    };

    // (what, the byte, the path of the problem, how many names are lost)
    let file_inode = inode_at("/d3/below/f3");
    let dir_inode = inode_at("/d4");
    let dir_block = block_of("/d5/below");
    let root_inode = inode_at("/");
    let cases = [
        ("a file's inode", file_inode + 4, "d3/below/f3", 1),
        ("a directory's inode", dir_inode + 4, "d4", 1 + below("d4")),
        (
            "a directory's block",
            dir_block + 30,
            "d5/below",
            below("d5/below"),
        ),
        ("the root's inode", root_inode + 4, "", all.len()),
    ];
    for (what, byte, path, lost) in cases {
        let mut bytes = image.bytes();
        bytes[byte] ^= 0x10;
        let ext4 = open(bytes);
        let found = scan_all_ways(&ext4, what);
        let problems = found.problems();
        assert_eq!(problems.len(), 1, "{what}: {problems:?}");
        assert_eq!(problems[0].0, path, "{what}: {problems:?}");
        assert!(problems[0].1.contains("checksum"), "{what}: {problems:?}");
        assert_eq!(found.entries.len(), all.len() - lost, "{what}");
    }

    // A group's descriptor: its inodes are all lost, and the others are not.
    let group = 1;
    let descriptors = volume.super_block().descriptor_block(0) as usize * 1024;
    let mut bytes = image.bytes();
    bytes[descriptors + group * volume.super_block().descriptor_size() + 4] ^= 1;
    let found = scan_all_ways(&open(bytes), "a group");
    assert!(found.problems.len() > 1 && found.entries.len() > 1);
    let of_group = format!("group {group}: the checksum of this group descriptor does not match");
    assert!(found.problems().iter().all(|problem| problem.1 == of_group));
    let lost = found
        .problems()
        .iter()
        .map(|(path, _)| 1 + below(path))
        .sum::<usize>();
    assert_eq!(found.entries.len() + lost, all.len());
}

/// A directory that has two names, or is within itself, is visited once, and reported.
#[test]
fn a_directory_in_two_places_is_visited_once() {
    let Some(image) = Image::make("4M", &[], |tree| {
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), b"").unwrap();
        fs::create_dir_all(tree.join("c/d")).unwrap();
        fs::write(tree.join("c/d/file"), b"").unwrap();
    }) else {
        return;
    };
    image.debugfs(&["ln /a /a/b/loop", "ln / /c/root", "ln /a/b /a/b/self"]);
    let ext4 = open(image.bytes());
    let [a, b] = ["/a", "/a/b"].map(|path| image.ino(path));
    let found = scan_all_ways(&ext4, "loops");
    let own =
        format!("inode {b}: bad inode: an entry for inode {b}, which is the directory itself");
    let second = |dir, ino| format!("inode {dir}: bad inode: a second name for directory {ino}");
    let c = image.ino("/c");
    assert_eq!(
        found.problems(),
        [
            ("a/b/loop".into(), second(b, a).as_str()),
            ("a/b/self".into(), own.as_str()),
            ("c/root".into(), second(c, 2).as_str()),
        ]
    );
    let files = found
        .paths()
        .into_iter()
        .filter(|path| path.ends_with("file"));
    assert_eq!(files.collect::<Vec<_>>(), ["a/b/file", "c/d/file"]);

    // Either name may come first; the entries below it are delivered once in both cases.
    image.debugfs(&["ln /c/d /a/again"]);
    let ext4 = open(image.bytes());
    for order in BOTH {
        for threads in [1, 3] {
            let found = scan(&ext4, order, threads);
            assert_eq!(found.problems.len(), 4, "{:?}", found.problems());
            let file = |path: &&[u8]| found.entries.contains_key(*path);
            let places: [&[u8]; 2] = [b"a/again/file", b"c/d/file"];
            assert_eq!(places.iter().filter(|path| file(path)).count(), 1);
        }
    }
}

/// Directories so deep that no path leads there are reported and not gone into.
#[test]
fn paths_have_a_longest_length() {
    let Some(image) = Image::make("8M", &["-b", "1024", "-N", "512"], |_| ()) else {
        return;
    };
    let name = "n".repeat(255);
    let mut script = String::new();
    for _ in 0..260 {
        let _ = write!(script, "mkdir {name}\ncd {name}\n");
    }
    let requests = image.path().with_extension("requests");
    fs::write(&requests, script).unwrap();
    image.debugfs_script(&requests);
    let found = scan_all_ways(&open(image.bytes()), "deep");
    // 257 names of 256 bytes with their slashes are the first that are too long.
    let deepest = found.entries.keys().map(Vec::len).max();
    assert_eq!(deepest, Some(257 * 256 - 1));
    assert_eq!(found.problems.len(), 1);
    let (path, why) = &found.problems()[0];
    assert_eq!(path.len(), 257 * 256 - 1);
    assert!(
        why.ends_with("bad name: a path of more than 65536 bytes"),
        "{why}"
    );
}

/// Without verification, damage that contradicts itself is still found, and nothing else
/// is lost.
#[test]
fn directories_are_checked_without_checksums_too() {
    let Some(image) = Image::make("4M", &["-b", "1024"], |tree| {
        for dir in ["good", "bad"] {
            fs::create_dir(tree.join(dir)).unwrap();
            for file in 0..100 {
                fs::write(tree.join(dir).join(format!("file{file}")), b"").unwrap();
            }
        }
    }) else {
        return;
    };
    let sound = open(image.bytes());
    let inode = sound.volume.inode(image.ino("/bad")).unwrap();
    let block = sound.volume.map(&inode, 1).unwrap().physical.unwrap() as usize * 1024;
    let mut bytes = image.bytes();
    // The second block's first record: no multiple of four.
    bytes[block + 4] |= 1;
    let options = Ext4::options().checksums(Checksums::Never);
    let ext4 = options.open_source(bytes).unwrap();
    let found = scan_all_ways(&ext4, "a record");
    let problems = found.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].0, "bad");
    assert!(problems[0].1.contains("bad rec_len"), "{problems:?}");
    let files = |dir: &str| found.paths().iter().filter(|p| p.starts_with(dir)).count();
    assert_eq!(files("good/"), 100);
    assert!((1..100).contains(&files("bad/")));
}

/// The hint of how many entries there will be is how many inodes are in use.
#[test]
fn the_hint_counts_the_inodes_in_use() {
    let Some(image) = Image::make("4M", &["-b", "1024"], |tree| {
        fs::write(tree.join("file"), b"").unwrap();
    }) else {
        return;
    };
    // Ten of the file system's own, the root among them; lost+found and the file.
    assert_eq!(open(image.bytes()).scan().inodes_used(), 12);
    assert!(ImageScan::usual_threads() > 0);
}
