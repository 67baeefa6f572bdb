//! An inode as it is on the image: parsed, and its checksum verified.
//!
//! Made to be cheap: a scan makes millions of them a second. What costs something and is
//! not always wanted (the times, a device number) is taken apart in [`RawInode::attr`].

use bitflags::bitflags;
use rcuwalk::{Attr, FileType, Timestamp};

use crate::bytes::{lo_hi, u16_at, u32_at, u64_at};
use crate::checksum::crc32c;
use crate::error::{Error, Place, Result};
use crate::features::{Incompat, RoCompat};
use crate::super_block::SuperBlock;
use crate::xattr;

/// The size of the part that all inodes have.
pub(crate) const GOOD_OLD_INODE_SIZE: usize = 128;
/// How much more of it the format defines today.
const EXTRA_SIZE: u16 = 32;

bitflags! {
    /// `i_flags`, reduced to those that matter to a reader.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct InodeFlags: u32 {
        const IMMUTABLE = 0x10;
        const APPEND = 0x20;
        const ENCRYPT = 0x800;
        /// A directory with an index.
        const INDEX = 0x1000;
        /// `i_blocks` counts file system blocks.
        const HUGE_FILE = 0x4_0000;
        const EXTENTS = 0x8_0000;
        const VERITY = 0x10_0000;
        /// Its contents are the value of another inode's extended attribute.
        const EA_INODE = 0x20_0000;
        const INLINE_DATA = 0x1000_0000;
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

impl InodeFlags {
    /// What the VFS calls them.
    fn protection(self) -> rcuwalk::InodeFlags {
        let mut flags = rcuwalk::InodeFlags::empty();
        let immutable = self.contains(InodeFlags::IMMUTABLE);
        flags.set(rcuwalk::InodeFlags::IMMUTABLE, immutable);
        flags.set(
            rcuwalk::InodeFlags::APPEND,
            self.contains(InodeFlags::APPEND),
        );
        flags
    }
}

/// What the image says about an inode.
#[derive(Clone, Debug)]
pub(crate) struct RawInode {
    pub(crate) ino: u32,
    pub(crate) kind: FileType,
    /// Type and permissions.
    pub(crate) mode: u16,
    pub(crate) links: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) flags: InodeFlags,
    pub(crate) generation: u32,
    pub(crate) size: u64,
    /// In units of 512 bytes.
    pub(crate) blocks: u64,
    /// The block with its extended attributes, or 0.
    pub(crate) file_acl: u64,
    /// Where the attributes within the inode begin, counted from its start; the inode's
    /// size if there is no room for any.
    pub(crate) xattrs_at: u16,
    /// False if there are none for sure.
    pub(crate) may_have_xattrs: bool,
    atime: RawTime,
    ctime: RawTime,
    mtime: RawTime,
    crtime: RawTime,
    /// `i_block`: the map, a link's target, a device's number or the contents.
    pub(crate) block: [u8; 60],
}

/// Seconds, and what newer inodes have besides: two more bits of them and the
/// nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct RawTime {
    seconds: u32,
    extra: u32,
}

impl RawTime {
    fn decode(self) -> Timestamp {
        // The low half is signed as it always was; the two bits count the times it has
        // wrapped around since.
        let epoch = i64::from(self.extra & 3) << 32;
        Timestamp {
            sec: i64::from(self.seconds as i32) + epoch,
            // Thirty bits can say more than a second has.
            nsec: (self.extra >> 2).min(999_999_999),
        }
    }
}

