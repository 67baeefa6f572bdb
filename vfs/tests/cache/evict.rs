//! The budget of the inode cache, and the order of eviction (MEM-1).

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use crate::common::Random;
use crate::common::inodes::{Cache, Node, SCHEMES, builder, ino, is_cached, read};
use rcuwalk::inode::{InodeCache, Scheme};
use rcuwalk_sync::atomic::stores_by_this_thread;

/// The promise of the budget module: two percent above the budget at most, for moments.
fn within_two_percent(size: usize, budget: usize, in_use: usize) -> bool {
    size <= budget + budget / 50 + in_use
}

/// MEM-1: a stream of new inodes stays within the budget of inodes at each moment,
/// however many threads bring them, and however the cache locks.
#[test]
fn a_stream_stays_within_its_inodes() {
    const BUDGET: usize = 2000;
    for scheme in SCHEMES {
        for threads in [1, 4] {
            let cache: Cache = builder(scheme).inodes(BUDGET).build();
            thread::scope(|scope| {
                for thread in 0..threads {
                    let cache = &cache;
                    scope.spawn(move || {
                        for n in 0..5_000 / threads {
                            drop(read(cache, ino(thread << 32 | n)));
                            // With other threads, it is no sum of one moment.
                            let size = cache.size().0;
                            assert!(
                                threads > 1 || within_two_percent(size, BUDGET, 1),
                                "MEM-1: {size}, {scheme:?}"
                            );
                        }
                    });
                }
            });
            let size = cache.size().0;
            assert!(within_two_percent(size, BUDGET, 0), "MEM-1: {size}");
            assert!(cache.size().0 >= BUDGET * 9 / 10, "MEM-1: used up");
        }
    }
}

/// MEM-1: the budget of bytes holds for inodes of all weights, and the cache reports their
/// weight.
#[test]
fn a_stream_stays_within_its_bytes() {
    const BUDGET: usize = 1 << 20;
    let heaviest = 4000;
    let cache: Cache = InodeCache::builder()
        .bytes(BUDGET)
        .weight(|node: &Node| node.key().number as usize % 4001)
        .build();
    let own = {
        let first = read(&cache, ino(4001));
        let bytes = cache.size().1;
        drop(first);
        bytes
    };
    let mut random = Random::new(1);
    for round in 0..4000 {
        // Heavy and light ones by turns, each for a while.
        let number = match round / 500 % 2 {
            0 => random.below(1 << 30) * 4001 + 1,
            _ => random.below(1 << 30) * 4001 + heaviest - random.below(500),
        };
        drop(read(&cache, ino(number as u64)));
        let bytes = cache.size().1;
        assert!(
            within_two_percent(bytes, BUDGET, own + heaviest),
            "MEM-1: {bytes} bytes"
        );
    }
    let (inodes, bytes) = cache.size();
    assert!(bytes > BUDGET * 8 / 10, "MEM-1: {bytes} bytes are used");
    let freed = cache.drop_unused();
    assert_eq!(
        (freed, cache.size()),
        (inodes, (0, 0)),
        "MEM-1: all given back"
    );
}

/// MEM-1: an inode that is used again between two scans of the shrinker survives a stream of
/// any length; a new one that is not used again goes before it.
#[test]
fn the_used_survive_a_stream() {
    let cache: Cache = builder(Scheme::OURS).inodes(1000).build();
    let favourites = || (0..300).map(ino);
    favourites().for_each(|key| drop(read(&cache, key)));
    for n in 0..20_000 {
        drop(read(&cache, ino(1000 + n)));
        if n % 300 == 0 {
            favourites().for_each(|key| drop(read(&cache, key)));
        }
    }
    let inserted = cache.statistics().inserted;
    assert_eq!(inserted, 20_300, "MEM-1: none of them was read in again");

    // Used once, among new ones that are not.
    (0..500).for_each(|n| drop(read(&cache, ino(100_000 + n))));
    favourites().for_each(|key| drop(read(&cache, key)));
    (0..500).for_each(|n| drop(read(&cache, ino(200_000 + n))));
    assert!(favourites().all(|key| is_cached(&cache, key)), "MEM-1");
}

