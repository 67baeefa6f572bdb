//! The rights and limits of an RCU-walk.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::thread;

use crate::common::{FOLLOW, REF, Tree, grow};
use rcuwalk::{Access, Context, Credentials, Error, LookupFlags, MountFlags, Vfs};
use rcuwalk_sync::atomic::stores_by_this_thread;

/// How many stores to shared memory `walk` makes.
fn stores<R>(walk: impl FnOnce() -> R) -> u64 {
    let before = stores_by_this_thread();
    walk();
    stores_by_this_thread() - before
}

/// A path through `stat` and `access`, as a hit for the third time.
fn stores_of_hits(vfs: &Vfs, ctx: &Context, path: &str, flags: LookupFlags) -> u64 {
    let both = || {
        let stat = vfs.stat(ctx, path, flags).map(|attr| attr.ino);
        let access = vfs.access(ctx, path, Access::empty(), flags);
        assert_eq!(stat.is_ok(), access.is_ok(), "{path}");
    };
    both();
    both();
    stores(both)
}

/// WALK-2: a cached path is walked without a store, whatever is on the way.
#[test]
fn a_hit_stores_nothing() {
    let long = "a-name-that-is-longer-than-the-words-of-a-dentry";
    let tree = Tree::new(&format!(
        "a/ a/b/ a/b/c/ a/b/c/file a/{long}/ a/{long}/{long} a/sixteen-letters/ \
         a/name-of-24-letters-xxxx rel->b abs->/a/b a/twice->../once once->a/b dots->a/b/../b/c \
         slash->a/b/ mnt/ a/private/ a/private/file"
    ));
    tree.vfs
        .mount(&tree.ctx, "/mnt", grow("in/ in/file up->../a"))
        .unwrap();
    tree.vfs.chmod(&tree.ctx, "/a/private", 0o700).unwrap();
    let inside = tree.ctx.clone().with_cwd(tree.hold("/a/b"));
    let paths = [
        "/",
        "/a",
        "/a/",
        "//a///b//c",
        "/a/b/c/file",
        "/a/./b/../b/./c/..",
        "/..",
        "/../a/b",
        "/abs",
        "/abs/c/file",
        "/once/c",
        "/a/twice/c/file",
        "/dots/file",
        "/slash/c",
        "/mnt",
        "/mnt/in/file",
        "/mnt/..",
        "/mnt/in/../..",
        "/mnt/up",
        "/mnt/../a/b/c",
        "/a/private/file",
        "/missing",
        "/a/b/missing",
        "/missing/below",
        "/rel/missing",
        "/mnt/missing",
        "/a/sixteen-letters",
        "/a/sixteen-letters/..",
        "/a/name-of-24-letters-xxxx",
        "/a/name-of-24-letters-none",
    ];
    let relative = [
        "c", "c/file", ".", "..", "../b/c", "../../..", "../..", "missing", "./c/",
    ];
    for flags in [FOLLOW, LookupFlags::empty(), FOLLOW | LookupFlags::CACHED] {
        // Once without CACHED, which fills nothing.
        let all = paths.iter().map(|path| (&tree.ctx, *path));
        let all = all.chain(relative.iter().map(|path| (&inside, *path)));
        for (ctx, path) in all {
            let walks = stores_of_hits(&tree.vfs, ctx, path, flags);
            assert_eq!(walks, 0, "WALK-2: {path} {flags:?}");
        }
        for path in [format!("/a/{long}/{long}"), format!("/a/{long}/not-{long}")] {
            let walks = stores_of_hits(&tree.vfs, &tree.ctx, &path, flags);
            assert_eq!(walks, 0, "WALK-2: {path} {flags:?}");
        }
    }
    let before = tree.vfs.statistics();
    paths.iter().for_each(|path| _ = tree.stat(path));
    let after = tree.vfs.statistics();
    let hits = after.hits + after.negative_hits - before.hits - before.negative_hits;
    assert_eq!(hits, paths.len() as u64, "WALK-2: these are hits");
    assert_eq!(after.ref_walks, before.ref_walks, "WALK-2: and no others");
}

