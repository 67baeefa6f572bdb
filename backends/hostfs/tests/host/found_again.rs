//! Directories that are in use while their descriptors have been given back.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::levels::{Crowded, Level, contents, on_each_level};
use crate::common::{AN_HOUR, skip};
use rcuwalk::{
    Budget, Context, Credentials, Error, Freshness, LookupFlags, OpenFlags, RenameFlags, Vfs,
};
use rcuwalk_hostfs::HostFs;
use rcuwalk_testkit::wait_until;

const FDS: usize = 8;

/// Asserts that at most one descriptor, in use by a call, is held beside the budget.
fn assert_within_budget(tree: &Crowded) {
    let held = tree.vfs.statistics().fds;
    assert!(held <= FDS + 1, "MEM-1: {held} descriptors");
    assert!(tree.counts.kept() <= FDS, "MEM-1: {:?}", tree.counts);
}

/// MEM-1: all directories of a tree are held, far more than there are descriptors, and
/// each is still the right one.
#[test]
fn more_directories_are_in_use_than_there_are_descriptors() {
    on_each_level(|level| {
        let tree = Crowded::new(FDS, AN_HOUR, |root| {
            for i in 0..30 {
                for k in 0..10 {
                    let dir = root.join(format!("{i}/{k}"));
                    fs::create_dir_all(&dir).unwrap();
                    fs::write(dir.join("file"), format!("{i} {k}")).unwrap();
                }
            }
        });
        let all: Vec<_> = (0..300)
            .map(|n| (n / 10, n % 10))
            .map(|(i, k)| (i, k, tree.find(&format!("/{i}/{k}"))))
            .collect();
        for round in 0..3 {
            for (i, k, dir) in &all {
                let found = tree.read_in(dir, "file");
                let found = found.unwrap_or_else(|err| panic!("{round}: /{i}/{k}: {err}"));
                assert_eq!(found, format!("{i} {k}"), "MEM-1: the right directory");
                assert_within_budget(&tree);
            }
        }
        let (by_handle, by_name) = (
            tree.counts.reopened_by_handle(),
            tree.counts.reopened_by_name(),
        );
        assert!(tree.counts.given_back() > 300);
        match level {
            Level::Handle => assert!(by_handle > 300 && by_name == 0, "{by_handle} {by_name}"),
            Level::Name => assert!(by_handle == 0 && by_name > 300, "{by_handle} {by_name}"),
        }
    });
}

/// MEM-1: it takes no stack, and no descriptor per level, to find a directory again that is
/// thousands of levels down.
#[test]
fn a_deep_directory_is_found_again() {
    const DEPTH: usize = 2500;
    on_each_level(|level| {
        let tree = Crowded::new(FDS, AN_HOUR, |_| {});
        let mut at = tree.find("/");
        for depth in 0..DEPTH {
            let ctx = tree.ctx.clone().with_cwd(at);
            tree.vfs.mkdir(&ctx, "d", 0o755).unwrap();
            at = tree.vfs.lookup(&ctx, "d", LookupFlags::DIRECTORY).unwrap();
            if depth == DEPTH - 1 {
                let ctx = tree.ctx.clone().with_cwd(at.clone());
                tree.vfs.create(&ctx, "file", 0o644).unwrap();
                let file = tree.vfs.open(&ctx, "file", OpenFlags::WRITE).unwrap();
                file.write_at(b"deep", 0).unwrap();
            }
        }
        tree.crowd();
        let before = tree.counts.reopened_by_name();
        assert_eq!(tree.read_in(&at, "file").unwrap(), "deep");
        assert_within_budget(&tree);
        if level == Level::Name {
            let opened = tree.counts.reopened_by_name() - before;
            assert!(opened as usize >= DEPTH, "{opened} were opened");
        }
        drop(at);
        tree.vfs.drop_caches();
        // std's removal holds a descriptor per level.
        let gone = Command::new("rm").arg("-rf").arg(tree.host("d")).status();
        assert!(gone.unwrap().success());
    });
}

