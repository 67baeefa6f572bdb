//! Names that other processes change, under the shuttle model checker: invalidation (FRESH-1),
//! and directories that are found by other names (DENTRY-5).
//!
//! Each line was broken once, and this is what failed:
//!
//! | broken                                              | caught by                          |
//! |-----------------------------------------------------|------------------------------------|
//! | `lookup_slow` takes the stamp after the answer      | `a_lookup_under_way_is_invalidated`    |
//! | `d_revalidate` takes the stamp after the answer     | `a_question_under_way_is_invalidated`  |
//! | `is_name_fresh` does not look at the version        | both of these                      |
//! | `is_name_fresh` does not look at the epoch          | `everything_under_way_is_invalidated`  |
//! | `confirm` confirms a name that has been moved       | `a_name_moved_meanwhile_is_invalidated`|
//! | `confirm` confirms a name that has been given away  | `a_name_made_meanwhile_is_invalidated` |
//! | `d_move` keeps the stamp of the old directory       | `a_name_moved_meanwhile_is_invalidated`|
//! | `alias_of` without the inode's lock                 | `a_directory_has_one_dentry`       |
//! | `alias_of` does not ask again after a move          | `a_directory_has_one_dentry`       |
//! | a splice without the rename mutex                   | `a_splice_and_a_rename_make_no_loop` |
//! | a splice does not look for itself on its way up     | `a_splice_and_a_rename_make_no_loop` |
//! | a directory with an outdated name is not filed under its inode | `an_outdated_directory_has_one_dentry` |

use crate::shuttle_support::{outcomes_are, spawn};
use crate::watched_support::{CREATED, NONE, ROOT, Tree, dir, file};
use rcuwalk::{Error, LookupFlags, VfsPath};

/// The inode under the name while `change` went on, and afterwards.
fn beside(tree: Tree, path: &'static str, change: fn(&Tree)) -> (u64, u64) {
    let changer = spawn({
        let tree = tree.clone();
        move || change(&tree)
    });
    let meanwhile = tree.ino(path);
    changer.join().unwrap();
    (meanwhile, tree.ino(path))
}

/// FRESH-1: a lookup whose answer is older than an invalidation is asked once more.
#[test]
fn a_lookup_under_way_is_invalidated() {
    outcomes_are("FRESH-1", [(3, 4), (4, 4)], || {
        let tree = Tree::new(&[(ROOT, "a", file(3))]);
        beside(tree, "/a", |tree| {
            tree.host.set(ROOT, "a", Some(file(4)));
            tree.host.report(ROOT);
        })
    });
    outcomes_are("FRESH-1", [(NONE, 4), (4, 4)], || {
        beside(Tree::new(&[]), "/a", |tree| {
            tree.host.set(ROOT, "a", Some(file(4)));
            tree.host.report(ROOT);
        })
    });
}

/// FRESH-1: likewise a revalidation of a cached name.
#[test]
fn a_question_under_way_is_invalidated() {
    outcomes_are("FRESH-1", [(3, NONE), (NONE, NONE)], || {
        let tree = Tree::new(&[(ROOT, "a", file(3))]);
        assert_eq!(tree.ino("/a"), 3);
        tree.host.report(ROOT);
        beside(tree, "/a", |tree| {
            tree.host.set(ROOT, "a", None);
            tree.host.report(ROOT);
        })
    });
}

/// FRESH-1: likewise when everything is invalidated.
#[test]
fn everything_under_way_is_invalidated() {
    outcomes_are("FRESH-1", [(3, 4), (4, 4)], || {
        let tree = Tree::new(&[(ROOT, "a", file(3))]);
        assert_eq!(tree.ino("/a"), 3);
        beside(tree, "/a", |tree| {
            tree.host.set(ROOT, "a", Some(file(4)));
            tree.host.sb().invalidate_all();
        })
    });
}