/// WALK-2: the counting shim counts: a reference, a miss, an answer by reference.
#[test]
fn what_is_no_hit_stores() {
    if !cfg!(debug_assertions) {
        return; // Release builds do not count.
    }
    let tree = Tree::new("a/ a/b link->a");
    assert!(stores(|| tree.stat("/a/b")) > 0, "a miss");
    assert_eq!(stores(|| tree.stat("/a/b")), 0, "WALK-2: a hit");
    assert!(
        stores(|| tree.stat("/a/c")) > 0,
        "a miss of what is missing"
    );
    assert_eq!(stores(|| tree.stat("/a/c")), 0, "WALK-2: a negative hit");
    assert!(stores(|| tree.hold("/a/b")) > 0, "a reference");
    let by_reference = || tree.vfs.stat(&tree.ctx, "/a/b", REF);
    assert!(stores(by_reference) > 0, "a walk with references");
    tree.vfs.drop_caches();
    assert!(stores(|| tree.stat("/a/b")) > 0, "a miss once more");
}

/// WALK-1, WALK-2: an error that follows from what is cached is decided without a store, and is
/// the one that a walk with references finds.
#[test]
fn a_refusal_stores_nothing() {
    let tree = Tree::new(
        "a/ a/file private/ private/in/ tmp/ file into->private/ to->file loop->loop \
         below->private/in on->a/../to hop->on tmp/planted->../file tmp/up->..",
    );
    let long = "n".repeat(256);
    let set = |path: &str, mode, uid| {
        let inode = tree.hold(path).inode_ref();
        let attr = inode.attr();
        inode.set_attr(&attr.mode(mode).uid(uid));
        tree.vfs.chmod(&tree.ctx, path, mode).unwrap();
    };
    set("/private", 0o700, 0);
    set("/tmp", 0o1777, 2);
    let protected = MountFlags::PROTECTED_LINKS;
    tree.vfs.remount(&tree.ctx, "/", protected).unwrap();
    let user = tree.vfs.context(Credentials::user(1, 1));
    let starts = [
        "private",
        "into",
        "below",
        "file",
        "to",
        "hop",
        "loop",
        "tmp/up",
        "tmp/planted",
        &long,
        "a/../private",
        "a/none",
        "private/in",
    ];
    let ends = [
        "",
        "/",
        "//",
        "/.",
        "/..",
        "/../a/file",
        "/x",
        "/in",
        "/./x/",
        &format!("/{long}"),
    ];
    let mut refused = BTreeMap::new();
    for (start, end) in starts.iter().flat_map(|start| ends.map(|end| (start, end))) {
        let path = format!("/{start}{end}");
        for flags in [
            FOLLOW,
            LookupFlags::empty(),
            FOLLOW | LookupFlags::DIRECTORY,
        ] {
            let stat = |flags| {
                let stat = tree.vfs.stat(&user, &path, flags);
                stat.map(|attr| attr.ino).map_err(|err| err.errno())
            };
            let by_reference = stat(flags | LookupFlags::REF_WALK);
            // The first one fills the cache.
            assert_eq!(stat(flags), by_reference, "WALK-1: {path} {flags:?}");
            let before = tree.vfs.statistics();
            let stored = stores(|| {
                assert_eq!(stat(flags), by_reference, "WALK-1: {path} {flags:?}");
            });
            assert_eq!(stored, 0, "WALK-2: {path} {flags:?}");
            let after = tree.vfs.statistics();
            assert_eq!(after.ref_walks, before.ref_walks, "WALK-2: {path}");
            let cached = stat(flags | LookupFlags::CACHED);
            assert_eq!(cached, by_reference, "WALK-1: {path}");
            if after.refused > before.refused {
                *refused.entry(cached.unwrap_err()).or_insert(0) += 1;
            }
        }
    }
    let kinds: Vec<i32> = refused.keys().copied().collect();
    let mut all = [libc::EACCES, libc::ENOTDIR, libc::ENAMETOOLONG, libc::ELOOP];
    all.sort_unstable();
    assert_eq!(kinds, all, "WALK-1: each kind, {refused:?}");
}

