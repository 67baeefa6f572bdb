//! Damaged ext4 images: whatever they contain, reading them ends in time and within a budget of
//! memory. See `rcuwalk_conformance::damage`.

use std::sync::OnceLock;
use std::time::Duration;

use rcuwalk_conformance::damage::{Choices, Counting, Mutant, Seed, examine, seeds, watch};
use rcuwalk_conformance::settings::{Settings, skipped};
use rcuwalk_ext4::Checksums;
use rcuwalk_testkit::Rng;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The images, or None where there is nothing to make them with.
fn images(test: &str) -> Option<&'static [Seed]> {
    static SEEDS: OnceLock<Result<Vec<Seed>, String>> = OnceLock::new();
    let seeds = SEEDS.get_or_init(|| {
        watch(Duration::from_secs(120));
        seeds()
    });
    match seeds {
        Ok(seeds) => Some(seeds),
        Err(why) => {
            skipped(test, why);
            None
        }
    }
}

/// Without damage nothing is wrong with the images, and putting their checksums right
/// changes nothing: so what is damaged is damaged by the mutations alone.
#[test]
fn sound_images_are_read_without_a_problem() {
    let Some(seeds) = images("sound_images_are_read_without_a_problem") else {
        return;
    };
    for seed in seeds {
        let mutant = Mutant {
            seed: seed.name.into(),
            mutations: Vec::new(),
            repaired: true,
            checksums: Checksums::Always,
        };
        let image = mutant.image(seed);
        let differ = image.iter().zip(&seed.bytes).position(|(a, b)| a != b);
        assert_eq!(differ, None, "{}", seed.name);
        let coverage = examine(seed, &mutant).unwrap();
        let encrypted = seed.name.contains("encrypt");
        assert!(
            coverage.opened && coverage.entries > 400,
            "{}: {coverage:?}",
            seed.name
        );
        assert_eq!(
            coverage.problems > 0,
            encrypted,
            "{}: {coverage:?}",
            seed.name
        );
    }
}

/// Mutants that went wrong once, as small as they could be made, and why.
const FINDS: &[(&str, &str)] = &[
    (
        "windows at the cut were read again and again, and waited for RCU without weight",
        "meta_bg, small groups; as it is; Never; cut 143510",
    ),
    (
        "the same",
        "inline_data, large inodes, no checksums; as it is; Never; cut 75886",
    ),
];

/// Findings of earlier runs do not come back.
#[test]
fn what_was_found_once_does_not_come_back() {
    let Some(seeds) = images("what_was_found_once_does_not_come_back") else {
        return;
    };
    for (why, text) in FINDS {
        let mutant: Mutant = text.parse().unwrap();
        let seed = seeds.iter().find(|seed| seed.name == mutant.seed).unwrap();
        examine(seed, &mutant).unwrap_or_else(|found| panic!("{why}: {}\n  {text}", found.why));
    }
}

/// No damage makes a reader panic, or not come back, or take more memory than it may.
#[test]
fn random_damage_ends_in_errors() {
    let Some(seeds) = images("random_damage_ends_in_errors") else {
        return;
    };
    let mutants = if cfg!(debug_assertions) { 120 } else { 1500 };
    let settings = Settings::from_env(mutants);
    let mut opened = 0;
    for index in 0..settings.cases as u64 {
        let mut choices = Choices::Random(Rng::derived(settings.seed, index));
        let (seed, mutant) = Mutant::plan(seeds, &mut choices);
        match examine(seed, &mutant) {
            Ok(coverage) => opened += usize::from(coverage.opened),
            Err(found) => panic!("mutant {index}: {}\n  {}", found.why, found.mutant),
        }
    }
    // Damage that stops every reader at once does not test the code behind it.
    assert!(opened * 2 > settings.cases, "{opened} could be opened");
}
