//! Changes of names: permissions, mounts, and the cache afterwards.

use crate::common::{FOLLOW, REF, Tree, grow};
use rcuwalk::{
    Access, Context, Credentials, Error, FileType, InodeFlags, LookupFlags, MountFlags, OpenFlags,
    RenameFlags, Result, VfsPath, XattrFlags,
};

pub(super) const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// 0 or an errno.
pub(super) fn errno<T>(result: Result<T>) -> i32 {
    result.err().map_or(0, |err| err.errno())
}

impl Tree {
    pub(super) fn user(&self, uid: u32) -> Context {
        self.vfs.context(Credentials::user(uid, uid))
    }

    pub(super) fn renameat2(&self, old: &str, new: &str, flags: RenameFlags) -> Result<()> {
        let at = self.ctx.root();
        self.vfs.renameat2(&self.ctx, (at, old), (at, new), flags)
    }

    /// How often the back end was asked for a name.
    pub(super) fn asked(&self) -> u64 {
        self.vfs.statistics().slow_lookups
    }

    pub(super) fn chmod(&self, path: &str, mode: u16) {
        self.vfs.chmod(&self.ctx, path, mode).unwrap();
    }

    pub(super) fn chown(&self, path: &str, uid: u32) {
        let none = LookupFlags::empty();
        let owner = (Some(uid), Some(uid));
        self.vfs
            .chown(&self.ctx, path, owner.0, owner.1, none)
            .unwrap();
    }
}

/// WALK-1: a removed name, and the old name of a renamed file, are cached as missing: the back
/// end is not asked again, and the dentry stays when the name is made again.
#[test]
fn names_that_are_gone_are_known_to_be() {
    let tree = Tree::new("a/ a/file a/dir/ a/old");
    for path in ["/a/file", "/a/dir", "/a/old", "/a/new"] {
        tree.has(path);
    }
    tree.vfs.unlink(&tree.ctx, "/a/file").unwrap();
    tree.vfs.rmdir(&tree.ctx, "/a/dir").unwrap();
    tree.vfs.rename(&tree.ctx, "/a/old", "/a/new").unwrap();
    let before = (tree.asked(), tree.vfs.statistics().dentries.0);
    for path in ["/a/file", "/a/dir", "/a/old"] {
        let cached = tree.vfs.stat(&tree.ctx, path, FOLLOW | LookupFlags::CACHED);
        assert!(matches!(cached, Err(Error::NotFound)), "WALK-1: {path}");
    }
    assert!(tree.has("/a/new"));
    tree.vfs.mkdir(&tree.ctx, "/a/file", 0o755).unwrap();
    tree.vfs.create(&tree.ctx, "/a/dir", 0o644).unwrap();
    tree.vfs.link(&tree.ctx, "/a/new", "/a/old").unwrap();
    for flags in [FOLLOW | LookupFlags::CACHED, REF] {
        let kind = |path| tree.vfs.stat(&tree.ctx, path, flags).unwrap().kind;
        assert_eq!(kind("/a/file"), FileType::Directory, "WALK-1");
        assert_eq!(kind("/a/dir"), FileType::Regular, "WALK-1");
        assert_eq!(kind("/a/old"), FileType::Regular, "WALK-1");
    }
    let after = (tree.asked(), tree.vfs.statistics().dentries.0);
    assert_eq!(after, before, "WALK-1: the same dentries");
}

/// EDGE-1: a file that is held stays the same when its name goes, or comes to refer to another.
#[test]
fn who_holds_a_file_keeps_it() {
    let tree = Tree::new("file other dir/");
    let file = tree.vfs.open(&tree.ctx, "/file", RW).unwrap();
    file.write_at(b"kept", 0).unwrap();
    let (held, other) = (tree.hold("/file"), tree.hold("/other"));
    tree.vfs.rename(&tree.ctx, "/other", "/file").unwrap();
    assert_eq!((held.attr().nlink, other.attr().nlink), (0, 1), "EDGE-1");
    assert_eq!(tree.ino("/file").unwrap(), other.attr().ino);
    tree.vfs.unlink(&tree.ctx, "/file").unwrap();
    tree.vfs.create(&tree.ctx, "/file", 0o644).unwrap();
    let mut buf = [0; 8];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 4, "EDGE-1");
    assert_eq!(&buf[..4], b"kept", "EDGE-1");
    let inos = [
        held.attr().ino,
        other.attr().ino,
        tree.ino("/file").unwrap(),
    ];
    assert!(
        inos[0] != inos[1] && inos[1] != inos[2],
        "INODE-1: {inos:?}"
    );
    // A file without a name gets no new one; the kernel says the same of an open file.
    let at = tree.ctx.root();
    let flags = LookupFlags::EMPTY_PATH;
    let linked = tree
        .vfs
        .linkat(&tree.ctx, (&held, ""), (at, "/again"), flags);
    assert!(matches!(linked, Err(Error::NotFound)), "EDGE-1");
}

