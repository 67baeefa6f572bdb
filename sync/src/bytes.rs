//! Looking for bytes in sixteen at once.

/// One bit per byte of `bytes` that is `wanted`, the lowest byte first. On machines
/// without 16-byte compares, only the lowest set bit is sure to be there.
#[inline]
pub fn mask_of(bytes: &[u8; 16], wanted: u8) -> u32 {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))]
    return sse2::mask_of(bytes, wanted);
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(miri))))]
    return portable_mask_of(bytes, wanted);
}

/// True if a byte of `bytes` is zero.
#[inline]
pub fn has_zero(bytes: &[u8]) -> bool {
    let len = bytes.len();
    let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) else {
        return bytes.contains(&0);
    };
    // The chunks overlap: some bytes are read twice, which does no harm.
    if len <= 32 {
        return any_has_zero([first, last]);
    }
    let second = bytes[16..].first_chunk().expect("32 bytes and more");
    let third = bytes[..len - 16].last_chunk().expect("32 bytes and more");
    any_has_zero([first, second, third, last]) || len > 64 && has_zero_long(bytes)
}

#[cold]
fn has_zero_long(bytes: &[u8]) -> bool {
    bytes.contains(&0)
}

#[inline]
fn any_has_zero<const N: usize>(chunks: [&[u8; 16]; N]) -> bool {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))]
    return sse2::any_has_zero(chunks);
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(miri))))]
    return chunks.iter().any(|chunk| mask_of(chunk, 0) != 0);
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))]
mod sse2 {
    use std::arch::x86_64::*;

    #[inline]
    pub(super) fn mask_of(bytes: &[u8; 16], wanted: u8) -> u32 {
        // SAFETY: the instructions are there (see the `cfg`); 16 bytes are read from a
        // reference to 16 bytes, at any alignment.
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(wanted as i8))) as u32
        }
    }

    #[inline]
    pub(super) fn any_has_zero<const N: usize>(chunks: [&[u8; 16]; N]) -> bool {
        // SAFETY: as in `mask_of`.
        unsafe {
            let mut least = _mm_set1_epi8(-1);
            for chunk in chunks {
                least = _mm_min_epu8(least, _mm_loadu_si128(chunk.as_ptr().cast()));
            }
            _mm_movemask_epi8(_mm_cmpeq_epi8(least, _mm_setzero_si128())) != 0
        }
    }
}

#[cfg(any(
    test,
    not(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))
))]
fn portable_mask_of(bytes: &[u8; 16], wanted: u8) -> u32 {
    const ONES: u128 = u128::MAX / 255;
    let word = u128::from_le_bytes(*bytes) ^ (ONES * u128::from(wanted));
    // The lowest zero byte of a word is the lowest byte whose top bit this sets.
    match word.wrapping_sub(ONES) & !word & (ONES << 7) {
        0 => 0,
        marks => 1 << (marks.trailing_zeros() / 8),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
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
                    assert_eq!(mask_of(&bytes, byte).trailing_zeros() as usize, at);
                    assert_eq!(portable_mask_of(&bytes, byte).trailing_zeros() as usize, at);
                }
            }
        }
        assert_eq!(mask_of(&[7; 16], b'/'), 0);
        assert_eq!(portable_mask_of(&[7; 16], b'/'), 0);
    }

    #[test]
    fn a_zero_is_found_wherever_it_stands() {
        for len in 0..100 {
            let mut bytes = vec![b'x'; len];
            assert!(!has_zero(&bytes));
            for at in 0..len {
                bytes[at] = 0;
                assert!(has_zero(&bytes), "{at} of {len}");
                bytes[at] = b'x';
            }
        }
    }
}
