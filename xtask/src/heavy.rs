//! The checks that take a machine's time: loom, shuttle, AddressSanitizer, Miri, and
//! the deep run that is all of them, and the ordinary tests, with larger numbers.
//!
//! Each has a target directory of its own. They build everything with other
//! flags, and in a shared directory each would throw the others' work away.

use std::env;
use std::path::{Path, PathBuf};

use crate::run::{Cmd, Done, Result};
use crate::skips::{self, SKIPS_VAR, Skips};
use crate::source::names_in;
use crate::steps::{Step, Steps};

/// How far a check goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Minutes: for every change.
    Short,
    /// As long as it takes: once in a while.
    Deep,
}

/// The crates that run under ASan: those with `unsafe`, and what leans on them.
const ASAN_CRATES: [(&str, &str); 3] = [
    ("sync", "rcuwalk-sync"),
    ("vfs", "rcuwalk"),
    ("backends/memfs", "rcuwalk-memfs"),
];

/// Runs everything at [`Depth::Deep`]. Missing tools are reported and skipped.
pub(crate) fn deep(root: &Path) -> Result<Done> {
    let steps: [(&str, Step); 7] = [
        ("loom", |root, _| loom(root, Depth::Deep)),
        ("shuttle", |root, _| shuttle(root, Depth::Deep)),
        ("miri", |root, _| miri(root)),
        ("asan", |root, skips| asan(root, Depth::Deep, skips)),
        ("conformance", conformance),
        ("stress", stress),
        ("fuzz", |root, _| fuzz(root)),
    ];
    let no_skips = skips::are_failures();
    Steps {
        name: "deep",
        steps: &steps,
        no_skips,
    }
    .run(root)
}

/// Model-checks `sync/tests/loom*`.
pub(crate) fn loom(root: &Path, depth: Depth) -> Result<Done> {
    // Two preemptions find most known bugs of such code, three nearly all; each
    // more multiplies the time.
    let preemptions = match depth {
        Depth::Short => "2",
        Depth::Deep => "3",
    };
    Cmd::cargo(root)
        .rustflags("--cfg loom")
        .env("LOOM_MAX_PREEMPTIONS", preemptions)
        // Optimised for the millions of executions, but not for twice as long.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .args([
            "test",
            "--release",
            "--package",
            "rcuwalk-sync",
            "--test",
            "loom*",
        ])
        .arg("--target-dir", target_dir(root, "loom"))
        .run()
}

/// Model-checks `vfs/tests/shuttle*`.
pub(crate) fn shuttle(root: &Path, depth: Depth) -> Result<Done> {
    // For each scheduler and model. Schedules are random: rare ones come up in the deep run.
    let schedules = match depth {
        Depth::Short => "3000",
        Depth::Deep => "100000",
    };
    Cmd::cargo(root)
        .rustflags("--cfg shuttle")
        .env(
            "RCUWALK_SHUTTLE_ITERATIONS",
            set_or("RCUWALK_SHUTTLE_ITERATIONS", schedules),
        )
        // As for loom; and with the lock order checked.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .args(["test", "--release", "--package", "rcuwalk"])
        .args(["--test", "shuttle*"])
        .arg("--target-dir", target_dir(root, "shuttle"))
        .run()
}

/// Unit and integration tests under AddressSanitizer, leaks included.
pub(crate) fn asan(root: &Path, depth: Depth, skips: &Skips) -> Result<Done> {
    let Some(host) = nightly_host(root) else {
        return Ok(Done::Skipped("needs nightly".into()));
    };
    let ops = match depth {
        Depth::Short => "20000",
        Depth::Deep => "1000000",
    };
    let mut cmd = Cmd::nightly_cargo(root)
        // The slab would hide from ASan what is freed too early or twice.
        .rustflags("-Zsanitizer=address --cfg rcuwalk_system_alloc")
        .env("RCUWALK_STRESS_OPS", set_or("RCUWALK_STRESS_OPS", ops))
        .env(SKIPS_VAR, skips.file())
        // With a target named, build scripts and macros are built without ASan.
        .args(["test", "--target", &host, "--lib"]);
    for (dir, package) in ASAN_CRATES {
        cmd = cmd.args(["--package", package]);
        for test in integration_tests(&root.join(dir).join("tests"))? {
            cmd = cmd.args(["--test", &test]);
        }
    }
    cmd.arg("--target-dir", target_dir(root, "asan")).run()
}

