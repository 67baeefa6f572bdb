//! How an object is inserted into its chain in one step, which thread is told that it holds the
//! last reference, and how it is evicted while other threads wait for that.
//!
//! Each line was weakened once, and this is what failed:
//!
//! | weakened                                            | caught by                             |
//! |-----------------------------------------------------|---------------------------------------|
//! | `publish` no Release                                | `an_object_is_born_whole`             |
//! | `put_unless_last` looks at the flag, then subtracts | `of_two_last_references_one_is_told`  |
//! | `put_unless_last` no Release                        | `the_last_one_sees_what_others_did`   |
//! | `bury` does not wake; `bury` leaves the mark        | `who_waits_for_the_dead_wakes`        |
//! | `bury` no Release                                   | `who_waits_for_the_dead_wakes`        |
//! | `count_down` looks, then subtracts                  | `of_two_last_users_one_lists`         |
//! | `list_if_unused` does not ask for HASHED            | `what_leaves_the_table_leaves_the_list` |
//! | `unlist_if_used` does not ask for users             | `what_a_scan_lets_go_comes_back`      |
//! | `let_go` tells of the lists after the mark has gone | `what_a_scan_lets_go_comes_back`      |
//! | `enter_list` opens no read section                  | `the_last_put_beside_the_end_of_the_table` |
//! | `find_settled` does not look for the next array     | `a_settled_miss_is_one`               |
//! | `Late::set` no Release; `Late::get` Relaxed         | `what_comes_late_is_whole`            |

use crate::loom_support::{Probe, all_outcomes, outcomes, spawn};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{Flag, HashKey, Late, Lru, LruStatus, RcuHash, Ref, Shared, Spare, rcu};

const NOT_CACHED: Flag = Flag::new(0);

struct Item {
    hash: u64,
    probe: Probe,
    note: AtomicU32,
}

impl HashKey for Item {
    fn hash(&self) -> u64 {
        self.hash
    }
}

type Table = RcuHash<Item>;

/// Puts a new object on the table, and returns a reference to it.
fn insert(table: &Table, hash: u64, value: u32) -> Ref<Item> {
    let item = Item {
        hash,
        probe: Probe::new(value),
        note: AtomicU32::new(0),
    };
    // Loom treats the initial value as known to all threads, and a stored one not.
    item.note.store(value, Relaxed);
    let bucket = table.lock(hash);
    bucket.insert_new(Spare::new(), item, Flag::NONE)
}

/// RCU-1: an object that is made under the bucket's lock is found whole or not at all.
#[test]
fn an_object_is_born_whole() {
    let seen = all_outcomes(|| {
        let table = Arc::new(Table::new(Rank::InodeBucket));
        let reader = spawn({
            let table = table.clone();
            move || {
                let guard = rcu::read_lock();
                let found = table.find(0, &guard, |item| item.hash == 0);
                found.map(|item| (item.probe.read(), item.note.load(Relaxed)))
            }
        });
        insert(&table, 0, 7);
        reader.join().unwrap()
    });
    assert_eq!(seen, [None, Some((7, 7))].into(), "RCU-1");
}

/// RCU-3: of two threads that drop the last references but the cache's, one is told.
#[test]
fn of_two_last_references_one_is_told() {
    let seen = all_outcomes(|| {
        // The table's reference is the one that is not to count.
        let table = Table::new(Rank::InodeBucket);
        let mine = insert(&table, 0, 7);
        let others = mine.clone();
        let other = spawn(move || Ref::put_unless_last(others, NOT_CACHED).is_some());
        // Marked by one of them while the other may be dropping.
        mine.set(NOT_CACHED);
        let told = Ref::put_unless_last(mine, NOT_CACHED).is_some();
        (told, other.join().unwrap())
    });
    assert_eq!(seen, [(true, false), (false, true)].into(), "RCU-3");
}

/// RCU-3: the thread that holds the last reference, and kills the object, sees all changes by
/// other threads.
#[test]
fn the_last_one_sees_what_others_did() {
    let seen = all_outcomes(|| {
        let table = Table::new(Rank::InodeBucket);
        let mine = insert(&table, 0, 7);
        mine.set(NOT_CACHED);
        let others = mine.clone();
        let other = spawn(move || {
            others.note.store(1, Relaxed);
            Ref::put_unless_last(others, NOT_CACHED).is_some()
        });
        let last = Ref::put_unless_last(mine, NOT_CACHED);
        let seen = last.and_then(|last| {
            last.kill_if_last(NOT_CACHED)
                .then(|| last.note.load(Relaxed))
        });
        other.join().unwrap();
        seen
    });
    assert_eq!(seen, [None, Some(1)].into(), "RCU-3");
}

/// A table whose objects are listed while they have no user.
fn with_lists() -> Arc<Table> {
    let lru = Lru::new(Rank::Lru, 1, 1, |_| 0);
    Arc::new(Table::new(Rank::InodeBucket).with_lru(lru))
}

fn listed(table: &Table) -> usize {
    table.lru().kind(0).len()
}

fn get(table: &Table) -> Option<Ref<Item>> {
    let guard = rcu::read_lock();
    let found = table.find(0, &guard, |item| item.hash == 0);
    found.and_then(Shared::try_get)
}

/// LRU-1: of two threads that drop the last two users' references, one lists the object.
#[test]
fn of_two_last_users_one_lists() {
    let seen = all_outcomes(|| {
        let table = with_lists();
        let mine = insert(&table, 0, 7);
        let others = mine.clone();
        let other = spawn(move || drop(others));
        drop(mine);
        other.join().unwrap();
        listed(&table)
    });
    assert_eq!(seen, [1].into(), "LRU-1");
}

