//! Damaged ext4 images, chosen by the fuzzer's bytes: the seed, the changes, the values.
//! Everything else is in `rcuwalk_conformance::damage`, where it works without a fuzzer too; a
//! finding is shown as text that its runner can replay.
#![no_main]

use std::sync::OnceLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rcuwalk_conformance::damage::{Choices, Counting, Mutant, Seed, examine, seeds, watch};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn images() -> &'static [Seed] {
    static SEEDS: OnceLock<Vec<Seed>> = OnceLock::new();
    SEEDS.get_or_init(|| {
        // libFuzzer's own hook ends the process at the first panic. Ours first shrinks the
        // finding to the smallest damage that panics, and reports that.
        drop(std::panic::take_hook());
        watch(Duration::from_secs(60));
        seeds().expect("what the images are made with")
    })
}

fuzz_target!(|bytes: &[u8]| {
    let mut choices = Choices::Given(bytes);
    let (seed, mutant) = Mutant::plan(images(), &mut choices);
    if let Err(finding) = examine(seed, &mutant) {
        panic!("{}\n  {}", finding.why, finding.mutant);
    }
});