/// FRESH-1: an answer that there is no such name is none about the file that has been
/// given it meanwhile.
#[test]
fn a_name_made_meanwhile_is_invalidated() {
    outcomes_are("FRESH-1", [(true, CREATED), (false, NONE)], || {
        let tree = Tree::new(&[]);
        assert_eq!(tree.ino("/a"), NONE);
        tree.host.report(ROOT);
        let maker = spawn({
            let tree = tree.clone();
            move || tree.vfs.create(&tree.ctx, "/a", 0o644).unwrap()
        });
        let remover = spawn({
            let tree = tree.clone();
            move || {
                tree.host.set(ROOT, "a", None);
                tree.host.report(ROOT);
            }
        });
        tree.ino("/a");
        maker.join().unwrap();
        remover.join().unwrap();
        (tree.host.has(ROOT, "a"), tree.ino("/a"))
    });
}

/// FRESH-1: an answer about a name in one directory is none about another, where it has
/// been moved meanwhile.
#[test]
fn a_name_moved_meanwhile_is_invalidated() {
    outcomes_are("FRESH-1", [(3, 4), (NONE, 4)], || {
        let tree = Tree::new(&[(ROOT, "d", dir(2)), (ROOT, "a", file(3))]);
        assert_eq!(tree.ino("/a"), 3);
        assert_eq!(tree.ino("/d/b"), NONE);
        // Both directories have version 2 in the end: a stamp of the first one would pass in
        // the second, although that is invalidated after the move.
        tree.host.report(ROOT);
        let changer = spawn({
            let tree = tree.clone();
            move || {
                tree.vfs.rename(&tree.ctx, "/a", "/d/b").unwrap();
                tree.host.set(2, "b", Some(file(4)));
                tree.host.report(2);
            }
        });
        let meanwhile = tree.ino("/a");
        changer.join().unwrap();
        (meanwhile, tree.ino("/d/b"))
    });
}

/// The place that a path leads to.
fn hold(tree: &Tree, path: &str) -> Option<VfsPath> {
    match tree.vfs.lookup(&tree.ctx, path, LookupFlags::FOLLOW) {
        Ok(place) => Some(place),
        Err(Error::NotFound) => None,
        Err(err) => panic!("{path}: {err}"),
    }
}

/// Its path, if it has one.
fn path_of(tree: &Tree, place: &VfsPath) -> String {
    let path = tree.vfs.path_of(&tree.ctx, place);
    path.map_or(String::new(), |path| {
        String::from_utf8(path.into()).unwrap()
    })
}

/// DENTRY-5: several threads find a directory by several names, beside the shrinker. They hold
/// one dentry, which has the name that was found last.
#[test]
fn a_directory_has_one_dentry() {
    for is_cached in [false, true] {
        outcomes_are("DENTRY-5", ["/a", "/b"].map(String::from), move || {
            let names = ["a", "b", "old"].map(|name| (ROOT, name, dir(2)));
            let tree = Tree::new(&names);
            // One moves it from there, and the other one looks for it meanwhile.
            let _held = is_cached.then(|| hold(&tree, "/old"));
            let shrinker = spawn({
                let tree = tree.clone();
                move || tree.vfs.drop_caches()
            });
            let other = spawn({
                let tree = tree.clone();
                move || hold(&tree, "/b").unwrap()
            });
            let one = hold(&tree, "/a").unwrap();
            let other = other.join().unwrap();
            shrinker.join().unwrap();
            assert!(one.is_same_place(&other), "DENTRY-5: two dentries");
            path_of(&tree, &one)
        });
    }
}

/// DENTRY-5: a directory is found by its new name while another walk finds that the old name is
/// gone. In either order, its dentry has the new name in the end.
#[test]
fn an_outdated_directory_has_one_dentry() {
    outcomes_are("DENTRY-5", [(2, true)], || {
        let tree = Tree::new(&[(ROOT, "a", dir(2)), (ROOT, "d", dir(3))]);
        let held = hold(&tree, "/a").unwrap();
        assert_eq!(tree.ino("/d"), 3);
        tree.host.set(ROOT, "a", None);
        tree.host.set(3, "b", Some(dir(2)));
        let finder = spawn({
            let tree = tree.clone();
            move || hold(&tree, "/d/b").unwrap()
        });
        let asker = spawn({
            let tree = tree.clone();
            move || {
                tree.host.report(ROOT);
                tree.ino("/a")
            }
        });
        let found = finder.join().unwrap();
        let outdated = asker.join().unwrap();
        assert_eq!(outdated, NONE, "FRESH-1: the invalidation came first");
        assert!(found.is_same_place(&held), "DENTRY-5: two dentries");
        assert_eq!(path_of(&tree, &held), "/d/b", "DENTRY-5");
        (tree.ino("/d/b"), held.is_named())
    });
}

