//! How the hash tables hash: as they do by themselves, or as fast as ours.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

/// What all of them ask of a hasher.
pub(crate) trait Hashes: BuildHasher + Clone + Default + Send + Sync + 'static {}

impl<S: BuildHasher + Clone + Default + Send + Sync + 'static> Hashes for S {}

/// Makes hashers that fold one multiplication, as our cache does with a number.
///
/// A client that chooses the numbers can make them collide.
pub(crate) type Folding = BuildHasherDefault<FoldingHasher>;

#[derive(Default)]
pub(crate) struct FoldingHasher(u64);

impl Hasher for FoldingHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let mixed = self.0 ^ number ^ 0x9E37_79B9_7F4A_7C15;
        let product = u128::from(mixed) * 0xA076_1D64_78BD_642F;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    /// Keys are numbers; this is for completeness.
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
