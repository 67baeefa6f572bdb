use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::{Flag, HashKey, RcuHash, Spare};

struct Number(u32);

impl HashKey for Number {
    fn hash(&self) -> u64 {
        self.0.into()
    }
}

type Table = RcuHash<Number>;

fn table() -> Table {
    let lru = Lru::new(Rank::Lru, 1, 2, |number: &Number| {
        usize::from(number.0 >= 100)
    });
    RcuHash::new(Rank::InodeBucket).with_lru(lru)
}

fn add(table: &Table, number: u32) -> Ref<Number> {
    let bucket = table.lock(number.into());
    bucket.insert_new(Spare::new(), Number(number), Flag::NONE)
}

fn lens(table: &Table) -> [usize; 2] {
    [0, 1].map(|kind| table.lru().kind(kind).len())
}

fn scan(table: &Table, most: usize, look: impl FnMut(&Shared<Number>) -> LruStatus) -> Vec<u32> {
    let mut killed = Vec::new();
    table.lru().kind(0).scan(0, most, &mut killed, look);
    let numbers = killed.iter().map(|object| object.0).collect();
    table.bury(killed);
    numbers
}

fn age(object: &Shared<Number>) -> LruStatus {
    match object.age() {
        true => LruStatus::Kill,
        false => LruStatus::Rotate,
    }
}

/// LRU-1: an object in use is on no list, and the last put adds it to the list of its kind.
#[test]
fn the_last_user_lists() {
    let table = table();
    let objects = [1, 2, 100].map(|number| add(&table, number));
    assert_eq!(lens(&table), [0, 0], "LRU-1: all are in use");
    let second = objects[0].clone();
    let [one, two, hundred] = objects;
    drop(one);
    assert_eq!(lens(&table), [0, 0], "LRU-1: not the last");
    assert!(Ref::put_unless_last(second, Flag::NONE).is_none());
    assert_eq!(lens(&table), [1, 0], "LRU-1");
    drop((two, hundred));
    assert_eq!(lens(&table), [2, 1], "LRU-1: each on its own");

    // Used again, it stays until it is scanned.
    let guard = rcu::read_lock();
    let one = table.find(1, &guard, |object| object.0 == 1);
    let one = one.and_then(Shared::try_get).unwrap();
    assert_eq!(lens(&table), [2, 1]);
    drop(one);
    assert_eq!(lens(&table), [2, 1], "LRU-1: once");
    let one = table.find(1, &guard, |object| object.0 == 1);
    let one = one.and_then(Shared::try_get).unwrap();
    drop(guard);
    let mut seen = Vec::new();
    scan(&table, 10, |object| {
        seen.push(object.0);
        LruStatus::Rotate
    });
    assert_eq!(seen, [2], "LRU-1: what is in use is not shown");
    assert_eq!(lens(&table), [1, 1], "LRU-1: and is let go");
    assert_eq!(table.lru().scanned(), 2);
    // In a read section as well.
    let guard = rcu::read_lock();
    drop(one);
    drop(guard);
    assert_eq!(lens(&table), [2, 1], "LRU-1");
}

#[test]
fn the_tail_goes_first_and_the_used_get_a_second_chance() {
    let table = table();
    (0..4).for_each(|number| drop(add(&table, number)));
    assert!(scan(&table, 4, age).is_empty(), "first chance");
    let guard = rcu::read_lock();
    let first = table.find(0, &guard, |object| object.0 == 0).unwrap();
    first.mark_used();
    drop(guard);
    assert_eq!(scan(&table, 3, age), [1, 2], "0 was used, 1 and 2 were not");
    assert_eq!(lens(&table), [2, 0]);
    assert!(scan(&table, 9, |_| LruStatus::Stop).is_empty());
    assert_eq!((lens(&table), table.len()), ([2, 0], 2));
}

/// LRU-1: the last put does not list an object that has left its table. An object that was listed
/// stays so until the thread that unhashes it removes it.
#[test]
fn what_has_left_is_not_listed() {
    let table = table();
    let one = add(&table, 1);
    drop(table.lock(1).remove(&one));
    assert!(table.lru().remove(&one).is_none());
    assert_eq!(one.count(), 1, "RCU-3");
    drop(one);
    let two = add(&table, 2);
    drop(two.clone());
    drop(two);
    let guard = rcu::read_lock();
    let two = table.find(2, &guard, |_| true).and_then(Shared::try_get);
    let two = two.unwrap();
    drop(guard);
    drop(table.lock(2).remove(&two));
    assert_eq!(
        (lens(&table), two.count()),
        ([1, 0], 2),
        "RCU-3: the list's"
    );
    assert!(table.lru().remove(&two).is_some());
    assert_eq!((lens(&table), two.count()), ([0, 0], 1), "RCU-3: ours");
}

