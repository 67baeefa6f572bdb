//! Running a list of steps: a heading and a time for each, a summary at the end.
//!
//! The first step that fails ends the run, and the last line of the output says
//! which it was. A step, or a test in it, that could not run here is reported;
//! whether that is a failure is for the caller to say.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::run::{Done, Result, elapsed};
use crate::skips::Skips;

/// One check; its tests report what they skip to the file of `Skips`.
pub(crate) type Step = fn(&Path, &Skips) -> Result<Done>;

/// A run of several steps.
pub(crate) struct Steps<'a> {
    /// What the run is called.
    pub(crate) name: &'a str,
    /// The actions, in this order.
    pub(crate) steps: &'a [(&'a str, Step)],
    /// True where everything is expected to run.
    pub(crate) no_skips: bool,
}

impl Steps<'_> {
    pub(crate) fn run(&self, root: &Path) -> Result<Done> {
        let skips = Skips::new();
        let begin = Instant::now();
        let mut reports = Vec::new();
        for (name, step) in self.steps {
            println!("\n== {name} ==");
            let begin = Instant::now();
            let result = step(root, &skips).and_then(|done| skipped(done, &skips));
            let time = begin.elapsed();

            let skipped = result.map_err(|message| self.failed(name, time, &message))?;
            println!("== {name}: {} ==", elapsed(time));
            skipped
                .iter()
                .for_each(|reason| println!("skipped: {reason}"));
            if self.no_skips && !skipped.is_empty() {
                let message = format!("nothing may be skipped here, but: {}", skipped.join("; "));
                return Err(self.failed(name, time, &message));
            }
            reports.push(Report {
                name,
                time,
                skipped,
            });
        }
        let total = elapsed(begin.elapsed());
        println!("\n{}{} passed in {total}", summary(&reports), self.name);
        Ok(Done::Passed)
    }

    fn failed(&self, step: &str, time: Duration, message: &str) -> String {
        format!(
            "{} failed at {step} after {}: {message}",
            self.name,
            elapsed(time)
        )
    }
}

/// What a step and its tests left out, in one list.
fn skipped(done: Done, skips: &Skips) -> Result<Vec<String>> {
    let mut reasons = skips.take()?;
    if let Done::Skipped(reason) = done {
        reasons.push(reason);
    }
    Ok(reasons)
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run_steps(steps: &[(&str, Step)], no_skips: bool) -> Result<Done> {
        Steps {
            name: "ci",
            steps,
            no_skips,
        }
        .run(Path::new("/"))
    }

    fn run_one(step: Step, no_skips: bool) -> Result<Done> {
        run_steps(&[("step", step)], no_skips)
    }

    #[test]
    fn the_first_failure_ends_the_run_and_is_named() {
        let steps: [(&str, Step); 2] = [
            ("bad", |_, _| Err("it broke".into())),
            ("never", |_, _| unreachable!("a step ran after a failure")),
        ];
        let message = run_steps(&steps, false).unwrap_err();
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
