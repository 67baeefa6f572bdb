//! Threads that use, move and replace directories while next to none has a descriptor.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::AN_HOUR;
use crate::common::levels::{Crowded, on_each_level};
use rcuwalk::{Error, Freshness, VfsPath};
use rcuwalk_testkit::Rng;

const DIRS: usize = 40;
const FDS: usize = 3;
const TIME: Duration = Duration::from_secs(3);

/// Each with its own number in a file, and so one below it.
fn tree(freshness: Freshness) -> (Crowded, Vec<VfsPath>) {
    let tree = Crowded::new(FDS, freshness, |root| {
        for i in 0..DIRS {
            fs::create_dir_all(root.join(format!("home/{i}/below"))).unwrap();
            fs::write(root.join(format!("home/{i}/below/who")), i.to_string()).unwrap();
        }
        fs::create_dir(root.join("away")).unwrap();
    });
    let held = (0..DIRS).map(|i| tree.find(&format!("/home/{i}/below")));
    let held = held.collect();
    (tree, held)
}

/// DENTRY-3: while directories above move through the VFS, callers below them never get an
/// error for it.
#[test]
fn renames_through_the_vfs_disturb_nobody() {
    on_each_level(|_| {
        let (tree, held) = tree(AN_HOUR);
        let (tree, held) = (&tree, &held);
        let end = Instant::now() + TIME;
        let reads = AtomicU64::new(0);
        thread::scope(|scope| {
            for seed in 0..3 {
                let reads = &reads;
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    while Instant::now() < end {
                        let i = rng.below(DIRS);
                        let who = tree.read_in(&held[i], "who");
                        let who = who.unwrap_or_else(|err| panic!("DENTRY-3: {i}: {err}"));
                        assert_eq!(who, i.to_string());
                        reads.fetch_add(1, Relaxed);
                    }
                });
            }
            scope.spawn(move || {
                let mut rng = Rng::new(99);
                while Instant::now() < end {
                    let i = rng.below(DIRS);
                    let (home, away) = (format!("/home/{i}"), format!("/away/{i}"));
                    tree.vfs.rename(&tree.ctx, &home, &away).unwrap();
                    tree.vfs.rename(&tree.ctx, &away, &home).unwrap();
                }
            });
        });
        assert!(reads.load(Relaxed) > 100);
        let held = tree.vfs.statistics().fds;
        assert!(held <= FDS + 4, "MEM-1: {held} descriptors");
    });
}

/// HOST-1: while directories are moved and replaced on the host, a caller in one reads that
/// directory's own files or gets an error, and never reads another's.
#[test]
fn nobody_gets_into_another_directory() {
    on_each_level(|_| {
        let (tree, held) = tree(Freshness::EachUse);
        let (tree, held) = (&tree, &held);
        let end = Instant::now() + TIME;
        let (right, gone) = (AtomicU64::new(0), AtomicU64::new(0));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for seed in 0..3 {
                let (right, gone, stop) = (&right, &gone, &stop);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    while !stop.load(Relaxed) {
                        let i = rng.below(DIRS);
                        match tree.read_in(&held[i], "who") {
                            Ok(who) => {
                                assert_eq!(who, i.to_string(), "HOST-1");
                                right.fetch_add(1, Relaxed);
                            }
                            Err(Error::Stale | Error::NotFound) => {
                                gone.fetch_add(1, Relaxed);
                            }
                            Err(err) => panic!("{err}"),
                        }
                    }
                });
            }
            scope.spawn(|| {
                let mut rng = Rng::new(99);
                while Instant::now() < end {
                    let i = rng.below(DIRS);
                    let (home, away) = (
                        tree.host(&format!("home/{i}")),
                        tree.host(&format!("away/{i}")),
                    );
                    fs::rename(&home, &away).unwrap();
                    fs::create_dir_all(home.join("below")).unwrap();
                    fs::write(home.join("below/who"), "another").unwrap();
                    thread::yield_now();
                    fs::remove_dir_all(&home).unwrap();
                    fs::rename(&away, &home).unwrap();
                }
                stop.store(true, Relaxed);
            });
        });
        assert!(right.load(Relaxed) > 100, "{right:?} {gone:?}");
        // Where they were, all are found again.
        for (i, dir) in held.iter().enumerate() {
            tree.find(&format!("/home/{i}/below"));
            assert_eq!(tree.read_in(dir, "who").unwrap(), i.to_string());
        }
        let held = tree.vfs.statistics().fds;
        assert!(held <= FDS + 4, "MEM-1: {held} descriptors");
    });
}
