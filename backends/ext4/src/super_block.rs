//! The super block: where everything is and how it is written.
//!
//! [`find`](SuperBlock::find) takes the primary one, and one of its backups where that is
//! bad. Everything that later arithmetic leans on is checked here, once: sizes are powers
//! of two within the format's limits, counts agree with each other, no divisor is zero.

use crate::bytes::{lo_hi, u16_at, u32_at};
use crate::cache::read_exact;
use crate::checksum::{Checksums, crc32c};
use crate::error::{Error, Place, Result};
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::overlay::Overlay;
use crate::source::Source;

mod backup;
mod foreign;
#[cfg(test)]
mod tests;

/// Its size, wherever it is.
pub(crate) const SIZE: usize = 1024;
/// Where the primary one is, in bytes.
pub(crate) const PRIMARY: u64 = 1024;
const MAGIC: u16 = 0xef53;
const LINUX: u32 = 0;

/// A super block that has been checked.
#[derive(Clone, Debug)]
pub(crate) struct SuperBlock {
    /// The group that it was read from: not 0 for a backup.
    group: u32,
    features: Features,
    block_size: u32,
    blocks_count: u64,
    free_blocks_count: u64,
    first_data_block: u32,
    blocks_per_group: u32,
    cluster_size: u32,
    groups_count: u32,
    inodes_count: u32,
    free_inodes_count: u32,
    inodes_per_group: u32,
    inode_size: u16,
    first_inode: u32,
    descriptor_size: u16,
    first_meta_bg: u32,
    backup_groups: [u32; 2],
    creator: u32,
    checksum_seed: u32,
    uuid: [u8; 16],
    label: [u8; 16],
    hash_seed: [u32; 4],
    flags: u32,
    journal_inode: u32,
}

impl SuperBlock {
    /// Reads the primary super block, or a backup where that one is bad.
    ///
    /// # Errors
    /// What is wrong with the primary one, if no backup is any better.
    pub(crate) fn find(source: &dyn Source, checksums: Checksums) -> Result<SuperBlock> {
        let mut bytes = [0; SIZE];
        let primary = read_exact(source, &mut bytes, PRIMARY)
            .and_then(|()| SuperBlock::parse(&bytes, 0, checksums));
        match primary {
            Ok(found) => Ok(found),
            // It is sound, and says that we cannot read this.
            Err(err @ Error::Unsupported { .. }) => Err(err),
            Err(err) => SuperBlock::find_slow(source, checksums, err),
        }
    }

    #[cold]
    fn find_slow(source: &dyn Source, checksums: Checksums, err: Error) -> Result<SuperBlock> {
        // Checked before the backups, which survive when another file system is made here.
        if let Some(found) = foreign::recognise(source)? {
            return Err(Error::NotExt4 {
                found: found.into(),
            });
        }
        match backup::search(source, checksums) {
            Some(found) => Ok(found),
            None => Err(match err {
                Error::NotExt4 { .. } | Error::Truncated { .. } => Error::NotExt4 {
                    found: foreign::describe(source).into(),
                },
                err => err,
            }),
        }
    }

