//! Changes of all kinds beside walks, with more threads than cores.
//!
//! `RCUWALK_STRESS_OPS` sets how many operations, `RCUWALK_SEED` which. The tests
//! of this binary take turns: some count what the whole process has retired.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use common::{FOLLOW, REF, Random, Tree, stress_ops};
use rcuwalk::{Budget, Error, LookupFlags, RenameFlags, Result};
use rcuwalk_sync::rcu;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn operations() -> usize {
    stress_ops(300_000, 1_000_000)
}

/// Names come and go fast, and the cache is too small for them.
fn small() -> Budget {
    Budget::default()
        .dentries(300)
        .inodes(300)
        .bytes(1 << 20)
        .fds(64)
}

/// Names of the files that `both_walks_agree_beside_changes` makes.
const NAMES: [&str; 6] = [
    "file0",
    "file1",
    "file2",
    "file3",
    "new",
    "a-new-name-that-is-too-long-for-the-words",
];

/// Checks the result of a change while other threads change the same names.
fn settle(result: Result<()>) -> bool {
    match result {
        Ok(()) => true,
        Err(
            Error::NotFound
            | Error::Exists
            | Error::NotEmpty
            | Error::Invalid
            | Error::IsADirectory
            | Error::NotADirectory
            | Error::Stale,
        ) => false,
        Err(err) => panic!("{err:?}"),
    }
}

/// After the last user is gone everything retired is freed.
fn assert_nothing_waits() {
    rcu::barrier();
    let stats = rcu::statistics();
    assert_eq!(stats.retired, stats.freed, "RCU-1: {stats:?}");
    assert_eq!(stats.pending_bytes, 0, "RCU-1: {stats:?}");
}

