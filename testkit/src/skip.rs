//! A test that cannot run here says so.
//!
//! The test harness knows no third outcome, and hides the output of tests that pass. So a test
//! also appends its reason to the file named by `RCUWALK_SKIPS`, which `cargo xtask ci` reads.

use std::fs::File;
use std::io::{self, Write as _};
use std::process::Command;

/// Reports that a test cannot run here: `return skip("needs debugfs");`
///
/// # Panics
/// If the file named by `RCUWALK_SKIPS` cannot be written.
pub fn skip(reason: &str) {
    // Not eprintln: the test harness captures that, and shows it only if the test fails.
    let _ = writeln!(io::stderr(), "skipped: {reason}");
    if let Some(file) = std::env::var_os("RCUWALK_SKIPS") {
        let file = File::options().create(true).append(true).open(file);
        // One write, so that the lines of tests in other processes stay whole.
        let line = format!("{reason}\n");
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// Whether there is this program, which knows `--version`.
pub fn has(program: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    version.is_ok_and(|ended| ended.status.success())
}

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Skips a test that needs root: `if lacks_root() { return; }`
pub fn lacks_root() -> bool {
    if !is_root() {
        skip("needs root");
    }
    !is_root()
}

/// Skips a test that mounts by FUSE: `if lacks_fuse() { return; }`
pub fn lacks_fuse() -> bool {
    if lacks_root() {
        return true;
    }
    let device = File::options().read(true).write(true).open("/dev/fuse");
    if device.is_err() {
        skip("needs /dev/fuse");
    }
    device.is_err()
}
