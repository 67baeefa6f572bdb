//! Users who ask at the same time.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::common::{Mount, Watchdog, can_mount, skip};
use rcuwalk_fuse::Options;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

/// Threads of the user who asks for much: as many requests are outstanding all the time.
const MANY: u64 = 1000;

/// WATCH-1: a user with one request waits for those that came before it, and not for those that
/// another user sends meanwhile, however many of them are outstanding.
#[test]
fn a_user_with_a_thousand_requests_does_not_starve_one_with_one() {
    if !can_mount() {
        return;
    }
    if !geteuid().is_root() {
        return skip("needs root");
    }
    let mount = Mount::memfs_with(&Options::default());
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(120));
    let (answered, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut between = Vec::new();
    thread::scope(|scope| {
        for asker in 0..MANY {
            let (mount, answered, is_over) = (&mount, &answered, &is_over);
            let asks = move || {
                become_user(1001);
                while !is_over.load(Relaxed) {
                    ask(&mount.path().join(format!("{asker}")));
                    answered.fetch_add(1, Relaxed);
                }
            };
            let small = thread::Builder::new().stack_size(64 << 10);
            small.spawn_scoped(scope, asks).unwrap();
        }
        let (mount, answered, is_over) = (&mount, &answered, &is_over);
        let one = scope.spawn(move || {
            become_user(1002);
            while answered.load(Relaxed) < 2 * MANY {
                thread::sleep(Duration::from_millis(1));
            }
            let waits = (0..20).map(|n| {
                let before = answered.load(Relaxed);
                ask(&mount.path().join(format!("one-{n}")));
                answered.load(Relaxed) - before
            });
            let waits: Vec<u64> = waits.collect();
            is_over.store(true, Relaxed);
            waits
        });
        between = one.join().unwrap();
    });
    between.sort_unstable();
    // Each thread may ask once more before this one's request is sent, and after the answer
    // before this one runs again.
    let median = between[between.len() / 2];
    assert!(median < 4 * MANY, "WATCH-1: {between:?}");
}

/// No name is there, so the kernel asks the daemon each time.
fn ask(path: &Path) {
    let told = fs::metadata(path).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::NotFound);
}

/// Of this thread.
fn become_user(uid: u32) {
    let uid = Uid::from_raw(uid);
    set_thread_res_uid(uid, uid, uid).unwrap();
}
