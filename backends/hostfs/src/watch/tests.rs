//! Changes behind the back of the caches, watched in both ways.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Instant;

use rcuwalk::{Attr, Context, Credentials, Error, Freshness, LookupFlags, Vfs};
use rustix::mount::{MountFlags, mount, mount_bind};

use rcuwalk_testkit::{Rng, Unmount, is_root, setting, skip};

use super::*;
use crate::HostFs;

/// A change shows within milliseconds; a test that is not about time gives it more.
const SOON: Duration = Duration::from_secs(10);

/// A directory of the host with `root` in it, and that mounted and watched.
struct Scratch {
    dir: tempfile::TempDir,
    vfs: Vfs,
    ctx: Context,
    ears: Weak<Ears>,
}

/// Runs `test` with each watcher that can be had here.
fn with_each(fill: impl Fn(&Path), test: impl Fn(&Scratch, Watcher)) {
    for watcher in [Watcher::Fanotify, Watcher::Inotify] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fill(&root);
        let fs = match HostFs::new(&root).unwrap().watched_by(watcher) {
            Ok(fs) => fs,
            Err(err) if watcher == Watcher::Fanotify => {
                skip(&format!("needs fanotify: {err}"));
                continue;
            }
            Err(err) => panic!("{err}"),
        };
        assert_eq!(fs.watcher(), Some(watcher));
        let ears = Arc::downgrade(&fs.watch.as_ref().unwrap().ears);
        let vfs = Vfs::new(fs).unwrap();
        let ctx = vfs.context(Credentials::root());
        let tree = Scratch {
            dir,
            vfs,
            ctx,
            ears,
        };
        test(&tree, watcher);
    }
}

impl Scratch {
    fn host(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    fn outside(&self, path: &str) -> PathBuf {
        self.dir.path().join("outside").join(path)
    }

    fn lstat(&self, path: &str) -> rcuwalk::Result<Attr> {
        self.vfs.stat(&self.ctx, path, LookupFlags::empty())
    }

    /// The cache's answer without asking the host; `None` if it has none.
    fn cached(&self, path: &str) -> Option<rcuwalk::Result<Attr>> {
        match self.vfs.stat(&self.ctx, path, LookupFlags::CACHED) {
            Err(Error::WouldBlock) => None,
            answer => Some(answer),
        }
    }

    /// Caches everything about these paths.
    fn warm(&self, paths: &[&str]) {
        self.soon("all is fresh", || {
            for path in paths {
                let _ = self.lstat(path);
            }
            paths.iter().all(|path| self.cached(path).is_some())
        });
    }

    /// Waits until `shows`, and says how long that took.
    fn soon(&self, what: &str, mut shows: impl FnMut() -> bool) -> Duration {
        let start = Instant::now();
        while !shows() {
            assert!(start.elapsed() < SOON, "{what}: not within {SOON:?}");
            thread::sleep(Duration::from_micros(200));
        }
        start.elapsed()
    }

    fn revalidations(&self) -> u64 {
        self.vfs.statistics().revalidations
    }

    /// Waits until all queued reports have been handled. Removes nothing: a name that is made
    /// and removed at once makes everything stale.
    fn settle(&self) {
        let settled = self.host("settled");
        let len = fs::metadata(&settled).map_or(0, |settled| settled.len()) + 1;
        fs::write(settled, vec![0; len as usize]).unwrap();
        self.soon("settled", || {
            self.lstat("/settled").is_ok_and(|seen| seen.size == len)
        });
        // An earlier report may have shown it: the last one is still to come, and makes it
        // stale once more.
        let ears = self.ears.upgrade().unwrap();
        self.soon("all reports are read", || {
            rustix::io::ioctl_fionread(ears.as_fd()).unwrap() == 0
        });
        thread::sleep(100 * super::GATHER);
    }
}

fn a_tree(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::create_dir(root.join("c")).unwrap();
    for file in ["a/file", "a/b/deep", "a/gone", "c/old"] {
        fs::write(root.join(file), b"12345").unwrap();
    }
    symlink("file", root.join("a/link")).unwrap();
}

/// One change on the host, and how it shows.
struct Change {
    what: &'static str,
    warm: &'static [&'static str],
    make: fn(&Scratch),
    shows: fn(&Scratch) -> bool,
}

