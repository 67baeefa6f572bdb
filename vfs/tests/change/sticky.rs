//! Sticky directories: the owners that may remove names, and the links and files that are refused.

use rcuwalk::{Caps, Context, Credentials, Error, FileType, LookupFlags, MountFlags, OpenFlags};

use super::changes::{RW, errno, exists};
use crate::common::{FOLLOW, REF, Tree};

/// EDGE-1: in a sticky directory, owners remove: of the file or of the directory.
#[test]
fn sticky_directories_protect_owners() {
    let tree = Tree::new("tmp/ tmp/file tmp/other");
    tree.chmod("/tmp", 0o1777);
    tree.chown("/tmp/file", 1);
    let eperm = Error::NotPermitted.errno();
    let vfs = &tree.vfs;
    assert_eq!(
        errno(vfs.unlink(&tree.user(2), "/tmp/file")),
        eperm,
        "EDGE-1"
    );
    assert_eq!(
        errno(vfs.rename(&tree.user(2), "/tmp/file", "/tmp/x")),
        eperm,
        "EDGE-1"
    );
    assert_eq!(
        errno(vfs.rename(&tree.user(1), "/tmp/file", "/tmp/other")),
        eperm,
        "EDGE-1"
    );
    let mut fowner = Credentials::user(2, 2);
    fowner.caps = Caps::FOWNER;
    let fowner = vfs.context(fowner);
    assert_eq!(
        errno(vfs.rename(&fowner, "/tmp/other", "/tmp/third")),
        0,
        "EDGE-1"
    );
    assert_eq!(errno(vfs.unlink(&tree.user(1), "/tmp/file")), 0, "EDGE-1");
}

/// EDGE-1: on a mount with `PROTECTED_LINKS`, both walks refuse another user's link in a sticky
/// directory that everyone may write; on other mounts they follow it.
#[test]
fn protected_links() {
    let tree = Tree::new("target tmp/ tmp/link->/target tmp/dirlink->/dir dir/ dir/file secret");
    let vfs = &tree.vfs;
    tree.chmod("/tmp", 0o1777);
    tree.chmod("/secret", 0o600);
    for path in ["/tmp/link", "/tmp/dirlink"] {
        tree.chown(path, 1);
    }
    vfs.create(&tree.user(1), "/tmp/trap", 0o666).unwrap();
    let eacces = Error::PermissionDenied.errno();
    let create = (RW | OpenFlags::CREATE).mode(0o644);
    let (two, at) = (tree.user(2), tree.ctx.root());
    for protects in [false, true] {
        let flags = MountFlags::PROTECTED_LINKS;
        let flags = if protects { flags } else { MountFlags::empty() };
        vfs.remount(&tree.ctx, "/", flags).unwrap();
        let refused = |err| if protects { err } else { 0 };
        for flags in [REF, FOLLOW, FOLLOW] {
            let stat = |ctx, path: &str| errno(vfs.stat(ctx, path, flags));
            for who in [&two, &tree.ctx] {
                for path in ["/tmp/link", "/tmp/dirlink", "/tmp/dirlink/"] {
                    assert_eq!(stat(who, path), refused(eacces), "EDGE-1: {path} {flags:?}");
                }
                assert_eq!(
                    stat(who, "/tmp/dirlink/file"),
                    0,
                    "EDGE-1: not the last one"
                );
            }
            assert_eq!(stat(&tree.user(1), "/tmp/link"), 0, "EDGE-1: one's own");
        }
        assert_eq!(
            errno(vfs.open(&two, "/tmp/trap", create)),
            refused(eacces),
            "EDGE-1"
        );
        assert_eq!(
            errno(vfs.open(&two, "/tmp/trap", RW)),
            0,
            "EDGE-1: not to make it"
        );
        let link = |old: &str| {
            let old = (at, old);
            errno(vfs.linkat(&two, old, (at, "/tmp/new"), LookupFlags::empty()))
        };
        let eperm = Error::NotPermitted.errno();
        assert_eq!(link("/secret"), refused(eperm), "EDGE-1");
        assert_eq!(
            link("/tmp/link"),
            if protects { eperm } else { exists() },
            "EDGE-1"
        );
        if !protects {
            vfs.unlink(&tree.ctx, "/tmp/new").unwrap();
        }
        assert_eq!(link("/tmp/trap"), 0, "EDGE-1: it could be written");
        vfs.unlink(&tree.ctx, "/tmp/new").unwrap();
    }
}

