//! The number of nodes that the kernel holds is bounded, and no node in use is lost for that.

mod common;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::numbers::Numbers;
use common::{Mount, Watchdog, can_mount, setting};
use rcuwalk::{Budget, Vfs};
use rcuwalk_fuse::Options;
use rcuwalk_testkit::wait_until;
use rustix::mount::{MountFlags, UnmountFlags};

/// One test at a time: they measure the resident memory of the whole process.
static ONE: Mutex<()> = Mutex::new(());

fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files in use all the time while other threads walk: an open file, an open and a current
/// directory, and two mount points, a directory and a file.
struct InUse {
    dir: PathBuf,
    file: File,
    listed: File,
    child: Child,
    points: [PathBuf; 2],
}

impl InUse {
    fn of(top: &Path, dir: u64) -> InUse {
        let at = |n: u64| top.join(Numbers::dir_name(dir + n));
        let file = |n: u64| at(n).join(Numbers::file_name(n));
        let child = Command::new("sleep")
            .arg("100000")
            .current_dir(at(2))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let points = [at(3), file(4)];
        rustix::mount::mount("none", &points[0], "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(points[0].join("inside"), "tmpfs").unwrap();
        rustix::mount::mount_bind(points[0].join("inside"), &points[1]).unwrap();
        InUse {
            dir: at(2),
            file: File::open(file(0)).unwrap(),
            listed: File::open(at(1)).unwrap(),
            child,
            points,
        }
    }

    /// Checks that everything in use is unchanged.
    fn check(&self) {
        let mut name = [0; 7];
        self.file.read_exact_at(&mut name, 0).unwrap();
        assert_eq!(&name, b"f000000", "NODE-2: the open file");
        assert!(self.file.metadata().unwrap().is_file(), "NODE-2");
        assert!(self.listed.metadata().unwrap().is_dir(), "NODE-2");
        let cwd = PathBuf::from(format!("/proc/{}/cwd", self.child.id()));
        assert_eq!(
            fs::read_link(&cwd).unwrap(),
            self.dir,
            "NODE-2: still named"
        );
        for name in [cwd.clone(), cwd.join(Numbers::file_name(7))] {
            let there = fs::metadata(&name);
            assert!(there.is_ok(), "NODE-2: the current directory: {there:?}");
        }
        let inside = fs::read_to_string(self.points[0].join("inside"));
        assert_eq!(inside.unwrap(), "tmpfs", "NODE-2: the mount point");
        let inside = fs::read_to_string(&self.points[1]);
        assert_eq!(inside.unwrap(), "tmpfs", "NODE-2: the file mounted on");
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        for point in self.points.iter().rev() {
            let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn numbers(files: u64, max_nodes: usize) -> Mount {
    let budget = Budget::default()
        .inodes(max_nodes + max_nodes / 4)
        .dentries(max_nodes + max_nodes / 2);
    let numbers = Numbers {
        dirs: files / 1000,
        files: 1000,
    };
    let options = Options::default().max_nodes(max_nodes);
    let vfs = Vfs::with_budget(numbers, budget).unwrap();
    Mount::with(vfs, None, "numbers", &options)
}

fn resident_mib() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    (pages * 4096) >> 20
}

/// Walks the directories that `next` hands out, and stats each file.
fn walk(top: &Path, dirs: u64, next: &AtomicU64, walked: &AtomicU64) {
    loop {
        let dir = next.fetch_add(1, Relaxed);
        if dir >= dirs {
            return;
        }
        for entry in fs::read_dir(top.join(Numbers::dir_name(dir))).unwrap() {
            let entry = entry.unwrap();
            match entry.metadata() {
                Ok(meta) => assert_eq!(meta.ino(), entry.ino(), "one number"),
                Err(err) => panic!("NODE-2: {:?}: {err}", entry.path()),
            }
            walked.fetch_add(1, Relaxed);
        }
    }
}

/// NODE-2: however many files are walked, the kernel holds no more nodes than the limit and a
/// tenth, memory does not grow, and files in use all along stay the same.
///
/// `RCUWALK_FUSE_FILES` and `RCUWALK_FUSE_MAX_NODES` make it larger.
#[test]
fn a_walk_of_all_files_stays_within_the_budget() {
    if !can_mount() {
        return;
    }
    let _one = one();
    let files = setting("RCUWALK_FUSE_FILES", 200_000);
    let max = setting("RCUWALK_FUSE_MAX_NODES", 12_000) as usize;
    let mount = numbers(files, max);
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(120 + files / 2000));
    let held = InUse::of(mount.path(), 10);
    let since = Instant::now();
    let (next, walked) = (AtomicU64::new(20), AtomicU64::new(0));
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let walkers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| walk(mount.path(), files / 1000, &next, &walked)))
            .collect();
        scope.spawn(|| {
            // Flat once the table has been full.
            let mut warm = None;
            while !is_done.load(Relaxed) {
                let stats = mount.mounted.node_statistics();
                assert!(stats.nodes <= max + max / 10, "NODE-2: {stats:?}");
                held.check();
                if warm.is_none() && walked.load(Relaxed) > files / 5 + 2 * max as u64 {
                    warm = Some(resident_mib());
                }
                thread::sleep(Duration::from_millis(20));
            }
            let (warm, now) = (warm.expect("more files than nodes"), resident_mib());
            eprintln!("resident: {warm} MiB when warm, {now} MiB after it");
            assert!(now <= warm + warm / 10 + 8, "NODE-2: {warm} MiB, {now} MiB");
        });
        let ended: Vec<_> = walkers.into_iter().map(|walker| walker.join()).collect();
        is_done.store(true, Relaxed);
        ended.into_iter().for_each(|walker| walker.unwrap());
    });
    let stats = mount.mounted.node_statistics();
    eprintln!(
        "{} files in {:?}: {stats:?}",
        walked.load(Relaxed),
        since.elapsed()
    );
    assert!(stats.peak <= max + max / 10, "NODE-2: {stats:?}");
    assert!(stats.forgets > 0 && stats.failed == 0, "NODE-2: {stats:?}");
    held.check();
}