impl RawInode {
    /// Parses the inode `ino` from its slot in the table. With `verify`, checks its checksum.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the inode is not in use; otherwise the damage that was found.
    #[inline]
    pub(crate) fn parse(
        super_block: &SuperBlock,
        ino: u32,
        slot: &[u8],
        verify: bool,
    ) -> Result<RawInode> {
        let Some(base) = slot.first_chunk::<GOOD_OLD_INODE_SIZE>() else {
            return Err(corrupt(
                ino,
                "s_inode_size",
                format!("{} bytes", slot.len()),
            ));
        };
        let base = base.as_slice();
        let mode = u16_at(base, 0x00);
        let links = u16_at(base, 0x1a);
        if mode == 0 && links == 0 {
            // Never used: there is no checksum either.
            return Err(Error::NotFound);
        }
        if verify && super_block.has_inode_checksums() {
            verify_checksum(super_block, ino, slot)?;
        }
        if links == 0 {
            return Err(Error::NotFound);
        }
        let Some(kind) = FileType::from_mode(u32::from(mode)) else {
            return Err(corrupt(ino, "i_mode", format!("{mode:#o}")));
        };

        let extra = Extra::parse(ino, slot)?;
        let features = super_block.features();
        let flags = InodeFlags::from_bits_retain(u32_at(base, 0x20));
        let size = if kind == FileType::Regular || features.has_incompat(Incompat::LARGE_DIR) {
            lo_hi(u32_at(base, 0x04), u32_at(base, 0x6c))
        } else {
            u64::from(u32_at(base, 0x04))
        };
        if size > i64::MAX as u64 {
            return Err(corrupt(ino, "i_size", format!("{size} bytes")));
        }
        let mut blocks = u64::from(u32_at(base, 0x1c));
        if features.has_ro_compat(RoCompat::HUGE_FILE) {
            blocks |= u64::from(u16_at(base, 0x74)) << 32;
            if flags.contains(InodeFlags::HUGE_FILE) {
                // 48 bits by at most 128.
                blocks *= u64::from(super_block.block_size() / 512);
            }
        }
        let mut file_acl = u64::from(u32_at(base, 0x68));
        if features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
            file_acl |= u64::from(u16_at(base, 0x76)) << 32;
        }
        let mut block = [0; 60];
        block.copy_from_slice(&base[0x28..0x64]);
        let half = |low, high| u32::from(u16_at(base, low)) | u32::from(u16_at(base, high)) << 16;
        let time = |seconds, extra| RawTime {
            seconds: u32_at(base, seconds),
            extra,
        };
        Ok(RawInode {
            ino,
            kind,
            mode,
            links,
            uid: half(0x02, 0x78),
            gid: half(0x18, 0x7a),
            flags,
            generation: u32_at(base, 0x64),
            size,
            blocks,
            file_acl,
            xattrs_at: extra.end,
            may_have_xattrs: file_acl != 0 || xattr::is_inside(slot, extra.end),
            atime: time(0x08, extra.atime),
            ctime: time(0x0c, extra.ctime),
            mtime: time(0x10, extra.mtime),
            crtime: extra.crtime,
            block,
        })
    }

    /// What stat(2) tells about it.
    pub(crate) fn attr(&self) -> Attr {
        Attr::new(u64::from(self.ino), self.kind, self.mode)
            .flags(self.flags.protection())
            .nlink(u32::from(self.links))
            .uid(self.uid)
            .gid(self.gid)
            .rdev(self.device())
            .size(self.size)
            .blocks(self.sectors())
            .atime(self.atime.decode())
            .mtime(self.mtime.decode())
            .ctime(self.ctime.decode())
            .btime(self.crtime.decode())
    }

    /// The space it takes on the disk, as stat(2) reports it. Inline contents count, so that no
    /// program takes the file for a hole.
    fn sectors(&self) -> u64 {
        let inline = self.kind == FileType::Regular && self.flags.contains(InodeFlags::INLINE_DATA);
        let inline = if inline { self.size.div_ceil(512) } else { 0 };
        self.blocks.saturating_add(inline)
    }

    /// What checksums of blocks that belong to it begin with, so that a block of another
    /// inode, or of an earlier use of the number, does not pass.
    pub(crate) fn checksum_seed(&self, super_block: &SuperBlock) -> u32 {
        inode_seed(super_block, self.ino, self.generation)
    }

    /// # Errors
    /// [`Error::Unsupported`] if its contents or names are encrypted.
    pub(crate) fn check_readable(&self) -> Result<()> {
        match self.flags.contains(InodeFlags::ENCRYPT) {
            false => Ok(()),
            true => Err(Error::Unsupported {
                feature: "encryption".into(),
            }),
        }
    }

    /// Seconds of its last access and its last modification, which inodes that hold
    /// attributes' values use for something else.
    pub(crate) fn raw_atime_and_mtime(&self) -> (u32, u32) {
        (self.atime.seconds, self.mtime.seconds)
    }

    fn device(&self) -> u64 {
        if !matches!(self.kind, FileType::BlockDevice | FileType::CharDevice) {
            return 0;
        }
        let (old, new) = (u32_at(&self.block, 0), u32_at(&self.block, 4));
        let (major, minor) = match old {
            // Twelve bits and twenty.
            0 => (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00),
            // Eight and eight.
            _ => (old >> 8 & 0xff, old & 0xff),
        };
        libc::makedev(major, minor)
    }
}

/// The fields behind the first 128 bytes, as far as this inode has them.
struct Extra {
    atime: u32,
    ctime: u32,
    mtime: u32,
    crtime: RawTime,
    end: u16,
}

