//! The comparison: the same sequences, run in the kernel and in rcuwalk.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use crate::changes::answer::{Answer, Outcome};
use crate::changes::compare::Comparer;
use crate::changes::coverage::Coverage;
use crate::changes::generate::{Planner, Shape, Sticky};
use crate::changes::host::Host;
use crate::changes::known::{self, Handling};
use crate::changes::op::{Op, Step};
use crate::changes::shrink::{self, Failure};
use crate::changes::side::{self, Side};
use crate::changes::users::User;
use crate::frame;
use crate::settings::Settings;
use rcuwalk_testkit::Rng;

/// Operations per sequence: enough to fill the few names, few enough for many trees.
pub const STEPS: usize = 200;

/// rcuwalk over some back end, or what stands in for it.
pub trait Subject {
    /// Whether it is hostfs, which differs in [what is known](known::ALL).
    fn is_on_host(&self) -> bool {
        false
    }

    /// Calls `work` with rcuwalk over something empty. The kernel's side is not in use
    /// meanwhile; it is there for those who stand in for rcuwalk.
    ///
    /// # Errors
    /// What keeps it from being empty: not what an operation comes to.
    fn with_side(&self, host: &mut Host, work: &mut dyn FnMut(&mut dyn Side)) -> io::Result<()>;
}

/// A step on which the two sides disagree.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Which of the sequence.
    pub index: usize,
    /// In words.
    pub what: String,
    /// What the kernel says.
    pub kernel: Answer,
    /// What rcuwalk says.
    pub ours: Answer,
}

/// What a comparison came to.
pub enum Comparison {
    /// All of these are the kernel's answers, and rcuwalk's.
    Same(Vec<Answer>),
    /// The same up to a difference that is meant.
    Stopped(Vec<Answer>),
    /// They differ.
    Different(Box<Difference>),
}

/// What many sequences came to.
pub struct Findings {
    /// The coverage.
    pub coverage: Coverage,
    /// Differences, each shrunk; of those that look alike, the first.
    pub failures: Vec<Failure>,
}

/// Compares `settings.cases` generated operations, until there are `most` differences that do
/// not look alike. The kernel's run below `top`. Operations after an intended difference that
/// ends its sequence are neither compared nor counted.
///
/// To be called on a thread of its own: see [`Host::new`].
///
/// # Panics
/// If the kernel cannot be asked at all, or if most generated operations are not compared.
pub fn run(
    subject: &impl Subject,
    top: &Path,
    shape: Shape,
    settings: Settings,
    most: usize,
) -> Findings {
    let host = Host::new(top).unwrap_or_else(|err| panic!("cannot ask the kernel: {err}"));
    let mut host = host.with_protected_hardlinks(shape.sticky == Sticky::Protected);
    let mut findings = Findings {
        coverage: Coverage::default(),
        failures: Vec::new(),
    };
    let mut alike = HashSet::new();
    // Twice as many as there would be if none ended early.
    for number in 0..2 * settings.cases.div_ceil(STEPS) as u64 {
        if findings.coverage.ops >= settings.cases {
            break;
        }
        let mut planner = Planner::new(Rng::derived(settings.seed, number), STEPS, shape);
        let (steps, kernel) = record(&mut host, &mut planner);
        match against(&mut host, subject, &steps, kernel) {
            Comparison::Same(answers) => findings.count(&steps, &answers),
            Comparison::Stopped(answers) => {
                findings.count(&steps, &answers);
                findings.coverage.stopped += 1;
            }
            Comparison::Different(difference) => {
                let mut compare = |steps: &[Step]| compare(&mut host, subject, steps);
                let failure = shrink::shrink(steps, *difference, &mut compare);
                let failure = failure.of(settings.seed, number);
                if alike.insert(failure.kind()) {
                    findings.failures.push(failure);
                }
                if findings.failures.len() >= most {
                    break;
                }
            }
        }
    }
    let Findings { coverage, failures } = &findings;
    assert!(
        coverage.ops >= settings.cases || !failures.is_empty(),
        "so many sequences end early that only {} operations were compared",
        coverage.ops
    );
    findings
}

