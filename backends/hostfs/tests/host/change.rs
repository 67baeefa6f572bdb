//! Which changes by other processes on the host become visible, and when.

use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{AN_HOUR, Scratch, is_root, skip};
use rcuwalk::{Credentials, Error, FileType, Freshness, OpenFlags};
use rcuwalk_testkit::StopOnDrop;
use rustix::fs::{CWD, RenameFlags, renameat_with};

fn one_file(freshness: Freshness) -> Scratch {
    Scratch::new(freshness, |root| {
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/file"), b"old").unwrap();
        symlink("file", root.join("d/link")).unwrap();
    })
}

/// Puts another file in the place of an existing one.
fn replace(tree: &Scratch, path: &str, contents: &[u8]) {
    let new = tree.host("new");
    fs::write(&new, contents).unwrap();
    fs::rename(new, tree.host(path)).unwrap();
}

/// EDGE-1: with `EachUse`, a change that is complete is seen by the next call.
#[test]
fn each_use_sees_every_change() {
    let tree = one_file(Freshness::EachUse);
    assert_eq!(tree.read("/d/file").unwrap(), b"old");
    assert!(matches!(tree.stat("/d/more"), Err(Error::NotFound)));

    fs::write(tree.host("d/file"), b"longer").unwrap();
    assert_eq!(tree.stat("/d/file").unwrap().size, 6, "EDGE-1: written");

    replace(&tree, "d/file", b"another");
    let ino = fs::metadata(tree.host("d/file")).unwrap().ino();
    assert_eq!(tree.stat("/d/file").unwrap().ino, ino, "EDGE-1: replaced");
    assert_eq!(
        tree.read("/d/link").unwrap(),
        b"another",
        "EDGE-1: replaced"
    );

    fs::write(tree.host("d/more"), b"").unwrap();
    assert!(tree.stat("/d/more").is_ok(), "EDGE-1: made");

    fs::remove_file(tree.host("d/file")).unwrap();
    assert!(
        matches!(tree.stat("/d/file"), Err(Error::NotFound)),
        "EDGE-1: removed"
    );

    fs::create_dir(tree.host("d/file")).unwrap();
    assert_eq!(
        tree.stat("/d/file").unwrap().kind,
        FileType::Directory,
        "EDGE-1: retyped"
    );

    fs::rename(tree.host("d"), tree.host("e")).unwrap();
    assert!(
        matches!(tree.stat("/d/more"), Err(Error::NotFound)),
        "EDGE-1: moved"
    );
    assert!(tree.stat("/e/more").is_ok(), "EDGE-1: moved");
}

/// EDGE-1: a link made anew is read anew, even if it got the old one's inode number.
#[test]
fn a_new_target_is_read() {
    let tree = one_file(Freshness::EachUse);
    for i in 0..50 {
        // Longer each time: where birth and change are stamped by a slow clock, the
        // length is all that tells two links of one number apart.
        let target = "t".repeat(i + 1);
        fs::remove_file(tree.host("d/link")).unwrap();
        symlink(&target, tree.host("d/link")).unwrap();
        let read = tree.vfs.read_link(&tree.ctx, "/d/link").unwrap();
        assert_eq!(&*read, target.as_bytes(), "EDGE-1");
    }
}

/// INODE-1: an inode number that the host reuses is a new inode here, and a holder of the old
/// one does not get the new file in its place.
#[test]
fn a_reused_inode_number_is_another_file() {
    let tree = one_file(Freshness::EachUse);
    for i in 0..50 {
        let path = tree.host("d/reused");
        fs::write(&path, vec![b'x'; i]).unwrap();
        let old = tree
            .vfs
            .lookup(&tree.ctx, "/d/reused", Default::default())
            .unwrap();
        let ino = fs::metadata(&path).unwrap().ino();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let reused = fs::metadata(&path).unwrap().ino() == ino;

        let new = tree
            .vfs
            .lookup(&tree.ctx, "/d/reused", Default::default())
            .unwrap();
        assert_eq!(
            new.attr().kind,
            FileType::Directory,
            "INODE-1: reused: {reused}"
        );
        assert!(
            !std::ptr::eq(old.inode(), new.inode()),
            "INODE-1: reused: {reused}"
        );
        assert_eq!(
            old.inode().kind(),
            FileType::Regular,
            "INODE-1: reused: {reused}"
        );
        assert!(tree.names("/d/reused").unwrap().is_empty());
        fs::remove_dir(&path).unwrap();
    }
}

