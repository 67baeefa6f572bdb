//! One domain at a time, so that the counts are exact.

use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Plain;

fn count_one(domain: &Domain, reader: Reader, counter: &Arc<Plain>) {
    let counter = counter.clone();
    let callback = Box::new(move || {
        counter.fetch_add(1, Relaxed);
    });
    domain.retire(reader, [Retired::callback(64, callback)]);
}

/// RCU-1: nothing is freed while a reader that may see it is inside.
#[test]
fn a_reader_holds_up_freeing_and_nothing_else_does() {
    let domain = Domain::new();
    let (reader, writer) = (domain.register(), domain.register());
    let freed = Arc::new(Plain::new(0));

    reader.enter(&domain);
    for _ in 0..3 * Domain::BATCH_OBJECTS {
        count_one(&domain, writer, &freed);
    }
    assert_eq!(freed.load(Relaxed), 0, "RCU-1: the reader is still inside");
    reader.exit();
    for _ in 0..Domain::BATCH_OBJECTS {
        count_one(&domain, writer, &freed);
    }
    assert_eq!(
        freed.load(Relaxed),
        4 * Domain::BATCH_OBJECTS as u64,
        "RCU-1: it has left"
    );
}

/// RCU-1: a barrier leaves no object behind, of whichever thread.
#[test]
fn a_barrier_drains_every_bag() {
    let domain = Domain::new();
    let (a, b) = (domain.register(), domain.register());
    let freed = Arc::new(Plain::new(0));
    count_one(&domain, a, &freed);
    count_one(&domain, b, &freed);
    domain.unregister(b);
    domain.barrier();
    assert_eq!(freed.load(Relaxed), 2);
    let stats = domain.statistics();
    assert_eq!(
        (
            stats.retired,
            stats.freed,
            stats.pending_bytes,
            stats.readers
        ),
        (2, 2, 0, 1)
    );
}

/// RCU-1: nested sections end with the outermost one.
#[test]
fn sections_nest() {
    let domain = Domain::new();
    let reader = domain.register();
    reader.enter(&domain);
    reader.enter(&domain);
    reader.exit();
    assert!(
        domain.oldest_reader() < u64::MAX,
        "RCU-1: one level is still open"
    );
    reader.exit();
    assert_eq!(domain.oldest_reader(), u64::MAX);
}

#[test]
fn a_stalled_reader_is_named_and_a_busy_one_is_not() {
    let domain = Domain::new();
    let reader = domain.register();
    for _ in 0..3 {
        reader.enter(&domain);
        let stalled = domain.statistics().stalled;
        assert!(stalled.is_none(), "it left between two looks: {stalled:?}");
        reader.exit();
    }
    reader.enter(&domain);
    domain.statistics();
    thread::sleep(Duration::from_millis(2));
    let stall = domain
        .statistics()
        .stalled
        .expect("it stayed over two looks");
    assert!(stall.lasting >= Duration::from_millis(1));
    assert_eq!(stall.thread, thread::current().name().unwrap());
    reader.exit();
}

/// RCU-1: past the cap a writer waits for the reader instead of piling up more.
#[test]
fn the_cap_makes_writers_wait() {
    let domain = Arc::new(Domain::new());
    let (inside, entered) = std::sync::mpsc::channel();
    let reader = thread::spawn({
        let domain = domain.clone();
        move || {
            let reader = domain.register();
            reader.enter(&domain);
            inside.send(()).unwrap();
            thread::sleep(Duration::from_millis(50));
            reader.exit();
        }
    });
    entered.recv().unwrap();
    let writer = domain.register();
    let mut most = 0;
    for _ in 0..10 {
        domain.retire(
            writer,
            [Retired::callback(
                Domain::CAP_BYTES as usize / 4,
                Box::new(|| ()),
            )],
        );
        most = most.max(domain.statistics().pending_bytes);
    }
    reader.join().unwrap();
    assert!(
        most <= Domain::CAP_BYTES + Domain::CAP_BYTES / 4,
        "waiting: {most} bytes"
    );
}

