//! The hashes that an indexed directory is sorted by.
//!
//! There are three, and each in two readings of a byte above 127: whether `char` was
//! signed where the file system was made. The root of the index names the first, the
//! super block the second. All are part of the format, so none can be replaced by a
//! better one: [`HashVersion::hash`] is pinned by what debugfs prints.

/// Which hash a directory uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashVersion {
    algorithm: Algorithm,
    unsigned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Legacy,
    HalfMd4,
    Tea,
}

/// The `hash_version` of directories that are casefolded and encrypted.
pub(crate) const SIPHASH: u8 = 6;

/// The largest value has a meaning of its own, "the end of the directory".
const END: u32 = 0xffff_fffe;

impl HashVersion {
    /// The one that `hash_version` in the root of an index stands for, on a file
    /// system whose bytes are `unsigned` or not; `None` for an unknown one, and for
    /// [`SIPHASH`], whose key is not in the image.
    pub(crate) fn of_index(hash_version: u8, unsigned: bool) -> Option<HashVersion> {
        let algorithm = match hash_version {
            0 => Algorithm::Legacy,
            1 => Algorithm::HalfMd4,
            2 => Algorithm::Tea,
            _ => return None,
        };
        Some(HashVersion {
            algorithm,
            unsigned,
        })
    }

    /// The hash of `name`. Its lowest bit is clear: in an index, that bit says that a
    /// leaf goes on with the hash the one before it ended with.
    #[doc(alias = "ext4fs_dirhash")]
    pub(crate) fn hash(self, seed: [u32; 4], name: &[u8]) -> u32 {
        let hash = match self.algorithm {
            Algorithm::Legacy => legacy(name, self.unsigned),
            Algorithm::HalfMd4 => {
                let mut state = start(seed);
                for input in Words::<8>::of(name, self.unsigned) {
                    half_md4(&mut state, &input);
                }
                state[1]
            }
            Algorithm::Tea => {
                let mut state = start(seed);
                for input in Words::<4>::of(name, self.unsigned) {
                    tea(&mut state, &input);
                }
                state[0]
            }
        };
        match hash & !1 {
            END => END - 2,
            hash => hash,
        }
    }
}

/// What the hashes begin with: the seed, or MD4's own constants where there is none.
fn start(seed: [u32; 4]) -> [u32; 4] {
    match seed {
        [0, 0, 0, 0] => [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476],
        seed => seed,
    }
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let mixed = last ^ widen(byte, unsigned).wrapping_mul(7_152_373);
        let mut next = before.wrapping_add(mixed);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        (before, last) = (last, next);
    }
    last << 1
}

fn widen(byte: u8, unsigned: bool) -> u32 {
    if unsigned {
        u32::from(byte)
    } else {
        byte.cast_signed() as u32
    }
}

/// A name cut into groups of `N` words, the last one filled up with its length.
struct Words<'a, const N: usize> {
    rest: &'a [u8],
    unsigned: bool,
}

impl<'a, const N: usize> Words<'a, N> {
    fn of(name: &'a [u8], unsigned: bool) -> Self {
        Words {
            rest: name,
            unsigned,
        }
    }
}

impl<const N: usize> Iterator for Words<'_, N> {
    type Item = [u32; N];

    fn next(&mut self) -> Option<[u32; N]> {
        if self.rest.is_empty() {
            return None;
        }
        // The length of the whole remainder, not only of the bytes in this group.
        let fill = (self.rest.len() as u32 & 0xff).wrapping_mul(0x0101_0101);
        let (now, rest) = self.rest.split_at(self.rest.len().min(N * 4));
        let mut words = [fill; N];
        for (word, bytes) in words.iter_mut().zip(now.chunks(4)) {
            for &byte in bytes {
                *word = widen(byte, self.unsigned).wrapping_add(*word << 8);
            }
        }
        self.rest = rest;
        Some(words)
    }
}

