//! Handles of a tree in memory.

use std::thread;

use rcuwalk::{Context, Credentials, Error, Handle, LookupFlags, OpenFlags, Vfs, VfsPath};
use rcuwalk_memfs::{MemFs, directory, file, symlink};

struct Tree {
    fs: MemFs,
    vfs: Vfs,
    root: Context,
}

fn tree() -> Tree {
    let fs = MemFs::new();
    let dir = fs.add(fs.root(), b"dir", directory(0o700)).unwrap();
    let below = fs.add(dir, b"below", directory(0o700)).unwrap();
    for (above, name, new) in [
        (fs.root(), "file", file(0o600)),
        (below, "deep", file(0o600)),
        (below, "link", symlink(b"nowhere")),
    ] {
        fs.add(above, name.as_bytes(), new).unwrap();
    }
    let vfs = Vfs::new(fs.clone()).unwrap();
    let root = vfs.context(Credentials::root());
    Tree { fs, vfs, root }
}

impl Tree {
    fn at(&self, path: &str) -> VfsPath {
        let found = self.vfs.lookup(&self.root, path, LookupFlags::default());
        found.unwrap()
    }

    /// Through bytes, as a client has it. Without a path: only the back end can find it.
    fn handle(&self, path: &str) -> Handle {
        let handle = self.vfs.encode_handle(&self.at(path)).unwrap();
        assert_eq!(handle.path(), Some(path.as_bytes()));
        Handle::from_bytes(&handle.to_bytes())
            .unwrap()
            .without_path()
    }

    fn is_stale(&self, handle: &Handle) -> bool {
        matches!(self.vfs.open_by_handle(handle), Err(Error::Stale))
    }
}

const PATHS: [&str; 6] = [
    "/",
    "/file",
    "/dir",
    "/dir/below",
    "/dir/below/deep",
    "/dir/below/link",
];

/// HANDLE-1: a handle of a file without a name finds it once it has one, and not after that.
#[test]
fn a_handle_made_before_the_first_name_finds_it_after() {
    let tree = tree();
    let how = (OpenFlags::WRITE | OpenFlags::TMPFILE).mode(0o600);
    let file = tree.vfs.open(&tree.root, "/dir", how).unwrap();
    let handle = tree.vfs.encode_handle(file.path()).unwrap();
    tree.vfs.link(&tree.root, file.path(), "/named").unwrap();
    let ino = file.attr().ino;
    drop(file);
    tree.vfs.drop_caches();
    let found = tree.vfs.open_by_handle(&handle.clone().without_path());
    assert_eq!(found.unwrap().attr().ino, ino, "HANDLE-1");
    tree.vfs.unlink(&tree.root, "/named").unwrap();
    assert!(tree.is_stale(&handle), "HANDLE-1");
}

/// HANDLE-1: a handle finds its file after all caches were emptied, wherever it was moved to.
#[test]
fn a_handle_finds_what_was_forgotten_and_moved() {
    let tree = tree();
    let handles = PATHS.map(|path| (tree.at(path).attr().ino, tree.handle(path)));
    let check = |when: &str| {
        for (ino, handle) in &handles {
            let found = tree.vfs.open_by_handle(handle).unwrap();
            assert_eq!(found.attr().ino, *ino, "HANDLE-1: {when}");
        }
    };
    check("cached");
    tree.vfs.drop_caches();
    check("forgotten");
    let rename = |from: &str, to: &str| tree.vfs.rename(&tree.root, from, to).unwrap();
    rename("/dir/below", "/moved");
    rename("/moved/deep", "/dir/other");
    rename("/file", "/moved/file");
    tree.vfs.drop_caches();
    check("moved");
    let deepest = tree.vfs.open_by_handle(&handles[3].1).unwrap();
    let path = tree.vfs.path_of(&tree.root, &deepest).unwrap();
    assert_eq!(&*path, b"/moved", "HANDLE-1");
    // By its new place, the file is the same inode, and can be used.
    let found = tree.vfs.open_by_handle(&handles[1].1).unwrap();
    assert!(std::ptr::eq(found.inode(), tree.at("/moved/file").inode()));
    let within = Context::within(found, Credentials::root());
    let how = rcuwalk::OpenHow::from(OpenFlags::WRITE).resolve(LookupFlags::EMPTY_PATH);
    let open = tree.vfs.open(&within, "", how).unwrap();
    assert_eq!(open.write_at(b"contents", 0).unwrap(), 8);
    assert_eq!(tree.at("/moved/file").attr().size, 8);
}

