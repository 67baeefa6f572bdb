//! `Freshness::Watched`: names that are valid until the back end marks them as stale.

use crate::watched_support::{NONE, ROOT, Tree, UNWATCHED, dir, file};
use rcuwalk::LookupFlags;

fn tree() -> Tree {
    let tree = Tree::new(&[
        (ROOT, "d", dir(2)),
        (2, "file", file(3)),
        (ROOT, "e", dir(4)),
        (4, "other", file(5)),
    ]);
    assert_eq!(tree.ino("/d/file"), 3);
    assert_eq!(tree.ino("/e/other"), 5);
    assert_eq!(tree.ino("/d/none"), NONE);
    tree
}

const WALKS: [LookupFlags; 2] = [LookupFlags::empty(), LookupFlags::REF_WALK];

/// FRESH-1: without reports, the back end is not asked, by either walk.
#[test]
fn what_is_not_invalidated_is_fresh() {
    let tree = tree();
    let asked = tree.asked(|| {
        for flags in WALKS {
            for path in ["/", "/d/..", "/d/./file", "/e/other", "/d/none"] {
                let _ = tree.vfs.stat(&tree.ctx, path, flags);
            }
        }
    });
    assert_eq!(asked, 0, "FRESH-1");
}

/// FRESH-1: the invalidation of a directory makes each name in it stale, found or missing,
/// once; and no other.
#[test]
fn an_invalidated_directory_is_asked_for_each_name_once() {
    let tree = tree();
    tree.host.set(2, "file", None);
    tree.host.set(2, "none", Some(file(6)));
    tree.host.set(4, "other", Some(file(7)));
    assert_eq!(tree.ino("/d/file"), 3, "nobody has said anything yet");
    tree.host.report(2);
    assert_eq!(tree.ino("/d/file"), NONE, "FRESH-1: removed");
    assert_eq!(tree.ino("/d/none"), 6, "FRESH-1: made");
    assert_eq!(tree.ino("/e/other"), 5, "that one is still fresh");
    let asked = tree.asked(|| {
        tree.ino("/d/file");
        tree.ino("/d/none");
    });
    assert_eq!(asked, 0, "FRESH-1: once");
}

/// FRESH-1: an invalidation of everything makes every name stale, and the root.
#[test]
fn everything_can_be_invalidated() {
    let tree = tree();
    tree.host.set(2, "file", Some(file(6)));
    tree.host.set(4, "other", Some(file(7)));
    tree.host.sb().invalidate_all();
    // The root, `d`, and `file` twice, because it is another one now.
    assert_eq!(tree.asked(|| assert_eq!(tree.ino("/d/file"), 6)), 4);
    assert_eq!(tree.ino("/e/other"), 7, "FRESH-1");
    assert_eq!(tree.asked(|| assert_eq!(tree.ino("/e/other"), 7)), 0);
}

/// FRESH-1: the back end is asked at each use where changes are not reported: names in a
/// directory that is not watched, and that directory itself.
#[test]
fn names_in_an_unwatched_directory_are_never_fresh() {
    let tree = Tree::new(&[(ROOT, "u", dir(UNWATCHED)), (UNWATCHED, "file", file(3))]);
    for _ in 0..2 {
        assert_eq!(tree.ino("/u/file"), 3);
        assert_eq!(tree.ino("/u/none"), NONE);
    }
    // `u` may have been asked for as a name and as a place.
    assert!(tree.asked(|| assert_eq!(tree.ino("/u/file"), 3)) >= 2);
    tree.host.set(UNWATCHED, "file", None);
    assert_eq!(tree.ino("/u/file"), NONE, "FRESH-1");
}

/// FRESH-1: a file of two names may have been changed by the other one.
#[test]
fn a_file_of_two_names_is_never_fresh() {
    let twice = file(3).nlink(2);
    let tree = Tree::new(&[(ROOT, "one", twice)]);
    assert_eq!(tree.ino("/one"), 3);
    for flags in WALKS {
        let grown = twice.size(10 + u64::from(flags.bits()));
        tree.host.set(ROOT, "one", Some(grown));
        let seen = tree.vfs.stat(&tree.ctx, "/one", flags).unwrap();
        assert_eq!(seen.size, grown.size, "FRESH-1");
    }
    // With one name again, it is as any other.
    tree.host.set(ROOT, "one", Some(file(3)));
    assert_eq!(tree.asked(|| assert_eq!(tree.ino("/one"), 3)), 1);
    assert_eq!(tree.asked(|| assert_eq!(tree.ino("/one"), 3)), 0);
}