impl Findings {
    /// The coverage, if all went well.
    ///
    /// # Errors
    /// The differences, as text.
    pub fn agreed(self) -> Result<Coverage, String> {
        if self.failures.is_empty() {
            return Ok(self.coverage);
        }
        let differences: Vec<String> = self.failures.iter().map(Failure::to_string).collect();
        Err(differences.join("\n"))
    }

    fn count(&mut self, steps: &[Step], answers: &[Answer]) {
        for (step, answer) in steps.iter().zip(answers) {
            self.coverage.count(step, answer);
        }
    }
}

/// Runs `steps` on both sides and compares them up to the first difference.
pub fn compare(host: &mut Host, subject: &impl Subject, steps: &[Step]) -> Comparison {
    let kernel = in_kernel(host, |host| answers(host, steps));
    against(host, subject, steps, kernel)
}

/// A planner's steps, and what the kernel says to them.
///
/// # Panics
/// If it cannot be asked at all.
pub fn record(host: &mut Host, planner: &mut Planner) -> (Vec<Step>, Vec<Answer>) {
    in_kernel(host, |host| {
        let mut outcome = (Vec::new(), Vec::new());
        while let Some(step) = planner.plan() {
            let answer = side::answer(host, &step);
            planner.learn(&step, &answer.outcome);
            outcome.0.push(step);
            outcome.1.push(answer);
        }
        outcome
    })
}

fn in_kernel<T>(host: &mut Host, work: impl FnOnce(&mut Host) -> T) -> T {
    host.in_new_dir("sequence", work)
        .unwrap_or_else(|err| panic!("cannot run a sequence in the kernel: {err}"))
}

/// Compares rcuwalk's answers with the kernel's.
fn against(
    host: &mut Host,
    subject: &impl Subject,
    steps: &[Step],
    kernel: Vec<Answer>,
) -> Comparison {
    let mut outcome = None;
    subject
        .with_side(host, &mut |side| {
            let comparer = Comparer::new(subject.is_on_host());
            outcome = first_difference(side, steps, &kernel, comparer);
        })
        .unwrap_or_else(|err| panic!("cannot run a sequence in rcuwalk: {err}"));
    match outcome {
        None => Comparison::Same(kernel),
        Some(Err(difference)) => Comparison::Different(difference),
        Some(Ok(end)) => {
            let mut kernel = kernel;
            kernel.truncate(end);
            Comparison::Stopped(kernel)
        }
    }
}

/// Runs `steps` in rcuwalk up to where it differs from the kernel. `Ok` is where they end
/// because what differs is meant.
pub fn first_difference(
    side: &mut dyn Side,
    steps: &[Step],
    kernel: &[Answer],
    mut comparer: Comparer,
) -> Option<Result<usize, Box<Difference>>> {
    let mut ours = CatchPanics(side);
    let pairs = steps.iter().zip(kernel).enumerate();
    pairs.into_iter().find_map(|(index, (step, kernel))| {
        let ours = side::answer(&mut ours, step);
        differ(&mut comparer, (index, step), kernel, ours)
    })
}

/// `Some(Ok)`: the index at which the sequence ends, because what differs is meant.
fn differ(
    comparer: &mut Comparer,
    (index, step): (usize, &Step),
    kernel: &Answer,
    ours: Answer,
) -> Option<Result<usize, Box<Difference>>> {
    let what = comparer.answers(kernel, &ours).err()?;
    match known::find(step, &kernel.outcome, &ours.outcome, comparer.on_host)
        .map(|known| known.handling)
    {
        Some(Handling::Ignore | Handling::Avoided) => None,
        Some(Handling::Stop) => Some(Ok(index)),
        None => Some(Err(Box::new(Difference {
            index,
            what,
            kernel: kernel.clone(),
            ours,
        }))),
    }
}

/// What `side` says to each of `steps`.
pub fn answers(side: &mut impl Side, steps: &[Step]) -> Vec<Answer> {
    steps.iter().map(|step| side::answer(side, step)).collect()
}

/// rcuwalk's side, whose panics are answers.
struct CatchPanics<'a>(&'a mut dyn Side);

impl Side for CatchPanics<'_> {
    fn run(&mut self, user: User, op: &Op) -> Outcome {
        frame::without_panic(|| self.0.run(user, op)).unwrap_or_else(Outcome::Panicked)
    }
}