const CHANGES: &[Change] = &[
    Change {
        what: "a file is made",
        warm: &["/a", "/a/new"],
        make: |tree| fs::write(tree.host("a/new"), b"x").unwrap(),
        shows: |tree| tree.lstat("/a/new").is_ok(),
    },
    Change {
        what: "a directory changes with a name in it",
        warm: &["/c", "/c/made"],
        make: |tree| {
            thread::sleep(Duration::from_millis(15)); // The host's clock ticks.
            fs::write(tree.host("c/made"), b"x").unwrap();
        },
        shows: |tree| {
            let host = fs::metadata(tree.host("c")).unwrap().modified().unwrap();
            let host = host.duration_since(std::time::UNIX_EPOCH).unwrap();
            let ours = tree.lstat("/c").unwrap().mtime;
            tree.host("c/made").exists()
                && (ours.sec, ours.nsec) == (host.as_secs() as i64, host.subsec_nanos())
        },
    },
    Change {
        what: "a file is removed",
        warm: &["/a/gone"],
        make: |tree| fs::remove_file(tree.host("a/gone")).unwrap(),
        shows: |tree| tree.lstat("/a/gone").is_err(),
    },
    Change {
        what: "a file is written to",
        warm: &["/a/file"],
        make: |tree| fs::write(tree.host("a/file"), b"more than that").unwrap(),
        shows: |tree| tree.lstat("/a/file").unwrap().size == 14,
    },
    Change {
        what: "a file's mode changes",
        warm: &["/a/file"],
        make: |tree| {
            fs::set_permissions(tree.host("a/file"), Permissions::from_mode(0o600)).unwrap();
        },
        shows: |tree| tree.lstat("/a/file").unwrap().mode == 0o600,
    },
    Change {
        what: "a directory's mode changes",
        warm: &["/a/b", "/a/b/deep"],
        make: |tree| {
            fs::set_permissions(tree.host("a/b"), Permissions::from_mode(0o711)).unwrap();
        },
        shows: |tree| tree.lstat("/a/b").unwrap().mode == 0o711,
    },
    Change {
        what: "the root's mode changes",
        warm: &["/"],
        make: |tree| fs::set_permissions(tree.host(""), Permissions::from_mode(0o751)).unwrap(),
        shows: |tree| tree.lstat("/").unwrap().mode == 0o751,
    },
    Change {
        what: "a file is moved to another directory",
        warm: &["/c/old", "/a/moved"],
        make: |tree| fs::rename(tree.host("c/old"), tree.host("a/moved")).unwrap(),
        shows: |tree| tree.lstat("/c/old").is_err() && tree.lstat("/a/moved").is_ok(),
    },
    Change {
        what: "a link gets another target",
        warm: &["/a/link", "/a/file"],
        make: |tree| {
            fs::remove_file(tree.host("a/link")).unwrap();
            symlink("b/deep", tree.host("a/link")).unwrap();
        },
        shows: |tree| {
            let read = tree.vfs.read_link(&tree.ctx, "/a/link");
            read.is_ok_and(|target| *target == *b"b/deep")
        },
    },
    Change {
        what: "a directory is made again under the same name",
        warm: &["/a/b", "/a/b/deep", "/a/b/none"],
        make: |tree| {
            fs::remove_dir_all(tree.host("a/b")).unwrap();
            fs::create_dir(tree.host("a/b")).unwrap();
            fs::write(tree.host("a/b/none"), b"").unwrap();
        },
        shows: |tree| tree.lstat("/a/b/deep").is_err() && tree.lstat("/a/b/none").is_ok(),
    },
    Change {
        what: "a directory with what is in it is moved, and changes there",
        warm: &["/a/b/none", "/c/b", "/c/b/later"],
        make: |tree| {
            fs::rename(tree.host("a/b"), tree.host("c/b")).unwrap();
            fs::write(tree.host("c/b/later"), b"").unwrap();
        },
        shows: |tree| tree.lstat("/a/b/none").is_err() && tree.lstat("/c/b/later").is_ok(),
    },
    Change {
        what: "a directory is moved out of the root",
        warm: &["/c/b/later"],
        make: |tree| fs::rename(tree.host("c/b"), tree.outside("b")).unwrap(),
        shows: |tree| tree.lstat("/c/b/later").is_err(),
    },
    Change {
        what: "a file gets a second name in a cached directory",
        warm: &["/a/file", "/c/second"],
        make: |tree| fs::hard_link(tree.host("a/file"), tree.host("c/second")).unwrap(),
        shows: |tree| tree.lstat("/a/file").unwrap().nlink == 2,
    },
    Change {
        what: "a file is written to by its second name",
        warm: &["/a"],
        make: |tree| fs::write(tree.host("c/second"), b"1").unwrap(),
        shows: |tree| tree.lstat("/a/file").unwrap().size == 1,
    },
    Change {
        what: "a file loses its second name",
        warm: &["/a"],
        make: |tree| fs::remove_file(tree.host("c/second")).unwrap(),
        shows: |tree| tree.lstat("/a/file").unwrap().nlink == 1,
    },
    Change {
        what: "a file is replaced by another",
        warm: &["/a/file"],
        make: |tree| {
            fs::write(tree.host("c/next"), b"the other one").unwrap();
            fs::rename(tree.host("c/next"), tree.host("a/file")).unwrap();
        },
        shows: |tree| tree.lstat("/a/file").unwrap().size == 13,
    },
];