/// FRESH-1: a name that was moved here is asked for here, whatever it was told where it
/// came from.
#[test]
fn a_moved_name_is_asked_for_in_its_new_place() {
    let tree = tree();
    let asked = || tree.asked(|| assert_eq!(tree.ino("/e/moved"), 3));
    tree.vfs.rename(&tree.ctx, "/d/file", "/e/moved").unwrap();
    assert_eq!(asked(), 1, "FRESH-1");
    assert_eq!(asked(), 0);
}

/// FRESH-1: the back end is not asked for a current directory, whatever becomes of its name.
#[test]
fn a_place_is_fresh_while_its_directory_is_watched() {
    let tree = tree();
    let inside = tree
        .vfs
        .lookup(&tree.ctx, "/d", LookupFlags::empty())
        .unwrap();
    let inside = tree.ctx.clone().with_cwd(inside);
    tree.host.report(ROOT);
    let stat = || {
        tree.vfs
            .stat(&inside, "file", LookupFlags::empty())
            .unwrap()
            .ino
    };
    assert_eq!(tree.asked(|| assert_eq!(stat(), 3)), 0);
    tree.host.report(2);
    assert_eq!(tree.asked(|| assert_eq!(stat(), 3)), 1);
}

/// FRESH-1: a back end without reports is asked at each use, and no later invalidation changes
/// that.
#[test]
fn after_the_last_report_nothing_is_fresh() {
    let tree = tree();
    tree.host.sb().stop_watching();
    for ino in [6, 7, 8] {
        tree.host.set(2, "file", Some(file(ino)));
        assert_eq!(tree.ino("/d/file"), ino, "FRESH-1");
        tree.host.sb().invalidate_all();
    }
    for flags in WALKS {
        // `d`, as a name, and the wanted name.
        let asked = tree.asked(|| drop(tree.vfs.stat(&tree.ctx, "/d/none", flags)));
        assert!(asked >= 2, "FRESH-1: {asked}");
    }
}

fn hold(tree: &Tree) -> rcuwalk::VfsPath {
    let flags = LookupFlags::empty();
    tree.vfs.lookup(&tree.ctx, "/d/file", flags).unwrap()
}

/// FRESH-1: a report about a file reaches the inode that its key finds; so an inode that is not
/// found any more is never valid, under whichever name.
#[test]
fn an_inode_that_was_taken_out_is_not_fresh() {
    let tree = tree();
    let before = hold(&tree);
    tree.host.sb().unhash(&before.inode_ref());
    let grown = file(3).size(9);
    tree.host.set(2, "file", Some(grown));
    for flags in WALKS {
        let seen = tree.vfs.stat(&tree.ctx, "/d/file", flags).unwrap();
        assert_eq!((seen.ino, seen.size), (3, 9), "FRESH-1");
    }
    let now = hold(&tree);
    assert!(!std::ptr::eq(before.inode(), now.inode()));
    assert_eq!(tree.asked(|| assert_eq!(tree.ino("/d/file"), 3)), 0);
}

/// FRESH-1: the answer to an older question does not replace a newer answer, be that news
/// or not.
#[test]
fn an_older_answer_is_not_published() {
    let tree = tree();
    let held = hold(&tree);
    let inode = held.inode();
    let size = |size| file(3).size(size);
    let (older, newer) = (inode.before_asking(), inode.before_asking());
    assert!(inode.set_attr_since(newer, &size(0)), "no news");
    assert!(!inode.set_attr_since(older, &size(1)), "FRESH-1");
    assert_eq!(inode.attr().size, 0, "FRESH-1");
    assert!(inode.set_attr_since(inode.before_asking(), &size(2)));
    assert_eq!(inode.attr().size, 2);
}
