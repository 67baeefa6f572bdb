//! `cargo xtask ci`: what every change must pass, cheapest first.
//!
//! [`STEPS`] is the list. The first step that fails ends the run, and the last
//! line of the output says which it was. A step, or a test in it, that could not
//! run here is reported; in CI as root, where all can run, it is a failure.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::heavy::{self, Depth};
use crate::run::{Cmd, Done, Result, elapsed};
use crate::skips::{self, SKIPS_VAR, Skips};
use crate::source::names_in;
use crate::workspace::Workspace;
use crate::{ids, layers};

type Step = fn(&Path, &Skips) -> Result<Done>;

const STEPS: [(&str, Step); 10] = [
    ("fmt", |root, _| cargo(root, &["fmt", "--all", "--check"])),
    ("clippy", |root, _| {
        cargo(
            root,
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ],
        )
    }),
    ("doc", |root, _| {
        let doc = Cmd::cargo(root).env("RUSTDOCFLAGS", "-D warnings");
        passed(doc.args(["doc", "--workspace", "--no-deps"]).run())
    }),
    ("layers", |root, _| layers::run(root)),
    ("ids", |root, _| ids::run(root)),
    ("deny", |root, _| deny(root)),
    ("test", |root, skips| {
        let test = Cmd::cargo(root).env(SKIPS_VAR, skips.file());
        passed(test.args(["test", "--workspace"]).run())
    }),
    ("examples", |root, _| examples(root)),
    ("loom", |root, _| heavy::loom(root, Depth::Short)),
    ("asan", |root, skips| {
        heavy::asan_reporting_to(root, Depth::Short, skips)
    }),
];

pub(crate) fn run(root: &Path) -> Result<Done> {
    run_steps(root, &STEPS, skips::are_failures())
}

fn run_steps(root: &Path, steps: &[(&str, Step)], no_skips: bool) -> Result<Done> {
    let skips = Skips::new();
    let begin = Instant::now();
    let mut reports = Vec::new();
    for (name, step) in steps {
        println!("\n== {name} ==");
        let begin = Instant::now();
        let result = step(root, &skips).and_then(|done| skipped(done, &skips));
        let time = begin.elapsed();

        let skipped = result.map_err(|message| failed(name, time, &message))?;
        println!("== {name}: {} ==", elapsed(time));
        skipped
            .iter()
            .for_each(|reason| println!("skipped: {reason}"));
        if no_skips && !skipped.is_empty() {
            let message = format!("nothing may be skipped here, but: {}", skipped.join("; "));
            return Err(failed(name, time, &message));
        }
        reports.push(Report {
            name,
            time,
            skipped,
        });
    }
    println!(
        "\n{}ci passed in {}",
        summary(&reports),
        elapsed(begin.elapsed())
    );
    Ok(Done::Passed)
}

/// What a step and its tests left out, in one list.
fn skipped(done: Done, skips: &Skips) -> Result<Vec<String>> {
    let mut reasons = skips.take()?;
    if let Done::Skipped(reason) = done {
        reasons.push(reason);
    }
    Ok(reasons)
}

fn failed(step: &str, time: Duration, message: &str) -> String {
    format!("ci failed at {step} after {}: {message}", elapsed(time))
}

/// How a step went.
struct Report<'a> {
    name: &'a str,
    time: Duration,
    skipped: Vec<String>,
}

fn summary(reports: &[Report<'_>]) -> String {
    let mut text = String::new();
    for Report {
        name,
        time,
        skipped,
    } in reports
    {
        text += &format!("{name:<10}{:>12}", elapsed(*time));
        if !skipped.is_empty() {
            text += &format!("  skipped: {}", skipped.join("; "));
        }
        text.push('\n');
    }
    text
}

fn cargo(root: &Path, args: &[&str]) -> Result<Done> {
    passed(Cmd::cargo(root).args(args).run())
}

fn passed(result: Result<()>) -> Result<Done> {
    result.map(|()| Done::Passed)
}

/// Licences, advisories and sources, for those who have cargo-deny. Its absence
/// is no skip: no test of ours hangs on it.
fn deny(root: &Path) -> Result<Done> {
    if Cmd::cargo(root)
        .args(["deny", "--version"])
        .probe()
        .is_none()
    {
        println!("cargo-deny is not installed");
        return Ok(Done::Passed);
    }
    cargo(root, &["deny", "check"])
}

/// Builds every example; runs those of the core, which need no arguments.
fn examples(root: &Path) -> Result<Done> {
    cargo(root, &["build", "--workspace", "--examples"])?;
    for krate in Workspace::read(root)?.crates {
        let is_core = ["sync", "vfs"].contains(&&*krate.dir) || krate.dir.starts_with("backends/");
        if !is_core {
            continue;
        }
        for name in names_in(&root.join(&krate.dir).join("examples"))? {
            if let Some(example) = name.strip_suffix(".rs") {
                let args = [
                    "run",
                    "--quiet",
                    "--package",
                    &krate.name,
                    "--example",
                    example,
                ];
                cargo(root, &args)?;
            }
        }
    }
    Ok(Done::Passed)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run_one(step: Step, no_skips: bool) -> Result<Done> {
        run_steps(Path::new("/"), &[("step", step)], no_skips)
    }

    #[test]
    fn the_first_failure_ends_the_run_and_is_named() {
        let steps: [(&str, Step); 2] = [
            ("bad", |_, _| Err("it broke".into())),
            ("never", |_, _| unreachable!("a step ran after a failure")),
        ];
        let message = run_steps(Path::new("/"), &steps, false).unwrap_err();
        assert_eq!(message, "ci failed at bad after 0.0 s: it broke");
    }

    #[test]
    fn a_skip_fails_only_where_nothing_may_be_skipped() {
        let skipped_step: Step = |_, _| Ok(Done::Skipped("needs nightly".into()));
        let skipped_test: Step = |_, skips| {
            fs::write(skips.file(), "needs root\n").unwrap();
            Ok(Done::Passed)
        };
        for (step, reason) in [
            (skipped_step, "needs nightly"),
            (skipped_test, "needs root"),
        ] {
            assert_eq!(run_one(step, false), Ok(Done::Passed));
            let message = run_one(step, true).unwrap_err();
            assert!(message.ends_with(&format!("but: {reason}")), "{message}");
        }
    }

    #[test]
    fn the_summary_has_a_line_per_step() {
        let report = |name, skipped| Report {
            name,
            time: Duration::from_millis(1500),
            skipped,
        };
        let reports = [
            report("fmt", vec![]),
            report("asan", vec!["needs nightly".into()]),
        ];
        let expected = "fmt              1.5 s\nasan             1.5 s  skipped: needs nightly\n";
        assert_eq!(summary(&reports), expected);
    }
}