/// FRESH-1: whatever changes on the host shows, and soon.
#[test]
fn each_change_shows() {
    with_each(a_tree, |tree, watcher| {
        let mut times = Vec::new();
        for change in CHANGES {
            tree.warm(change.warm);
            assert!(!(change.shows)(tree), "{}: before it is made", change.what);
            (change.make)(tree);
            let what = format!("FRESH-1: {}, {watcher:?}", change.what);
            times.push(tree.soon(&what, || (change.shows)(tree)));
        }
        times.sort();
        println!(
            "{watcher:?}: median {:?}, at most {:?}",
            times[times.len() / 2],
            times[times.len() - 1]
        );
    });
}

/// FRESH-1: while nothing changes, the host is not asked.
#[test]
fn nothing_is_asked_while_nothing_changes() {
    with_each(a_tree, |tree, watcher| {
        let paths = ["/", "/a", "/a/file", "/a/b/deep", "/a/none", "/c/old"];
        tree.settle();
        tree.warm(&paths);
        let before = tree.vfs.statistics();
        for _ in 0..100 {
            for path in paths {
                assert!(tree.cached(path).is_some(), "{watcher:?}: {path}");
                let _ = tree.vfs.stat(&tree.ctx, path, LookupFlags::REF_WALK);
            }
        }
        let after = tree.vfs.statistics();
        assert_eq!(after.revalidations, before.revalidations, "{watcher:?}");
        assert_eq!(after.slow_lookups, before.slow_lookups, "{watcher:?}");
        // A change in one directory says nothing about another.
        fs::write(tree.host("c/new"), b"").unwrap();
        tree.soon("it shows", || tree.lstat("/c/new").is_ok());
        let before = tree.revalidations();
        for _ in 0..100 {
            assert!(tree.cached("/a/b/deep").is_some(), "{watcher:?}");
        }
        assert_eq!(tree.revalidations(), before, "{watcher:?}");
    });
}

/// FRESH-1: an overflow of the kernel's queue makes everything stale.
#[test]
fn after_lost_reports_nothing_is_fresh() {
    let queue = |name: &str| -> usize {
        let path = format!("/proc/sys/fs/{name}/max_queued_events");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or(16384)
    };
    with_each(a_tree, |tree, watcher| {
        let room = match watcher {
            Watcher::Fanotify => queue("fanotify"),
            Watcher::Inotify => queue("inotify"),
        };
        if room > 100_000 {
            return skip("the queue of reports is too long to be filled");
        }
        tree.warm(&["/a/file", "/a/late", "/c/old", "/a/b/deep"]);
        let ears = tree.ears.upgrade().unwrap();
        // Held here, the thread waits for it before it reads.
        let dirs = ears.dirs();
        // Two reports each, and no two the same, which would be merged.
        let name = |n: usize| tree.host(&format!("c/burst-{n}"));
        fs::write(name(0), b"").unwrap();
        for n in 0..room / 2 + 500 {
            fs::rename(name(n), name(n + 1)).unwrap();
        }
        // These find the queue full.
        fs::write(tree.host("a/late"), b"").unwrap();
        fs::write(tree.host("a/file"), b"longer than it was").unwrap();
        fs::remove_file(tree.host("a/b/deep")).unwrap();
        assert_eq!(
            tree.lstat("/a/file").unwrap().size,
            5,
            "nobody has said anything"
        );
        drop(dirs);
        tree.soon("FRESH-1: after an overflow", || {
            tree.lstat("/a/late").is_ok()
                && tree.lstat("/a/file").unwrap().size == 18
                && tree.lstat("/a/b/deep").is_err()
        });
        // And it goes on.
        fs::remove_file(tree.host("a/late")).unwrap();
        tree.soon("the next change", || tree.lstat("/a/late").is_err());
    });
}

