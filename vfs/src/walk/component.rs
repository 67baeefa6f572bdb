//! Cutting a path into components, sixteen bytes at a time.
//!
//! The walk spends most of its instructions here and in the hash, so a component of
//! up to 15 bytes (98 of 100 are) costs one load, two comparisons and a mask. There
//! is no copy of the path and no terminator in it; what lies beyond its end reads
//! as zeros, and a zero inside it is an error.

use rcuwalk_sync::bytes::mask_of_or_zero;

/// A component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Component {
    /// The first 16 bytes, padded with zeros. All of it, if `end` says so.
    pub(super) low: u64,
    pub(super) high: u64,
    /// Where it ends in the path.
    pub(super) end: usize,
}

impl Component {
    /// A component of up to 15 bytes is its two words.
    #[inline]
    pub(super) fn is_dot(&self) -> bool {
        self.low == u64::from(b'.')
    }

    #[inline]
    pub(super) fn is_dot_dot(&self) -> bool {
        self.low == u64::from_le_bytes(*b"..\0\0\0\0\0\0")
    }
}

/// The component that starts at `start`, which is no slash and before the end.
///
/// `None` if it needs [`long_component`]: it has 16 bytes or more.
#[inline]
pub(super) fn short_component(path: &[u8], start: usize) -> Option<Component> {
    let bytes = load16(path, start);
    let stops = mask_of_or_zero(bytes, b'/');
    if stops == 0 {
        return None;
    }
    let len = stops.trailing_zeros() as usize;
    let kept = bytes & KEEP[len & 15];
    Some(Component {
        low: kept as u64,
        high: (kept >> 64) as u64,
        end: start + len,
    })
}

/// Where the component that starts at `start` ends, however long. Whether it is too
/// long is for who looks it up to say: other errors come first.
#[cold]
pub(super) fn long_component(path: &[u8], start: usize) -> usize {
    let rest = &path[start..];
    let len = rest
        .iter()
        .position(|byte| matches!(byte, b'/' | 0))
        .unwrap_or(rest.len());
    start + len
}

/// True if a component that ends at `end` was ended by a NUL inside the path.
#[inline]
pub(super) fn ends_in_nul(path: &[u8], end: usize) -> bool {
    path.get(end).is_some_and(|byte| *byte == 0)
}

/// How many bytes of the low end to keep.
static KEEP: [u128; 16] = {
    let mut masks = [0; 16];
    let mut len = 1;
    while len < 16 {
        masks[len] = (1 << (8 * len)) - 1;
        len += 1;
    }
    masks
};

/// The 16 bytes from `at` on, as a little-endian number; zeros beyond the end.
#[inline]
fn load16(path: &[u8], at: usize) -> u128 {
    match path[at..].first_chunk::<16>() {
        Some(chunk) => u128::from_le_bytes(*chunk),
        None => load_tail(path, at),
    }
}

/// Fewer than 16 bytes are left: read the last 16 and shift out those before `at`.
#[inline]
fn load_tail(path: &[u8], at: usize) -> u128 {
    match path.last_chunk::<16>() {
        Some(chunk) => {
            let before = at - (path.len() - 16);
            u128::from_le_bytes(*chunk) >> (8 * before)
        }
        None => {
            let mut padded = [0; 16];
            let left = &path[at..];
            padded[..left.len()].copy_from_slice(left);
            u128::from_le_bytes(padded)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_cut_wherever_they_stand() {
        let names: Vec<Vec<u8>> = (1..40)
            .map(|len| vec![b'a' + len as u8 % 26; len])
            .collect();
        for name in &names {
            for before in 0..20 {
                for after in 0..20 {
                    let mut path = vec![b'x'; before];
                    path.push(b'/');
                    path.extend_from_slice(name);
                    let end = path.len();
                    if after > 0 {
                        path.push(b'/');
                        path.extend(vec![b'y'; after - 1]);
                    }
                    let cut = short_component(&path, before + 1);
                    if name.len() > 15 {
                        assert_eq!(cut, None);
                        assert_eq!(long_component(&path, before + 1), end);
                        continue;
                    }
                    let cut = cut.unwrap();
                    let mut padded = name.clone();
                    padded.resize(16, 0);
                    assert_eq!(
                        [cut.low.to_le_bytes(), cut.high.to_le_bytes()].concat(),
                        padded
                    );
                    assert_eq!(cut.end, end);
                    assert!(!ends_in_nul(&path, end));
                }
            }
        }
    }

    #[test]
    fn dots_and_nuls_are_told_apart() {
        let cut = |path: &[u8]| short_component(path, 0).unwrap();
        assert!(cut(b".").is_dot() && cut(b"./x").is_dot() && !cut(b".x").is_dot());
        assert!(cut(b"..").is_dot_dot() && !cut(b"...").is_dot_dot() && !cut(b"..").is_dot());
        assert!(ends_in_nul(b"ab\0c", cut(b"ab\0c").end));
    }
}
