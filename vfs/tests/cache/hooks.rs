//! `on_evict`: once for each inode that was filled in, on every way out, with no lock
//! held, and free to use the cache.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread;

use crate::common::inodes::{
    Cache, Gate, Log, Node, SCHEMES, builder, colliding, comes_back, eventually, find_nowait, ino,
    is_cached, read,
};
use rcuwalk::inode::{Iget, Scheme};
use rcuwalk_sync::lock::{self, Mutex, Rank};
use rcuwalk_sync::rcu;

/// A cache of `inodes` whose hook is given the cache itself.
fn with_cache(inodes: usize, hook: impl Fn(&Cache, u64) + Send + Sync + 'static) -> Arc<Cache> {
    Arc::new_cyclic(|weak: &Weak<Cache>| {
        let weak = weak.clone();
        builder::<u64>(Scheme::OURS)
            .inodes(inodes)
            .on_evict(move |node| {
                if let Some(cache) = weak.upgrade() {
                    hook(&cache, node.key().number);
                }
            })
            .build()
    })
}

/// INODE-4: whichever way an inode leaves, its hook is called, once, before its key can
/// be read in again; for a read-in that failed it is not.
#[test]
fn each_way_out_calls_the_hook_once() {
    type Way = (&'static str, fn(&Cache, crate::common::inodes::Inode));
    let ways: [Way; 8] = [
        ("drop_unused", |cache, inode| {
            drop(inode);
            assert_eq!(cache.drop_unused(), 1);
        }),
        ("evict_inodes", |cache, inode| {
            drop(inode);
            assert_eq!(cache.evict_inodes(|key| key.number != 1), 0);
            assert_eq!(cache.evict_inodes(|key| key.number == 1), 1);
        }),
        ("prune_now", |cache, inode| {
            drop(inode);
            assert_eq!(cache.prune_now(10), 1);
        }),
        ("prune", |cache, inode| {
            let others: Vec<_> = (100..104).map(|n| read(cache, ino(n))).collect();
            drop(inode);
            let gone = cache.prune(100) + cache.prune(100);
            assert!(gone <= 1);
            others.iter().for_each(|other| cache.unhash(other));
        }),
        ("dont_cache", |cache, inode| {
            inode.dont_cache();
            let again = inode.clone();
            drop(inode);
            assert!(is_cached(cache, ino(1)), "MEM-1: it is in use");
            drop(again);
        }),
        ("unhash", |cache, inode| {
            cache.unhash(&inode);
            drop(inode.clone());
            drop(inode);
        }),
        ("dont_cache and unhash", |cache, inode| {
            inode.dont_cache();
            cache.unhash(&inode);
        }),
        (
            "a failed read-in, then one that is evicted",
            |cache, inode| {
                inode.dont_cache();
                drop(inode);
                for _ in 0..3 {
                    assert!(matches!(cache.iget(ino(1)), Ok(Iget::New(_))));
                    drop(cache.insert_inode(ino(1)).unwrap());
                }
            },
        ),
    ];
    for scheme in SCHEMES {
        for (name, leave) in ways {
            let log = Log::default();
            let cache: Cache = builder(scheme).inodes(2).on_evict(log.hook()).build();
            leave(&cache, read(&cache, ino(1)));
            let mut seen = log.take();
            seen.retain(|number| *number < 100);
            assert_eq!(seen, [1], "INODE-4: {name}, {scheme:?}");
            assert!(!is_cached(&cache, ino(1)), "INODE-4: {name}, {scheme:?}");
            drop(read(&cache, ino(1)));
            drop(cache);
            let mut seen = log.take();
            seen.retain(|number| *number < 100);
            assert_eq!(
                seen,
                [1],
                "INODE-4: with the cache, after {name}, {scheme:?}"
            );
        }
    }
}

/// INODE-4: an inode that outlives its cache ends without its hook, and is freed.
#[test]
fn an_inode_may_outlive_its_cache() {
    let alive = Arc::new(AtomicUsize::new(0));
    let log = Log::default();
    let cache: Cache<crate::common::Tracked> = builder(Scheme::OURS).on_evict(log.hook()).build();
    let inodes: Vec<_> = (0..4)
        .map(|n| match cache.iget(ino(n)).unwrap() {
            Iget::New(new) => new.init(crate::common::Tracked::new(&alive)),
            Iget::Cached(inode) => inode,
        })
        .collect();
    inodes[1].dont_cache();
    cache.unhash(&inodes[2]);
    drop(cache);
    assert_eq!(alive.load(SeqCst), 4, "RCU-3: they are held");
    drop(inodes);
    rcu::barrier();
    assert_eq!(
        alive.load(SeqCst),
        0,
        "RCU-3: freed with their last reference"
    );
    assert_eq!(log.take(), [], "INODE-4: there is no cache to leave");
}

/// INODE-4: references to an inode that is neither to be cached nor on the table go one
/// by one, whatever their number; only the last one ends it.
#[test]
fn many_references_to_an_unhashed_inode() {
    for scheme in SCHEMES {
        for many in 1..6 {
            let log = Log::default();
            let cache: Arc<Cache> = Arc::new(builder(scheme).on_evict(log.hook()).build());
            let first = read(&cache, ino(1));
            first.dont_cache();
            cache.unhash(&first);
            let mut held = vec![first; many];
            let last = held.pop().unwrap();
            comes_back("INODE-4: iput of one of several", move || drop(held));
            assert_eq!(log.len(), 0, "INODE-4: {many}: it is in use");
            drop(last);
            assert_eq!(log.take(), [1], "INODE-4: {many}");
        }
    }
}

/// RCU-2: the hook runs where it may sleep. If the last reference goes, or the cache reclaims,
/// under a lock, it runs when the lock is released.
#[test]
fn the_hook_runs_with_no_lock_held() {
    let may_sleep = Log::default();
    let cache: Cache = {
        let log = may_sleep.clone();
        builder(Scheme::OURS)
            .inodes(10)
            .on_evict(move |_| log.note(lock::may_sleep().into()))
            .build()
    };
    let outer = Mutex::new(Rank::Namespace, ());
    let inner = Mutex::new(Rank::RenameMutex, ());
    for unhashed in [false, true] {
        let inode = read(&cache, ino(1));
        inode.dont_cache();
        if unhashed {
            cache.unhash(&inode);
        }
        let both = (outer.lock(), inner.lock());
        drop(inode);
        drop(both.1);
        assert_eq!(may_sleep.take(), [], "RCU-2: a lock is held");
        let again = cache.ilookup(&ino(1)).unwrap();
        assert_eq!(again.is_none(), unhashed, "INODE-4: it is not killed yet");
        drop(again);
        drop(both.0);
        assert_eq!(may_sleep.take(), [1], "RCU-2: unhashed {unhashed}");
        assert!(!is_cached(&cache, ino(1)));
    }
    let held = outer.lock();
    (0..100).for_each(|n| drop(read(&cache, ino(n))));
    assert_eq!(may_sleep.take(), [], "RCU-2: a lock is held");
    drop(held);
    let seen = may_sleep.take();
    assert!(seen.len() >= 90, "MEM-1: {} of 100 went", seen.len());
    assert!(seen.iter().all(|may| *may == 1), "RCU-2");
}

/// RCU-2: after the last reference is dropped inside a read section, the hook runs when the
/// thread next releases a lock, or ends.
#[test]
fn a_last_reference_dropped_under_rcu() {
    for ends in [false, true] {
        for unhashed in [false, true] {
            let log = Log::default();
            let cache: Arc<Cache> = Arc::new({
                let log = log.clone();
                let hook = move |_: &_| log.note(lock::may_sleep().into());
                builder(Scheme::OURS).on_evict(hook).build()
            });
            let inode = read(&cache, ino(1));
            inode.dont_cache();
            if unhashed {
                cache.unhash(&inode);
            }
            let drops = {
                let (cache, log) = (cache.clone(), log.clone());
                move || {
                    let guard = rcu::read_lock();
                    drop(inode);
                    assert_eq!(log.len(), 0, "RCU-2: inside a read section");
                    drop(guard);
                    if !ends {
                        // An insertion locks.
                        drop(read(&cache, ino(2)));
                        assert_eq!(log.len(), 1, "RCU-2: no lock is held any more");
                    }
                }
            };
            comes_back("RCU-2", drops);
            eventually("RCU-2: the thread has ended", || log.len() == 1);
            assert_eq!(log.take(), [1], "RCU-2: unhashed {unhashed}, ends {ends}");
            assert!(!is_cached(&cache, ino(1)), "INODE-4");
        }
    }
}

/// INODE-3: a hook that panics keeps no thread waiting: neither those that look for its inode,
/// nor those that look for another one evicted with it.
#[test]
fn a_panic_in_the_hook_strands_nobody() {
    for scheme in SCHEMES {
        let log = Log::default();
        let cache: Arc<Cache> = Arc::new({
            let log = log.clone();
            let hook = move |node: &Node| {
                log.note(node.key().number);
                assert!(node.key().number != 3, "on purpose");
            };
            builder(scheme).on_evict(hook).build()
        });
        (0..10).for_each(|n| drop(read(&cache, ino(n))));
        assert!(catch_unwind(AssertUnwindSafe(|| cache.drop_unused())).is_err());
        let first = log.len();
        assert!(lock::may_sleep(), "RCU-2: nothing stays locked");
        let again = cache.clone();
        comes_back("INODE-3: iget after a panic", move || {
            (0..10).for_each(|n| drop(read(&again, ino(n))));
        });
        // Inodes that had not been killed by then are still there.
        while catch_unwind(AssertUnwindSafe(|| cache.drop_unused())).is_err() {}
        let mut seen = log.take();
        assert_eq!(seen.len(), first + 10, "INODE-4: {scheme:?}: once for each");
        seen.dedup();
        assert_eq!(seen, (0..10).collect::<Vec<_>>(), "INODE-4: {scheme:?}");
        let evicted = (first + 10) as u64;
        assert_eq!(
            (cache.size().0, cache.evicted()),
            (0, evicted),
            "MEM-1: {scheme:?}"
        );
    }
}

/// INODE-3: nor does one that panics as the last reference goes.
#[test]
fn a_panic_with_the_last_reference_strands_nobody() {
    for scheme in SCHEMES {
        let hook = |node: &Node| assert!(node.key().number != 3, "on purpose");
        let cache: Arc<Cache> = Arc::new(builder(scheme).on_last_put(hook).build());
        let last = read(&cache, ino(3));
        last.dont_cache();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(last))).is_err());
        assert!(lock::may_sleep(), "RCU-2: nothing stays locked");
        let again = cache.clone();
        comes_back("INODE-3: iget after a panic", move || {
            drop(read(&again, ino(3)));
        });
        assert_eq!(cache.evicted(), 1, "MEM-1: {scheme:?}");
    }
}

