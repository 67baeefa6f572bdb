//! Running the command, and judging how it ended.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses its own part"
)]

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;

pub(crate) use rcuwalk_testkit::{is_root, skip};

/// The command, not yet started.
pub(crate) fn rcuwalk<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rcuwalk"));
    command.args(args);
    command
}

/// The exit status, the output, and the error output of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn run(command: &mut Command) -> Ended {
    loop {
        match command.output() {
            // A copy of the command that another test's child still has open for writing: it has
            // forked while that was written, and not executed yet.
            Err(err) if err.kind() == ErrorKind::ExecutableFileBusy => {}
            output => return Ended::from(output.unwrap()),
        }
    }
}

/// What Ctrl-C sends, and the exit status after it. Where this process ignores it, as a shell's
/// background job does, so do its children: then SIGTERM.
pub(crate) fn interrupt() -> (Signal, i32) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    match ignored & (1 << (Signal::INT.as_raw() - 1)) {
        0 => (Signal::INT, 130),
        _ => (Signal::TERM, 143),
    }
}

/// Runs a command, which has to succeed without any message, and returns its output.
pub(crate) fn run_well(command: &mut Command) -> String {
    let ended = run(command);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{command:?}");
    ended.out
}

/// [`run_well`] of a command that prints one JSON document.
pub(crate) fn run_json(command: &mut Command) -> Value {
    serde_json::from_str(&run_well(command)).unwrap()
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        Ended {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The names in a directory.
pub(crate) fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let entries = dir.read_dir().unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

/// Makes a small ext4 image, and returns the contents of its file. `None`, and the test is
/// skipped, without mkfs.ext4.
pub(crate) fn make_image(path: &Path) -> Option<Vec<u8>> {
    let tree = tempfile::tempdir().unwrap();
    std::fs::create_dir(tree.path().join("d")).unwrap();
    std::fs::write(tree.path().join("d/f"), "contents").unwrap();
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.arg("-q")
        .arg("-d")
        .arg(tree.path())
        .arg(path)
        .arg("8M");
    match mkfs.output() {
        Ok(output) if output.status.success() => Some(std::fs::read(path).unwrap()),
        _ => {
            skip("needs mkfs.ext4");
            None
        }
    }
}

/// Returns whether a test can mount here.
pub(crate) fn can_mount() -> bool {
    !rcuwalk_testkit::lacks_fuse()
}

/// Runs a script of bash where nothing can be left behind: no other process sees its mounts,
/// and its processes are killed when it ends, at the latest after a minute. Its working
/// directory is /run, which is empty except for the directories `src` and `mnt`. `$RCUWALK` is
/// the command, `daemon` prints the ids of those that run, `gone` waits until none does. A
/// command that fails ends the script; one that has to fail stands behind `fails` (after `!`,
/// bash goes on whether it fails or not).
pub(crate) fn alone(script: &str) -> Ended {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60", "unshare", "-m", "-p", "--fork"]);
    command.args(["--kill-child", "--mount-proc", "bash", "-euc"]);
    command.arg(format!(
        r#"mount -t tmpfs none /run; mkdir /run/src /run/mnt; cd /run
        daemon() {{ grep -lxs rcuwalk /proc/[0-9]*/comm | cut -d/ -f3; }}
        gone() {{ while [ -n "$(daemon)" ]; do sleep 0.1; done; }}
        fails() {{ if "$@"; then echo "succeeded: $*" >&2; exit 99; fi; }}
        {script}"#
    ));
    command.env("RCUWALK", env!("CARGO_BIN_EXE_rcuwalk"));
    run(&mut command)
}

/// [`alone`], and the script has to come to its end.
pub(crate) fn alone_well(script: &str) -> Ended {
    let ended = alone(script);
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.out, ended.err);
    ended
}
