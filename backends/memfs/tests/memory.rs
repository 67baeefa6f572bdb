//! Resident memory: a process of its own, and one test at a time. (ASan has memory of its own.)
#![cfg(not(rcuwalk_system_alloc))]

use std::fs;
use std::sync::{Mutex, PoisonError};

use rcuwalk::{Context, Credentials, File, OpenFlags, Vfs};
use rcuwalk_memfs::MemFs;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// What a test writes. Other memory comes and goes, but no more than a third of that.
const WRITTEN_MIB: u64 = 96;

/// Not of `statm`, which is approximate on machines with many processors.
fn resident_mib() -> u64 {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() >> 10
}

struct Tree {
    vfs: Vfs,
    root: Context,
}

impl Tree {
    fn file(&self, name: &str) -> File {
        let how = OpenFlags::WRITE | OpenFlags::CREATE;
        self.vfs.open(&self.root, name, how.mode(0o600)).unwrap()
    }

    fn unlink(&self, name: &str) {
        self.vfs.unlink(&self.root, name).unwrap();
    }
}

/// Runs `write`, which writes [`WRITTEN_MIB`], then `remove`, which leaves `left_mib` of it.
fn returns_memory(write: impl Fn(&Tree), remove: impl Fn(&Tree), left_mib: u64) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let vfs = Vfs::new(MemFs::new()).unwrap();
    let root = vfs.context(Credentials::root());
    let tree = Tree { vfs, root };
    let before = resident_mib();
    write(&tree);
    let full = resident_mib();
    assert!(full >= before + WRITTEN_MIB, "{before} MiB, then {full}");
    remove(&tree);
    let after = resident_mib();
    let most = before + left_mib + WRITTEN_MIB / 3;
    assert!(after < most, "{before} MiB, {full} and {after}");
}

#[test]
fn memory_of_removed_files_goes_back() {
    let write = |tree: &Tree| {
        let file = tree.file("f");
        for at in 0..WRITTEN_MIB {
            file.write_at(&[1; MIB], at * MIB as u64).unwrap();
        }
    };
    returns_memory(write, |tree| tree.unlink("f"), 0);
}

/// Each page lies between two of a file that stays.
#[test]
fn memory_of_removed_files_between_others_goes_back() {
    let write = |tree: &Tree| {
        let (kept, removed) = (tree.file("kept"), tree.file("removed"));
        for at in (0..WRITTEN_MIB * MIB as u64 / 2).step_by(PAGE) {
            kept.write_at(&[1; PAGE], at).unwrap();
            removed.write_at(&[2; PAGE], at).unwrap();
        }
    };
    returns_memory(write, |tree| tree.unlink("removed"), WRITTEN_MIB / 2);
}

#[test]
fn memory_of_removed_small_files_goes_back() {
    let files = || 0..WRITTEN_MIB as usize * MIB / PAGE;
    let write = |tree: &Tree| {
        for n in files() {
            tree.file(&n.to_string()).write_at(&[1; PAGE], 0).unwrap();
        }
    };
    let remove = |tree: &Tree| {
        files()
            .filter(|n| n % 4 > 0)
            .for_each(|n| tree.unlink(&n.to_string()));
    };
    returns_memory(write, remove, WRITTEN_MIB / 4);
}