/// `sync`'s unit tests under Miri.
pub(crate) fn miri(root: &Path) -> Result<Done> {
    if nightly_host(root).is_none() {
        return Ok(Done::Skipped("needs nightly".into()));
    }
    if Cmd::nightly_cargo(root)
        .args(["miri", "--version"])
        .probe()
        .is_none()
    {
        let reason = "needs Miri: rustup +nightly component add miri rust-src";
        return Ok(Done::Skipped(reason.into()));
    }
    Cmd::nightly_cargo(root)
        .env("MIRIFLAGS", set_or("MIRIFLAGS", "-Zmiri-strict-provenance"))
        .args(["miri", "test", "--package", "rcuwalk-sync", "--lib"])
        .arg("--target-dir", target_dir(root, "miri"))
        .run()
}

/// The differential tests with more cases than by default.
fn conformance(root: &Path, skips: &Skips) -> Result<Done> {
    Cmd::cargo(root)
        .env("RCUWALK_CASES", set_or("RCUWALK_CASES", "20000"))
        .env("RCUWALK_CHANGES", set_or("RCUWALK_CHANGES", "10000000"))
        .env("RCUWALK_COPIES", set_or("RCUWALK_COPIES", "40"))
        .env(
            "RCUWALK_TORTURE_SECONDS",
            set_or("RCUWALK_TORTURE_SECONDS", "600"),
        )
        .env(SKIPS_VAR, skips.file())
        .args(["test", "--release", "--package", "rcuwalk-conformance"])
        // And those that are too large to run each time.
        .args(["--", "--include-ignored"])
        .run()
}

/// Every other test, optimised, with more operations than by default.
fn stress(root: &Path, skips: &Skips) -> Result<Done> {
    Cmd::cargo(root)
        .env(
            "RCUWALK_STRESS_OPS",
            set_or("RCUWALK_STRESS_OPS", "10000000"),
        )
        .env(
            "RCUWALK_STORM_SECONDS",
            set_or("RCUWALK_STORM_SECONDS", "600"),
        )
        .env(
            "RCUWALK_FUSE_FILES",
            set_or("RCUWALK_FUSE_FILES", "5000000"),
        )
        .env(
            "RCUWALK_FUSE_MAX_NODES",
            set_or("RCUWALK_FUSE_MAX_NODES", "300000"),
        )
        // Changes behind a mount.
        .env(
            "RCUWALK_PUSHED_SECONDS",
            set_or("RCUWALK_PUSHED_SECONDS", "600"),
        )
        // Changes beside listings.
        .env(
            "RCUWALK_LISTING_STEPS",
            set_or("RCUWALK_LISTING_STEPS", "1000000"),
        )
        .env(
            "RCUWALK_DIR_ENTRIES",
            set_or("RCUWALK_DIR_ENTRIES", "4000000"),
        )
        // Sessions of raw FUSE messages that no kernel would send.
        .env("RCUWALK_HOSTILE", set_or("RCUWALK_HOSTILE", "10000"))
        // NFS calls and connections that no client would make.
        .env(
            "RCUWALK_HOSTILE_RECORDS",
            set_or("RCUWALK_HOSTILE_RECORDS", "5000000"),
        )
        .env("RCUWALK_FORGED", set_or("RCUWALK_FORGED", "10000000"))
        .env(
            "RCUWALK_CONNECTIONS",
            set_or("RCUWALK_CONNECTIONS", "10000"),
        )
        // Guests that put anything into their rings.
        .env("RCUWALK_GUESTS", set_or("RCUWALK_GUESTS", "3000"))
        .env(SKIPS_VAR, skips.file())
        .args(["test", "--release", "--workspace"])
        .args(["--exclude", "rcuwalk-conformance", "--exclude", "xtask"])
        .run()
}

