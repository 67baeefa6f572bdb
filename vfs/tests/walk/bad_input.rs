//! Paths and requests that make no sense, and how they are refused.

use crate::common::{FOLLOW, REF, Tree};
use rcuwalk::{Access, Budget, Error, FileType, LookupFlags, OpenFlags, RenameFlags, Result};

const TREE: &str = "dir/ dir/file file link->file dangling->nowhere loop->loop a->b b->a \
                    nul->file tail->dir/";

/// Every question that takes a path, in all three walks.
fn errors(tree: &Tree, path: &[u8]) -> Vec<i32> {
    let (vfs, ctx) = (&tree.vfs, &tree.ctx);
    let errno = |result: Result<()>| result.err().map_or(0, |err| err.errno());
    let mut all = Vec::new();
    for flags in [FOLLOW, REF, FOLLOW, FOLLOW | LookupFlags::REVAL] {
        all.push(errno(vfs.stat(ctx, path, flags).map(drop)));
        all.push(errno(vfs.lookup(ctx, path, flags).map(drop)));
        all.push(errno(vfs.access(ctx, path, Access::empty(), flags)));
        let mut how = OpenFlags::READ;
        how.set(OpenFlags::NOFOLLOW, !flags.contains(FOLLOW));
        let how = how.mode(0).resolve(flags);
        all.push(errno(vfs.open(ctx, path, how).map(drop)));
    }
    all.push(errno(vfs.read_dir(ctx, path).map(drop)));
    all.push(errno(vfs.read_link(ctx, path).map(drop)));
    all.push(errno(vfs.invalidate(ctx, path)));
    all.push(errno(vfs.chmod(ctx, path, 0o755)));
    all
}

/// Every change that takes a path.
fn change_errors(tree: &Tree, path: &[u8]) -> Vec<i32> {
    let (vfs, ctx) = (&tree.vfs, &tree.ctx);
    let changes = [
        vfs.create(ctx, path, 0o644).map(drop),
        vfs.mkdir(ctx, path, 0o755).map(drop),
        vfs.symlink(ctx, "target", path).map(drop),
        vfs.symlink(ctx, path, "new").map(drop),
        vfs.mknod(ctx, path, FileType::Fifo, 0o644, 0).map(drop),
        vfs.link(ctx, path, "new").map(drop),
        vfs.link(ctx, "file", path).map(drop),
        vfs.unlink(ctx, path),
        vfs.rmdir(ctx, path),
        vfs.rename(ctx, path, "new"),
        vfs.rename(ctx, "file", path),
    ];
    changes
        .map(|result| result.err().map_or(0, |err| err.errno()))
        .into()
}

/// EDGE-1: a NUL anywhere in a path makes it invalid, whatever else is wrong with it.
#[test]
fn a_nul_is_invalid_wherever_it_stands() {
    for path in [
        "\0",
        "a\0",
        "\0a",
        "/\0",
        "file\0",
        "file\0/x",
        "dir/fi\0le",
        "dir/file\0",
        "dir\0",
        "missing/a\0b",
        "missing/\0",
        "missing\0",
        "file/x\0",
        "link/x\0y",
        "link\0",
        "dangling/\0",
        "loop/\0",
        ".\0",
        "..\0",
        "./\0",
        "../..\0",
        "dir/..\0/x",
        "a-name-of-16-byte\0",
        "a-name-of-16-byte/\0x",
        "fifteen-letters\0",
        "sixteen-letters-\0",
        "dir/\0/../file",
    ] {
        let tree = Tree::new(TREE);
        for round in 0..2 {
            for errno in errors(&tree, path.as_bytes()) {
                assert_eq!(errno, libc::EINVAL, "EDGE-1: {path:?}, round {round}");
            }
            for errno in change_errors(&tree, path.as_bytes()) {
                assert_eq!(
                    errno,
                    libc::EINVAL,
                    "EDGE-1: change {path:?}, round {round}"
                );
            }
        }
        assert_eq!(tree.fs.len(), 11, "EDGE-1: nothing was changed");
    }
}

/// EDGE-1: a path of 4096 bytes or more is too long, whatever is in it.
#[test]
fn a_path_may_be_too_long() {
    let tree = Tree::new(TREE);
    let mut too_long = vec![
        "./".repeat(2048).into_bytes(),
        "/".repeat(4096).into_bytes(),
    ];
    too_long.extend([
        vec![b'x'; 1 << 20],
        vec![b'/'; 1 << 20],
        b"../".repeat(1 << 20),
    ]);
    for path in too_long {
        let all = [errors(&tree, &path), change_errors(&tree, &path)].concat();
        let right = all.iter().all(|errno| *errno == libc::ENAMETOOLONG);
        assert!(right, "EDGE-1: {} bytes: {all:?}", path.len());
    }
    assert!(tree.has(&"/".repeat(4095)));
    assert!(tree.has(&format!("{}file", "./".repeat(2045))));
    assert!(tree.has(&format!("{}dir/file", "../".repeat(1362))));
}

