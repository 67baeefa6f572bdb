//! Changes behind the mount, of which the kernel is told.

mod common;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, panic};

use common::slow::Gate;
use common::{Mount, Watchdog, setting, skip};
use rcuwalk::{FileSystem, Result, Vfs};
use rcuwalk_fuse::Options;
use rcuwalk_hostfs::{HostFs, Watcher};
use rcuwalk_testkit::{Call, Rng, StopOnDrop, Unmount, Wrapped, Wrapper, comes_true, wait_until};

/// A watched mount, and the directory behind it.
fn watched() -> Option<(Mount, PathBuf)> {
    watched_with(&Options::default())
}

fn watched_with(options: &Options) -> Option<(Mount, PathBuf)> {
    let _usual = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    make(options)
}

/// Held while a mount is made: its queue of reports gets the system's length then, which one
/// test changes.
static QUEUES: Mutex<()> = Mutex::new(());

fn make(options: &Options) -> Option<(Mount, PathBuf)> {
    let mount = Mount::watched(options)?;
    let behind = mount.backing.as_ref().unwrap().path().to_owned();
    // Until the kernel is given long timeouts.
    thread::sleep(Duration::from_millis(100));
    Some((mount, behind))
}

/// The number of requests of these kinds that come while `work` runs.
fn requests(mount: &Mount, names: &[&str], work: impl FnOnce()) -> u64 {
    let count = || {
        let statistics = mount.mounted.observer().statistics().unwrap();
        let wanted = statistics.operations.iter();
        let wanted = wanted.filter(|one| names.contains(&one.name.as_str()));
        wanted.map(|one| one.count()).sum::<u64>()
    };
    let before = count();
    work();
    count() - before
}

/// True if other users of the file system have changed more than the host could report: then
/// everything was invalidated.
fn has_lost(mount: &Mount) -> bool {
    let statistics = mount.mounted.observer().statistics().unwrap();
    statistics.told.everything > 0
}

/// Longer than the ordinary timeouts.
fn outlast_the_timeouts() {
    thread::sleep(Duration::from_millis(1300));
}

/// FRESH-1: an answer is cached for long, and each kind of change shows.
#[test]
fn a_change_behind_the_mount_shows_and_nothing_is_asked_before() {
    let Some((mount, behind)) = watched() else {
        return;
    };
    fs::create_dir(behind.join("d")).unwrap();
    fs::write(behind.join("d/file"), "1").unwrap();
    let at = mount.path().join("d");
    let (file, missing) = (at.join("file"), at.join("missing"));
    let look = || {
        (
            file.metadata().map(|file| file.len()).ok(),
            missing.exists(),
        )
    };
    assert_eq!(look(), (Some(1), false));
    // The reports of what was made above may come after the first look: it is asked for again then.
    wait_until("answers that outlast the timeouts", || {
        outlast_the_timeouts();
        let asked = requests(&mount, &["lookup", "getattr", "statx"], || {
            assert_eq!(look(), (Some(1), false));
        });
        asked == 0
    });
    fs::write(behind.join("d/file"), "12345").unwrap();
    wait_until("a size", || file.metadata().unwrap().len() == 5);
    assert_eq!(fs::read(&file).unwrap(), b"12345");
    fs::write(behind.join("d/missing"), "").unwrap();
    wait_until("a new name", || missing.exists());
    fs::rename(behind.join("d/missing"), behind.join("d/moved")).unwrap();
    wait_until("a rename", || {
        !missing.exists() && at.join("moved").exists()
    });
    fs::set_permissions(behind.join("d"), fs::Permissions::from_mode(0o700)).unwrap();
    wait_until("a mode", || at.metadata().unwrap().mode() & 0o777 == 0o700);
    fs::rename(behind.join("d"), behind.join("e")).unwrap();
    let moved = mount.path().join("e/file");
    wait_until("a moved directory", || !at.exists() && moved.exists());
    fs::remove_dir_all(behind.join("e")).unwrap();
    wait_until("a removed tree", || !moved.exists());
}

