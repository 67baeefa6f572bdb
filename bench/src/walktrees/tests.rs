use std::sync::atomic::Ordering::Relaxed;

use super::*;

fn tiny() -> WalkTrees {
    let shape = Shape {
        trees: 3,
        dirs: 4,
        files: 250,
    };
    WalkTrees {
        inodes: 200,
        rounds: 2,
        ..WalkTrees::of(shape)
    }
}

fn run(bench: &WalkTrees) -> Result<Report, WalkTreesError> {
    bench.run(&AtomicBool::new(false), &mut |_| {})
}

#[test]
fn every_inode_is_looked_for_twice_in_vain_and_locked_2_1_1_times() {
    let report = run(&WalkTrees {
        threads: 1,
        ..tiny()
    })
    .unwrap();
    assert_eq!((report.entries, report.inodes), (3000, 3000 + 12 + 3));
    assert!(report.verified);
    for (rows, inodes) in [(&report.rows, report.inodes), (&report.inode_cache, 3000)] {
        let contenders: Vec<_> = rows.iter().map(|row| row.contender).collect();
        assert_eq!(contenders, ["stock", "patch", "ours"]);
        for (row, locks) in rows.iter().zip([2.0, 1.0, 1.0]) {
            assert_eq!(row.first_lookups_failed, inodes, "{row:?}");
            assert_eq!(row.second_lookups_failed, inodes, "{row:?}");
            assert_eq!((row.hits, row.inserted), (0, inodes), "{row:?}");
            assert_eq!(row.locks_per_inode, locks, "{row:?}");
            assert_eq!(row.evict_locks_per_inode, 1.0, "{row:?}");
            assert_eq!((row.contended, row.threads), (0, 1), "{row:?}");
            // The cache was full: each new inode evicts one, give or take a batch.
            assert!(row.evicted.abs_diff(inodes) <= 128, "{row:?}");
        }
    }
}

/// Where a cache is as small as this one, a thread that has to wait finds the directory it
/// is in gone, or its name.
#[test]
fn threads_see_every_entry_and_next_to_nothing_cached() {
    let report = run(&tiny()).unwrap();
    assert_eq!(report.entries, 3000);
    for (row, locks) in report.rows.iter().zip([2.0, 1.0, 1.0]) {
        assert_eq!(row.threads, 3);
        assert!((3015..3300).contains(&row.inserted), "{row:?}");
        assert!(row.hit_rate < 0.1, "{row:?}");
        assert!(
            (locks..locks + 0.2).contains(&row.locks_per_inode),
            "{row:?}"
        );
    }
}

#[test]
fn the_checksum_does_not_depend_on_threads_and_depends_on_the_trees() {
    let one = run(&WalkTrees {
        threads: 1,
        ..tiny()
    })
    .unwrap();
    let three = run(&tiny()).unwrap();
    assert_eq!(one.checksum, three.checksum);
    let shape = Shape {
        files: 251,
        ..tiny().shape
    };
    let other = run(&WalkTrees { shape, ..tiny() }).unwrap();
    assert_ne!(one.checksum, other.checksum);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let refused = |bench: WalkTrees, says: &str| {
        let message = run(&bench).unwrap_err().to_string();
        assert!(message.contains(says), "no `{says}` in `{message}`");
    };
    refused(
        WalkTrees {
            threads: 4,
            ..tiny()
        },
        "4 threads are more than 3 trees",
    );
    refused(
        WalkTrees {
            inodes: 3015,
            ..tiny()
        },
        "3015 inodes holds all 3015",
    );
    refused(
        WalkTrees {
            inodes: 0,
            ..tiny()
        },
        "at least one of each",
    );
    refused(
        WalkTrees {
            rounds: 0,
            ..tiny()
        },
        "at least one of each",
    );
    let large = Shape {
        trees: 1 << 16,
        dirs: 1 << 16,
        files: 1 << 16,
    };
    refused(WalkTrees::of(large), "than can be numbered");
}

#[test]
fn a_stopped_run_reports_nothing() {
    let stop = AtomicBool::new(false);
    let stopped = tiny().run(&stop, &mut |at| stop.store(at.done == 1, Relaxed));
    assert!(matches!(stopped, Err(WalkTreesError::Stopped)));
}

#[test]
fn the_defaults_are_the_patchs_threads_and_a_quarter_of_the_trees() {
    let bench = WalkTrees::of(WalkTrees::SHAPE);
    assert_eq!(bench.threads, 20);
    let inodes = bench.shape.inodes().unwrap();
    assert_eq!(bench.inodes, inodes / 4);
    let all = Shape {
        trees: 20,
        dirs: 1000,
        files: 1000,
    };
    assert_eq!(WalkTrees::of(all).inodes, WalkTrees::MOST_INODES);
    let one = Shape {
        trees: 1,
        dirs: 1,
        files: 1,
    };
    assert_eq!(WalkTrees::of(one).inodes, 1);
}
