//! The iget family, each function in each state of an inode's life, under each scheme.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use crate::common::inodes::{
    Cache, FRESH, Gate, Got, Ino, Inode, OnMiss, SCHEMES, WAYS, a_while, builder, colliding,
    eventually, find_nowait, ino, is_cached, read,
};
use rcuwalk::inode::{Iget, Life, NewInode, Scheme, Stale, Unwaited};
use rcuwalk_sync::lock;

fn cache(scheme: Scheme) -> Cache {
    builder(scheme).build()
}

fn new(cache: &Cache, key: Ino) -> NewInode<'_, Ino, u64> {
    match cache.iget(key).unwrap() {
        Iget::New(new) => new,
        Iget::Cached(_) => panic!("INODE-1: nobody has {key:?}"),
    }
}

fn same(found: &Inode, expected: &Inode) -> bool {
    Inode::ptr_eq(found, expected)
}

/// INODE-1: for a missing inode, a caller that wants to read it in does, and one that only
/// looks finds nothing; from then on all find the same one.
#[test]
fn a_miss_and_then_a_hit() {
    for scheme in SCHEMES {
        for way in &WAYS {
            let (cache, what) = (cache(scheme), way.name);
            // Others with the same hash are there.
            let others = [1, 2].map(|number| read(&cache, colliding(number)));
            let key = colliding(3);
            assert!(find_nowait(&cache, key).is_none(), "INODE-1: {what}");
            let first = match ((way.look)(&cache, key), way.on_miss) {
                (Got::New(inode), OnMiss::Reads) => inode,
                (Got::Nothing, OnMiss::Nothing) => read(&cache, key),
                (got, _) => panic!("INODE-1: {what}, {scheme:?}: {got:?}"),
            };
            match (way.look)(&cache, key) {
                Got::Cached(again) => assert!(same(&again, &first), "INODE-1: {what}"),
                Got::InUse => assert_eq!(what, "insert_inode", "INODE-1"),
                got => panic!("INODE-1: {what}, {scheme:?}: {got:?}"),
            }
            let found = find_nowait(&cache, key).unwrap();
            assert!(same(&found, &first), "INODE-1: {what}");
            assert_eq!(first.life(), Life::Live, "INODE-4: {what}");
            assert!(others.iter().all(|other| !same(other, &first)), "INODE-1");
        }
    }
}

/// INODE-2, INODE-3: a lookup that meets New sleeps until it is filled in, and then has
/// that one; if the read-in fails it looks again, and is the next reader if it can be.
#[test]
fn a_lookup_that_meets_new_waits() {
    for scheme in SCHEMES {
        for way in WAYS.iter().filter(|way| way.waits_for_new) {
            for fails in [false, true] {
                let (cache, what) = (cache(scheme), way.name);
                let first = new(&cache, ino(1));
                thread::scope(|scope| {
                    let look = scope.spawn(|| (way.look)(&cache, ino(1)));
                    eventually("it waits", || cache.statistics().waited_for_new == 1);
                    a_while();
                    assert!(!look.is_finished(), "INODE-2: {what}, {scheme:?}");
                    let inode = match fails {
                        true => {
                            drop(first);
                            None
                        }
                        false => Some(first.init(5u64)),
                    };
                    match (look.join().unwrap(), inode, way.on_miss) {
                        (Got::Cached(got), Some(inode), _) => assert!(same(&got, &inode)),
                        (Got::InUse, Some(_), _) => assert_eq!(what, "insert_inode"),
                        (Got::New(got), None, OnMiss::Reads) => assert_eq!(**got, FRESH),
                        (Got::Nothing, None, OnMiss::Nothing) => {}
                        (got, _, _) => panic!("INODE-3: {what}, fails {fails}: {got:?}"),
                    }
                });
            }
        }
    }
}

