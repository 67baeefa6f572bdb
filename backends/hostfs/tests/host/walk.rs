//! Which files a walk over a host directory finds, and which it cannot reach.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::thread;

use crate::common::{AN_HOUR, Scratch};
use rcuwalk::{Access, Credentials, Error, FileType, LookupFlags, OpenFlags, Vfs};
use rcuwalk_hostfs::HostFs;
use rustix::fs::{CWD, Mode};

fn a_small_tree() -> Scratch {
    Scratch::new(AN_HOUR, |root| {
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), b"contents").unwrap();
        fs::hard_link(root.join("a/b/file"), root.join("a/twin")).unwrap();
        symlink("b/file", root.join("a/link")).unwrap();
        symlink("/a/b", root.join("abs")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let mode = Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(CWD, root.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    })
}

/// EDGE-1: every attribute is the host's, through both walkers.
#[test]
fn stat_tells_what_the_host_tells() {
    let tree = a_small_tree();
    for path in [
        "", "a", "a/b", "a/b/file", "a/twin", "a/link", "loop", "fifo",
    ] {
        let host = fs::symlink_metadata(tree.host(path)).unwrap();
        for flags in [LookupFlags::empty(), LookupFlags::REF_WALK] {
            let attr = tree.vfs.stat(&tree.ctx, format!("/{path}"), flags).unwrap();
            let ours = (attr.ino, attr.st_mode(), attr.size, attr.blocks, attr.rdev);
            let theirs = (
                host.ino(),
                host.mode(),
                host.size(),
                host.blocks(),
                host.rdev(),
            );
            assert_eq!(ours, theirs, "EDGE-1: /{path}");
            let ours = (u64::from(attr.nlink), attr.uid, attr.gid);
            assert_eq!(
                ours,
                (host.nlink(), host.uid(), host.gid()),
                "EDGE-1: /{path}"
            );
            let ours = (attr.mtime.sec, i64::from(attr.mtime.nsec), attr.ctime.sec);
            let theirs = (host.mtime(), host.mtime_nsec(), host.ctime());
            assert_eq!(ours, theirs, "EDGE-1: /{path}");
        }
    }
}

/// EDGE-1: walks end as Linux ends them.
#[test]
fn failing_walks_fail_as_on_the_host() {
    let tree = a_small_tree();
    // Twice: from the host, and from the cache.
    for round in ["cold", "cached"] {
        let cases = [
            ("/none", Error::NotFound),
            ("/none/below", Error::NotFound),
            ("/a/b/file/below", Error::NotADirectory),
            ("/a/b/file/", Error::NotADirectory),
            ("/loop", Error::TooManySymlinks),
        ];
        for (path, expected) in cases {
            let err = tree.stat(path).unwrap_err();
            assert_eq!(err.errno(), expected.errno(), "EDGE-1: {path}, {round}");
        }
    }
}

/// INODE-1: two names of one file are one inode.
#[test]
fn hard_links_share_an_inode() {
    let tree = a_small_tree();
    let find = |path| {
        tree.vfs
            .lookup(&tree.ctx, path, LookupFlags::empty())
            .unwrap()
    };
    let (one, two) = (find("/a/b/file"), find("/a/twin"));
    assert!(std::ptr::eq(one.inode(), two.inode()), "INODE-1");
    assert_eq!(one.attr().nlink, 2);
}

/// WALK-3: a link is walked below the mounted root, whatever it means on the host.
#[test]
fn links_lead_through_the_mounted_root_only() {
    let tree = a_small_tree();
    fs::write(tree.outside("secret"), b"from the host").unwrap();
    let outside = tree.outside("secret");
    let outside = outside.to_str().unwrap();
    symlink(outside, tree.host("absolute")).unwrap();
    symlink("../outside/secret", tree.host("climbing")).unwrap();
    symlink("/proc/self/root/etc", tree.host("magic")).unwrap();
    for link in ["/absolute", "/climbing", "/magic"] {
        let found = tree.stat(link);
        assert!(
            matches!(found, Err(Error::NotFound)),
            "WALK-3: {link} left the root"
        );
        assert_eq!(tree.lstat(link).unwrap().kind, FileType::Symlink);
    }

    // The same paths resolve once they exist inside.
    fs::create_dir_all(tree.host("outside")).unwrap();
    fs::write(tree.host("outside/secret"), b"from inside").unwrap();
    tree.vfs.drop_caches();
    assert_eq!(tree.read("/climbing").unwrap(), b"from inside", "WALK-3");
    assert_eq!(tree.read("/abs/file").unwrap(), b"contents", "WALK-3");
    assert_eq!(tree.read("/a/link").unwrap(), b"contents", "WALK-3");
    assert_eq!(
        tree.read("/../../a/b/../b/file").unwrap(),
        b"contents",
        "WALK-3"
    );
}

/// EDGE-1: a link's target comes back byte by byte, links only.
#[test]
fn read_link_returns_the_target() {
    let tree = a_small_tree();
    let long = "x/".repeat(1500);
    symlink(&long, tree.host("long")).unwrap();
    for (path, target) in [("/a/link", "b/file"), ("/abs", "/a/b"), ("/long", &long)] {
        let read = tree.vfs.read_link(&tree.ctx, path).unwrap();
        assert_eq!(&*read, target.as_bytes(), "EDGE-1: {path}");
    }
    let not_a_link = tree.vfs.read_link(&tree.ctx, "/a");
    assert!(matches!(not_a_link, Err(Error::Invalid)), "EDGE-1");
}

