//! Mounting and unmounting, beside walks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::common::{FOLLOW, REF, Tree, grow, stress_ops};
use rcuwalk::{
    Attr, Error, FileType, Iget, InodeFill, InodeKey, InodeRef, LookupFlags, OpenFlags, Result,
    SuperBlock,
};
use rcuwalk_testkit::{Wrapped, Wrapper};

const OUTER: &str = "mnt/ mnt/below mnt/sub/ mnt/sub/deep file link->mnt other/";
const INNER: &str = "in/ in/file in/up->../.. top";

fn mounted() -> Tree {
    let tree = Tree::new(OUTER);
    tree.vfs.mount(&tree.ctx, "/mnt", grow(INNER)).unwrap();
    tree
}

/// A back end of one directory, with a part that is counted; the test supplies `mounted`.
struct Told<M> {
    part: Arc<()>,
    root: FileType,
    mounted: M,
}

impl<M: Fn() -> Result<()> + Send + Sync + 'static> Wrapper for Told<M> {
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        let Iget::New(new) = sb.iget(InodeKey::new(1))? else {
            return Err(Error::Exists);
        };
        let fill = InodeFill::new(Attr::new(1, self.root, 0o755));
        Ok(new.init(fill.private(self.part.clone())))
    }
    fn mounted(&self, _: &Arc<SuperBlock>) -> Result<()> {
        (self.mounted)()
    }
}

/// Has `mount` fail many times: nothing evicts the root inode of a super block that no path
/// leads to, so a leaked one stays for ever.
fn leaks_nothing(tree: &Tree, expected: &Error, mount: impl Fn(Arc<()>) -> Result<()>) {
    let part = Arc::new(());
    let before = tree.vfs.statistics().inodes.0;
    for round in 0..100 {
        assert_eq!(mount(part.clone()), Err(expected.clone()), "round {round}");
        assert_eq!(Arc::strong_count(&part), 1, "the back end, and its part");
    }
    assert_eq!(tree.vfs.statistics().inodes.0, before);
}

/// MEM-1: the directory goes before the mount begins, or in the middle of it.
#[test]
fn a_mount_on_a_removed_directory_leaks_nothing() {
    let tree = Tree::new(OUTER);
    let removed = tree.hold("/other");
    tree.vfs.rmdir(&tree.ctx, "/other").unwrap();
    let there = tree.ctx.clone().with_cwd(removed);
    leaks_nothing(&tree, &Error::NotFound, |part| {
        let (root, mounted) = (FileType::Directory, || Ok(()));
        let fs = Wrapped::new(Told {
            part,
            root,
            mounted,
        });
        tree.vfs.mount(&there, ".", fs)
    });
    leaks_nothing(&tree, &Error::NotFound, |part| {
        tree.vfs.mkdir(&tree.ctx, "/other", 0o755)?;
        let (vfs, ctx) = (tree.vfs.clone(), tree.ctx.clone());
        let mounted = move || {
            // By another thread: this one is in a call (CALL-1).
            thread::scope(|scope| {
                let remove = scope.spawn(|| vfs.rmdir(&ctx, "/other"));
                remove.join().unwrap()
            })
        };
        let root = FileType::Directory;
        let fs = Wrapped::new(Told {
            part,
            root,
            mounted,
        });
        tree.vfs.mount(&tree.ctx, "/other", fs)
    });
}

/// MEM-1: the back end fails when it hears that it is mounted, or its root is no directory.
#[test]
fn a_mount_whose_back_end_fails_leaks_nothing() {
    let tree = Tree::new(OUTER);
    assert!(tree.has("/other"), "cached");
    leaks_nothing(&tree, &Error::NoSpace, |part| {
        let (root, mounted) = (FileType::Directory, || Err(Error::NoSpace));
        let fs = Wrapped::new(Told {
            part,
            root,
            mounted,
        });
        tree.vfs.mount(&tree.ctx, "/other", fs)
    });
    leaks_nothing(&tree, &Error::NotADirectory, |part| {
        let (root, mounted) = (FileType::Regular, || Ok(()));
        let fs = Wrapped::new(Told {
            part,
            root,
            mounted,
        });
        tree.vfs.mount(&tree.ctx, "/other", fs)
    });
    assert!(tree.has("/other") && tree.vfs.rmdir(&tree.ctx, "/other").is_ok());
}

