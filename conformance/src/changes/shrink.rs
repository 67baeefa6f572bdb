//! From a difference to a small difference: steps are left out, in halves, quarters and
//! so on down to single ones, as long as what remains still differs in the same way;
//! then what remains is made plainer.

use std::fmt;

use crate::changes::answer::{Found, Outcome};
use crate::changes::differ::{Comparison, Difference};
use crate::changes::op::Step;
use crate::changes::users::User;
use crate::frame::leave_out;

/// Comparisons that shrinking one difference may cost.
const PATIENCE: usize = 1500;

/// A difference, as small as it gets.
#[derive(Clone, Debug)]
pub struct Failure {
    seed: u64,
    number: u64,
    steps: Vec<Step>,
    difference: Difference,
}

/// Makes `steps` fewer and plainer; `compare` runs them again.
pub fn shrink(
    mut steps: Vec<Step>,
    difference: Difference,
    compare: &mut impl FnMut(&[Step]) -> Comparison,
) -> Failure {
    steps.truncate(difference.index + 1);
    let mut shrinking = Shrinking {
        steps,
        difference,
        left: PATIENCE,
        compare,
    };
    loop {
        let before = shrinking.steps.len();
        shrinking.leave_out();
        if shrinking.steps.len() == before {
            break;
        }
    }
    shrinking.make_plain();
    Failure {
        seed: 0,
        number: 0,
        steps: shrinking.steps,
        difference: shrinking.difference,
    }
}

struct Shrinking<'c, C> {
    steps: Vec<Step>,
    difference: Difference,
    left: usize,
    compare: &'c mut C,
}

impl<C: FnMut(&[Step]) -> Comparison> Shrinking<'_, C> {
    /// Tries to do without runs of steps; not without the last one, which differs.
    fn leave_out(&mut self) {
        let others = |shrinking: &Self| shrinking.steps.len() - 1;
        leave_out(self, 1, others, |shrinking, run| {
            let mut fewer = shrinking.steps.clone();
            fewer.drain(run);
            shrinking.still_differs(fewer)
        });
    }

    /// Everybody root, nothing watched, but where it matters.
    fn make_plain(&mut self) {
        for index in 0..self.steps.len() {
            let as_root = |step: &Step| Step {
                user: User::Root,
                ..step.clone()
            };
            let unwatched = |step: &Step| Step {
                watch: false,
                ..step.clone()
            };
            for plainer in [as_root, unwatched] {
                let Some(step) = self.steps.get(index) else {
                    return;
                };
                let changed = plainer(step);
                if changed != *step {
                    let mut steps = self.steps.clone();
                    steps[index] = changed;
                    self.still_differs(steps);
                }
            }
        }
    }

    /// Keeps `steps` if they differ in the same way.
    fn still_differs(&mut self, mut steps: Vec<Step>) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        match (self.compare)(&steps) {
            Comparison::Different(difference)
                if kind(&steps, &difference) == kind(&self.steps, &self.difference) =>
            {
                steps.truncate(difference.index + 1);
                self.steps = steps;
                self.difference = *difference;
                true
            }
            _ => false,
        }
    }
}

/// What makes two differences look alike. Numbers in them do not.
fn kind(steps: &[Step], difference: &Difference) -> String {
    let step = &steps[difference.index];
    let (kernel, ours) = (&difference.kernel.outcome, &difference.ours.outcome);
    // Where it is says little.
    let what = difference.what.rsplit("): ").next().unwrap_or("");
    let what: String = what.chars().filter(|c| !c.is_ascii_digit()).collect();
    format!(
        "{} {} {} {what}",
        step.op.kind(),
        kernel.errno(),
        ours.errno()
    )
}

impl Failure {
    pub(super) fn of(self, seed: u64, number: u64) -> Failure {
        Failure {
            seed,
            number,
            ..self
        }
    }

    /// The signature that similar differences share.
    pub fn kind(&self) -> String {
        kind(&self.steps, &self.difference)
    }

    /// The steps that are left.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference {
            what, kernel, ours, ..
        } = &self.difference;
        writeln!(
            f,
            "{what} (seed {:#x}, sequence {}):",
            self.seed, self.number
        )?;
        for step in &self.steps {
            writeln!(f, "    {},", cut(&format!("{step:?}")))?;
        }
        for (side, answer) in [("kernel ", kernel), ("rcuwalk", ours)] {
            writeln!(f, "  {side}: {}", cut(&format!("{:?}", answer.outcome)))?;
            for (at, outcome) in &answer.after {
                writeln!(f, "    {at:?}: {}", cut(&format!("{outcome:?}")))?;
            }
            if let Outcome::Tree(found) = &answer.outcome {
                write_tree(f, found, what)?;
            }
        }
        Ok(())
    }
}

/// What the difference is about; only the names, if it is about those.
fn write_tree(f: &mut fmt::Formatter<'_>, found: &[Found], what: &str) -> fmt::Result {
    let about: Vec<&Found> = found
        .iter()
        .filter(|found| what.contains(&format!("{:?}:", found.place)))
        .collect();
    for found in &about {
        writeln!(f, "    {}", cut(&format!("{found:?}")))?;
    }
    if about.is_empty() {
        let places: Vec<_> = found.iter().map(|found| &found.place).collect();
        writeln!(f, "    {places:?}")?;
    }
    Ok(())
}

/// Names of thousands of bytes tell no more than their beginning.
fn cut(text: &str) -> String {
    match text.char_indices().nth(1000) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.into(),
    }
}
