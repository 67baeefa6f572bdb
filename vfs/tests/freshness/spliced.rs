//! Directories that move behind the cache's back, and are found by their new names.

use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::{Context, Error, LookupFlags, RenameFlags, VfsPath};

use super::common::FOLLOW;
use super::watched_support::{NONE, ROOT, Tree, dir, file};

const A: u64 = 2;
const B: u64 = 3;
const SUB: u64 = 4;
const FILE: u64 = 5;

/// `/a/sub/file`, and `/b`; all of it cached.
fn tree() -> Tree {
    let tree = Tree::new(&[
        (ROOT, "a", dir(A)),
        (ROOT, "b", dir(B)),
        (A, "sub", dir(SUB)),
        (SUB, "file", file(FILE)),
    ]);
    assert_eq!((tree.ino("/a/sub/file"), tree.ino("/b")), (FILE, B));
    tree
}

fn hold(tree: &Tree, path: &str) -> VfsPath {
    tree.vfs.lookup(&tree.ctx, path, FOLLOW).unwrap()
}

fn path_of(tree: &Tree, place: &VfsPath) -> String {
    match tree.vfs.path_of(&tree.ctx, place) {
        Ok(path) => String::from_utf8(path.into()).unwrap(),
        Err(err) => format!("{err:?}"),
    }
}

fn names(tree: &Tree) -> usize {
    tree.vfs.statistics().dentries.0
}

/// DENTRY-5: the dentry moves, with its children, and its holders have the new path; whether or
/// not the old name was asked about before.
#[test]
fn a_directory_found_by_another_name_is_spliced() {
    let long = "a name that is longer than three words of a dentry";
    for (new_dir, new_name) in [(B, "x"), (B, long), (ROOT, "x"), (ROOT, long)] {
        for asks_old_name in [false, true] {
            let tree = tree();
            let (moved, below) = (hold(&tree, "/a"), hold(&tree, "/a/sub"));
            let before = names(&tree);
            tree.host.set(ROOT, "a", None);
            tree.host.set(new_dir, new_name, Some(dir(A)));
            let new = match new_dir {
                ROOT => format!("/{new_name}"),
                _ => format!("/b/{new_name}"),
            };
            if asks_old_name {
                tree.host.report(ROOT);
                assert_eq!(tree.ino("/a"), NONE, "DENTRY-5");
                assert!(!moved.is_named(), "DENTRY-5: the old name is gone");
                assert_eq!(tree.ino("/b"), B);
            }
            let asked = tree.asked(|| assert_eq!(tree.ino(&format!("{new}/sub/file")), FILE));
            assert_eq!(asked, 1, "DENTRY-5: {new}: what is below is cached");
            assert!(hold(&tree, &new).is_same_place(&moved), "DENTRY-5: {new}");
            assert_eq!(path_of(&tree, &moved), new, "DENTRY-5");
            assert_eq!(path_of(&tree, &below), format!("{new}/sub"), "DENTRY-5");
            assert!(moved.is_named() && below.is_named(), "DENTRY-5");
            // Without a second one of it; the missing old name has one of its own.
            assert_eq!(names(&tree), before + usize::from(asks_old_name));
            let within = tree.ctx.clone().with_cwd(below);
            let up = tree.vfs.stat(&within, "..", FOLLOW).unwrap();
            assert_eq!(up.ino, A, "DENTRY-5");
            assert_eq!(tree.ino("/a/sub"), NONE, "DENTRY-5: {new}");
            // And all of it is given back.
            drop((moved, within));
            tree.vfs.drop_caches();
            assert_eq!(names(&tree), 0, "DENTRY-5: {new}");
            assert_eq!(tree.ino(&format!("{new}/sub/file")), FILE);
        }
    }
}

/// DENTRY-5: changes find it as well, in either of the directories that they lock.
#[test]
fn a_change_splices_what_it_finds() {
    let rename = |tree: &Tree, old: &str, new: &str| {
        let old = (tree.ctx.cwd(), old);
        let flags = RenameFlags::empty();
        tree.vfs
            .renameat2(&tree.ctx, old, (tree.ctx.cwd(), new), flags)
    };
    // From its new directory back to the old one, and within the new one.
    for (to, above) in [("/a2", ROOT), ("/b/y", B)] {
        let tree = tree();
        let moved = hold(&tree, "/a");
        tree.host.set(ROOT, "a", None);
        tree.host.set(B, "x", Some(dir(A)));
        rename(&tree, "/b/x", to).unwrap();
        assert_eq!(path_of(&tree, &moved), to, "DENTRY-5");
        let (_, name) = to.rsplit_once('/').unwrap();
        assert!(tree.host.has(above, name), "DENTRY-5");
        assert!(hold(&tree, to).is_same_place(&moved), "DENTRY-5");
        assert_eq!(tree.ino(&format!("{to}/sub/file")), FILE, "DENTRY-5");
    }
    let tree = tree();
    let moved = hold(&tree, "/a");
    tree.host.set(ROOT, "a", None);
    tree.host.set(B, "x", Some(dir(A)));
    let exists = tree.vfs.mkdir(&tree.ctx, "/b/x", 0o755);
    assert!(matches!(exists, Err(Error::Exists)), "{exists:?}");
    assert_eq!(path_of(&tree, &moved), "/b/x", "DENTRY-5");
}

