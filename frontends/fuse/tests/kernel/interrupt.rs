//! A caller that gets a signal while a request is being answered need not wait for the end of
//! the answer. And a request that is never answered stops no other one.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::slow::{Gate, SIZE, Slow};
use crate::common::{Mount, Watchdog, can_mount};
use rcuwalk::Vfs;
use rcuwalk_fuse::{Options, serve};
use rcuwalk_testkit::wait_until;
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A mount with a slow file, and the number of its bytes that have been read or written.
fn slow() -> Option<(Mount, Arc<AtomicU64>)> {
    if !can_mount() {
        return None;
    }
    let slow = Slow::default();
    let bytes = slow.bytes.clone();
    let vfs = Vfs::new(slow).unwrap();
    Some((Mount::with(vfs, None, "slow", &Options::default()), bytes))
}

fn dd(args: &[&str]) -> Child {
    let mut dd = Command::new("dd");
    let dd = dd.args(args).arg("bs=1M").arg("count=1");
    dd.stderr(Stdio::null()).spawn().unwrap()
}

/// Of a request that would take over an hour, a killed caller waits for a byte or two.
#[test]
fn who_is_killed_does_not_wait_for_the_answer() {
    let Some((mount, bytes)) = slow() else { return };
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(60));
    let file = mount.path().join("slow");
    let named = |what: &str| format!("{what}={}", file.display());
    for args in [
        [&*named("of"), "if=/dev/zero", "conv=notrunc"],
        [&*named("if"), "of=/dev/null", "iflag=direct"],
    ] {
        for _ in 0..3 {
            let before = bytes.load(Relaxed);
            let mut child = dd(&args);
            wait_until("it begins", || bytes.load(Relaxed) > before + 3);
            child.kill().unwrap();
            let killed = Instant::now();
            child.wait().unwrap();
            assert!(killed.elapsed() < Duration::from_secs(10), "{args:?}");
            let at_most = bytes.load(Relaxed) + 10;
            thread::sleep(Duration::from_millis(200));
            let now = bytes.load(Relaxed);
            assert!(now <= at_most, "{args:?}: it goes on for nobody");
            assert!(now < before + SIZE / 100, "{args:?}");
        }
    }
    wait_until("all is closed", || mount.mounted.open() == 0);
}

/// Writes `slow` while timers go off, and prints the number of bytes written.
const INTERRUPTED: &str = "
import os, signal, sys
signal.signal(signal.SIGALRM, lambda *_: None)
fd = os.open(sys.argv[1], os.O_WRONLY)
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
done = os.pwrite(fd, bytes(200), 0)
# The interpreter's end takes the handler away, and a signal then would kill it.
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
print(done)
";

/// EDGE-1: a signal that is not deadly waits for a write to a file, which neither fails nor
/// falls short because of it.
#[test]
fn a_signal_waits_for_a_write_to_a_file() {
    let Some((mount, bytes)) = slow() else { return };
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(60));
    let mut python = Command::new("python3");
    let python = python
        .args(["-c", INTERRUPTED])
        .arg(mount.path().join("slow"));
    let said = python.stderr(Stdio::inherit()).output().unwrap();
    assert!(said.status.success());
    let said = String::from_utf8(said.stdout).unwrap();
    let done: u64 = said.trim().parse().unwrap();
    assert_eq!((done, bytes.load(Relaxed)), (200, 200), "EDGE-1");
}

/// NODE-1: a file whose caller is gone by the time it is open is closed: the connection is
/// aborted between the request and its answer, and no RELEASE comes.
#[test]
fn what_is_opened_for_nobody_is_closed() {
    if !can_mount() {
        return;
    }
    let slow = Slow {
        opening: Duration::from_millis(500),
        ..Slow::default()
    };
    let options = Options::default();
    let mount = Mount::with(Vfs::new(slow).unwrap(), None, "slow", &options);
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(60));
    let file = mount.path().join("slow");
    thread::scope(|scope| {
        let opening = scope.spawn(|| File::open(file));
        thread::sleep(Duration::from_millis(200));
        // The abort matters; the unmount may fail.
        let _ = unmount(mount.path(), UnmountFlags::FORCE);
        let refused = opening.join().unwrap().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ECONNABORTED));
    });
    wait_until("it is over", || mount.mounted.is_over());
    // The open was still under way, and then had no caller.
    thread::sleep(Duration::from_millis(600));
    wait_until("it is closed", || mount.mounted.open() == 0);
    wait_until("it is forgotten", || mount.mounted.nodes() == 1);
    // An aborted mount stays in the tree, unless the abort has unmounted it.
    let _ = unmount(mount.path(), UnmountFlags::DETACH);
}

