//! A known number of everything that a probe tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread;

use rcuwalk::inode::{Iget, InodeCache, Key, Scheme, Stale};

#[derive(Clone, PartialEq, Eq)]
struct Ino(u64);

impl Key for Ino {
    fn hash(&self) -> u64 {
        self.0
    }
}

type Cache = InodeCache<Ino, u64>;

/// | step                                        | first look | second   | and                 |
/// |---------------------------------------------|------------|----------|---------------------|
/// | read in 0 to n - 1                          | n misses   | n misses | n insertions        |
/// | find them                                   | n hits     |          |                     |
/// | begin to read in n                          | 1 miss     | 1 miss   | 1 insertion         |
/// | wait for that                               | 1 hit      |          | 1 wait for New      |
/// | begin to evict n, wait for that             | 1 hit      |          | 1 wait for Freeing  |
/// | and read it in again                        | 1 miss     | 1 miss   | 1 insertion         |
/// | insert 0, which is cached                   |            | 1 hit    |                     |
/// | create n + 1                                |            | 1 miss   | 1 creating          |
/// | evict all, n for the second time            |            |          | n + 3 evictions     |
pub(crate) fn run(scheme: Scheme, n: u64) {
    let (evicting, go_on) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let hook = {
        let (evicting, go_on) = (evicting.clone(), go_on.clone());
        move |_: &_| {
            evicting.store(true, SeqCst);
            wait_until(|| go_on.load(SeqCst));
        }
    };
    let cache = Cache::builder().scheme(scheme).on_evict(hook).build();
    for _ in 0..2 {
        (0..n).for_each(|ino| read_in(&cache, ino));
    }

    thread::scope(|scope| {
        let Ok(Iget::New(new)) = cache.iget(Ino(n)) else {
            panic!("nobody has read {n} in");
        };
        scope.spawn(|| read_in(&cache, n));
        wait_until(|| cache.statistics().waited_for_new == 1);
        drop(new.init(n));
    });
    thread::scope(|scope| {
        scope.spawn(|| cache.evict_inodes(|key| key.0 == n));
        wait_until(|| evicting.load(SeqCst));
        scope.spawn(|| read_in(&cache, n));
        wait_until(|| cache.statistics().waited_for_freeing == 1);
        go_on.store(true, SeqCst);
    });

    let spare = cache.alloc_inode();
    let set = || Err(Stale);
    let there = cache.inode_insert5(spare, 0, |node| node.key().0 == 0, set);
    assert!(matches!(there, Ok(Iget::Cached(_))));
    drop(there);
    drop(cache.insert_inode(Ino(n + 1)).unwrap().init(n + 1));
    cache.drop_unused();
    // n once more if it was read in again before `evict_inodes` was through.
    assert_eq!(cache.size().0, 0);
    assert_eq!(cache.evicted(), n + 3);
}

fn read_in(cache: &Cache, ino: u64) {
    match cache.iget(Ino(ino)).unwrap() {
        Iget::Cached(inode) => assert_eq!(**inode, ino),
        Iget::New(new) => drop(new.init(ino)),
    }
}

fn wait_until(done: impl Fn() -> bool) {
    while !done() {
        thread::yield_now();
    }
}
