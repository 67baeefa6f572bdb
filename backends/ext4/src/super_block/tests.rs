//! Super blocks made by hand, sound and not, and images of others.

use super::SuperBlock;
use crate::checksum::Checksums;
use crate::error::Result;
use crate::testing::HandMade;

fn find(bytes: Vec<u8>) -> Result<SuperBlock> {
    SuperBlock::find(&bytes, Checksums::Always)
}

/// Every field that later arithmetic relies on is checked, and the error names the field.
#[test]
fn a_super_block_that_contradicts_itself_is_named() {
    let cases: &[(usize, &[u8], &str)] = &[
        (0x18, &[7], "s_log_block_size: 7 is above 6"),
        (0x58, &[130, 0], "s_inode_size: 130 bytes"),
        (0x58, &[0, 8], "s_inode_size: 2048 bytes"),
        (0x14, &[2], "s_first_data_block: 2"),
        (0x04, &[1], "s_first_data_block: 1"),
        (0x20, &[0, 0], "s_blocks_per_group: 0"),
        (0x20, &[1, 32], "s_blocks_per_group: 8193"),
        (0x28, &[0], "s_inodes_per_group: 0"),
        (0x00, &[17], "s_inodes_count: 17 in 1 groups of 16"),
        (0x00, &[0], "s_inodes_count: 0 in 1 groups of 16"),
    ];
    for (at, bytes, expected) in cases {
        let mut image = HandMade::new();
        image.put(1024 + at, bytes);
        let err = find(image.0).unwrap_err();
        assert_eq!(err.to_string(), format!("super block: bad {expected}"));
    }
    assert!(find(HandMade::new().0).is_ok());
}

/// The error names the foreign format, also where ext4 backups have survived it.
#[test]
fn what_is_none_of_ours_is_named() {
    let with = |at: usize, mark: &[u8]| {
        let mut bytes = vec![0; 1 << 20];
        bytes[at..at + mark.len()].copy_from_slice(mark);
        bytes
    };
    let cases = [
        (vec![], "nothing, it is empty"),
        (vec![0; 100], "too little for a file system"),
        (vec![0; 1 << 20], "no known magic number"),
        (with(0, b"XFSB"), "an xfs file system"),
        (with(0x1_0040, b"_BHRfS_M"), "a btrfs file system"),
        (
            with(0x200, b"EFI PART"),
            "a disk with partitions (GPT), not one of them",
        ),
        (
            with(510, b"\x55\xaa"),
            "a boot sector: a whole disk, perhaps, and not one of its partitions",
        ),
    ];
    for (bytes, found) in cases {
        let err = find(bytes).unwrap_err();
        assert_eq!(
            err.to_string(),
            format!("no ext2, ext3 or ext4 file system: {found}")
        );
    }
}

/// A feature that would make the reader misread the image is refused by name, before any other
/// field of the super block is used.
#[test]
fn a_feature_that_we_do_not_know_is_refused() {
    let mut image = HandMade::new();
    image.put(1024 + 0x60, &(1_u32 << 21).to_le_bytes());
    image.put(1024 + 0x18, &[99]);
    let err = find(image.0).unwrap_err();
    assert_eq!(err.to_string(), "unsupported feature: FEATURE_I21");
}
