//! The child of a fork(2) can use the crate, and the parent does not notice.
#![cfg(all(unix, not(any(miri, loom, shuttle))))]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use rcuwalk_sync::lock::{Mutex as RankedMutex, Rank};
use rcuwalk_sync::{Ref, Shared, rcu};

/// One test at a time: what one has retired, the child of another would free, and run `Drop`
/// code there that waits for a thread of the first.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    rcu::barrier();
    alone
}

/// Forks, and has `check` say in the child whether all is well there. A child that hangs is
/// killed.
fn in_child(check: impl FnOnce() -> bool) {
    // SAFETY: the child runs `check` and ends by `_exit`. It uses the standard library's
    // allocator and threads, which libc restores, and this crate, whose restoration is under
    // test.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: plain calls with numbers.
        unsafe { libc::alarm(60) };
        let well = catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
        // SAFETY: as above; no destructor of the parent's runs.
        unsafe { libc::_exit(i32::from(!well)) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable, and `child` is ours to wait for.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(
        waited,
        child,
        "waitpid: {}",
        std::io::Error::last_os_error()
    );
    assert_eq!(
        status, 0,
        "the child: exit code in the high byte, else a signal"
    );
}

/// Runs `during`, then `after` also if that panics: another thread waits for it.
fn and_after(during: impl FnOnce(), after: impl FnOnce()) {
    let result = catch_unwind(AssertUnwindSafe(during));
    after();
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

/// Runs `during` while another thread is inside a read section.
fn while_another_reads(during: impl FnOnce()) {
    let (start, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = rcu::read_lock();
            start.wait();
            end.wait();
            drop(guard);
        });
        start.wait();
        and_after(during, || _ = end.wait());
    });
}

/// Counts drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn retire(count: usize, dropped: &Arc<AtomicUsize>) {
    for _ in 0..count {
        drop(Ref::new(Counted(dropped.clone())));
    }
}

/// RCU-1: the reader is not in the child, so nothing there waits for it; and membarrier(2) works
/// in the child, among threads of its own.
#[test]
fn a_grace_period_ends_in_a_child_forked_while_another_thread_reads() {
    let _alone = alone();
    while_another_reads(|| {
        in_child(|| {
            rcu::synchronize();
            let no_stall = rcu::statistics().stalled.is_none() && rcu::statistics().readers == 1;
            let dropped = Arc::default();
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..100 {
                            let guard = rcu::read_lock();
                            retire(1, &dropped);
                            drop(guard);
                        }
                    });
                }
            });
            rcu::barrier();
            no_stall && dropped.load(SeqCst) == 400
        });
    });
}

/// RCU-1: objects retired before the fork, by this thread or others, are freed once in each
/// process.
#[test]
fn retired_objects_are_freed_in_the_child_and_in_the_parent() {
    let _alone = alone();
    let dropped = Arc::default();
    while_another_reads(|| {
        let (start, end) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                retire(1500, &dropped);
                start.wait();
                end.wait();
            });
            start.wait();
            retire(1500, &dropped);
            let check = || {
                rcu::barrier();
                dropped.load(SeqCst) == 3000 && rcu::statistics().pending_bytes == 0
            };
            and_after(|| in_child(check), || _ = end.wait());
        });
    });
    rcu::barrier();
    assert_eq!(dropped.load(SeqCst), 3000, "RCU-1: once");
}

/// RCU-1: the parent still waits for its reader.
#[test]
fn the_parent_does_not_notice() {
    let _alone = alone();
    let dropped = Arc::default();
    let (freed, is_freed) = mpsc::channel();
    let freer = {
        let slot: Mutex<Option<thread::JoinHandle<()>>> = Mutex::new(None);
        while_another_reads(|| {
            retire(1, &dropped);
            in_child(|| true);
            let dropped = dropped.clone();
            *slot.lock().unwrap() = Some(thread::spawn(move || {
                rcu::barrier();
                freed.send(dropped.load(SeqCst)).unwrap();
            }));
            in_child(|| {
                rcu::barrier();
                true
            });
            assert!(is_freed.try_recv().is_err(), "RCU-1: a reader is there");
        });
        slot.into_inner().unwrap().unwrap()
    };
    freer.join().unwrap();
    assert_eq!(is_freed.recv().unwrap(), 1);
}