/// FRESH-1: the documented limit, and where there is none: a second name in a directory
/// that is not cached.
#[test]
fn a_second_name_elsewhere_is_heard_of_by_fanotify_only() {
    with_each(a_tree, |tree, watcher| {
        tree.warm(&["/a/file"]);
        fs::hard_link(tree.host("a/file"), tree.outside("second")).unwrap();
        fs::write(tree.outside("second"), b"by the other name").unwrap();
        match watcher {
            Watcher::Fanotify => {
                tree.soon("FRESH-1: the second name", || {
                    tree.lstat("/a/file").unwrap().nlink == 2
                });
                assert_eq!(tree.lstat("/a/file").unwrap().size, 17, "FRESH-1");
            }
            Watcher::Inotify => {
                tree.settle();
                let limit = tree.lstat("/a/file").unwrap();
                assert_eq!((limit.nlink, limit.size), (1, 5), "better than documented");
            }
        }
        // Asked for once, it is known to have two names, and asked for from then on.
        let flags = LookupFlags::REVAL;
        let now = tree.vfs.stat(&tree.ctx, "/a/file", flags).unwrap();
        assert_eq!((now.nlink, now.size), (2, 17));
        fs::write(tree.outside("second"), b"1").unwrap();
        assert_eq!(tree.lstat("/a/file").unwrap().size, 1, "FRESH-1");
    });
}

/// FRESH-1: one directory that the host shows at two places is watched at both, and a
/// mount of another file system is watched as well.
#[test]
fn mounts_of_the_host_are_watched() {
    if !is_root() {
        return skip("needs root");
    }
    with_each(a_tree, |tree, watcher| {
        mount_bind(tree.host("a"), tree.host("c")).unwrap();
        let _bound = Unmount(tree.host("c"));
        fs::create_dir(tree.host("t")).unwrap();
        mount("none", tree.host("t"), "tmpfs", MountFlags::empty(), None).unwrap();
        let _other = Unmount(tree.host("t"));
        fs::create_dir(tree.host("t/d")).unwrap();
        tree.warm(&["/a/file", "/c/file", "/a/new", "/c/new", "/t/d/new"]);
        fs::write(tree.host("c/new"), b"").unwrap();
        fs::remove_file(tree.host("a/file")).unwrap();
        fs::write(tree.host("t/d/new"), b"").unwrap();
        tree.soon(&format!("FRESH-1: {watcher:?}"), || {
            tree.lstat("/a/new").is_ok()
                && tree.lstat("/c/new").is_ok()
                && tree.lstat("/a/file").is_err()
                && tree.lstat("/c/file").is_err()
                && tree.lstat("/t/d/new").is_ok()
        });
    });
}

/// FRESH-1: nothing in a directory reports that something is mounted on a name in it.
#[test]
fn a_mount_that_comes_and_goes_shows() {
    if !is_root() {
        return skip("needs root");
    }
    with_each(a_tree, |tree, watcher| {
        tree.warm(&["/a/file"]);
        mount("none", tree.host("a"), "tmpfs", MountFlags::empty(), None).unwrap();
        let mounted = Unmount(tree.host("a"));
        tree.soon(&format!("FRESH-1: {watcher:?}: mounted"), || {
            tree.lstat("/a/file").is_err()
        });
        drop(mounted);
        tree.soon(&format!("FRESH-1: {watcher:?}: unmounted"), || {
            tree.lstat("/a/file").is_ok()
        });
    });
}