/// The kernel knows what it has asked for.
#[test]
fn changes_through_the_mount_do_not_come_back() {
    let Some((mount, behind)) = watched() else {
        return;
    };
    let dir = mount.path().join("d");
    fs::create_dir(&dir).unwrap();
    let file = dir.join("file");
    fs::write(&file, "1").unwrap();
    fs::rename(&file, dir.join("moved")).unwrap();
    outlast_the_timeouts();
    let asked = requests(&mount, &["lookup"], || {
        assert_eq!(dir.join("moved").metadata().unwrap().len(), 1);
        // Renames and removals leave a name that the kernel asks for once.
        assert!(!file.exists());
    });
    assert!(
        asked <= 1 || has_lost(&mount),
        "{asked} names were invalidated"
    );
    // Those of another thread in between do.
    fs::write(behind.join("d/file"), "").unwrap();
    wait_until("a name", || file.exists());
}

/// FRESH-1: the kernel drops what a GETATTR under way may bring of a directory, or a file that has
/// been moved or given an attribute: it does not do so by itself.
#[test]
fn changes_through_the_mount_outdate_attributes_under_way() {
    let Some((mount, _)) = watched() else { return };
    let at = |name: &str| mount.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("file"), "").unwrap();
    let no_flags = rustix::fs::XattrFlags::empty();
    let changes: [(&str, &dyn Fn()); 3] = [
        ("made", &|| fs::write(at("d/new"), "").unwrap()),
        ("moved", &|| fs::rename(at("file"), at("moved")).unwrap()),
        ("given an attribute", &|| {
            rustix::fs::setxattr(at("moved"), "user.x", b"x", no_flags).unwrap();
        }),
    ];
    for (what, change) in changes {
        let told = || mount.mounted.observer().statistics().unwrap().told.inodes;
        // Reports of earlier changes have come by then.
        outlast_the_timeouts();
        let before = told();
        change();
        wait_until(&format!("FRESH-1: a notice: {what}"), || told() > before);
    }
}

/// FRESH-1: no report tells of writes to a mapping, so attributes that were given for long are
/// asked for again once the kernel writes the file by itself.
#[test]
fn attributes_of_a_file_that_the_kernel_writes_have_the_ordinary_timeouts() {
    let Some((mount, behind)) = watched() else {
        return;
    };
    if !mount.mounted.passes_through() {
        return skip("needs root (passthrough)");
    }
    fs::write(behind.join("file"), "1").unwrap();
    let file = mount.path().join("file");
    let asked = || {
        outlast_the_timeouts();
        requests(&mount, &["lookup", "getattr", "statx"], || {
            _ = file.metadata()
        })
    };
    file.metadata().unwrap();
    wait_until("attributes that outlast the timeouts", || asked() == 0);
    let reader = fs::File::open(&file).unwrap();
    drop(reader);
    let writer = OpenOptions::new().write(true).open(&file).unwrap();
    assert!(asked() > 0, "FRESH-1");
    assert!(asked() > 0, "FRESH-1");
    drop(writer);
}

/// FRESH-1: a change that fails after the host has made it shows.
#[test]
fn a_change_that_fails_halfway_shows() {
    // Mounts and skips as the others do.
    let Some((plain, _)) = watched() else { return };
    drop(plain);
    let backing = tempfile::tempdir().unwrap();
    let host = HostFs::new(backing.path()).unwrap();
    let host = Halfway(host.watched_by(Watcher::Fanotify).unwrap());
    let vfs = Vfs::new(Wrapped::new(host)).unwrap();
    let mount = Mount::with(vfs, Some(backing), "hostfs", &Options::default());
    thread::sleep(Duration::from_millis(100));
    let at = |name: &str| mount.path().join(name);
    let start = Instant::now();
    assert!(!at("halfway made").exists());
    fs::create_dir(at("halfway made")).unwrap_err();
    wait_until("a directory", || at("halfway made").exists());
    fs::remove_dir(at("halfway made")).unwrap_err();
    wait_until("its removal", || !at("halfway made").exists());
    fs::write(at("file"), "").unwrap();
    assert!(!at("halfway moved").exists());
    fs::rename(at("file"), at("halfway moved")).unwrap_err();
    wait_until("a new name", || at("halfway moved").exists());
    wait_until("an old name", || !at("file").exists());
    let after = start.elapsed();
    assert!(after < Duration::from_secs(30), "FRESH-1: after {after:?}");
}

/// A watched directory of the host, in which changes of names that begin with `halfway`, and all
/// renames, are made and fail.
struct Halfway(HostFs);

