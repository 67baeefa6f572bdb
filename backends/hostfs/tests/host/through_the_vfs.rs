//! A host directory used through the `Vfs`, as programs use it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::common::{AN_HOUR, EVERY_FRESHNESS, Scratch, is_root, skip};
use rcuwalk::{
    Access, Credentials, Error, Freshness, InodeFlags, LookupFlags, OpenFlags, Vfs, XattrFlags,
};
use rcuwalk_hostfs::{Actor, HostFs};
use rcuwalk_testkit::{acl, wait_until};

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// An empty root; watched by whatever there is.
fn mounted(freshness: Freshness) -> Scratch {
    let mut tree = Scratch::new(freshness, |_| {});
    if freshness == Freshness::Watched {
        let watched = HostFs::new(tree.host("")).unwrap().watched().unwrap();
        tree.vfs = Vfs::new(watched).unwrap();
        tree.ctx = tree.vfs.context(Credentials::root());
    }
    tree
}

/// EDGE-1: a session of changes has the same result on the host, however long names stay
/// cached.
#[test]
fn a_session_ends_on_the_host() {
    for freshness in EVERY_FRESHNESS {
        let tree = mounted(freshness);
        let (vfs, ctx) = (&tree.vfs, &tree.ctx);
        vfs.mkdir(ctx, "/d", 0o755).unwrap();
        let how = (BOTH | OpenFlags::CREATE | OpenFlags::EXCL).mode(0o640);
        let file = vfs.open(ctx, "/d/new", how).unwrap();
        assert_eq!(file.write_at(b"hello", 0).unwrap(), 5);
        assert_eq!(file.attr().size, 5, "EDGE-1");
        file.sync(false).unwrap();
        let again = vfs.open(ctx, "/d/new", how);
        assert!(matches!(again, Err(Error::Exists)), "EDGE-1");
        vfs.link(ctx, "/d/new", "/d/second").unwrap();
        assert_eq!(file.attr().nlink, 2, "EDGE-1");
        vfs.rename(ctx, "/d/new", "/moved").unwrap();
        assert!(matches!(tree.stat("/d/new"), Err(Error::NotFound)));
        vfs.unlink(ctx, "/d/second").unwrap();
        vfs.rmdir(ctx, "/d").unwrap();
        assert_eq!(tree.read("/moved").unwrap(), b"hello", "EDGE-1");
        assert_eq!(fs::read(tree.host("moved")).unwrap(), b"hello", "EDGE-1");
        vfs.truncate(ctx, "/moved", 2).unwrap();
        vfs.chmod(ctx, "/moved", 0o600).unwrap();
        vfs.set_xattr(
            ctx,
            "/moved",
            "user.a",
            b"1",
            XattrFlags::empty(),
            LookupFlags::FOLLOW,
        )
        .unwrap();
        let host = fs::metadata(tree.host("moved")).unwrap();
        assert_eq!((host.len(), host.mode() & 0o7777), (2, 0o600), "EDGE-1");
        let appended = vfs
            .open(ctx, "/moved", OpenFlags::WRITE | OpenFlags::APPEND)
            .unwrap();
        appended.write_at(b"y!", 0).unwrap();
        assert_eq!(fs::read(tree.host("moved")).unwrap(), b"hey!", "EDGE-1");
        let cut = OpenFlags::WRITE | OpenFlags::TRUNC;
        assert_eq!(vfs.open(ctx, "/moved", cut).unwrap().attr().size, 0);

        let nameless = vfs
            .open(ctx, "/", (BOTH | OpenFlags::TMPFILE).mode(0o600))
            .unwrap();
        nameless.write_at(b"nameless", 0).unwrap();
        let at = ctx.clone().with_cwd(nameless.path().clone());
        vfs.linkat(
            &at,
            (nameless.path(), ""),
            (ctx.root(), "named"),
            LookupFlags::EMPTY_PATH,
        )
        .unwrap();
        assert_eq!(fs::read(tree.host("named")).unwrap(), b"nameless");
        assert_eq!(tree.stat("/named").unwrap().size, 8, "EDGE-1");
        vfs.unlink(ctx, "/named").unwrap();
        assert_eq!(nameless.attr().nlink, 0, "EDGE-1");
        let mut buf = [0; 8];
        assert_eq!(nameless.read_at(&mut buf, 0).unwrap(), 8, "EDGE-1");

        // Directories made here are watched like those that were found.
        vfs.mkdir(ctx, "/watched", 0o755).unwrap();
        vfs.create(ctx, "/watched/file", 0o644).unwrap();
        fs::write(tree.host("watched/file"), b"theirs").unwrap();
        if freshness == Freshness::Watched {
            wait_until("EDGE-1: it is heard of", || {
                tree.stat("/watched/file").unwrap().size == 6
            });
        }
    }
}

