//! Listing directories beside changes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::thread;

use crate::common::{Random, Tree};
use rcuwalk::{Credentials, Entries, Error, File, FileType, OpenFlags};

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

/// The names and positions that `fill` returns after `position`, with buffers of `room` bytes.
fn filled(dir: &File, position: u64, room: usize) -> Vec<(Box<[u8]>, u64, u64)> {
    let (mut all, mut buf, mut position) = (Vec::new(), vec![0xAA; room], position);
    loop {
        let used = dir.fill(position, &mut buf).unwrap();
        assert!(used <= room);
        if used == 0 {
            return all;
        }
        for entry in Entries::new(&buf[..used]) {
            assert_eq!(entry.kind, Some(FileType::Regular));
            all.push((entry.name.into(), entry.ino, entry.next));
            position = entry.next;
        }
    }
}

fn open_dir(tree: &Tree, path: &str) -> File {
    tree.vfs.open(&tree.ctx, path, OpenFlags::READ).unwrap()
}

/// DIR-1: `fill` returns what the iterator returns, however small the buffer, from any position.
#[test]
fn a_buffer_is_filled_with_what_the_iterator_returns() {
    let tree = Tree::new("d/");
    for n in 0..3_000 {
        let name = format!("/d/{n}{}", "x".repeat(n % 200));
        tree.vfs.create(&tree.ctx, name, 0o644).unwrap();
    }
    let dir = open_dir(&tree, "/d");
    let all: Vec<_> = dir
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.name, entry.ino, entry.next))
        .collect();
    assert_eq!(all.len(), 3_000);
    for room in [280, 281, 4096, 1 << 20] {
        assert_eq!(filled(&dir, 0, room), all, "DIR-1: {room} bytes");
    }
    for at in [0, 1, 1_500, 2_999] {
        assert_eq!(filled(&dir, all[at].2, 4096), all[at + 1..], "DIR-1: {at}");
    }
}

/// EDGE-1: a buffer that is too small for the next entry is EINVAL and not the end; a removed
/// directory is ENOENT; a file is ENOTDIR.
#[test]
fn a_buffer_that_cannot_be_filled_says_so() {
    let tree = Tree::new("d/ d/file empty/");
    let dir = open_dir(&tree, "/d");
    assert!(matches!(dir.fill(0, &mut [0; 23]), Err(Error::Invalid)));
    assert!(matches!(dir.fill(0, &mut []), Err(Error::Invalid)));
    assert_eq!(dir.fill(0, &mut [0; 24]).unwrap(), 24);
    assert_eq!(open_dir(&tree, "/empty").fill(0, &mut []).unwrap(), 0);
    let file = open_dir(&tree, "/d/file");
    assert!(matches!(
        file.fill(0, &mut [0; 280]),
        Err(Error::NotADirectory)
    ));
    tree.vfs.unlink(&tree.ctx, "/d/file").unwrap();
    tree.vfs.rmdir(&tree.ctx, "/d").unwrap();
    assert!(matches!(dir.fill(0, &mut [0; 280]), Err(Error::NotFound)));
}

/// DIR-1: one file that stays is returned once by `fill`, and every other one at most once per
/// life, with changes before each call.
#[test]
fn buffers_are_filled_beside_changes() {
    const STAYING: usize = 500;
    let tree = Tree::new("d/ other/");
    let (vfs, ctx) = (&tree.vfs, &tree.ctx);
    for n in 0..STAYING {
        vfs.create(ctx, format!("/d/stays{n}"), 0o644).unwrap();
        vfs.create(ctx, format!("/d/moves{n}"), 0o644).unwrap();
    }
    let dir = open_dir(&tree, "/d");
    let mut random = Random::new(3);
    for _ in 0..50 {
        let (mut seen, mut position) = (HashMap::<Box<[u8]>, usize>::new(), 0);
        loop {
            let mut buf = vec![0; 280 + random.below(2_000)];
            let used = dir.fill(position, &mut buf).unwrap();
            if used == 0 {
                break;
            }
            for entry in Entries::new(&buf[..used]) {
                position = entry.next;
                *seen.entry(entry.name.into()).or_default() += 1;
            }
            let n = random.below(STAYING);
            let _ = match random.below(4) {
                0 => vfs.rename(ctx, format!("/d/moves{n}"), format!("/other/{n}")),
                1 => vfs.rename(ctx, format!("/other/{n}"), format!("/d/moves{n}")),
                2 => vfs
                    .link(ctx, format!("/d/stays{n}"), format!("/d/link{n}"))
                    .map(drop),
                _ => vfs.unlink(ctx, format!("/d/link{n}")),
            };
        }
        for n in 0..STAYING {
            let times = seen.get(format!("stays{n}").as_bytes());
            assert_eq!(times, Some(&1), "DIR-1: stays{n}");
        }
    }
}