/// EDGE-1: a call with a held file acts on that file, wherever the context is and whatever has the
/// file's name now. The file has to be one of the same `Vfs`.
#[test]
fn calls_with_a_held_file_act_on_that_file() {
    let (tree, none) = (Tree::new("dir/ dir/file"), LookupFlags::empty());
    let held = &tree.hold("/dir/file");
    let (vfs, ctx) = (&tree.vfs, &tree.ctx.clone().with_cwd(tree.hold("/dir")));
    vfs.rename(ctx, "/dir/file", "/moved").unwrap();
    vfs.create(ctx, "/dir/file", 0o644).unwrap();
    let attribute = (b"user.x", b"value", XattrFlags::empty());
    let calls = |held: &VfsPath, at: &Tree| {
        let vfs = &at.vfs;
        let (name, value, how) = attribute;
        [
            errno(vfs.chmod(ctx, held, 0o604)),
            errno(vfs.truncate(ctx, held, 5)),
            errno(vfs.set_xattr(ctx, held, name, value, how, none)),
            errno(vfs.get_xattr(ctx, held, name, none)),
            errno(vfs.list_xattrs(ctx, held, none)),
            errno(vfs.access(ctx, held, Access::READ, none)),
            errno(vfs.stat(ctx, held, none)),
            errno(vfs.lookup(ctx, held, none)),
            errno(vfs.open(ctx, held, RW)),
            errno(vfs.statfs(ctx, held)),
            errno(vfs.link(ctx, held, "/again")),
            errno(vfs.remove_xattr(ctx, held, name, none)),
        ]
    };
    assert_eq!(calls(held, &tree), [0; 12], "EDGE-1");
    let moved = vfs.stat(ctx, "/moved", none).unwrap();
    assert_eq!((moved.mode, moved.size, moved.nlink), (0o604, 5, 2));
    assert_eq!(vfs.stat(ctx, held, none).unwrap(), moved, "EDGE-1");
    assert_eq!(vfs.open(ctx, held, RW).unwrap().attr().ino, moved.ino);
    let other = vfs.stat(ctx, "/dir/file", none).unwrap();
    assert_eq!((other.mode, other.size, other.nlink), (0o644, 0, 1));
    let stranger = Tree::new("file");
    let invalid = Error::Invalid.errno();
    assert_eq!(
        calls(&stranger.hold("/file"), &tree),
        [invalid; 12],
        "EDGE-1"
    );
    // To make one, a name is needed.
    let making = vfs.open(ctx, held, RW | OpenFlags::CREATE);
    assert!(matches!(making, Err(Error::NotFound)), "EDGE-1");
}

/// EDGE-1: a directory that has been removed takes no names, and has none; `..` still
/// leads out of it.
#[test]
fn a_removed_directory_is_still_somewhere() {
    let tree = Tree::new("dir/ dir/sub/ file");
    let inside = tree.ctx.clone().with_cwd(tree.hold("/dir/sub"));
    tree.vfs.rmdir(&tree.ctx, "/dir/sub").unwrap();
    let vfs = &tree.vfs;
    let enoent = Error::NotFound.errno();
    for outcome in [
        errno(vfs.create(&inside, "new", 0o644)),
        errno(vfs.mkdir(&inside, "new", 0o755)),
        errno(vfs.symlink(&inside, "x", "new")),
        errno(vfs.link(&inside, "/file", "new")),
        errno(vfs.rename(&inside, "/file", "new")),
        errno(vfs.rename(&inside, "new", "/x")),
        errno(vfs.unlink(&inside, "new")),
        errno(vfs.rmdir(&inside, "new")),
        errno(vfs.stat(&inside, "new", FOLLOW)),
        errno(vfs.open(&inside, "new", (RW | OpenFlags::CREATE).mode(0o644))),
        errno(vfs.mount(&inside, ".", grow(""))),
        errno(vfs.path_of(&inside, inside.cwd())),
    ] {
        assert_eq!(outcome, enoent, "EDGE-1");
    }
    assert_eq!(vfs.stat(&inside, ".", FOLLOW).unwrap().nlink, 0);
    let above = vfs.stat(&inside, "..", FOLLOW).unwrap();
    assert_eq!(above.ino, tree.ino("/dir").unwrap(), "EDGE-1");
    // A new directory of the same name is another one.
    vfs.mkdir(&tree.ctx, "/dir/sub", 0o755).unwrap();
    assert_eq!(errno(vfs.create(&inside, "new", 0o644)), enoent, "EDGE-1");
    assert!(!tree.has("/dir/sub/new"));
}