/// INODE-2: a caller that does not wait is told that another thread reads it in, and may wait
/// later.
#[test]
fn a_lookup_that_does_not_wait_meets_new() {
    for scheme in SCHEMES {
        for way in WAYS.iter().filter(|way| !way.waits_for_new) {
            let (cache, what) = (cache(scheme), way.name);
            let first = new(&cache, ino(1));
            let got = (way.look)(&cache, ino(1));
            assert!(matches!(got, Got::Pending), "INODE-2: {what}: {got:?}");
            assert!(find_nowait(&cache, ino(1)).is_none(), "INODE-2");
            assert_eq!(cache.statistics().waited_for_new, 0, "INODE-2: {what}");
            drop(first);
        }
        let cache = cache(scheme);
        let pending =
            |number| match cache.ilookup5_nowait_rcu(number, |node| node.key().number == number) {
                Ok(Some(Unwaited::New(pending))) => pending,
                _ => panic!("INODE-2: it is New"),
            };
        for fails in [false, true] {
            let first = new(&cache, ino(2));
            let early = pending(2);
            assert_eq!(early.life(), Life::New, "INODE-4");
            thread::scope(|scope| {
                let wait = scope.spawn(|| early.wait());
                a_while();
                assert!(!wait.is_finished(), "INODE-2");
                let late = pending(2);
                if fails {
                    drop(first);
                    assert_eq!(late.life(), Life::Freeing, "INODE-4");
                    assert!(late.wait().is_none(), "INODE-3");
                    assert!(wait.join().unwrap().is_none(), "INODE-3");
                } else {
                    let inode = first.init(2u64);
                    assert!(same(&late.wait().unwrap(), &inode), "INODE-2");
                    assert!(same(&wait.join().unwrap().unwrap(), &inode), "INODE-2");
                    inode.dont_cache();
                }
            });
        }
        // Filled in and gone again before it was waited for: to be looked for again.
        let first = new(&cache, ino(3));
        let late = pending(3);
        cache.unhash(&first.init(3u64));
        assert!(late.wait().is_none(), "INODE-4: {scheme:?}");
    }
}

/// INODE-2: a lookup that meets Creating gets Stale, and a second creator InUse; once it
/// is filled in it is like any other, and if it fails the key is free.
#[test]
fn a_lookup_that_meets_creating_is_stale() {
    for scheme in SCHEMES {
        for way in &WAYS {
            for fails in [false, true] {
                let (cache, what) = (cache(scheme), way.name);
                let creating = cache.insert_inode(ino(1)).unwrap();
                assert_eq!(creating.key(), &ino(1));
                match (way.look)(&cache, ino(1)) {
                    Got::Stale => assert_ne!(what, "insert_inode"),
                    Got::InUse => assert_eq!(what, "insert_inode"),
                    got => panic!("INODE-2: {what}, {scheme:?}: {got:?}"),
                }
                assert!(find_nowait(&cache, ino(1)).is_none(), "INODE-2: {what}");
                assert_eq!(cache.statistics().stale, 1, "INODE-2: {what}");
                if fails {
                    drop(creating);
                    assert!(!is_cached(&cache, ino(1)), "INODE-3: {what}");
                    drop(cache.insert_inode(ino(1)).unwrap());
                } else {
                    let inode = creating.init(9u64);
                    assert_eq!(inode.life(), Life::Live, "INODE-4");
                    match (way.look)(&cache, ino(1)) {
                        Got::Cached(found) => assert!(same(&found, &inode)),
                        Got::InUse => assert_eq!(what, "insert_inode"),
                        got => panic!("INODE-2: {what}, {scheme:?}: {got:?}"),
                    }
                }
            }
        }
    }
}

/// INODE-4: a lookup that meets Freeing sleeps, with no lock held, until the hook has
/// returned and the inode is off the table; then there is none, or it reads another in.
#[test]
fn a_lookup_that_meets_freeing_waits_until_it_is_gone() {
    for scheme in SCHEMES {
        for way in WAYS.iter().filter(|way| way.waits_for_freeing) {
            let what = way.name;
            let returned = AtomicUsize::new(0);
            let (gate, wait) = Gate::new();
            let cache: Cache = builder(scheme).on_evict(move |_| wait()).build();
            let inode = read(&cache, ino(1));
            inode.dont_cache();
            thread::scope(|scope| {
                scope.spawn(|| {
                    drop(inode);
                    returned.fetch_add(1, SeqCst);
                });
                gate.arrived();
                let look = scope.spawn(|| {
                    let got = (way.look)(&cache, ino(1));
                    (got, lock::may_sleep())
                });
                eventually("it waits", || cache.statistics().waited_for_freeing == 1);
                assert!(find_nowait(&cache, ino(1)).is_none(), "INODE-4");
                // The bucket is free meanwhile, also for other inodes with that hash.
                let other = Ino { number: 2, hash: 1 };
                assert!(find_nowait(&cache, other).is_none(), "INODE-4");
                a_while();
                assert!(!look.is_finished(), "INODE-4: {what}, {scheme:?}");
                assert_eq!(returned.load(SeqCst), 0);
                gate.open();
                match (look.join().unwrap().0, way.on_miss) {
                    (Got::New(inode), OnMiss::Reads) => assert_eq!(**inode, FRESH),
                    (Got::Nothing, OnMiss::Nothing) => {}
                    (got, _) => panic!("INODE-4: {what}, {scheme:?}: {got:?}"),
                }
                // Inodes dropped with the cache, or after a check has failed, pass.
                drop(gate);
            });
        }
    }
}

