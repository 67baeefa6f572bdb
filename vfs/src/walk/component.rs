//! Cutting a path into components, sixteen bytes at a time.
//!
//! The walk spends most of its instructions here and in the hash, so a component of
//! up to 24 bytes (nearly all are) costs a load, a comparison and a mask, or two of
//! each. There is no copy of the path and no terminator in it; what lies beyond its
//! end reads as zeros, and it has been checked that none are inside.

use rcuwalk_sync::bytes::mask_of;

/// A component of up to 24 bytes, as the cache compares names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Component {
    /// Its bytes, padded with zeros.
    pub(super) words: [u64; 3],
    /// Where it ends in the path.
    pub(super) end: usize,
}

impl Component {
    /// Worth asking whether it is `.` or `..`.
    #[inline]
    pub(super) fn starts_with_dot(&self) -> bool {
        self.words[0] as u8 == b'.'
    }

    #[inline]
    pub(super) fn is_dot(&self) -> bool {
        self.words[0] == u64::from(b'.')
    }

    #[inline]
    pub(super) fn is_dot_dot(&self) -> bool {
        self.words[0] == u64::from_le_bytes(*b"..\0\0\0\0\0\0")
    }

    #[inline]
    fn new(low: u128, third: u64, end: usize) -> Component {
        Component {
            words: [low as u64, (low >> 64) as u64, third],
            end,
        }
    }
}

/// The component that starts at `start`, which is before the end. It is empty if
/// there is another slash.
///
/// `None` if it has more than 24 bytes: that takes [`long_component`].
#[inline(always)]
pub(super) fn short_component(path: &[u8], start: usize) -> Option<Component> {
    let (low, stops) = load16(path, start);
    if stops == 0 {
        return middle_component(path, start, low);
    }
    let len = stops.trailing_zeros() as usize;
    Some(Component::new(low & KEEP[len & 15], 0, start + len))
}

/// One of 16 bytes or more, the first 16 of which are `low`.
#[inline]
fn middle_component(path: &[u8], start: usize, low: u128) -> Option<Component> {
    let next = start + 16;
    if next >= path.len() {
        return Some(Component::new(low, 0, next));
    }
    let (high, stops) = load16(path, next);
    let len = stops.trailing_zeros() as usize;
    (len <= 8).then(|| Component::new(low, (high & KEEP[len]) as u64, next + len))
}

/// Where the component that starts at `start` ends, however long. The lookup reports a
/// component that is too long: other errors come first.
#[cold]
pub(super) fn long_component(path: &[u8], start: usize) -> usize {
    let rest = &path[start..];
    start
        + rest
            .iter()
            .position(|byte| *byte == b'/')
            .unwrap_or(rest.len())
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

/// The 16 bytes from `at` on as a little-endian number, with zeros beyond the end;
/// and one bit per slash, or end, among them.
#[inline(always)]
fn load16(path: &[u8], at: usize) -> (u128, u32) {
    match path[at..].first_chunk::<16>() {
        Some(chunk) => (u128::from_le_bytes(*chunk), mask_of(chunk, b'/')),
        None => {
            let bytes = load_tail(path, at);
            let slashes = mask_of(&bytes.to_le_bytes(), b'/');
            (bytes, slashes | 1 << (path.len() - at))
        }
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
        None => load_short(&path[at..]),
    }
}

/// A path of fewer than 16 bytes: loads that overlap instead of a loop.
#[cold]
fn load_short(left: &[u8]) -> u128 {
    let len = left.len();
    match (left.first_chunk(), left.last_chunk()) {
        (Some(first), Some(last)) => {
            let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
            u128::from(first) | u128::from(last) << (8 * (len - 8))
        }
        _ => match (left.first_chunk(), left.last_chunk()) {
            (Some(first), Some(last)) => {
                let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
                u128::from(first) | u128::from(last) << (8 * (len - 4))
            }
            _ => left
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u128::from(*byte)),
        },
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
                    if name.len() > 24 {
                        assert_eq!(cut, None);
                        assert_eq!(long_component(&path, before + 1), end);
                        continue;
                    }
                    let cut = cut.unwrap();
                    let mut padded = name.clone();
                    padded.resize(24, 0);
                    assert_eq!(cut.words.map(u64::to_le_bytes).as_flattened(), padded);
                    assert_eq!(cut.end, end);
                }
            }
        }
    }

    #[test]
    fn dots_are_told_apart() {
        let cut = |path: &[u8]| short_component(path, 0).unwrap();
        assert!(cut(b".").is_dot() && cut(b"./x").is_dot() && !cut(b".x").is_dot());
        assert!(cut(b"..").is_dot_dot() && !cut(b"...").is_dot_dot() && !cut(b"..").is_dot());
    }
}