impl Wrapper for Halfway {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.0)
    }

    fn around<T>(&self, call: &Call<'_>, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = ask();
        let fails = match call.method {
            "create" | "rmdir" => call.name().starts_with("halfway"),
            "rename" => true,
            _ => false,
        };
        match fails {
            true => Err(io::Error::other("halfway").into()),
            false => done,
        }
    }
}

/// FRESH-1: a change through the mount is another's for a second place of the same directory.
#[test]
fn a_change_at_one_place_shows_at_the_other() {
    let Some((mount, behind)) = watched() else {
        return;
    };
    for dir in ["a", "b"] {
        fs::create_dir(behind.join(dir)).unwrap();
    }
    let bound = behind.join("b");
    rustix::mount::mount_bind(behind.join("a"), &bound).unwrap();
    let _unmount = Unmount(bound);
    let at = |path: &str| mount.path().join(path);
    for n in 0..5 {
        let (here, there) = (at(&format!("a/x{n}")), at(&format!("b/x{n}")));
        fs::write(&here, "").unwrap();
        wait_until("the second place", || there.exists());
        outlast_the_timeouts();
        assert!(here.exists());
        fs::remove_file(&there).unwrap();
        let removed = Instant::now();
        wait_until("the removal", || !here.exists());
        let after = removed.elapsed();
        assert!(after < Duration::from_secs(20), "FRESH-1: after {after:?}");
    }
}

/// A watched mount whose host loses reports if there are more than a few. It has a file system of its
/// own behind it, in which no other test makes changes.
fn forgetful() -> Option<(Mount, PathBuf, Unmount)> {
    let limit = Path::new("/proc/sys/fs/fanotify/max_queued_events");
    let alone = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    let usual = fs::read_to_string(limit);
    if usual.is_err() || fs::write(limit, "16").is_err() {
        skip("needs root (fs.fanotify.max_queued_events)");
        return None;
    }
    let backing = tempfile::tempdir().unwrap();
    let behind = backing.path().to_owned();
    let no_flags = rustix::mount::MountFlags::empty();
    let done = rustix::mount::mount("none", &behind, "tmpfs", no_flags, None);
    let unmount = Unmount(behind.clone());
    let watched = panic::catch_unwind(move || {
        done.unwrap();
        Mount::watched_at(backing, &Options::default())
    });
    fs::write(limit, usual.unwrap()).unwrap();
    drop(alone);
    let mount = watched.unwrap()?;
    // Until the kernel is given long timeouts.
    thread::sleep(Duration::from_millis(100));
    Some((mount, behind, unmount))
}

/// The number of times that everything was invalidated.
fn losses(mount: &Mount) -> u64 {
    mount
        .mounted
        .observer()
        .statistics()
        .unwrap()
        .told
        .everything
}

/// FRESH-1: if the host loses reports, everything is asked for again.
#[test]
fn lost_reports_leave_nothing_stale() {
    let Some((mount, behind, _unmount)) = forgetful() else {
        return;
    };
    let _dog = Watchdog::over(&mount, Duration::from_secs(120));
    fs::create_dir(behind.join("calm")).unwrap();
    fs::write(behind.join("calm/file"), "").unwrap();
    fs::create_dir(behind.join("d")).unwrap();
    let calm = mount.path().join("calm/file");
    for round in 0..6_u64 {
        let look = |n: u64| mount.path().join(format!("d/{n}")).exists();
        // The kernel caches that each second name is there, and the others are not.
        (0..400).for_each(|n| _ = look(n));
        calm.metadata().unwrap();
        outlast_quiet(round);
        for n in 0..400 {
            let path = behind.join(format!("d/{n}"));
            match n % 2 == round % 2 {
                true => _ = fs::write(path, ""),
                false => _ = fs::remove_file(path),
            }
        }
        wait_until("FRESH-1: a change after lost reports", || {
            (0..400).all(|n| look(n) == (n % 2 == round % 2))
        });
    }
    assert!(losses(&mount) > 0, "no report was lost");
    assert!(calm.exists());
}

