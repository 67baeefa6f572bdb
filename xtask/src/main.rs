//! `cargo xtask <command>`: the checks and chores of the rcuwalk workspace.
//!
//! [`main`] picks a command; every command is a module with one entry point
//! that returns `Ok` or a message for the last line of the output.
//!
//! | read           | to learn                                             |
//! |----------------|------------------------------------------------------|
//! | `ci.rs`        | the steps that every change must pass, in order      |
//! | `layers.rs`    | which crate may use which                            |
//! | `ids.rs`       | how invariants, their homes and their tests are tied |
//! | `heavy.rs`     | loom, shuttle, ASan, Miri and the deep runs          |
//! | `suites.rs`    | pjdfstest and fsx, through mounts                    |
//! | `steps.rs`     | how a list of steps is run and reported              |
//! | `skips.rs`     | how a skipped test is noticed                        |
//! | `source.rs`    | the workspace's sources, read                        |
//! | `run.rs`       | running a command and reporting how it went          |

mod ci;
mod heavy;
mod ids;
mod layers;
mod run;
mod skips;
mod source;
mod steps;
mod suites;
mod uring_setting;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use heavy::Depth;
use run::{Done, Result};
use skips::Skips;

const USAGE: &str = "\
usage: cargo xtask <command>

What every change must pass:
  ci             everything below down to asan, with the short settings

Single checks:
  layers         no crate uses what its layer may not use
  ids            every invariant has a home and a test; every cited id exists
  loom [--deep]  rcuwalk-sync under the loom model checker
  shuttle [--deep]
                 rcuwalk under the shuttle model checker
  suites         pjdfstest and fsx through mounts of memfs and hostfs (root)
  suites --install
                 gets them from the registry, into target/tools
  asan           sync, vfs and memfs under AddressSanitizer (nightly)
  miri           rcuwalk-sync's unit tests under Miri (nightly)

Once in a while:
  deep           loom and shuttle --deep, miri, asan, conformance and stress, all longer

  help           this text
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match dispatch(&args, &root()) {
        Ok(Done::Passed) => ExitCode::SUCCESS,
        // A check asked for by name must run; only `ci` may go on without it.
        Ok(Done::Skipped(reason)) => fail(&format!("skipped: {reason}")),
        Err(message) => fail(&message),
    }
}

fn dispatch(args: &[&str], root: &Path) -> Result<Done> {
    match args {
        ["ci"] => ci::run(root),
        ["layers"] => layers::run(root),
        ["ids"] => ids::run(root),
        ["loom"] => heavy::loom(root, Depth::Short),
        ["loom", "--deep"] => heavy::loom(root, Depth::Deep),
        ["shuttle"] => heavy::shuttle(root, Depth::Short),
        ["shuttle", "--deep"] => heavy::shuttle(root, Depth::Deep),
        ["suites"] => suites::run(root),
        ["suites", "--install"] => suites::install(root),
        ["asan"] => heavy::asan(root, Depth::Short, &Skips::new()),
        ["miri"] => heavy::miri(root),
        ["deep"] => heavy::deep(root),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(Done::Passed)
        }
        [] => Err(format!("no command given\n\n{USAGE}")),
        unknown => Err(format!("unknown command: {}\n\n{USAGE}", unknown.join(" "))),
    }
}

fn fail(message: &str) -> ExitCode {
    eprintln!("xtask: {}", message.trim_end());
    ExitCode::FAILURE
}

/// The workspace's root, wherever `cargo xtask` was called from.
fn root() -> PathBuf {
    // The run-time variable first: a checkout that was moved after the build
    // would otherwise be looked for at its old place.
    let xtask = env::var("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    match Path::new(&xtask).parent() {
        Some(root) => root.to_path_buf(),
        None => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_command_fails_and_shows_the_usage() {
        for args in [&["lint"][..], &["ci", "--fast"], &[]] {
            let message = dispatch(args, Path::new(".")).unwrap_err();
            assert!(message.contains("usage: cargo xtask"), "{message}");
        }
    }

    #[test]
    fn help_is_not_a_failure() {
        assert_eq!(dispatch(&["help"], Path::new(".")), Ok(Done::Passed));
    }
}