/// RCU-1: the section that the forking thread has open is open in the child, and ends there.
#[test]
fn the_own_read_section_goes_on_in_the_child() {
    let _alone = alone();
    let guard = rcu::read_lock();
    let dropped = Arc::default();
    retire(1, &dropped);
    in_child(|| {
        let is_inside = rcu::in_read_section();
        // Another thread's grace period does not end before this section does.
        let ended = AtomicBool::new(false);
        let well = thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                rcu::synchronize();
                ended.store(true, SeqCst);
            });
            thread::sleep(std::time::Duration::from_millis(50));
            let waits = !ended.load(SeqCst);
            drop(guard);
            waiter.join().unwrap();
            waits
        });
        rcu::barrier();
        is_inside && well && !rcu::in_read_section() && dropped.load(SeqCst) == 1
    });
}

/// RCU-1: neither the forking thread nor the child waits for `Drop` code of another thread.
#[test]
fn a_child_frees_though_another_thread_was_freeing() {
    let _alone = alone();
    struct Blocks(Arc<Barrier>);
    impl Drop for Blocks {
        fn drop(&mut self) {
            self.0.wait();
            self.0.wait();
        }
    }
    let barrier = Arc::new(Barrier::new(2));
    drop(Ref::new(Blocks(barrier.clone())));
    thread::scope(|scope| {
        scope.spawn(rcu::barrier);
        barrier.wait();
        let check = || {
            let dropped = Arc::default();
            retire(3000, &dropped);
            rcu::barrier();
            dropped.load(SeqCst) == 3000 && rcu::statistics().pending_bytes == 0
        };
        and_after(|| in_child(check), || _ = barrier.wait());
    });
}

/// A fork from `Drop` code: both processes go on with the objects that they are freeing.
#[test]
fn a_fork_within_drop_code_is_survived() {
    let _alone = alone();
    struct Forks(Arc<AtomicUsize>);
    impl Drop for Forks {
        fn drop(&mut self) {
            in_child(|| {
                let guard = rcu::read_lock();
                drop(guard);
                rcu::synchronize();
                true
            });
            self.0.fetch_add(1, SeqCst);
        }
    }
    let forked = Arc::new(AtomicUsize::new(0));
    drop(Ref::new(Forks(forked.clone())));
    rcu::barrier();
    assert_eq!(forked.load(SeqCst), 1);
}

/// All statics of this crate are usable in the child, whichever other thread used them at the
/// fork: places for readers, bags, memory for objects, queues to sleep in.
#[test]
fn what_is_static_is_usable_in_the_child() {
    let _alone = alone();
    let over = AtomicBool::new(false);
    let objects: Vec<Ref<u64>> = (0..8).map(Ref::new).collect();
    let use_all = |objects: &[Ref<u64>]| {
        let kept: Vec<Ref<[u64; 8]>> = (0..600).map(|n| Ref::new([n; 8])).collect();
        drop(kept);
        for object in objects {
            // Sleeps where another thread has it locked.
            let shared: &Shared<u64> = object;
            drop(shared.lock(Rank::Inode));
        }
        _ = rcu::statistics();
        // A place for a reader is taken and given back.
        thread::spawn(|| drop(rcu::read_lock())).join().unwrap();
    };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    use_all(&objects);
                }
            });
        }
        let forks = || {
            for _ in 0..40 {
                in_child(|| {
                    // Not those objects: locks that other threads held stay taken.
                    let objects: Vec<Ref<u64>> = (0..8).map(Ref::new).collect();
                    let ranked = RankedMutex::new(Rank::Lru, ());
                    thread::scope(|scope| {
                        for _ in 0..2 {
                            scope.spawn(|| {
                                for _ in 0..3 {
                                    use_all(&objects);
                                    drop(ranked.lock());
                                }
                            });
                        }
                    });
                    rcu::barrier();
                    true
                });
            }
        };
        and_after(forks, || over.store(true, SeqCst));
    });
}
