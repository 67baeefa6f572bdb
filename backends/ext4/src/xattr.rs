//! Extended attributes: in the inode behind its fields, in a block of their own, and large
//! values in inodes of their own.
//!
//! Both places have the same entries: sixteen bytes and the name, one behind the other up
//! to four zero bytes, with the values at the other end.

use std::ops::ControlFlow;

use crate::acl;
use crate::bytes::{u16_at, u32_at};
use crate::cache::Verified;
use crate::checksum::crc32c;
use crate::data;
use crate::error::{Error, Place, Result};
use crate::inode::{InodeFlags, RawInode};
use crate::volume::{InodeCursor, Volume};

/// The index of names that begin with `system.`.
pub(crate) const SYSTEM: u8 = 7;
const ACL_ACCESS: u8 = 2;
const ACL_DEFAULT: u8 = 3;

const MAGIC: u32 = 0xea02_0000;
const HEADER: usize = 32;
const ENTRY: usize = 16;
/// The largest value that anybody has been able to store.
const MAX_VALUE: u32 = 1 << 20;
/// All values of an inode together, which no tool would fill and entries that share one
/// large value could exceed.
const MAX_VALUES: usize = 64 << 20;

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Xattr {
    /// The whole name, as `user.comment`.
    pub name: Vec<u8>,
    /// The value as getxattr(2) returns it.
    pub value: Vec<u8>,
}

/// Whether there are any behind the fields of an inode, which end at `end` of its `slot`.
pub(crate) fn is_inside(slot: &[u8], end: u16) -> bool {
    let inside = slot.get(usize::from(end)..).unwrap_or_default();
    inside.len() > 4 && u32_at(inside, 0) == MAGIC
}