/// DENTRY-5: a back end that shows a directory below itself is not followed there.
#[test]
fn a_directory_below_itself_is_a_loop() {
    let is_loop = |found: rcuwalk::Result<()>, what: &str| {
        let refused = matches!(found, Err(Error::TooManySymlinks));
        assert!(refused, "DENTRY-5: {what}: {found:?}");
    };
    let tree = tree();
    tree.host.set(SUB, "above", Some(dir(A)));
    tree.host.set(SUB, "itself", Some(dir(SUB)));
    tree.host.set(SUB, "root", Some(dir(ROOT)));
    for name in ["above", "itself", "root"] {
        let path = format!("/a/sub/{name}");
        for flags in [FOLLOW, FOLLOW | LookupFlags::REF_WALK] {
            let found = tree.vfs.stat(&tree.ctx, &path, flags);
            is_loop(found.map(drop), &path);
            let found = tree.vfs.stat(&tree.ctx, format!("{path}/sub"), flags);
            is_loop(found.map(drop), &path);
        }
        is_loop(tree.vfs.mkdir(&tree.ctx, &path, 0o755).map(drop), &path);
        is_loop(tree.vfs.rmdir(&tree.ctx, &path), &path);
        is_loop(tree.vfs.rename(&tree.ctx, &path, "/b/x"), &path);
    }
    let sub = hold(&tree, "/a/sub");
    assert_eq!(path_of(&tree, &sub), "/a/sub", "DENTRY-5");
    assert_eq!(tree.ino("/a/sub/file"), FILE, "DENTRY-5");
}

/// `/a/b/c` becomes `/b/a`, with `c` in `b` as before. Returns a context in `b`.
fn change_places() -> (Tree, Context) {
    let tree = Tree::new(&[
        (ROOT, "a", dir(A)),
        (A, "b", dir(B)),
        (B, "c", dir(SUB)),
        (SUB, "file", file(FILE)),
    ]);
    assert_eq!(tree.ino("/a/b/c/file"), FILE);
    let within = tree.ctx.clone().with_cwd(hold(&tree, "/a/b"));
    tree.host.set(ROOT, "a", None);
    tree.host.set(A, "b", None);
    tree.host.set(ROOT, "b", Some(dir(B)));
    tree.host.set(B, "a", Some(dir(A)));
    (tree, within)
}

/// DENTRY-5: it is the cache that is outdated, and not the back end that is broken, where a
/// directory and one above it have changed places.
#[test]
fn directories_that_change_places_are_no_loop() {
    // From the top: each is found in its new place.
    let (tree, _within) = change_places();
    let a = hold(&tree, "/a");
    assert_eq!(tree.ino("/b/a"), A, "DENTRY-5");
    assert_eq!(path_of(&tree, &a), "/b/a", "DENTRY-5");
    assert_eq!(tree.ino("/b/c/file"), FILE, "DENTRY-5");
    assert_eq!(tree.ino("/a"), NONE, "DENTRY-5");

    // From below, where the cached names above are still valid.
    let (tree, within) = change_places();
    let a = hold(&tree, "/a");
    assert_eq!(tree.vfs.stat(&within, "a", FOLLOW).unwrap().ino, A);
    assert_eq!(tree.vfs.stat(&within, "c/file", FOLLOW).unwrap().ino, FILE);
    // The place of `b` is not known yet.
    let up = tree.vfs.stat(&within, "..", FOLLOW);
    assert!(matches!(up, Err(Error::Stale)), "DENTRY-5: {up:?}");
    assert_eq!(tree.ino("/b/a"), A, "DENTRY-5");
    assert_eq!(path_of(&tree, &a), "/b/a", "DENTRY-5");
    assert_eq!(path_of(&tree, within.cwd()), "/b", "DENTRY-5");
    assert_eq!(tree.vfs.stat(&within, "..", FOLLOW).unwrap().ino, ROOT);

    // By a change.
    let (tree, within) = change_places();
    tree.vfs.rename(&within, "a", "z").unwrap();
    assert_eq!(tree.ino("/b/z"), A, "DENTRY-5");
}

