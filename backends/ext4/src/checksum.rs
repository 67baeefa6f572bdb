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
