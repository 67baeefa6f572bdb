//! Recognises other formats where an ext4 super block was expected, for the error message.

use crate::cache::read_full;
use crate::error::{Error, Result};
use crate::source::Source;

/// Offsets, magic numbers and names of other formats.
const MARKS: &[(u64, &[u8], &str)] = &[
    (0, b"XFSB", "an xfs file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (
        0x1018,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        "a bcachefs file system",
    ),
    (
        0x1018,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        "a bcachefs file system",
    ),
    (0x400, b"\x10\x20\xf5\xf2", "an f2fs file system"),
    (0x400, b"\xe2\xe1\xf5\xe0", "an erofs file system"),
    (0, b"hsqs", "a squashfs file system"),
    (3, b"NTFS    ", "an ntfs file system"),
    (3, b"EXFAT   ", "an exfat file system"),
    (0x52, b"FAT32   ", "a fat file system"),
    (0x36, b"FAT16   ", "a fat file system"),
    (0x36, b"FAT12   ", "a fat file system"),
    (0x8001, b"CD001", "an iso9660 file system"),
    (0, b"LUKS\xba\xbe", "a LUKS container"),
    (0x218, b"LVM2 001", "an LVM physical volume"),
    (0, b"QFI\xfb", "a qcow2 image: convert it to a raw one"),
    (0, b"\x28\xb5\x2f\xfd", "compressed data (zstd)"),
    (0, b"\x1f\x8b\x08", "compressed data (gzip)"),
    (0, b"\xfd7zXZ\0", "compressed data (xz)"),
    (0xff6, b"SWAPSPACE2", "swap space"),
    (
        0x200,
        b"EFI PART",
        "a disk with partitions (GPT), not one of them",
    ),
];

/// The name of a file system that is here and is none of ours.
pub(super) fn recognise(source: &dyn Source) -> Result<Option<&'static str>> {
    for (offset, mark, name) in MARKS {
        if has(source, *offset, mark)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The message when no known format matches.
pub(super) fn describe(source: &dyn Source) -> &'static str {
    match source.len() {
        Ok(0) => "nothing, it is empty",
        Ok(1..2048) => "too little for a file system",
        // The mark is that of boot sectors, too, so it is no proof against a backup.
        _ if has(source, 510, b"\x55\xaa").unwrap_or(false) => {
            "a boot sector: a whole disk, perhaps, and not one of its partitions"
        }
        _ => "no known magic number",
    }
}

fn has(source: &dyn Source, offset: u64, mark: &[u8]) -> Result<bool> {
    let mut bytes = [0; 16];
    let bytes = &mut bytes[..mark.len()];
    let got = read_full(source, bytes, offset).map_err(|source| Error::Io { offset, source })?;
    Ok(got == mark.len() && bytes == mark)
}