/// LRU-1: a scan lets go of an object in use while its last user drops it: it is on the list
/// afterwards, and the next user sees what the last one has done.
#[test]
fn what_a_scan_lets_go_comes_back() {
    let seen = outcomes(|| {
        let table = with_lists();
        drop(insert(&table, 0, 7));
        // Listed, and in use.
        let user = get(&table).unwrap();
        let last = spawn(move || {
            user.note.store(1, Relaxed);
            drop(user);
        });
        let mut killed = Vec::new();
        let scanned = |_: &Shared<Item>| LruStatus::Rotate;
        table.lru().kind(0).scan(0, 1, &mut killed, scanned);
        last.join().unwrap();
        let is_listed = listed(&table);
        let next = get(&table).unwrap();
        (is_listed, next.note.load(Relaxed))
    });
    assert_eq!(seen, [(1, 1)].into(), "LRU-1");
}

/// LRU-1: an object that one thread takes off the table, and then off its list, while its last
/// user drops it, is on no list afterwards, and has the one reference.
#[test]
fn what_leaves_the_table_leaves_the_list() {
    let seen = all_outcomes(|| {
        let table = with_lists();
        let user = insert(&table, 0, 7);
        let last = spawn(move || drop(user));
        let off = table.lock(0).remove_where(|_| true).unwrap();
        drop(table.lru().remove(&off));
        last.join().unwrap();
        (listed(&table), off.count())
    });
    assert_eq!(seen, [(0, 1)].into(), "LRU-1");
}

/// LRU-1: a lookup beside the last user's drop leaves the object in use, or listed by that drop.
#[test]
fn a_lookup_beside_the_last_put() {
    let seen = all_outcomes(|| {
        let table = with_lists();
        let mine = insert(&table, 0, 7);
        let finder = spawn({
            let table = table.clone();
            move || get(&table).expect("LRU-1: it is cached all the time")
        });
        drop(mine);
        let found = finder.join().unwrap();
        let while_used = (listed(&table), found.users());
        drop(found);
        (while_used, listed(&table))
    });
    assert_eq!(seen, [((0, 1), 1), ((1, 1), 1)].into(), "LRU-1");
}

/// LRU-1: a user that drops an object while its table goes finds the lists, or an object on no
/// table.
#[test]
fn the_last_put_beside_the_end_of_the_table() {
    let seen = outcomes(|| {
        let table = Arc::try_unwrap(with_lists()).ok().unwrap();
        let user = insert(&table, 0, 7);
        let last = spawn(move || drop(user));
        drop(table);
        last.join().unwrap();
        rcu::barrier();
    });
    assert_eq!(seen, [()].into(), "LRU-1");
}

/// RCU-1: a thread that meets a dead object and waits for it sleeps until it is off its chain,
/// and sees all earlier changes to it; the object stays allocated while a thread waits.
#[test]
fn who_waits_for_the_dead_wakes() {
    let seen = outcomes(|| {
        let table = Arc::new(Table::new(Rank::InodeBucket));
        // The table's reference and ours: `bury` takes both.
        let item = insert(&table, 0, 7);
        assert!(item.kill_if_count_is(2), "RCU-3");
        let written_back = Arc::new(AtomicU32::new(0));
        let waiter = spawn({
            let (table, written_back) = (table.clone(), written_back.clone());
            move || {
                let guard = rcu::read_lock();
                let found = table.find(0, &guard, |item| item.hash == 0)?;
                let dying = found.dying();
                drop(guard);
                dying?.wait_until_unhashed();
                let seen = written_back.load(Relaxed);
                Some((seen, table.lock(0).find(|item| item.hash == 0).is_none()))
            }
        });
        written_back.store(1, Relaxed);
        table.bury(vec![item]);
        waiter.join().unwrap()
    });
    assert_eq!(seen, [None, Some((1, true))].into(), "RCU-1");
}

/// RCU-1: a miss that says that it proves something does, also while the table grows.
#[test]
fn a_settled_miss_is_one() {
    let seen = outcomes(|| {
        let table = Arc::new(Table::new(Rank::InodeBucket));
        let items = [0, 2, 1].map(|hash| insert(&table, hash, hash as u32));
        let reader = spawn({
            let table = table.clone();
            move || {
                let guard = rcu::read_lock();
                let view = table.view(&guard);
                let found = view.find_settled(0, |item| item.hash == 0);
                found.map(|found| found.map(|item| item.probe.read()))
            }
        });
        // The first lock makes the larger array, the second moves the chains.
        (0..2).for_each(|_| drop(table.lock(0)));
        drop(items);
        reader.join().unwrap().map_err(|_| "unsettled")
    });
    assert_eq!(seen, [Ok(Some(0)), Err("unsettled")].into(), "RCU-1");
}

/// INODE-2: a part that comes late is there whole, or not at all.
#[test]
fn what_comes_late_is_whole() {
    let seen = all_outcomes(|| {
        let late = Arc::new(Late::new((), 0));
        let reader = spawn({
            let late = late.clone();
            move || late.get().map(Probe::read)
        });
        assert!(late.set(Probe::new(7)), "INODE-2");
        reader.join().unwrap()
    });
    assert_eq!(seen, [None, Some(7)].into(), "INODE-2");
}