/// DENTRY-3: a name that is renamed all the time is found old or new, never neither,
/// and is always the file it was.
#[test]
fn a_name_is_found_old_or_new() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // The two names of each: in one directory, across two, and a directory on the way.
    let pairs = [
        ("/a/same", "/a/other"),
        ("/a/across", "/b/crossed-with-a-name-too-long-for-the-words"),
        ("/a/dir", "/b/moved"),
    ];
    for budget in [Budget::default(), small()] {
        let entries = "a/ b/ a/same a/across a/dir/ a/dir/file";
        let tree = Tree::with_budget(entries, budget);
        let inos = pairs.map(|(old, _)| {
            let within = if old == "/a/dir" { "/a/dir/file" } else { old };
            tree.ino(within).unwrap()
        });
        let rounds = operations() / 8 / pairs.len();
        // Even: nothing under way. The next or current change is number `count / 2`.
        let counts: [AtomicU64; 3] = Default::default();
        let done = AtomicBool::new(false);
        let found: u64 = thread::scope(|scope| {
            let (tree, counts, done) = (&tree, &counts, &done);
            let walkers: Vec<_> = [FOLLOW, REF]
                .into_iter()
                .map(|flags| {
                    scope.spawn(move || {
                        let mut found = 0;
                        while !done.load(Acquire) {
                            for (n, (old, new)) in pairs.iter().enumerate() {
                                let before = counts[n].load(SeqCst);
                                // In the direction of the change: a file that has left the
                                // first name has arrived at the second.
                                let way = match before / 2 % 2 {
                                    0 => [old, new],
                                    _ => [new, old],
                                };
                                let seen = way.map(|name| {
                                    let within = if n == 2 { "/file" } else { "" };
                                    match tree.vfs.stat(&tree.ctx, format!("{name}{within}"), flags)
                                    {
                                        Ok(attr) => Some(attr.ino),
                                        Err(Error::NotFound) => None,
                                        Err(err) => panic!("DENTRY-3: {name}: {err}"),
                                    }
                                });
                                let after = counts[n].load(SeqCst);
                                for ino in seen.into_iter().flatten() {
                                    assert_eq!(ino, inos[n], "DENTRY-3: {old} is another file");
                                }
                                // At most one change was under way.
                                if after <= (before | 1) + 1 {
                                    assert!(seen != [None, None], "DENTRY-3: {old} is nowhere");
                                    found += 1;
                                }
                            }
                        }
                        found
                    })
                })
                .collect();
            let movers: Vec<_> = (0..3)
                .map(|n| {
                    scope.spawn(move || {
                        let (old, new) = pairs[n];
                        for round in 0..rounds {
                            counts[n].fetch_add(1, SeqCst);
                            let (from, to) = if round % 2 == 0 {
                                (old, new)
                            } else {
                                (new, old)
                            };
                            tree.vfs.rename(&tree.ctx, from, to).unwrap();
                            counts[n].fetch_add(1, SeqCst);
                        }
                    })
                })
                .collect();
            movers.into_iter().for_each(|one| one.join().unwrap());
            done.store(true, Release);
            walkers.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert!(found > 0, "the walkers looked beside the changes");
        drop(tree);
        assert_nothing_waits();
    }
}

/// INODE-1: whatever is made, linked, renamed and removed beside walks, a name never
/// leads to a file that is not its own; in the end nothing has leaked.
#[test]
fn names_lead_to_their_own_files() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const DIRS: usize = 4;
    const FAMILIES: usize = 8;
    for budget in [Budget::default(), small()] {
        let tree = Tree::with_budget("d0/ d1/ d2/ d3/", budget);
        let alive = tree.fs.len();
        // A file of family `f` has mode `f`, and only names that say so.
        let name = |dir: usize, family: usize, n: usize| format!("/d{dir}/family{family}-{n}");
        let changes = operations() / 4;
        let done = AtomicBool::new(false);
        let seen = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (tree, done, seen) = (&tree, &done, &seen);
            for walker in 0..2 {
                scope.spawn(move || {
                    let mut random = Random::new(walker);
                    while !done.load(Acquire) {
                        let family = random.below(FAMILIES);
                        let path = name(random.below(DIRS), family, random.below(3));
                        let flags = [FOLLOW, REF, LookupFlags::empty()][random.below(3)];
                        match tree.vfs.stat(&tree.ctx, &path, flags) {
                            Ok(attr) => {
                                assert_eq!(attr.mode as usize, family, "INODE-1: {path}");
                                seen.fetch_add(1, Relaxed);
                            }
                            Err(Error::NotFound) => {}
                            Err(err) => panic!("{path}: {err}"),
                        }
                        if let Ok(held) = tree.vfs.lookup(&tree.ctx, &path, flags) {
                            assert_eq!(held.attr().mode as usize, family, "INODE-1: {path}");
                        }
                    }
                });
            }
            let changers: Vec<_> = (0..3)
                .map(|changer| {
                    scope.spawn(move || {
                        let mut random = Random::new(10 + changer);
                        for _ in 0..changes / 3 {
                            let family = random.below(FAMILIES);
                            let mut path = || name(random.below(DIRS), family, random.below(3));
                            let (from, to) = (path(), path());
                            let (vfs, ctx) = (&tree.vfs, &tree.ctx);
                            settle(match random.below(10) {
                                0..3 => vfs.create(ctx, &to, family as u16).map(drop),
                                3..5 => vfs.link(ctx, &from, &to).map(drop),
                                5..8 => vfs.rename(ctx, &from, &to),
                                _ => vfs.unlink(ctx, &to),
                            });
                        }
                    })
                })
                .collect();
            changers.into_iter().for_each(|one| one.join().unwrap());
            done.store(true, Release);
        });
        assert!(seen.load(Relaxed) > 0, "the walkers saw files");
        // The named files are all that is left, with the right number of names.
        let mut links = std::collections::HashMap::<u64, (u32, u32)>::new();
        for dir in 0..DIRS {
            for entry in tree.vfs.read_dir(&tree.ctx, format!("/d{dir}")).unwrap() {
                let entry = entry.unwrap();
                let path = [format!("/d{dir}/").as_bytes(), &entry.name].concat();
                let attr = tree.vfs.stat(&tree.ctx, &path, FOLLOW).unwrap();
                assert_eq!(attr.ino, entry.ino, "INODE-1: cache and listing agree");
                let known = links.entry(attr.ino).or_insert((0, attr.nlink));
                known.0 += 1;
            }
        }
        for (ino, (names, nlink)) in &links {
            assert_eq!(names, nlink, "EDGE-1: names of {ino}");
        }
        assert_eq!(tree.fs.len(), alive + links.len(), "no file leaked");
        for dir in 0..DIRS {
            for family in 0..FAMILIES {
                (0..3).for_each(|n| {
                    settle(tree.vfs.unlink(&tree.ctx, name(dir, family, n)));
                });
            }
        }
        assert_eq!(tree.fs.len(), alive, "no file leaked");
        drop(tree);
        assert_nothing_waits();
    }
}

