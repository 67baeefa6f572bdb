//! What the kernel keeps of a listing, and that it never shows one that is old.

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use common::{Mount, can_mount, on_each};
use rcuwalk::{Freshness, Vfs};
use rcuwalk_fuse::Options;
use rcuwalk_hostfs::HostFs;
use rustix::fs::Dir;

/// Longer than a directory has to be left alone for its listing to be kept.
const REST: Duration = Duration::from_millis(250);

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

/// How many listings were asked for.
fn asked(mount: &Mount) -> u64 {
    let statistics = mount.mounted.observer().statistics().unwrap();
    let operations = statistics.operations.iter();
    let listings = operations.filter(|op| op.name.starts_with("readdir"));
    listings.map(|op| op.count()).sum()
}

#[test]
fn a_listing_of_what_is_left_alone_is_asked_for_once() {
    on_each(|mount| {
        let dir = mount.path().join("d");
        fs::create_dir(&dir).unwrap();
        for n in 0..2000 {
            File::create(dir.join(format!("f{n}"))).unwrap();
        }
        sleep(REST);
        let first = names(&dir);
        assert_eq!(first.len(), 2000);
        let before = asked(mount);
        assert!(before > 0, "the operations are counted by these names");
        for _ in 0..10 {
            assert_eq!(names(&dir), first);
        }
        assert_eq!(asked(mount), before, "the kernel has it");
        // A change through the mount shows at once, by whatever kind of it.
        fs::rename(dir.join("f1"), dir.join("g1")).unwrap();
        assert!(names(&dir).contains("g1") && !names(&dir).contains("f1"));
        fs::remove_file(dir.join("g1")).unwrap();
        assert_eq!(names(&dir).len(), 1999);
    });
}

/// FRESH-1: who believes nothing sees each change on the host in the next listing, however
/// close the changes are to each other and to the listings.
#[test]
fn two_changes_within_a_tick_are_both_seen() {
    if !can_mount() {
        return;
    }
    let backing = tempfile::tempdir().unwrap();
    let behind = backing.path().join("d");
    fs::create_dir(&behind).unwrap();
    let host = HostFs::new(backing.path()).unwrap();
    let vfs = Vfs::new(host.with_freshness(Freshness::EachUse)).unwrap();
    let nothing = Options {
        entry_timeout: Duration::ZERO,
        attr_timeout: Duration::ZERO,
        ..Options::default()
    };
    let mount = Mount::with(vfs, Some(backing), "hostfs", &nothing);
    let dir = mount.path().join("d");
    let make = |name: &str| drop(File::create(behind.join(name)).unwrap());
    for round in 0..12 {
        sleep(REST);
        // Opened while it is at rest, changed before it is listed and right after.
        let open = File::open(&dir).unwrap();
        make(&format!("before{round}"));
        let listed = Dir::read_from(&open).unwrap().count();
        make(&format!("after{round}"));
        assert_eq!(listed, 2 + 2 * round + 1, "FRESH-1: round {round}");
        assert_eq!(names(&dir), names(&behind), "FRESH-1: round {round}");
        // And a storm.
        for n in 0..50 {
            make("here and gone");
            assert!(names(&dir).contains("here and gone"), "FRESH-1: {n}");
            fs::remove_file(behind.join("here and gone")).unwrap();
            assert!(!names(&dir).contains("here and gone"), "FRESH-1: {n}");
        }
    }
}