/// MD4 with half of its rounds.
fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    let rounds: [(Mix, u32, [usize; 8], [u32; 4]); 3] = [
        (
            |x, y, z| z ^ (x & (y ^ z)),
            0,
            [0, 1, 2, 3, 4, 5, 6, 7],
            [3, 7, 11, 19],
        ),
        (
            |x, y, z| (x & y).wrapping_add((x ^ y) & z),
            0x5a82_7999,
            [1, 3, 5, 7, 0, 2, 4, 6],
            [3, 5, 9, 13],
        ),
        (
            |x, y, z| x ^ y ^ z,
            0x6ed9_eba1,
            [3, 7, 2, 6, 1, 5, 0, 4],
            [3, 9, 11, 15],
        ),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, order, shifts) in rounds {
        for (step, &index) in order.iter().enumerate() {
            let mixed = a
                .wrapping_add(mix(b, c, d))
                .wrapping_add(input[index])
                .wrapping_add(constant)
                .rotate_left(shifts[step % 4]);
            (a, b, c, d) = (d, mixed, b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

/// The tiny encryption algorithm, with the name as its key.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    fn feistel(x: u32, sum: u32, k0: u32, k1: u32) -> u32 {
        (x << 4).wrapping_add(k0) ^ x.wrapping_add(sum) ^ (x >> 5).wrapping_add(k1)
    }
    let [mut left, mut right, ..] = *state;
    let mut sum = 0_u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        left = left.wrapping_add(feistel(right, sum, key[0], key[1]));
        right = right.wrapping_add(feistel(left, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const SEED: &str = "01234567-89ab-cdef-0123-456789abcdef";
    const LONG: &str = "a name of more than thirty-two bytes, which takes two groups of words";

    /// The seed as the super block has it: the UUID's bytes as little-endian words.
    fn seed() -> [u32; 4] {
        let hex: String = SEED.chars().filter(|&c| c != '-').collect();
        let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
        std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|j| byte(4 * i + j))))
    }

    fn hash(version: u8, unsigned: bool, seed: [u32; 4], name: &str) -> u32 {
        HashVersion::of_index(version, unsigned)
            .unwrap()
            .hash(seed, name.as_bytes())
    }

    /// The values are debugfs's, so this holds where there is none.
    #[test]
    fn hashes_are_those_of_the_format() {
        assert_eq!(hash(0, false, seed(), "hello"), 0x3225_2546);
        assert_eq!(hash(1, false, seed(), "hello"), 0xa26e_4a80);
        assert_eq!(hash(2, false, seed(), "hello"), 0x6f5b_b1a8);
    }

    /// debugfs agrees on names of all lengths around the groups' edges, with bytes
    /// above 127, with a seed and without.
    #[test]
    fn debugfs_computes_the_same_hashes() {
        let mut names: Vec<String> = [1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 64, 65]
            .map(|n| LONG[..n].to_owned())
            .to_vec();
        names.extend([
            "ünïcödé".into(),
            "ÿ".into(),
            "日本語の長い名前です".repeat(3),
        ]);
        let (mut requests, mut ours) = (String::new(), Vec::new());
        for version in 0..3 {
            for (unsigned, seeded) in [(false, false), (true, false), (false, true), (true, true)] {
                for name in &names {
                    // debugfs has no names for the unsigned ones.
                    let number = version + if unsigned { 3 } else { 0 };
                    let (option, seed) = match seeded {
                        true => (format!("-s {SEED}"), seed()),
                        false => (String::new(), [0; 4]),
                    };
                    requests += &format!("dx_hash -h HASHALG_{number} {option} \"{name}\"\n");
                    ours.push((hash(version, unsigned, seed, name), number, name));
                }
            }
        }
        let Some(theirs) = debugfs(&requests) else {
            return rcuwalk_testkit::skip("needs debugfs");
        };
        assert_eq!(theirs.len(), ours.len());
        for ((hash, number, name), theirs) in ours.into_iter().zip(theirs) {
            assert_eq!(hash, theirs, "{number}: {name}");
        }
    }

    fn debugfs(requests: &str) -> Option<Vec<u32>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), requests).unwrap();
        let mut debugfs = Command::new("debugfs");
        let output = debugfs.arg("-f").arg(file.path()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let hash = |line: &str| {
            let hex = line.rsplit_once("is 0x")?.1.split(' ').next()?;
            u32::from_str_radix(hex, 16).ok()
        };
        Some(text.lines().filter_map(hash).collect())
    }

    /// No name hashes to the mark of a directory's end.
    #[test]
    fn the_lowest_bit_is_clear_and_the_end_is_not_reached() {
        for version in 0..3 {
            for n in 0..2000 {
                let hash = hash(version, n % 2 == 0, [0; 4], &n.to_string());
                assert!(hash & 1 == 0 && hash != END, "{n}");
            }
        }
        assert_eq!(HashVersion::of_index(SIPHASH, false), None);
    }
}