/// EDGE-1: a mount hides the directory's contents, and unmounting shows them again.
#[test]
fn a_mount_covers_and_uncovers() {
    let tree = Tree::new(OUTER);
    assert!(tree.has("/mnt/below") && !tree.has("/mnt/in"));
    tree.vfs.mount(&tree.ctx, "/mnt", grow(INNER)).unwrap();
    for _ in 0..2 {
        assert!(!tree.has("/mnt/below") && tree.has("/mnt/in/file"));
        assert!(tree.has("/link/top"), "through a link");
    }
    let (outer, inner) = (tree.stat("/").unwrap(), tree.stat("/mnt").unwrap());
    assert_ne!(outer.dev, inner.dev, "EDGE-1: a mount is a device");
    tree.vfs.umount(&tree.ctx, "/link").unwrap();
    for _ in 0..2 {
        assert!(tree.has("/mnt/below") && !tree.has("/mnt/in/file"));
    }
    assert_eq!(tree.stat("/mnt").unwrap().dev, outer.dev);
}

/// WALK-1: `..` leads from the root of a mount to the directory above its mount
/// point, under RCU as with references.
#[test]
fn dot_dot_crosses_mounts() {
    let tree = mounted();
    tree.vfs.mount(&tree.ctx, "/mnt/in", grow("x/")).unwrap();
    let root = tree.ino("/").unwrap();
    for flags in [REF, FOLLOW, FOLLOW] {
        let stat = |path: &str| tree.vfs.stat(&tree.ctx, path, flags).unwrap();
        assert_eq!(stat("/mnt/..").ino, root);
        assert_eq!(stat("/mnt/../mnt/in/..").dev, stat("/mnt").dev);
        assert_eq!(stat("/mnt/in/x/../../..").dev, stat("/").dev);
        assert_eq!(stat("/mnt/in/x/../..").dev, stat("/mnt").dev);
        assert_eq!(stat("/mnt/in/../../../../file"), stat("/file"));
    }
}

/// EDGE-1: the last mount on a place is the one seen; they go in reverse.
#[test]
fn mounts_stack() {
    let tree = mounted();
    tree.vfs.mount(&tree.ctx, "/mnt", grow("second")).unwrap();
    assert!(tree.has("/mnt/second") && !tree.has("/mnt/top"));
    assert_eq!(
        tree.vfs.stat(&tree.ctx, "/mnt/..", FOLLOW).unwrap(),
        tree.stat("/").unwrap()
    );
    tree.vfs.umount(&tree.ctx, "/mnt").unwrap();
    assert!(tree.has("/mnt/top") && !tree.has("/mnt/second"));
    tree.vfs.umount(&tree.ctx, "/mnt").unwrap();
    assert!(tree.has("/mnt/below") && !tree.has("/mnt/top"));
    assert!(matches!(
        tree.vfs.umount(&tree.ctx, "/mnt"),
        Err(Error::Invalid)
    ));
}

/// EDGE-1: what cannot be mounted on or unmounted is refused.
#[test]
fn what_is_no_mount_point_is_refused() {
    let tree = mounted();
    let mount = |at: &str| tree.vfs.mount(&tree.ctx, at, grow("")).unwrap_err();
    let umount = |at: &str| tree.vfs.umount(&tree.ctx, at).unwrap_err();
    assert!(matches!(mount("/file"), Error::NotADirectory));
    assert!(matches!(mount("/missing"), Error::NotFound));
    assert!(matches!(umount("/"), Error::Invalid));
    assert!(matches!(umount("/other"), Error::Invalid));
    assert!(matches!(umount("/mnt/in"), Error::Invalid));
    assert!(matches!(umount("/mnt/top"), Error::Invalid));
    assert!(matches!(umount("/missing"), Error::NotFound));
}

/// EDGE-1: a mount in use is busy each time it is tried, until it no longer is.
#[test]
fn a_mount_in_use_stays() {
    let tree = mounted();
    let busy = |what: &str| {
        for _ in 0..3 {
            let refused = tree.vfs.umount(&tree.ctx, "/mnt");
            assert!(matches!(refused, Err(Error::Busy)), "{what}: {refused:?}");
        }
        assert!(tree.has("/mnt/in/file"), "{what}: still there");
    };

    let path = tree.hold("/mnt/in");
    busy("a path in it is held");
    drop(path);

    let file = tree
        .vfs
        .open(&tree.ctx, "/mnt/in/file", OpenFlags::READ)
        .unwrap();
    busy("a file in it is open");
    drop(file);

    let list = tree.vfs.read_dir(&tree.ctx, "/mnt").unwrap();
    busy("it is being listed");
    drop(list);

    let inside = tree.ctx.clone().with_cwd(tree.hold("/mnt"));
    busy("it is somebody's current directory");
    drop(inside);

    tree.vfs.mount(&tree.ctx, "/mnt/in", grow("")).unwrap();
    let refused = tree.vfs.umount(&tree.ctx, "/mnt");
    assert!(matches!(refused, Err(Error::Busy)), "a mount is in it");
    tree.vfs.umount(&tree.ctx, "/mnt/in").unwrap();

    // Held by another thread, whose count is another one.
    thread::scope(|scope| {
        let path = scope.spawn(|| tree.hold("/mnt/top")).join().unwrap();
        busy("a path from another thread");
        drop(path);
    });
    tree.vfs.umount(&tree.ctx, "/mnt").unwrap();
    assert!(!tree.has("/mnt/in"));
}

