//! `cargo xtask ci`: what every change must pass, cheapest first.
//!
//! [`STEPS`] is the list. Skips are reported; in CI as root, where everything can
//! run, they are failures.

use std::path::Path;

use crate::heavy::{self, Depth};
use crate::run::{Cmd, Done, Result};
use crate::skips::{self, SKIPS_VAR, Skips};
use crate::source::names_in;
use crate::steps::{Step, Steps};
use crate::uring_setting::UringSetting;
use crate::{ids, layers, suites};

const STEPS: [(&str, Step); 14] = [
    ("fmt", |root, _| cargo(root, "fmt --all --check")),
    ("clippy", |root, _| {
        cargo(root, "clippy --workspace --all-targets -- -D warnings")
    }),
    ("doc", |root, _| {
        let doc = Cmd::cargo(root).env("RUSTDOCFLAGS", "-D warnings");
        doc.args(["doc", "--workspace", "--no-deps"]).run()
    }),
    ("layers", |root, _| layers::run(root)),
    ("ids", |root, _| ids::run(root)),
    ("deny", |root, _| deny(root)),
    ("test", |root, skips| {
        let test = Cmd::cargo(root).env(SKIPS_VAR, skips.file());
        let test = test.env("RCUWALK_TORTURE_SECONDS", "60");
        test.args(["test", "--workspace"]).run()
    }),
    ("io_uring", io_uring),
    ("probes", probes),
    ("examples", |root, _| examples(root)),
    ("suites", |root, _| suites::run(root)),
    ("loom", |root, _| heavy::loom(root, Depth::Short)),
    ("shuttle", |root, _| heavy::shuttle(root, Depth::Short)),
    ("asan", |root, skips| heavy::asan(root, Depth::Short, skips)),
];

pub(crate) fn run(root: &Path) -> Result<Done> {
    let no_skips = skips::are_failures();
    Steps {
        name: "ci",
        steps: &STEPS,
        no_skips,
    }
    .run(root)
}

/// Runs cargo with arguments that hold no spaces.
fn cargo(root: &Path, args: &str) -> Result<Done> {
    Cmd::cargo(root).args(args.split(' ')).run()
}

/// Licences, advisories and sources, for those who have cargo-deny. Its absence
/// is no skip: no test of ours hangs on it.
fn deny(root: &Path) -> Result<Done> {
    let version = Cmd::cargo(root).args(["deny", "--version"]).probe();
    if version.is_none() {
        println!("cargo-deny is not installed");
        return Ok(Done::Passed);
    }
    cargo(root, "deny check")
}

/// Mounts once more with requests by io_uring: the tests, and the foreign suites. Where the
/// kernel cannot be made to offer it, this is not a skip: the same has been tested by
/// /dev/fuse.
fn io_uring(root: &Path, skips: &Skips) -> Result<Done> {
    let Some(_setting) = UringSetting::turn_on() else {
        println!("it takes root, and a kernel with FUSE over io_uring (Linux 6.15)");
        return Ok(Done::Passed);
    };
    let test = Cmd::cargo(root).env(SKIPS_VAR, skips.file());
    let test = test.env("RCUWALK_TRANSPORT", "io_uring");
    test.args(["test", "--package", "rcuwalk-fuse"]).run()?;
    let test = Cmd::cargo(root).env(SKIPS_VAR, skips.file());
    // What mounts by the command line, with daemons that are killed.
    test.args(["test", "--package", "rcuwalk-cli", "--test", "mounts", "--"])
        .args(["mount::", "budget::", "daemon::", "users::"])
        .run()?;
    suites::run(root)
}

/// What the feature `usdt` adds: one module of code, and a test that traces itself.
fn probes(root: &Path, skips: &Skips) -> Result<Done> {
    cargo(
        root,
        "clippy --package rcuwalk-sync --features usdt -- -D warnings",
    )?;
    let test = Cmd::cargo(root).env(SKIPS_VAR, skips.file());
    test.args(["test", "--package", "rcuwalk", "--features", "usdt"])
        .args(["--test", "probes"])
        .run()
}

/// Builds every example; runs those that need no arguments.
fn examples(root: &Path) -> Result<Done> {
    cargo(root, "build --workspace --examples")?;
    for krate in crate::layers::crates(root)? {
        let dir = krate.dir.as_str();
        if !["sync", "vfs", "scan"].contains(&dir) && !dir.starts_with("backends/") {
            continue;
        }
        for name in names_in(&root.join(&krate.dir).join("examples"))? {
            if let Some(example) = name.strip_suffix(".rs") {
                let package = &krate.name;
                let run = format!("run --quiet --package {package} --example {example}");
                cargo(root, &run)?;
            }
        }
    }
    Ok(Done::Passed)
}
