//! The thread that reclaims ahead of need: it ends with its cache, wherever that is dropped,
//! and no hook can stop it.

mod common;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use common::inodes::{Cache, Log, Node, a_while, builder, comes_back, eventually, ino, read};
use rcuwalk::inode::Scheme;

/// INODE-4: a cache may be dropped from within its own hook, on any thread; the remaining
/// inodes are passed to the hook.
#[test]
fn a_hook_may_drop_its_cache() {
    for worker in [false, true] {
        let log = Log::default();
        let place: Arc<Mutex<Option<Arc<Cache>>>> = Arc::default();
        let hook = {
            let (place, log) = (place.clone(), log.clone());
            move |node: &Node| {
                log.note(node.key().number);
                let cache = place.lock().unwrap().take();
                drop(cache);
            }
        };
        let mut cache = builder(Scheme::OURS).inodes(64).on_evict(hook);
        if worker {
            cache = cache.worker();
        }
        let cache: Arc<Cache> = Arc::new(cache.build());
        (0..50).for_each(|n| drop(read(&cache, ino(n))));
        let last = read(&cache, ino(50));
        last.dont_cache();
        // Nearly full: the worker is woken, and its hook has the only cache.
        *place.lock().unwrap() = Some(cache.clone());
        if worker {
            (51..64).for_each(|n| drop(read(&cache, ino(n))));
        }
        drop(cache);
        comes_back("INODE-4: a cache dropped in its hook", move || drop(last));
        eventually("all seen off", || log.len() >= 50);
        assert!(place.lock().unwrap().is_none());
    }
}

/// MEM-1: a worker keeps the cache below its budget ahead of need, sleeps when there is
/// nothing to do, and ends with the cache.
#[test]
fn a_worker_makes_room_ahead() {
    let evictors: Arc<OnceLock<thread::ThreadId>> = Arc::default();
    let cache: Cache = {
        let evictors = evictors.clone();
        builder(Scheme::OURS)
            .inodes(1000)
            .worker()
            .on_evict(move |_| _ = evictors.set(thread::current().id()))
            .build()
    };
    let mut most = 0;
    for n in 0..5000 {
        drop(read(&cache, ino(n)));
        most = most.max(cache.size().0);
        if n % 20 == 0 {
            thread::yield_now();
        }
    }
    assert!(most <= 1020, "MEM-1: {most} of 1000");
    // 938, and what this thread has added since it last compared the size with the budget.
    eventually("MEM-1: a sixteenth is free", || cache.size().0 <= 945);
    a_while();
    assert!(cache.size().0 >= 850, "MEM-1: no more than that");
    assert!(evictors.get().is_some());
    comes_back("the worker ends with the cache", move || drop(cache));
}

/// MEM-1: a worker goes on after a hook that panicked.
#[test]
fn a_worker_survives_a_panic() {
    let panics = Arc::new(AtomicBool::new(true));
    let evictors = Arc::new(Mutex::new(Vec::new()));
    let cache: Cache = {
        let (panics, evictors) = (panics.clone(), evictors.clone());
        let hook = move |_: &Node| {
            assert!(!panics.swap(false, SeqCst), "on purpose");
            evictors.lock().unwrap().push(thread::current().id());
        };
        builder(Scheme::OURS)
            .inodes(1000)
            .worker()
            .on_evict(hook)
            .build()
    };
    let here = thread::current().id();
    let mut next = 0;
    let mut stream = || {
        next += 1;
        let read = std::panic::AssertUnwindSafe(|| drop(read(&cache, ino(next))));
        // If the worker is slow, this thread calls the hook.
        let _ = std::panic::catch_unwind(read);
    };
    eventually("MEM-1: the hook panics", || {
        stream();
        !panics.load(SeqCst)
    });
    eventually("MEM-1: the worker makes room again", || {
        stream();
        evictors.lock().unwrap().iter().any(|id| *id != here)
    });
    comes_back("the worker ends with the cache", move || drop(cache));
}