/// EDGE-1: the place that a mount is on can be neither removed nor renamed, and no
/// name crosses from one mount to another.
#[test]
fn a_mount_point_is_busy() {
    let tree = mounted();
    let Tree { vfs, ctx, .. } = &tree;
    assert!(matches!(vfs.rmdir(ctx, "/mnt"), Err(Error::Busy)));
    assert!(matches!(vfs.unlink(ctx, "/mnt"), Err(Error::IsADirectory)));
    assert!(matches!(vfs.rename(ctx, "/mnt", "/m"), Err(Error::Busy)));
    assert!(matches!(
        vfs.rename(ctx, "/other", "/mnt"),
        Err(Error::Busy)
    ));
    assert!(matches!(
        vfs.rename(ctx, "/file", "/mnt"),
        Err(Error::IsADirectory)
    ));
    // A mount point stays, whatever the back end says.
    vfs.invalidate(ctx, "/mnt").unwrap();
    assert!(tree.has("/mnt/top"));
    for (from, to) in [("/file", "/mnt/new"), ("/mnt/top", "/new")] {
        let refused = (vfs.rename(ctx, from, to), vfs.link(ctx, from, to));
        assert!(
            matches!(refused, (Err(Error::CrossDevice), Err(Error::CrossDevice))),
            "{from} {to}"
        );
    }
    vfs.rename(ctx, "/mnt/top", "/mnt/bottom").unwrap();
    assert!(tree.has("/mnt/bottom"));
}

/// WALK-3: a contained walk stands in a directory that another thread moves out of its root;
/// `..` does not lead to files outside.
#[test]
fn a_rename_does_not_lead_out_of_a_root() {
    let tree = Tree::new("jail/ jail/a/ jail/a/b/ jail/a/b/c/ jail/secret out/ secret");
    let ctx = tree.ctx.clone().with_root(tree.hold("/jail"));
    let ctx = ctx.with_cwd(tree.hold("/jail"));
    let inner = tree.ino("/jail/secret").unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                for (from, to) in [("/jail/a/b", "/out/b"), ("/out/b", "/jail/a/b")] {
                    tree.vfs.rename(&tree.ctx, from, to).unwrap();
                    thread::yield_now();
                }
            }
        });
        let mut found = 0;
        for round in 0..stress_ops(50_000, 1_000_000) {
            let flags = if round % 2 == 0 { FOLLOW } else { REF };
            match tree.vfs.stat(&ctx, "/a/b/c/../../../secret", flags) {
                Ok(attr) if attr.ino == inner => found += 1,
                Err(Error::NotFound | Error::CrossDevice) => {}
                other => {
                    done.store(true, Relaxed);
                    panic!("WALK-3: {other:?}");
                }
            }
        }
        done.store(true, Relaxed);
        assert!(found > 0, "the walk was never left alone");
    });
}

/// WALK-3: a current directory that has been moved out of the root leads nowhere.
#[test]
fn a_current_directory_moved_out_of_the_root_is_unreachable() {
    let tree = Tree::new("jail/ jail/in/ jail/in/file jail/other out/ secret");
    let ctx = tree.ctx.clone().with_root(tree.hold("/jail"));
    let ctx = ctx.with_cwd(tree.hold("/jail/in"));
    let paths = ["file", ".", "..", "../other", "../../secret"];
    for _ in 0..2 {
        tree.vfs.rename(&tree.ctx, "/jail/in", "/out/in").unwrap();
        for (path, flags) in paths.iter().flat_map(|path| [(path, FOLLOW), (path, REF)]) {
            let seen = tree.vfs.stat(&ctx, path, flags);
            assert!(matches!(seen, Err(Error::CrossDevice)), "{path}: {seen:?}");
        }
        let opened = tree
            .vfs
            .open(&ctx, "new", OpenFlags::WRITE | OpenFlags::CREATE);
        assert!(matches!(opened, Err(Error::CrossDevice)), "{opened:?}");
        let made = tree.vfs.mkdir(&ctx, "dir", 0o700);
        assert!(matches!(made, Err(Error::CrossDevice)), "{made:?}");
        tree.vfs.rename(&tree.ctx, "/out/in", "/jail/in").unwrap();
        for (path, flags) in paths[..4]
            .iter()
            .flat_map(|path| [(path, FOLLOW), (path, REF)])
        {
            tree.vfs.stat(&ctx, path, flags).unwrap();
        }
    }
}

