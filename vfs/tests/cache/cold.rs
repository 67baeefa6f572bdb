//! Misses by several threads at once: one lookup per name, one read-in per inode.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::{FOLLOW, Tracked, Tree, grow};
use rcuwalk::inode::{Iget, InodeCache, Key};
use rcuwalk::{Budget, Credentials, Error, OpenFlags, Vfs};
use rcuwalk_sync::rcu;
use rcuwalk_testkit::Hooked;

const THREADS: usize = 8;

/// Lets all threads go at once and returns what each came to.
fn together<R: Send>(work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        let (start, work) = (&start, &work);
        let all: Vec<_> = (0..THREADS)
            .map(|n| {
                scope.spawn(move || {
                    start.wait();
                    work(n)
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// A tree whose lookups are slow and told to `hook` first.
fn slow(hook: impl Fn(&[u8]) -> rcuwalk::Result<()> + Send + Sync + 'static) -> Vfs {
    let fs = grow("dir/ dir/file dir/other");
    let slow = Hooked::new(fs, move |call| match call.method {
        "lookup" => {
            thread::sleep(Duration::from_millis(5));
            hook(call.name().as_bytes())
        }
        _ => Ok(()),
    });
    Vfs::new(slow).unwrap()
}

/// DENTRY-2: threads that miss one name at once ask the back end once, and all get its answer:
/// the same inode, or that there is none.
#[test]
fn one_lookup_per_missing_name() {
    let asked: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let vfs = slow({
        let asked = asked.clone();
        move |name| {
            asked.lock().unwrap().push(name.to_vec());
            Ok(())
        }
    });
    let ctx = vfs.context(Credentials::root());
    for round in 0..10 {
        vfs.drop_caches();
        asked.lock().unwrap().clear();
        let held = together(|_| vfs.lookup(&ctx, "/dir/file", FOLLOW).unwrap());
        for path in &held {
            assert!(path.is_same_place(&held[0]), "DENTRY-2: one dentry");
            assert!(std::ptr::eq(path.inode(), held[0].inode()), "INODE-1");
        }
        let none = together(|_| vfs.stat(&ctx, "/dir/none", FOLLOW));
        assert!(none.iter().all(|none| matches!(none, Err(Error::NotFound))));
        let asked = asked.lock().unwrap();
        let names: Vec<&[u8]> = asked.iter().map(|name| &**name).collect();
        assert_eq!(
            names,
            [&b"dir"[..], b"file", b"none"],
            "DENTRY-2: round {round}"
        );
    }
}

/// DENTRY-2: a lookup that fails, or panics, leaves no thread waiting: one of the waiters asks
/// again.
#[test]
fn a_failed_lookup_is_asked_again() {
    let (asked, failures) = (Arc::new(AtomicUsize::new(0)), 3);
    let vfs = slow({
        let asked = asked.clone();
        move |name| match name {
            b"file" if asked.fetch_add(1, SeqCst) < failures => {
                Err(Error::io(std::io::Error::other("not today")))
            }
            _ => Ok(()),
        }
    });
    let ctx = vfs.context(Credentials::root());
    let got = together(|_| vfs.stat(&ctx, "/dir/file", FOLLOW));
    let failed = got.iter().filter(|one| one.is_err()).count();
    assert_eq!(failed, failures, "DENTRY-2: each error reaches who asked");
    assert_eq!(asked.load(SeqCst), failures + 1, "DENTRY-2");

    let panicked = Arc::new(AtomicBool::new(false));
    let vfs = slow({
        let panicked = panicked.clone();
        move |name| {
            assert!(name != b"file" || panicked.swap(true, SeqCst), "on purpose");
            Ok(())
        }
    });
    let ctx = vfs.context(Credentials::root());
    let got = together(|_| {
        let stat = || vfs.stat(&ctx, "/dir/file", FOLLOW).is_ok();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(stat))
    });
    let panics = got.iter().filter(|one| one.is_err()).count();
    assert_eq!(panics, 1, "DENTRY-2: who asked");
    assert!(
        got.into_iter().flatten().all(|found| found),
        "DENTRY-2: the others"
    );
}

/// DENTRY-2: lookups of different names in one directory go on side by side.
#[test]
fn lookups_of_different_names_run_at_once() {
    let both = Arc::new(Barrier::new(2));
    let vfs = slow({
        let both = both.clone();
        move |name| {
            if name != b"dir" {
                both.wait();
            }
            Ok(())
        }
    });
    let ctx = vfs.context(Credentials::root());
    let names = ["/dir/file", "/dir/other"];
    thread::scope(|scope| {
        for name in names {
            let (vfs, ctx) = (&vfs, &ctx);
            scope.spawn(move || vfs.stat(ctx, name, FOLLOW).unwrap());
        }
    });
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Ino(u64);

impl Key for Ino {
    fn hash(&self) -> u64 {
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

/// The part of an inode in these tests: its number, and a place in the count.
struct Part(u64, #[expect(dead_code, reason = "counts")] Option<Tracked>);

fn inodes(many: usize) -> InodeCache<Ino, Part> {
    InodeCache::builder().inodes(many).bytes(1 << 30).build()
}

/// INODE-1, INODE-2: threads that want one inode at once get one: one thread reads it in, the
/// others wait and see it whole.
#[test]
fn one_reader_per_inode() {
    let cache = inodes(1 << 20);
    for round in 0..200 {
        let readers = AtomicUsize::new(0);
        let got = together(|_| match cache.iget(Ino(round)).unwrap() {
            Iget::Cached(inode) => inode,
            Iget::New(new) => {
                readers.fetch_add(1, SeqCst);
                if round % 8 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                new.init(Part(round, None))
            }
        });
        assert_eq!(readers.load(SeqCst), 1, "INODE-1: round {round}");
        for inode in &got {
            assert_eq!(inode.0, round, "INODE-2: it is whole");
            assert!(std::ptr::eq(&**inode, &*got[0]), "INODE-1: round {round}");
        }
    }
}

/// INODE-3: a reader that gives up wakes the waiters, and one of them reads.
#[test]
fn a_failed_read_in_is_tried_again() {
    let cache = inodes(1 << 20);
    for round in 0..200 {
        let tries = AtomicUsize::new(0);
        let got = together(|_| match cache.iget(Ino(round)).unwrap() {
            Iget::Cached(inode) => Some(inode.0),
            Iget::New(new) => {
                let fails = tries.fetch_add(1, SeqCst) < THREADS / 2;
                if round % 8 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                // Dropped, it tells the waiters.
                (!fails).then(|| new.init(Part(round, None)).0)
            }
        });
        let failed = got.iter().filter(|got| got.is_none()).count();
        assert_eq!(failed, THREADS / 2, "INODE-3: nobody else failed");
        assert!(got.iter().flatten().all(|ino| *ino == round), "INODE-3");
    }
}

/// INODE-3: a look that does not read in waits for the reader, and is told if that
/// one fails.
#[test]
fn a_look_waits_for_the_reader() {
    let cache = inodes(1 << 20);
    for fails in [false, true] {
        let key = Ino(fails.into());
        let Iget::New(new) = cache.iget(key.clone()).unwrap() else {
            panic!("nobody has it");
        };
        thread::scope(|scope| {
            let looks: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| cache.ilookup(&key).unwrap()))
                .collect();
            thread::sleep(Duration::from_millis(20));
            assert!(looks.iter().all(|look| !look.is_finished()), "INODE-2");
            if fails {
                drop(new);
            } else {
                new.init(Part(7, None));
            }
            for look in looks {
                assert_eq!(look.join().unwrap().is_none(), fails, "INODE-3");
            }
        });
    }
}

/// INODE-4: a forgotten inode stays as it was for its holders, no lookup finds it again, and
/// its key is another inode from then on.
#[test]
fn a_forgotten_inode_is_final() {
    let alive = Arc::new(AtomicUsize::new(0));
    let cache = inodes(1 << 20);
    let read = |n: u64| match cache.iget(Ino(1)).unwrap() {
        Iget::New(new) => new.init(Part(n, Some(Tracked::new(&alive)))),
        Iget::Cached(inode) => inode,
    };
    let first = read(1);
    assert_eq!(read(2).0, 1, "INODE-1: cached");
    cache.unhash(&first);
    cache.unhash(&first);
    assert!(
        cache.ilookup(&Ino(1)).unwrap().is_none(),
        "INODE-4: off the table"
    );
    let second = read(2);
    assert_eq!((first.0, second.0), (1, 2), "INODE-4: another one");
    cache.unhash(&first);
    assert_eq!(read(3).0, 2, "INODE-4: forgetting the old leaves the new");
    let held = first.clone();
    drop(first);
    rcu::barrier();
    assert_eq!((held.0, alive.load(SeqCst)), (1, 2), "INODE-4: still held");
    drop(held);
    rcu::barrier();
    assert_eq!(
        alive.load(SeqCst),
        1,
        "INODE-4: freed with the last reference"
    );
    drop(second);
    assert_eq!(cache.drop_unused(), 1, "INODE-4: unused, then gone");
    rcu::barrier();
    assert_eq!(alive.load(SeqCst), 0, "INODE-4");
    assert_eq!(cache.size().0, 0, "INODE-4");
}

/// INODE-4: inodes in use are never pruned, unused ones are; beside threads that get and
/// forget, there is one inode per key, and no more are alive than can be found.
#[test]
fn lives_end_once_beside_each_other() {
    let alive = Arc::new(AtomicUsize::new(0));
    let cache = inodes(300);
    let rounds = crate::common::stress_ops(20_000, 200_000).min(1_000_000);
    together(|n| {
        let mut random = crate::common::Random::new(n as u64);
        for _ in 0..rounds {
            let ino = random.below(500) as u64;
            let inode = match cache.iget(Ino(ino)).unwrap() {
                Iget::Cached(inode) => inode,
                Iget::New(new) if random.below(10) == 0 => {
                    drop(new);
                    continue;
                }
                Iget::New(new) => new.init(Part(ino, Some(Tracked::new(&alive)))),
            };
            assert_eq!(inode.0, ino, "INODE-1");
            match random.below(20) {
                0 => cache.unhash(&inode),
                1 => _ = cache.prune(16),
                2 => {
                    let again = cache.ilookup(&Ino(ino)).unwrap();
                    assert!(again.is_none_or(|again| again.0 == ino), "INODE-1");
                }
                _ => {}
            }
        }
    });
    rcu::barrier();
    assert_eq!(
        alive.load(SeqCst),
        cache.size().0,
        "INODE-4: alive is cached"
    );
    cache.drop_unused();
    rcu::barrier();
    assert_eq!(
        (alive.load(SeqCst), cache.size().0),
        (0, 0),
        "INODE-4: all gone"
    );
}

/// INODE-4: a file gets no new name while its last one goes: the back end is told of
/// one change of its names at a time, in whatever directories they are.
#[test]
fn the_names_of_a_file_change_one_at_a_time() {
    let inside = AtomicUsize::new(0);
    let dirs: String = (0..THREADS).map(|n| format!("d{n}/ ")).collect();
    let fs = grow(&(dirs + "d0/name"));
    let hooked = Hooked::new(fs.clone(), move |call| {
        if ["link", "unlink"].contains(&call.method) {
            assert_eq!(inside.fetch_add(1, SeqCst), 0, "INODE-4: two at once");
            thread::sleep(Duration::from_millis(2));
            inside.fetch_sub(1, SeqCst);
        }
        Ok(())
    });
    let vfs = Vfs::new(hooked).unwrap();
    let ctx = vfs.context(Credentials::root());
    // Each has a directory of its own; the first takes the name that all link to.
    let linked = together(|n| match n {
        0 => vfs.unlink(&ctx, "/d0/name").is_err(),
        _ => vfs.link(&ctx, "/d0/name", format!("/d{n}/name")).is_ok(),
    });
    let names = linked.iter().filter(|done| **done).count();
    let nodes = 1 + THREADS + usize::from(names > 0);
    assert_eq!(fs.len(), nodes, "INODE-4: {names} names are left");
    for (n, linked) in linked.iter().enumerate() {
        let found = vfs.stat(&ctx, format!("/d{n}/name"), FOLLOW);
        assert_eq!(found.is_ok(), *linked, "INODE-4: /d{n}/name");
        assert!(found.is_err() || found.unwrap().nlink as usize == names);
    }
}

/// INODE-1: an unlinked file stays for its holder, and a file made in its place is another one.
#[test]
fn an_unlinked_file_stays_for_its_holder() {
    let tree = Tree::with_budget("file", Budget::default());
    let open = tree.vfs.open(&tree.ctx, "/file", OpenFlags::READ).unwrap();
    tree.vfs.unlink(&tree.ctx, "/file").unwrap();
    assert!(!tree.has("/file"));
    tree.vfs.create(&tree.ctx, "/file", 0o600).unwrap();
    let new = tree.stat("/file").unwrap();
    assert_ne!(new.ino, open.attr().ino, "INODE-1");
    assert_eq!((open.attr().nlink, new.nlink), (0, 1));
    assert_eq!(open.read_at(&mut [0; 8], 0).unwrap(), 0);
}

/// A budget of `dentries` names; an unused missing one stays while a sixteenth of that is
/// added.
fn names(dentries: usize) -> Budget {
    Budget::default().dentries(dentries)
}

fn cached(tree: &Tree) -> usize {
    tree.vfs.statistics().dentries.0
}

/// MEM-1: missing names that no walk asks for again go long before the budget is full; existing
/// names make them go as well.
#[test]
fn missing_names_do_not_fill_the_cache() {
    const FOUND: usize = 12_000;
    let tree = Tree::with_budget("dir/", names(1 << 16));
    let dir = tree.fs.root();
    for n in 0..FOUND {
        let name = format!("found {n}");
        tree.fs
            .add(dir, name.as_bytes(), rcuwalk_memfs::file(0o644))
            .unwrap();
    }
    for n in 0..40_000 {
        assert!(!tree.has(&format!("/dir/missing {n}")));
    }
    let missing = cached(&tree);
    assert!(missing < 2 * (1 << 12), "MEM-1: {missing} missing names");
    for n in 0..FOUND {
        assert!(tree.has(&format!("/found {n}")));
    }
    let left = cached(&tree) - FOUND;
    assert!(left < 500, "MEM-1: {left} missing names");
}

/// MEM-1: missing names that are asked for all the time take a quarter of the budget at most.
#[test]
fn missing_names_take_a_part_of_the_budget() {
    let tree = Tree::with_budget("dir/", names(1 << 12));
    for _ in 0..3 {
        for n in 0..3000 {
            for _ in 0..2 {
                assert!(!tree.has(&format!("/dir/missing {n}")));
            }
            let missing = cached(&tree);
            assert!(missing < (1 << 10) + 100, "MEM-1: {missing} missing names");
        }
    }
}

/// MEM-1: a missing name that is asked for again and again stays: the back end is asked once.
#[test]
fn missing_names_that_are_asked_for_stay() {
    let tree = Tree::with_budget("dir/", names(1 << 16));
    let ask_for_some = || {
        for n in 0..50 {
            assert!(!tree.has(&format!("/dir/wanted {n}")));
        }
    };
    ask_for_some();
    let before = tree.vfs.statistics().slow_lookups;
    for n in 0..20_000 {
        assert!(!tree.has(&format!("/dir/missing {n}")));
        if n % 500 == 0 {
            ask_for_some();
        }
    }
    ask_for_some();
    let asked = tree.vfs.statistics().slow_lookups - before;
    assert_eq!(asked, 20_000, "MEM-1: asked for once more");
}

/// MEM-1: a removal leaves a missing name, which ages like any other.
#[test]
fn names_left_by_unlink_are_aged() {
    const FILES: usize = 20_000;
    let tree = Tree::with_budget("", names(1 << 16));
    for n in 0..FILES {
        let path = format!("/file {n}");
        tree.vfs.create(&tree.ctx, &path, 0o644).unwrap();
        assert!(tree.has(&path));
    }
    assert!(cached(&tree) >= FILES);
    for n in 0..FILES {
        tree.vfs.unlink(&tree.ctx, format!("/file {n}")).unwrap();
    }
    let left = cached(&tree);
    assert!(left < 2 * (1 << 12), "MEM-1: {left} missing names");
    // One that is made again, and stays.
    tree.vfs.create(&tree.ctx, "/file 0", 0o644).unwrap();
    for n in 0..20_000 {
        assert!(!tree.has(&format!("/missing {n}")));
    }
    let before = tree.vfs.statistics().slow_lookups;
    assert!(tree.has("/file 0"));
    assert_eq!(tree.vfs.statistics().slow_lookups, before, "MEM-1");
}