/// FRESH-1: after lost reports a file's former name is asked for, though its node has another.
#[test]
fn lost_reports_leave_no_former_name() {
    let Some((mount, behind, _unmount)) = forgetful() else {
        return;
    };
    let _dog = Watchdog::over(&mount, Duration::from_secs(120));
    fs::create_dir(behind.join("d")).unwrap();
    (0..100).for_each(|n| fs::write(behind.join(format!("d/old {n}")), "").unwrap());
    let at = |name: &str, n: u64| mount.path().join(format!("d/{name} {n}"));
    wait_until("answers that outlast the timeouts", || {
        (0..100).for_each(|n| assert!(at("old", n).exists()));
        outlast_the_timeouts();
        let asked = requests(&mount, &["lookup", "getattr", "statx"], || {
            (0..100).for_each(|n| assert!(at("old", n).exists()));
        });
        asked == 0
    });
    let before = losses(&mount);
    for n in 0..100 {
        let name = |name: &str| behind.join(format!("d/{name} {n}"));
        fs::rename(name("old"), name("new")).unwrap();
        // From now on the node's name is the new one.
        assert!(at("new", n).exists());
    }
    wait_until("lost reports", || {
        (0..100).for_each(|n| fs::write(behind.join(format!("d/more {n}")), "").unwrap());
        (0..100).for_each(|n| fs::remove_file(behind.join(format!("d/more {n}"))).unwrap());
        losses(&mount) > before
    });
    let lost = Instant::now();
    wait_until("former names", || {
        (0..100).all(|n| !at("old", n).exists() && at("new", n).exists())
    });
    let after = lost.elapsed();
    assert!(after < Duration::from_secs(30), "FRESH-1: after {after:?}");
}

/// FRESH-1: lost reports end no mount on a copy of this one, and directories in use stay.
#[test]
fn lost_reports_unmount_nothing() {
    let Some((mount, behind, _unmount)) = forgetful() else {
        return;
    };
    let _dog = Watchdog::over(&mount, Duration::from_secs(120));
    fs::create_dir_all(behind.join("d/on")).unwrap();
    let dir = mount.path().join("d");
    wait_until("a new directory", || dir.join("on").exists());
    let copy = tempfile::tempdir().unwrap();
    rustix::mount::mount_bind(mount.path(), copy.path()).unwrap();
    let _copy = Unmount(copy.path().to_owned());
    let on = copy.path().join("d/on");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &on, "tmpfs", flags, None).unwrap();
    let _on = Unmount(on.clone());
    fs::write(on.join("inside"), "").unwrap();
    let held = fs::File::open(&dir).unwrap();
    let place = format!("/proc/self/fd/{}", held.as_raw_fd());
    let before = losses(&mount);
    wait_until("lost reports", || {
        (0..100).for_each(|n| fs::write(behind.join(format!("d/{n}")), "").unwrap());
        (0..100).for_each(|n| fs::remove_file(behind.join(format!("d/{n}"))).unwrap());
        losses(&mount) > before
    });
    // Each name is used again.
    wait_until("a change after lost reports", || {
        fs::write(behind.join("d/last"), "").unwrap();
        dir.join("on").exists() && dir.join("last").exists()
    });
    outlast_the_timeouts();
    assert!(dir.join("on").exists());
    assert!(on.join("inside").exists(), "a mount on a copy is gone");
    assert_eq!(fs::read_link(place).unwrap(), dir, "a directory in use");
}

/// Sometimes the kernel has long timeouts before reports are lost, sometimes it has not yet.
fn outlast_quiet(round: u64) {
    if round.is_multiple_of(3) {
        outlast_the_timeouts();
    }
}

/// FRESH-1: a killed daemon leaves no process waiting, even if a notice waits for that process.
#[test]
fn a_daemon_that_is_killed_beside_a_waiting_notice_leaves_no_client_waiting() {
    let Some((plain, _)) = watched() else { return };
    drop(plain);
    let (backing, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let _unmount = Unmount(at.path().to_owned());
    fs::create_dir(backing.path().join("d")).unwrap();
    let mut daemon = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_daemon_to_be_killed", "--ignored"])
        .env("RCUWALK_SOURCE", backing.path())
        .env("RCUWALK_MOUNT_POINT", at.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("a mount", || at.path().join("d").exists());
    thread::sleep(Duration::from_millis(100));
    let dir = at.path().join("d");
    assert!(!dir.join("new").exists());
    let stuck = thread::spawn(move || dir.join("stuck").metadata().map(drop));
    // By then the daemon has read the request. One that it has not read would wait all the same.
    wait_until("a stuck lookup", || backing.path().join("stuck").exists());
    // Its notice waits for the lock of `d`, which the lookup holds.
    fs::write(backing.path().join("d/new"), "").unwrap();
    let waits = || {
        let threads = fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap();
        let mut states = threads
            .filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("stat")).ok());
        states.any(|state| state.contains("(rcuwalk-names) D"))
    };
    wait_until("a waiting notice", waits);
    daemon.kill().unwrap();
    let is_over = comes_true(|| stuck.is_finished());
    // Ends a lookup that waits all the same.
    let _ = rustix::mount::unmount(at.path(), rustix::mount::UnmountFlags::FORCE);
    assert!(is_over, "a client waits for a killed daemon");
    assert!(stuck.join().unwrap().is_err());
    daemon.wait().unwrap();
}