/// FRESH-1: a second name in another cached directory is reported, whichever mount of the host
/// both are in.
#[test]
fn a_second_name_in_a_cached_directory_is_heard_of() {
    if !is_root() {
        return skip("needs root");
    }
    with_each(a_tree, |tree, watcher| {
        fs::create_dir(tree.host("t")).unwrap();
        mount("none", tree.host("t"), "tmpfs", MountFlags::empty(), None).unwrap();
        let _other = Unmount(tree.host("t"));
        mount_bind(tree.host("a"), tree.host("c")).unwrap();
        let _bound = Unmount(tree.host("c"));
        for (name, dir) in [("a/file", "a/b"), ("c/file", "c/b"), ("t/d/file", "t/e")] {
            fs::create_dir_all(tree.host(name).parent().unwrap()).unwrap();
            fs::create_dir_all(tree.host(dir)).unwrap();
            let _ = fs::remove_file(tree.host(name));
            fs::write(tree.host(name), b"").unwrap();
            let (name, second) = (format!("/{name}"), format!("{dir}/second"));
            tree.settle();
            tree.warm(&[&name, &format!("/{second}")]);
            fs::hard_link(tree.host(&name[1..]), tree.host(&second)).unwrap();
            tree.soon(&format!("FRESH-1: {name}, {watcher:?}"), || {
                tree.lstat(&name).unwrap().nlink == 2
            });
            fs::write(tree.host(&second), b"changed").unwrap();
            tree.soon("FRESH-1: the contents", || {
                tree.lstat(&name).unwrap().size == 7
            });
            fs::remove_file(tree.host(&second)).unwrap();
        }
    });
}

/// FRESH-1: a link is as good as any file: its second name shows, and that it is gone.
#[test]
fn a_link_with_a_second_name_shows_it() {
    with_each(a_tree, |tree, watcher| {
        for n in 0..20 {
            let second = tree.host(&format!("c/second-{n}"));
            tree.warm(&["/a/link", "/c/old"]);
            fs::hard_link(tree.host("a/link"), &second).unwrap();
            let both = |nlink| {
                let ours = tree.lstat("/a/link").unwrap();
                let target = tree.vfs.read_link(&tree.ctx, "/a/link").unwrap();
                (ours.nlink, ours.ino, &*target) == (nlink, ino_of(tree, "a/link"), b"file")
            };
            tree.soon(&format!("FRESH-1: {watcher:?}"), || both(2));
            fs::remove_file(second).unwrap();
            tree.soon(&format!("FRESH-1: {watcher:?}, gone"), || both(1));
        }
    });
}

fn ino_of(tree: &Scratch, path: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(tree.host(path)).unwrap().ino()
}

/// FRESH-1: a second name that is gone, or moved, before the thread looks it up.
#[test]
fn a_second_name_of_a_moment_shows() {
    type Change = fn(&Scratch);
    let cases: [(&str, Change, u32); 5] = [
        (
            "removed",
            |tree| fs::remove_file(tree.host("c/second")).unwrap(),
            1,
        ),
        (
            "replaced",
            |tree| fs::rename(tree.host("c/old"), tree.host("c/second")).unwrap(),
            1,
        ),
        (
            "moved",
            |tree| fs::rename(tree.host("c/second"), tree.host("a/b/third")).unwrap(),
            2,
        ),
        (
            "moved and removed",
            |tree| {
                fs::rename(tree.host("c/second"), tree.host("a/b/third")).unwrap();
                fs::remove_file(tree.host("a/b/third")).unwrap();
            },
            1,
        ),
        (
            "moved to where nobody watches",
            |tree| fs::rename(tree.host("c/second"), tree.outside("second")).unwrap(),
            2,
        ),
    ];
    for (what, change, nlink) in cases {
        with_each(a_tree, |tree, watcher| {
            tree.settle();
            tree.warm(&["/a/file", "/c/old", "/a/b/deep"]);
            let before = tree.lstat("/a/file").unwrap().ctime;
            let ears = tree.ears.upgrade().unwrap();
            // Held here, the thread waits for it before it reads.
            let dirs = ears.dirs();
            fs::hard_link(tree.host("a/file"), tree.host("c/second")).unwrap();
            fs::set_permissions(tree.host("c/second"), Permissions::from_mode(0o611)).unwrap();
            change(tree);
            assert_eq!(
                tree.lstat("/a/file").unwrap().ctime,
                before,
                "told by whom?"
            );
            drop(dirs);
            tree.soon(&format!("FRESH-1: {what}, {watcher:?}"), || {
                let ours = tree.lstat("/a/file").unwrap();
                (ours.mode, ours.nlink) == (0o611, nlink) && ours.ctime != before
            });
        });
    }
}