/// EDGE-1: a component of 256 bytes is too long where it would be looked up.
#[test]
fn a_name_may_be_too_long() {
    let tree = Tree::new(TREE);
    let (longest, too_long) = ("n".repeat(255), "n".repeat(256));
    for flags in [FOLLOW, REF, FOLLOW] {
        let stat = |path: String| tree.vfs.stat(&tree.ctx, path, flags).unwrap_err().errno();
        assert_eq!(stat(longest.clone()), libc::ENOENT);
        assert_eq!(stat(too_long.clone()), libc::ENAMETOOLONG);
        assert_eq!(stat(format!("dir/{too_long}/x")), libc::ENAMETOOLONG);
        assert_eq!(stat(format!("missing/{too_long}")), libc::ENOENT);
        assert_eq!(stat(format!("file/{too_long}")), libc::ENOTDIR);
    }
    tree.vfs.mkdir(&tree.ctx, &longest, 0o755).unwrap();
    assert!(tree.has(&format!("{longest}/../{longest}/.")));
}

/// EDGE-1: an empty path is missing, unless it may be empty.
#[test]
fn an_empty_path_is_missing() {
    let tree = Tree::new(TREE);
    let all = [errors(&tree, b""), change_errors(&tree, b"")].concat();
    assert!(all.iter().all(|errno| *errno == libc::ENOENT), "{all:?}");
    let inside = tree.ctx.clone().with_cwd(tree.hold("dir"));
    for flags in [FOLLOW, REF] {
        let here = tree.vfs.stat(&inside, "", flags | LookupFlags::EMPTY_PATH);
        assert_eq!(here.unwrap().ino, tree.ino("dir").unwrap(), "EDGE-1");
    }
}

/// EDGE-1: links that lead to each other end, and so do more than 40 in a row.
#[test]
fn links_end() {
    let mut entries = String::from("l0->file file ");
    for n in 1..=40 {
        entries += &format!("l{n}->l{} ", n - 1);
    }
    let tree = Tree::new(&(TREE.replace(" file ", " ") + " " + &entries));
    for flags in [FOLLOW, REF, FOLLOW] {
        let stat = |path: &str| tree.vfs.stat(&tree.ctx, path, flags);
        for path in ["loop", "a", "b", "loop/", "loop/x", "a/.."] {
            assert!(matches!(stat(path), Err(Error::TooManySymlinks)), "{path}");
        }
        assert!(stat("l39").is_ok(), "EDGE-1: 40 links");
        assert!(
            matches!(stat("l40"), Err(Error::TooManySymlinks)),
            "41 links"
        );
    }
    let itself = tree.vfs.stat(&tree.ctx, "loop", LookupFlags::empty());
    assert_eq!(itself.unwrap().kind, FileType::Symlink);
}

/// EDGE-1: what cannot be opened or read as a link says why.
#[test]
fn what_is_no_file_is_not_opened() {
    let tree = Tree::new(TREE);
    tree.vfs
        .mknod(&tree.ctx, "fifo", FileType::Fifo, 0o644, 0)
        .unwrap();
    let open = |path: &str, flags: OpenFlags| tree.vfs.open(&tree.ctx, path, flags).err().unwrap();
    let follow = OpenFlags::READ;
    let none = follow | OpenFlags::NOFOLLOW;
    let write = follow | OpenFlags::WRITE;
    assert!(matches!(open("dir", write), Error::IsADirectory));
    assert!(matches!(open("link", none), Error::TooManySymlinks));
    assert!(matches!(open("fifo", follow), Error::NoSuchDevice));
    assert!(matches!(open("file/", follow), Error::NotADirectory));
    assert!(matches!(open("dangling", follow), Error::NotFound));
    let directory = follow | OpenFlags::DIRECTORY;
    assert!(matches!(open("file", directory), Error::NotADirectory));
    let read_link = |path: &str| tree.vfs.read_link(&tree.ctx, path);
    assert_eq!(&*read_link("dangling").unwrap(), b"nowhere");
    for path in ["file", "dir", "/", "tail/", "fifo"] {
        assert!(matches!(read_link(path), Err(Error::Invalid)), "{path}");
    }
}