/// EDGE-1: cached names stay valid, but never show another file's contents.
#[test]
fn a_replaced_file_is_stale_or_new_but_never_mixed() {
    for freshness in [Freshness::Always, AN_HOUR] {
        let tree = one_file(freshness);
        let old = tree.stat("/d/file").unwrap();
        replace(&tree, "d/file", b"another");
        assert_eq!(tree.stat("/d/file").unwrap().ino, old.ino, "EDGE-1: cached");
        match tree
            .vfs
            .open(&tree.ctx, "/d/file", OpenFlags::READ | OpenFlags::NOFOLLOW)
        {
            Err(Error::Stale) => {}
            // The VFS may answer `Stale` by looking the name up again.
            Ok(file) => {
                assert_ne!(file.attr().ino, old.ino, "EDGE-1: {freshness:?}: mixed");
                assert_eq!(
                    tree.read("/d/file").unwrap(),
                    b"another",
                    "EDGE-1: {freshness:?}"
                );
            }
            Err(other) => panic!("EDGE-1: {freshness:?}: {other}"),
        }
        tree.vfs.drop_caches();
        assert_eq!(
            tree.read("/d/file").unwrap(),
            b"another",
            "EDGE-1: {freshness:?}"
        );
    }
}

/// EDGE-1: a removal is of the file that has the name now, not of the cached one.
#[test]
fn what_is_removed_is_what_is_there() {
    let tree = one_file(AN_HOUR);
    let unlink = || tree.vfs.unlink(&tree.ctx, "/d/file");

    let old = tree.stat("/d/file").unwrap();
    replace(&tree, "d/file", b"another");
    assert_eq!(tree.stat("/d/file").unwrap().ino, old.ino, "EDGE-1: cached");
    unlink().unwrap();
    assert!(!tree.host("d/file").exists(), "EDGE-1: removed");
    assert!(tree.stat("/d/file").is_err(), "EDGE-1: removed");

    fs::write(tree.host("d/file"), b"").unwrap();
    unlink().unwrap();
    assert!(!tree.host("d/file").exists(), "EDGE-1: found to be there");

    fs::write(tree.host("d/file"), b"").unwrap();
    tree.vfs.drop_caches();
    tree.stat("/d/file").unwrap();
    fs::remove_file(tree.host("d/file")).unwrap();
    fs::create_dir(tree.host("d/file")).unwrap();
    let refused = unlink();
    assert!(
        matches!(refused, Err(Error::IsADirectory)),
        "EDGE-1: {refused:?}"
    );
    assert!(tree.host("d/file").exists(), "EDGE-1: stays");

    fs::remove_dir(tree.host("d/file")).unwrap();
    fs::write(tree.host("d/file"), b"").unwrap();
    let refused = tree.vfs.rmdir(&tree.ctx, "/d/file");
    assert!(
        matches!(refused, Err(Error::NotADirectory)),
        "EDGE-1: {refused:?}"
    );
    assert!(tree.host("d/file").exists(), "EDGE-1: stays");

    fs::remove_file(tree.host("d/file")).unwrap();
    let refused = unlink();
    assert!(
        matches!(refused, Err(Error::NotFound)),
        "EDGE-1: {refused:?}"
    );
    assert!(
        matches!(tree.stat("/d/file"), Err(Error::NotFound)),
        "EDGE-1"
    );
}