/// FRESH-1: files of a moment, of which each might have been a second name, do not make
/// each use a question.
#[test]
fn files_of_a_moment_invalidate_once_in_a_while() {
    with_each(a_tree, |tree, watcher| {
        tree.settle();
        tree.warm(&["/a/file", "/c/old"]);
        let before = tree.revalidations();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            fs::write(tree.host("c/moment"), b"").unwrap();
            fs::remove_file(tree.host("c/moment")).unwrap();
            let _ = tree.lstat("/a/file");
        }
        // Both names, at once and each tenth of a second from then on.
        let most = 2 * (2 + start.elapsed().as_millis() / INVALIDATE_EVERY.as_millis());
        let asked = tree.revalidations() - before;
        assert!(
            u128::from(asked) <= most,
            "FRESH-1: {watcher:?}: {asked} questions"
        );
    });
}

/// FRESH-1: the documented limit of inotify, and where there is none: writes by a descriptor
/// whose name is gone.
#[test]
fn what_a_lost_name_leaves_open_is_heard_of_by_fanotify_only() {
    with_each(a_tree, |tree, watcher| {
        fs::hard_link(tree.host("a/file"), tree.host("c/second")).unwrap();
        let mut open = File::options()
            .append(true)
            .open(tree.host("c/second"))
            .unwrap();
        fs::remove_file(tree.host("c/second")).unwrap();
        tree.settle();
        tree.warm(&["/a/file"]);
        assert_eq!(tree.lstat("/a/file").unwrap().nlink, 1);
        open.write_all(b"more").unwrap();
        let size = || tree.lstat("/a/file").unwrap().size;
        match watcher {
            Watcher::Fanotify => {
                tree.soon("FRESH-1: the lost name", || size() == 9);
            }
            Watcher::Inotify => {
                tree.settle();
                assert_eq!(size(), 5, "better than documented");
            }
        }
    });
}

/// FRESH-1: when the host stops reporting, nothing cached is valid any more; and that is
/// visible.
#[test]
fn without_reports_nothing_is_fresh() {
    with_each(a_tree, |tree, watcher| {
        tree.warm(&["/a/file", "/a/none"]);
        let ears = tree.ears.upgrade().unwrap();
        let health = WatchHealth {
            ended: ears.ended.clone(),
        };
        assert!(health.lost().is_none());
        // Reading a directory's descriptor fails each time.
        let broken = File::open(tree.host("")).unwrap();
        crate::sys::replace(ears.as_fd(), rustix::fd::AsFd::as_fd(&broken));
        // The thread sleeps on what was there before: that still wakes it once.
        tree.soon("the watch is lost", || {
            fs::write(tree.host("a/wake"), b"").unwrap();
            health.lost().is_some()
        });
        assert_eq!(health.lost().unwrap().raw_os_error(), Some(libc::EISDIR));
        for len in 1..5 {
            fs::write(tree.host("a/file"), vec![0; len]).unwrap();
            let size = tree.lstat("/a/file").unwrap().size;
            assert_eq!(size, len as u64, "FRESH-1: {watcher:?}");
        }
        fs::write(tree.host("a/none"), b"").unwrap();
        assert!(tree.lstat("/a/none").is_ok(), "FRESH-1: {watcher:?}");
        assert!(tree.cached("/a/file").is_none(), "FRESH-1: {watcher:?}");
        // The thread has gone: this is the only holder of its descriptor.
        tree.soon("the thread ends", || Arc::strong_count(&ears) == 2);
    });
}

