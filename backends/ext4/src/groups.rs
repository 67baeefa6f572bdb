//! Block groups: where each has its part of the inode table.
//!
//! All descriptors are read and verified when the image is opened. A bad descriptor makes only
//! its own group unreadable: each access to that group returns the reason.

use crate::bytes::{lo_hi, u16_at, u32_at};
use crate::checksum::{Checksums, crc16, crc32c};
use crate::error::{Error, Place, Result};
use crate::features::{Incompat, RoCompat};
use crate::super_block::SuperBlock;
use crate::volume::Volume;

/// In place of a table that is not known.
const BAD: u64 = u64::MAX;
const CHECKSUM: usize = 0x1e;
/// No more tables than this are kept: enough for 512 TiB of the usual groups, and an image
/// that claims to have more small ones does not get us to fill the memory.
const MOST: u64 = 1 << 22;

/// The inode tables' first blocks, by group.
#[derive(Default)]
pub(crate) struct Groups {
    tables: Box<[u64]>,
}

/// What a descriptor says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    /// The first block of its part of the inode table.
    pub(crate) inode_table: u64,
    /// Inodes at the end of its table that have never been used, where that is counted.
    pub(crate) unused_inodes: u32,
    flags: u16,
}

impl Group {
    /// True if none of its inodes has ever been used: bitmap and table may be anything.
    pub(crate) fn is_inode_uninit(&self) -> bool {
        self.flags & 1 != 0
    }
}

impl Groups {
    /// Reads all descriptors. A bad one is reported when its group is used.
    pub(crate) fn read(volume: &Volume) -> Groups {
        let super_block = volume.super_block();
        // An image that was cut off need not have as many as the super block says; those
        // that cannot be there are not worth memory.
        let end = volume.source().len().unwrap_or(0);
        let fit = end / super_block.descriptor_size() as u64;
        let count = u64::from(super_block.groups_count()).min(fit).min(MOST) as u32;
        let tables = (0..count).map(|number| match Groups::descriptor(volume, number) {
            Ok(group) => group.inode_table,
            Err(_) => BAD,
        });
        Groups {
            tables: tables.collect(),
        }
    }

    /// How many groups there can be in the image.
    pub(crate) fn count(&self) -> u32 {
        self.tables.len() as u32
    }

    /// The first block of the inode table of group `number`.
    ///
    /// # Errors
    /// What is wrong with the group's descriptor.
    #[inline]
    pub(crate) fn inode_table(&self, volume: &Volume, number: u32) -> Result<u64> {
        match self.tables.get(number as usize) {
            Some(table) if *table != BAD => Ok(*table),
            _ => Ok(Groups::descriptor(volume, number)?.inode_table),
        }
    }

    /// The descriptor of group `number`, verified.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn descriptor(volume: &Volume, number: u32) -> Result<Group> {
        let super_block = volume.super_block();
        if number >= super_block.groups_count() {
            return Err(Error::NotFound);
        }
        let size = super_block.descriptor_size();
        let per_block = super_block.block_size() / size as u32;
        let block = volume.block(super_block.descriptor_block(number / per_block))?;
        let start = (number % per_block) as usize * size;
        let bytes = block.get(start..start + size).unwrap_or_default();
        if volume.checksums() != Checksums::Never {
            verify_checksum(super_block, number, bytes)?;
        }
        let group = parse(bytes);
        let table_blocks = u64::from(super_block.inodes_per_group())
            .div_ceil(u64::from(super_block.block_size()) / super_block.inode_size() as u64);
        if !super_block.may_own(group.inode_table, table_blocks) {
            return Err(Error::Corrupt {
                place: Place::Group(number),
                field: "bg_inode_table",
                why: format!(
                    "block {} of {}",
                    group.inode_table,
                    super_block.blocks_count()
                ),
            });
        }
        Ok(group)
    }
}

fn parse(bytes: &[u8]) -> Group {
    // Beyond 32 bytes there is nothing in the narrow ones, which reads as 0.
    let both = |low, high| u32::from(u16_at(bytes, low)) | u32::from(u16_at(bytes, high)) << 16;
    Group {
        inode_table: lo_hi(u32_at(bytes, 0x08), u32_at(bytes, 0x28)),
        flags: u16_at(bytes, 0x12),
        unused_inodes: both(0x1c, 0x32),
    }
}

fn verify_checksum(super_block: &SuperBlock, number: u32, bytes: &[u8]) -> Result<()> {
    let features = super_block.features();
    let (before, after) = (&bytes[..CHECKSUM], &bytes[CHECKSUM + 2..]);
    let number_bytes = number.to_le_bytes();
    let found = if super_block.has_checksums() {
        let crc = crc32c(super_block.checksum_seed(), &number_bytes);
        crc32c(crc32c(crc32c(crc, before), &[0; 2]), after) as u16
    } else if features.has_ro_compat(RoCompat::UNINIT_BG) {
        let crc = crc16(crc16(!0, super_block.uuid()), &number_bytes);
        let crc = crc16(crc, before);
        match features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
            true => crc16(crc, after),
            false => crc,
        }
    } else {
        return Ok(());
    };
    if found == u16_at(bytes, CHECKSUM) {
        return Ok(());
    }
    Err(Error::Checksum {
        place: Place::Group(number),
        what: "group descriptor",
    })
}
