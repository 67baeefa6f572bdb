//! RCU-1 and the publishing of pointers, in every order that loom tries.
//!
//! Each line was weakened once, and this is what failed (with others, mostly):
//!
//! | weakened                                    | caught by                              |
//! |---------------------------------------------|----------------------------------------|
//! | `light` or `heavy` gone, or only AcqRel     | `a_barrier_waits_for_the_reader`       |
//! | `heavy` gone in `synchronize`               | `synchronize_waits_for_the_reader`     |
//! | reader's stamp stored after `light`         | `a_slot_changes_hands`                 |
//! | reader's stamp Relaxed                      | `a_reader_that_comes_back_has_left_before` |
//! | `exit` Relaxed; scan Relaxed                | `a_barrier_waits_for_the_reader`       |
//! | `next_period` Relaxed                       | `whoever_frees_waits_for_the_readers`  |
//! | `next_period` returns the number before     | `a_barrier_waits_for_the_reader`       |
//! | a bag freed one period early                | `a_barrier_waits_for_the_reader`       |
//! | `synchronize` content one period early      | `a_barrier_waits_for_the_reader`       |
//! | the newest bag looked at after the scan     | `whoever_frees_waits_for_the_readers`  |
//! | nesting ignored on entry, or on exit        | `a_nested_section_does_not_end_the_outer_one` |
//! | `RcuPtr::swap` no Release, `load` Relaxed   | `a_reader_finds_old_or_new_and_keeps_it` |
//!
//! Two survive. The Acquire of a reader's period: here `light` is a full fence, which includes
//! it; with membarrier it is not, and a weakly ordered CPU needs it. The Acquire of
//! `RcuPtr::swap`: in every model, the thread that takes an object out is already ordered after
//! the place's last writer by a lock.

use crate::loom_support::{Probe, all_outcomes, outcomes, spawn};
use loom::sync::Arc;
use rcuwalk_sync::{RcuPtr, Ref, rcu};

fn look(place: &RcuPtr<Probe>) -> u32 {
    let guard = rcu::read_lock();
    place.load(&guard).map_or(0, |object| object.read())
}

/// RCU-1: a reader finds the old object or the new one, whole, and neither is freed
/// under it.
#[test]
fn a_reader_finds_old_or_new_and_keeps_it() {
    let seen = all_outcomes(|| {
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
    let seen = all_outcomes(|| {
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
    let seen = all_outcomes(|| {
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

/// RCU-1: after `synchronize`, an object unpublished before it belongs to its owner alone.
#[test]
fn synchronize_waits_for_the_reader() {
    let seen = all_outcomes(|| {
        let place = Arc::new(RcuPtr::new(Some(Ref::new(Probe::new(1)))));
        let reader = spawn({
            let place = place.clone();
            move || look(&place)
        });
        let mine = place.swap(None).unwrap();
        rcu::synchronize();
        mine.add(1);
        (reader.join().unwrap(), mine.read())
    });
    assert_eq!(seen, [(0, 2), (1, 2)].into(), "RCU-1");
}

/// RCU-1: an inner section's end is not the end.
#[test]
fn a_nested_section_does_not_end_the_outer_one() {
    let seen = all_outcomes(|| {
        let place = Arc::new(RcuPtr::new(Some(Ref::new(Probe::new(1)))));
        let reader = spawn({
            let place = place.clone();
            move || {
                let guard = rcu::read_lock();
                let found = place.load(&guard);
                drop(rcu::read_lock());
                found.map_or(0, |object| object.read())
            }
        });
        drop(place.swap(None));
        reader.join().unwrap()
    });
    assert_eq!(seen, [0, 1].into(), "RCU-1");
}

/// RCU-1: a thread that takes over the slot of one that ended is seen in it.
#[test]
fn a_slot_changes_hands() {
    let seen = outcomes(|| {
        let place = Arc::new(RcuPtr::new(Some(Ref::new(Probe::new(1)))));
        let readers = [(); 2].map(|()| {
            let place = place.clone();
            spawn(move || {
                let seen = look(&place);
                rcu::leave();
                seen
            })
        });
        drop(place.swap(Some(Ref::new(Probe::new(2)))));
        readers.map(|reader| reader.join().unwrap())
    });
    assert_eq!(seen, [[1, 1], [1, 2], [2, 1], [2, 2]].into(), "RCU-1");
}

/// RCU-1: what one thread unpublished is safe when another frees it.
#[test]
fn whoever_frees_waits_for_the_readers() {
    let seen = outcomes(|| {
        let places = Arc::new([1, 2].map(|n| RcuPtr::new(Some(Ref::new(Probe::new(n))))));
        let other = spawn({
            let places = places.clone();
            move || drop(places[1].swap(None))
        });
        let reader = spawn({
            let places = places.clone();
            move || {
                let guard = rcu::read_lock();
                let found = places.each_ref().map(|place| place.load(&guard));
                found.map(|found| found.map_or(0, |object| object.read()))
            }
        });
        drop(places[0].swap(None));
        other.join().unwrap();
        reader.join().unwrap()
    });
    assert_eq!(seen, [[0, 0], [0, 2], [1, 0], [1, 2]].into(), "RCU-1");
}