/// FRESH-1: without a watch, or where a directory cannot be watched, each use is a question.
#[test]
fn what_cannot_be_watched_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    a_tree(dir.path());
    let fs = HostFs::new(dir.path()).unwrap();
    let vfs = Vfs::new(fs.with_freshness(Freshness::Watched)).unwrap();
    let ctx = vfs.context(Credentials::root());
    let size = || {
        vfs.stat(&ctx, "/a/file", LookupFlags::empty())
            .unwrap()
            .size
    };
    for len in 1..5 {
        fs::write(dir.path().join("a/file"), vec![0; len]).unwrap();
        assert_eq!(size(), len as u64, "FRESH-1");
    }
}

/// MEM-1: a directory that leaves the cache takes its watch with it.
#[test]
fn a_watch_goes_with_its_directory() {
    with_each(a_tree, |tree, watcher| {
        tree.warm(&["/a/b/deep", "/c/old"]);
        let ears = tree.ears.upgrade().unwrap();
        assert_eq!(ears.dirs().len(), 4, "MEM-1: {watcher:?}");
        tree.soon("MEM-1: only the root is left", || {
            // Dropped objects are freed when there are enough of them.
            for n in 0..200 {
                let _ = tree.lstat(&format!("/none-{n}"));
            }
            tree.vfs.drop_caches();
            ears.dirs().len() == 1
        });
        // And comes again.
        tree.warm(&["/a/b/deep"]);
        fs::remove_file(tree.host("a/b/deep")).unwrap();
        tree.soon("FRESH-1", || tree.lstat("/a/b/deep").is_err());
    });
}

/// FRESH-1: a directory found under the number of one whose watch has ended is watched anew.
#[test]
fn names_in_a_directory_whose_watch_has_ended_are_not_fresh() {
    with_each(a_tree, |tree, watcher| {
        let ears = tree.ears.upgrade().unwrap();
        let Source::Inotify(inotify) = &ears.source else {
            return;
        };
        tree.warm(&["/a/none", "/c/old"]);
        let key = {
            let place = tree.vfs.lookup(&tree.ctx, "/a", LookupFlags::empty());
            place.unwrap().attr().ino
        };
        let id = {
            let dirs = ears.dirs();
            let id = dirs.id_of(key);
            id.unwrap().clone()
        };
        // As the kernel does when a directory goes; but this one then passes for the next
        // with its number.
        inotify.forget(&id);
        tree.settle();
        fs::set_permissions(tree.host("a"), Permissions::from_mode(0o711)).unwrap();
        tree.soon("the directory above reports it", || {
            tree.lstat("/a").unwrap().mode == 0o711
        });
        tree.warm(&["/a/none"]);
        fs::write(tree.host("a/none"), b"").unwrap();
        tree.soon(&format!("FRESH-1: {watcher:?}"), || {
            tree.lstat("/a/none").is_ok()
        });
    });
}

/// The thread and everything it holds go with the mount, at once.
#[test]
fn an_unmount_ends_the_thread() {
    with_each(a_tree, |tree, watcher| {
        let inner = tempfile::tempdir().unwrap();
        a_tree(inner.path());
        let fs = HostFs::new(inner.path()).unwrap();
        let fs = fs.watched_by(watcher).unwrap();
        let ears = Arc::downgrade(&fs.watch.as_ref().unwrap().ears);
        tree.vfs.mount(&tree.ctx, "/c", fs).unwrap();
        tree.lstat("/c/a/file").unwrap();
        assert!(ears.upgrade().is_some());
        tree.vfs.umount(&tree.ctx, "/c").unwrap();
        let time = tree.soon("the thread ends", || ears.strong_count() == 0);
        println!("{watcher:?}: ended within {time:?}");
        // One that is never mounted has no thread, and leaves nothing.
        let fs = HostFs::new(inner.path()).unwrap().watched_by(watcher);
        let ears = Arc::downgrade(&fs.unwrap().watch.as_ref().unwrap().ears);
        assert_eq!(ears.strong_count(), 0);
    });
}

const NAMES: [&str; 6] = ["one", "two", "three", "four", "five", "six"];
const DIRS: [&str; 3] = ["a", "c", "a/b"];