/// HOST-1: a directory in the place of one without a descriptor is never taken for it, nor is
/// one outside of the root.
#[test]
fn another_directory_in_its_place_is_not_it() {
    on_each_level(|level| {
        let tree = Crowded::new(FDS, AN_HOUR, |root| {
            for dir in ["moved", "removed", "linked"] {
                fs::create_dir_all(root.join(dir).join("below")).unwrap();
                fs::write(root.join(dir).join("file"), dir).unwrap();
                fs::write(root.join(dir).join("below/file"), dir).unwrap();
            }
        });
        let find = |dir: &str| {
            let below = tree.find(&format!("{dir}/below"));
            (tree.find(dir), below)
        };
        let [moved, removed, linked] = ["/moved", "/removed", "/linked"].map(find);
        tree.crowd();
        fs::rename(tree.host("moved"), tree.host("elsewhere")).unwrap();
        fs::remove_dir_all(tree.host("removed")).unwrap();
        fs::rename(tree.host("linked"), tree.host("../outside/linked")).unwrap();
        for dir in ["moved", "removed"] {
            fs::create_dir_all(tree.host(dir).join("below")).unwrap();
            fs::write(tree.host(dir).join("file"), "wrong").unwrap();
            fs::write(tree.host(dir).join("below/file"), "wrong").unwrap();
        }
        std::os::unix::fs::symlink("../outside/linked", tree.host("linked")).unwrap();

        let stale = |dir, what| {
            let read = tree.read_in(dir, "file");
            assert!(
                matches!(read, Err(Error::Stale)),
                "HOST-1: {what}: {read:?}"
            );
        };
        for (dir, what) in [(&removed.0, "removed"), (&removed.1, "below removed")] {
            stale(dir, what);
        }
        for (dirs, what) in [(&moved, "moved"), (&linked, "linked")] {
            for dir in [&dirs.0, &dirs.1] {
                match level {
                    // As a descriptor would have it.
                    Level::Handle => assert_eq!(tree.read_in(dir, "file").unwrap(), what),
                    Level::Name => stale(dir, what),
                }
            }
        }
        // After a lookup at its new path, its earlier holders can use it again.
        let now = tree.find("/elsewhere");
        assert_eq!(now.attr().ino, moved.0.attr().ino);
        tree.crowd();
        assert_eq!(tree.read_in(&moved.0, "file").unwrap(), "moved");
        assert_eq!(tree.read_in(&moved.1, "file").unwrap(), "moved");
        // The other directories have their names now.
        for path in ["/moved", "/removed"] {
            tree.vfs.invalidate(&tree.ctx, path).unwrap();
            let dir = tree.find(path);
            assert_eq!(tree.read_in(&dir, "file").unwrap(), "wrong");
        }
    });
}

/// EDGE-1: a directory that was found at another path in between, and is back, is looked up by
/// name after `ESTALE`, however long its name would have been valid.
#[test]
fn a_directory_that_is_back_is_found_there() {
    on_each_level(|_| {
        let tree = Crowded::new(FDS, AN_HOUR, |root| {
            fs::create_dir_all(root.join("a/x")).unwrap();
            fs::create_dir(root.join("b")).unwrap();
            fs::write(root.join("a/x/file"), "x").unwrap();
        });
        let held = tree.find("/a/x");
        fs::rename(tree.host("a/x"), tree.host("b/y")).unwrap();
        assert_eq!(tree.find("/b/y").attr().ino, held.attr().ino);
        fs::rename(tree.host("b/y"), tree.host("a/x")).unwrap();
        tree.crowd();
        // As the kernel does that has it as a node.
        let read = tree.read_in(&held, "file").or_else(|err| {
            assert!(matches!(err, Error::Stale), "{err}");
            let in_a = tree.ctx.clone().with_cwd(tree.find("/a"));
            let again = tree.vfs.lookup(&in_a, "x", LookupFlags::DIRECTORY)?;
            tree.read_in(&again, "file")
        });
        assert_eq!(read.unwrap(), "x", "EDGE-1");
    });
}

/// HOST-1: a directory that has got the inode number of another, and was born in the same tick
/// of the clock, is told apart by its file handle, and then found as itself.
#[test]
fn a_number_given_away_at_once_is_told_apart() {
    on_each_level(|_| {
        let tree = Crowded::new(FDS, Freshness::EachUse, |_| {});
        for round in 0..50 {
            let path = format!("/d{round}");
            let host = tree.host(&path[1..]);
            fs::create_dir(&host).unwrap();
            let held = tree.find(&path);
            tree.crowd();
            fs::remove_dir(&host).unwrap();
            fs::create_dir(&host).unwrap();
            fs::write(host.join("file"), "new").unwrap();
            let read = tree.read_in(&held, "file");
            assert!(
                matches!(read, Err(Error::Stale | Error::NotFound)),
                "HOST-1: {read:?}"
            );
            let now = tree.find(&path);
            assert_eq!(tree.read_in(&now, "file").unwrap(), "new", "HOST-1");
        }
    });
}

