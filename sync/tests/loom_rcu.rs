//! RCU-1 and the publishing of pointers, in every order that loom tries.
#![cfg(loom)]

mod loom_support;

use loom::sync::Arc;
use loom_support::{Probe, outcomes, spawn};
use rcuwalk_sync::{RcuPtr, Ref, rcu};

fn look(place: &RcuPtr<Probe>) -> u32 {
    let guard = rcu::read_lock();
    place.load(&guard).map_or(0, |object| object.read())
}

/// RCU-1: a reader finds the old object or the new one, whole, and neither is freed
/// under it.
#[test]
fn a_reader_finds_old_or_new_and_keeps_it() {
    let seen = outcomes(|| {
        let place = Arc::new(RcuPtr::new(Some(Ref::new(Probe::new(1)))));
        let reader = spawn({
            let place = place.clone();
            move || look(&place)
        });
        drop(place.swap(Some(Ref::new(Probe::new(2)))));
        reader.join().unwrap()
    });
    assert_eq!(seen, [1, 2].into(), "RCU-1");
}

/// RCU-1: a barrier at once with a reader waits for it and frees after it.
#[test]
fn a_barrier_waits_for_the_reader() {
    let seen = outcomes(|| {
        let place = Arc::new(RcuPtr::new(Some(Ref::new(Probe::new(1)))));
        let reader = spawn({
            let place = place.clone();
            move || look(&place)
        });
        drop(place.swap(None));
        rcu::barrier();
        let freed = rcu::statistics().freed;
        (reader.join().unwrap(), freed)
    });
    assert_eq!(seen, [(0, 1), (1, 1)].into(), "RCU-1");
}

/// RCU-1: a section that has ended counts as ended also when the scan sees the next.
#[test]
fn a_reader_that_comes_back_has_left_before() {
    let seen = outcomes(|| {
        let place = Arc::new(RcuPtr::new(Some(Ref::new(Probe::new(1)))));
        let reader = spawn({
            let place = place.clone();
            move || (look(&place), look(&place))
        });
        drop(place.swap(Some(Ref::new(Probe::new(2)))));
        reader.join().unwrap()
    });
    assert_eq!(seen, [(1, 1), (1, 2), (2, 2)].into(), "RCU-1");
}
