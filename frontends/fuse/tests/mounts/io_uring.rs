//! Requests by io_uring, where the kernel offers that; by /dev/fuse elsewhere. `cargo xtask ci`
//! enables it in the kernel, and runs all mounts of these tests with it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::common::slow::Slow;
use crate::common::{Mount, Watchdog, can_mount, is_by_io_uring};
use rcuwalk::Vfs;
use rcuwalk_fuse::Options;

/// URING-1: a request's data stays the same while it is answered, whatever other requests
/// arrive meanwhile, and each request gets its own answer.
#[test]
fn a_request_stays_as_it_is_while_it_is_answered() {
    if !can_mount() {
        return;
    }
    let options = Options::default();
    let mount = Mount::with(Vfs::new(Slow::default()).unwrap(), None, "slow", &options);
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(60));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for asker in 0..4 {
            let (mount, is_over) = (&mount, &is_over);
            scope.spawn(move || {
                let mut asked = 0;
                while !is_over.load(Relaxed) {
                    let name = format!("{asker}-{asked}-{}", "x".repeat(asked % 200));
                    let told = fs::metadata(mount.path().join(name)).unwrap_err();
                    assert_eq!(told.kind(), ErrorKind::NotFound);
                    assert_eq!(
                        fs::metadata(mount.path().join("slow")).unwrap().len(),
                        1 << 20
                    );
                    asked += 1;
                }
                assert!(asked > 0);
            });
        }
        let writers = ["a", "b", "c"].map(|letter| {
            let file = File::options().write(true).open(mount.path().join("slow"));
            let file = file.unwrap();
            scope.spawn(move || file.write_all_at(letter.repeat(60).as_bytes(), 0))
        });
        let written = writers.map(|writer| writer.join().unwrap());
        is_over.store(true, Relaxed);
        for written in written {
            written.expect("URING-1");
        }
    });
}

#[test]
fn who_does_not_want_it_does_not_have_it() {
    if !can_mount() {
        return;
    }
    let mount = Mount::memfs_with(&Options::default().io_uring(false));
    assert!(!mount.mounted.is_by_io_uring());
    fs::write(mount.path().join("file"), "contents").unwrap();
    assert_eq!(fs::read(mount.path().join("file")).unwrap(), b"contents");
}

/// With more threads than processors, and with only one: each queue has at least one thread.
#[test]
fn every_queue_is_served_by_however_many_threads() {
    if !can_mount() {
        return;
    }
    for threads in [1, 2, 3, 17] {
        let mount = Mount::memfs_with(&Options::default().threads(threads));
        let _watchdog = Watchdog::over(&mount, Duration::from_secs(60));
        assert!(!is_by_io_uring() || mount.mounted.is_by_io_uring());
        thread::scope(|scope| {
            for maker in 0..8 {
                let at = mount.path().join(format!("{maker}"));
                scope.spawn(move || {
                    for _ in 0..50 {
                        fs::write(&at, [maker; 9000]).unwrap();
                        assert_eq!(fs::read(&at).unwrap(), [maker; 9000]);
                        fs::remove_file(&at).unwrap();
                    }
                });
            }
        });
        // The kernel reports the last closes after close(2).
        while mount.mounted.open() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
