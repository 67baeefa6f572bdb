//! Looking for a backup of the super block without knowing where they are.
//!
//! The first block of a group depends on sizes that only the super block knows, so the usual
//! sizes are tried. A copy counts only if it says that it lies in that group.

use super::{SIZE, SuperBlock};
use crate::cache::read_exact;
use crate::checksum::Checksums;
use crate::source::Source;

/// Groups that have a backup in nearly all file systems.
const GROUPS: [u32; 8] = [1, 3, 5, 7, 9, 25, 27, 49];
/// Blocks in a cluster, usually, with bigalloc.
const RATIOS: [u64; 2] = [1, 16];

/// The first that is sound.
pub(super) fn search(source: &dyn Source, checksums: Checksums) -> Option<SuperBlock> {
    for log_block_size in [2, 0, 1, 3, 4, 5, 6] {
        let block_size = 1024_u64 << log_block_size;
        for ratio in RATIOS {
            // One block of bitmap covers the group: every mke2fs does it this way.
            let blocks_per_group = block_size * 8 * ratio;
            // With bigalloc groups begin at block 0, whatever the size.
            let first = u64::from(block_size == 1024 && ratio == 1);
            for group in GROUPS {
                let offset = (u64::from(group) * blocks_per_group + first) * block_size;
                if let Some(found) = read(source, checksums, group, offset) {
                    return Some(found);
                }
            }
        }
    }
    None
}

fn read(source: &dyn Source, checksums: Checksums, group: u32, offset: u64) -> Option<SuperBlock> {
    let mut bytes = [0; SIZE];
    read_exact(source, &mut bytes, offset).ok()?;
    let found = SuperBlock::parse(&bytes, group, checksums).ok()?;
    let place = found.first_block_of(group) * u64::from(found.block_size());
    (place == offset).then_some(found)
}