/// EDGE-1: a link that may be seen but not read fails when it is read, as on the host.
#[test]
fn an_unreadable_link_can_be_looked_at() {
    // A kernel thread has no executable; without procfs or that thread, ENOENT as well.
    let vfs = Vfs::new(HostFs::new("/proc").unwrap()).unwrap();
    let ctx = vfs.context(Credentials::root());
    let host = fs::read_link("/proc/2/exe").unwrap_err();
    let read = vfs.read_link(&ctx, "/2/exe").unwrap_err();
    assert_eq!(Some(read.errno()), host.raw_os_error(), "EDGE-1: {read}");
    let seen = vfs.stat(&ctx, "/2/exe", LookupFlags::empty());
    assert_eq!(
        seen.is_ok(),
        fs::symlink_metadata("/proc/2/exe").is_ok(),
        "EDGE-1"
    );
}

/// EDGE-1: reads are the host's; a pipe does not open, and a directory cannot be read.
#[test]
fn files_are_read_at_any_offset() {
    let tree = a_small_tree();
    let file = tree
        .vfs
        .open(&tree.ctx, "/a/b/file", OpenFlags::READ)
        .unwrap();
    let mut buf = [0; 5];
    assert_eq!(file.read_at(&mut buf, 3).unwrap(), 5);
    assert_eq!(&buf, b"tents");
    assert_eq!(file.read_at(&mut buf, 6).unwrap(), 2);
    assert_eq!(file.read_at(&mut buf, 8).unwrap(), 0, "EDGE-1: the end");
    assert_eq!(
        file.read_at(&mut buf, 1 << 40).unwrap(),
        0,
        "EDGE-1: beyond the end"
    );
    let opened = tree.vfs.open(&tree.ctx, "/fifo", OpenFlags::READ);
    assert!(opened.is_err(), "EDGE-1: no regular file");
    let dir = tree.vfs.open(&tree.ctx, "/a", OpenFlags::READ).unwrap();
    let read = dir.read_at(&mut buf, 0);
    assert!(matches!(read, Err(Error::IsADirectory)), "EDGE-1");
    dir.sync(false).unwrap();
}

/// EDGE-1: the caller's credentials count, not those of this process.
#[test]
fn the_callers_permissions_are_checked() {
    let tree = a_small_tree();
    let uid = fs::metadata(tree.host("a")).unwrap().uid();
    fs::set_permissions(tree.host("a/b/file"), fs::Permissions::from_mode(0o600)).unwrap();
    let stranger = tree.vfs.context(Credentials::user(uid + 1, 54321));
    let owner = tree.vfs.context(Credentials::user(uid, 54321));
    let may_read = |ctx, path| {
        tree.vfs
            .access(ctx, path, Access::READ, LookupFlags::FOLLOW)
    };
    assert!(may_read(&owner, "/a/b/file").is_ok(), "EDGE-1");
    let denied = may_read(&stranger, "/a/b/file");
    assert!(matches!(denied, Err(Error::PermissionDenied)), "EDGE-1");

    fs::set_permissions(tree.host("a/b"), fs::Permissions::from_mode(0o700)).unwrap();
    tree.vfs.drop_caches();
    let denied = tree.vfs.stat(&stranger, "/a/b/file", LookupFlags::FOLLOW);
    assert!(
        matches!(denied, Err(Error::PermissionDenied)),
        "EDGE-1: no search permission"
    );
}

/// INODE-1: many threads that look the same names up at once agree on the inodes.
#[test]
fn parallel_lookups_find_the_same_inodes() {
    let tree = Scratch::new(AN_HOUR, |root| {
        for i in 0..200 {
            fs::create_dir(root.join(format!("d{i}"))).unwrap();
            symlink("..", root.join(format!("d{i}/up"))).unwrap();
            fs::write(root.join(format!("d{i}/f")), b"").unwrap();
        }
    });
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for i in 0..200 {
                    let expected = fs::metadata(tree.host(&format!("d{i}/f"))).unwrap().ino();
                    for path in [format!("/d{i}/f"), format!("/d{i}/up/d{i}/f")] {
                        assert_eq!(tree.stat(&path).unwrap().ino, expected, "INODE-1: {path}");
                    }
                }
            });
        }
    });
}

/// A mount of the tree itself that the tree shows is a loop, as long as it is mounted.
#[test]
fn a_tree_is_not_found_below_itself() {
    // Below the root, /proc stands for a mount of the tree.
    let device = fs::metadata("/proc").unwrap().dev();
    if device == fs::metadata("/").unwrap().dev() {
        return;
    }
    let vfs = Vfs::new(
        HostFs::new("/")
            .unwrap()
            .with_freshness(rcuwalk::Freshness::EachUse),
    );
    let vfs = vfs.unwrap();
    let ctx = vfs.context(Credentials::root());
    let stat = |path| vfs.stat(&ctx, path, LookupFlags::empty()).map(drop);
    assert!(stat("/proc/self").is_ok());
    vfs.shown(device, true);
    for path in ["/proc", "/proc/self"] {
        assert!(matches!(stat(path), Err(Error::TooManySymlinks)), "{path}");
    }
    assert!(stat("/").is_ok() && stat("/dev").is_ok() && stat("/tmp").is_ok());
    vfs.shown(device, false);
    assert!(stat("/proc").is_ok());
}