/// INODE-1: `set` that fails inserts nothing, its error comes back, and the bucket is
/// free again.
#[test]
fn a_set_that_fails_inserts_nothing() {
    #[derive(Debug, PartialEq)]
    enum No {
        Set,
        Stale,
    }
    impl From<Stale> for No {
        fn from(_: Stale) -> No {
            No::Stale
        }
    }
    for scheme in SCHEMES {
        let cache = cache(scheme);
        let test = |node: &crate::common::inodes::Node| node.key().number == 1;
        let no = || Err(No::Set);
        let spare = cache.alloc_inode();
        let got = [
            cache.iget5(1, test, no).err(),
            cache.iget5_rcu(1, test, no).err(),
            cache.inode_insert5(spare, 1, test, no).err(),
        ];
        assert_eq!(
            got,
            [Some(No::Set), Some(No::Set), Some(No::Set)],
            "INODE-1"
        );
        assert!(lock::may_sleep(), "LOCK-1: nothing stays locked");
        assert_eq!(
            (cache.size().0, cache.statistics().inserted),
            (0, 0),
            "INODE-1"
        );
        let creating = cache.insert_inode(ino(1)).unwrap();
        assert_eq!(cache.iget5(1, test, no).err(), Some(No::Stale), "INODE-2");
        let inode = creating.init(1u64);
        // Not called where there is one.
        let found = cache.iget5(1, test, no);
        assert!(matches!(found, Ok(Iget::Cached(found)) if same(&found, &inode)));
    }
}

/// LOCK-1: a panic in the caller's code leaves nothing locked and nothing behind.
#[test]
fn a_panic_in_test_or_set_leaves_the_cache_usable() {
    type Bad = (&'static str, fn(&Cache));
    let bad: [Bad; 8] = [
        ("iget5: test", |cache| {
            let _ = cache.iget5::<Stale>(7, |_| panic!("on purpose"), || Ok(colliding(3)));
        }),
        ("iget5: set", |cache| {
            let _ = cache.iget5::<Stale>(7, |_| false, || panic!("on purpose"));
        }),
        ("iget5_rcu: test", |cache| {
            let _ = cache.iget5_rcu::<Stale>(7, |_| panic!("on purpose"), || Ok(colliding(3)));
        }),
        ("iget5_rcu: set", |cache| {
            let _ = cache.iget5_rcu::<Stale>(7, |_| false, || panic!("on purpose"));
        }),
        ("ilookup5: test", |cache| {
            let _ = cache.ilookup5(7, |_| panic!("on purpose"));
        }),
        ("ilookup5_nowait_rcu: test", |cache| {
            let _ = cache.ilookup5_nowait_rcu(7, |_| panic!("on purpose"));
        }),
        ("find_inode_nowait: matches", |cache| {
            let _ = cache.find_inode_nowait(7, |_| panic!("on purpose"));
        }),
        // The key is filed where no lookup would look for it.
        ("iget5: another hash", |cache| {
            let _ = cache.iget5::<Stale>(7, |_| false, || Ok(ino(3)));
        }),
    ];
    for scheme in SCHEMES {
        for (what, act) in bad {
            let cache = cache(scheme);
            let held = read(&cache, colliding(1));
            let panicked = catch_unwind(AssertUnwindSafe(|| act(&cache)));
            let panic = panicked.expect_err(what);
            match panic.downcast_ref::<String>() {
                Some(message) => assert!(message.contains("INODE-1"), "{what}: {message}"),
                None => assert_eq!(panic.downcast_ref(), Some(&"on purpose"), "{what}"),
            }
            assert!(lock::may_sleep(), "LOCK-1: {what}, {scheme:?}");
            thread::scope(|scope| {
                let other = scope.spawn(|| read(&cache, colliding(3)));
                let inode = other.join().unwrap();
                assert!(same(&inode, &read(&cache, colliding(3))), "INODE-1: {what}");
            });
            assert_eq!(cache.size().0, 2, "INODE-1: {what}, {scheme:?}");
            drop(held);
            assert_eq!(cache.drop_unused(), 2, "RCU-3: {what} holds nothing");
        }
    }
}