/// EDGE-1: a path leads through all mounts to the root of the caller's context, and to no
/// other.
#[test]
fn places_have_paths() {
    let long = "a-name-that-is-longer-than-the-words-of-a-dentry";
    let tree = Tree::new(&format!("mnt/ dir/ dir/{long}/ dir/{long}/file"));
    tree.vfs
        .mount(&tree.ctx, "/mnt", grow("in/ in/file"))
        .unwrap();
    let path_of = |ctx: &Context, path: &str| {
        let path = tree.vfs.path_of(ctx, &tree.hold(path))?;
        Ok(String::from_utf8(path.into_vec()).unwrap())
    };
    let file = format!("/dir/{long}/file");
    for path in ["/", "/mnt", "/mnt/in/file", &file] {
        assert_eq!(path_of(&tree.ctx, path).unwrap(), path, "EDGE-1");
    }
    let inside = tree.ctx.clone().with_root(tree.hold("/dir"));
    assert_eq!(path_of(&inside, &file).unwrap(), file["/dir".len()..]);
    assert_eq!(path_of(&inside, "/dir").unwrap(), "/");
    assert!(
        matches!(path_of(&inside, "/mnt"), Err(Error::NotFound)),
        "EDGE-1"
    );
    let held = tree.hold(&file);
    tree.vfs.rename(&tree.ctx, "/dir", "/moved").unwrap();
    let path = tree.vfs.path_of(&tree.ctx, &held).unwrap();
    assert_eq!(&*path, format!("/moved/{long}/file").as_bytes(), "EDGE-1");
    tree.vfs
        .unlink(&tree.ctx, format!("/moved/{long}/file"))
        .unwrap();
    let gone = tree.vfs.path_of(&tree.ctx, &held);
    assert!(matches!(gone, Err(Error::NotFound)), "EDGE-1");
}

/// EDGE-1: flags of renameat2(2) that do not go together, and the device of a whiteout.
#[test]
fn rename_flags() {
    let tree = Tree::new("a b/ b/in");
    let all = RenameFlags::from_bits_retain;
    for flags in [all(8), all(2 | 1), all(2 | 4), all(7)] {
        let einval = Error::Invalid.errno();
        assert_eq!(
            errno(tree.renameat2("missing/x", "y", flags)),
            einval,
            "EDGE-1"
        );
    }
    let (a, b) = (tree.ino("/a").unwrap(), tree.ino("/b").unwrap());
    tree.renameat2("a", "b", RenameFlags::EXCHANGE).unwrap();
    for flags in [FOLLOW | LookupFlags::CACHED, REF] {
        let ino = |path| tree.vfs.stat(&tree.ctx, path, flags).unwrap().ino;
        assert_eq!((ino("/a"), ino("/b")), (b, a), "DENTRY-3");
    }
    assert!(tree.has("/a/in"));
    if tree.renameat2("b", "c", RenameFlags::WHITEOUT).is_ok() {
        let left = tree.stat("/b").unwrap();
        assert_eq!((left.kind, left.rdev), (FileType::CharDevice, 0), "EDGE-1");
        assert_eq!(tree.ino("/c").unwrap(), a);
    }
}

