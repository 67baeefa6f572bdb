//! The table by itself: one thread, then many, then many while it is resized.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64 as Plain};

use super::*;
use crate::rcu;

struct Item {
    key: u64,
    live: Arc<Plain>,
}

impl Item {
    fn new(key: u64, live: &Arc<Plain>) -> Ref<Item> {
        live.fetch_add(1, Relaxed);
        Ref::new(Item {
            key,
            live: live.clone(),
        })
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Relaxed);
    }
}

fn spread(key: u64) -> u64 {
    key.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl HashKey for Item {
    fn hash(&self) -> u64 {
        spread(self.key)
    }
}

fn has(table: &RcuHash<Item>, key: u64) -> bool {
    let guard = rcu::read_lock();
    if table
        .find(spread(key), &guard, |item| item.key == key)
        .is_some()
    {
        return true;
    }
    drop(guard);
    table
        .lock(spread(key))
        .find(|item| item.key == key)
        .is_some()
}

fn remove(table: &RcuHash<Item>, key: u64) -> Option<Ref<Item>> {
    let mut bucket = table.lock(spread(key));
    let item = bucket.find(|item| item.key == key)?.try_get()?;
    bucket.remove(&item)
}

/// RCU-1: every object of a table is freed once, also when the table has grown.
#[test]
fn what_goes_in_comes_out() {
    let live = Arc::default();
    let table = RcuHash::new(Rank::DentryBucket);
    let keys = if cfg!(miri) { 270 } else { 20_000 };
    for key in 0..keys {
        table.lock(spread(key)).insert(Item::new(key, &live));
    }
    assert_eq!(table.len() as u64, keys);
    assert!((0..keys).all(|key| has(&table, key)) && !has(&table, keys));
    for key in (0..keys).step_by(2) {
        assert!(remove(&table, key).is_some());
    }
    assert!((0..keys).all(|key| has(&table, key) == (key % 2 == 1)));
    drop(table);
    rcu::barrier();
    assert_eq!(live.load(Relaxed), 0, "RCU-1: all freed");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of heads take it minutes")]
fn a_table_shrinks_when_it_has_emptied() {
    let live = Arc::default();
    let table = RcuHash::new(Rank::DentryBucket);
    let keys = 50_000;
    for key in 0..keys {
        table.lock(spread(key)).insert(Item::new(key, &live));
    }
    let array = |table: &RcuHash<Item>| table.view(&rcu::read_lock()).buckets.size();
    let grown = array(&table);
    for key in 0..keys {
        assert!(remove(&table, key).is_some());
    }
    for key in 0..keys {
        table.lock(spread(key)).insert(Item::new(key, &live));
        remove(&table, key);
    }
    assert!(
        grown > keys as usize / 2 && array(&table) < grown / 2,
        "{grown} heads before"
    );
}

/// RCU-1: readers, writers and resizing at once lose nothing and free nothing early.
#[test]
fn readers_find_what_stays_while_all_else_moves() {
    let ops = stress_ops(200_000);
    let live = Arc::default();
    let table = Arc::new(RcuHash::new(Rank::DentryBucket));
    // Keys below `stay` stay for good; those above 1000 come and go.
    let stay = if cfg!(miri) { 50 } else { 1000 };
    for key in 0..stay {
        table.lock(spread(key)).insert(Item::new(key, &live));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|n| {
            let (table, stop) = (table.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut key = n * 37;
                while !stop.load(Relaxed) {
                    key = (key + 7) % stay;
                    assert!(has(&table, key), "{key} was there all the time");
                }
            })
        })
        .collect();
    let writers: Vec<_> = (0..2)
        .map(|n| {
            let (table, live) = (table.clone(), live.clone());
            std::thread::spawn(move || {
                for op in 0..ops / 2 {
                    let key = 1000 + n * 1_000_000 + op % 3000;
                    if op / 3000 % 2 == 0 {
                        table.lock(spread(key)).insert(Item::new(key, &live));
                    } else {
                        assert!(remove(&table, key).is_some(), "{key} was inserted");
                    }
                    if op % 1000 == 0 {
                        table.resize(SIZES[(op / 1000) as usize % SIZES.len()]);
                    }
                }
            })
        })
        .collect();
    writers
        .into_iter()
        .for_each(|writer| writer.join().unwrap());
    stop.store(true, Relaxed);
    readers
        .into_iter()
        .for_each(|reader| reader.join().unwrap());
    drop(table);
    rcu::barrier();
    assert_eq!(live.load(Relaxed), 0, "RCU-1: all freed");
}

/// An item whose hash can be made to panic.
struct Moody(
    u64,
    Arc<AtomicBool>,
    #[expect(dead_code, reason = "for its drop")] Item,
);

impl HashKey for Moody {
    fn hash(&self) -> u64 {
        assert!(self.0 != 1 || !self.1.load(Relaxed), "not now");
        self.0 % 2
    }
}

/// A table of four such items, of whose growth the first step has panicked.
fn interrupted_growth(live: &Arc<Plain>) -> RcuHash<Moody> {
    let bad = Arc::new(AtomicBool::new(false));
    let table = RcuHash::new(Rank::DentryBucket);
    for key in 0..4 {
        live.fetch_add(1, Relaxed);
        let live = live.clone();
        let item = Moody(key, bad.clone(), Item { key, live });
        table.lock(key % 2).insert(Ref::new(item));
    }
    table.resize(2048);
    bad.store(true, Relaxed);
    let moving = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| table.move_some(true)));
    assert!(moving.is_err());
    bad.store(false, Relaxed);
    table
}

/// RCU-1: a `hash` that panics while a chain moves leaves every object on one chain.
#[test]
fn a_panic_while_a_chain_moves_frees_nothing_twice() {
    let live = Arc::default();
    let table = interrupted_growth(&live);
    assert!(
        table.lock(0).find(|object| object.0 == 0).is_some(),
        "still there, and not locked"
    );
    drop(table);
    rcu::barrier();
    assert_eq!(live.load(Relaxed), 0, "RCU-1: each freed once");
}

/// Other threads move the chains that a panic left over, and the growth ends.
#[test]
fn a_panic_while_a_chain_moves_does_not_stop_growth() {
    let live = Arc::default();
    let table = interrupted_growth(&live);
    // Each visit moves some chains, and some of them those that are left over.
    let moving = || table.grow.moving.load(Relaxed);
    (0..2048)
        .take_while(|_| moving())
        .for_each(|_| drop(table.lock(0)));
    assert!(!moving(), "the growth has ended");
    let size = table.view(&rcu::read_lock()).buckets.size();
    assert_eq!(size, 2048);
    for key in 0..4 {
        let found = table.lock(key % 2).find(|object| object.0 == key).is_some();
        assert!(found, "{key} has been carried over");
    }
    drop(table);
    rcu::barrier();
    assert_eq!(live.load(Relaxed), 0, "RCU-1: each freed once");
}

const SIZES: [usize; 4] = [256, 4096, 512, 16384];

/// How much a stress test does: `RCUWALK_STRESS_OPS` overrules, Miri does little.
fn stress_ops(default: u64) -> u64 {
    if cfg!(miri) {
        return 200;
    }
    std::env::var("RCUWALK_STRESS_OPS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

impl<T> Buckets<T> {
    fn size(&self) -> usize {
        self.mask() + 1
    }
}