/// EDGE-1: a file that is removed and held tells how many names it has left, and can be read,
/// whether or not it is open besides.
#[test]
fn a_removed_file_that_is_held_lives_on() {
    for (names, is_open) in [(1, false), (1, true), (2, false), (2, true)] {
        let tree = one_file(AN_HOUR);
        if names == 2 {
            fs::hard_link(tree.host("d/file"), tree.host("second")).unwrap();
        }
        let open = is_open.then(|| tree.vfs.open(&tree.ctx, "/d/file", OpenFlags::READ));
        let before = tree.stat("/d/file").unwrap();
        let held = tree.vfs.unlink_open(&tree.ctx, "/d/file").unwrap();
        let what = format!("EDGE-1: {names} names, open: {is_open}");
        assert!(!tree.host("d/file").exists(), "{what}");
        assert_eq!(held.attr().nlink, names - 1, "{what}");
        assert_eq!(held.attr().ino, before.ino, "{what}");
        assert!(held.attr().ctime >= before.ctime, "{what}");
        drop(open);
        let again = tree.vfs.open(&tree.ctx, held.path(), OpenFlags::READ);
        let mut contents = [0; 8];
        assert_eq!(again.unwrap().read_at(&mut contents, 0), Ok(3), "{what}");
        assert_eq!(&contents[..3], b"old", "{what}");
    }
}

/// EDGE-1: if another process exchanges the file for another one just before the removal, that one
/// is removed, and the file keeps its link.
#[test]
fn a_file_that_is_exchanged_before_its_removal_keeps_its_link() {
    let tree = one_file(AN_HOUR);
    let (here, there) = (tree.host("d/file"), tree.host("other"));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // One of them may be missing.
                let _ = renameat_with(CWD, &here, CWD, &there, RenameFlags::EXCHANGE);
            }
        });
        for _ in 0..1000 {
            for path in [&here, &there] {
                if !path.exists() {
                    fs::write(path, b"old").unwrap();
                }
            }
            tree.vfs.drop_caches();
            // It may find another file each time that it looks.
            let Ok(held) = tree.vfs.unlink_open(&tree.ctx, "/d/file") else {
                continue;
            };
            let other = fs::metadata(&there).unwrap();
            let links = u32::from(other.ino() == held.attr().ino);
            assert_eq!(held.attr().nlink, links, "EDGE-1");
        }
    });
}

/// EDGE-1: a removal checks the current state: the kind, and in a sticky directory the owner.
#[test]
fn the_right_to_remove_is_revalidated() {
    let tree = one_file(AN_HOUR);
    let remake = |dir: bool| {
        let path = tree.host("d/file");
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        match dir {
            true => fs::create_dir(path).unwrap(),
            false => fs::write(path, b"").unwrap(),
        }
    };
    remake(true);
    assert_eq!(tree.stat("/d/file").unwrap().kind, FileType::Directory);
    remake(false);
    tree.vfs
        .unlink(&tree.ctx, "/d/file")
        .expect("EDGE-1: a file by now");

    remake(false);
    tree.vfs.drop_caches();
    assert_eq!(tree.stat("/d/file").unwrap().kind, FileType::Regular);
    remake(true);
    tree.vfs
        .rmdir(&tree.ctx, "/d/file")
        .expect("EDGE-1: a directory by now");

    if !is_root() {
        return skip("needs root");
    }
    fs::set_permissions(tree.host("d"), Permissions::from_mode(0o1777)).unwrap();
    let who = Credentials::user(1000, 1000);
    let who = tree.vfs.context(who);
    for (names, keeps) in [(1, false), (2, false), (1, true), (2, true)] {
        remake(false);
        let _ = fs::remove_file(tree.host("d/second"));
        if names == 2 {
            fs::hard_link(tree.host("d/file"), tree.host("d/second")).unwrap();
        }
        for (was, is) in [(1000, 1001), (1001, 1000)] {
            chown(tree.host("d/file"), Some(was), Some(was)).unwrap();
            tree.vfs.drop_caches();
            assert_eq!(tree.stat("/d/file").unwrap().uid, was);
            chown(tree.host("d/file"), Some(is), Some(is)).unwrap();
            let removed = match keeps {
                true => tree.vfs.unlink_open(&who, "/d/file").map(drop),
                false => tree.vfs.unlink(&who, "/d/file"),
            };
            let gone = !tree.host("d/file").exists();
            assert_eq!(gone, is == 1000, "EDGE-1: {names} names: {removed:?}");
            let refused = matches!(removed, Err(Error::NotPermitted));
            assert_eq!(refused, is != 1000, "EDGE-1: {names} names: {removed:?}");
        }
    }
}