/// EDGE-1: EROFS comes where the kernel reports it: on creation after all other errors about
/// the name, on removal before them.
#[test]
fn a_read_only_mount_takes_no_changes() {
    let tree = Tree::new("mnt/");
    let (vfs, ctx) = (&tree.vfs, &tree.ctx);
    vfs.mount(ctx, "/mnt", grow("file dir/ dir/x")).unwrap();
    let writing = vfs.open(ctx, "/mnt/file", RW).unwrap();
    let remount = |flags| errno(vfs.remount(ctx, "/mnt", flags));
    assert_eq!(
        remount(MountFlags::READ_ONLY),
        Error::Busy.errno(),
        "EDGE-1"
    );
    vfs.create(ctx, "/mnt/still", 0o644).unwrap();
    drop(writing);
    let reading = vfs.open(ctx, "/mnt/file", OpenFlags::READ).unwrap();
    assert_eq!(remount(MountFlags::READ_ONLY), 0, "EDGE-1");
    let erofs = Error::ReadOnly.errno();
    let exists = Error::Exists.errno();
    for (outcome, expected) in [
        (errno(vfs.mkdir(ctx, "/mnt/new", 0o755)), erofs),
        (errno(vfs.mkdir(ctx, "/mnt/file", 0o755)), exists),
        (
            errno(vfs.symlink(ctx, "x", "/mnt/new/")),
            Error::NotFound.errno(),
        ),
        (errno(vfs.link(ctx, "/mnt/file", "/mnt/new")), erofs),
        (errno(vfs.link(ctx, "/mnt", "/mnt/new")), erofs),
        (errno(vfs.unlink(ctx, "/mnt/missing")), erofs),
        (
            errno(vfs.unlink(ctx, "/mnt/.")),
            Error::IsADirectory.errno(),
        ),
        (errno(vfs.rmdir(ctx, "/mnt/dir")), erofs),
        (errno(vfs.rename(ctx, "/mnt/missing", "/mnt/x")), erofs),
        (
            errno(vfs.rename(ctx, "/mnt/missing", "/x")),
            Error::CrossDevice.errno(),
        ),
        (
            errno(vfs.rename(ctx, "/mnt/.", "/mnt/x")),
            Error::Busy.errno(),
        ),
        (errno(vfs.chmod(ctx, "/mnt/file", 0o600)), erofs),
        (errno(vfs.open(ctx, "/mnt/file", RW)), erofs),
        (
            errno(vfs.open(ctx, "/mnt/new", (RW | OpenFlags::CREATE).mode(0o644))),
            erofs,
        ),
        (
            errno(vfs.open(ctx, "/mnt/file", OpenFlags::READ | OpenFlags::TRUNC)),
            erofs,
        ),
        (
            errno(vfs.access(ctx, "/mnt/file", Access::WRITE, FOLLOW)),
            erofs,
        ),
        (
            errno(vfs.access(ctx, "/mnt/file", Access::WRITE, REF)),
            erofs,
        ),
        (errno(vfs.access(ctx, "/mnt/file", Access::READ, FOLLOW)), 0),
        (
            errno(vfs.remount(ctx, "/mnt/dir", MountFlags::empty())),
            Error::Invalid.errno(),
        ),
    ] {
        assert_eq!(outcome, expected, "EDGE-1");
    }
    drop(reading);
    assert_eq!(remount(MountFlags::empty()), 0);
    vfs.mkdir(ctx, "/mnt/new", 0o755).unwrap();
    vfs.remount(ctx, "/", MountFlags::READ_ONLY).unwrap();
    assert_eq!(
        errno(vfs.mkdir(ctx, "/new", 0o755)),
        erofs,
        "EDGE-1: the root mount"
    );
    vfs.umount(ctx, "/mnt").unwrap();
}

/// EDGE-1: an immutable or append-only file keeps its names, and such a directory its entries.
#[test]
fn what_is_immutable_keeps_its_names() {
    let tree = Tree::new("fixed/ fixed/in log/ log/in dir/ dir/file");
    let (vfs, ctx) = (&tree.vfs, &tree.ctx);
    vfs.set_flags(ctx, "/fixed", InodeFlags::IMMUTABLE).unwrap();
    vfs.set_flags(ctx, "/log", InodeFlags::APPEND).unwrap();
    let eperm = Error::NotPermitted.errno();
    assert_eq!(errno(vfs.create(ctx, "/fixed/new", 0o644)), eperm, "EDGE-1");
    assert_eq!(errno(vfs.unlink(ctx, "/fixed/in")), eperm, "EDGE-1");
    assert_eq!(errno(vfs.create(ctx, "/log/new", 0o644)), 0, "EDGE-1");
    assert_eq!(errno(vfs.unlink(ctx, "/log/in")), eperm, "EDGE-1");
    assert_eq!(
        errno(vfs.rename(ctx, "/log/in", "/dir/in")),
        eperm,
        "EDGE-1"
    );
    for flags in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        vfs.set_flags(ctx, "/dir/file", flags).unwrap();
        assert_eq!(
            errno(vfs.unlink(ctx, "/dir/file")),
            eperm,
            "EDGE-1: {flags:?}"
        );
        assert_eq!(
            errno(vfs.link(ctx, "/dir/file", "/x")),
            eperm,
            "EDGE-1: {flags:?}"
        );
        assert_eq!(
            errno(vfs.rename(ctx, "/dir/file", "/x")),
            eperm,
            "EDGE-1: {flags:?}"
        );
    }
}

