//! Whether a mutant keeps within the limits, and the least of it that does not.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::frame::leave_out;

use super::exercise::{Coverage, exercise};
use super::limits::{self, Busy, Limits};
use super::mutation::Mutant;
use super::seeds::Seed;

/// A mutant that something went wrong with.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The least of its changes that do.
    pub mutant: Mutant,
    /// What went wrong.
    pub why: String,
}

/// Makes the mutant's image and exercises it.
///
/// # Errors
/// The finding, if it panics, takes too long or too much memory, or contradicts itself.
pub fn examine(seed: &Seed, mutant: &Mutant) -> Result<Coverage, Finding> {
    let why = match check(seed, mutant) {
        Ok(coverage) => return Ok(coverage),
        Err(why) => why,
    };
    let mutant = smallest(seed, mutant);
    // The remaining mutations describe the finding best, unless it failed by chance.
    let why = check(seed, &mutant).err().unwrap_or(why);
    Err(Finding { mutant, why })
}

fn check(seed: &Seed, mutant: &Mutant) -> Result<Coverage, String> {
    let _busy = Busy::with(mutant.to_string());
    let image = mutant.image(seed);
    let limits = Limits::promised(image.len());
    let before = limits::begin_counting();
    let begin = limits::processor_time();
    let checksums = mutant.checksums;
    let done = catch_unwind(AssertUnwindSafe(|| exercise(image, checksums)));
    let time = limits::processor_time().saturating_sub(begin);
    let memory = limits::peak().saturating_sub(before);
    let coverage = match done {
        Ok(done) => done?,
        Err(panic) => return Err(format!("panicked: {}", message(&*panic))),
    };
    if time > limits.time {
        return Err(format!("took {time:?}"));
    }
    if memory > limits.memory {
        return Err(format!(
            "took {memory} bytes where {} are allowed",
            limits.memory
        ));
    }
    Ok(coverage)
}

/// Leaves out the mutations that it does not need to fail.
fn smallest(seed: &Seed, mutant: &Mutant) -> Mutant {
    let mut least = mutant.clone();
    let mutations = |mutant: &Mutant| mutant.mutations.len();
    leave_out(&mut least, 1, mutations, |least, run| {
        let mut less = least.clone();
        less.mutations.drain(run);
        let fails = check(seed, &less).is_err();
        if fails {
            *least = less;
        }
        fails
    });
    least
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