/// INODE-3: a thread that sleeps until an inode is gone wakes if its hook panics.
#[test]
fn a_panic_in_the_hook_wakes_who_waits() {
    let (gate, wait) = Gate::new();
    let cache: Arc<Cache> = Arc::new(
        builder(Scheme::OURS)
            .on_evict(move |_| {
                wait();
                panic!("on purpose");
            })
            .build(),
    );
    let inode = read(&cache, ino(1));
    inode.dont_cache();
    let dropper = thread::spawn(move || drop(inode));
    gate.arrived();
    let looks: Vec<_> = (0..3)
        .map(|_| {
            let cache = cache.clone();
            thread::spawn(move || is_cached(&cache, ino(1)))
        })
        .collect();
    eventually("three wait", || cache.statistics().waited_for_freeing == 3);
    gate.open();
    assert!(dropper.join().is_err());
    for look in looks {
        assert!(!look.join().unwrap(), "INODE-3");
    }
}

/// INODE-4: the hook may look for other keys, also for ones that leave after its own, and may
/// read others in.
#[test]
fn the_hook_may_use_the_cache() {
    let many = 20;
    let looked = Log::default();
    let cache = {
        let looked = looked.clone();
        with_cache(1000, move |cache, number| {
            for other in (0..many).filter(|other| *other != number) {
                let found = cache.ilookup(&ino(other)).unwrap();
                assert!(found.is_none_or(|found| **found == other), "INODE-1");
            }
            assert!(find_nowait(cache, ino(number)).is_none(), "INODE-4");
            if number < many {
                drop(read(cache, ino(1000 + number)));
            }
            looked.note(number);
        })
    };
    (0..many).for_each(|n| drop(read(&cache, ino(n))));
    let again = cache.clone();
    comes_back("INODE-4: a hook looks for its neighbours", move || {
        again.drop_unused();
        again.prune_now(1000);
        again.drop_unused();
    });
    let all: Vec<u64> = (0..many).chain(1000..1000 + many).collect();
    assert_eq!(looked.take(), all, "INODE-4: each once");
}

