//! RCU-3 and the one word of a shared object: count, lock, marks and waiters.
//!
//! Each line was weakened once, and this is what failed (with others, mostly):
//!
//! | weakened                                    | caught by                              |
//! |---------------------------------------------|----------------------------------------|
//! | `try_get` without the look at DEAD          | `either_killed_or_got`                 |
//! | `try_get` from zero                         | `a_reference_is_got_before_the_last_drop_or_not_at_all` |
//! | `kill_if_count_is` no Acquire               | `a_killer_sees_what_was_done_before`   |
//! | `kill_if_count_is` no Release, `is_dead` Relaxed | `the_dead_were_left_in_order`     |
//! | `kill_if_count_is` without the look at DEAD | `an_object_is_killed_once`             |
//! | `set` as a load and a store                 | `a_mark_is_set_once`                   |
//! | lock no Acquire; unlock no Release          | `the_lock_excludes_and_wakes`          |
//! | unlock or `clear` does not wake; WAITERS not marked | `lock_and_mark_wake_each_others_waiters` |
//! | wake without the queue's lock; wake one     | `lock_and_mark_wake_each_others_waiters` |
//! | `clear` no Release; `has` Relaxed; the waiter's first look Relaxed | `waiters_see_what_was_done_before_the_mark_went` |
//!
//! Two survive. The fence before freeing: the locks of the domain order that, too, in every
//! model. The Acquire of `try_get`: nothing in the interface tells which drops came before it;
//! it stays for callers that reason from `count`.

use crate::loom_support::{Probe, all_outcomes, outcomes, spawn};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{Flag, RcuPtr, Ref, rcu};

const BUSY: Flag = Flag::new(0);

/// RCU-3: at the last drop a reader gets a reference to keep, or none.
#[test]
fn a_reference_is_got_before_the_last_drop_or_not_at_all() {
    let seen = all_outcomes(|| {
        let place = Arc::new(RcuPtr::new(Some(Ref::new(Probe::new(7)))));
        let reader = spawn({
            let place = place.clone();
            move || {
                let guard = rcu::read_lock();
                let found = place.load(&guard)?;
                let got = found.try_get();
                drop(guard);
                Some(got.map(|object| object.read()))
            }
        });
        drop(place.swap(None));
        reader.join().unwrap()
    });
    assert_eq!(seen, [None, Some(None), Some(Some(7))].into(), "RCU-3");
}

/// RCU-3: a dead object gives no reference; one that got away was not killed.
#[test]
fn either_killed_or_got() {
    let seen = all_outcomes(|| {
        let object = Ref::new(Probe::new(7));
        let place = Arc::new(RcuPtr::new(Some(object.clone())));
        let reader = spawn({
            let place = place.clone();
            move || {
                let guard = rcu::read_lock();
                place.get(&guard)
            }
        });
        let killed = object.kill_if_count_is(2);
        let got = reader.join().unwrap();
        assert_eq!(object.is_dead(), killed, "RCU-3");
        (killed, got.is_some())
    });
    assert_eq!(seen, [(true, false), (false, true)].into(), "RCU-3");
}

/// RCU-3: of two threads that try to kill it, one does.
#[test]
fn an_object_is_killed_once() {
    let seen = all_outcomes(|| {
        let object = Ref::new(());
        let other = spawn({
            let object = object.clone();
            move || {
                let killed = object.kill_if_count_is(2);
                (killed, object)
            }
        });
        let killed = object.kill_if_count_is(2);
        (killed, other.join().unwrap().0)
    });
    assert_eq!(seen, [(true, false), (false, true)].into(), "RCU-3");
}

/// RCU-3: the thread that kills an object sees all changes made through references that are
/// gone.
#[test]
fn a_killer_sees_what_was_done_before() {
    let seen = all_outcomes(|| {
        let object = Ref::new(AtomicU32::new(0));
        let killer = spawn({
            let object = object.clone();
            move || object.kill_if_count_is(1).then(|| object.load(Relaxed))
        });
        object.store(1, Relaxed);
        drop(object);
        killer.join().unwrap()
    });
    assert_eq!(seen, [None, Some(1)].into(), "RCU-3");
}

/// RCU-3: a thread that finds an object dead sees what its killer did before.
#[test]
fn the_dead_were_left_in_order() {
    let seen = all_outcomes(|| {
        let object = Ref::new(AtomicU32::new(0));
        let other = spawn({
            let object = object.clone();
            move || object.is_dead().then(|| object.load(Relaxed))
        });
        object.store(1, Relaxed);
        object.kill_if_count_is(2);
        other.join().unwrap()
    });
    assert_eq!(seen, [None, Some(1)].into(), "RCU-3");
}

/// RCU-3: the thread that frees an object comes after every use of it by other threads.
#[test]
fn whoever_frees_comes_after_every_use() {
    let seen = all_outcomes(|| {
        let object = Ref::new(Probe::new(7));
        let other = spawn({
            let object = object.clone();
            move || object.read()
        });
        let seen = object.read();
        drop(object);
        (seen, other.join().unwrap())
    });
    assert_eq!(seen, [(7, 7)].into(), "RCU-3");
}

/// LOCK-1: one holder at a time, and no thread sleeps for ever.
#[test]
fn the_lock_excludes_and_wakes() {
    let seen = outcomes(|| {
        let object = Ref::new(Probe::new(0));
        let add = |object: &Ref<Probe>| object.lock(Rank::Dentry).add(1);
        let others = [(); 2].map(|()| {
            let object = object.clone();
            spawn(move || add(&object))
        });
        add(&object);
        others.into_iter().for_each(|other| other.join().unwrap());
        object.read()
    });
    assert_eq!(seen, [3].into(), "LOCK-1");
}

/// INODE-2: a thread that waits for a mark wakes when it is cleared, and sees all earlier
/// changes.
#[test]
fn waiters_see_what_was_done_before_the_mark_went() {
    let seen = all_outcomes(|| {
        let object = Ref::with_flags(Probe::new(0), &[BUSY]);
        let waiter = spawn({
            let object = object.clone();
            move || {
                object.wait_until_clear(BUSY);
                object.read()
            }
        });
        object.add(1);
        assert!(object.clear(BUSY));
        waiter.join().unwrap()
    });
    assert_eq!(seen, [1].into(), "INODE-2");
}

/// INODE-2: threads wait for a mark and for the lock in one word, and none loses its wake-up to
/// another.
#[test]
fn lock_and_mark_wake_each_others_waiters() {
    let seen = outcomes(|| {
        let object = Ref::with_flags(Probe::new(0), &[BUSY]);
        let waiter = spawn({
            let object = object.clone();
            move || {
                object.wait_until_clear(BUSY);
                object.lock(Rank::Dentry).add(1);
            }
        });
        let locker = spawn({
            let object = object.clone();
            move || object.lock(Rank::Dentry).add(1)
        });
        let locked = object.lock(Rank::Dentry);
        locked.add(1);
        object.clear(BUSY);
        drop(locked);
        waiter.join().unwrap();
        locker.join().unwrap();
        object.read()
    });
    assert_eq!(seen, [3].into(), "INODE-2");
}

/// INODE-2: of two threads that set one mark, only one was first.
#[test]
fn a_mark_is_set_once() {
    let seen = all_outcomes(|| {
        let object = Ref::new(Probe::new(0));
        let other = spawn({
            let object = object.clone();
            move || object.set(BUSY)
        });
        let first = object.set(BUSY);
        (first, other.join().unwrap())
    });
    assert_eq!(seen, [(true, false), (false, true)].into(), "INODE-2");
}
