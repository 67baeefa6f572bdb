//! Leaks of a watched mount. A test binary with one test: descriptors and threads are the whole
//! process's.

mod common;

use std::fs;

use common::{AN_HOUR, Scratch};
use rcuwalk::LookupFlags;
use rcuwalk_hostfs::{HostFs, Watcher};
use rcuwalk_testkit::comes_true;

/// MEM-1: mounts that come and go, changes all the while, leave no descriptor and no
/// thread.
#[test]
fn nothing_is_left_of_a_watched_mount() {
    let tree = Scratch::new(AN_HOUR, |root| {
        for dir in ["at", "watched/a/b", "watched/c"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
    });
    let watched = tree.host("watched");
    let mount_and_unmount = |round: usize| {
        for watcher in [Watcher::Fanotify, Watcher::Inotify] {
            let fs = HostFs::new(&watched).unwrap().watched_by(watcher);
            // Not every user may use fanotify.
            let Ok(fs) = fs else { continue };
            tree.vfs.mount(&tree.ctx, "/at", fs).unwrap();
            for path in ["/at/a/b/none", "/at/c/none"] {
                let _ = tree.vfs.stat(&tree.ctx, path, LookupFlags::empty());
            }
            // Some are reported while this is unmounted.
            for n in 0..round {
                fs::write(watched.join(format!("c/{n}")), b"").unwrap();
                fs::write(watched.join(format!("a/b/{n}")), b"").unwrap();
            }
            tree.vfs.umount(&tree.ctx, "/at").unwrap();
        }
    };
    tree.stat("/at").unwrap();
    // The process keeps one descriptor of /proc from its first use on.
    rcuwalk_procfs::hold().unwrap();
    let before = (open_descriptors(), threads());
    (0..30).for_each(mount_and_unmount);
    let now = || (open_descriptors(), threads());
    comes_true(|| now() == before);
    assert_eq!(now(), before, "MEM-1: descriptors and threads");
}

/// The directory that is being read is one of them, each time.
fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("hostfs-watch"))
        .count()
}