/// LOCK-1: directories that are moved across each other neither deadlock nor form a
/// loop, and `..` from inside leads to a directory they have been in.
#[test]
fn directories_move_across_each_other() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const DIRS: [&str; 4] = ["w", "x", "y", "z"];
    let tree = Tree::with_budget("a/ b/ a/w/ a/x/ b/y/ b/z/ a/w/in", small());
    let nodes = tree.fs.len();
    let root = tree.ino("/").unwrap();
    let known = |path: &str| tree.ino(path).unwrap();
    let mut inos = vec![root, known("/a"), known("/b")];
    inos.extend(["/a/w", "/a/x", "/b/y", "/b/z"].map(known));
    // Where a directory may be: in `a`, `b`, or one level down in another.
    let place = |random: &mut Random| {
        let top = ["/a", "/b"][random.below(2)];
        match random.below(3) {
            0 => top.to_owned(),
            1 => format!("{top}/{}", DIRS[random.below(4)]),
            _ => format!("{top}/{}/{}", DIRS[random.below(4)], DIRS[random.below(4)]),
        }
    };
    let done = AtomicBool::new(false);
    let (moved, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let (tree, done, inos) = (&tree, &done, &inos);
        let (moved, refused) = (&moved, &refused);
        for walker in 0..2 {
            scope.spawn(move || {
                let mut random = Random::new(20 + walker);
                while !done.load(Acquire) {
                    let dir = format!("{}/{}", place(&mut random), DIRS[random.below(4)]);
                    let Ok(held) = tree.vfs.lookup(&tree.ctx, &dir, FOLLOW) else {
                        continue;
                    };
                    let inside = tree.ctx.clone().with_cwd(held);
                    for flags in [FOLLOW, REF] {
                        let up = tree.vfs.stat(&inside, "..", flags);
                        match up {
                            Ok(attr) => assert!(inos.contains(&attr.ino), "{dir}/.. is {attr:?}"),
                            Err(Error::NotFound | Error::Stale) => {}
                            Err(err) => panic!("{dir}/..: {err}"),
                        }
                        let top = tree.vfs.stat(&inside, "../".repeat(12), flags);
                        match top {
                            Ok(attr) => assert_eq!(attr.ino, root, "WALK-1: all the way up"),
                            Err(Error::NotFound | Error::Stale) => {}
                            Err(err) => panic!("{dir}/../..: {err}"),
                        }
                    }
                }
            });
        }
        let changers: Vec<_> = (0..3)
            .map(|changer| {
                scope.spawn(move || {
                    let mut random = Random::new(30 + changer);
                    for _ in 0..operations() / 8 {
                        let dir = DIRS[random.below(4)];
                        let from = format!("{}/{dir}", place(&mut random));
                        let to = format!("{}/{dir}", place(&mut random));
                        match tree.vfs.rename(&tree.ctx, &from, &to) {
                            Err(Error::Invalid) => _ = refused.fetch_add(1, Relaxed),
                            result => _ = moved.fetch_add(settle(result).into(), Relaxed),
                        }
                    }
                })
            })
            .collect();
        changers.into_iter().for_each(|one| one.join().unwrap());
        done.store(true, Release);
    });
    assert!(moved.load(Relaxed) > 0 && refused.load(Relaxed) > 0);
    assert_eq!(tree.fs.len(), nodes, "nothing was removed");
    assert_eq!(count(&tree, "/", 10), nodes, "EDGE-1: it is still a tree");
    drop(tree);
    assert_nothing_waits();
}

/// How many nodes a path leads to, itself included.
fn count(tree: &Tree, path: &str, depth: usize) -> usize {
    assert!(depth > 0, "EDGE-1: a loop at {path}");
    let itself = tree.vfs.stat(&tree.ctx, path, LookupFlags::empty());
    if itself.unwrap().kind != rcuwalk::FileType::Directory {
        return 1;
    }
    let entries = tree.vfs.read_dir(&tree.ctx, path).unwrap();
    let below = entries.map(|entry| {
        let name = String::from_utf8(entry.unwrap().name.into_vec()).unwrap();
        count(tree, &format!("{path}/{name}"), depth - 1)
    });
    below.sum::<usize>() + 1
}

