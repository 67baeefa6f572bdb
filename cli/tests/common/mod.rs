//! Running the command, and judging how it ended.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

/// The command, not yet started.
pub(crate) fn rcuwalk<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rcuwalk"));
    command.args(args);
    command
}

/// How it ended, what it printed, and what it complained about.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn run(command: &mut Command) -> Ended {
    Ended::from(command.output().unwrap())
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

/// Makes a small ext4 image, and returns what is in the file. `None`, and the test is to
/// be skipped, without mkfs.ext4.
pub(crate) fn image(path: &Path) -> Option<Vec<u8>> {
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

/// For the start of a test: `if !is_root() { return skip("needs root"); }`
pub(crate) fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
    if let Some(file) = std::env::var_os("RCUWALK_SKIPS") {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(file)
            .unwrap();
        // One write, so that the lines of tests in other processes stay whole.
        file.write_all(format!("{reason}\n").as_bytes()).unwrap();
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