impl Extra {
    #[inline]
    fn parse(ino: u32, slot: &[u8]) -> Result<Extra> {
        let length = slot.len() as u16;
        let rest = &slot[GOOD_OLD_INODE_SIZE..];
        if rest.is_empty() {
            return Ok(Extra {
                atime: 0,
                ctime: 0,
                mtime: 0,
                crtime: RawTime::default(),
                end: length,
            });
        }
        let said = u16_at(rest, 0);
        if !said.is_multiple_of(4) || usize::from(said) > rest.len() {
            return Err(corrupt(ino, "i_extra_isize", format!("{said} bytes")));
        }
        // The space is unused so far: the fields count as present, and there are no attributes.
        let (size, end) = match said {
            0 => (EXTRA_SIZE, length),
            _ => (said, GOOD_OLD_INODE_SIZE as u16 + said),
        };
        let field = |at: u16| {
            if at + 4 <= size {
                u32_at(rest, usize::from(at))
            } else {
                0
            }
        };
        Ok(Extra {
            ctime: field(0x04),
            mtime: field(0x08),
            atime: field(0x0c),
            crtime: RawTime {
                seconds: field(0x10),
                extra: field(0x14),
            },
            end,
        })
    }
}

fn inode_seed(super_block: &SuperBlock, ino: u32, generation: u32) -> u32 {
    let mut owner = [0; 8];
    owner[..4].copy_from_slice(&ino.to_le_bytes());
    owner[4..].copy_from_slice(&generation.to_le_bytes());
    crc32c(super_block.checksum_seed(), &owner)
}

#[inline]
fn verify_checksum(super_block: &SuperBlock, ino: u32, slot: &[u8]) -> Result<()> {
    let wide = slot.len() >= GOOD_OLD_INODE_SIZE + 4 && u16_at(slot, 0x80) >= 4;
    let mut said = u32::from(u16_at(slot, 0x7c));
    if wide {
        said |= u32::from(u16_at(slot, 0x82)) << 16;
    }
    let found = match slot.as_array::<256>() {
        Some(slot) => checksum_of_usual_size(super_block, ino, slot, wide),
        None => checksum_of_odd_size(super_block, ino, slot, wide),
    };
    let found = if wide { found } else { found & 0xffff };
    if found == said {
        Ok(())
    } else {
        Err(bad_checksum(ino))
    }
}

/// The crc32c of an inode of 256 bytes, its checksum fields as zeros.
///
/// One call over a copy: each further call of crc32c costs as much as eighty bytes.
#[inline]
fn checksum_of_usual_size(super_block: &SuperBlock, ino: u32, slot: &[u8; 256], wide: bool) -> u32 {
    let mut all = [0; 8 + 256];
    let mut put = |at: usize, word: u64| all[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(0, lo_hi(ino, u32_at(slot, 0x64)));
    for at in (0..256).step_by(8) {
        put(8 + at, u64_at(slot, at));
    }
    // The fields are masked out of whole words: crc32c reads words, and a processor waits
    // before it reads one that it has just written in parts.
    put(8 + 0x78, u64_at(slot, 0x78) & !(0xffff << 32));
    if wide {
        put(8 + 0x80, u64_at(slot, 0x80) & !(0xffff << 16));
    }
    crc32c(super_block.checksum_seed(), &all)
}

/// The same in pieces, for inodes of another size than nearly all have.
fn checksum_of_odd_size(super_block: &SuperBlock, ino: u32, slot: &[u8], wide: bool) -> u32 {
    let seed = inode_seed(super_block, ino, u32_at(slot, 0x64));
    let (base, rest) = slot.split_at(GOOD_OLD_INODE_SIZE);
    let crc = crc32c(seed, &base[..0x7c]);
    let crc = crc32c(crc32c(crc, &[0; 2]), &base[0x7e..]);
    match rest.split_at_checked(4) {
        Some((start, rest)) if wide => {
            let crc = crc32c(crc32c(crc, &start[..2]), &[0; 2]);
            crc32c(crc, rest)
        }
        _ => crc32c(crc, rest),
    }
}

#[cold]
fn bad_checksum(ino: u32) -> Error {
    Error::Checksum {
        place: Place::Inode(ino),
        what: "inode",
    }
}

#[cold]
fn corrupt(ino: u32, field: &'static str, why: String) -> Error {
    Error::Corrupt {
        place: Place::Inode(ino),
        field,
        why,
    }
}