    /// Parses and checks a copy of the super block found in `group`.
    pub(crate) fn parse(
        bytes: &[u8; SIZE],
        group: u32,
        checksums: Checksums,
    ) -> Result<SuperBlock> {
        let bytes = bytes.as_slice();
        let bad = |field, why| Error::Corrupt {
            place: Place::SuperBlock(group),
            field,
            why,
        };
        let long = |at| u32_at(bytes, at);
        let short = |at| u16_at(bytes, at);
        if short(0x38) != MAGIC {
            return Err(Error::NotExt4 {
                found: "no known magic number".into(),
            });
        }
        let revision = long(0x4c);
        let features = match revision {
            // Before there were features.
            0 => Features::new(0, 0, 0),
            _ => Features::new(long(0x5c), long(0x60), long(0x64)),
        };
        if features.has_ro_compat(RoCompat::METADATA_CSUM) && checksums != Checksums::Never {
            if crc32c(!0, &bytes[..0x3fc]) != long(0x3fc) {
                return Err(Error::Checksum {
                    place: Place::SuperBlock(group),
                    what: "super block",
                });
            }
            match bytes[0x175] {
                1 => {}
                kind => return Err(bad("s_checksum_type", format!("{kind} is unknown"))),
            }
        }
        features.check_readable()?;
        // Old ones do not tell which copy they are, and the primary one needs not.
        if group != 0 && group != u32::from(short(0x5a)) && revision != 0 {
            return Err(bad(
                "s_block_group_nr",
                format!("{} where {group} is expected", short(0x5a)),
            ));
        }

        let block_size = match long(0x18) {
            log @ 0..=6 => 1024 << log,
            log => return Err(bad("s_log_block_size", format!("{log} is above 6"))),
        };
        let wide = features.has_incompat(Incompat::SIXTY_FOUR_BIT);
        let high = |at| if wide { long(at) } else { 0 };
        let blocks_count = lo_hi(long(0x04), high(0x150));
        let first_data_block = long(0x14);
        let blocks_per_group = long(0x20);
        let inodes_per_group = long(0x28);
        let (inode_size, first_inode) = match revision {
            0 => (128, 11),
            _ => (short(0x58), long(0x54)),
        };
        if !inode_size.is_power_of_two() || !(128..=block_size).contains(&u32::from(inode_size)) {
            return Err(bad("s_inode_size", format!("{inode_size} bytes")));
        }
        let descriptor_size = match (wide, short(0xfe)) {
            (false, _) => 32,
            (true, size @ 64..) if size.is_power_of_two() && u32::from(size) <= block_size => size,
            (true, size) => return Err(bad("s_desc_size", format!("{size} bytes"))),
        };
        if first_data_block > 1 || u64::from(first_data_block) >= blocks_count {
            return Err(bad("s_first_data_block", first_data_block.to_string()));
        }
        // A block of bitmap has a bit for each cluster; a cluster may be many blocks.
        let cluster_size = match features.has_ro_compat(RoCompat::BIGALLOC) {
            false => block_size,
            true => match long(0x1c) {
                // Up to 512 MiB, as mke2fs has it.
                log @ ..=19 if 1024_u32 << log >= block_size => 1024 << log,
                log => return Err(bad("s_log_cluster_size", log.to_string())),
            },
        };
        let most = u64::from(cluster_size) * 8;
        if blocks_per_group == 0 || u64::from(blocks_per_group) > most {
            return Err(bad("s_blocks_per_group", blocks_per_group.to_string()));
        }
        if inodes_per_group == 0 || inodes_per_group > block_size * 8 {
            return Err(bad("s_inodes_per_group", inodes_per_group.to_string()));
        }
        let groups =
            (blocks_count - u64::from(first_data_block)).div_ceil(u64::from(blocks_per_group));
        let inodes_count = long(0x00);
        if inodes_count == 0 || groups.saturating_mul(inodes_per_group.into()) < inodes_count.into()
        {
            return Err(bad(
                "s_inodes_count",
                format!("{inodes_count} in {groups} groups of {inodes_per_group}"),
            ));
        }
        let Ok(groups_count) = u32::try_from(groups) else {
            return Err(bad("s_blocks_count", format!("{blocks_count} blocks")));
        };

        let uuid = array(bytes, 0x68);
        Ok(SuperBlock {
            group,
            features,
            block_size,
            blocks_count,
            free_blocks_count: lo_hi(long(0x0c), high(0x158)),
            first_data_block,
            blocks_per_group,
            cluster_size,
            groups_count,
            inodes_count,
            free_inodes_count: long(0x10),
            inodes_per_group,
            inode_size,
            first_inode,
            descriptor_size,
            first_meta_bg: long(0x104),
            backup_groups: [long(0x24c), long(0x250)],
            creator: long(0x48),
            checksum_seed: match features.has_incompat(Incompat::METADATA_CSUM_SEED) {
                true => long(0x270),
                false => crc32c(!0, &uuid),
            },
            uuid,
            label: array(bytes, 0x78),
            hash_seed: [long(0xec), long(0xf0), long(0xf4), long(0xf8)],
            flags: long(0x160),
            journal_inode: long(0xe0),
        })
    }

    /// The same, as it is after the journal's replay.
    pub(crate) fn newer(&self, overlay: &Overlay, checksums: Checksums) -> Result<SuperBlock> {
        let block_size = u64::from(self.block_size);
        let block = overlay
            .get(PRIMARY / block_size)
            .filter(|_| self.group == 0);
        let bytes = block
            .and_then(|block| block.get((PRIMARY % block_size) as usize..))
            .and_then(|rest| rest.first_chunk());
        let Some(bytes) = bytes else {
            return Ok(self.clone());
        };
        let newer = SuperBlock::parse(bytes, 0, checksums)?;
        if newer.block_size != self.block_size {
            return Err(Error::Corrupt {
                place: Place::SuperBlock(0),
                field: "s_log_block_size",
                why: "the journal would change it".into(),
            });
        }
        Ok(newer)
    }

    /// The group that it was read from: not 0 for a backup.
    pub(crate) fn group(&self) -> u32 {
        self.group
    }

    pub(crate) fn features(&self) -> Features {
        self.features
    }

    /// Bytes in a block.
    #[inline]
    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Bytes in what is allocated at once: a block, or several.
    pub(crate) fn cluster_size(&self) -> u32 {
        self.cluster_size
    }

