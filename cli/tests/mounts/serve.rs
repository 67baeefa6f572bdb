//! `rcuwalk serve virtiofs`, as a machine monitor meets it. What a guest meets is in
//! `guest.rs`, and in the tests of the front end.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};

use rcuwalk_testkit::wait_until;

use crate::common::{Ended, rcuwalk, run, run_well};

/// A process that serves; it is killed with the test.
pub(super) struct Server(Option<Child>);

impl Server {
    pub(super) fn start(source: &Path, socket: &Path, options: &[&str]) -> Server {
        let mut command = rcuwalk(["serve", "virtiofs"]);
        command
            .arg(source)
            .arg("--socket")
            .arg(socket)
            .args(options);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let server = Server(Some(child.unwrap()));
        wait_until("it listens", || is_socket(socket));
        server
    }

    pub(super) fn ended(mut self) -> Ended {
        Ended::from(self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn is_socket(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|there| there.file_type().is_socket())
}

/// Asks for the features of the device, as each monitor does first.
fn features(monitor: &mut UnixStream) -> u64 {
    const GET_FEATURES: u32 = 1;
    for word in [GET_FEATURES, 1, 0] {
        monitor.write_all(&word.to_ne_bytes()).unwrap();
    }
    let mut answer = [0; 20];
    monitor.read_exact(&mut answer).unwrap();
    u64::from_ne_bytes(answer[12..].try_into().unwrap())
}

/// Without Landlock there is no sandbox.
fn sandbox() -> &'static str {
    match Path::new("/sys/kernel/security/landlock").exists() {
        true => "namespace",
        false => "none",
    }
}

#[test]
fn a_server_is_for_one_monitor_and_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, socket) = (dir.path().join("s"), dir.path().join("sock"));
    fs::create_dir(&source).unwrap();
    let options = [
        "--sandbox",
        sandbox(),
        "--stats",
        "--cache",
        "always",
        "--queues",
        "3",
    ];
    let server = Server::start(&source, &socket, &options);
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its user alone");
    // Another server does not take its place.
    let mut second = rcuwalk(["serve", "virtiofs"]);
    second.arg(&source).arg("--socket-path").arg(&socket);
    let refused = run(&mut second);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("cannot listen at"), "{}", refused.err);
    let mut monitor = UnixStream::connect(&socket).unwrap();
    assert_eq!(features(&mut monitor) >> 32 & 1, 1, "virtio 1");
    assert!(!socket.exists() && UnixStream::connect(&socket).is_err());
    drop(monitor);
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for line in ["is served", "the machine has gone", "statistics after"] {
        assert!(ended.err.contains(line), "{line}: {}", ended.err);
    }
    // What makes no sense ends it with an error.
    let server = Server::start(&source, &socket, &["--sandbox", sandbox()]);
    let mut monitor = UnixStream::connect(&socket).unwrap();
    monitor.write_all(&[0xff; 64]).unwrap();
    let ended = server.ended();
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("the machine monitor"), "{}", ended.err);
}

#[test]
fn a_daemon_listens_when_the_command_returns() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    let metrics = dir.path().join("metrics");
    let log = dir.path().join("log");
    let mut command = rcuwalk([
        "serve",
        "virtiofs",
        "memfs",
        "--daemon",
        "--sandbox",
        "none",
    ]);
    command.arg("--socket").arg(&socket);
    command.arg("--log-file").arg(&log);
    command
        .arg("--metrics")
        .arg(format!("unix:{}", metrics.display()));
    run_well(&mut command);
    let mut monitor = UnixStream::connect(&socket).unwrap();
    features(&mut monitor);
    let get = |page: &str| {
        let mut asked = UnixStream::connect(&metrics).unwrap();
        write!(asked, "GET {page} HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        asked.read_to_string(&mut text).unwrap();
        text
    };
    assert!(get("/metrics").contains("rcuwalk_fuse_nodes 1"));
    let status = get("/status");
    assert!(status.contains("\"source\":\"memfs\""), "{status}");
    drop(monitor);
    wait_until("it has gone", || !metrics.exists());
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("memfs is served"), "{log}");
}

#[test]
fn a_signal_ends_it_before_and_after_a_monitor_has_come() {
    use rustix::process::{Pid, Signal, kill_process};
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    for comes in [false, true] {
        let server = Server::start(Path::new("memfs"), &socket, &["--sandbox", "none"]);
        let monitor = comes.then(|| {
            let mut monitor = UnixStream::connect(&socket).unwrap();
            features(&mut monitor);
            monitor
        });
        let id = server.0.as_ref().map(|child| child.id()).unwrap();
        let pid = Pid::from_raw(id.cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let ended = server.ended();
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(!socket.exists());
        drop(monitor);
    }
}

#[test]
fn wrong_usage_is_named() {
    for (args, said) in [
        (&["--socket", "/s"][..], "required"),
        (&["/tmp"], "--socket"),
        (
            &["/tmp", "--shared-dir", "/tmp", "--socket", "/s"],
            "cannot be used",
        ),
        (&["/tmp", "--socket", "/s", "--tag", ""], "1 to 36 bytes"),
        (&["/tmp", "--socket", "/s", "--queues", "65"], "1 to 64"),
        (&["/tmp", "--socket", "/s", "--cache", "some"], "metadata"),
        (&["/tmp", "--socket", "/s", "--sandbox", "jail"], "chroot"),
    ] {
        let mut command = rcuwalk(["serve", "virtiofs"]);
        let ended = run(command.args(args));
        assert_eq!(ended.code, Some(2), "{args:?}");
        assert!(ended.err.contains(said), "{}", ended.err);
    }
    let mut command = rcuwalk(["serve", "virtiofs", "/none/there", "--socket", "/none/s"]);
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("there is no such file"), "{}", ended.err);
}