pub(super) fn exists() -> i32 {
    Error::Exists.errno()
}

/// EDGE-1: devices are for the privileged, whiteouts for all; bits of the mode that a kind
/// of file does not have are not made.
#[test]
fn what_mknod_and_mkdir_make() {
    let tree = Tree::new("dir/ group/");
    tree.chmod("/dir", 0o777);
    tree.chmod("/group", 0o2777);
    let (vfs, user) = (&tree.vfs, tree.user(7).with_umask(0o022));
    let mknod = |kind, rdev| errno(vfs.mknod(&user, "/dir/node", kind, 0o666, rdev));
    let eperm = Error::NotPermitted.errno();
    assert_eq!(mknod(FileType::Directory, 0), eperm, "EDGE-1");
    assert_eq!(
        mknod(FileType::Symlink, 0),
        Error::Invalid.errno(),
        "EDGE-1"
    );
    assert_eq!(mknod(FileType::CharDevice, 5), eperm, "EDGE-1");
    assert_eq!(mknod(FileType::BlockDevice, 0), eperm, "EDGE-1");
    assert_eq!(mknod(FileType::CharDevice, 0), 0, "EDGE-1: a whiteout");
    assert_eq!(mknod(FileType::CharDevice, 5), exists(), "EDGE-1");
    let attr = |path: &str| {
        let attr = vfs
            .lookup(&tree.ctx, path, LookupFlags::empty())
            .unwrap()
            .attr();
        (attr.mode, attr.uid, attr.gid)
    };
    assert_eq!(attr("/dir/node"), (0o644, 7, 7), "EDGE-1");
    vfs.mkdir(&user, "/dir/sub", 0o7777).unwrap();
    assert_eq!(attr("/dir/sub"), (0o1755, 7, 7), "EDGE-1");
    vfs.mkdir(&user, "/group/sub", 0o777).unwrap();
    assert_eq!(attr("/group/sub"), (0o2755, 7, 0), "EDGE-1");
    vfs.create(&user, "/group/file", 0o6777).unwrap();
    assert_eq!(
        attr("/group/file"),
        (0o4755, 7, 0),
        "EDGE-1: of another's group"
    );
    vfs.symlink(&user, "x", "/group/link").unwrap();
    assert_eq!(attr("/group/link"), (0o777, 7, 0), "EDGE-1");
}

/// EDGE-1: a file without a name gets one, once it may, and only from its owner.
#[test]
fn a_file_without_a_name_gets_one() {
    let tree = Tree::new("dir/");
    tree.chmod("/dir", 0o777);
    let (vfs, user) = (&tree.vfs, tree.user(7));
    let open = |flags| vfs.open(&user, "/dir", (RW | OpenFlags::TMPFILE | flags).mode(0o600));
    let exclusive = open(OpenFlags::EXCL).unwrap();
    let file = open(OpenFlags::empty()).unwrap();
    file.write_at(b"x", 0).unwrap();
    let link = |ctx: &Context, file: &rcuwalk::File, name: &str| {
        let to = (tree.ctx.root(), name);
        errno(vfs.linkat(ctx, (file.path(), ""), to, LookupFlags::EMPTY_PATH))
    };
    let enoent = Error::NotFound.errno();
    assert_eq!(link(&user, &exclusive, "/dir/no"), enoent, "EDGE-1");
    assert_eq!(
        link(&tree.user(8), &file, "/dir/no"),
        enoent,
        "EDGE-1: somebody else's"
    );
    assert_eq!(link(&user, &file, "/dir/yes"), 0, "EDGE-1");
    assert_eq!(tree.stat("/dir/yes").unwrap().nlink, 1, "EDGE-1");
    vfs.unlink(&user, "/dir/yes").unwrap();
    assert_eq!(link(&user, &file, "/dir/again"), enoent, "EDGE-1");
}
