//! Looking for a byte in sixteen at once.

/// One bit per byte of `bytes` that is `wanted` or zero, the lowest byte first. On
/// machines without 16-byte compares, only the lowest set bit is sure to be there.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))]
#[inline]
pub fn mask_of_or_zero(bytes: u128, wanted: u8) -> u32 {
    use std::arch::x86_64::*;
    // SAFETY: the instructions are there (see the `cfg`), and they touch registers only.
    unsafe {
        let bytes = _mm_set_epi64x((bytes >> 64) as i64, bytes as i64);
        let found = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(wanted as i8));
        let zeros = _mm_cmpeq_epi8(bytes, _mm_setzero_si128());
        _mm_movemask_epi8(_mm_or_si128(found, zeros)) as u32
    }
}

/// One bit per byte of `bytes` that is `wanted` or zero, the lowest byte first. On
/// machines without 16-byte compares, only the lowest set bit is sure to be there.
#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(miri))))]
#[inline]
pub fn mask_of_or_zero(bytes: u128, wanted: u8) -> u32 {
    portable(bytes, wanted)
}

#[cfg(any(
    test,
    not(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))
))]
fn portable(bytes: u128, wanted: u8) -> u32 {
    const ONES: u128 = u128::MAX / 255;
    // The lowest zero byte of a word is the lowest byte whose top bit this sets.
    let zero = |word: u128| word.wrapping_sub(ONES) & !word & (ONES << 7);
    match zero(bytes) | zero(bytes ^ (ONES * u128::from(wanted))) {
        0 => 0,
        marks => 1 << (marks.trailing_zeros() / 8),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_match_is_found_either_way() {
        for at in 0..16 {
            for byte in [0, b'/'] {
                // Neighbours of the wanted byte, where borrows could mislead.
                for other in [1, b'.', b'0', 0xFF, 0x80, b'/' | 0x80] {
                    let mut bytes = [other; 16];
                    bytes[at] = byte;
                    bytes[15] = byte;
                    let word = u128::from_le_bytes(bytes);
                    assert_eq!(mask_of_or_zero(word, b'/').trailing_zeros() as usize, at);
                    assert_eq!(portable(word, b'/').trailing_zeros() as usize, at);
                }
            }
        }
        assert_eq!(mask_of_or_zero(u128::from_le_bytes([7; 16]), b'/'), 0);
        assert_eq!(portable(u128::from_le_bytes([7; 16]), b'/'), 0);
    }
}
