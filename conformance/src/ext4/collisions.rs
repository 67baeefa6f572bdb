//! Names that ext4's oldest directory hash, `legacy`, gives one value.
//!
//! Two names of one hash may be on either side of a border between two blocks of a
//! directory; a lookup that trusts the index and stops at the border misses one. The
//! names are long, so that few fit into a block and most of them are near a border.

use std::collections::HashMap;

/// Pairs of names, always the same ones: some 200.
///
/// The number of collisions to expect by chance among a million values of 31 bits.
pub fn pairs() -> Vec<[String; 2]> {
    let prefix = "c".repeat(240);
    let state = prefix.bytes().fold(START, step);
    let mut seen: HashMap<u32, u32> = HashMap::with_capacity(NAMES as usize);
    let mut pairs = Vec::new();
    for number in 0..NAMES {
        let hash = hash(digits(number).bytes().fold(state, step));
        if let Some(before) = seen.insert(hash, number) {
            pairs.push([before, number].map(|number| format!("{prefix}{}", digits(number))));
        }
    }
    pairs
}

const NAMES: u32 = 1 << 20;

fn digits(number: u32) -> String {
    format!("{number:08}")
}

/// The legacy hash of `name`, all of whose bytes are ASCII: signed or not, the same.
pub fn legacy(name: &str) -> u32 {
    hash(name.bytes().fold(START, step))
}

/// The last two values, the younger one first.
type State = (u32, u32);

const START: State = (0x12a3_fe2d, 0x37ab_e8f9);

fn step((young, old): State, byte: u8) -> State {
    let next = old.wrapping_add(young ^ u32::from(byte).wrapping_mul(7_152_373));
    let next = if next & 0x8000_0000 == 0 {
        next
    } else {
        next.wrapping_sub(0x7fff_ffff)
    };
    (next, young)
}

/// The lowest bit is the index's own: it says that a hash goes on in the next block.
fn hash((young, _): State) -> u32 {
    young << 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator does what it is for: different names, one hash.
    #[test]
    fn pairs_collide_and_there_are_many() {
        let pairs = pairs();
        assert!(pairs.len() > 150, "{}", pairs.len());
        for [one, other] in pairs {
            assert_ne!(one, other);
            assert_eq!(legacy(&one), legacy(&other), "{one} {other}");
        }
    }
}