/// RCU-1: a barrier includes what another thread's freeing, under way, retires in turn.
#[test]
fn a_barrier_waits_for_what_others_are_freeing() {
    static DOMAIN: Domain = Domain::new();
    let domain = &DOMAIN;
    let freed = Arc::new(Plain::new(0));
    let (inside, entered) = std::sync::mpsc::channel();
    let (go_on, told) = std::sync::mpsc::channel::<()>();
    let writer = thread::spawn({
        let freed = freed.clone();
        move || {
            let reader = domain.register();
            let callback = Box::new(move || {
                inside.send(()).unwrap();
                told.recv().unwrap();
                count_one(domain, reader, &freed);
            });
            domain.retire(reader, [Retired::callback(Domain::BATCH_BYTES, callback)]);
        }
    });
    entered.recv().unwrap();
    let barrier = thread::spawn(|| domain.barrier());
    thread::sleep(Duration::from_millis(20));
    go_on.send(()).unwrap();
    barrier.join().unwrap();
    assert_eq!(
        freed.load(Relaxed),
        1,
        "RCU-1: retired in turn, before the barrier ended"
    );
    writer.join().unwrap();
}

/// RCU-1: a barrier ends though other threads keep retiring objects that retire in turn.
#[test]
#[cfg_attr(miri, ignore = "a race against the clock")]
fn a_barrier_does_not_wait_for_what_comes_after_it() {
    static DOMAIN: Domain = Domain::new();
    let domain = &DOMAIN;
    let stop = Arc::new(Plain::new(0));
    let writer = thread::spawn({
        let stop = stop.clone();
        move || {
            let reader = domain.register();
            while stop.load(Relaxed) == 0 {
                let again = Box::new(move || {
                    domain.retire(reader, [Retired::callback(1, Box::new(|| ()))]);
                });
                domain.retire(reader, [Retired::callback(1, again)]);
            }
        }
    });
    let (done, ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        (0..20).for_each(|_| domain.barrier());
        done.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(30));
    stop.store(1, Relaxed);
    writer.join().unwrap();
    assert!(ended.is_ok(), "RCU-1: the barrier never ended");
}

/// RCU-1: `Drop` code that panics neither stops freeing nor loses the objects behind it.
#[test]
fn a_panic_while_freeing_loses_nothing() {
    let domain = Domain::new();
    let reader = domain.register();
    let freed = Arc::new(Plain::new(0));
    count_one(&domain, reader, &freed);
    domain.retire(
        reader,
        [Retired::callback(64, Box::new(|| panic!("in a callback")))],
    );
    count_one(&domain, reader, &freed);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| domain.barrier()));
    assert!(caught.is_err());
    domain.barrier();
    assert_eq!(freed.load(Relaxed), 2, "RCU-1: both others were freed");
    let stats = domain.statistics();
    assert_eq!((stats.retired, stats.freed, stats.pending_bytes), (3, 3, 0));
}

/// RCU-2: foreign `Drop` code does not run inside a read section, but soon after it.
#[test]
fn nothing_is_freed_inside_a_section() {
    let domain = Domain::new();
    let (reader, writer) = (domain.register(), domain.register());
    let freed = Arc::new(Plain::new(0));
    for _ in 0..Domain::BATCH_OBJECTS - 1 {
        count_one(&domain, writer, &freed);
    }
    writer.enter(&domain);
    count_one(&domain, reader, &freed);
    count_one(&domain, writer, &freed);
    assert_eq!(freed.load(Relaxed), 0, "RCU-2: it is inside");
    writer.exit();
    count_one(&domain, writer, &freed);
    assert_eq!(
        freed.load(Relaxed),
        Domain::BATCH_OBJECTS as u64,
        "RCU-2: it has left"
    );
}

/// RCU-1: objects retired under a lock are freed when the lock is released.
#[test]
fn who_retires_under_locks_frees_between_them() {
    let freed = Arc::new(Plain::new(0));
    let lock = crate::lock::Mutex::new(crate::lock::Rank::DirRwsem, ());
    {
        let _held = lock.lock();
        for _ in 0..Domain::BATCH_OBJECTS {
            let freed = freed.clone();
            crate::rcu::defer(8, move || {
                freed.fetch_add(1, Relaxed);
            });
        }
        assert_eq!(
            freed.load(Relaxed),
            0,
            "LOCK-1: foreign code does not run under a lock"
        );
    }
    // Another test's thread may be freeing or reading at this moment: not lost, late.
    for _ in 0..1000 {
        if freed.load(Relaxed) > 0 {
            break;
        }
        thread::sleep(Duration::from_millis(1));
        let _held = lock.lock();
        crate::rcu::defer(Domain::BATCH_BYTES, || ());
    }
    assert!(freed.load(Relaxed) > 0, "RCU-1: the lock is given back");
}
