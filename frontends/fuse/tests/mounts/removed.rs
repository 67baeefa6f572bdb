//! Files whose names are removed through the mount while they are looked up and opened.
//!
//! `RCUWALK_REPLACE_SECONDS` is the duration of the replacing.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk_testkit::{StopOnDrop, setting};
use rustix::fs::{CWD, FileType, Mode, OFlags, fchmod, fstat, mknodat};

use crate::common::{Mount, can_mount, on_each};

/// Runs `open` in `threads` threads beside `change` in as many others, which get their numbers.
fn beside(threads: usize, change: impl Fn(usize) + Sync, open: impl Fn() + Sync) {
    let end = Instant::now() + Duration::from_secs(setting("RCUWALK_REPLACE_SECONDS", 2));
    let (done, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for n in 0..threads {
            let (done, opened, change, open) = (&done, &opened, &change, &open);
            scope.spawn(move || {
                let _done = StopOnDrop(done);
                while !done.load(Relaxed) {
                    change(n);
                }
            });
            scope.spawn(move || {
                let _done = StopOnDrop(done);
                while Instant::now() < end && !done.load(Relaxed) {
                    open();
                    opened.fetch_add(1, Relaxed);
                }
            });
        }
    });
    assert!(opened.into_inner() > 0);
}

/// HOLD-1: eight threads replace a file by rename while eight others open it; each open
/// succeeds.
#[test]
fn no_open_fails_while_the_file_is_replaced() {
    on_each(|mount| {
        let file = mount.path().join("file");
        fs::write(&file, "whole").unwrap();
        beside(
            8,
            |n| {
                let new = mount.path().join(format!("new-{n}"));
                fs::write(&new, "whole").unwrap();
                fs::rename(&new, &file).unwrap();
            },
            || assert_eq!(fs::read_to_string(&file).unwrap(), "whole", "HOLD-1"),
        );
    });
}

/// HOLD-1: a file can be opened by a name that stays while its other names come and go.
#[test]
fn no_open_fails_while_the_file_is_moved() {
    on_each(|mount| {
        let at = |name: &str| mount.path().join(name);
        fs::write(at("stays"), "whole").unwrap();
        beside(
            2,
            |n| {
                let (one, other) = (at(&format!("one-{n}")), at(&format!("other-{n}")));
                match fs::hard_link(at("stays"), &one) {
                    // The kernel counts names down itself, also for an UNLINK whose effect it
                    // has already been told, and makes no name for a file that has none.
                    Err(err) if err.kind() == ErrorKind::NotFound => return,
                    done => done.unwrap(),
                }
                assert_eq!(fs::read_to_string(&one).unwrap(), "whole", "HOLD-1");
                fs::rename(&one, &other).unwrap();
                assert_eq!(fs::read_to_string(&other).unwrap(), "whole", "HOLD-1");
                fs::remove_file(&other).unwrap();
            },
            || assert_eq!(fs::read_to_string(at("stays")).unwrap(), "whole", "HOLD-1"),
        );
    });
}

/// A file whose inode the kernel has, and nothing else.
fn place(path: &Path) -> (File, PathBuf) {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = File::from(rustix::fs::open(path, flags, Mode::empty()).unwrap());
    let by_proc = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
    (place, by_proc)
}

/// HOLD-1: a removed file can be opened for as long as a process holds its place.
#[test]
fn a_file_that_has_lost_its_name_is_opened_by_proc() {
    on_each(|mount| {
        let file = mount.path().join("file");
        for replaced in [false, true] {
            fs::write(&file, "contents").unwrap();
            let (_place, by_proc) = place(&file);
            if replaced {
                fs::write(mount.path().join("new"), "others").unwrap();
                fs::rename(mount.path().join("new"), &file).unwrap();
            } else {
                fs::remove_file(&file).unwrap();
            }
            assert_eq!(fs::read_to_string(&by_proc).unwrap(), "contents", "HOLD-1");
            fs::write(&by_proc, "changed").unwrap();
            assert_eq!(fs::read_to_string(&by_proc).unwrap(), "changed", "HOLD-1");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "others");
    });
}

/// HOLD-1: another name of it, which has not been looked up, is not needed.
#[test]
fn a_file_that_has_lost_one_of_its_names_is_opened() {
    if !can_mount() {
        return;
    }
    let mount = Mount::hostfs();
    let backing = mount.backing.as_ref().unwrap().path();
    fs::write(backing.join("one"), "contents").unwrap();
    fs::hard_link(backing.join("one"), backing.join("other")).unwrap();
    let (_place, by_proc) = place(&mount.path().join("one"));
    fs::remove_file(mount.path().join("one")).unwrap();
    assert_eq!(fs::read_to_string(&by_proc).unwrap(), "contents", "HOLD-1");
}

/// HOLD-1: a file that is not a regular one can be changed after it has lost its name, too.
#[test]
fn an_open_pipe_that_has_lost_its_name_is_changed() {
    on_each(|mount| {
        let path = mount.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let pipe = rustix::fs::open(&path, OFlags::RDWR, Mode::empty()).unwrap();
        fs::remove_file(&path).unwrap();
        fchmod(&pipe, Mode::from_raw_mode(0o640)).unwrap();
        assert_eq!(fstat(&pipe).unwrap().st_mode & 0o7777, 0o640, "HOLD-1");
    });
}