/// EDGE-1: a directory that has been moved through the VFS is found at its new path, and so are
/// the directories below it.
#[test]
fn renames_are_followed() {
    on_each_level(|_| {
        let tree = Crowded::new(FDS, AN_HOUR, |root| {
            for dir in ["a/b/c", "e/f", "to/x"] {
                fs::create_dir_all(root.join(dir)).unwrap();
                fs::write(root.join(dir).join("file"), dir).unwrap();
            }
        });
        let (c, f) = (tree.find("/a/b/c"), tree.find("/e/f"));
        let still = |when: &str| {
            tree.crowd();
            assert_eq!(tree.read_in(&c, "file").unwrap(), "a/b/c", "{when}");
            assert_eq!(tree.read_in(&f, "file").unwrap(), "e/f", "{when}");
            tree.crowd();
        };
        let rename = |from: &str, to: &str| tree.vfs.rename(&tree.ctx, from, to).unwrap();
        still("at first");
        rename("/a", "/to/a");
        still("a directory further up was moved");
        rename("/to/a/b", "/b");
        still("and one between");
        let (ctx, exchange) = (&tree.ctx, RenameFlags::EXCHANGE);
        let root = tree.vfs.root();
        let done = tree
            .vfs
            .renameat2(ctx, (&root, "b"), (&root, "e"), exchange);
        done.unwrap();
        still("and two were exchanged");
        assert_eq!(fs::read(tree.host("e/c/file")).unwrap(), b"a/b/c");
        assert_eq!(fs::read(tree.host("b/f/file")).unwrap(), b"e/f");
        rename("/b/f", "/e/c/f");
        rename("/e/c", "/to/x/c");
        still("and one went into the other");
    });
}

/// EDGE-1: a removed directory stays usable for a process in it, and for one that has it open
/// with `PATH` when another process removes it.
#[test]
fn a_removed_directory_is_kept_while_it_is_in_use() {
    on_each_level(|_| {
        let tree = Crowded::new(FDS, Freshness::EachUse, |root| {
            for dir in ["a", "b", "c"] {
                fs::create_dir(root.join(dir)).unwrap();
            }
        });
        let a = tree.ctx.clone().with_cwd(tree.find("/a"));
        let c = tree.vfs.open(&tree.ctx, "/c", OpenFlags::PATH).unwrap();
        let in_c = tree.ctx.clone().with_cwd(tree.find("/c"));
        let before = tree.vfs.statistics().fds;
        tree.vfs.rmdir(&tree.ctx, "/a").unwrap();
        tree.crowd();
        fs::remove_dir(tree.host("c")).unwrap();
        for ctx in [&a, &in_c] {
            let stat = tree.vfs.stat(ctx, ".", LookupFlags::empty()).unwrap();
            assert_eq!(stat.nlink, 0, "EDGE-1");
        }
        drop((a, c, in_c));
        tree.crowd();
        let after = tree.vfs.statistics().fds;
        assert!(after <= before.max(FDS), "MEM-1: {after} descriptors");
    });
}

/// LOCK-1: directories that the host has put into one another, the other way round than they
/// were, do not wait for each other, and are found.
#[test]
fn records_do_not_point_in_a_circle() {
    on_each_level(|_| {
        let tree = Crowded::new(FDS, AN_HOUR, |root| {
            fs::create_dir_all(root.join("a/b/c")).unwrap();
            fs::write(root.join("a/b/file"), "b").unwrap();
            fs::write(root.join("a/file"), "a").unwrap();
            fs::write(root.join("a/b/c/file"), "c").unwrap();
        });
        let [a, b, c] = ["/a", "/a/b", "/a/b/c"].map(|path| tree.find(path));
        tree.crowd();
        fs::rename(tree.host("a/b"), tree.host("b")).unwrap();
        fs::rename(tree.host("a"), tree.host("b/a")).unwrap();
        // From its cached path below `a`, while it has a descriptor.
        tree.find("/b");
        let in_b = tree.ctx.clone().with_cwd(b.clone());
        assert!(tree.vfs.lookup(&in_b, "a", LookupFlags::DIRECTORY).is_ok());
        tree.crowd();
        for (dir, what) in [(&a, "a"), (&b, "b"), (&c, "c")] {
            assert_eq!(tree.read_in(dir, "file").unwrap(), what);
            tree.crowd();
        }
    });
}

/// Mounts `root`, watched, with next to no descriptors; or skips the test.
fn watched(root: &Path) -> Option<(Vfs, Context)> {
    let host = HostFs::new(root).unwrap().watched();
    let host = host.inspect_err(|err| skip(&err.to_string())).ok()?;
    let budget = Budget::default().fds(FDS);
    let vfs = Vfs::with_budget(host, budget).unwrap();
    let ctx = vfs.context(Credentials::root());
    Some((vfs, ctx))
}

