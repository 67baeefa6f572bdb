//! Names as the cache compares them: three words, zero-padded, and a hash.
//!
//! A name of up to 24 bytes is its words (98 of 100 are up to 16); a name holds no
//! NUL, so padding cannot make two names equal. Of a longer name the words hold the
//! first 16 bytes and the hash, and the whole name is compared beside them.

use crate::name::Name;

/// A name's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameWords {
    words: [u64; 3],
    long: bool,
}

impl NameWords {
    /// The longest name that fits into the words.
    pub(crate) const FITS: usize = 24;

    #[inline]
    pub(crate) fn words(&self) -> [u64; 3] {
        self.words
    }

    /// A name that fits.
    #[inline]
    pub(crate) fn from_words(words: [u64; 3]) -> NameWords {
        NameWords { words, long: false }
    }

    pub(super) fn of(words: [u64; 3], long: bool) -> NameWords {
        NameWords { words, long }
    }

    pub(crate) fn is_long(&self) -> bool {
        self.long
    }

    /// The name, if it fits.
    pub(super) fn to_bytes(self) -> Box<[u8]> {
        let bytes = self.words.map(u64::to_le_bytes);
        bytes
            .as_flattened()
            .iter()
            .copied()
            .take_while(|byte| *byte != 0)
            .collect()
    }
}

/// Keys of the name hash, drawn at start: a client must not be able to choose the chain by the
/// names of its files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashKeys {
    a: u64,
    b: u64,
}

impl HashKeys {
    pub(crate) fn random() -> HashKeys {
        use std::hash::{BuildHasher, RandomState};
        let state = RandomState::new();
        HashKeys {
            a: state.hash_one(1),
            b: state.hash_one(2),
        }
    }

    /// The hash of a name that fits: two words at once, with the folded multiply that
    /// the rapidhash family is built on.
    #[inline]
    pub(crate) fn hash_words(self, [low, high, third]: [u64; 3]) -> u64 {
        let hash = fold(low ^ self.a, high ^ self.b);
        // The third word is zero for nearly all, and then that is all. Mixing it in
        // before would let names collide that were made for it, whatever the keys.
        if third == 0 {
            hash
        } else {
            fold(hash ^ third, self.a)
        }
    }

    fn hash_long(self, bytes: &[u8]) -> u64 {
        bytes.chunks(16).fold(self.a, |hash, chunk| {
            let (low, high) = two_words(chunk);
            fold(hash ^ low, high ^ self.b)
        })
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Up to 16 bytes as two little-endian words, padded with zeros.
fn two_words(bytes: &[u8]) -> (u64, u64) {
    let mut padded = [0; 16];
    padded[..bytes.len()].copy_from_slice(bytes);
    let both = u128::from_le_bytes(padded);
    (both as u64, (both >> 64) as u64)
}

/// A name with its words and its hash: computed once per lookup.
#[doc(alias = "qstr")]
#[derive(Clone, Copy)]
pub(crate) struct NameHash<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) words: NameWords,
    hash: u64,
}

impl<'a> NameHash<'a> {
    pub(crate) fn new(name: Name<'a>, keys: HashKeys) -> NameHash<'a> {
        let bytes = name.as_bytes();
        let long = bytes.len() > NameWords::FITS;
        let (low, high) = two_words(&bytes[..bytes.len().min(16)]);
        let (third, hash) = if long {
            let hash = keys.hash_long(bytes);
            (hash, hash)
        } else {
            let third = bytes.get(16..).map_or(0, |rest| two_words(rest).0);
            (third, keys.hash_words([low, high, third]))
        };
        let words = NameWords {
            words: [low, high, third],
            long,
        };
        NameHash { name, words, hash }
    }

    /// The hash of this name in the directory at address `parent`.
    pub(crate) fn in_dir(&self, parent: usize) -> u64 {
        in_dir(self.hash, parent)
    }

    /// The whole name, if it does not fit into the words.
    pub(super) fn long(&self) -> Option<Box<[u8]>> {
        self.long_bytes().map(Box::from)
    }

    pub(super) fn long_bytes(&self) -> Option<&'a [u8]> {
        self.words.long.then_some(self.name.as_bytes())
    }
}

/// Mixes a name's hash with the directory it is in.
///
/// The name's half is random, and two directories never agree in the other: a dentry
/// takes 128 bytes, so their addresses differ above the lowest seven bits. A shift
/// and an exclusive or are all that happens between finding one dentry and looking
/// for the next; the rest of the hash is computed while its line is on its way.
#[inline]
#[doc(alias = "d_hash")]
pub(crate) fn in_dir(name_hash: u64, parent: usize) -> u64 {
    (name_hash >> 32) ^ (parent as u64 >> 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_in_words_or_are_compared_whole() {
        let keys = HashKeys::random();
        let of = |bytes| NameHash::new(Name::new(bytes).unwrap(), keys);
        let bytes: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        for len in 1..=bytes.len() {
            let name = of(&bytes[..len]);
            assert_eq!(name.words.is_long(), len > NameWords::FITS);
            if len <= NameWords::FITS {
                assert_eq!(&*name.words.to_bytes(), &bytes[..len]);
            }
            if len > 1 {
                assert_ne!(name.words, of(&bytes[..len - 1]).words);
            }
            if len <= NameWords::FITS {
                assert_eq!(keys.hash_words(name.words.words()), name.hash);
            }
        }
    }
}
