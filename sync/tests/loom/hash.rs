//! The hash table: which objects a reader may find, miss and stand on. Under loom it starts
//! with two heads, and grows at the third object.
//!
//! `an_object_comes_and_goes_whole` fails when the Acquire of a head in `find` or the
//! Release of a head in `insert` is weakened, `a_reader_is_carried_to_another_chain`
//! for the same of a link, `a_bucket_excludes_and_wakes` for the Acquire of its lock.

use crate::loom_support::{Probe, outcomes, outcomes_at, spawn};
use loom::sync::Arc;
use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{HashKey, RcuHash, Ref, rcu};

struct Item {
    hash: u64,
    probe: Probe,
}

impl Item {
    fn new(hash: u64, value: u32) -> Ref<Item> {
        Ref::new(Item {
            hash,
            probe: Probe::new(value),
        })
    }
}

impl HashKey for Item {
    fn hash(&self) -> u64 {
        self.hash
    }
}

/// A hash for each of the two heads.
const LEFT: u64 = 0;
const RIGHT: u64 = 1;

type Table = RcuHash<Item>;

fn table() -> Arc<Table> {
    Arc::new(RcuHash::new(Rank::DentryBucket))
}

/// Everything that a reader comes by on the chain of `hash`.
fn passed(table: &Table, hash: u64) -> Vec<u32> {
    let guard = rcu::read_lock();
    let mut seen = Vec::new();
    table.find(hash, &guard, |item| {
        seen.push(item.probe.read());
        false
    });
    seen
}

fn find_locked(table: &Table, hash: u64) -> Option<u32> {
    table
        .lock(hash)
        .find(|item| item.hash == hash)
        .map(|item| item.probe.read())
}

fn remove(table: &Table, hash: u64) -> Option<Ref<Item>> {
    let mut bucket = table.lock(hash);
    let item = bucket.find(|item| item.hash == hash)?.try_get()?;
    bucket.remove(&item)
}

/// RCU-1: an object is found whole or not at all, and not freed while a reader uses it.
#[test]
fn an_object_comes_and_goes_whole() {
    let seen = outcomes(|| {
        let table = table();
        let reader = spawn({
            let table = table.clone();
            move || passed(&table, LEFT)
        });
        table.lock(LEFT).insert(Item::new(LEFT, 1));
        drop(remove(&table, LEFT));
        reader.join().unwrap()
    });
    assert_eq!(seen, [vec![], vec![1]].into(), "RCU-1");
}

/// RCU-1: a reader that stands on an object is carried with it to another chain, and finds only
/// initialised objects there. With fewer preemptions, fences elsewhere order it.
#[test]
fn a_reader_is_carried_to_another_chain() {
    let seen = outcomes_at(3, || {
        let table = table();
        table.lock(LEFT).insert(Item::new(LEFT, 1));
        let reader = spawn({
            let table = table.clone();
            move || passed(&table, LEFT)
        });
        let other = spawn({
            let table = table.clone();
            move || table.lock(RIGHT).insert(Item::new(RIGHT, 2))
        });
        let moved = remove(&table, LEFT).unwrap();
        // The table does not ask before it grows: the hash may be the old one.
        table.lock(RIGHT).insert(moved);
        other.join().unwrap();
        reader.join().unwrap()
    });
    let all = [vec![], vec![1], vec![1, 2]];
    assert_eq!(seen, all.into(), "RCU-1");
}

/// LOCK-1: a bucket has one holder at a time, and no thread sleeps for ever.
#[test]
fn a_bucket_excludes_and_wakes() {
    let seen = outcomes(|| {
        let table = table();
        table.lock(LEFT).insert(Item::new(LEFT, 0));
        let add = |table: &Table| {
            let bucket = table.lock(LEFT);
            bucket.find(|_| true).unwrap().probe.add(1);
        };
        let others = [(); 2].map(|()| {
            let table = table.clone();
            spawn(move || add(&table))
        });
        add(&table);
        others.into_iter().for_each(|other| other.join().unwrap());
        find_locked(&table, LEFT)
    });
    assert_eq!(seen, [Some(3)].into(), "LOCK-1");
}

/// RCU-1: an object that stays on the table is found while its chain moves: under RCU, or,
/// after a miss there, under the lock. And the old array outlives its readers.
#[test]
fn what_stays_is_found_while_the_table_grows() {
    let seen = outcomes(|| {
        let table = table();
        for (n, hash) in [LEFT, LEFT + 2, RIGHT].into_iter().enumerate() {
            table.lock(hash).insert(Item::new(hash, n as u32));
        }
        let reader = spawn({
            let table = table.clone();
            move || {
                let guard = rcu::read_lock();
                let found = table.find(LEFT, &guard, |item| item.hash == LEFT);
                let found = found.map(|item| item.probe.read());
                drop(guard);
                found.ok_or_else(|| find_locked(&table, LEFT))
            }
        });
        // The first lock makes the larger array, the second moves the chains.
        let seen = [(); 2].map(|()| find_locked(&table, LEFT));
        assert_eq!(seen, [Some(0); 2], "RCU-1");
        reader.join().unwrap()
    });
    assert_eq!(seen, [Ok(0), Err(Some(0))].into(), "RCU-1");
}