/// WALK-3: a walk with a root of its own stays below it: `..`, absolute links and
/// mounts on the way included.
#[test]
fn a_root_contains() {
    let tree = Tree::new(
        "jail/ jail/in/ jail/in/file jail/up->../../.. jail/abs->/in/file jail/mnt/ \
         jail/out->/outside jail/deep->/mnt/a/../../../../.. outside",
    );
    let inner = grow("a/ abs->/in up->../../../..");
    tree.vfs.mount(&tree.ctx, "/jail/mnt", inner).unwrap();
    let jail = tree.hold("/jail");
    let (root, file) = (jail.attr(), tree.stat("/jail/in/file").unwrap());
    for start in ["/jail", "/jail/in", "/jail/mnt/a"] {
        let ctx = tree.ctx.clone();
        let ctx = ctx.with_root(jail.clone()).with_cwd(tree.hold(start));
        for flags in [FOLLOW, REF, FOLLOW] {
            let stat = |path: &str| tree.vfs.stat(&ctx, path, flags);
            for path in [
                "/",
                "/..",
                "../../../..",
                "/../..",
                "/up",
                "/up/..",
                "/deep",
                "/mnt/up",
                "/mnt/a/../..",
                "/mnt/../..",
                "/in/../..",
                "/mnt/abs/../..",
            ] {
                assert_eq!(stat(path).unwrap(), root, "WALK-3: {path} from {start}");
            }
            assert_eq!(stat("/abs").unwrap(), file, "WALK-3: /abs");
            assert_eq!(stat("/mnt/abs/file").unwrap(), file, "WALK-3: /mnt/abs");
            for path in ["/outside", "/out", "/../outside", "/up/outside"] {
                let missing = stat(path);
                assert!(matches!(missing, Err(Error::NotFound)), "WALK-3: {path}");
            }
        }
    }
}

/// WALK-3: a root that is the root of a mount is not left through its mount point.
#[test]
fn the_root_of_a_mount_contains() {
    let tree = mounted();
    let ctx = tree.ctx.clone().with_root(tree.hold("/mnt"));
    for flags in [FOLLOW, REF, FOLLOW] {
        let stat = |path: &str| tree.vfs.stat(&ctx, path, flags).unwrap();
        assert_eq!(stat("/.."), tree.stat("/mnt").unwrap(), "WALK-3");
        assert_eq!(stat("/in/up"), tree.stat("/mnt").unwrap(), "WALK-3");
        assert_eq!(stat("/in/../../in"), tree.stat("/mnt/in").unwrap());
    }
}

/// WALK-1: a walk beside mounts and unmounts ends in the one tree or in the other.
#[test]
fn walks_beside_mounts_end_on_either_side() {
    let tree = Tree::new("mnt/ mnt/x/ mnt/outer");
    let x_outer = tree.stat("/mnt/x").unwrap();
    let done = AtomicBool::new(false);
    // Each waits for readers a few times: milliseconds on busy cores.
    let rounds = (stress_ops(20_000, 200_000) / 20).min(10_000);
    let crossed: u64 = thread::scope(|scope| {
        let walkers: Vec<_> = (0..2)
            .map(|n| {
                let (tree, done) = (&tree, &done);
                scope.spawn(move || {
                    let flags = if n == 0 { FOLLOW } else { REF };
                    let mut crossed = 0;
                    while !done.load(Relaxed) {
                        let stat = |path: &str| tree.vfs.stat(&tree.ctx, path, flags);
                        let x = stat("/mnt/x").expect("WALK-1: in both trees");
                        if x.dev == x_outer.dev {
                            assert_eq!(x.ino, x_outer.ino, "WALK-1: outer");
                        } else {
                            crossed += 1;
                            assert_eq!(x.ino, 3, "WALK-1: inner");
                        }
                        let up = stat("/mnt/x/../..").expect("WALK-1: up");
                        assert_eq!((up.dev, up.ino), (x_outer.dev, 1), "WALK-1: up");
                        for name in ["/mnt/inner", "/mnt/outer"] {
                            match stat(name) {
                                Ok(_) | Err(Error::NotFound) => {}
                                Err(err) => panic!("WALK-1: {name}: {err}"),
                            }
                        }
                    }
                    crossed
                })
            })
            .collect();
        for _ in 0..rounds {
            let inner = grow("inner x/");
            tree.vfs.mount(&tree.ctx, "/mnt", inner).unwrap();
            loop {
                match tree.vfs.umount(&tree.ctx, "/mnt") {
                    Ok(()) => break,
                    Err(Error::Busy) => thread::yield_now(),
                    Err(err) => panic!("{err}"),
                }
            }
        }
        done.store(true, Relaxed);
        walkers.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert!(crossed > 0, "the walkers saw the mount");
    assert!(tree.has("/mnt/outer") && !tree.has("/mnt/inner"));
    let here = tree.vfs.lookup(&tree.ctx, "/mnt", LookupFlags::DIRECTORY);
    assert_eq!(here.unwrap().attr().dev, x_outer.dev);
}