/// EDGE-1: an open file goes on being the file that was opened.
#[test]
fn an_open_file_outlives_its_name() {
    let tree = one_file(Freshness::EachUse);
    let file = tree
        .vfs
        .open(&tree.ctx, "/d/file", OpenFlags::READ | OpenFlags::NOFOLLOW)
        .unwrap();
    replace(&tree, "d/file", b"another");
    let mut buf = [0; 16];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 3, "EDGE-1");
    assert_eq!(&buf[..3], b"old", "EDGE-1");
}

/// EDGE-1: with a TTL, names, absences and attributes are valid for that time, and then expire.
#[test]
fn a_ttl_runs_out() {
    let change = |tree: &Scratch| {
        assert!(tree.stat("/d/file").is_ok());
        assert!(matches!(tree.stat("/d/more"), Err(Error::NotFound)));
        fs::write(tree.host("d/file"), b"longer").unwrap();
        fs::write(tree.host("d/more"), b"").unwrap();
    };

    let tree = one_file(AN_HOUR);
    change(&tree);
    assert_eq!(tree.stat("/d/file").unwrap().size, 3, "EDGE-1: cached");
    assert!(
        matches!(tree.stat("/d/more"), Err(Error::NotFound)),
        "EDGE-1: cached"
    );

    let ttl = Duration::from_millis(50);
    let tree = one_file(Freshness::Ttl(ttl));
    change(&tree);
    thread::sleep(2 * ttl);
    assert_eq!(tree.stat("/d/file").unwrap().size, 6, "EDGE-1: asked again");
    assert!(tree.stat("/d/more").is_ok(), "EDGE-1: asked again");
}

/// EDGE-1: the root has no name to confirm; its attributes are brought up to date too.
#[test]
fn the_roots_attributes_are_refreshed() {
    let tree = one_file(Freshness::EachUse);
    assert!(tree.stat("/").is_ok());
    fs::create_dir(tree.host("one-more")).unwrap();
    let host = fs::metadata(tree.host("")).unwrap();
    let after = tree.stat("/").unwrap();
    assert_eq!(u64::from(after.nlink), host.nlink(), "EDGE-1");
    assert_eq!(
        (after.mtime.sec, after.mtime.nsec.into()),
        (host.mtime(), host.mtime_nsec())
    );
}

/// INODE-1: walks that race with replacements see the one file or the other.
#[test]
fn a_race_with_replacement_gives_one_of_the_two() {
    let tree = one_file(Freshness::EachUse);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    match tree.read("/d/file") {
                        Ok(contents) => {
                            let first = contents.first().copied();
                            let one_file = contents == b"old"
                                || contents.iter().all(|byte| Some(*byte) == first);
                            assert!(one_file, "INODE-1: {contents:?}");
                        }
                        // Replaced between lookup and open, as often as it was tried.
                        Err(Error::Stale) => {}
                        Err(other) => panic!("INODE-1: {other}"),
                    }
                }
            });
        }
        for i in 0..300_u16 {
            replace(&tree, "d/file", &[b'a' + i as u8 % 26; 64]);
        }
        done.store(true, Ordering::Relaxed);
    });
}
