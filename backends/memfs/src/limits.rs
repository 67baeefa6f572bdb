//! Limits as the mount options of tmpfs write them: `size=` and `nr_inodes=`.
//!
//! A number may end in `k`, `m`, `g`, `t`, `p` or `e` for a power of 1024; a size may also be a
//! percentage of the machine's memory. 0 means no limit. Without the options, contents may take
//! half of the memory, and there may be one inode for each two pages of it.

use crate::space::PAGE;

/// The largest number of inodes, as their accounting is in bytes.
const MOST_INODES: u64 = u64::MAX / crate::space::INODE;

/// The limit of contents, in bytes, that tmpfs sets by default on a machine with `memory` bytes.
#[doc(alias = "shmem_default_max_blocks")]
pub fn default_size(memory: u64) -> u64 {
    let page = PAGE as u64;
    memory / page / 2 * page
}

/// The limit of inodes that tmpfs sets by default on a machine with `memory` bytes.
#[doc(alias = "shmem_default_max_inodes")]
pub fn default_inodes(memory: u64) -> u64 {
    memory / PAGE as u64 / 2
}

/// Reads the value of `size=`: bytes, or a percentage of `memory`. `None` for anything else.
///
/// ```
/// use rcuwalk_memfs::limits::size;
///
/// assert_eq!(size("20m", 0), Some(20 << 20));
/// assert_eq!(size("25%", 1 << 30), Some(256 << 20));
/// assert_eq!(size("much", 1 << 30), None);
/// ```
#[doc(alias = "shmem_parse_one")]
pub fn size(text: &str, memory: u64) -> Option<u64> {
    match text.strip_suffix('%') {
        Some(percent) => percent_of(memory, number(percent)?),
        None => number(text),
    }
}

/// Reads the value of `nr_inodes=`. `None` if it is no number, or too large to be counted to.
pub fn inodes(text: &str) -> Option<u64> {
    number(text).filter(|inodes| *inodes <= MOST_INODES)
}

/// A percentage, rounded up to whole pages.
fn percent_of(memory: u64, percent: u64) -> Option<u64> {
    let part = u128::from(memory) * u128::from(percent) / 100;
    let bytes = u64::try_from(part).ok()?;
    bytes.checked_next_multiple_of(PAGE as u64)
}

/// A decimal number, `0x…` in hexadecimal or `0…` in octal, then a unit or nothing.
#[doc(alias = "memparse")]
fn number(text: &str) -> Option<u64> {
    let (radix, digits) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None if text.starts_with('0') => (8, text),
        None => (10, text),
    };
    let end = digits.find(|c: char| !c.is_digit(radix));
    let (digits, unit) = digits.split_at(end.unwrap_or(digits.len()));
    let shift = match unit.as_bytes() {
        [] => 0,
        [b'k' | b'K'] => 10,
        [b'm' | b'M'] => 20,
        [b'g' | b'G'] => 30,
        [b't' | b'T'] => 40,
        [b'p' | b'P'] => 50,
        [b'e' | b'E'] => 60,
        _ => return None,
    };
    let number = u64::from_str_radix(digits, radix).ok()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_tmpfs_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1024),
            ("20M", 20 << 20),
            ("3g", 3 << 30),
            ("1t", 1 << 40),
            ("2P", 2 << 50),
            ("1E", 1 << 60),
            ("0x10", 16),
            ("0X1Ek", 30 << 10),
            ("017m", 15 << 20),
            ("50%", 500_000 / 4096 * 4096 + 4096),
            ("0%", 0),
            ("200%", 2_000_000 / 4096 * 4096 + 4096),
        ] {
            assert_eq!(size(text, 1_000_000), Some(bytes), "{text}");
        }
        let none = [
            "", "%", "k", "-1", "+1", "1.5g", "1kb", "1 k", "50%%", "é", "50k%%", "08", "0x", "0xg",
        ];
        for text in none
            .into_iter()
            .chain(["99999999999999999999", "16E", "x", "1\u{0}"])
        {
            assert_eq!(size(text, 1_000_000), None, "{text:?}");
        }
        assert_eq!(size("300%", u64::MAX), None);
        assert_eq!((inodes("10k"), inodes("0")), (Some(10 << 10), Some(0)));
        assert_eq!((inodes("50%"), inodes("")), (None, None));
        assert_eq!((inodes("1E"), inodes("15p")), (None, Some(15 << 50)));
        assert_eq!(default_size(1 << 30), 512 << 20);
        assert_eq!(default_inodes(1 << 30), 128 << 10);
    }
}
