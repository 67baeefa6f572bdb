//! Fields of on-disk structures: little-endian, and never out of bounds.
//!
//! Offsets are constants of the format; the lengths of the slices are not. A structure that is
//! too short reads as zeros. Callers for which that matters check the length first.

/// The little-endian number at `offset`; zero where `bytes` is too short.
#[inline]
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    at(bytes, offset).map_or(0, u16::from_le_bytes)
}

/// As [`u16_at`].
#[inline]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    at(bytes, offset).map_or(0, u32::from_le_bytes)
}

/// As [`u16_at`].
#[inline]
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    at(bytes, offset).map_or(0, u64::from_le_bytes)
}

/// As [`u16_at`]; the journal is big-endian.
#[inline]
pub(crate) fn be32_at(bytes: &[u8], offset: usize) -> u32 {
    at(bytes, offset).map_or(0, u32::from_be_bytes)
}

/// As [`be32_at`].
#[inline]
pub(crate) fn be16_at(bytes: &[u8], offset: usize) -> u16 {
    at(bytes, offset).map_or(0, u16::from_be_bytes)
}

/// A number in two halves, as the format widened its fields later on.
#[inline]
pub(crate) fn lo_hi(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline]
fn at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}