/// WALK-1: an RCU-walk and a walk with references agree about files that do not change,
/// whatever is made and removed around them; removed directories take no new names.
#[test]
fn both_walks_agree_beside_changes() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let tree = Tree::with_budget("d/ d/stays/ d/stays/file d/link->stays/file", small());
    let nodes = tree.fs.len();
    let stable = [
        "/d/stays/file",
        "/d/link",
        "/d/stays/../link",
        "/d/stays/never",
    ];
    let truth = stable.map(|path| tree.ino(path).ok());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (tree, done) = (&tree, &done);
        for flags in [FOLLOW, REF] {
            scope.spawn(move || {
                while !done.load(Acquire) {
                    for (path, truth) in stable.iter().zip(truth) {
                        let seen = tree.vfs.stat(&tree.ctx, path, flags);
                        assert_eq!(seen.ok().map(|attr| attr.ino), truth, "WALK-1: {path}");
                    }
                }
            });
        }
        let changers: Vec<_> = (0..3)
            .map(|changer| {
                scope.spawn(move || {
                    let mut random = Random::new(40 + changer);
                    let (vfs, ctx) = (&tree.vfs, &tree.ctx);
                    for round in 0..operations() / 8 {
                        let dir = format!("/d/dir{}", random.below(3));
                        let file = format!("{dir}/file{}", random.below(3));
                        settle(match random.below(9) {
                            0..2 => vfs.mkdir(ctx, &dir, 0o755).map(drop),
                            2..4 => vfs.create(ctx, &file, 0o644).map(drop),
                            4 => vfs.symlink(ctx, "stays", &file).map(drop),
                            5 => vfs.unlink(ctx, &file),
                            6 => vfs.rmdir(ctx, &dir),
                            n => {
                                let name = NAMES[4 + random.below(2)];
                                let to = format!("/d/dir{}/{name}", random.below(3));
                                match n {
                                    7 => vfs.rename(ctx, &file, to),
                                    _ => {
                                        let (from, to) = ((ctx.cwd(), &file), (ctx.cwd(), &to));
                                        vfs.renameat2(ctx, from, to, RenameFlags::EXCHANGE)
                                    }
                                }
                            }
                        });
                        if round % 1000 == 0 {
                            vfs.drop_caches();
                        }
                    }
                })
            })
            .collect();
        changers.into_iter().for_each(|one| one.join().unwrap());
        done.store(true, Release);
    });
    assert_eq!(tree.fs.len(), count(&tree, "/", 10), "no node leaked");
    for n in 0..3 {
        for file in NAMES {
            settle(tree.vfs.unlink(&tree.ctx, format!("/d/dir{n}/{file}")));
        }
        settle(tree.vfs.rmdir(&tree.ctx, format!("/d/dir{n}")));
    }
    assert_eq!(tree.fs.len(), nodes, "no node leaked");
    tree.vfs.drop_caches();
    let stats = tree.vfs.statistics();
    assert_eq!(stats.dentries, (0, 0), "LRU-1: all could go");
    assert_eq!(stats.inodes.0, 1, "LRU-1: the root");
    drop(tree);
    assert_nothing_waits();
}

/// INODE-4: the drop of the last handle to a tree drops all its inodes, and the back end's
/// private data with each.
#[test]
fn nothing_outlives_the_tree() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let alive = Arc::new(AtomicUsize::new(0));
    let fs = rcuwalk_testkit::Wrapped::new(common::Numbered::new(&alive));
    let vfs = rcuwalk::Vfs::with_budget(fs, small()).unwrap();
    let ctx = vfs.context(rcuwalk::Credentials::root());
    thread::scope(|scope| {
        for walker in 0..3 {
            let (vfs, ctx) = (&vfs, &ctx);
            scope.spawn(move || {
                let mut random = Random::new(50 + walker);
                for _ in 0..operations() / 16 {
                    let path = format!("/{}/{}", random.below(50), random.below(50));
                    let attr = vfs.stat(ctx, &path, FOLLOW).unwrap();
                    assert_eq!(attr.ino, common::Numbered::ino(&path), "INODE-1");
                }
            });
        }
    });
    rcu::barrier();
    let (inodes, _) = vfs.statistics().inodes;
    assert_eq!(
        alive.load(SeqCst),
        inodes,
        "INODE-4: what is cached is alive, no more"
    );
    drop((vfs, ctx));
    rcu::barrier();
    assert_eq!(alive.load(SeqCst), 0, "INODE-4: nothing is left");
    assert_nothing_waits();
}
