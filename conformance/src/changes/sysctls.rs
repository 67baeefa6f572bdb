//! The machine's sysctls `fs.protected_symlinks`, `_hardlinks`, `_regular` and `_fifos`.
//!
//! They apply to the whole machine, so tests agree by a lock: a test whose results depend on
//! them holds it shared ([`Sysctls::as_they_are`]), the test that turns them on holds it
//! exclusively ([`Sysctls::on`]). The lock is a flock(2) of one of the files in /proc/sys, and
//! works between processes.
//!
//! A child process puts the old values back when this process closes a pipe to it. So they
//! are put back whatever ends the test: its last line, a panic, or SIGKILL. The child has the
//! locked descriptor, too, and the lock is held until the values are back.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::fs::FlockOperation;

const NAMES: [&str; 4] = ["symlinks", "hardlinks", "regular", "fifos"];

/// Waits for the end of the pipe, then writes each value to the file before it.
const RESTORE: &str =
    r#"trap '' HUP INT TERM; read -r _; while [ $# -gt 1 ]; do echo "$2" >"$1"; shift 2; done"#;

/// The sysctls, which stay as they are until this is dropped.
#[must_use]
pub struct Sysctls {
    /// Closed after `restorer` is dropped.
    _lock: File,
    sticky: bool,
    _restorer: Option<Restorer>,
}

impl Sysctls {
    /// As the machine has them. Waits for a test that turns them on.
    ///
    /// # Errors
    /// What keeps them from being read.
    pub fn as_they_are() -> io::Result<Sysctls> {
        let lock = locked(FlockOperation::LockShared)?;
        let mut sticky = true;
        for name in ["symlinks", "regular", "fifos"] {
            sticky &= read(name)? == "0";
        }
        Ok(Sysctls {
            _lock: lock,
            sticky,
            _restorer: None,
        })
    }

    /// All at 1. Waits for the tests that depend on them.
    ///
    /// # Errors
    /// What keeps them from being set: it takes root, and a /proc that can be written to.
    pub fn on() -> io::Result<Sysctls> {
        let lock = locked(FlockOperation::LockExclusive)?;
        let restorer = Restorer::new(&lock)?;
        for name in NAMES {
            fs::write(path(name), "1")?;
        }
        Ok(Sysctls {
            _lock: lock,
            sticky: false,
            _restorer: Some(restorer),
        })
    }

    /// True if sticky directories protect nothing but names: what rcuwalk does on a mount
    /// without `PROTECTED_LINKS`.
    pub fn leave_sticky_directories_alone(&self) -> bool {
        self.sticky
    }

    /// All four values.
    ///
    /// # Errors
    /// What keeps them from being read.
    pub fn values(&self) -> io::Result<[String; 4]> {
        values()
    }
}

/// The child that puts the values back; dropping it waits until they are.
struct Restorer(Child);

impl Restorer {
    fn new(lock: &File) -> io::Result<Restorer> {
        let mut child = Command::new("sh");
        child.args(["-c", RESTORE, "sh"]);
        for (name, value) in NAMES.iter().zip(values()?) {
            child.args([path(name), value]);
        }
        // The descriptor of the lock, under a number that the shell does not write to.
        child.stdin(Stdio::piped()).stdout(lock.try_clone()?);
        // A terminal's signals are for the test.
        child.process_group(0).spawn().map(Restorer)
    }
}

impl Drop for Restorer {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(err) = self.0.wait() {
            eprintln!("fs.protected_* may not be what they were: {err}");
        }
    }
}

fn locked(how: FlockOperation) -> io::Result<File> {
    let file = File::open(path(NAMES[0]))?;
    rustix::fs::flock(&file, how)?;
    Ok(file)
}

fn values() -> io::Result<[String; 4]> {
    let mut values = NAMES.map(String::from);
    for value in &mut values {
        *value = read(value)?;
    }
    Ok(values)
}

fn path(name: &str) -> String {
    format!("/proc/sys/fs/protected_{name}")
}

fn read(name: &str) -> io::Result<String> {
    let text = fs::read_to_string(path(name))?;
    Ok(text.trim().into())
}