/// MEM-1: where nearly everything is used again and again, the budget holds as well,
/// even if all of it is one thread's.
#[test]
fn a_hot_cache_stays_within_its_budget() {
    const BUDGET: usize = 1 << 15;
    const HOT: u64 = BUDGET as u64 * 19 / 20;
    let cache: Cache = builder(Scheme::OURS).inodes(BUDGET).build();
    for _ in 0..2 {
        (0..HOT).for_each(|n| drop(read(&cache, ino(n))));
    }
    let mut next = 0;
    for n in 0..2500 {
        for _ in 0..12 {
            drop(read(&cache, ino(next % HOT)));
            next += 1;
        }
        drop(read(&cache, ino(HOT + n)));
        let size = cache.size().0;
        assert!(within_two_percent(size, BUDGET, 1), "MEM-1: {size}");
    }
}

/// MEM-1: where few are unused among many that were used again, as many go as come.
#[test]
fn the_few_that_are_unused_are_not_too_few() {
    const BUDGET: usize = 1 << 15;
    for scheme in SCHEMES {
        let cache: Cache = builder(scheme).inodes(BUDGET).build();
        let old = || 0..BUDGET as u64;
        old().for_each(|n| drop(read(&cache, ino(n))));
        // Two are left unused in each batch that is scanned.
        let used = old().filter(|n| n % 32 != 0);
        used.for_each(|n| drop(read(&cache, ino(n))));
        for n in 0..3000 {
            drop(read(&cache, ino(1 << 32 | n)));
            let size = cache.size().0;
            assert!(within_two_percent(size, BUDGET, 1), "MEM-1: {size}");
        }
    }
}

/// MEM-1: second chances end when nothing else can go: a cache whose inodes are all used again
/// before each scan stays within the budget as well.
#[test]
fn no_use_is_too_much_for_the_budget() {
    const BUDGET: usize = 1000;
    let cache: Cache = builder(Scheme::OURS).inodes(BUDGET).build();
    for new in 0..BUDGET as u64 + 300 {
        drop(read(&cache, ino(new)));
        if new >= BUDGET as u64 {
            (0..=new).for_each(|n| _ = is_cached(&cache, ino(n)));
        }
        let size = cache.size().0;
        assert!(within_two_percent(size, BUDGET, 1), "MEM-1: {size}");
    }
    let size = cache.size().0;
    assert!(size >= BUDGET * 9 / 10, "MEM-1: no more than that: {size}");
}

/// MEM-1: inodes in use count, but do not keep threads from inserting, and the unused ones stay
/// within the budget beside them.
#[test]
fn beside_many_in_use_the_budget_holds() {
    const BUDGET: usize = 600;
    for in_use in [BUDGET / 2, BUDGET * 2, BUDGET * 8] {
        let cache: Cache = builder(Scheme::OURS).inodes(BUDGET).build();
        let held: Vec<_> = (0..in_use as u64).map(|n| read(&cache, ino(n))).collect();
        assert!(cache.size().0 >= in_use, "MEM-1: in use");
        for n in 0..3_000 {
            drop(read(&cache, ino(1 << 32 | n)));
        }
        let size = cache.size().0;
        assert!(within_two_percent(size, BUDGET, in_use), "MEM-1: {size}");
        drop(held);
        (0..200).for_each(|n| drop(read(&cache, ino(2 << 32 | n))));
        while cache.prune(BUDGET) > 0 {}
        let size = cache.size().0;
        assert!(within_two_percent(size, BUDGET, 0), "MEM-1: let go: {size}");
    }
}

/// MEM-1: inserting costs no more the more there is in use.
#[test]
#[cfg(debug_assertions)]
fn an_insertion_among_those_in_use_has_its_bound() {
    const BUDGET: usize = 300;
    let cost = |in_use: u64| {
        let cache: Cache = builder(Scheme::OURS).inodes(BUDGET).build();
        let mut held: Vec<_> = (0..in_use).map(|n| read(&cache, ino(n))).collect();
        let before = stores_by_this_thread();
        held.extend((in_use..in_use + 500).map(|n| read(&cache, ino(n))));
        (stores_by_this_thread() - before) / 500
    };
    let (few, many) = (cost(2 * BUDGET as u64), cost(20 * BUDGET as u64));
    assert!(many < 2 * few, "MEM-1: {few} stores each, then {many}");
    assert!(many < 1000, "MEM-1: {many} stores each");
}

