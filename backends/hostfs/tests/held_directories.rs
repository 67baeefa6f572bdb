//! Directories that the host moves or closes while somebody stands in them.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{AN_HOUR, Scratch};
use rcuwalk::{Freshness, LookupFlags};

/// LOCK-1: a directory that the host has moved has two dentries for a while, and they
/// disagree about what is above what; changes of both still end.
#[test]
fn a_directory_moved_on_the_host_does_not_deadlock() {
    let tree = Scratch::new(AN_HOUR, |root| {
        for dir in ["a", "b", "c", "d"] {
            fs::create_dir(root.join(dir)).unwrap();
            fs::write(root.join(dir).join("file"), b"").unwrap();
        }
    });
    // The order of their addresses decides who is locked first: one pair each way.
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

/// EDGE-1: with `EachUse`, a change of where somebody stands is seen by the next call.
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
