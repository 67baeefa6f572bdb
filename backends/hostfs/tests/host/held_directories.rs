//! Directories that the host moves or closes while a caller is in them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::{AN_HOUR, Scratch};
use rcuwalk::{Error, Freshness, LookupFlags};

/// LOCK-1: the dentry of a directory that the host has moved moves as well (DENTRY-5), and the
/// order of ancestors with it; changes by the old name and by the new one still end.
#[test]
fn a_directory_moved_on_the_host_does_not_deadlock() {
    let tree = Scratch::new(AN_HOUR, |root| {
        for dir in ["a", "b", "c", "d"] {
            fs::create_dir(root.join(dir)).unwrap();
            fs::write(root.join(dir).join("file"), b"").unwrap();
        }
    });
    // The order of their addresses decides which is locked first: one pair each way.
    for name in ["/a", "/b", "/d", "/c"] {
        tree.stat(name).unwrap();
    }
    fs::rename(tree.host("a"), tree.host("b/a")).unwrap();
    fs::rename(tree.host("c"), tree.host("d/c")).unwrap();
    let (tell, told) = mpsc::channel();
    for (moved, above) in [("a", "b"), ("c", "d")] {
        for by_rename in [true, false] {
            let (vfs, ctx, tell) = (tree.vfs.clone(), tree.ctx.clone(), tell.clone());
            thread::spawn(move || {
                for _ in 0..20_000 {
                    if by_rename {
                        let (from, to) = (format!("/{moved}/none"), format!("/{above}/none"));
                        vfs.rename(&ctx, from, to).unwrap_err();
                    } else {
                        vfs.rmdir(&ctx, format!("/{above}/{moved}")).unwrap_err();
                    }
                }
                tell.send(()).unwrap();
            });
        }
    }
    for _ in 0..4 {
        let ended = told.recv_timeout(Duration::from_secs(60));
        assert!(ended.is_ok(), "LOCK-1: two threads wait for each other");
    }
}

/// DENTRY-5: another process moves a directory. Its holders see its new path as soon as it is
/// found there, and its cached entries stay.
#[test]
fn a_directory_moved_on_the_host_keeps_its_dentry() {
    for freshness in [AN_HOUR, Freshness::EachUse] {
        for asks_old_name in [false, true] {
            let tree = Scratch::new(freshness, |root| {
                fs::create_dir_all(root.join("a/sub")).unwrap();
                fs::create_dir(root.join("b")).unwrap();
                fs::write(root.join("a/sub/file"), b"contents").unwrap();
            });
            let hold = |path: &str| {
                let found = tree.vfs.lookup(&tree.ctx, path, LookupFlags::FOLLOW);
                found.unwrap()
            };
            let (moved, below) = (hold("/a"), hold("/a/sub"));
            tree.stat("/a/sub/file").unwrap();
            let mv = Command::new("mv")
                .args([tree.host("a"), tree.host("b/x")])
                .status();
            assert!(mv.unwrap().success());
            if asks_old_name {
                let flags = LookupFlags::FOLLOW | LookupFlags::REVAL;
                let gone = tree.vfs.stat(&tree.ctx, "/a", flags);
                assert!(matches!(gone, Err(Error::NotFound)), "{gone:?}");
            }
            assert!(hold("/b/x").is_same_place(&moved), "DENTRY-5");
            let looked_up = tree.vfs.statistics().slow_lookups;
            tree.stat("/b/x/sub/file").unwrap();
            assert_eq!(tree.vfs.statistics().slow_lookups, looked_up, "DENTRY-5");
            let path = tree.vfs.path_of(&tree.ctx, &below).unwrap();
            assert_eq!(&*path, b"/b/x/sub", "DENTRY-5");
            let ctx = tree.ctx.clone().with_cwd(below);
            tree.vfs.create(&ctx, "new", 0o644).unwrap();
            tree.vfs.rename(&ctx, "new", "../newer").unwrap();
            assert!(tree.host("b/x/newer").exists(), "DENTRY-5");
        }
    }
}

/// EDGE-1: with `EachUse`, the next call sees a change of the current directory.
#[test]
fn the_current_directory_is_fresh() {
    let tree = Scratch::new(Freshness::EachUse, |root| {
        fs::create_dir_all(root.join("d/e")).unwrap();
        fs::set_permissions(root.join("d"), fs::Permissions::from_mode(0o755)).unwrap();
    });
    let d = tree
        .vfs
        .lookup(&tree.ctx, "/d", LookupFlags::FOLLOW)
        .unwrap();
    let ctx = tree.ctx.clone().with_cwd(d);
    fs::set_permissions(tree.host("d"), fs::Permissions::from_mode(0o700)).unwrap();
    let mode = |path: &str| tree.vfs.stat(&ctx, path, LookupFlags::FOLLOW).unwrap().mode;
    assert_eq!(mode("."), 0o700, "EDGE-1");
    assert_eq!(mode("e/.."), 0o700, "EDGE-1");
}