/// MEM-1: each thread fills a shard of its own; the inodes of a thread that has ended count,
/// and are reclaimed by the threads that go on.
#[test]
fn a_thread_that_ends_leaves_its_shard_to_others() {
    const BUDGET: usize = 4096;
    let cache: Cache = builder(Scheme::OURS).inodes(BUDGET).build();
    let together = Barrier::new(4);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, together) = (&cache, &together);
            scope.spawn(move || {
                together.wait();
                (0..BUDGET as u64).for_each(|n| drop(read(cache, ino(thread << 32 | n))));
            });
        }
    });
    assert!(within_two_percent(cache.size().0, BUDGET, 4), "MEM-1");
    // Half of the budget, used at random: it finds its place.
    let mut random = Random::new(2);
    let mut insert = |many: usize| {
        let before = cache.statistics().inserted;
        for _ in 0..many {
            drop(read(&cache, ino(9 << 32 | random.below(BUDGET / 2) as u64)));
        }
        cache.statistics().inserted - before
    };
    insert(30_000);
    assert!(within_two_percent(cache.size().0, BUDGET, 1), "MEM-1");
    let missed = insert(10_000);
    assert!(missed < 500, "MEM-1: {missed} of 10000 missed");
    let old = (0..4).flat_map(|thread| (0..BUDGET as u64).map(move |n| ino(thread << 32 | n)));
    let old = old.filter(|key| is_cached(&cache, *key)).count();
    assert!(old <= BUDGET / 2 + BUDGET / 50, "MEM-1: {old} old ones");
}

/// MEM-1: with a budget of nothing everything that is not in use goes, and all goes on.
#[test]
fn the_smallest_budgets() {
    for scheme in SCHEMES {
        for (inodes, bytes) in [(0, 1 << 30), (1, 1 << 30), (1000, 0), (1000, 1), (0, 0)] {
            for worker in [false, true] {
                let cache = builder(scheme).inodes(inodes).bytes(bytes);
                let cache: Cache = match worker {
                    true => cache.worker().build(),
                    false => cache.build(),
                };
                for n in 0..100 {
                    let inode = read(&cache, ino(n));
                    assert!(is_cached(&cache, ino(n)), "MEM-1: in use");
                    drop(inode);
                    let size = cache.size().0;
                    assert!(
                        size <= inodes.min(1) + 2,
                        "MEM-1: {size} of {inodes}, {bytes}"
                    );
                }
            }
        }
    }
}

/// MEM-1: `prune` keeps to its number, `prune_now` to unused inodes; `prune` takes none that
/// the budget allows, and neither takes one in use.
#[test]
fn pruning_takes_no_more_than_it_is_told() {
    let cache: Cache = builder(Scheme::OURS).inodes(1000).build();
    let held: Vec<_> = (0..50).map(|n| read(&cache, ino(n))).collect();
    (50..900).for_each(|n| drop(read(&cache, ino(n))));
    assert_eq!(cache.prune(usize::MAX), 0, "MEM-1: it is within the budget");
    let gone = cache.prune_now(100);
    assert!((50..=100 + 3).contains(&gone), "MEM-1: {gone} of 100");
    assert_eq!(cache.size().0, 900 - gone, "MEM-1");
    assert_eq!(cache.drop_unused(), 850 - gone, "MEM-1");
    assert_eq!(cache.evict_inodes(|_| true), 0, "MEM-1: all in use");
    assert!(held.iter().all(|inode| inode.is_hashed()), "MEM-1");
    drop(held);
    assert_eq!(cache.evict_inodes(|key| key.number % 2 == 0), 25, "MEM-1");
    assert_eq!(cache.drop_unused(), 25, "MEM-1");
}

/// MEM-1: threads that insert, hold and prune side by side leave an exact count.
#[test]
fn sizes_are_exact_when_all_is_quiet() {
    let cache: Cache = builder(Scheme::OURS).inodes(500).worker().build();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|seed| {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    let mut held = Vec::new();
                    for _ in 0..5000 {
                        let inode = read(cache, ino(random.below(1000) as u64));
                        match random.below(30) {
                            0 => cache.unhash(&inode),
                            1 => inode.dont_cache(),
                            2 => held.push(inode),
                            3 => held.clear(),
                            _ => {}
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(SeqCst) {
                cache.prune_now(50);
                thread::yield_now();
            }
        });
        let all = workers.into_iter().all(|worker| worker.join().is_ok());
        done.store(true, SeqCst);
        assert!(all);
    });
    let cached = (0..1000).filter(|n| is_cached(&cache, ino(*n))).count();
    assert_eq!(cache.size().0, cached, "MEM-1: listed is hashed");
    assert_eq!(cache.drop_unused(), cached, "MEM-1: and nobody has any");
    assert_eq!(cache.size(), (0, 0), "MEM-1");
}