/// Does something in another thread that must end although a call of the back end is stuck.
fn ends<T: Send + 'static>(tree: &Tree, what: impl FnOnce(&Tree) -> T + Send + 'static) -> T {
    let thread = thread::spawn({
        let tree = tree.clone();
        move || what(&tree)
    });
    let limit = Instant::now() + Duration::from_secs(60);
    while !thread.is_finished() {
        assert!(
            Instant::now() < limit,
            "LOCK-1: it waits for the stuck call"
        );
        thread::sleep(Duration::from_millis(1));
    }
    thread.join().unwrap()
}

const X: u64 = 10;
const C: u64 = 11;
const MOVED: u64 = 12;

/// `/a/x` and `/a/moved`, `/b/sub`, `/c/y` and `/c/z`; all of it cached.
fn wide_tree() -> Tree {
    let tree = Tree::new(&[
        (ROOT, "a", dir(A)),
        (A, "x", dir(X)),
        (A, "moved", dir(MOVED)),
        (ROOT, "b", dir(B)),
        (B, "sub", dir(SUB)),
        (ROOT, "c", dir(C)),
        (C, "y", dir(13)),
        (C, "z", dir(14)),
    ]);
    for path in ["/a/x", "/a/moved", "/b/sub", "/c/y", "/c/z"] {
        assert_ne!(tree.ino(path), NONE);
    }
    tree
}

/// LOCK-1: a removal that the back end does not answer stops what needs one of the directories
/// that it has locked, and nothing else.
#[test]
fn a_stuck_removal_stops_no_lookup_and_no_change_elsewhere() {
    let tree = wide_tree();
    tree.host.stick(A);
    let (of_x, of_a) = thread::scope(|scope| {
        let of_x = scope.spawn(|| tree.vfs.rmdir(&tree.ctx, "/a/x"));
        tree.host.wait_for_stuck(1);
        // Waits for `/a`, which the other thread has locked.
        let of_a = scope.spawn(|| tree.vfs.rmdir(&tree.ctx, "/a"));
        // Another process moves two directories, of which one was in the locked one.
        tree.host.set(B, "sub", None);
        tree.host.set(C, "sub", Some(dir(SUB)));
        tree.host.set(A, "moved", None);
        tree.host.set(C, "moved", Some(dir(MOVED)));
        assert_eq!(ends(&tree, |tree| tree.ino("/c/sub")), SUB, "DENTRY-5");
        for _ in 0..2 {
            let made = ends(&tree, |tree| tree.vfs.mkdir(&tree.ctx, "/c/moved", 0o755));
            assert!(matches!(made, Err(Error::Exists)), "DENTRY-5: {made:?}");
        }
        let replaced = ends(&tree, |tree| tree.vfs.rename(&tree.ctx, "/c/y", "/c/z"));
        replaced.expect("LOCK-1: a rename in one directory");
        let renamed = ends(&tree, |tree| tree.vfs.rename(&tree.ctx, "/c/z", "/b/z"));
        renamed.expect("LOCK-1: a rename between two");
        let removed = ends(&tree, |tree| tree.vfs.rmdir(&tree.ctx, "/b/z"));
        removed.expect("LOCK-1: a removal elsewhere");
        tree.host.stick(NONE);
        (of_x.join().unwrap(), of_a.join().unwrap())
    });
    of_x.unwrap();
    of_a.unwrap();
    assert_eq!((tree.ino("/c/moved"), tree.ino("/a")), (MOVED, NONE));
}

/// LOCK-1, DENTRY-5: a rename between two directories that the back end does not answer holds
/// the rename mutex. A lookup of a directory that has moved waits for it, holding nothing; a
/// name that exists is told at once.
#[test]
fn a_stuck_rename_holds_up_a_splice_alone() {
    let tree = wide_tree();
    tree.host.stick(A);
    thread::scope(|scope| {
        let renamed = scope.spawn(|| tree.vfs.rename(&tree.ctx, "/a/x", "/b/x"));
        tree.host.wait_for_stuck(1);
        tree.host.set(C, "z", None);
        tree.host.set(C, "moved", Some(dir(14)));
        let found = scope.spawn(|| tree.ino("/c/moved"));
        for _ in 0..2 {
            let made = ends(&tree, |tree| tree.vfs.mkdir(&tree.ctx, "/c/moved", 0o755));
            assert!(matches!(made, Err(Error::Exists)), "DENTRY-5: {made:?}");
        }
        assert_eq!(ends(&tree, |tree| tree.ino("/c/y")), 13);
        assert_eq!(ends(&tree, |tree| tree.ino("/c/none")), NONE);
        let removed = ends(&tree, |tree| tree.vfs.rmdir(&tree.ctx, "/c/y"));
        removed.expect("LOCK-1: a removal elsewhere");
        tree.host.stick(NONE);
        renamed.join().unwrap().unwrap();
        assert_eq!(found.join().unwrap(), 14, "DENTRY-5");
    });
    assert_eq!((tree.ino("/b/x"), tree.ino("/c/z")), (X, NONE));
}
