//! Races of the iget family: which thread inserts first, which inodes `test` sees, and the fate
//! of an inode that is taken off the table while it is in use.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use crate::common::inodes::{
    Cache, Gate, Ino, Inode, Node, SCHEMES, a_while, builder, colliding, eventually, find_nowait,
    ino, is_cached, read,
};
use crate::common::{Random, Tracked};
use rcuwalk::inode::{Iget, InUse, InodeRef, Life, Lookups, Match, Stale};
use rcuwalk_sync::rcu;

/// The part that `test` reads, and that the hook takes apart.
struct Part {
    /// Set by the hook, as its first step.
    torn: AtomicBool,
}

impl From<u64> for Part {
    fn from(_: u64) -> Part {
        Part {
            torn: AtomicBool::new(false),
        }
    }
}

fn is_torn(node: &Node<Part>) -> bool {
    node.get().is_some_and(|part| part.torn.load(SeqCst))
}

/// INODE-1: of several threads that bring an inode for one key at once one inserts its own; the
/// others get that one, once it is filled in, and free theirs.
#[test]
fn who_loses_an_insertion_gets_the_winner() {
    for scheme in SCHEMES {
        let cache: Cache = builder(scheme).build();
        for round in 0..20 {
            let (start, winners) = (Barrier::new(4), AtomicUsize::new(0));
            let insert = |thread: u64| {
                let spare = cache.alloc_inode();
                start.wait();
                let key = colliding(round);
                let test = |node: &Node| *node.key() == key;
                match cache.inode_insert5::<Stale>(spare, key.hash, test, || Ok(key)) {
                    Ok(Iget::New(new)) => {
                        winners.fetch_add(1, SeqCst);
                        thread::yield_now();
                        new.init(thread)
                    }
                    Ok(Iget::Cached(inode)) => inode,
                    Err(Stale) => panic!("INODE-1: nobody creates it"),
                }
            };
            let got: Vec<Inode> = thread::scope(|scope| {
                let insert = &insert;
                let all: Vec<_> = (0..4).map(|n| scope.spawn(move || insert(n))).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert_eq!(winners.load(SeqCst), 1, "INODE-1: {scheme:?}");
            let same = got.iter().all(|inode| Inode::ptr_eq(inode, &got[0]));
            assert!(same, "INODE-1: {scheme:?}");
        }
        assert_eq!(cache.statistics().inserted, 20, "INODE-1: {scheme:?}");
    }
}

/// INODE-1: of several threads that create one key at once one gets it.
#[test]
fn one_creator_per_key() {
    for scheme in SCHEMES {
        let cache: Cache = builder(scheme).build();
        for round in 0..20 {
            let start = Barrier::new(4);
            let creators = thread::scope(|scope| {
                let all: Vec<_> = (0..4)
                    .map(|n: u64| {
                        let (cache, start) = (&cache, &start);
                        scope.spawn(move || {
                            start.wait();
                            match cache.insert_inode(ino(round)) {
                                Ok(new) => Some(new.init(n)),
                                Err(InUse) => None,
                            }
                        })
                    })
                    .collect();
                let all = all.into_iter().filter_map(|one| one.join().unwrap());
                all.collect::<Vec<_>>()
            });
            assert_eq!(creators.len(), 1, "INODE-1: {scheme:?}");
            let found = cache.ilookup(&ino(round)).unwrap().unwrap();
            assert!(Inode::ptr_eq(&found, &creators[0]), "INODE-1: {scheme:?}");
        }
    }
}

/// INODE-1: inodes with one hash are told apart by `test`, and `find_inode_nowait` shows
/// each of them until it is told to stop.
#[test]
fn equal_hashes_are_different_inodes() {
    for scheme in SCHEMES {
        let cache: Cache = builder(scheme).build();
        let all: Vec<Inode> = (0..20).map(|n| read(&cache, colliding(n))).collect();
        for (n, inode) in (0..).zip(&all) {
            let found = cache.iget5(7, |node| node.key().number == n, || Err(Stale));
            assert!(matches!(found, Ok(Iget::Cached(found)) if Inode::ptr_eq(&found, inode)));
            assert_eq!(***inode, n, "INODE-1");
        }
        let mut shown = Vec::new();
        let none = cache.find_inode_nowait(7, |node| {
            shown.push(node.key().number);
            Match::Next
        });
        shown.sort_unstable();
        assert_eq!(
            (none.is_none(), shown),
            (true, (0..20).collect()),
            "INODE-1"
        );
        let mut shown = 0;
        let stopped = cache.find_inode_nowait(7, |_| {
            shown += 1;
            if shown == 3 { Match::Stop } else { Match::Next }
        });
        assert_eq!((stopped.is_none(), shown), (true, 3), "INODE-1");
        let elsewhere = cache.find_inode_nowait(8, |_| panic!("filed under 7"));
        assert!(elsewhere.is_none(), "INODE-1");
        drop(all);
        assert_eq!(cache.evict_inodes(|key| key.number < 5), 5, "INODE-1");
        assert!(!is_cached(&cache, colliding(4)) && is_cached(&cache, colliding(5)));
    }
}

/// INODE-4: an inode that is taken off the table stays for its holders, reports that it is
/// being freed, and makes room for another with its key at once.
#[test]
fn an_inode_unhashed_while_it_is_held() {
    for scheme in SCHEMES {
        let alive = Arc::new(AtomicUsize::new(0));
        let cache: Cache<Tracked> = builder(scheme).build();
        let read = || match cache.iget(ino(1)).unwrap() {
            Iget::New(new) => new.init(Tracked::new(&alive)),
            Iget::Cached(inode) => inode,
        };
        for held in 1..4 {
            let first = read();
            let others = vec![first.clone(); held];
            cache.unhash(&first);
            assert!(!first.is_hashed() && !is_cached(&cache, ino(1)), "INODE-4");
            assert!(find_nowait(&cache, ino(1)).is_none(), "INODE-4");
            let second = read();
            assert!(!InodeRef::ptr_eq(&first, &second), "INODE-4: another one");
            cache.unhash(&first);
            assert!(second.is_hashed(), "INODE-4: the new one stays");
            drop(first);
            for inode in others {
                assert_eq!(inode.life(), Life::Freeing, "INODE-4: {held} have it");
                assert_eq!(second.life(), Life::Live, "INODE-4");
                drop(inode);
            }
            rcu::barrier();
            assert_eq!(alive.load(SeqCst), 1, "RCU-3: the old one is freed");
            second.dont_cache();
        }
        rcu::barrier();
        assert_eq!((alive.load(SeqCst), cache.size().0), (0, 0), "RCU-3");
    }
}

/// INODE-4: an inode marked `dont_cache` goes with its last reference, unless the mark is taken
/// back before; a lookup that finds it meanwhile has it.
#[test]
fn dont_cache_and_do_cache() {
    for scheme in SCHEMES {
        let cache: Cache = builder(scheme).build();
        let inode = read(&cache, ino(1));
        inode.dont_cache();
        inode.dont_cache();
        let (clone, found) = (inode.clone(), read(&cache, ino(1)));
        drop((inode, clone));
        assert_eq!(found.life(), Life::Live, "INODE-4: in use");
        found.do_cache();
        drop(found);
        assert!(is_cached(&cache, ino(1)), "INODE-4: it has a name again");
        let again = read(&cache, ino(1));
        again.dont_cache();
        drop(again);
        assert!(!is_cached(&cache, ino(1)), "INODE-4: gone with the last");
        assert_eq!(cache.size(), (0, 0), "MEM-1: {scheme:?}");
    }
}

/// INODE-4: the contract of `test`: under RCU it may see an inode that the hook is taking
/// apart, and an inode accepted there is waited for, not handed out; under the lock it does not
/// see such an inode.
#[test]
fn a_test_under_rcu_meets_mid_teardown() {
    for scheme in SCHEMES {
        for under_rcu in [false, true] {
            let (gate, wait) = Gate::new();
            let cache: Cache<Part> = builder(scheme)
                .on_evict(move |node: &Node<Part>| {
                    node.torn.store(true, SeqCst);
                    wait();
                })
                .build();
            let old = read(&cache, ino(1));
            old.dont_cache();
            let shown_torn = AtomicUsize::new(0);
            let test = |node: &Node<Part>| {
                shown_torn.fetch_add(is_torn(node).into(), SeqCst);
                node.key().number == 1
            };
            thread::scope(|scope| {
                scope.spawn(|| drop(old));
                gate.arrived();
                let look = scope.spawn(|| match under_rcu {
                    true => cache.ilookup5_rcu(1, test),
                    false => cache.ilookup5(1, test),
                });
                let get = scope.spawn(|| {
                    let set = || Ok::<Ino, Stale>(ino(1));
                    let got = match under_rcu {
                        true => cache.iget5_rcu(1, test, set).unwrap(),
                        false => cache.iget5(1, test, set).unwrap(),
                    };
                    match got {
                        Iget::New(new) => new.init(1u64),
                        Iget::Cached(_) => panic!("INODE-4: nobody has read it in"),
                    }
                });
                eventually("both wait", || cache.statistics().waited_for_freeing == 2);
                a_while();
                assert!(!look.is_finished() && !get.is_finished(), "INODE-4");
                gate.open();
                let inode = get.join().unwrap();
                assert!(!is_torn(&inode), "INODE-4: a new one");
                if let Some(found) = look.join().unwrap().unwrap() {
                    assert!(InodeRef::ptr_eq(&found, &inode), "INODE-1");
                }
                let expected = match (under_rcu, scheme.lookups) {
                    (true, Lookups::Rcu) => 2,
                    _ => 0,
                };
                assert_eq!(shown_torn.load(SeqCst), expected, "INODE-4: {scheme:?}");
                // No thread is kept waiting if a check has failed, either.
                drop(gate);
            });
        }
    }
}

/// INODE-4: while `test` looks at an inode under the lock, its hook does not begin, even
/// if the inode is killed meanwhile.
#[test]
fn the_hook_waits_for_a_test_under_the_lock() {
    for scheme in SCHEMES {
        let cache: Cache<Part> = builder(scheme)
            .on_evict(|node: &Node<Part>| node.torn.store(true, SeqCst))
            .build();
        drop(read(&cache, ino(1)));
        let (gate, wait) = Gate::new();
        thread::scope(|scope| {
            let look = scope.spawn(|| {
                cache.ilookup5(1, |node| {
                    wait();
                    assert!(!is_torn(node), "INODE-4: {scheme:?}");
                    node.key().number == 1
                })
            });
            gate.arrived();
            let evict = scope.spawn(|| cache.drop_unused());
            eventually("it is killed", || cache.scanned() == 1);
            a_while();
            assert!(!evict.is_finished(), "INODE-4: {scheme:?}");
            gate.open();
            assert_eq!(evict.join().unwrap(), 1);
            assert!(look.join().unwrap().unwrap().is_none(), "INODE-4");
            drop(gate);
        });
    }
}

/// INODE-4: beside threads that evict, a `test` under the lock never sees an inode whose hook
/// has begun, and no caller gets such an inode.
#[test]
fn nobody_is_handed_what_a_hook_has_seen() {
    const KEYS: usize = 8;
    for scheme in SCHEMES {
        let cache: Cache<Part> = builder(scheme)
            .on_evict(|node: &Node<Part>| {
                let torn = node.torn.swap(true, SeqCst);
                assert!(!torn, "INODE-4: each inode is seen off once");
            })
            .build();
        thread::scope(|scope| {
            for seed in 0..3 {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..crate::common::stress_ops(600, 6000) {
                        let key = colliding(random.below(KEYS) as u64);
                        let test = |node: &Node<Part>| {
                            assert!(!is_torn(node), "INODE-4: under the lock");
                            if key.number == 0 {
                                thread::yield_now();
                            }
                            assert!(!is_torn(node), "INODE-4: under the lock");
                            *node.key() == key
                        };
                        let got = match random.below(4) {
                            0 => cache.ilookup5(7, test).unwrap(),
                            1 => cache.ilookup(&key).unwrap(),
                            2 => find_nowait(cache, key),
                            _ => match cache.iget5::<Stale>(7, test, || Ok(key)).unwrap() {
                                Iget::Cached(inode) => Some(inode),
                                Iget::New(new) => Some(new.init(1u64)),
                            },
                        };
                        let Some(inode) = got else { continue };
                        assert_eq!(*inode.key(), key, "INODE-1");
                        assert!(!is_torn(&inode), "INODE-4: {scheme:?}");
                        match random.below(6) {
                            0 => inode.dont_cache(),
                            1 => cache.unhash(&inode),
                            2 => _ = cache.prune_now(KEYS),
                            _ => {}
                        }
                        assert!(!is_torn(&inode), "INODE-4: it is held: {scheme:?}");
                    }
                });
            }
        });
        cache.drop_unused();
        assert_eq!(cache.size().0, 0, "MEM-1");
    }
}
