//! The identity of a host file, and whether a file still is the same one.
//!
//! [`Stat`] is one answer of statx(2), split in two: the [`InodeKey`] says which
//! file, the [`Attr`] says how it was at that moment.
//!
//! # The key
//!
//! ```text
//!   ino                    space
//!  +----------------+     +-----------+-----------+-------------+
//!  | inode number   |     | mount id  | dev major | dev minor   |
//!  +----------------+     +-----------+-----------+-------------+
//!   63            0        63      32  31      20  19          0
//! ```
//!
//! The mount id is in it because a bind mount shows one directory at two paths, and the VFS
//! wants one path per directory. The device is in it because btrfs subvolumes and overlay
//! layers share a mount but not their inode numbers. The kernel keeps devices in 12 bits of
//! major and 20 of minor.
//!
//! The mount id is the lower half of the unique one, which the kernel counts up from 2^31 (Linux
//! 6.8): two mounts share a key only if 2^32 others were made between them. An older kernel
//! tells the id that mountinfo shows, an `int`, and gives that of an unmounted mount to the next
//! one.
//!
//! # One number, two files
//!
//! A host gives a freed inode number to the next file. The key cannot tell the two apart; the
//! type and the time of birth usually can, and [`Stat::is_still`] compares them. On a file
//! system that records no birth times (its `stx_mask` says so) only the type decides: there, a
//! cached inode can stand for a new file of the same type and number, with nothing but its
//! attributes updated. So it can where both were born within one tick of the host's clock (up
//! to 10 ms; Linux 6.13 and later stamp finely enough on the common file systems). It does no
//! harm to a file, whose attributes and contents are the new one's in any case; a directory is
//! told apart by its file handle when it is opened again (see `dirs.rs`), if the file system
//! has those; a link's target could be the old one's, which is why links are compared more
//! strictly.

use std::time::{SystemTime, UNIX_EPOCH};

use rcuwalk::{
    Acl, Attr, Error, FileType, Inode, InodeFill, InodeFlags, InodeKey, Result, Timestamp,
};
use rustix::fs::{Statx, StatxAttributes, StatxFlags, StatxTimestamp};

use crate::sys;

/// The fields requested from statx(2).
pub(crate) const WANTED: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(StatxFlags::MNT_ID)
    .union(MNT_ID_UNIQUE);

/// Takes precedence over `MNT_ID` in a kernel that knows both.
#[doc(alias = "STATX_MNT_ID_UNIQUE")]
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Unique mount ids are larger, and all others smaller.
#[doc(alias = "MNT_UNIQUE_ID_OFFSET")]
const UNIQUE_FROM: u64 = 1 << 31;

/// A host file as it was at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    pub(crate) key: InodeKey,
    pub(crate) attr: Attr,
}

impl Stat {
    pub(crate) fn from_statx(statx: &Statx) -> Result<Stat> {
        // A type this kernel knows and we do not: better not shown than shown wrong.
        let kind = FileType::from_mode(statx.stx_mode.into()).ok_or(Error::NotSupported)?;
        let told = |what: StatxFlags| statx.stx_mask & what.bits() != 0;
        let mount = if told(StatxFlags::MNT_ID | MNT_ID_UNIQUE) {
            statx.stx_mnt_id
        } else {
            0
        };
        let btime = if told(StatxFlags::BTIME) {
            timestamp(&statx.stx_btime)
        } else {
            Timestamp::default()
        };
        Ok(Stat {
            key: InodeKey {
                ino: statx.stx_ino,
                space: space(mount, statx.stx_dev_major, statx.stx_dev_minor),
            },
            attr: Attr::new(statx.stx_ino, kind, statx.stx_mode)
                .nlink(statx.stx_nlink)
                .uid(statx.stx_uid)
                .gid(statx.stx_gid)
                .rdev(rustix::fs::makedev(
                    statx.stx_rdev_major,
                    statx.stx_rdev_minor,
                ))
                .size(statx.stx_size)
                .blocks(statx.stx_blocks)
                .atime(timestamp(&statx.stx_atime))
                .mtime(timestamp(&statx.stx_mtime))
                .ctime(timestamp(&statx.stx_ctime))
                .btime(btime)
                .flags(flags(statx.stx_attributes)),
        })
    }

    /// True if this is the file that `inode` was made for, and the data cached with the inode
    /// outside of its attributes (a link's target) still holds.
    pub(crate) fn is_still(&self, inode: &Inode) -> bool {
        self.key == inode.inode_key() && is_same_file(&inode.attr(), &self.attr)
    }

    /// Like the above, without the fields that a rename or a new name changes: a link's ctime.
    pub(crate) fn is_still_after_rename(&self, inode: &Inode) -> bool {
        let cached = inode.attr();
        let moved = self.attr.ctime(cached.ctime);
        self.key == inode.inode_key() && is_same_file(&cached, &moved)
    }

    /// The initial contents of a new inode. Whether there is an ACL is read when it matters:
    /// most inodes are never used by members of their group.
    pub(crate) fn fill(&self) -> InodeFill {
        InodeFill::new(self.attr).acl(match self.attr.kind {
            FileType::Symlink => Acl::None,
            _ => Acl::Unknown,
        })
    }

    /// Brings the inode's attributes up to date.
    pub(crate) fn publish(&self, inode: &Inode) {
        // The host changes an ACL without telling. The ctime tells.
        inode.set_attr_found(&self.attr);
    }

    /// The file's attributes after it has lost its only name just now, estimated because no
    /// descriptor holds it.
    pub(crate) fn removed(self) -> Stat {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let ctime = Timestamp {
            sec: now.as_secs().cast_signed(),
            nsec: now.subsec_nanos(),
        };
        let attr = self.attr.nlink(0).ctime(ctime);
        Stat { attr, ..self }
    }