/// An INTERRUPT as a message: the request that it names is answered, in full since the caller
/// is not being killed; the INTERRUPT itself is not.
#[test]
fn an_interrupt_is_heard_by_the_request_that_it_names() {
    let slow = Slow::default();
    let bytes = slow.bytes.clone();
    let kind = SocketType::SEQPACKET;
    let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.unwrap();
    let send = |op: u32, unique: u64, node: u64, body: &[u8]| {
        let mut message = (40 + body.len() as u32).to_ne_bytes().to_vec();
        message.extend(op.to_ne_bytes());
        message.extend(unique.to_ne_bytes());
        message.extend(node.to_ne_bytes());
        message.extend([0; 16]);
        message.extend(body);
        rustix::io::write(&ours, &message).unwrap();
    };
    let receive = || {
        let mut answer = vec![0; 1 << 17];
        let len = rustix::io::read(&ours, &mut answer).unwrap();
        answer.truncate(len);
        let number = |at: usize| u64::from_ne_bytes(*answer[at..].first_chunk().unwrap());
        assert_eq!(answer[4..8], [0; 4], "no error");
        (number(8), answer[16..].to_vec())
    };
    let version = [7_u32, 40, 1 << 17, 0].map(u32::to_ne_bytes).concat();
    send(26, 1, 0, &version);
    let options = Options::default().threads(2);
    let served = serve(Vfs::new(slow).unwrap(), theirs, &options).unwrap();
    receive();
    let first = |body: Vec<u8>| u64::from_ne_bytes(*body.first_chunk().unwrap());
    send(1, 2, 1, b"slow\0");
    let node = first(receive().1);
    send(14, 4, node, &(libc::O_RDWR as u64).to_ne_bytes());
    let handle = first(receive().1);
    let write = |unique: u64, size: u32| {
        let piece = [
            &handle.to_ne_bytes()[..],
            &[0; 8],
            &size.to_ne_bytes(),
            &[0; 20],
            &vec![b'x'; size as usize],
        ];
        send(16, unique, node, &piece.concat());
    };
    let written = |body: Vec<u8>| u32::from_ne_bytes(*body.first_chunk().unwrap());
    write(6, 100);
    wait_until("it begins", || bytes.load(Relaxed) > 3);
    send(36, 7, 0, &6_u64.to_ne_bytes());
    let (unique, body) = receive();
    assert_eq!(unique, 6, "INTERRUPT is not answered");
    assert_eq!(written(body), 100);
    write(8, 20);
    let (unique, body) = receive();
    assert_eq!((unique, written(body)), (8, 20), "nobody interrupts that");
    // A short answer would mark the end of the file.
    let piece = [
        &handle.to_ne_bytes()[..],
        &[0; 8],
        &100_u32.to_ne_bytes(),
        &[0; 20],
    ];
    send(15, 10, node, &piece.concat());
    let before = bytes.load(Relaxed);
    wait_until("it begins", || bytes.load(Relaxed) > before + 3);
    send(36, 11, 0, &10_u64.to_ne_bytes());
    assert_eq!(receive(), (10, vec![b'x'; 100]), "all of it");
    drop(ours);
    served.join().unwrap();
}

/// A mount of a tree in which lookups of some names block until the gate is opened.
fn stuck() -> Option<(Mount, Arc<Gate>)> {
    if !can_mount() {
        return None;
    }
    let slow = Slow::default();
    let gate = slow.gate.clone();
    let vfs = Vfs::new(slow).unwrap();
    Some((Mount::with(vfs, None, "slow", &Options::default()), gate))
}

/// Starts threads that each look up a name that is stuck, all on this processor.
fn get_stuck(mount: &Mount, cpu: usize, names: u64) -> Vec<thread::JoinHandle<ErrorKind>> {
    let look_up = |name| {
        let path = mount.path().join(format!("stuck-{name}"));
        move || on_processor(cpu, path)
    };
    (0..names)
        .map(|name| thread::spawn(look_up(name)))
        .collect()
}

/// The result of a lookup on this processor.
fn on_processor(cpu: usize, path: PathBuf) -> ErrorKind {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).unwrap();
    fs::metadata(path).unwrap_err().kind()
}