/// The daemon of the test above, in a process of its own.
#[test]
#[ignore = "run by another test"]
fn a_daemon_to_be_killed() {
    let (Some(source), Some(at)) = (
        env::var_os("RCUWALK_SOURCE"),
        env::var_os("RCUWALK_MOUNT_POINT"),
    ) else {
        return;
    };
    let host = HostFs::new(&source).unwrap();
    let gate = Arc::new(Gate::default());
    let host = Gated(host.watched_by(Watcher::Fanotify).unwrap(), gate.clone());
    let vfs = Vfs::new(Wrapped::new(host)).unwrap();
    // Requests in rings end with the last descriptor.
    let options = Options::default().io_uring(false);
    let _mounted = rcuwalk_fuse::mount(vfs, at, &options).unwrap();
    wait_until("a stuck lookup", || gate.waiting() == 1);
    fs::write(Path::new(&source).join("stuck"), "").unwrap();
    thread::sleep(Duration::from_secs(120));
}

/// A watched directory of the host, in which lookups of names that begin with `stuck` block.
struct Gated(HostFs, Arc<Gate>);

impl Wrapper for Gated {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.0)
    }

    fn around<T>(&self, call: &Call<'_>, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        if call.method == "lookup" && call.name().starts_with("stuck") {
            self.1.pass();
        }
        ask()
    }
}

/// WATCH-1, FRESH-1: a notice that waits for a stuck request keeps no other change from showing.
#[test]
fn a_notice_behind_a_stuck_request_holds_up_no_other() {
    // Mounts and skips as the others do.
    let Some((plain, _)) = watched() else { return };
    drop(plain);
    let backing = tempfile::tempdir().unwrap();
    let host = HostFs::new(backing.path()).unwrap();
    let gate = Arc::new(Gate::default());
    let host = Gated(host.watched_by(Watcher::Fanotify).unwrap(), gate.clone());
    let vfs = Vfs::new(Wrapped::new(host)).unwrap();
    let mount = Mount::with(vfs, Some(backing), "hostfs", &Options::default());
    assert!(mount.mounted.is_told_of_changes());
    let _dog = Watchdog::over(&mount, Duration::from_secs(120));
    let behind = mount.backing.as_ref().unwrap().path();
    for dir in ["blocked", "free"] {
        fs::create_dir(behind.join(dir)).unwrap();
    }
    thread::sleep(Duration::from_millis(100));
    assert!(!mount.path().join("free/new").exists());
    assert!(!mount.path().join("blocked/new").exists());
    thread::scope(|scope| {
        let stuck = scope.spawn(|| mount.path().join("blocked/stuck").exists());
        wait_until("a stuck lookup", || gate.waiting() == 1);
        // Its notice waits for the lock of `blocked`.
        fs::write(behind.join("blocked/new"), "").unwrap();
        thread::sleep(Duration::from_millis(50));
        fs::write(behind.join("free/new"), "").unwrap();
        wait_until("FRESH-1: a name elsewhere", || {
            mount.path().join("free/new").exists()
        });
        assert_eq!(gate.waiting(), 1, "WATCH-1");
        gate.open();
        assert!(!stuck.join().unwrap());
    });
    wait_until("FRESH-1: a name there", || {
        mount.path().join("blocked/new").exists()
    });
}

/// The tree of a storm: `dirs` directories of `files` files.
struct Storm {
    dirs: u64,
    files: u64,
}