/// WALK-2: the 205 paths of a compiler and a linker store nothing, for every user.
#[test]
fn the_paths_of_a_build_store_nothing() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/data/gcc-ld");
    let read = |file| fs::read_to_string(data.join(file)).unwrap();
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.is_empty());
        let lines = lines.filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    };
    // "kind mode uid gid path [-> target]", as the benchmark has it.
    let entries = lines(&read("tree.txt")).into_iter().map(|line| {
        let mut words = line.splitn(5, ' ');
        let kind = words.next().unwrap().to_owned();
        let path = words.nth(3).unwrap().replace(" -> ", "->");
        if kind == "dir" { path + "/" } else { path }
    });
    let vfs = Vfs::new(grow(&entries.collect::<Vec<_>>().join(" "))).unwrap();
    let ctx = vfs.context(Credentials::user(1000, 1000));
    let paths = lines(&read("paths.txt"));
    assert_eq!(paths.len(), 205);
    let walk_all = || {
        let there = |path: &&String| vfs.access(&ctx, path, Access::empty(), FOLLOW).is_ok();
        paths.iter().filter(there).count()
    };
    assert_eq!(paths.len() - walk_all(), 118, "so many are missing");
    walk_all();
    assert_eq!(stores(walk_all), 0, "WALK-2");
    thread::scope(|scope| {
        scope.spawn(|| {
            walk_all();
            assert_eq!(stores(walk_all), 0, "WALK-2: in another thread");
        });
    });
}

/// WALK-1: a change of a directory's permissions holds from the next walk on.
#[test]
fn a_chmod_takes_effect_at_once() {
    let tree = Tree::new("a/ a/b/ a/b/file link->a/b/file");
    let user = tree.vfs.context(Credentials::user(1, 1));
    let paths = ["/a/b/file", "/a/b/../b/file", "/link", "/a/b/missing"];
    for _ in 0..3 {
        for path in paths {
            for _ in 0..2 {
                let seen = tree.vfs.stat(&user, path, FOLLOW).map(|_| ());
                assert_eq!(seen.is_ok(), path != "/a/b/missing", "WALK-1: {path}");
            }
        }
        for mode in [0o700, 0o644, 0o766] {
            tree.vfs.chmod(&tree.ctx, "/a/b", mode).unwrap();
            for path in paths {
                for flags in [FOLLOW, REF, FOLLOW] {
                    let seen = tree.vfs.stat(&user, path, flags);
                    assert!(
                        matches!(seen, Err(Error::PermissionDenied)),
                        "WALK-1: {path} with {mode:o}: {seen:?}"
                    );
                    let owner = tree.vfs.stat(&tree.ctx, path, flags);
                    assert_eq!(owner.is_ok(), path != "/a/b/missing", "WALK-1: {path}");
                }
            }
        }
        tree.vfs.chmod(&tree.ctx, "/a/b", 0o711).unwrap();
    }
    let refused = tree.vfs.chmod(&user, "/a", 0o777);
    assert!(matches!(refused, Err(Error::NotPermitted)), "EDGE-1");
}

/// WALK-1: once a chmod has returned no walk that starts later passes, in any thread.
#[test]
fn no_walk_passes_after_a_chmod() {
    let tree = Tree::new("a/ a/file");
    let user = tree.vfs.context(Credentials::user(1, 1));
    // Odd: closed, and no thread is about to change that.
    let (phase, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (tree, user, phase, done) = (&tree, &user, &phase, &done);
        for flags in [FOLLOW, REF] {
            scope.spawn(move || {
                while !done.load(SeqCst) {
                    let before = phase.load(SeqCst);
                    let seen = tree.vfs.stat(user, "/a/file", flags);
                    let closed = before % 2 == 1 && phase.load(SeqCst) == before;
                    match seen {
                        Err(Error::PermissionDenied) => {}
                        Ok(_) => assert!(!closed, "WALK-1"),
                        Err(err) => panic!("{err}"),
                    }
                }
            });
        }
        for _ in 0..5_000 {
            tree.vfs.chmod(&tree.ctx, "/a", 0o700).unwrap();
            phase.fetch_add(1, SeqCst);
            thread::yield_now();
            phase.fetch_add(1, SeqCst);
            tree.vfs.chmod(&tree.ctx, "/a", 0o755).unwrap();
        }
        done.store(true, SeqCst);
    });
}

/// WALK-1: CACHED answers whatever an RCU-walk can answer, and blocks for nothing.
#[test]
fn cached_only_never_asks() {
    let tree = Tree::new("a/ a/file");
    let cached = |path: &str| tree.vfs.stat(&tree.ctx, path, FOLLOW | LookupFlags::CACHED);
    assert!(matches!(cached("/a/file"), Err(Error::WouldBlock)));
    assert!(matches!(cached("/a/file"), Err(Error::WouldBlock)));
    let ino = tree.ino("/a/file").unwrap();
    assert_eq!(cached("/a/file").unwrap().ino, ino);
    tree.vfs.invalidate(&tree.ctx, "/a/file").unwrap();
    assert!(matches!(cached("/a/file"), Err(Error::WouldBlock)));
}