    /// Blocks of the file system, whatever the image has of them.
    #[inline]
    pub(crate) fn blocks_count(&self) -> u64 {
        self.blocks_count
    }

    pub(crate) fn free_blocks_count(&self) -> u64 {
        self.free_blocks_count
    }

    pub(crate) fn groups_count(&self) -> u32 {
        self.groups_count
    }

    /// The highest inode number.
    #[inline]
    pub(crate) fn inodes_count(&self) -> u32 {
        self.inodes_count
    }

    pub(crate) fn free_inodes_count(&self) -> u32 {
        self.free_inodes_count
    }

    /// Never 0.
    #[inline]
    pub(crate) fn inodes_per_group(&self) -> u32 {
        self.inodes_per_group
    }

    /// Bytes of a slot in the inode table: a power of two, no more than a block.
    #[inline]
    pub(crate) fn inode_size(&self) -> usize {
        usize::from(self.inode_size)
    }

    /// The first inode that is not for the file system itself.
    pub(crate) fn first_inode(&self) -> u32 {
        self.first_inode
    }

    pub(crate) fn descriptor_size(&self) -> usize {
        usize::from(self.descriptor_size)
    }

    pub(crate) fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// Without the zeros it is filled up with.
    pub(crate) fn label(&self) -> &[u8] {
        let end = self.label.iter().position(|byte| *byte == 0);
        &self.label[..end.unwrap_or(self.label.len())]
    }

    /// What the hashes of names begin with.
    pub(crate) fn hash_seed(&self) -> [u32; 4] {
        self.hash_seed
    }

    /// Whether the names' bytes count as unsigned in their hashes: it was left to the
    /// machine once, and the image remembers which way that went.
    pub(crate) fn hash_unsigned(&self) -> bool {
        self.flags & 2 != 0
    }

    /// The inode of the journal, or 0.
    pub(crate) fn journal_inode(&self) -> u32 {
        self.journal_inode
    }

    /// True if the journal may have what the image has not. A backup does not know: the
    /// flag is kept in the primary one only, and the journal itself has to be asked.
    pub(crate) fn may_need_recovery(&self) -> bool {
        self.features.has_compat(Compat::HAS_JOURNAL)
            && (self.group != 0 || self.features.has_incompat(Incompat::NEEDS_RECOVERY))
    }

    /// What all of crc32c of this file system begin with.
    #[inline]
    pub(crate) fn checksum_seed(&self) -> u32 {
        self.checksum_seed
    }

    /// True if blocks of metadata have checksums.
    #[inline]
    pub(crate) fn has_checksums(&self) -> bool {
        self.features.has_ro_compat(RoCompat::METADATA_CSUM)
    }

    /// True if inodes have, which depends on who made the file system.
    #[inline]
    pub(crate) fn has_inode_checksums(&self) -> bool {
        self.has_checksums() && self.creator == LINUX
    }

    /// True if `length` blocks from `first` may belong to a file: they lie between the first
    /// group's super block and the end.
    #[inline]
    pub(crate) fn may_own(&self, first: u64, length: u64) -> bool {
        first > u64::from(self.first_data_block)
            && first
                .checked_add(length)
                .is_some_and(|end| end <= self.blocks_count)
    }

    /// The block that `group` begins with.
    pub(crate) fn first_block_of(&self, group: u32) -> u64 {
        u64::from(group) * u64::from(self.blocks_per_group) + u64::from(self.first_data_block)
    }

    /// The block with the descriptors that are the `index`th block of them.
    pub(crate) fn descriptor_block(&self, index: u32) -> u64 {
        let meta = self.features.has_incompat(Incompat::META_BG);
        if !meta || index < self.first_meta_bg {
            // Behind the super block that is in use. The primary one is in block 1 if blocks
            // are as small as it is, even where groups are counted from block 0.
            let after = match self.group {
                0 => u64::from(self.block_size == 1024),
                group => self.first_block_of(group),
            };
            return after + 1 + u64::from(index);
        }
        let per_block = self.block_size / u32::from(self.descriptor_size);
        let group = index.saturating_mul(per_block);
        let mut behind = u64::from(self.has_super_block(group));
        if group == 0 && self.block_size == 1024 && self.first_data_block == 0 {
            behind += 1;
        }
        self.first_block_of(group) + behind
    }

    /// True if `group` begins with a copy of the super block.
    fn has_super_block(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.features.has_compat(Compat::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        group == 1
            || !self.features.has_ro_compat(RoCompat::SPARSE_SUPER)
            || [3, 5, 7].into_iter().any(|base| is_power_of(group, base))
    }
}

fn is_power_of(mut number: u32, base: u32) -> bool {
    while number > 1 && number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .unwrap_or([0; N])
}
