//! Changes on the host under a cache without expiry: once a call has found one out, the cache
//! knows it.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;

use common::{AN_HOUR, Scratch};
use rcuwalk::{Context, Error, FileType, Freshness, LookupFlags, OpenFlags, RenameFlags, Vfs};

/// `file` and `dir` are there, `missing` is not; and all of it is cached.
fn cached(freshness: Freshness) -> Scratch {
    let tree = Scratch::new(freshness, |root| {
        fs::write(root.join("file"), b"old").unwrap();
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("own"), b"own").unwrap();
    });
    for name in ["/file", "/dir", "/own"] {
        tree.stat(name).unwrap();
    }
    assert!(tree.stat("/missing").is_err());
    tree
}

fn each(test: impl Fn(&Scratch)) {
    for freshness in [Freshness::Always, AN_HOUR] {
        test(&cached(freshness));
    }
}

type Call = fn(&Vfs, &Context) -> Result<(), Error>;

/// EDGE-1: a name that the cache has as missing is found where something cannot be made.
#[test]
fn what_is_in_the_way_is_seen() {
    const MAKE: [(&str, Call); 6] = [
        ("create", |vfs, ctx| vfs.create(ctx, "/missing", 0o644)),
        ("mkdir", |vfs, ctx| vfs.mkdir(ctx, "/missing", 0o755)),
        ("mknod", |vfs, ctx| {
            vfs.mknod(ctx, "/missing", FileType::Fifo, 0o600, 0)
        }),
        ("symlink", |vfs, ctx| vfs.symlink(ctx, "x", "/missing")),
        ("link", |vfs, ctx| vfs.link(ctx, "/own", "/missing")),
        ("rename", |vfs, ctx| {
            let (root, flags) = (ctx.root(), RenameFlags::NOREPLACE);
            vfs.renameat2(ctx, (root, "own"), (root, "missing"), flags)
        }),
    ];
    for (what, make) in MAKE {
        each(|tree| {
            fs::write(tree.host("missing"), b"there").unwrap();
            let done = make(&tree.vfs, &tree.ctx);
            assert!(
                matches!(done, Err(Error::Exists)),
                "EDGE-1: {what}: {done:?}"
            );
            assert_eq!(tree.stat("/missing").unwrap().size, 5, "EDGE-1: {what}");
            assert_eq!(tree.stat("/own").unwrap().size, 3, "EDGE-1: {what}");
        });
    }
}

/// EDGE-1: a change of a cached name finds that the host has removed it, and so does every
/// later call.
#[test]
fn what_is_gone_is_missed() {
    const CHANGE: [(&str, Call); 5] = [
        ("unlink", |vfs, ctx| vfs.unlink(ctx, "/file")),
        ("rename", |vfs, ctx| vfs.rename(ctx, "/file", "/elsewhere")),
        ("link", |vfs, ctx| vfs.link(ctx, "/file", "/elsewhere")),
        ("chmod", |vfs, ctx| vfs.chmod(ctx, "/file", 0o600)),
        ("open", |vfs, ctx| {
            vfs.open(ctx, "/file", OpenFlags::READ).map(drop)
        }),
    ];
    for (what, change) in CHANGE {
        each(|tree| {
            fs::remove_file(tree.host("file")).unwrap();
            let done = change(&tree.vfs, &tree.ctx);
            assert!(
                matches!(done, Err(Error::NotFound)),
                "EDGE-1: {what}: {done:?}"
            );
            let now = tree.stat("/file");
            assert!(
                matches!(now, Err(Error::NotFound)),
                "EDGE-1: {what}: {now:?}"
            );
        });
    }
    each(|tree| {
        fs::remove_dir(tree.host("dir")).unwrap();
        let done = tree.vfs.rmdir(&tree.ctx, "/dir");
        assert!(matches!(done, Err(Error::NotFound)), "EDGE-1: {done:?}");
        assert!(tree.stat("/dir").is_err(), "EDGE-1");
    });
}

/// EDGE-1: where another file has the name, that is the one that is meant.
#[test]
fn what_is_there_now_is_changed() {
    const CHANGE: [(&str, Call); 3] = [
        ("chmod", |vfs, ctx| vfs.chmod(ctx, "/file", 0o604)),
        ("link", |vfs, ctx| vfs.link(ctx, "/file", "/elsewhere")),
        ("rename", |vfs, ctx| vfs.rename(ctx, "/file", "/elsewhere")),
    ];
    for (what, change) in CHANGE {
        each(|tree| {
            fs::write(tree.host("new"), b"newer").unwrap();
            fs::rename(tree.host("new"), tree.host("file")).unwrap();
            let ino = fs::metadata(tree.host("file")).unwrap().ino();
            change(&tree.vfs, &tree.ctx).unwrap();
            let name = if what == "chmod" {
                "/file"
            } else {
                "/elsewhere"
            };
            let now = tree.vfs.stat(&tree.ctx, name, LookupFlags::empty());
            assert_eq!(now.unwrap().ino, ino, "EDGE-1: {what}");
        });
    }
    each(|tree| {
        fs::write(tree.host("new"), b"newer").unwrap();
        fs::rename(tree.host("new"), tree.host("file")).unwrap();
        assert_eq!(tree.read("/file").unwrap(), b"newer", "EDGE-1");
        tree.vfs.unlink(&tree.ctx, "/file").unwrap();
        assert!(!tree.host("file").exists(), "EDGE-1");
    });
}
