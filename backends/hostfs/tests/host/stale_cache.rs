//! Changes on the host under a cache without expiry: once a call has found one out, the cache
//! knows it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use crate::common::{AN_HOUR, Scratch, is_root, skip};
use rcuwalk::{
    Context, Credentials, Error, FileType, Freshness, LookupFlags, MountFlags, OpenFlags,
    RenameFlags, SetAttr, Vfs, XattrFlags,
};
use rcuwalk_hostfs::HostFs;
use rcuwalk_testkit::acl;

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
        ("create", |vfs, ctx| {
            vfs.create(ctx, "/missing", 0o644).map(drop)
        }),
        ("mkdir", |vfs, ctx| {
            vfs.mkdir(ctx, "/missing", 0o755).map(drop)
        }),
        ("mknod", |vfs, ctx| {
            vfs.mknod(ctx, "/missing", FileType::Fifo, 0o600, 0)
                .map(drop)
        }),
        ("symlink", |vfs, ctx| {
            vfs.symlink(ctx, "x", "/missing").map(drop)
        }),
        ("link", |vfs, ctx| {
            vfs.link(ctx, "/own", "/missing").map(drop)
        }),
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
    const CHANGE: [(&str, Call); 6] = [
        ("unlink", |vfs, ctx| vfs.unlink(ctx, "/file")),
        ("unlink_open", |vfs, ctx| {
            vfs.unlink_open(ctx, "/file").map(drop)
        }),
        ("rename", |vfs, ctx| vfs.rename(ctx, "/file", "/elsewhere")),
        ("link", |vfs, ctx| {
            vfs.link(ctx, "/file", "/elsewhere").map(drop)
        }),
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
        ("link", |vfs, ctx| {
            vfs.link(ctx, "/file", "/elsewhere").map(drop)
        }),
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

const USER: u32 = 3002;

/// Owner, mode, size, and number of names of a file on the host.
fn on_host(tree: &Scratch, name: &str) -> (u32, u32, u64, u64) {
    let is = fs::symlink_metadata(tree.host(name)).unwrap();
    (is.uid(), is.mode() & 0o7777, is.size(), is.nlink())
}

fn set_mode(tree: &Scratch, name: &str, mode: u32) {
    fs::set_permissions(tree.host(name), PermissionsExt::from_mode(mode)).unwrap();
}

/// `file` and `dir` are the user's, and cached as such.
fn of_user() -> (Scratch, Context) {
    let tree = Scratch::new(AN_HOUR, |root| {
        fs::write(root.join("file"), b"text").unwrap();
        fs::create_dir(root.join("dir")).unwrap();
        for name in ["file", "dir"] {
            chown(root.join(name), Some(USER), Some(USER)).unwrap();
        }
        fs::set_permissions(root, PermissionsExt::from_mode(0o1777)).unwrap();
    });
    let user = tree.vfs.context(Credentials::user(USER, USER));
    for name in ["/file", "/dir"] {
        let is = tree.vfs.stat(&user, name, LookupFlags::empty()).unwrap();
        assert_eq!(is.uid, USER);
    }
    (tree, user)
}

fn assert_refused<T: std::fmt::Debug>(what: &str, done: &Result<T, Error>) {
    assert!(
        matches!(done, Err(Error::NotPermitted | Error::PermissionDenied)),
        "EDGE-1: {what}: {done:?}"
    );
}

/// EDGE-1: the daemon does not do to root's file what its former owner was permitted: the
/// owner has changed on the host since the VFS last asked.
#[test]
fn a_former_owner_changes_nothing() {
    const CHANGE: [(&str, &str, Call); 10] = [
        ("chmod", "file", |vfs, ctx| vfs.chmod(ctx, "/file", 0o4755)),
        ("chmod", "dir", |vfs, ctx| vfs.chmod(ctx, "/dir", 0o777)),
        ("truncate", "file", |vfs, ctx| vfs.truncate(ctx, "/file", 0)),
        ("setattr", "file", |vfs, ctx| {
            let change = SetAttr::default().mode(0o6777).size(0);
            vfs.setattr(ctx, "/file", &change, LookupFlags::empty())
        }),
        ("open to truncate", "file", |vfs, ctx| {
            let flags = OpenFlags::WRITE | OpenFlags::TRUNC;
            vfs.open(ctx, "/file", flags).map(drop)
        }),
        ("open to read", "file", |vfs, ctx| {
            vfs.open(ctx, "/file", OpenFlags::READ).map(drop)
        }),
        ("set_xattr", "file", |vfs, ctx| {
            let flags = (XattrFlags::empty(), LookupFlags::empty());
            vfs.set_xattr(ctx, "/file", "user.x", b"x", flags.0, flags.1)
        }),
        ("get_xattr", "file", |vfs, ctx| {
            let value = vfs.get_xattr(ctx, "/file", "user.x", LookupFlags::empty());
            value.map(drop)
        }),
        ("unlink", "file", |vfs, ctx| vfs.unlink(ctx, "/file")),
        ("rename", "file", |vfs, ctx| {
            vfs.rename(ctx, "/file", "/moved")
        }),
    ];
    if !is_root() {
        return skip("needs root");
    }
    for (what, name, change) in CHANGE {
        let (tree, user) = of_user();
        chown(tree.host(name), Some(0), Some(0)).unwrap();
        set_mode(&tree, name, 0o600);
        let before = on_host(&tree, name);
        assert_refused(what, &change(&tree.vfs, &user));
        assert_eq!(on_host(&tree, name), before, "EDGE-1: {what}");
        assert_eq!(tree.stat(name).unwrap().uid, 0, "EDGE-1: {what}");
        // The mode alone: nothing is refused that is permitted by now.
        chown(tree.host(name), Some(USER), Some(USER)).unwrap();
        set_mode(&tree, name, 0o700);
        let _ = change(&tree.vfs, &user);
        let done = change(&tree.vfs, &user);
        assert!(!matches!(done, Err(Error::Stale)), "EDGE-1: {what}");
    }
}

/// EDGE-1: neither does it by a file that the former owner has open.
#[test]
fn a_former_owner_changes_nothing_by_an_open_file() {
    if !is_root() {
        return skip("needs root");
    }
    let (tree, user) = of_user();
    let file = tree.vfs.open(&user, "/file", OpenFlags::READ).unwrap();
    chown(tree.host("file"), Some(0), Some(0)).unwrap();
    let before = on_host(&tree, "file");
    let change = SetAttr::default().mode(0o4755);
    assert_refused("fchmod", &file.setattr(&change));
    let done = file.set_xattr("user.x", b"x", XattrFlags::empty());
    assert_refused("fsetxattr", &done);
    assert_eq!(on_host(&tree, "file"), before, "EDGE-1");
}

/// EDGE-1: the host has given a file to another user. In a sticky directory only the new owner
/// may replace it.
#[test]
fn a_former_owner_replaces_nothing() {
    if !is_root() {
        return skip("needs root");
    }
    let (tree, user) = of_user();
    tree.vfs.create(&user, "/new", 0o644).unwrap();
    chown(tree.host("file"), Some(0), Some(0)).unwrap();
    assert_refused("rename", &tree.vfs.rename(&user, "/new", "/file"));
    assert_eq!(on_host(&tree, "file").2, 4, "EDGE-1");
}

/// EDGE-1: on a mount that protects links, a former owner gives no further names.
#[test]
fn a_former_owner_links_nothing() {
    if !is_root() {
        return skip("needs root");
    }
    let (tree, user) = of_user();
    let flags = MountFlags::PROTECTED_LINKS;
    tree.vfs.remount(&tree.ctx, "/", flags).unwrap();
    chown(tree.host("file"), Some(0), Some(0)).unwrap();
    assert_refused("link", &tree.vfs.link(&user, "/file", "/second"));
    assert_eq!(on_host(&tree, "file").3, 1, "EDGE-1");
}

/// EDGE-1: an ACL that withdraws the group's rights counts, though the mode stays as it is.
#[test]
fn an_acl_that_is_new_on_the_host_counts() {
    if !is_root() {
        return skip("needs root");
    }
    let (tree, _) = of_user();
    let member = tree.vfs.context(Credentials::user(USER + 1, USER));
    set_mode(&tree, "file", 0o660);
    tree.vfs.chmod(&tree.ctx, "/file", 0o660).unwrap();
    let open = || {
        let opened = tree.vfs.open(&member, "/file", OpenFlags::WRITE);
        opened.map(drop)
    };
    open().unwrap();
    let acl = acl("u::6 u:4711:6 g::0 m::6 o::0");
    let name = "system.posix_acl_access";
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(tree.host("file"), name, &acl, flags).is_err() {
        return skip("needs ACLs");
    }
    assert_eq!(on_host(&tree, "file").1, 0o660, "the mode is the same");
    assert_refused("open", &open());
}

/// EDGE-1: that a directory has no default ACL is believed as long as its attributes are, and no
/// longer than until one is set through this mount.
#[test]
fn a_default_acl_counts_once_it_is_known() {
    let name = "system.posix_acl_default";
    let acl = acl("u::6 u:4711:6 g::0 m::6 o::0");
    for (freshness, is_seen) in [(AN_HOUR, false), (Freshness::EachUse, true)] {
        let tree = cached(freshness);
        let ctx = tree.ctx.clone().with_umask(0o077);
        let mode_of_new = |path: &str| {
            let make = OpenFlags::WRITE | OpenFlags::CREATE;
            let how = make.mode(0o666);
            tree.vfs.open(&ctx, path, how).unwrap();
            on_host(&tree, &path[1..]).1 & 0o777
        };
        assert_eq!(mode_of_new("/dir/first"), 0o600, "there is none");
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::setxattr(tree.host("dir"), name, &acl, flags).is_err() {
            return skip("needs ACLs");
        }
        let expected = if is_seen { 0o660 } else { 0o600 };
        assert_eq!(mode_of_new("/dir/second"), expected, "{freshness:?}");
        let flags = XattrFlags::empty();
        let set = tree
            .vfs
            .set_xattr(&ctx, "/dir", name, &acl, flags, LookupFlags::empty());
        set.unwrap();
        assert_eq!(mode_of_new("/dir/third"), 0o660, "EDGE-1");
        let removed = tree
            .vfs
            .remove_xattr(&ctx, "/dir", name, LookupFlags::empty());
        removed.unwrap();
        assert_eq!(mode_of_new("/dir/fourth"), 0o600, "EDGE-1");
    }
}

/// A pipe or a device that has taken a file's place is not even opened, if files are held first.
#[test]
fn what_takes_a_files_place_is_not_opened() {
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    for holds in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (file, pipe) = (dir.path().join("file"), dir.path().join("pipe"));
        fs::write(&file, b"old").unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let host = HostFs::new(dir.path()).unwrap();
        let host = host.with_freshness(Freshness::Always);
        let vfs = Vfs::new(match holds {
            true => host.opening_held_files(),
            false => host,
        });
        let vfs = vfs.unwrap();
        let ctx = vfs.context(Credentials::root());
        for flags in [OpenFlags::READ, OpenFlags::READ | OpenFlags::WRITE] {
            drop(vfs.open(&ctx, "/file", flags).unwrap());
        }
        fs::rename(&pipe, &file).unwrap();
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&events, &file, WatchFlags::OPEN).unwrap();
        let opened = vfs.open(&ctx, "/file", OpenFlags::READ);
        assert!(opened.is_err(), "{opened:?}");
        let mut buf = [std::mem::MaybeUninit::uninit(); 512];
        let mut reader = inotify::Reader::new(&events, &mut buf);
        let was_opened = reader.next().is_ok();
        assert_eq!(was_opened, !holds);
    }
}
