//! The benchmark on small tables, good and bad.

use std::collections::HashMap;
use std::sync::Mutex;

use super::*;

/// A table whose every answer can be spoiled.
#[derive(Default)]
struct Plain {
    inodes: Mutex<HashMap<u64, u64>>,
    keeps_all: bool,
    wrong_part: bool,
}

impl Contents for (u64, u64) {
    fn contents(&self) -> (u64, u64) {
        *self
    }
}

impl InodeTable for Plain {
    type Inode = (u64, u64);
    const LOCKS: Option<LocksPer> = Some(LocksPer::new(1.0, 2.0));

    fn iget(&self, key: u64) -> Got<Self::Inode> {
        let mut inodes = self.inodes.lock().unwrap();
        if let Some(&part) = inodes.get(&key) {
            return Got::Cached((key, part));
        }
        let part = part_of(key) + u64::from(self.wrong_part);
        inodes.insert(key, part);
        Got::New((key, part))
    }

    fn evict(&self, key: u64) {
        if !self.keeps_all {
            self.inodes.lock().unwrap().remove(&key);
        }
    }

    fn len(&self) -> usize {
        self.inodes.lock().unwrap().len()
    }
}

fn quick(peer: Entrant) -> Iget {
    Iget {
        inodes: 30_000,
        threads: vec![1, 2],
        rounds: 1,
        ..Iget::new(vec![peer])
    }
}

#[test]
fn every_entrant_gets_a_row_per_load_and_number_of_threads() {
    let iget = quick(Entrant::new("btreemap", |_| Plain::default()));
    let mut told = Vec::new();
    let report = iget
        .run(&AtomicBool::new(false), &mut |at| told.push(at.done))
        .unwrap();
    assert_eq!(told, [0, 1, 2, 3, 4, 5, 6]);
    // The array takes part in the hits only.
    assert_eq!(report.rows.len(), (iget.entrants.len() * 3 - 2) * 2);
    assert_eq!(report.rows[0].contender, "ours");
    for row in &report.rows {
        assert!(row.mops > 0.0 && row.min <= row.mops && row.mops <= row.max);
        let hits = match row.mix {
            Mix::Hit => 1.0,
            Mix::Mixed => 0.9,
            Mix::Stream => 0.0,
        };
        assert!((row.hit_share - hits).abs() < 0.05, "{row:?}");
        if row.contender == "btreemap" {
            assert_eq!(row.ratio_to_btreemap, Some(1.0));
            let locks = 2.0 - hits;
            assert!((row.locks_per_op.unwrap() - locks).abs() < 0.05, "{row:?}");
        }
        // Of a debug build, with three digits behind the point: two may be as fast as one.
        let mut of_it = report.rows.iter().filter(|other| other.mix == row.mix);
        let one = of_it.find(|other| other.contender == row.contender && other.threads == 1);
        let ratio = row.mops / one.unwrap().mops;
        let told = row.ratio_to_one_thread.unwrap();
        assert!((told / ratio - 1.0).abs() < 0.1, "{row:?}");
        assert!(row.threads > 1 || told == 1.0, "{row:?}");
    }
    let table = report.to_string();
    let says = |text: &str| assert!(table.contains(text), "no `{text}` in\n{table}");
    says("30,000 cached");
    says("2 threads");
    says("stream: all new");
}

#[test]
fn a_table_that_is_wrong_gets_no_figures() {
    let keeps_all = Entrant::new("hoarder", |_| Plain {
        keeps_all: true,
        ..Plain::default()
    });
    let wrong = Entrant::new("liar", |_| Plain {
        wrong_part: true,
        ..Plain::default()
    });
    for (entrant, what) in [
        (keeps_all, "hoarder is wrong (mixed, threads: 1)"),
        (wrong, "liar is wrong (hit, threads: 1)"),
    ] {
        let ended = quick(entrant).run(&AtomicBool::new(false), &mut |_| {});
        let said = ended.unwrap_err().to_string();
        assert!(said.starts_with(what), "{said}");
    }
}

#[test]
fn a_stopped_run_reports_nothing() {
    let stop = AtomicBool::new(false);
    let ended = quick(Entrant::new("btreemap", |_| Plain::default()))
        .run(&stop, &mut |at| stop.store(at.done == 1, Relaxed));
    assert!(matches!(ended, Err(IgetError::Stopped)));
}

#[test]
fn the_number_of_threads_limits_the_usual_ones_and_is_one_itself() {
    assert_eq!(Iget::threads_up_to(1), [1]);
    assert_eq!(Iget::threads_up_to(3), [1, 2, 3]);
    assert_eq!(Iget::threads_up_to(20), [1, 2, 4, 20]);
    assert_eq!(Iget::threads_up_to(64), [1, 2, 4, 20, 64]);
}