/// HANDLE-1: what has no name any more is stale, also while it is open; another tree's handle is.
#[test]
fn a_handle_of_something_else_is_stale() {
    let tree = tree();
    let (deep, below) = (tree.handle("/dir/below/deep"), tree.handle("/dir/below"));
    let open = tree
        .vfs
        .open(&tree.root, "/dir/below/deep", OpenFlags::READ)
        .unwrap();
    for name in ["deep", "link"] {
        tree.vfs
            .unlink(&tree.root, format!("/dir/below/{name}"))
            .unwrap();
    }
    assert!(tree.is_stale(&deep), "HANDLE-1");
    tree.vfs.rmdir(&tree.root, "/dir/below").unwrap();
    assert!(tree.is_stale(&below), "HANDLE-1");
    drop(open);
    let again = tree.fs.add(tree.fs.root(), b"again", file(0o600)).unwrap();
    assert!(tree.is_stale(&deep), "HANDLE-1: {again:?}");
    let other = self::tree();
    assert!(other.is_stale(&tree.handle("/file")), "HANDLE-1");
    // A path does not make another file of it.
    let with_path = tree.vfs.encode_handle(&tree.at("/file")).unwrap();
    assert!(other.is_stale(&with_path), "HANDLE-1");
    for bytes in [
        &b""[..],
        b"\x01",
        b"\x01\x00/file",
        b"\x01\x05abc",
        b"\x02\x01a",
        b"\x01\x01afile",
    ] {
        let refused = Handle::from_bytes(bytes);
        assert!(matches!(refused, Err(Error::Invalid)), "{bytes:?}");
    }
}

/// HANDLE-1 beside removals and moves: a file found by its handle is the file, or it is stale.
#[test]
fn handles_are_right_beside_changes() {
    let tree = tree();
    let rounds = rcuwalk_testkit::setting("RCUWALK_STRESS_OPS", 2000);
    let handle = tree.handle("/file");
    let deep = tree.handle("/dir/below");
    let ino = tree.at("/dir/below").attr().ino;
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..rounds {
                let made = format!("/file{n}");
                let how = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
                let open = tree.vfs.open(&tree.root, made.as_str(), how).unwrap();
                let place = tree.at(&made);
                let handle = tree.vfs.encode_handle(&place).unwrap().without_path();
                drop(place);
                thread::scope(|scope| {
                    scope.spawn(|| match tree.vfs.open_by_handle(&handle) {
                        Ok(found) => assert_eq!(
                            tree.vfs.encode_handle(&found).unwrap().without_path(),
                            handle
                        ),
                        Err(err) => assert!(matches!(err, Error::Stale), "HANDLE-1: {err}"),
                    });
                    tree.vfs.unlink(&tree.root, made.as_str()).unwrap();
                });
                // The open file keeps its contents, whoever looked it up beside the removal.
                open.write_at(b"still there", 0).unwrap();
                let mut buf = [0; 16];
                assert_eq!(open.read_at(&mut buf, 0).unwrap(), 11, "HANDLE-1");
                assert!(tree.is_stale(&handle), "HANDLE-1");
            }
        });
        scope.spawn(|| {
            for n in 0..rounds {
                let (from, to) = match n % 2 {
                    0 => ("/dir/below", "/moved"),
                    _ => ("/moved", "/dir/below"),
                };
                tree.vfs.rename(&tree.root, from, to).unwrap();
                match tree.vfs.open_by_handle(&deep) {
                    Ok(found) => assert_eq!(found.attr().ino, ino, "HANDLE-1"),
                    Err(err) => panic!("HANDLE-1: nobody moves it now: {err}"),
                }
                if n % 16 == 0 {
                    tree.vfs.drop_caches();
                }
            }
        });
        for _ in 0..rounds {
            let found = tree.vfs.open_by_handle(&handle).unwrap();
            assert_eq!(found.attr().ino, tree.at("/file").attr().ino, "HANDLE-1");
        }
    });
}
