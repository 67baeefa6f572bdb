//! Thinking up changes.
//!
//! The kind of structure is chosen first, each with the same probability, so that the one index
//! root gets as much damage as the hundred inodes. Values are those with a meaning somewhere:
//! limits, neighbours of the old value, block and inode numbers.

use rcuwalk_ext4::Checksums;

use super::layout::{Kind, Layout, Spot};
use super::mutation::{Mutant, Mutation, Place};
use super::seeds::Seed;
use rcuwalk_testkit::Rng;

/// Where decisions come from: random numbers, or bytes that a fuzzer has made up, which
/// it can then vary one by one.
#[derive(Clone, Debug)]
pub enum Choices<'b> {
    /// Random ones.
    Random(Rng),
    /// Given ones; all of them 0 once they are used up.
    Given(&'b [u8]),
}

impl Choices<'_> {
    fn below(&mut self, limit: usize) -> usize {
        match self {
            Choices::Random(rng) => rng.below(limit.max(1)),
            Choices::Given(_) if limit <= 1 => 0,
            Choices::Given(_) => {
                let width = if limit <= 256 { 1 } else { 4 };
                (self.number(width) % limit as u64) as usize
            }
        }
    }

    fn number(&mut self, width: usize) -> u64 {
        match self {
            Choices::Random(rng) => rng.next_u64(),
            Choices::Given(bytes) => {
                let (used, rest) = bytes.split_at(bytes.len().min(width));
                *bytes = rest;
                used.iter()
                    .fold(0, |number, byte| number << 8 | u64::from(*byte))
            }
        }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len())).copied()
    }

    /// How many changes are made. A fuzzer makes as many as it has bytes for.
    fn goes_on(&mut self, made: usize) -> bool {
        match self {
            Choices::Random(rng) => made == 0 || made < 16 && rng.chance(65),
            Choices::Given(bytes) => made < 64 && !bytes.is_empty(),
        }
    }
}

impl Mutant {
    /// A mutant of one of `seeds`, and which one.
    pub fn plan<'s>(seeds: &'s [Seed], choices: &mut Choices<'_>) -> (&'s Seed, Mutant) {
        let seed = &seeds[choices.below(seeds.len())];
        let (repaired, checksums) = match choices.below(16) {
            0..9 => (true, Checksums::Always),
            9..14 => (false, Checksums::Never),
            14 => (true, Checksums::Sample),
            _ => (false, Checksums::Always),
        };
        let kinds: Vec<Kind> = seed.layout.kinds().collect();
        let mut mutations = Vec::new();
        while choices.goes_on(mutations.len()) {
            mutations.extend(mutation(seed, &kinds, choices));
        }
        let mutant = Mutant {
            seed: seed.name.into(),
            mutations,
            repaired,
            checksums,
        };
        (seed, mutant)
    }
}

fn mutation(seed: &Seed, kinds: &[Kind], choices: &mut Choices<'_>) -> Option<Mutation> {
    let layout = &seed.layout;
    match choices.below(64) {
        0 => Some(Mutation::Cut(choices.below(seed.bytes.len()))),
        1..4 => Some(noise(seed, choices)),
        4..8 => {
            let from = spot(layout, kinds, choices)?;
            // Seldom over another kind: that is noise as a rule.
            let to = match choices.below(4) {
                0 => spot(layout, kinds, choices)?,
                _ => spot(layout, &[from.kind], choices)?,
            };
            Some(Mutation::Copy {
                from: from.place(),
                to: to.place(),
            })
        }
        _ => {
            let spot = spot(layout, kinds, choices)?;
            let field = choices.pick(&spot.fields)?;
            let at = spot.at + field.at as usize;
            let bytes = seed.bytes.get(at..at + usize::from(field.width))?;
            let digit = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
            let old = match spot.kind.is_big_endian() {
                true => bytes.iter().fold(0, digit),
                false => bytes.iter().rev().fold(0, digit),
            };
            Some(Mutation::Set {
                place: spot.place(),
                field: field.name.into(),
                at: field.at,
                width: field.width,
                value: value(old, field.width, spot, layout, choices),
            })
        }
    }
}

/// A byte anywhere, but not in the middle of nothing.
fn noise(seed: &Seed, choices: &mut Choices<'_>) -> Mutation {
    let mut at = choices.below(seed.bytes.len());
    if let Some(spot) = choices.pick(&spots(&seed.layout)) {
        at = spot.0 + choices.below(spot.1);
    }
    Mutation::Set {
        place: Place {
            kind: Kind::Raw,
            number: 0,
            nth: 0,
        },
        field: "byte".into(),
        at: at as u32,
        width: 1,
        value: choices.number(1) & 0xff,
    }
}

fn spots(layout: &Layout) -> Vec<(usize, usize)> {
    let places = layout.spots.iter().map(|spot| (spot.at, spot.len));
    places.collect()
}

fn spot<'l>(layout: &'l Layout, kinds: &[Kind], choices: &mut Choices<'_>) -> Option<&'l Spot> {
    let kind = choices.pick(kinds)?;
    let spots: Vec<&Spot> = layout.spots_of(kind).collect();
    choices.pick(&spots)
}

/// Returns a value for a field of `width` bytes that differs from `old`.
fn value(old: u64, width: u8, spot: &Spot, layout: &Layout, choices: &mut Choices<'_>) -> u64 {
    let bits = usize::from(width) * 8;
    let all = u64::MAX >> (64 - bits);
    let value = match choices.below(12) {
        0 => 0,
        1 => all,
        2 | 3 => old ^ 1 << choices.below(bits),
        4 => old.wrapping_add(1 + choices.below(16) as u64),
        5 => old.wrapping_sub(1 + choices.below(16) as u64),
        6 => (1_u64 << choices.below(bits)).wrapping_sub(choices.below(2) as u64),
        7 => choices.number(usize::from(width)),
        8 | 9 => choices.pick(&layout.numbers).unwrap_or(0),
        // What leads in a circle: the structure's own block, its like, its owner.
        10 if choices.below(2) == 0 => (spot.at / layout.block_size) as u64,
        10 => {
            let like: Vec<&Spot> = layout
                .spots_of(spot.kind)
                .filter(|other| other.number == spot.number)
                .collect();
            choices
                .pick(&like)
                .map_or(0, |other| (other.at / layout.block_size) as u64)
        }
        _ => match choices.below(2) {
            0 => spot.number.into(),
            _ => spot.nth.into(),
        },
    };
    value & all
}