/// DENTRY-5: a directory is found in one that is being moved into it. Either the rename is
/// refused, or the name is a loop; the cache never has one.
#[test]
fn a_splice_and_a_rename_make_no_loop() {
    const IS_LOOP: u64 = 100;
    outcomes_are(
        "DENTRY-5",
        [(4, false), (IS_LOOP, true), (NONE, true)],
        || {
            let tree = Tree::new(&[(ROOT, "p", dir(2)), (ROOT, "q", dir(3)), (2, "d", dir(4))]);
            let (d, q) = (hold(&tree, "/p/d").unwrap(), hold(&tree, "/q").unwrap());
            tree.host.set(2, "d", None);
            tree.host.set(3, "e", Some(dir(4)));
            let renamer = spawn({
                let tree = tree.clone();
                move || tree.vfs.rename(&tree.ctx, "/q", "/p/d/q").is_ok()
            });
            let found = match tree.vfs.stat(&tree.ctx, "/q/e", LookupFlags::FOLLOW) {
                Ok(attr) => attr.ino,
                Err(Error::NotFound) => NONE,
                Err(Error::TooManySymlinks) => IS_LOOP,
                Err(err) => panic!("{err}"),
            };
            let renamed = renamer.join().unwrap();
            // Both lead up to the root, and not round and round.
            let (d, q) = (path_of(&tree, &d), path_of(&tree, &q));
            let allowed = [("/q/e", "/q"), ("/p/d", "/p/d/q"), ("", "/p/d/q")];
            assert!(allowed.contains(&(&d, &q)), "DENTRY-5: {d}, {q}");
            (found, renamed)
        },
    );
}

/// LOCK-1: a directory is removed while the one above it changes places with it: none of the
/// three threads waits for another one for ever, though each locks two of the directories.
#[test]
fn removals_and_splices_do_not_wait_for_each_other() {
    outcomes_are("LOCK-1", [(true, false, 2)], || {
        let tree = Tree::new(&[(ROOT, "a", dir(2)), (2, "b", dir(3)), (3, "c", dir(4))]);
        drop(hold(&tree, "/a/b/c").unwrap());
        tree.host.set(2, "b", None);
        tree.host.set(ROOT, "b", Some(dir(3)));
        let remover = spawn({
            let tree = tree.clone();
            move || tree.vfs.rmdir(&tree.ctx, "/a/b").is_ok()
        });
        let other = spawn({
            let tree = tree.clone();
            move || tree.vfs.rmdir(&tree.ctx, "/b/c").is_ok()
        });
        tree.host.set(ROOT, "a", None);
        tree.host.set(3, "a", Some(dir(2)));
        let found = tree.ino("/b/a");
        (other.join().unwrap(), remover.join().unwrap(), found)
    });
}

/// MEM-1: a splice beside the thread that adds the first dentry leaves it on a list.
#[test]
fn a_spliced_dentry_is_reclaimed() {
    outcomes_are("MEM-1", [1_usize], || {
        let tree = Tree::new(&[(ROOT, "a", dir(2)), (ROOT, "b", dir(2))]);
        let other = spawn({
            let tree = tree.clone();
            move || drop(hold(&tree, "/b"))
        });
        drop(hold(&tree, "/a"));
        other.join().unwrap();
        tree.vfs.drop_caches();
        tree.vfs.statistics().inodes.0
    });
}

/// MEM-1: a dentry filed under its inode, beside the thread that adds it, stays on a list.
#[test]
fn a_parked_dentry_is_reclaimed() {
    outcomes_are("MEM-1", [1_usize], || {
        let tree = Tree::new(&[(ROOT, "a", dir(2))]);
        let other = spawn({
            let tree = tree.clone();
            move || {
                tree.host.set(ROOT, "a", None);
                tree.host.report(ROOT);
                tree.ino("/a");
            }
        });
        drop(hold(&tree, "/a"));
        other.join().unwrap();
        tree.vfs.drop_caches();
        tree.vfs.statistics().inodes.0
    });
}
