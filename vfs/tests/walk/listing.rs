//! Listing directories beside changes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::thread;

use crate::common::{Random, Tree};
use rcuwalk::{Credentials, Error};

/// DIR-1: an entry that is there all through a listing is returned exactly once, an
/// entry that comes or goes at most once per life, whatever changes between batches.
#[test]
fn what_stays_is_listed_once() {
    // A few batches long.
    const STAYING: usize = 3_000;
    let tree = Tree::new("d/ other/");
    for n in 0..STAYING {
        tree.vfs
            .create(&tree.ctx, format!("/d/stays{n}"), 0o644)
            .unwrap();
        tree.vfs
            .create(&tree.ctx, format!("/d/early{n}"), 0o644)
            .unwrap();
    }
    let done = AtomicBool::new(false);
    let changes = AtomicUsize::new(0);
    thread::scope(|scope| {
        for changer in 0..2 {
            let (tree, done, changes) = (&tree, &done, &changes);
            scope.spawn(move || {
                let mut random = Random::new(changer);
                let (vfs, ctx) = (&tree.vfs, &tree.ctx);
                while !done.load(Acquire) {
                    let n = random.below(STAYING);
                    let _ = match random.below(4) {
                        0 => vfs.create(ctx, format!("/d/comes{n}"), 0o644).map(drop),
                        1 => vfs.unlink(ctx, format!("/d/comes{n}")),
                        2 => vfs.unlink(ctx, format!("/d/early{n}")),
                        _ => vfs.rename(ctx, format!("/d/comes{n}"), format!("/other/{n}")),
                    };
                    changes.fetch_add(1, Relaxed);
                }
            });
        }
        let mut during = 0;
        for _ in 0..20 {
            let before = changes.load(Relaxed);
            let mut seen = HashMap::<Box<[u8]>, Vec<u64>>::new();
            for entry in tree.vfs.read_dir(&tree.ctx, "/d").unwrap() {
                let entry = entry.unwrap();
                seen.entry(entry.name).or_default().push(entry.ino);
            }
            during += changes.load(Relaxed) - before;
            for n in 0..STAYING {
                let times = seen.get(format!("stays{n}").as_bytes()).map_or(0, Vec::len);
                assert_eq!(times, 1, "DIR-1: stays{n}");
            }
            for (name, mut inos) in seen {
                // Twice only as another file: removed, made again and met again.
                let times = inos.len();
                inos.sort_unstable();
                inos.dedup();
                assert_eq!(inos.len(), times, "DIR-1: {}", name.escape_ascii());
            }
        }
        done.store(true, Release);
        assert!(during > 0, "changes went on meanwhile");
    });
}

/// DIR-1: a listing goes on where it was after everything it has returned is gone.
#[test]
fn a_listing_outlives_its_entries() {
    let tree = Tree::new("d/");
    let name = |n: usize| format!("/d/{n}");
    for n in 0..2_500 {
        tree.vfs.create(&tree.ctx, name(n), 0o644).unwrap();
    }
    let mut listing = tree.vfs.read_dir(&tree.ctx, "/d").unwrap();
    let first: Vec<_> = listing
        .by_ref()
        .take(1_024)
        .map(|one| one.unwrap().name)
        .collect();
    for name in &first {
        let path = [b"/d/", &**name].concat();
        tree.vfs.unlink(&tree.ctx, &path).unwrap();
        // And back, as a new entry: after all others.
        tree.vfs.create(&tree.ctx, &path, 0o644).unwrap();
    }
    let rest: Vec<_> = listing.map(|one| one.unwrap().name).collect();
    assert_eq!(rest.len(), 2_500, "DIR-1: the rest, and the new ones");
}

/// EDGE-1: what cannot be listed says so.
#[test]
fn what_is_no_directory_is_not_listed() {
    let tree = Tree::new("d/ d/file link->d");
    let list = |path: &str| tree.vfs.read_dir(&tree.ctx, path).map(Iterator::count);
    assert_eq!(list("/d").unwrap(), 1);
    assert_eq!(list("/link").unwrap(), 1);
    assert!(matches!(list("/d/file"), Err(Error::NotADirectory)));
    assert!(matches!(list("/missing"), Err(Error::NotFound)));
    tree.vfs.chmod(&tree.ctx, "/d", 0o311).unwrap();
    let user = tree.vfs.context(Credentials::user(1, 1));
    let refused = tree.vfs.read_dir(&user, "/d");
    assert!(matches!(refused.err(), Some(Error::PermissionDenied)));
    assert!(
        tree.vfs
            .stat(&user, "/d/file", crate::common::FOLLOW)
            .is_ok(),
        "but searched"
    );

    let held = tree.ctx.clone().with_cwd(tree.hold("/d"));
    tree.vfs.unlink(&tree.ctx, "/d/file").unwrap();
    tree.vfs.rmdir(&tree.ctx, "/d").unwrap();
    let mut gone = tree.vfs.read_dir(&held, ".").unwrap();
    assert!(matches!(gone.next(), Some(Err(Error::NotFound))), "removed");
    assert!(gone.next().is_none(), "and then it ends");
    let made = tree.vfs.create(&held, "new", 0o644);
    assert!(matches!(made, Err(Error::NotFound)), "nor takes it names");
    let up = tree.vfs.stat(&held, "..", crate::common::FOLLOW).unwrap();
    assert_eq!(up.ino, tree.ino("/").unwrap(), "but leads up");
}