fn processors() -> Vec<usize> {
    let all = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| all.is_set(*cpu))
        .collect()
}

/// WATCH-1: if more requests get stuck than there are threads, all from one processor, all
/// others are still answered, from whatever processor they come. When the stuck ones go on, the
/// added threads end, also if more requests come all the time.
#[test]
fn requests_that_are_stuck_do_not_stop_the_others() {
    const NAMES: u64 = 8;
    let Some((mount, gate)) = stuck() else { return };
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(120));
    let how = || mount.mounted.observer().statistics().unwrap().stuck;
    wait_until("the watcher looks", || how().threads > 0);
    let before = how().threads;
    let processors = processors();
    let askers = get_stuck(&mount, processors[0], NAMES);
    wait_until("all are stuck", || gate.waiting() == NAMES);
    for cpu in processors {
        let path = mount.path().join(format!("free-{cpu}"));
        let asker = thread::spawn(move || on_processor(cpu, path));
        assert_eq!(asker.join().unwrap(), ErrorKind::NotFound, "WATCH-1");
    }
    wait_until("it shows", || how().stuck as u64 == NAMES);
    assert!(how().oldest >= Duration::from_secs(5) && how().threads > before);
    assert_eq!(gate.waiting(), NAMES);
    gate.open();
    for asker in askers {
        assert_eq!(asker.join().unwrap(), ErrorKind::NotFound);
    }
    wait_until("none is stuck", || how().stuck == 0);
    if !mount.mounted.is_by_io_uring() {
        wait_until("spare threads end", || {
            // Under load as well: any of them may get one of these requests.
            (0..20).for_each(|_| drop(fs::metadata(mount.path().join("free"))));
            how().threads == before
        });
    }
}

/// WATCH-1: a user with too many stuck requests is refused more, and other users are not.
#[test]
fn a_user_with_too_many_stuck_requests_is_refused_more() {
    let Some((mount, gate)) = stuck() else { return };
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(120));
    let stat = |uid: u32, name: &str| {
        let mut stat = Command::new("setpriv");
        let stat = stat.args(["--clear-groups", &format!("--reuid={uid}"), "stat"]);
        stat.arg(mount.path().join(name)).env("LC_ALL", "C");
        stat.stdout(Stdio::null()).stderr(Stdio::piped());
        stat.spawn().unwrap()
    };
    let said = |stat: Child| {
        let said = stat.wait_with_output().unwrap().stderr;
        String::from_utf8(said).unwrap()
    };
    // More than the user is admitted with; the last ones are refused as well.
    let stuck = (0..64).map(|name| stat(1001, &format!("stuck-{name}")));
    let stuck: Vec<_> = stuck.collect();
    let is_refused = |said: String| said.contains("Resource temporarily unavailable");
    let refused = || is_refused(said(stat(1001, "free")));
    wait_until("more are refused", refused);
    assert!(
        said(stat(1002, "free")).contains("No such file"),
        "WATCH-1: another user"
    );
    let statistics = mount.mounted.observer().statistics().unwrap();
    assert!(statistics.stuck.refused > 0);
    gate.open();
    let (admitted, others): (Vec<String>, Vec<String>) = stuck
        .into_iter()
        .map(said)
        .partition(|said| said.contains("No such file"));
    assert!(!admitted.is_empty() && others.into_iter().all(is_refused));
    wait_until("nothing is refused", || !refused());
}

/// WATCH-1: a mount whose connection is cut ends, though the back end blocks its threads for
/// ever.
#[test]
fn a_mount_ends_though_its_threads_are_stuck() {
    let Some((mut mount, gate)) = stuck() else {
        return;
    };
    let _watchdog = Watchdog::over(&mount, Duration::from_secs(120));
    let askers = get_stuck(&mount, processors()[0], 3);
    wait_until("all are stuck", || gate.waiting() == 3);
    // The abort matters; the unmount may fail.
    let _ = unmount(mount.path(), UnmountFlags::FORCE);
    for asker in askers {
        asker.join().unwrap();
    }
    wait_until("it is over", || mount.mounted.is_over());
    mount.mounted.unmount().unwrap();
    assert_eq!(gate.waiting(), 3, "WATCH-1: they are still there");
    gate.open();
    wait_until("they end", || gate.waiting() == 0);
    let _ = unmount(mount.path(), UnmountFlags::DETACH);
}