/// FRESH-1: reports about directories without a descriptor count.
#[test]
fn changes_are_heard_of_without_a_descriptor() {
    on_each_level(|_| {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..40 {
            fs::create_dir(dir.path().join(i.to_string())).unwrap();
            fs::write(dir.path().join(format!("{i}/file")), "old").unwrap();
        }
        let Some((vfs, ctx)) = watched(dir.path()) else {
            return;
        };
        let size = |i| {
            let path = format!("/{i}/file");
            vfs.stat(&ctx, path, LookupFlags::empty())
                .map(|attr| attr.size)
        };
        let missing = |i| vfs.stat(&ctx, format!("/{i}/new"), LookupFlags::empty());
        for i in 0..40 {
            assert_eq!(size(i).unwrap(), 3);
            assert!(missing(i).is_err());
        }
        for i in 0..40 {
            fs::write(dir.path().join(format!("{i}/file")), "longer").unwrap();
            fs::write(dir.path().join(format!("{i}/new")), "").unwrap();
        }
        for i in 0..40 {
            wait_until("FRESH-1: it is heard of", || {
                size(i).unwrap() == 6 && missing(i).is_ok()
            });
        }
        let file = vfs.open(&ctx, "/7/file", OpenFlags::READ).unwrap();
        assert_eq!(contents(&file).unwrap(), "longer");
        assert!(vfs.statistics().fds <= FDS + 2, "MEM-1");
    });
}

/// FRESH-1: changes reported while a directory is moved away, and has no descriptor, show when
/// it is back.
#[test]
fn changes_are_heard_of_while_a_directory_is_elsewhere() {
    on_each_level(|_| {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        for i in 0..40 {
            fs::create_dir_all(root.join(format!("crowd/{i}"))).unwrap();
        }
        fs::create_dir_all(root.join("p/c")).unwrap();
        fs::create_dir(root.join("x")).unwrap();
        fs::write(root.join("x/file"), "old").unwrap();
        let Some((vfs, ctx)) = watched(&root) else {
            return;
        };
        let stat = |path: &str| vfs.stat(&ctx, path, LookupFlags::empty());
        let _held = vfs.lookup(&ctx, "/p/c", LookupFlags::DIRECTORY).unwrap();
        assert_eq!(stat("/x/file").unwrap().nlink, 1);
        let time = |ms| std::thread::sleep(std::time::Duration::from_millis(ms));
        // Until all reports about the files made above have been read.
        time(100);
        for i in 0..80 {
            assert!(stat(&format!("/crowd/{}/none", i % 40)).is_err());
        }
        fs::rename(root.join("p"), &outside).unwrap();
        time(20); // The host's clock ticks.
        fs::hard_link(root.join("x/file"), outside.join("c/second")).unwrap();
        time(300);
        fs::rename(&outside, root.join("p")).unwrap();
        let made = fs::metadata(root.join("p/c")).unwrap().modified().unwrap();
        let made = made.duration_since(std::time::UNIX_EPOCH).unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let (file, c) = (stat("/x/file"), stat("/p/c"));
            let shows = file.as_ref().is_ok_and(|file| file.nlink == 2)
                && c.as_ref().is_ok_and(|c| {
                    (c.mtime.sec, c.mtime.nsec) == (made.as_secs() as i64, made.subsec_nanos())
                });
            if shows {
                break;
            }
            let now = std::time::Instant::now();
            assert!(now < end, "FRESH-1: {made:?}: {file:?} {c:?}");
            time(2);
        }
    });
}

/// HANDLE-1: tmpfs gives no inode number twice. So the time of birth is the generation there: the
/// host is not asked for a handle, and each daemon tells the same.
#[test]
fn a_generation_costs_no_question_where_numbers_are_not_reused() {
    const TMPFS: i64 = 0x0102_1994;
    let is_tmpfs = rustix::fs::statfs("/dev/shm").is_ok_and(|told| told.f_type == TMPFS);
    if !is_tmpfs {
        return skip("needs a tmpfs on /dev/shm");
    }
    let source = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = source.path().join("file");
    let daemon = || {
        let host = HostFs::new(source.path()).unwrap();
        Vfs::new(host.with_freshness(Freshness::EachUse)).unwrap()
    };
    let find = |vfs: &Vfs| {
        let ctx = vfs.context(Credentials::root());
        vfs.lookup(&ctx, "/file", LookupFlags::FOLLOW).unwrap()
    };
    let (one, other) = (daemon(), daemon());
    let mut numbers = HashSet::new();
    for _ in 0..50 {
        fs::write(&path, "").unwrap();
        let found = find(&one);
        let generation = found.generation().unwrap();
        assert!(generation.is_some(), "HANDLE-1");
        assert_eq!(find(&other).generation().unwrap(), generation, "HANDLE-1");
        fs::remove_file(&path).unwrap();
        // The host cannot be asked about this name any more.
        assert_eq!(found.generation().unwrap(), generation, "HANDLE-1");
        assert!(numbers.insert(found.attr().ino), "HANDLE-1: a number again");
    }
}
