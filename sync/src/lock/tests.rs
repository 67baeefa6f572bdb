//! The lock order, and what a held lock defers.

use super::*;

/// LOCK-1: taking a lock further up the list is refused in debug builds.
#[test]
#[should_panic(expected = "LOCK-1")]
fn ranks_only_descend() {
    let inner = Mutex::new(Rank::Lru, ());
    let outer = Mutex::new(Rank::Namespace, ());
    let _inner = inner.lock();
    let _outer = outer.lock();
}

struct Names;

impl Ranked for Names {
    const RANK: Rank = Rank::DirRwsem;
}

/// LOCK-1: two locks of one rank need the nested form.
#[test]
#[should_panic(expected = "LOCK-1")]
fn equal_ranks_are_refused_unless_ordered() {
    let (a, b) = (RwLock::new(Names), RwLock::new(Names));
    let _a = a.write();
    drop(b.write_nested());
    let _b = b.write();
}

/// LOCK-1: a thread that does not wait may try a lock further up the list; the order still
/// holds for those that it waits for afterwards.
#[test]
#[should_panic(expected = "LOCK-1")]
fn a_lock_is_tried_out_of_order() {
    let (a, b) = (RwLock::new(Names), RwLock::new(Names));
    let above = Mutex::new(Rank::RenameMutex, ());
    let _a = a.read();
    let above_held = above.try_lock_out_of_order();
    assert!(above_held.is_some() && above.try_lock_out_of_order().is_none());
    assert!(b.try_read_out_of_order().is_some());
    let _b = b.read_nested();
    assert!(a.try_read_out_of_order().is_some() && b.try_read_out_of_order().is_some());
    assert!(a.try_write_out_of_order().is_none());
    let _b = b.read();
}

/// RCU-1: objects that a thread retires under a lock are not freed there, and do not pile
/// up if the thread never retires anything without one.
#[test]
fn freeing_waits_for_the_last_lock() {
    use std::sync::{Arc, Weak};
    let lock = Mutex::new(Rank::Lru, ());
    let objects: Vec<Weak<()>> = (0..100)
        .flat_map(|_| {
            let _held = lock.lock();
            let batch = (0..rcu::Domain::BATCH_OBJECTS).map(|_| {
                let object = Arc::new(());
                let watched = Arc::downgrade(&object);
                drop(crate::Ref::new(object));
                watched
            });
            batch.collect::<Vec<_>>()
        })
        .collect();
    let left = objects.iter().filter(|object| object.strong_count() > 0);
    // Other tests' readers may hold up a batch or two.
    assert!(left.count() < objects.len() / 2, "RCU-1: they pile up");
}

/// CALL-1: a thread that holds a lock may not wait for deferred drops.
#[test]
#[should_panic(expected = "CALL-1")]
fn a_barrier_under_a_lock_is_refused() {
    let lock = Mutex::new(Rank::DirRwsem, ());
    let _held = lock.lock();
    rcu::barrier();
}

/// RCU-2: a sleeping lock inside a read section is refused in debug builds.
#[test]
#[should_panic(expected = "RCU-2")]
fn no_sleeping_lock_under_a_guard() {
    let lock = Mutex::new(Rank::Lru, ());
    let _rcu = rcu::read_lock();
    let _held = lock.lock();
}
