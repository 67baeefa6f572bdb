//! Doubts under the shuttle model checker: FRESH-1.
//!
//! Each line was broken once, and this is what failed:
//!
//! | broken                                              | caught by                          |
//! |-----------------------------------------------------|------------------------------------|
//! | `lookup_slow` takes the stamp after the answer      | `a_lookup_under_way_is_doubted`    |
//! | `d_revalidate` takes the stamp after the answer     | `a_question_under_way_is_doubted`  |
//! | `is_name_fresh` does not look at the version        | both of these                      |
//! | `is_name_fresh` does not look at the epoch          | `everything_under_way_is_doubted`  |
//! | `confirm` believes a name that has been moved       | `a_name_moved_meanwhile_is_doubted`|
//! | `confirm` believes a name that has been given away  | `a_name_made_meanwhile_is_doubted` |
//! | `d_move` keeps the stamp of the old directory       | `a_name_moved_meanwhile_is_doubted`|
#![cfg(shuttle)]

mod shuttle_support;
mod watched_support;

use shuttle_support::{outcomes_are, spawn};
use watched_support::{CREATED, NONE, ROOT, Tree, dir, file};

/// What the name was while `change` went on, and what it is afterwards.
fn beside(tree: Tree, path: &'static str, change: fn(&Tree)) -> (u64, u64) {
    let changer = spawn({
        let tree = tree.clone();
        move || change(&tree)
    });
    let meanwhile = tree.ino(path);
    changer.join().unwrap();
    (meanwhile, tree.ino(path))
}

/// FRESH-1: a lookup whose answer is older than a doubt is asked once more.
#[test]
fn a_lookup_under_way_is_doubted() {
    outcomes_are("FRESH-1", [(3, 4), (4, 4)], || {
        let tree = Tree::new(&[(ROOT, "a", file(3))]);
        beside(tree, "/a", |tree| {
            tree.host.set(ROOT, "a", Some(file(4)));
            tree.host.doubt(ROOT);
        })
    });
    outcomes_are("FRESH-1", [(NONE, 4), (4, 4)], || {
        beside(Tree::new(&[]), "/a", |tree| {
            tree.host.set(ROOT, "a", Some(file(4)));
            tree.host.doubt(ROOT);
        })
    });
}

/// FRESH-1: the same for a cached name that is being asked for once more.
#[test]
fn a_question_under_way_is_doubted() {
    outcomes_are("FRESH-1", [(3, NONE), (NONE, NONE)], || {
        let tree = Tree::new(&[(ROOT, "a", file(3))]);
        assert_eq!(tree.ino("/a"), 3);
        tree.host.doubt(ROOT);
        beside(tree, "/a", |tree| {
            tree.host.set(ROOT, "a", None);
            tree.host.doubt(ROOT);
        })
    });
}

/// FRESH-1: the same for a doubt about everything.
#[test]
fn everything_under_way_is_doubted() {
    outcomes_are("FRESH-1", [(3, 4), (4, 4)], || {
        let tree = Tree::new(&[(ROOT, "a", file(3))]);
        assert_eq!(tree.ino("/a"), 3);
        beside(tree, "/a", |tree| {
            tree.host.set(ROOT, "a", Some(file(4)));
            tree.host.sb().doubt_all();
        })
    });
}

/// FRESH-1: an answer that there is no such name is none about the file that has been
/// given it meanwhile.
#[test]
fn a_name_made_meanwhile_is_doubted() {
    outcomes_are("FRESH-1", [(true, CREATED), (false, NONE)], || {
        let tree = Tree::new(&[]);
        assert_eq!(tree.ino("/a"), NONE);
        tree.host.doubt(ROOT);
        let maker = spawn({
            let tree = tree.clone();
            move || tree.vfs.create(&tree.ctx, "/a", 0o644).unwrap()
        });
        let remover = spawn({
            let tree = tree.clone();
            move || {
                tree.host.set(ROOT, "a", None);
                tree.host.doubt(ROOT);
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
fn a_name_moved_meanwhile_is_doubted() {
    outcomes_are("FRESH-1", [(3, 4), (NONE, 4)], || {
        let tree = Tree::new(&[(ROOT, "d", dir(2)), (ROOT, "a", file(3))]);
        assert_eq!(tree.ino("/a"), 3);
        assert_eq!(tree.ino("/d/b"), NONE);
        // Both directories are of version 2 in the end, and of the last doubt about the
        // second one nobody has been told before the name was there.
        tree.host.doubt(ROOT);
        let changer = spawn({
            let tree = tree.clone();
            move || {
                tree.vfs.rename(&tree.ctx, "/a", "/d/b").unwrap();
                tree.host.set(2, "b", Some(file(4)));
                tree.host.doubt(2);
            }
        });
        let meanwhile = tree.ino("/a");
        changer.join().unwrap();
        (meanwhile, tree.ino("/d/b"))
    });
}