/// INODE-4: a hook that reads an inode in does not reclaim for it: it would evict inodes whose
/// own hooks wait for the one that is leaving.
#[test]
fn a_hook_that_reads_in_is_not_entered_again() {
    thread_local! {
        static INSIDE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    let deepest = Arc::new(AtomicUsize::new(0));
    // Each inode of a file names its directory, and each directory the one above.
    let cache = {
        let deepest = deepest.clone();
        with_cache(8, move |cache, number| {
            let depth = INSIDE.get() + 1;
            INSIDE.set(depth);
            deepest.fetch_max(depth as usize, SeqCst);
            if number > 1 {
                drop(read(cache, ino(number / 2)));
            }
            INSIDE.set(depth - 1);
        })
    };
    let again = cache.clone();
    comes_back("INODE-4: hooks that look for their parents", move || {
        (1..500).for_each(|n| drop(read(&again, ino(n))));
    });
    assert_eq!(deepest.load(SeqCst), 1, "INODE-4: one hook at a time");
    assert!(cache.size().0 <= 9, "MEM-1: {}", cache.size().0);
}

/// INODE-4: the hook may look for keys that have their hash in common with its own.
#[test]
fn a_hook_may_look_for_what_collides() {
    let looked = Log::default();
    let cache: Arc<Cache> = Arc::new_cyclic(|weak: &Weak<Cache>| {
        let (weak, looked) = (weak.clone(), looked.clone());
        builder::<u64>(Scheme::OURS)
            .on_evict(move |node| {
                let number = node.key().number;
                if let Some(cache) = weak.upgrade()
                    && number < 10
                {
                    assert!(cache.ilookup(&colliding(50)).unwrap().is_none());
                    drop(read(&cache, colliding(10 + number)));
                    drop(cache.insert_inode(colliding(20 + number)).unwrap());
                }
                looked.note(number);
            })
            .build()
    });
    (0..3).for_each(|n| drop(read(&cache, colliding(n))));
    let again = cache.clone();
    comes_back("INODE-4: a hook looks for what collides", move || {
        again.evict_inodes(|key| key.number < 10);
    });
    assert_eq!(looked.take(), [0, 1, 2], "INODE-4");
}

/// INODE-3: a panic in the closure of `evict_inodes` keeps no thread waiting for the inodes
/// that it has taken before.
#[test]
fn a_panic_in_wanted_strands_nobody() {
    for scheme in SCHEMES {
        for hook in [false, true] {
            let mut builder = builder::<u64>(scheme);
            if hook {
                builder = builder.on_evict(|_| {});
            }
            let cache: Arc<Cache> = Arc::new(builder.build());
            (0..10).for_each(|n| drop(read(&cache, ino(n))));
            let wanted = || cache.evict_inodes(|key| key.number < 5 || panic!("on purpose"));
            assert!(catch_unwind(AssertUnwindSafe(wanted)).is_err());
            assert_eq!(cache.size().0, 5, "MEM-1: {scheme:?}");
            comes_back("INODE-3: iget after a panic", move || {
                (0..10).for_each(|n| drop(read(&cache, ino(n))));
            });
        }
    }
}

/// INODE-3: a hook that was deferred and panics where its thread next releases a lock does not
/// reach a caller that inserts there: other threads wait for that one's inode.
#[test]
fn a_panic_put_off_strands_nobody() {
    for scheme in SCHEMES {
        let panics = AtomicUsize::new(0);
        let hook = move |_: &Node| assert!(panics.fetch_add(1, SeqCst) > 0, "on purpose");
        let cache: Arc<Cache> = Arc::new(builder(scheme).on_evict(hook).build());
        let inode = read(&cache, ino(1));
        inode.dont_cache();
        let guard = rcu::read_lock();
        drop(inode);
        drop(guard);
        // The insertion's lock is the next one.
        let read_in = || drop(read(&cache, ino(2)));
        let _ = catch_unwind(AssertUnwindSafe(read_in));
        comes_back("INODE-3: iget after a panic", move || {
            drop((read(&cache, ino(1)), read(&cache, ino(2))));
        });
    }
}

/// RCU-2: a last reference dropped while RCU frees is passed to the hook when that is over: a
/// hook may wait for a thread that waits for the freeing.
#[test]
fn the_hook_waits_for_the_end_of_freeing() {
    struct Child(
        #[expect(dead_code, reason = "held")] Option<rcuwalk::inode::InodeRef<Key, Child>>,
    );
    #[derive(Clone, PartialEq, Eq)]
    struct Key(u64);
    impl rcuwalk::inode::Key for Key {
        fn hash(&self) -> u64 {
            self.0
        }
    }
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = seen.clone();
    let cache = rcuwalk::inode::InodeCache::<Key, Child>::builder()
        .on_evict(move |_| {
            assert!(lock::may_sleep(), "RCU-2: freeing is over");
            counted.fetch_add(1, SeqCst);
        })
        .build();
    let read = |number, parent| match cache.iget(Key(number)).unwrap() {
        Iget::New(new) => new.init(Child(parent)),
        Iget::Cached(_) => panic!("nobody has it"),
    };
    let parent = read(1, None);
    parent.dont_cache();
    drop(read(2, Some(parent)));
    assert_eq!(cache.drop_unused(), 1, "INODE-4: the child");
    rcu::barrier();
    assert_eq!(seen.load(SeqCst), 2, "INODE-4: and then its parent");
    assert!(cache.ilookup(&Key(1)).unwrap().is_none(), "INODE-4");
}

/// `on_last_put`: at once where an inode goes with its last reference, and nowhere else.
#[test]
fn the_last_reference_to_what_is_not_cached_says_so() {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let hook = |_: &Node| _ = LAST.fetch_add(1, SeqCst);
    let cache = builder::<u64>(Scheme::OURS).on_last_put(hook).build();
    drop(read(&cache, ino(1)));
    cache.drop_unused();
    assert_eq!(LAST.load(SeqCst), 0, "one that was cached");
    let inode = read(&cache, ino(2));
    let second = inode.clone();
    inode.dont_cache();
    drop(inode);
    assert_eq!(LAST.load(SeqCst), 0, "one that is still in use");
    drop(second);
    assert_eq!(LAST.load(SeqCst), 1);
    let inode = read(&cache, ino(3));
    cache.unhash(&inode);
    {
        let lock = Mutex::new(Rank::DirRwsem, ());
        let _held = lock.lock();
        drop(inode);
        assert_eq!(LAST.load(SeqCst), 1, "not with a lock held");
    }
    assert_eq!(LAST.load(SeqCst), 2);
}