/// EDGE-1: the host's ACLs decide, also after they change there.
#[test]
fn the_hosts_acls_are_obeyed() {
    const NAME: &str = "system.posix_acl_access";
    let tree = Scratch::new(Freshness::EachUse, |root| {
        fs::write(root.join("file"), b"x").unwrap();
        fs::set_permissions(root.join("file"), PermissionsExt::from_mode(0o600)).unwrap();
    });
    let mine = fs::metadata(tree.host("file")).unwrap();
    let may = |uid, gid| {
        let ctx = tree.vfs.context(Credentials::user(uid, gid));
        let read = tree
            .vfs
            .access(&ctx, "/file", Access::READ, LookupFlags::FOLLOW);
        read.is_ok()
    };
    let everyone = || (may(54321, 1), may(54322, mine.gid()), may(54323, 1));
    assert_eq!(everyone(), (false, false, false), "EDGE-1");
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(
        tree.host("file"),
        NAME,
        &acl("u::6 u:54321:4 g::0 m::4 o::0"),
        flags,
    ) {
        Err(rustix::io::Errno::OPNOTSUPP) => {
            return skip("needs ACLs in the directory for temporary files");
        }
        set => set.unwrap(),
    }
    // The mask shows as the group's bits: the group itself has none.
    assert_eq!(everyone(), (true, false, false), "EDGE-1");
    // Without the ACL, the former mask is the group's.
    rustix::fs::removexattr(tree.host("file"), NAME).unwrap();
    assert_eq!(everyone(), (false, true, false), "EDGE-1");
    fs::set_permissions(tree.host("file"), PermissionsExt::from_mode(0o604)).unwrap();
    assert_eq!(everyone(), (true, false, true), "EDGE-1");
}