/// NODE-2: unmounting never waits for something that the worker waits for, whatever the worker
/// is doing.
#[test]
fn unmounting_ends_the_worker() {
    if !can_mount() {
        return;
    }
    let _one = one();
    let options = Options::default().max_nodes(64);
    for round in 0..15_u64 {
        let mut mount = Mount::memfs_with(&options);
        let _watchdog = Watchdog::over(&mount, Duration::from_secs(60));
        let work = |n: u64| {
            for k in 0..100 + 20 * round {
                let file = mount.path().join(format!("{n}-{k}"));
                fs::write(&file, "x").unwrap();
                fs::metadata(&file).unwrap();
            }
        };
        thread::scope(|scope| {
            (0..3).for_each(|n| _ = scope.spawn(move || work(n)));
        });
        let since = Instant::now();
        mount.mounted.unmount().unwrap();
        assert!(since.elapsed() < Duration::from_secs(60), "NODE-2: {round}");
        assert_eq!(mount.mounted.nodes(), 1, "NODE-1: {round}");
    }
}

/// NODE-2: a mount that is detached while in use goes on being served, and its worker goes on.
#[test]
fn what_is_detached_is_served_and_kept_small() {
    if !can_mount() {
        return;
    }
    let _one = one();
    let mut mount = numbers(3000, 64);
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(60));
    let dir = File::open(mount.path()).unwrap();
    mount.mounted.detach().unwrap();
    let below = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    for n in 0..3 {
        let entries = fs::read_dir(below.join(Numbers::dir_name(n))).unwrap();
        let files = entries.map(|entry| entry.unwrap().metadata().unwrap().is_file());
        assert_eq!(files.filter(|is_file| *is_file).count(), 1000);
    }
    wait_until("NODE-2: it is kept small", || mount.mounted.nodes() <= 64);
    drop(dir);
    wait_until("NODE-1: all is forgotten", || mount.mounted.nodes() == 1);
}