/// DENTRY-3: a walk from a directory whose cached name is stale sees the names that other
/// threads make in it, and they see its own.
#[test]
fn an_invalidated_directory_is_still_one_directory() {
    let tree = Tree::with_budget("d/ d/sub/", Budget::default());
    let inside = tree.ctx.clone().with_cwd(tree.hold("d"));
    tree.vfs.invalidate(&tree.ctx, "d").unwrap();
    assert!(!tree.has("d/new") && tree.vfs.stat(&inside, "new", FOLLOW).is_err());
    tree.vfs.create(&inside, "new", 0o644).unwrap();
    assert!(tree.has("d/new"), "DENTRY-3: made under the old dentry");
    tree.vfs.unlink(&tree.ctx, "d/new").unwrap();
    assert!(tree.vfs.stat(&inside, "new", FOLLOW).is_err(), "DENTRY-3");
}

/// LOCK-1: a rename between a directory and itself, by two dentries of it, does not
/// lock it twice, and a directory does not go below itself by a detour.
#[test]
fn two_dentries_of_a_directory_are_one() {
    let tree = Tree::new("d/ d/sub/ d/file");
    let inside = tree.ctx.clone().with_cwd(tree.hold("d"));
    let below = tree.ctx.clone().with_cwd(tree.hold("d/sub"));
    tree.vfs.invalidate(&tree.ctx, "d").unwrap();
    tree.stat("/d/sub").unwrap();
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tree.vfs.rename(&inside, "file", "/d/renamed").unwrap();
        let looped = tree.vfs.rename(&below, "/d", "d");
        assert!(matches!(looped, Err(Error::Invalid)), "EDGE-1: {looped:?}");
        done.send(tree.fs.len()).unwrap();
    });
    let nodes = wait.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(nodes.expect("LOCK-1: it ends"), 4);
}

/// A place of another `Vfs` is refused, in whichever part of a question it comes.
#[test]
fn a_path_of_another_vfs_is_refused() {
    let (tree, other) = (Tree::new("d/ d/f l->d"), Tree::new("d/ d/f l->d"));
    let foreign = other.hold("/d");
    let cwd = tree.ctx.clone().with_cwd(foreign.clone());
    let root = tree.ctx.clone().with_root(foreign.clone());
    let both = root.clone().with_cwd(foreign.clone());
    let vfs = &tree.vfs;
    for ctx in [&cwd, &root, &both, &other.ctx] {
        for path in ["f", "/d/f", ".", ".."] {
            for flags in [FOLLOW, REF] {
                let seen = vfs.stat(ctx, path, flags);
                assert!(matches!(seen, Err(Error::Invalid)), "{path}: {seen:?}");
            }
            let opened = vfs.open(ctx, path, OpenFlags::READ | OpenFlags::CREATE);
            assert!(matches!(opened, Err(Error::Invalid)), "{path}: {opened:?}");
            assert!(matches!(vfs.mkdir(ctx, path, 0), Err(Error::Invalid)));
            assert!(matches!(vfs.unlink(ctx, path), Err(Error::Invalid)));
            let access = vfs.access(ctx, path, Access::READ, FOLLOW);
            assert!(matches!(access, Err(Error::Invalid)), "{path}");
        }
    }
    let own = tree.ctx.cwd();
    let flags = RenameFlags::empty();
    for (from, to) in [(own, &foreign), (&foreign, own)] {
        let renamed = vfs.renameat2(&tree.ctx, (from, "d"), (to, "e"), flags);
        assert!(matches!(renamed, Err(Error::Invalid)), "{renamed:?}");
        let linked = vfs.linkat(&tree.ctx, (from, "d/f"), (to, "e"), FOLLOW);
        assert!(matches!(linked, Err(Error::Invalid)), "{linked:?}");
    }
    assert!(matches!(
        vfs.path_of(&tree.ctx, &foreign),
        Err(Error::Invalid)
    ));
    let link = other
        .vfs
        .lookup(&other.ctx, "/l", LookupFlags::default())
        .unwrap();
    assert!(matches!(vfs.read_link_at(&link), Err(Error::Invalid)));
    assert!(tree.has("/d/f") && other.has("/d/f"));
    // With the caches of the other one gone, and a place of it held.
    drop(other);
    assert!(matches!(vfs.stat(&cwd, "f", FOLLOW), Err(Error::Invalid)));
}

/// WALK-1: a directory closed through a held path is closed for a walk by its name, stale in
/// between or not.
#[test]
fn a_held_directory_closes_for_all() {
    let tree = Tree::new("d/ d/file");
    let inside = tree.ctx.clone().with_cwd(tree.hold("d"));
    let user = tree.vfs.context(rcuwalk::Credentials::user(1000, 1000));
    tree.vfs.invalidate(&tree.ctx, "d").unwrap();
    let stat = || tree.vfs.stat(&user, "/d/file", FOLLOW);
    assert!(stat().is_ok() && stat().is_ok());
    tree.vfs.chmod(&inside, ".", 0).unwrap();
    for _ in 0..2 {
        assert!(matches!(stat(), Err(Error::PermissionDenied)), "WALK-1");
    }
}