/// RCU-3: a list gives back the references that it holds, and no other list's.
#[test]
fn an_object_is_taken_from_the_list_it_is_on() {
    let [a, b] = [(); 2].map(|()| table());
    drop(add(&a, 1));
    let guard = rcu::read_lock();
    let one = a.find(1, &guard, |_| true).and_then(Shared::try_get);
    let one = one.unwrap();
    drop(guard);
    assert!(b.lru().remove(&one).is_none(), "RCU-3: on the other list");
    // Off its table, and on its list still: it enters no other cache.
    let off = a.lock(1).remove(&one).unwrap();
    let into_another = catch_unwind(AssertUnwindSafe(|| b.lock(1).insert(off)));
    assert!(into_another.is_err(), "RCU-3");
    assert!(a.lru().remove(&one).is_some());
    b.lock(1).insert(one);
    assert_eq!((lens(&a), lens(&b), b.len()), ([0, 0], [0, 0], 1));
}

/// LRU-1: an object outlives its table and the lists, and its last user goes nowhere else.
#[test]
fn a_user_outlives_the_lists() {
    let table = table();
    let one = add(&table, 1);
    drop(add(&table, 2));
    drop(table);
    rcu::barrier();
    assert_eq!(one.count(), 1, "RCU-3: the cache has given its own back");
    drop(one);
}

/// Lists that are dropped give their numbers back at once, while a reader holds up freeing.
#[test]
fn lists_come_and_go_while_a_reader_stalls() {
    let (enter, entered) = std::sync::mpsc::channel();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _guard = rcu::read_lock();
            enter.send(()).unwrap();
            let _ = left.recv();
        });
        entered.recv().unwrap();
        // A quarter of all numbers each.
        (0..5).for_each(|_| drop(Lru::<Number>::new(Rank::Lru, 1 << 14, 1, |_| 0)));
        drop(leave);
    });
}

/// LRU-1: a thread's local that outlives the others holds the last user of an object.
#[test]
fn the_end_of_a_thread_lists() {
    use std::cell::RefCell;
    thread_local! {
        static KEPT: RefCell<Option<Ref<Number>>> = const { RefCell::new(None) };
    }
    let table = table();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // The first local to be used is the last to be dropped.
            KEPT.set(None);
            KEPT.set(Some(add(&table, 1)));
        });
        // Waits for its locals, too.
        thread.join().unwrap();
    });
    assert_eq!(lens(&table), [1, 0], "LRU-1");
}

/// RCU-3: a caller whose look panics leaves the object on its list.
#[test]
fn a_panic_of_the_caller_changes_nothing() {
    let table = table();
    drop(add(&table, 1));
    let panics = || scan(&table, 1, |_| panic!("on purpose"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(lens(&table), [1, 0], "RCU-3");
    assert_eq!(scan(&table, 1, |_| LruStatus::Kill), [1], "RCU-3");
}

/// LRU-1: threads that use, drop and scan the same few objects lose none.
#[test]
fn nothing_is_lost_among_many_threads() {
    let table = table();
    (0..8).for_each(|number| drop(add(&table, number)));
    let rounds = if cfg!(miri) { 100 } else { 50_000 };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..rounds {
                    if thread == 0 {
                        scan(table, 8, |_| LruStatus::Rotate);
                        continue;
                    }
                    let number = (round * 7 + thread) % 8;
                    let guard = rcu::read_lock();
                    let found = table.find(number as u64, &guard, |object| object.0 == number);
                    let held = found.and_then(Shared::try_get);
                    drop(guard);
                    drop(held.expect("LRU-1: nobody takes it off the table"));
                }
            });
        }
    });
    assert_eq!(lens(&table), [8, 0], "LRU-1: none is in use");
    assert_eq!(scan(&table, 8, |_| LruStatus::Kill).len(), 8, "LRU-1");
    assert!(table.is_empty());
}

/// LRU-1: the last users of objects drop them while the table and its lists end: each object is
/// freed, once.
#[test]
fn a_table_ends_beside_puts() {
    use std::sync::Arc;
    struct Counted(u32, #[expect(dead_code, reason = "counts")] Arc<()>);
    impl HashKey for Counted {
        fn hash(&self) -> u64 {
            self.0.into()
        }
    }
    let rounds = if cfg!(miri) { 2 } else { 2_000 };
    let alive = Arc::new(());
    for _ in 0..rounds {
        let lru = Lru::new(Rank::Lru, 2, 1, |_: &Counted| 0);
        let table = RcuHash::new(Rank::InodeBucket).with_lru(lru);
        let objects: Vec<_> = (0..12)
            .map(|n| {
                let spare = Spare::new();
                let counted = Counted(n, alive.clone());
                table.lock(n.into()).insert_new(spare, counted, Flag::NONE)
            })
            .collect();
        let others = objects.clone();
        let start = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for objects in [objects, others] {
                scope.spawn(|| {
                    start.wait();
                    drop(objects);
                });
            }
            start.wait();
            drop(table);
        });
    }
    rcu::barrier();
    assert_eq!(Arc::strong_count(&alive), 1, "RCU-3: {rounds} rounds");
}
