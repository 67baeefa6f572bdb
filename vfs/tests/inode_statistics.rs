//! The counters of the inode cache add up.

mod common;

use std::thread;

use common::Random;
use common::inodes::{Cache, Gate, SCHEMES, builder, eventually, ino, read};
use rcuwalk::inode::{Iget, InodeStatistics, Lookups, Scheme, Stale};

/// The counts that `work` has added.
fn added(cache: &Cache, work: impl FnOnce()) -> InodeStatistics {
    let before = cache.statistics();
    work();
    let after = cache.statistics();
    let mut added = after.clone();
    added.hits -= before.hits;
    added.misses -= before.misses;
    added.inserted -= before.inserted;
    added.evicted -= before.evicted;
    added.lookup_locks -= before.lookup_locks;
    added.insert_locks -= before.insert_locks;
    added.evict_locks -= before.evict_locks;
    added
}

/// INODE-1: how many locks each scheme takes, exactly: for a miss the old one two and the
/// others one, for a hit the old one one and the others none.
#[test]
fn each_scheme_takes_its_locks() {
    for scheme in SCHEMES {
        let locked = u64::from(scheme.lookups == Lookups::Locked);
        let cache: Cache = builder(scheme).build();
        let many = 100;
        let misses = added(&cache, || {
            (0..many).for_each(|n| drop(read(&cache, ino(n))))
        });
        let locks = (misses.lookup_locks, misses.insert_locks, misses.evict_locks);
        assert_eq!(locks, (many * locked, many, 0), "INODE-1: {scheme:?}");
        assert_eq!(
            (misses.hits, misses.misses, misses.inserted),
            (0, many, many)
        );

        let hits = added(&cache, || {
            (0..many).for_each(|n| drop(read(&cache, ino(n))))
        });
        let locks = (hits.lookup_locks, hits.insert_locks, hits.evict_locks);
        assert_eq!(locks, (many * locked, 0, 0), "INODE-1: {scheme:?}");
        assert_eq!((hits.hits, hits.misses, hits.inserted), (many, 0, 0));

        let looks = added(&cache, || {
            for n in 0..many {
                assert_eq!(cache.ilookup(&ino(n * 2)).unwrap().is_some(), n < many / 2);
            }
        });
        let locks = (looks.lookup_locks, looks.insert_locks);
        assert_eq!(locks, (many * locked, 0), "INODE-1: {scheme:?}");
        assert_eq!((looks.hits, looks.misses), (many / 2, many / 2));

        // These lock as they are called, whatever the scheme.
        let under_lock = added(&cache, || {
            for n in 0..many {
                assert!(
                    cache
                        .ilookup5(n, |node| node.key().number == n)
                        .unwrap()
                        .is_some()
                );
            }
        });
        assert_eq!((under_lock.lookup_locks, under_lock.hits), (many, many));

        let gone = added(&cache, || assert_eq!(cache.drop_unused(), many as usize));
        let locks = (gone.lookup_locks, gone.insert_locks, gone.evict_locks);
        assert_eq!(locks, (0, 0, many), "INODE-1: {scheme:?}");
        assert_eq!((gone.evicted, gone.inodes, gone.bytes), (many, 0, 0));
        assert_eq!(cache.statistics().contended, 0, "INODE-1: one thread");
    }
}

/// INODE-1: each lookup is a hit or a miss, also while the table grows; each miss that
/// wants the inode inserts it, or finds it at the second look.
#[test]
fn hits_and_misses_are_lookups() {
    for scheme in SCHEMES {
        let cache: Cache = builder(scheme).build();
        let rounds = 3000;
        thread::scope(|scope| {
            for seed in 0..3 {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for n in 0..rounds {
                        drop(read(cache, ino(n)));
                        let other = random.below(2 * rounds as usize) as u64;
                        let _ = cache.ilookup(&ino(other)).unwrap();
                    }
                });
            }
        });
        let seen = cache.statistics();
        // A wait that ends in nothing would be another look; there was none here.
        assert_eq!(
            seen.hits + seen.misses,
            3 * 2 * rounds,
            "INODE-1: {scheme:?}"
        );
        assert_eq!(seen.inserted, rounds, "INODE-1: {scheme:?}");
        assert_eq!((seen.evicted, seen.inodes as u64), (0, rounds), "INODE-1");
    }
}

/// MEM-1: every inserted inode is cached, was evicted, or left otherwise: its read-in failed,
/// or it was unhashed and is still held.
#[test]
fn what_was_inserted_is_accounted_for() {
    for scheme in SCHEMES {
        let cache: Cache = builder(scheme).inodes(300).build();
        let (mut failed, mut unhashed) = (0, Vec::new());
        let mut random = Random::new(3);
        for _ in 0..5000 {
            let key = random.below(800) as u64;
            match cache.iget(ino(key)).unwrap() {
                Iget::New(new) if random.below(10) == 0 => {
                    drop(new);
                    failed += 1;
                }
                Iget::New(new) => drop(new.init(key)),
                Iget::Cached(inode) => match random.below(40) {
                    0 => inode.dont_cache(),
                    1 => cache.unhash(&inode),
                    2 => {
                        cache.unhash(&inode);
                        unhashed.push(inode);
                    }
                    _ => {}
                },
            }
        }
        let account = |unhashed: u64| {
            let seen = cache.statistics();
            let left = seen.inserted - seen.evicted - failed - unhashed;
            assert_eq!(left, seen.inodes as u64, "MEM-1: {scheme:?}");
            assert_eq!((seen.inodes, seen.bytes), cache.size(), "MEM-1");
        };
        assert!(failed > 0 && !unhashed.is_empty());
        account(unhashed.len() as u64);
        drop(unhashed);
        account(0);
        cache.drop_unused();
        account(0);
        assert_eq!(cache.size(), (0, 0), "MEM-1");
    }
}

/// INODE-2: each sleep is counted once, by its reason.
#[test]
fn waits_are_counted_by_their_reason() {
    let (gate, wait) = Gate::new();
    let cache: Cache = builder(Scheme::OURS).on_evict(move |_| wait()).build();
    let Iget::New(new) = cache.iget(ino(1)).unwrap() else {
        panic!("INODE-1: nobody has it");
    };
    thread::scope(|scope| {
        let looks = [(); 2].map(|()| scope.spawn(|| drop(read(&cache, ino(1)))));
        eventually("both wait", || cache.statistics().waited_for_new == 2);
        let inode = new.init(1u64);
        looks.into_iter().for_each(|look| look.join().unwrap());
        inode.dont_cache();
        scope.spawn(|| drop(inode));
        gate.arrived();
        let looks = [(); 2].map(|()| scope.spawn(|| cache.ilookup(&ino(1)).unwrap().is_none()));
        eventually("both wait", || cache.statistics().waited_for_freeing == 2);
        gate.open();
        assert!(looks.into_iter().all(|look| look.join().unwrap()));
        drop(gate);
    });
    let creating = cache.insert_inode(ino(2)).unwrap();
    assert_eq!(cache.ilookup(&ino(2)).err(), Some(Stale));
    drop(creating);
    let seen = cache.statistics();
    let waits = (seen.waited_for_new, seen.waited_for_freeing, seen.stale);
    assert_eq!(waits, (2, 2, 1), "INODE-2");
}
