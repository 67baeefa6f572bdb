//! The kernel forgets nodes, and they go; nodes that it uses stay.
//!
//! | read          | to learn                                                      |
//! |---------------|---------------------------------------------------------------|
//! | this file     | a storm of changes and FORGETs                                |
//! | `handles.rs`  | file handles, which outlive the kernel's nodes                |

#[path = "../common/mod.rs"]
mod common;
mod handles;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Mount, Watchdog, can_mount, on_each, setting};
use rcuwalk_fuse::Options;
use rcuwalk_testkit::{Rng, comes_true};

/// Makes the kernel drop unused names and inodes.
fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// The number of processes in a storm.
const PROCESSES: u64 = 8;
/// Files that each process checks.
const KEPT: usize = 20;

/// NODE-1: eight processes add, move and remove names while the kernel forgets as many nodes as
/// it can and is asked to forget more; then the mount shows the same tree as the back end, the
/// kernel forgets the rest, and only the root is known.
///
/// `RCUWALK_STORM_SECONDS` is the duration.
#[test]
fn a_storm_of_forgets_leaves_the_tree_right_and_the_table_empty() {
    let seconds = setting("RCUWALK_STORM_SECONDS", 60);
    if !can_mount() {
        return;
    }
    // Less than the processes use: the kernel is asked for nodes all the time.
    let options = Options::default().max_nodes(100);
    storm(Mount::memfs_with(&options), seconds.div_ceil(6));
    storm(Mount::hostfs_with(&options), seconds);
}

fn storm(mut mount: Mount, seconds: u64) {
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(seconds + 120));
    let mut processes = Processes::start(mount.path(), seconds);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end && !processes.is_one_over() {
        drop_caches();
        thread::sleep(Duration::from_millis(5));
    }
    processes.succeed();
    for n in 0..PROCESSES {
        let sub = mount.path().join(format!("worker-{n}/sub"));
        for k in 0..KEPT {
            let data = fs::read_to_string(sub.join(k.to_string())).unwrap();
            assert_eq!(data, format!("contents of {k}"));
        }
    }
    if let Some(backing) = &mount.backing {
        let entries = same_tree(mount.path(), backing.path());
        assert!(entries > 8 * (KEPT + 2), "{entries} entries");
    }
    assert!(comes_true(|| mount.mounted.open() == 0), "all is released");
    let forgotten = comes_true(|| {
        drop_caches();
        mount.mounted.nodes() == 1
    });
    let stats = mount.mounted.node_statistics();
    eprintln!("{}: {stats:?}", mount.kind);
    assert!(forgotten, "NODE-1: {stats:?} after the storm");
    assert!(stats.asked > 0 && stats.forgets > 0, "NODE-2: {stats:?}");
    assert_eq!(stats.failed, 0, "NODE-2: {stats:?}");
    mount.mounted.unmount().unwrap();
    assert_eq!(mount.mounted.nodes(), 1, "NODE-1");
}

/// Processes that run this test program.
struct Processes(Vec<Child>);

