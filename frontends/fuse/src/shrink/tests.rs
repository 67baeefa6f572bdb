//! The effect of each kind of notification in the running kernel.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::Vfs;
use rcuwalk::inode::NodeId;
use rcuwalk_memfs::MemFs;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use super::{By, Worker, mount_points_of};
use crate::{Mounted, Options, mount_by};

/// Mounts an empty tree for `test`, with a worker that runs `work`.
fn mounted(
    max_nodes: usize,
    work: impl for<'o> FnOnce(Worker<'o>) + Send + 'static,
    test: impl FnOnce(&mut Mounted, &Path),
) {
    if rcuwalk_testkit::lacks_fuse() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let options = Options::default()
        .max_nodes(max_nodes)
        // So that no name expires during the test.
        .entry_timeout(Duration::from_secs(3600));
    let vfs = Vfs::new(MemFs::new()).unwrap();
    let mut mounted = mount_by(vfs, at.path(), &options, || Ok(()), work).unwrap();
    test(&mut mounted, at.path());
}

fn comes_true(done: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(90);
    while !done() {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// A process whose current directory is `dir`.
struct Inside(Child);

impl Inside {
    fn of(dir: &Path) -> Inside {
        let sleep = Command::new("sleep").arg("1000").current_dir(dir).spawn();
        Inside(sleep.unwrap())
    }

    fn cwd(&self) -> std::path::PathBuf {
        fs::read_link(format!("/proc/{}/cwd", self.0.id())).unwrap()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// NODE-2: asked by node id, the kernel drops unused nodes and no others; a name that only
/// expires keeps its node; one that is invalidated goes, and a process in that directory loses
/// it.
#[test]
fn what_is_pruned_goes_and_what_expires_stays() {
    mounted(
        1_000_000,
        |worker| worker.run(),
        |mount, at| {
            let kernel = mount.notifier().unwrap();
            for name in ["idle", "open"] {
                fs::write(at.join(name), name).unwrap();
            }
            for name in ["in", "kept", "empty"] {
                fs::create_dir(at.join(name)).unwrap();
            }
            let all = ["idle", "open", "in", "kept", "empty"];
            let ids = all.map(|name| NodeId(fs::metadata(at.join(name)).unwrap().ino()));
            let open = File::open(at.join("open")).unwrap();
            let inside = Inside::of(&at.join("in"));
            // Repeated, because another process may drop the machine's caches meanwhile.
            let stay = || {
                for name in all {
                    fs::metadata(at.join(name)).unwrap();
                }
                for name in all {
                    kernel.expire_entry(NodeId::ROOT, name.as_bytes()).unwrap();
                }
                thread::sleep(Duration::from_millis(100));
                mount.nodes() == 6
            };
            assert!(comes_true(stay), "expired ones stay: {mount:?}");

            kernel.prune(&ids).unwrap();
            assert!(comes_true(|| mount.nodes() == 3), "NODE-2: {mount:?}");
            assert_eq!(inside.cwd(), at.join("in"), "NODE-2: the current directory");
            assert!(open.metadata().unwrap().is_file(), "NODE-2: the open file");
            for name in all {
                assert!(fs::metadata(at.join(name)).is_ok(), "{name} is found again");
            }

            let invalidate = |name| kernel.invalidate_known_entry(NodeId::ROOT, name).unwrap();
            assert!(invalidate(b"in") && !invalidate(b"nothing"));
            let lost = inside.cwd();
            assert!(lost.to_string_lossy().ends_with("(deleted)"), "{lost:?}");
            drop((open, inside));
            mount.unmount().unwrap();
            assert_eq!(mount.nodes(), 1, "NODE-1: nothing is left");
        },
    );
}

/// NODE-2: asked by name, as for older kernels, the kernel drops unused files; directories,
/// open files and files that are mounted on stay.
#[test]
fn by_name_only_unused_files_go() {
    let by_name = |mut worker: Worker<'_>| {
        worker.by = By::Name;
        worker.run();
    };
    mounted(64, by_name, |mount, at| {
        fs::create_dir_all(at.join("a/b")).unwrap();
        let inside = Inside::of(&at.join("a/b"));
        fs::write(at.join("open"), "open").unwrap();
        let open = File::open(at.join("open")).unwrap();
        fs::write(at.join("a/mounted on"), "below").unwrap();
        mount_bind("/proc/version", at.join("a/mounted on")).unwrap();
        // Read from there, so that it is known without its being used.
        fs::metadata(at.join("a")).unwrap();
        // More, if another process drops the machine's caches meanwhile.
        let is_asked = || {
            for n in 0..500 {
                fs::write(at.join(format!("a/b/{n}")), "x").unwrap();
            }
            mount.node_statistics().asked > 400
        };
        assert!(comes_true(is_asked), "NODE-2: {mount:?}");
        assert!(comes_true(|| mount.nodes() <= 64), "NODE-2: {mount:?}");
        let stats = mount.node_statistics();
        assert_eq!(stats.failed, 0, "NODE-2: {stats:?}");
        assert_eq!(inside.cwd(), at.join("a/b"), "NODE-2");
        assert!(open.metadata().unwrap().is_file(), "NODE-2");
        let version = fs::read(at.join("a/mounted on")).unwrap();
        assert_eq!(version, fs::read("/proc/version").unwrap(), "NODE-2");
        unmount(at.join("a/mounted on"), UnmountFlags::DETACH).unwrap();
        drop((open, inside));
        mount.unmount().unwrap();
    });
}

/// NODE-2: the worker does not ask endlessly for nodes in use, and unmounting does not wait for
/// the worker's rest.
#[test]
fn what_is_in_use_is_left_alone() {
    mounted(
        64,
        |worker| worker.run(),
        |mount, at| {
            let files: Vec<File> = (0..200)
                .map(|n| File::create_new(at.join(n.to_string())).unwrap())
                .collect();
            assert!(comes_true(|| mount.node_statistics().in_use > 3));
            thread::sleep(Duration::from_secs(1));
            let before = mount.node_statistics();
            thread::sleep(Duration::from_secs(1));
            let after = mount.node_statistics();
            assert!(after.in_use - before.in_use <= 2, "NODE-2: {after:?}");
            assert!(after.asked - before.asked <= 2000, "NODE-2: {after:?}");
            assert_eq!(mount.nodes(), 201, "NODE-2");
            for (n, file) in files.iter().enumerate() {
                assert!(file.metadata().is_ok(), "NODE-2");
                assert!(fs::metadata(at.join(n.to_string())).is_ok(), "NODE-2");
            }
            drop(files);
            assert!(comes_true(|| mount.nodes() <= 64), "NODE-2: {mount:?}");
            let since = Instant::now();
            mount.unmount().unwrap();
            assert!(since.elapsed() < Duration::from_secs(5), "NODE-2");
        },
    );
}

/// NODE-2: mount points on copies of the mount are in use as well.
#[test]
fn mount_points_on_copies_are_found() {
    let table = b"\
        20 1 8:1 / / rw - ext4 /dev/root rw\n\
        30 20 0:50 / /mnt rw - fuse.rcuwalk x rw\n\
        31 30 0:51 / /mnt/a\\040b rw - tmpfs none rw\n\
        32 20 0:50 /dir /copy rw - fuse.rcuwalk x rw\n\
        33 32 0:52 / /copy/deep/file rw - tmpfs none rw\n\
        34 20 0:53 / /other rw - tmpfs none rw\n\
        35 34 0:54 / /other/on rw - tmpfs none rw\n\
        36 31 0:55 / /mnt/a\\040b/on rw - tmpfs none rw\n";
    let found = mount_points_of(table, b"/mnt");
    let expected: [&[u8]; 2] = [b"/a b", b"/dir/deep/file"];
    assert_eq!(found, expected.map(Box::from).into(), "NODE-2");
    assert!(mount_points_of(table, b"/nowhere").is_empty());
}