/// EDGE-1: `protected_symlinks` is about a link in the last place that is followed. A change
/// goes through links in the middle of its path, those that links lead to included.
#[test]
fn changes_follow_links_in_the_middle_of_a_path() {
    let tree =
        Tree::new("dir/ dir/file tmp/ tmp/dirlink->/dir tmp/twice->dirlink tmp/end->/dir/end");
    let vfs = &tree.vfs;
    tree.chmod("/tmp", 0o1777);
    tree.chmod("/dir", 0o777);
    for path in ["/tmp/dirlink", "/tmp/twice", "/tmp/end"] {
        tree.chown(path, 1);
    }
    tree.chown("/dir/file", 2);
    let flags = MountFlags::PROTECTED_LINKS;
    vfs.remount(&tree.ctx, "/", flags).unwrap();
    let two = tree.user(2);
    let create = (RW | OpenFlags::CREATE).mode(0o644);
    for (way, cached) in [("dirlink", false), ("dirlink", true), ("twice", true)] {
        let path = |last: &str| format!("/tmp/{way}/{last}");
        if !cached {
            vfs.drop_caches();
        }
        for (what, done) in [
            ("create", vfs.create(&two, path("a"), 0o644).map(drop)),
            ("mkdir", vfs.mkdir(&two, path("b//"), 0o755).map(drop)),
            (
                "mknod",
                vfs.mknod(&two, path("c"), FileType::Fifo, 0o644, 0)
                    .map(drop),
            ),
            ("symlink", vfs.symlink(&two, "x", path("d")).map(drop)),
            ("link", vfs.link(&two, path("file"), path("e")).map(drop)),
            ("open", vfs.open(&two, path("f"), create).map(drop)),
            ("rename", vfs.rename(&two, path("f"), path("g"))),
            ("rmdir", vfs.rmdir(&two, path("b/"))),
        ] {
            assert_eq!(errno(done), 0, "EDGE-1: {what} by {way}");
        }
        for last in ["a", "c", "d", "e", "g"] {
            let gone = vfs.unlink(&two, path(last));
            assert_eq!(errno(gone), 0, "EDGE-1: unlink {last} by {way}");
        }
    }
    let eacces = Error::PermissionDenied.errno();
    let at_the_end = vfs.open(&two, "/tmp/end", create);
    assert_eq!(
        errno(at_the_end),
        eacces,
        "EDGE-1: the last one is followed"
    );
    assert_eq!(
        errno(vfs.mkdir(&two, "/tmp/end", 0o755)),
        exists(),
        "EDGE-1: it is not"
    );
}

/// EDGE-1: opening with `CREATE` in a sticky directory that everyone may write, where another
/// user's file has the name: as seen in the running kernel with its sysctls set to 0 and to 1.
#[test]
fn what_is_found_in_a_sticky_directory() {
    let tree = Tree::new("tmp/ tmp/file");
    let vfs = &tree.vfs;
    tree.chmod("/tmp", 0o1777);
    tree.chown("/tmp", 2);
    for (path, kind) in [
        ("/tmp/fifo", FileType::Fifo),
        ("/tmp/socket", FileType::Socket),
        ("/tmp/device", FileType::CharDevice),
    ] {
        vfs.mknod(&tree.ctx, path, kind, 0, 0x103).unwrap();
    }
    for path in ["/tmp/file", "/tmp/fifo", "/tmp/socket", "/tmp/device"] {
        tree.chown(path, 1);
        tree.chmod(path, 0o666);
    }
    let create = (RW | OpenFlags::CREATE).mode(0o644);
    let open = |who: &Context, path: &str| errno(vfs.open(who, path, create));
    let eacces = Error::PermissionDenied.errno();
    let enxio = Error::NoSuchDevice.errno();
    for flags in [MountFlags::empty(), MountFlags::PROTECTED_LINKS] {
        vfs.remount(&tree.ctx, "/", flags).unwrap();
        let protects = !flags.is_empty();
        let refused = |or| if protects { eacces } else { or };
        for who in [&tree.ctx, &tree.user(3)] {
            assert_eq!(open(who, "/tmp/file"), refused(0), "EDGE-1");
            assert_eq!(open(who, "/tmp/fifo"), refused(enxio), "EDGE-1");
            assert_eq!(open(who, "/tmp/socket"), eacces, "EDGE-1");
            assert_eq!(open(who, "/tmp/device"), eacces, "EDGE-1");
        }
        assert_eq!(
            open(&tree.user(1), "/tmp/socket"),
            enxio,
            "EDGE-1: one's own"
        );
    }
}

/// EDGE-1: opening with `CREATE` does not open another user's special file in a sticky
/// directory that everyone may write, whether the mount protects it or not.
#[test]
fn what_is_no_file_is_in_the_way_in_a_sticky_directory() {
    let tree = Tree::new("tmp/ tmp/link->/file file");
    tree.chmod("/tmp", 0o1777);
    tree.chown("/tmp", 1);
    let root = tree.ctx.clone().with_umask(0);
    for (path, kind) in [
        ("/tmp/device", FileType::CharDevice),
        ("/tmp/socket", FileType::Socket),
        ("/tmp/fifo", FileType::Fifo),
    ] {
        tree.vfs.mknod(&root, path, kind, 0o666, 0).unwrap();
    }
    let open = |who, path, flags: OpenFlags| {
        let how = (OpenFlags::READ | flags).mode(0o600);
        errno(tree.vfs.open(who, path, how))
    };
    let (create, nofollow) = (OpenFlags::CREATE, OpenFlags::NOFOLLOW);
    let eacces = Error::PermissionDenied.errno();
    let enxio = Error::NoSuchDevice.errno();
    let eloop = Error::TooManySymlinks.errno();
    let two = &tree.user(2);
    for path in ["/tmp/device", "/tmp/socket"] {
        assert_eq!(open(two, path, create), eacces, "EDGE-1: {path}");
        assert_eq!(open(two, path, nofollow), enxio, "EDGE-1: {path}");
        assert_eq!(open(&tree.ctx, path, create), enxio, "EDGE-1: {path}");
    }
    assert_eq!(open(two, "/tmp/fifo", create), enxio, "EDGE-1");
    let link = "/tmp/link";
    assert_eq!(open(two, link, create | nofollow), eacces, "EDGE-1");
    assert_eq!(open(&tree.ctx, link, create | nofollow), eloop, "EDGE-1");
    assert_eq!(open(two, link, create), 0, "EDGE-1: followed");
}