impl Processes {
    fn start(top: &Path, seconds: u64) -> Processes {
        let one = |n: u64| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "one_process_of_a_storm", "--ignored"])
                .arg("--nocapture")
                .env("RCUWALK_STORM_TOP", top)
                .env("RCUWALK_STORM_PROCESS", n.to_string())
                .env("RCUWALK_STORM_SECONDS", seconds.to_string())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        Processes((0..PROCESSES).map(one).collect())
    }

    fn is_one_over(&mut self) -> bool {
        let mut processes = self.0.iter_mut();
        processes.any(|process| process.try_wait().unwrap().is_some())
    }

    fn succeed(&mut self) {
        for (n, process) in self.0.iter_mut().enumerate() {
            let status = process.wait().unwrap();
            assert!(status.success(), "process {n} of the storm: {status}");
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Not a test of its own: one process of a storm.
#[test]
#[ignore = "started by the storm"]
fn one_process_of_a_storm() {
    let Some(top) = std::env::var_os("RCUWALK_STORM_TOP") else {
        return;
    };
    let top = Path::new(&top);
    let process = setting("RCUWALK_STORM_PROCESS", 0);
    let seconds = setting("RCUWALK_STORM_SECONDS", 1);
    let dir = top.join(format!("worker-{process}"));
    let shared = top.join("shared");
    fs::create_dir_all(&shared).unwrap();
    fs::create_dir_all(dir.join("sub")).unwrap();
    for k in 0..KEPT {
        let kept = dir.join("sub").join(k.to_string());
        fs::write(kept, format!("contents of {k}")).unwrap();
    }
    let mut random = Rng::new(process);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        keep_account(&dir);
        for _ in 0..100 {
            meddle(&shared, &mut random);
        }
    }
}

/// Checks that a process's own files behave as without the others: moved, linked, read, and
/// used after they have lost their names.
fn keep_account(dir: &Path) {
    let sub = dir.join("sub");
    for k in 0..KEPT {
        let (at, moved) = (sub.join(k.to_string()), dir.join(format!("moved-{k}")));
        let ino = at.metadata().unwrap().ino();
        fs::rename(&at, &moved).unwrap();
        fs::hard_link(&moved, &at).unwrap();
        let meta = at.metadata().unwrap();
        assert_eq!((meta.ino(), meta.nlink()), (ino, 2), "one file, one number");
        fs::remove_file(&moved).unwrap();
        let data = fs::read_to_string(&at).unwrap();
        assert_eq!(data, format!("contents of {k}"));
    }
    let mut open = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(dir.join("gone"))
        .unwrap();
    open.write_all(b"kept").unwrap();
    fs::remove_file(dir.join("gone")).unwrap();
    thread::sleep(Duration::from_millis(3));
    open.seek(SeekFrom::Start(0)).unwrap();
    let mut data = String::new();
    open.read_to_string(&mut data).unwrap();
    assert_eq!(data, "kept");
    assert_eq!(names(&sub).len(), KEPT);
}

/// One change of a tree that all processes change, or a read of it. It fails only because of
/// changes that other processes have made in the meantime.
fn meddle(top: &Path, random: &mut Rng) {
    let mut name = |deep: bool| {
        let dir = top.join(format!("d{}", random.below(6)));
        match (deep, random.below(2)) {
            (true, 0) => dir.join(format!("d{}/n{}", random.below(2), random.below(4))),
            _ => dir.join(format!("n{}", random.below(8))),
        }
    };
    let (at, other) = (name(true), name(true));
    let dir = at.parent().unwrap();
    // Moves the deeper directory to the path of the higher one: otherwise directories would
    // nest without end, by a level in some hundred calls.
    let (lower, upper) = match other.parent().unwrap() {
        to if to.components().count() > dir.components().count() => (to, dir),
        to => (dir, to),
    };
    let what = random.below(12);
    let done = match what {
        0 => fs::create_dir(top.join(format!("d{}", random.below(6)))),
        1 => fs::create_dir(dir),
        2 => fs::remove_dir(dir),
        3 => fs::rename(&at, &other),
        4 => fs::rename(lower, upper),
        5 => fs::hard_link(&at, &other),
        6 => fs::remove_file(&at),
        7 => std::os::unix::fs::symlink("n1", &at),
        8 => {
            let mode = 0o600 | random.below(0o100) as u32;
            fs::set_permissions(&at, fs::Permissions::from_mode(mode))
        }
        9 => fs::read_dir(dir).map(|entries| {
            for entry in entries {
                let _ = entry.and_then(|entry| entry.metadata());
            }
        }),
        10 => fs::metadata(&at).map(drop),
        _ => fs::write(&at, format!("{}", random.below(1_000_000))),
    };
    const IN_THE_WAY: [i32; 8] = [
        libc::ENOENT,
        libc::EEXIST,
        libc::ENOTDIR,
        libc::EISDIR,
        libc::ENOTEMPTY,
        libc::EINVAL,
        libc::ELOOP,
        // chmod and link report this for directories.
        libc::EPERM,
    ];
    if let Err(err) = done {
        let errno = err.raw_os_error().unwrap_or(0);
        assert!(
            IN_THE_WAY.contains(&errno),
            "{what}: {}: {err}",
            at.display()
        );
    }
}

/// Checks that both trees have the same names, attributes and contents. Returns the number of
/// entries.
///
/// The trees may be deep, after a minute of moving directories into each other.
fn same_tree(shown: &Path, backing: &Path) -> usize {
    let mut entries = 0;
    let mut dirs = vec![(shown.to_owned(), backing.to_owned())];
    while let Some((shown, backing)) = dirs.pop() {
        let names = names(&shown);
        assert_eq!(names, self::names(&backing), "in {}", shown.display());
        entries += names.len();
        for name in names {
            let (a, b) = (shown.join(&name), backing.join(name));
            // Removed files are not in use, so in the end no number is taken any more.
            let is_same = comes_true(|| {
                let is_same = look(&a) == look(&b);
                if !is_same {
                    assert!(look(&a).0 >= 1 << 63, "{:?}: {}", look(&a), a.display());
                    drop_caches();
                }
                is_same
            });
            assert!(is_same, "{:?} {:?}: {}", look(&a), look(&b), a.display());
            let kind = b.symlink_metadata().unwrap().file_type();
            if kind.is_symlink() {
                assert_eq!(fs::read_link(&a).unwrap(), fs::read_link(&b).unwrap());
            } else if kind.is_file() {
                let data = [&a, &b].map(|path| fs::read(path).unwrap());
                assert_eq!(data[0], data[1], "{}", a.display());
            } else {
                dirs.push((a, b));
            }
        }
    }
    entries
}

/// Number, mode, links, owner, size and times.
fn look(path: &Path) -> (u64, u32, u64, [u32; 2], u64, [i64; 4]) {
    let meta = path.symlink_metadata().unwrap();
    let times = [
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ctime(),
        meta.ctime_nsec(),
    ];
    let owner = [meta.uid(), meta.gid()];
    let (ino, mode, nlink) = (meta.ino(), meta.mode(), meta.nlink());
    (ino, mode, nlink, owner, meta.size(), times)
}

fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// NODE-1: a file keeps its number, also when the kernel has forgotten it in between, and a
/// directory that is a process's current one is not forgotten.
#[test]
fn what_is_asked_for_again_has_the_same_number() {
    on_each(|mount| {
        let dir = mount.path().join("d");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("f"), b"1").unwrap();
        let inos = || [&dir, &dir.join("f")].map(|path| path.symlink_metadata().unwrap().ino());
        let before = inos();
        let held = File::open(&dir).unwrap();
        let only_held = comes_true(|| {
            drop_caches();
            mount.mounted.nodes() == 2
        });
        assert!(
            only_held,
            "NODE-1: {:?} with one directory open",
            mount.mounted
        );
        assert_eq!(inos(), before, "NODE-1");
        drop(held);
    });
}