/// FRESH-1: after any changes, the cache agrees with the host in the end. The test compares
/// after each short round, since the next round would mend what one misses.
#[test]
fn the_cache_agrees_with_the_host_in_the_end() {
    let ops = setting("RCUWALK_STRESS_OPS", 6_000);
    with_each(a_tree, |tree, watcher| {
        let mut rng = Rng::new(1);
        let mut done = 0;
        // Before any link is made: inotify reports no changes in a directory that is not
        // cached.
        tree.warm(&["/a/b", "/c"]);
        while done < ops {
            // A few at a time leave the thread no time; many bring it into the middle.
            let round = 1 << rng.below(9);
            change_beside_readers(tree, &mut rng, round);
            agree(tree, watcher, done);
            done += round;
        }
    });
}

/// A path of the tree, which may or may not be there.
fn any_path(rng: &mut Rng) -> String {
    format!("{}/{}", rng.pick(&DIRS), rng.pick(&NAMES))
}

fn change_beside_readers(tree: &Scratch, rng: &mut Rng, changes: u64) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for n in 0..3 {
            let (done, mut rng) = (&done, Rng::derived(rng.next_u64(), n));
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    let _ = tree.lstat(&format!("/{}", any_path(&mut rng)));
                }
            });
        }
        for _ in 0..changes {
            let (path, other) = (tree.host(&any_path(rng)), tree.host(&any_path(rng)));
            let mode = 0o600 | rng.below(0o100) as u32;
            // Failures are expected.
            let _ = match rng.below(7) {
                0 | 1 => fs::write(path, vec![0; rng.below(50)]),
                2 => fs::remove_file(path),
                3 => fs::rename(path, other),
                4 => fs::hard_link(path, other),
                5 => fs::set_permissions(path, Permissions::from_mode(mode)),
                _ => symlink(format!("{}", rng.below(9)), path),
            };
        }
        done.store(true, Relaxed);
    });
}

fn agree(tree: &Scratch, watcher: Watcher, after: u64) {
    use std::os::unix::fs::MetadataExt;
    for dir in DIRS {
        for name in NAMES {
            let path = format!("{dir}/{name}");
            let host = fs::symlink_metadata(tree.host(&path)).ok();
            let host = host.map(|host| {
                let ctime = (host.ctime(), host.ctime_nsec() as u32);
                (host.ino(), host.size(), host.mode(), host.nlink(), ctime)
            });
            let ours = || {
                let ours = tree.lstat(&format!("/{path}")).ok()?;
                let ctime = (ours.ctime.sec, ours.ctime.nsec);
                let nlink = u64::from(ours.nlink);
                Some((ours.ino, ours.size, ours.st_mode(), nlink, ctime))
            };
            let start = Instant::now();
            while ours() != host {
                assert!(
                    start.elapsed() < SOON,
                    "FRESH-1: {watcher:?}, {path} after {after}: host {host:?}, ours {:?}",
                    ours()
                );
                thread::sleep(Duration::from_micros(200));
            }
        }
    }
}

/// FRESH-1: a directory made through the mount is watched like one that was found.
#[test]
fn what_is_made_here_is_watched() {
    with_each(a_tree, |tree, watcher| {
        for n in 0..20 {
            let (dir, file) = (format!("c/dir-{n}"), format!("c/dir-{n}/file"));
            tree.vfs.mkdir(&tree.ctx, format!("/{dir}"), 0o755).unwrap();
            // At once, so that some reports come while it is made.
            fs::set_permissions(tree.host(&dir), Permissions::from_mode(0o700)).unwrap();
            tree.vfs
                .create(&tree.ctx, format!("/{file}"), 0o644)
                .unwrap();
            fs::write(tree.host(&file), b"by the host").unwrap();
            tree.soon(&format!("FRESH-1: {watcher:?}"), || {
                tree.lstat(&format!("/{dir}")).unwrap().mode == 0o700
                    && tree.lstat(&format!("/{file}")).unwrap().size == 11
            });
            tree.warm(&[&format!("/{dir}"), &format!("/{file}")]);
            fs::rename(tree.host(&file), tree.host(&format!("c/moved-{n}"))).unwrap();
            tree.soon(&format!("FRESH-1: {watcher:?}"), || {
                tree.lstat(&format!("/{file}")).is_err()
            });
        }
    });
}