/// What libFuzzer works on, with how it is told to.
const FUZZED: [(&str, &[&str]); 3] = [
    // Long inputs from the start: a change of an image takes ten bytes or so.
    ("ext4", &["-max_len=512", "-len_control=0", "-timeout=120"]),
    ("fuse", &["-max_len=8192", "-timeout=60"]),
    ("nfs", &["-max_len=4096", "-timeout=60"]),
];

/// Damaged ext4 images, raw FUSE messages and NFS calls. With cargo-fuzz, libFuzzer chooses them and
/// is guided by coverage; without it, images are random. Messages and calls are always random
/// (`RCUWALK_HOSTILE`, `RCUWALK_HOSTILE_RECORDS`).
fn fuzz(root: &Path) -> Result<Done> {
    let seconds = set_or("RCUWALK_FUZZ_SECONDS", "1800");
    let has_fuzzer = nightly_host(root).is_some()
        && Cmd::nightly_cargo(root)
            .args(["fuzz", "--version"])
            .probe()
            .is_some();
    if !has_fuzzer {
        println!("no cargo-fuzz with nightly here: by chance");
        return Cmd::cargo(root)
            .args(["run", "--release", "--package", "rcuwalk-conformance"])
            .args(["--example", "ext4_fuzz", "--", "--seconds", &seconds])
            .run();
    }
    for (target, how) in FUZZED {
        Cmd::nightly_cargo(root)
            .args(["fuzz", "run", "--fuzz-dir", "fuzz"])
            // The fuzzed code is safe Rust; ASan would only make it slow.
            .args(["--sanitizer", "none"])
            .arg("--target-dir", target_dir(root, "fuzz"))
            .args([target, "--"])
            .args(how.iter().copied())
            .args([format!("-max_total_time={seconds}")])
            .run()?;
    }
    Ok(Done::Passed)
}

/// The triple nightly runs on, if rustup has a nightly here.
pub(crate) fn nightly_host(root: &Path) -> Option<String> {
    // The list first: asked to run a toolchain it lacks, rustup may fetch it.
    let toolchains = Cmd::new(root, "rustup")
        .args(["toolchain", "list"])
        .probe()?;
    let host = toolchains.lines().find_map(undated_nightly)?;
    Some(host.into())
}

/// `nightly` means this one, and not one that is pinned to a date.
fn undated_nightly(listed: &str) -> Option<&str> {
    let host = listed.split_whitespace().next()?.strip_prefix("nightly-")?;
    (!host.starts_with(|c: char| c.is_ascii_digit())).then_some(host)
}

/// The names of the test targets in `dir`, but not the model checkers': without
/// those they are empty.
fn integration_tests(dir: &Path) -> Result<Vec<String>> {
    let mut tests = Vec::new();
    for name in names_in(dir)? {
        let target = if dir.join(&name).join("main.rs").exists() {
            Some(name.as_str())
        } else {
            name.strip_suffix(".rs")
        };
        tests.extend(
            target
                .filter(|target| {
                    !["loom", "shuttle"]
                        .iter()
                        .any(|model| target.starts_with(model))
                })
                .map(String::from),
        );
    }
    Ok(tests)
}

pub(crate) fn target_dir(root: &Path, name: &str) -> PathBuf {
    let shared = env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    shared.join(name)
}

/// The caller's own value goes before ours.
fn set_or(name: &str, default: &str) -> String {
    env::var(name).unwrap_or(default.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_undated_nightly_counts() {
        let host = "x86_64-unknown-linux-gnu";
        assert_eq!(
            undated_nightly(&format!("nightly-{host} (active)")),
            Some(host)
        );
        assert_eq!(undated_nightly(&format!("nightly-2026-05-20-{host}")), None);
        assert_eq!(undated_nightly(&format!("stable-{host} (default)")), None);
    }
}
