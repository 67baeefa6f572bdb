//! Seed, number of cases, and how a test says that it could not do its work.
//!
//! | variable          | meaning                                                     |
//! |-------------------|-------------------------------------------------------------|
//! | `RCUWALK_CASES`   | walks per test, in place of the test's own number           |
//! | `RCUWALK_SEED`    | seed, decimal or `0x…`, in place of the fixed one           |
//! | `RCUWALK_CHANGES` | operations per test of changes, likewise                    |
//! | `RCUWALK_FINDS`   | differences of changes to collect before a test fails: 1    |
//! | `RCUWALK_COPIES`  | copies of a busy image, likewise                            |
//! | `RCUWALK_TORTURE_SECONDS` | how long a torture goes on                          |
//! | `RCUWALK_SKIPS`   | a file that collects a line per skipped test                |

use std::env;
use std::ffi::OsStr;
use std::process::{Command, ExitStatus, Stdio};

/// The seed without `RCUWALK_SEED`: fixed, so that a red run stays red.
const DEFAULT_SEED: u64 = 0x5eed_0000_0001;

/// How much to generate, and from what.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Everything generated follows from this number.
    pub seed: u64,
    /// How many walks, or operations.
    pub cases: usize,
}

impl Settings {
    /// The environment's wishes; `cases` where it has none.
    ///
    /// # Panics
    /// If a variable is set to something that is no number: running other cases
    /// than the ones asked for would be worse.
    pub fn from_env(cases: usize) -> Settings {
        Settings {
            seed: number("RCUWALK_SEED").unwrap_or(DEFAULT_SEED),
            cases: number("RCUWALK_CASES").map_or(cases, |n| n as usize),
        }
    }

    /// As above, for tests of changes, which count operations: many more of them are made in a
    /// second than walks over new trees.
    ///
    /// # Panics
    /// As [`Settings::from_env`].
    pub fn of_changes(operations: usize) -> Settings {
        Settings {
            seed: number("RCUWALK_SEED").unwrap_or(DEFAULT_SEED),
            cases: number("RCUWALK_CHANGES").map_or(operations, |n| n as usize),
        }
    }
}

/// How many differences that do not look alike to look for, in a run of changes.
///
/// # Panics
/// As [`Settings::from_env`].
pub fn finds() -> usize {
    number("RCUWALK_FINDS").map_or(1, |n| n as usize)
}

/// How many copies to take of each busy image; `copies` where the environment has no
/// wish.
///
/// # Panics
/// As [`Settings::from_env`].
pub fn copies(copies: usize) -> usize {
    number("RCUWALK_COPIES").map_or(copies, |n| n as usize)
}

/// For how many seconds a torture goes on; `seconds` where the environment has no wish.
///
/// # Panics
/// As [`Settings::from_env`].
pub fn torture_seconds(seconds: u64) -> u64 {
    number("RCUWALK_TORTURE_SECONDS").unwrap_or(seconds)
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(parse(&text).unwrap_or_else(|| panic!("{name}={text} is no number")))
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reports that `test` could not run, and why: a green run that looked at nothing must not look
/// like any other.
pub fn skipped(test: &str, why: &str) {
    rcuwalk_testkit::skip(&format!("{test}: {why}"));
}

/// Runs `test` of this test program again, as root of a new user namespace.
///
/// `None` where there are no user namespaces for us, or we are in one already.
pub fn rerun_as_root_of_a_namespace(test: &str) -> Option<ExitStatus> {
    const INSIDE: &str = "RCUWALK_IN_USER_NAMESPACE";
    if env::var_os(INSIDE).is_some() {
        return None;
    }
    // unshare(1) rather than unshare(2): a test program has threads, and a process
    // with threads cannot enter a user namespace.
    let unshare = |program: &OsStr| {
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--"])
            .arg(program)
            .env(INSIDE, "1");
        command
    };
    let allowed = unshare(OsStr::new("true")).stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return None;
    }
    let this = env::current_exe().ok()?;
    println!("again as root of a user namespace: everything belongs to root there");
    unshare(this.as_os_str())
        .args(["--exact", test, "--nocapture"])
        .status()
        .ok()
}