impl Storm {
    fn name(&self, chance: u64) -> String {
        let (dir, file) = (chance % self.dirs, chance / self.dirs % self.files);
        format!("{dir}/{file}")
    }

    fn all(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.dirs * self.files).map(|n| self.name(n))
    }

    /// Changes one file behind the mount: makes, removes, replaces or writes it.
    fn change(&self, behind: &Path, chance: u64) {
        let path = behind.join(self.name(chance));
        let done = match chance >> 40 & 3 {
            0 => fs::remove_file(&path),
            1 => fs::write(&path, "new"),
            2 => {
                let other = behind.join(self.name(chance.rotate_left(17)));
                fs::rename(&path, other)
            }
            _ => {
                let mut options = OpenOptions::new();
                let file = options.append(true).open(&path);
                file.and_then(|mut file| file.write_all(b"more"))
            }
        };
        // It may be missing.
        drop(done);
    }
}

/// What stat(2) says of a file that matters: kind and number, size, mode, links.
fn seen(path: &Path) -> Option<(u64, u64, u32, u64)> {
    let file = fs::symlink_metadata(path).ok()?;
    Some((file.ino(), file.len(), file.mode(), file.nlink()))
}

/// FRESH-1, NODE-2: beside lookups, forgets and thousands of changes per second, no change is
/// missed, nothing blocks, and a change shows soon.
#[test]
fn a_storm_of_changes_leaves_nothing_stale() {
    // The kernel has to forget nodes all the time.
    let options = Options::default().max_nodes(256);
    let Some((mount, behind)) = watched_with(&options) else {
        return;
    };
    let seconds = setting("RCUWALK_PUSHED_SECONDS", 10);
    let _dog = Watchdog::over(&mount, Duration::from_secs(seconds + 120));
    let storm = Storm {
        dirs: 16,
        files: 64,
    };
    for dir in 0..storm.dirs {
        fs::create_dir(behind.join(dir.to_string())).unwrap();
    }
    fs::write(behind.join("probe"), "").unwrap();
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut waits: Vec<Duration> = Vec::new();
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let (stop, changes, storm) = (&stop, &changes, &storm);
        let (behind, at) = (&behind, mount.path());
        scope.spawn(move || {
            let (mut rng, start) = (Rng::new(1), Instant::now());
            while !stop.load(Relaxed) {
                let done = changes.fetch_add(1, Relaxed);
                storm.change(behind, rng.next_u64());
                // 10,000 per second.
                let due = Duration::from_micros(100 * done);
                thread::sleep(due.saturating_sub(start.elapsed()));
            }
        });
        for reader in 0..2 {
            scope.spawn(move || {
                let mut rng = Rng::derived(1, reader);
                while !stop.load(Relaxed) {
                    let n = rng.next_u64();
                    seen(&at.join(storm.name(n)));
                    if n.is_multiple_of(1024) {
                        let listed = fs::read_dir(at.join((n / 1024 % storm.dirs).to_string()));
                        drop(listed.map(Iterator::count));
                    }
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(seconds);
        let probe = (behind.join("probe"), at.join("probe"));
        for size in 1.. {
            if Instant::now() > end {
                break;
            }
            let mut file = OpenOptions::new().append(true).open(&probe.0).unwrap();
            file.write_all(b"x").unwrap();
            let since = Instant::now();
            while probe.1.metadata().unwrap().len() != size {
                assert!(since.elapsed() < Duration::from_secs(60), "FRESH-1: missed");
            }
            waits.push(since.elapsed());
            thread::sleep(Duration::from_millis(5));
        }
    });
    for name in storm.all() {
        let (there, here) = (behind.join(&name), mount.path().join(&name));
        wait_until("FRESH-1: the last change", || seen(&there) == seen(&here));
    }
    waits.sort();
    let quantile = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize];
    let told = mount.mounted.observer().statistics().unwrap().told;
    println!(
        "{} changes in {seconds} s; seen after {:?} (median), {:?} (p99), {:?} (longest) of {}; {told:?}",
        changes.load(Relaxed),
        quantile(0.5),
        quantile(0.99),
        quantile(1.0),
        waits.len(),
    );
    let most = Duration::from_millis(setting("RCUWALK_PUSHED_P99_MS", 500));
    assert!(quantile(0.99) <= most, "{:?}", quantile(0.99));
}
