//! Counted objects by themselves.

use super::*;
use crate::lock::Rank;
use std::sync::Arc;

const BUSY: Flag = Flag::new(0);

/// RCU-3: a dead object gives no references, and existing ones stay good.
#[test]
fn the_dead_stay_dead() {
    let object = Ref::new(7);
    let other = object.clone();
    assert!(!object.kill_if_count_is(1), "RCU-3: two references exist");
    drop(other);
    assert!(object.kill_if_count_is(1));
    assert!(object.try_get().is_none(), "RCU-3: it is dead");
    assert!(!object.kill_if_count_is(1), "RCU-3: only one call kills");
    assert_eq!(**object, 7);
}

/// RCU-3: the last reference may be one that a reader got.
#[test]
fn a_reader_s_reference_may_be_the_last() {
    let place = crate::RcuPtr::new(Some(Ref::new(String::from("kept"))));
    let got = place.get(&rcu::read_lock()).unwrap();
    drop(place);
    assert_eq!((&***got, got.count()), ("kept", 1), "RCU-3");
    drop(got);
    rcu::barrier();
}

/// RCU-3: a count never runs into the marks, however many references are forgotten.
#[test]
fn a_full_count_gives_no_more() {
    let object = Ref::new(());
    object.word().store(MOST, Relaxed);
    assert!(object.try_get().is_none(), "RCU-3: by a reader");
    let clone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| object.clone()));
    assert!(clone.is_err(), "RCU-3: by a holder");
    assert_eq!(
        u64::from(object.count()),
        MOST,
        "RCU-3: the attempts left no trace"
    );
    object.word().store(1, Relaxed);
}

/// RCU-1: the value is dropped after a grace period, not with the last reference.
#[test]
fn a_guard_outlives_the_last_reference() {
    struct Tell(Arc<std::sync::atomic::AtomicU64>);
    impl Drop for Tell {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    let drops = Arc::default();
    let object = Ref::new(Tell(Arc::clone(&drops)));
    let guard = rcu::read_lock();
    drop(object);
    assert_eq!(drops.load(Relaxed), 0, "RCU-1: a guard is open");
    drop(guard);
    rcu::barrier();
    assert_eq!(drops.load(Relaxed), 1, "RCU-1: the guard has ended");
}

#[test]
fn waiters_wake_when_the_flag_clears() {
    let object = Ref::with_flags((), &[BUSY]);
    let waiter = std::thread::spawn({
        let object = object.clone();
        move || {
            object.wait_until_clear(BUSY);
            object.has(BUSY)
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(10));
    assert!(object.clear(BUSY));
    assert!(!waiter.join().unwrap());
}

#[test]
fn the_lock_excludes() {
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    let object = Ref::new(0u64);
    let total = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (object, total) = (object.clone(), total.clone());
            std::thread::spawn(move || {
                for _ in 0..rounds {
                    let _locked = object.lock(Rank::Dentry);
                    // A lost update would show that two were inside at once.
                    let seen = total.load(Relaxed);
                    std::hint::black_box(&seen);
                    total.store(seen + 1, Relaxed);
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(total.load(Relaxed), 4 * rounds);
}

/// RCU-3: which reference is the last one depends on the object's containers at that moment:
/// off the table, every reference belongs to a holder.
#[test]
fn the_last_reference_that_matters() {
    const FLAG: Flag = Flag::new(0);
    for (hashed, listed, flagged) in [
        (false, false, false),
        (false, false, true),
        (true, false, false),
        (true, false, true),
        (true, true, false),
        (true, true, true),
    ] {
        let mut object = Ref::new(0);
        let marks = [
            (hashed, Flag::HASHED),
            (listed, Flag::LISTED),
            (flagged, FLAG),
        ];
        let set = marks.into_iter().filter(|(is, _)| *is);
        set.for_each(|(_, flag)| _ = object.set(flag));
        let containers = u32::from(hashed) + u32::from(listed);
        let mut others = vec![object.clone(), object.clone(), object.clone()];
        for count in (1..=4).rev() {
            let last = count == 1 || count == containers + 1 && flagged;
            assert_eq!(object.count(), count);
            assert_eq!(object.users(), count.saturating_sub(containers));
            object = match Ref::put_unless_last(object, FLAG) {
                Some(object) => {
                    assert!(last, "RCU-3: {count}");
                    others.pop();
                    object
                }
                None => {
                    assert!(!last, "RCU-3: {count}");
                    others.pop().unwrap()
                }
            };
        }
        object.clear(Flag::LISTED);
        object.clear(Flag::HASHED);
        assert!(object.kill_if_last(FLAG), "RCU-3");
        assert!(!object.kill_if_last(FLAG), "RCU-3: only one call kills");
    }
}

/// RCU-3: while the only user changes an object, no thread gets another reference.
#[test]
fn nobody_gets_at_what_is_changed_unshared() {
    let object = Ref::new(7);
    // Stands for the table's.
    let table = object.clone();
    assert!(!object.while_unshared(|| unreachable!("RCU-3: it is on no table")));
    object.set(Flag::HASHED);
    let other = object.clone();
    assert!(!object.while_unshared(|| unreachable!("RCU-3: two have it")));
    drop(other);
    assert!(object.while_unshared(|| assert!(object.try_get().is_none(), "RCU-3")));
    assert!(object.try_get().is_some(), "RCU-3: it lives on");
    let panics = std::panic::AssertUnwindSafe(|| object.while_unshared(|| panic!("on purpose")));
    assert!(std::panic::catch_unwind(panics).is_err());
    assert!(object.try_get().is_some(), "RCU-3: after a panic as well");
    object.clear(Flag::HASHED);
    drop(table);
}