/// The value of one, as it is stored.
pub(crate) fn find(
    volume: &Volume,
    inode: &RawInode,
    index: u8,
    name: &[u8],
) -> Result<Option<Vec<u8>>> {
    let mut found = None;
    each(volume, inode, &mut |entry, values| {
        if entry.index != index || entry.name != name {
            return Ok(ControlFlow::Continue(()));
        }
        found = Some(entry.value(volume, inode, values)?);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// All that getxattr(2) would return, in the order listxattr(2) has.
pub(crate) fn list(volume: &Volume, inode: &RawInode) -> Result<Vec<Xattr>> {
    let mut found = Vec::new();
    let mut total = 0_usize;
    each(volume, inode, &mut |entry, values| {
        // The others are the file system's own business.
        let Some(prefix) = prefix(entry.index) else {
            return Ok(ControlFlow::Continue(()));
        };
        let mut value = entry.value(volume, inode, values)?;
        total += value.len();
        if total > MAX_VALUES {
            return Err(values.bad("e_value_size", "64 MiB of values in one inode".into()));
        }
        if matches!(entry.index, ACL_ACCESS | ACL_DEFAULT) {
            let Some(shown) = acl::shown(&value) else {
                return Err(values.bad("a_version", "not an ACL".into()));
            };
            value = shown;
        }
        found.push(Xattr {
            name: [prefix, entry.name].concat(),
            value,
        });
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// What an index stands for.
fn prefix(index: u8) -> Option<&'static [u8]> {
    Some(match index {
        1 => b"user.",
        ACL_ACCESS => b"system.posix_acl_access",
        ACL_DEFAULT => b"system.posix_acl_default",
        4 => b"trusted.",
        6 => b"security.",
        10 => b"gnu.",
        _ => return None,
    })
}

type Visit<'v> = &'v mut dyn FnMut(&Entry<'_>, &Region<'_>) -> Result<ControlFlow<()>>;

/// Hands all entries to `visit` until it has enough.
fn each(volume: &Volume, inode: &RawInode, visit: Visit<'_>) -> Result<()> {
    let mut cursor = InodeCursor::default();
    let slot = volume.slot(&mut cursor, inode.ino)?;
    if is_inside(slot, inode.xattrs_at) {
        let inside = &slot[usize::from(inode.xattrs_at)..];
        let region = Region {
            place: Place::Inode(inode.ino),
            bytes: &inside[4..],
            entries: 0,
        };
        if region.walk(visit)?.is_break() {
            return Ok(());
        }
    }
    if inode.file_acl == 0 {
        return Ok(());
    }
    let block = volume.block(inode.file_acl)?;
    let region = Region {
        place: Place::BlockOf {
            ino: inode.ino,
            block: inode.file_acl,
        },
        bytes: &block,
        entries: HEADER,
    };
    if !block.is_verified_as(Verified::Attributes) {
        region.check_block(volume, inode.file_acl)?;
        block.set_verified_as(Verified::Attributes);
    }
    let _enough = region.walk(visit)?;
    Ok(())
}

/// Entries and their values.
struct Region<'a> {
    place: Place,
    /// What values' offsets count from.
    bytes: &'a [u8],
    /// Where the entries begin.
    entries: usize,
}

struct Entry<'a> {
    index: u8,
    name: &'a [u8],
    value_offset: u16,
    value_inode: u32,
    value_size: u32,
    hash: u32,
}

impl<'a> Region<'a> {
    fn walk(&self, visit: Visit<'_>) -> Result<ControlFlow<()>> {
        let mut at = self.entries;
        loop {
            let Some(rest) = self.bytes.get(at..).filter(|rest| rest.len() >= 4) else {
                return Err(self.bad("e_name", "no end of the entries".into()));
            };
            if u32_at(rest, 0) == 0 {
                return Ok(ControlFlow::Continue(()));
            }
            let length = ENTRY + usize::from(rest[0]);
            let Some(raw) = rest.get(..length) else {
                return Err(self.bad("e_name_len", format!("{} bytes at {at}", rest[0])));
            };
            let entry = Entry {
                index: raw[1],
                name: &raw[ENTRY..],
                value_offset: u16_at(raw, 2),
                value_inode: u32_at(raw, 4),
                value_size: u32_at(raw, 8),
                hash: u32_at(raw, 12),
            };
            if entry.name.contains(&0) {
                return Err(self.bad("e_name", "a zero byte in a name".into()));
            }
            if visit(&entry, self)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            at += length.next_multiple_of(4);
        }
    }

    fn check_block(&self, volume: &Volume, number: u64) -> Result<()> {
        let magic = u32_at(self.bytes, 0);
        if magic != MAGIC {
            return Err(self.bad("h_magic", format!("{magic:#010x}")));
        }
        let blocks = u32_at(self.bytes, 8);
        if blocks != 1 {
            return Err(self.bad("h_blocks", format!("{blocks}, and it is always 1")));
        }
        if !volume.verifies(number) {
            return Ok(());
        }
        // Other inodes with the same attributes share the block, so its number is what
        // ties it down.
        let seed = crc32c(volume.super_block().checksum_seed(), &number.to_le_bytes());
        let crc = crc32c(crc32c(seed, &self.bytes[..16]), &[0; 4]);
        if crc32c(crc, &self.bytes[20..]) == u32_at(self.bytes, 16) {
            return Ok(());
        }
        Err(Error::Checksum {
            place: self.place,
            what: "block of extended attributes",
        })
    }

    #[cold]
    fn bad(&self, field: &'static str, why: String) -> Error {
        Error::Corrupt {
            place: self.place,
            field,
            why,
        }
    }
}

impl Entry<'_> {
    fn value(&self, volume: &Volume, inode: &RawInode, region: &Region<'_>) -> Result<Vec<u8>> {
        let size = self.value_size as usize;
        if self.value_inode != 0 {
            return self.value_of_inode(volume, inode, region);
        }
        let start = usize::from(self.value_offset);
        match region.bytes.get(start..start.saturating_add(size)) {
            Some(value) => Ok(value.to_vec()),
            None if size == 0 => Ok(Vec::new()),
            None => Err(region.bad("e_value_offs", format!("{size} bytes at {start}"))),
        }
    }

    /// The contents of an inode that holds one value, for all who have the same.
    fn value_of_inode(
        &self,
        volume: &Volume,
        owner: &RawInode,
        region: &Region<'_>,
    ) -> Result<Vec<u8>> {
        let number = self.value_inode;
        let bad = |why: &str| Err(region.bad("e_value_inum", format!("inode {number} {why}")));
        let holder = match volume.inode(number) {
            Err(Error::NotFound) => return bad("is not in use"),
            holder => holder?,
        };
        if !holder.flags.contains(InodeFlags::EA_INODE) {
            return bad("holds no value");
        }
        if self.value_size > MAX_VALUE || holder.size != u64::from(self.value_size) {
            return bad(&format!(
                "has {} bytes for a value of {}",
                holder.size, self.value_size
            ));
        }
        let mut value = vec![0; self.value_size as usize];
        if data::read(volume, &holder, &mut value, 0)? < value.len() {
            return bad("cannot be read");
        }
        let (said, parent) = holder.raw_atime_and_mtime();
        // Lustre's way of old: one owner, named here, and no hash.
        let is_owned = parent == owner.ino && holder.generation == owner.generation;
        if is_owned || !volume.checksums().wanted(number.into()) {
            return Ok(value);
        }
        let hash = crc32c(volume.super_block().checksum_seed(), &value);
        if hash != said || !self.is_hash(hash) {
            return Err(Error::Checksum {
                place: Place::Inode(number),
                what: "extended attribute's value",
            });
        }
        Ok(value)
    }

    /// Whether the entry's hash is that of its name and a value with this hash. Kernels
    /// have computed it from signed and from unsigned bytes.
    fn is_hash(&self, value: u32) -> bool {
        let hash = |widen: fn(u8) -> u32| {
            let name = self
                .name
                .iter()
                .fold(0_u32, |hash, byte| hash.rotate_left(5) ^ widen(*byte));
            name.rotate_left(16) ^ value
        };
        self.hash == 0
            || self.hash == hash(u32::from)
            || self.hash == hash(|byte| byte as i8 as u32)
    }
}
