//! The checksums of the format: crc32c since metadata_csum, crc16 of group descriptors
//! before it; and how often they are looked at.

/// How much of the metadata that is read is checked against its checksum, where the
/// image has checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checksums {
    /// All of it, as the kernel does.
    #[default]
    Always,
    /// One structure in sixteen, chosen by its place, so that a bad disk shows up without
    /// each read paying for it. The super block and the group descriptors always.
    Sample,
    /// Verifies no checksum. Damage is then found only where the image contradicts itself.
    Never,
}

impl Checksums {
    /// Returns true if the structure at `place` (an inode's number, a block's) has to be
    /// verified.
    #[inline]
    pub(crate) fn wanted(self, place: u64) -> bool {
        match self {
            Checksums::Always => true,
            // The upper bits of a product: neighbours are not all in or all out.
            Checksums::Sample => place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60 == 0,
            Checksums::Never => false,
        }
    }
}

/// crc32c of `bytes`, going on from `seed`, as the format uses it: not inverted, neither
/// before nor after.
#[inline]
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// An owner's number and generation and an inode of the usual size, side by side; aligned
/// as the instruction likes it.
#[repr(align(16))]
pub(crate) struct Owned(pub(crate) [u8; OWNED]);

/// The length of an [`Owned`].
pub(crate) const OWNED: usize = 8 + 256;
/// As much of it as goes second.
const SECOND: usize = 128;

impl Owned {
    /// crc32c of all of it.
    ///
    /// Each step of the instruction waits for the one before. So we go through both halves
    /// at once, as if there were two files, and put them together: in the time of one.
    #[inline]
    pub(crate) fn crc32c(&self, seed: u32) -> u32 {
        let (first, second) = self.0.split_at(OWNED - SECOND);
        let second = crc32c(0, second);
        let first = crc32c(seed, first);
        let table = |index: usize| AFTER_SECOND[index][usize::from(first.to_le_bytes()[index])];
        second ^ table(0) ^ table(1) ^ table(2) ^ table(3)
    }
}

/// What becomes of each byte of a crc32c by going on over as many zeros as the second half
/// has bytes. It is linear, so what the second half adds can be added later.
static AFTER_SECOND: [[u32; 256]; 4] = {
    let mut table = [[0; 256]; 4];
    let mut bit = 0;
    while bit < 32 {
        let mut crc = 1_u32 << bit;
        let mut step = 0;
        while step < 8 * SECOND {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
            step += 1;
        }
        let mut byte = 0;
        while byte < 256 {
            if byte & 1 << (bit % 8) != 0 {
                table[bit / 8][byte] ^= crc;
            }
            byte += 1;
        }
        bit += 1;
    }
    table
};

/// crc16 (ARC) of `bytes`, going on from `seed`.
pub(crate) fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, byte| {
        let index = (crc ^ u16::from(*byte)) & 0xff;
        CRC16[usize::from(index)] ^ (crc >> 8)
    })
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0xa001
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The published check values of both, over the nine digits.
    #[test]
    fn the_check_values_of_both_come_out() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
    }

    /// A checksum in pieces is that of the whole.
    #[test]
    fn pieces_go_on_from_each_other() {
        assert_eq!(
            crc32c(crc32c(7, b"12345"), b"6789"),
            crc32c(7, b"123456789")
        );
        assert_eq!(crc16(crc16(7, b"12345"), b"6789"), crc16(7, b"123456789"));
    }

    /// Both halves put together are the whole, for any seed and contents.
    #[test]
    fn two_halves_make_a_whole() {
        let mut owned = Owned([0; OWNED]);
        for round in 0..50_u32 {
            for (index, byte) in owned.0.iter_mut().enumerate() {
                *byte = (index as u32 * round * 7 + round) as u8;
            }
            let seed = round.wrapping_mul(0x9E37_79B9);
            assert_eq!(owned.crc32c(seed), crc32c(seed, &owned.0));
        }
    }

    /// Samples are about one in sixteen, in any run of numbers.
    #[test]
    fn a_sample_is_one_in_sixteen() {
        for first in [0, 1_000_000, u64::MAX - 20_000] {
            let taken = (first..first + 16_000)
                .filter(|place| Checksums::Sample.wanted(*place))
                .count();
            assert!((900..1100).contains(&taken), "{taken} of 16000");
        }
    }
}
