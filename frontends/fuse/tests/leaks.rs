//! Ended mounts leave nothing behind. A test binary with one test, because it counts the
//! descriptors of the whole process.

mod common;

use std::fs;
use std::path::Path;

use common::{Mount, can_mount};
use rcuwalk_testkit::comes_true;

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn walk(dir: &Path) -> usize {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .map(|entry| match entry.symlink_metadata().unwrap().is_dir() {
            true => 1 + walk(&entry),
            false => 1,
        })
        .sum()
}

/// MEM-1: the end of a mount closes the descriptors that were kept for its directories.
#[test]
fn a_mount_that_has_ended_keeps_no_descriptor() {
    if !can_mount() {
        return;
    }
    let before = open_descriptors();
    for _ in 0..3 {
        let mount = Mount::hostfs();
        let backing = mount.backing.as_ref().unwrap().path();
        for dir in 0..100 {
            fs::create_dir(backing.join(format!("{dir}"))).unwrap();
            fs::write(backing.join(format!("{dir}/file")), "").unwrap();
        }
        assert_eq!(walk(mount.path()), 200);
        assert!(open_descriptors() > before + 50, "they are kept");
        drop(mount);
    }
    // The kernel's last requests, and objects that wait for RCU, may take a moment.
    let closed = comes_true(|| open_descriptors() <= before + 10);
    let now = open_descriptors();
    assert!(closed, "MEM-1: {before} before, {now} after");
}