    /// True if the inode has the same owner, group and mode: what the VFS decides by. The ACL
    /// is not compared.
    pub(crate) fn is_owned_as(&self, inode: &Inode) -> bool {
        let of = |attr: &Attr| (attr.uid, attr.gid, attr.mode);
        of(&self.attr) == of(&inode.attr())
    }

    /// Returns whether these attributes differ from the inode's.
    pub(crate) fn is_news(&self, inode: &Inode) -> bool {
        let cached = inode.attr();
        let now = self.attr.dev(cached.dev);
        cached != now
    }
}

/// True unless something shows that one inode number stood for two files.
fn is_same_file(cached: &Attr, now: &Attr) -> bool {
    // The target is cached, so a link has to look untouched altogether. One of its size
    // and ctime is another link only if both were made within a tick of the host's clock.
    let same_target =
        now.kind != FileType::Symlink || (cached.ctime, cached.size) == (now.ctime, now.size);
    cached.kind == now.kind && may_be_one_birth(cached.btime, now.btime) && same_target
}

/// True unless both are known, and differ.
pub(crate) fn may_be_one_birth(one: Timestamp, other: Timestamp) -> bool {
    let unknown = Timestamp::default();
    one == other || one == unknown || other == unknown
}

/// The id of the host's mount that an inode of a [`HostFs`](crate::HostFs) is in, as
/// in the first field of `/proc/self/mountinfo`; `None` if the host does not tell it, or has
/// unmounted it.
///
/// Two inodes with different ids lie on different sides of a mount point.
pub fn host_mount_id(key: InodeKey) -> Option<u64> {
    match host_mount(key) {
        0 => None,
        unique @ UNIQUE_FROM.. => sys::id_in_mountinfo(unique).ok().map(u64::from),
        id => Some(id),
    }
}

/// Tells the host's mounts apart; 0 if the host does not.
pub(crate) fn host_mount(key: InodeKey) -> u64 {
    key.space >> 32
}

/// The device that an inode is on.
pub(crate) fn host_device(key: InodeKey) -> u64 {
    key.space & 0xffff_ffff
}

/// Mount and device in one word; see the module's picture.
fn space(mount: u64, major: u32, minor: u32) -> u64 {
    debug_assert!(
        major < 1 << 12 && minor < 1 << 20,
        "a device beyond 12:20 bits"
    );
    mount << 32 | u64::from(major) << 20 | u64::from(minor)
}

fn flags(attributes: StatxAttributes) -> InodeFlags {
    let mut flags = InodeFlags::empty();
    let told = |what| attributes.contains(what);
    flags.set(InodeFlags::IMMUTABLE, told(StatxAttributes::IMMUTABLE));
    flags.set(InodeFlags::APPEND, told(StatxAttributes::APPEND));
    flags
}

fn timestamp(stamp: &StatxTimestamp) -> Timestamp {
    Timestamp {
        sec: stamp.tv_sec,
        nsec: stamp.tv_nsec,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// INODE-1: different (mount, device) pairs never share a space.
    #[test]
    fn the_packing_is_injective_over_the_kernels_ranges() {
        let mounts = [0, 1, 2, 0x7fff_ffff, 0xffff_ffff];
        let majors = [0, 1, 2, 8, 254, 255, 256, 4095];
        let minors = [0, 1, 2, 255, 256, 257, (1 << 20) - 2, (1 << 20) - 1];
        let mut spaces = HashSet::new();
        for mount in mounts {
            for major in majors {
                for minor in minors {
                    let fresh = spaces.insert(space(mount, major, minor));
                    assert!(fresh, "INODE-1: {mount} {major}:{minor} collides");
                }
            }
        }
    }

    fn born(sec: i64, kind: FileType) -> Attr {
        Attr::new(12, kind, 0o644).btime(Timestamp { sec, nsec: 7 })
    }

    /// INODE-1: a reused inode number is told apart by birth or by type.
    #[test]
    fn another_birth_or_type_is_another_file() {
        let old = born(100, FileType::Regular);
        assert!(is_same_file(&old, &old), "INODE-1: a file is itself");
        assert!(
            !is_same_file(&old, &born(101, FileType::Regular)),
            "INODE-1: birth"
        );
        assert!(
            !is_same_file(&old, &born(100, FileType::Fifo)),
            "INODE-1: type"
        );
    }

    /// INODE-1: a change of contents, size or owner does not make another file.
    #[test]
    fn a_changed_file_is_still_the_same() {
        let old = born(100, FileType::Regular);
        let changed = old.size(9).uid(4).ctime(Timestamp { sec: 200, nsec: 0 });
        assert!(
            is_same_file(&old, &changed),
            "INODE-1: changes are no replacement"
        );
    }

    /// INODE-1: no birth time is no evidence.
    #[test]
    fn an_unknown_birth_decides_nothing() {
        let known = born(100, FileType::Regular);
        let unknown = known.btime(Timestamp::default());
        assert!(is_same_file(&known, &unknown) && is_same_file(&unknown, &known));
    }

    /// INODE-1: a link's cached target is valid only while nothing about the link changes.
    #[test]
    fn a_touched_link_is_read_again() {
        let old = born(100, FileType::Symlink);
        assert!(is_same_file(&old, &old));
        let touched = old.ctime(Timestamp { sec: 5, nsec: 0 });
        assert!(!is_same_file(&old, &touched));
        let longer = old.size(5);
        assert!(!is_same_file(&old, &longer));
    }
}