/// EDGE-1: a request that the host refuses its caller fails, even if the VFS allows it by old
/// attributes.
#[test]
fn the_host_has_the_last_word() {
    if !is_root() {
        return skip("needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let open = |mode| fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).unwrap();
    open(0o777);
    let fs = HostFs::new(dir.path())
        .unwrap()
        .with_freshness(AN_HOUR)
        .acting_as(Actor::Caller)
        .unwrap();
    let vfs = Vfs::new(fs).unwrap();
    let ctx = vfs.context(Credentials::user(1000, 1000));
    vfs.create(&ctx, "/mine", 0o644).unwrap();
    let made = fs::metadata(dir.path().join("mine")).unwrap();
    assert_eq!((made.uid(), made.gid()), (1000, 1000), "EDGE-1");
    // The old mode is cached for an hour.
    open(0o755);
    for made in [
        vfs.create(&ctx, "/more", 0o644).map(drop),
        vfs.mkdir(&ctx, "/dir", 0o755).map(drop),
        vfs.unlink(&ctx, "/mine"),
        vfs.rename(&ctx, "/mine", "/yours"),
    ] {
        assert!(matches!(made, Err(Error::PermissionDenied)), "EDGE-1");
    }
    assert!(dir.path().join("mine").exists(), "EDGE-1");
    vfs.create(&vfs.context(Credentials::root()), "/roots", 0o644)
        .unwrap();
}

/// EDGE-1: a change after another one on the host has Linux's result.
#[test]
fn changes_behind_the_cache_are_met() {
    for freshness in [AN_HOUR, Freshness::EachUse] {
        let tree = Scratch::new(freshness, |root| {
            fs::create_dir(root.join("d")).unwrap();
            for file in ["gone", "replaced", "kept"] {
                fs::write(root.join("d").join(file), b"old").unwrap();
            }
        });
        let (vfs, ctx) = (&tree.vfs, &tree.ctx);
        for path in ["/d/gone", "/d/replaced", "/d/kept"] {
            tree.stat(path).unwrap();
        }
        assert!(matches!(tree.stat("/d/new"), Err(Error::NotFound)));
        fs::remove_file(tree.host("d/gone")).unwrap();
        fs::rename(tree.host("d/replaced"), tree.host("d/away")).unwrap();
        fs::write(tree.host("d/replaced"), b"another").unwrap();
        fs::write(tree.host("d/new"), b"theirs").unwrap();

        let gone = vfs.unlink(ctx, "/d/gone");
        assert!(
            matches!(gone, Err(Error::NotFound)),
            "EDGE-1: {freshness:?}"
        );
        let made = vfs.create(ctx, "/d/new", 0o600);
        assert!(matches!(made, Err(Error::Exists)), "EDGE-1: {freshness:?}");
        assert_eq!(tree.read("/d/new").unwrap(), b"theirs", "EDGE-1");
        vfs.chmod(ctx, "/d/replaced", 0o600).unwrap();
        let mode = |path: &str| fs::metadata(tree.host(path)).unwrap().mode() & 0o7777;
        assert_eq!(mode("d/replaced"), 0o600, "EDGE-1: what is there now");
        assert_ne!(mode("d/away"), 0o600, "EDGE-1: not what was");
        symlink("kept", tree.host("d/link")).unwrap();
        vfs.rename(ctx, "/d/link", "/d/replaced").unwrap();
        assert_eq!(tree.read("/d/replaced").unwrap(), b"old", "EDGE-1");
    }
}

/// EDGE-1: an append-only file keeps its mode: so a write that would clear its set-id bits
/// fails, whichever credentials the host sees.
#[test]
fn set_id_bits_that_cannot_go_forbid_a_write() {
    if !is_root() {
        return skip("needs root");
    }
    let tree = mounted(Freshness::Always);
    let (vfs, root) = (&tree.vfs, &tree.ctx);
    vfs.create(root, "/file", 0o644).unwrap();
    vfs.chmod(root, "/file", 0o6777).unwrap();
    let somebody = vfs.context(Credentials::user(1000, 1000));
    let file = vfs.open(&somebody, "/file", BOTH).unwrap();
    match vfs.set_flags(root, "/file", InodeFlags::APPEND) {
        Err(Error::NotSupported) => return skip("needs a host with such files"),
        set => set.unwrap(),
    }
    let written = file.write_at(b"x", 0);
    let attr = file.attr();
    vfs.set_flags(root, "/file", InodeFlags::empty()).unwrap();
    assert!(matches!(written, Err(Error::NotPermitted)), "EDGE-1");
    assert_eq!((attr.size, attr.mode), (0, 0o6777), "EDGE-1");
    assert_eq!(file.write_at(b"x", 0).unwrap(), 1, "EDGE-1");
    assert_eq!(file.attr().mode, 0o777, "EDGE-1");
}

/// EDGE-1: an empty write to an immutable file has the host's answer.
#[test]
fn an_empty_write_is_the_hosts_to_refuse() {
    if !is_root() {
        return skip("needs root");
    }
    let tree = mounted(Freshness::Always);
    let (vfs, ctx) = (&tree.vfs, &tree.ctx);
    vfs.create(ctx, "/file", 0o644).unwrap();
    let file = vfs.open(ctx, "/file", BOTH).unwrap();
    let path = tree.host("file");
    let host = fs::OpenOptions::new().write(true).open(path).unwrap();
    match vfs.set_flags(ctx, "/file", InodeFlags::IMMUTABLE) {
        Err(Error::NotSupported) => return skip("needs a host with immutable files"),
        set => set.unwrap(),
    }
    let before = file.attr();
    let ours = file.write_at(b"", 5).map_err(|err| err.errno());
    let hosts = rustix::io::pwrite(&host, b"", 5).map_err(|err| err.raw_os_error());
    let after = file.attr();
    vfs.set_flags(ctx, "/file", InodeFlags::empty()).unwrap();
    assert_eq!(ours, hosts, "EDGE-1");
    assert_eq!(before, after, "EDGE-1");
    assert_eq!(file.write_at(b"", 5).unwrap(), 0, "EDGE-1");
    assert_eq!(file.attr().size, 0, "EDGE-1");
}
