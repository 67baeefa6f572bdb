//! Handles that hold the host's own handle of a file: the bytes of name_to_handle_at(2).
//!
//! ```text
//!  HOST    file system (8)  type (4)  bytes of the host (8 to 128)
//!  NUMBER  file system (8)  inode number (8)  time of birth (12)
//! ```
//!
//! The file system is the one that statfs(2) names. ext4, btrfs and f2fs draw it when they are made,
//! tmpfs when it is mounted; xfs takes the number of its device, and a handle of it is stale once
//! the host numbers its devices anew.
//!
//! HANDLE-1: the host opens its handle if the file still exists. Whether it is below the root is
//! decided as for files that are found by number (`handles.rs`): any file of the host's file system
//! could be named by a handle. A file of another file system below the root, a file that the host has
//! no handle for (most overlays), and any file without CAP_DAC_READ_SEARCH is found by its path
//! alone, and is the right one if its handle is the same.

use rcuwalk::{At, ByNumber, Caller, Error, FileType, InodeKey, Result, SuperBlock, Timestamp};
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{below_root, inode_of, open_host_handle};
use crate::HostFs;
use crate::host::{self, as_fd, held};
use crate::identity::host_mount;
use crate::pin::{hold, known};
use crate::sys;

/// The first byte: which of the two it is.
const HOST: u8 = 1;
const NUMBER: u8 = 2;

const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;

/// [`FileSystem::encode_handle`](rcuwalk::FileSystem::encode_handle).
pub(crate) fn encode(fs: &HostFs, by: &Caller<'_>, at: &At<'_>) -> Result<Box<[u8]>> {
    let file = hold(fs, by, at)?;
    let file_system = held::file_system_of(file.fd())?;
    if held::statfs(file.fd())?.kind == FUSE_SUPER_MAGIC {
        // Its numbers and handles do not outlive what its daemon remembers.
        return Err(Error::NotSupported);
    }
    let handle = sys::lasting_handle(file.fd(), c"");
    let mut id = Vec::with_capacity(32);
    match handle {
        Ok(handle) => {
            let (kind, bytes) = sys::handle_parts(&handle).ok_or(Error::NotSupported)?;
            id.push(HOST);
            id.extend(file_system);
            id.extend(kind.to_le_bytes());
            id.extend(bytes);
        }
        Err(Errno::OPNOTSUPP | Errno::OVERFLOW) => {
            id.push(NUMBER);
            id.extend(file_system);
            id.extend(at.inode.inode_key().ino.to_le_bytes());
            id.extend(birth(at)?);
        }
        Err(errno) => return Err(host::err(errno)),
    }
    Ok(id.into())
}

/// Where the host has no handle that lasts, nothing else tells the uses of a number apart: the
/// generation that it may tell is a constant on 9p and CIFS.
fn birth(at: &At<'_>) -> Result<[u8; 12]> {
    let Timestamp { sec, nsec } = at.inode.attr().btime;
    if (sec, nsec) == (0, 0) {
        return Err(Error::NotSupported);
    }
    let mut birth = [0; 12];
    birth[..8].copy_from_slice(&sec.to_le_bytes());
    birth[8..].copy_from_slice(&nsec.to_le_bytes());
    Ok(birth)
}

/// [`FileSystem::open_handle`](rcuwalk::FileSystem::open_handle).
pub(crate) fn open(fs: &HostFs, sb: &SuperBlock, id: &[u8]) -> Result<ByNumber> {
    let (file_system, kind, bytes) = parts(id).ok_or(Error::Stale)?;
    let exported = exported(fs)?;
    if exported.file_system != file_system {
        return Err(Error::Stale);
    }
    let root = sb.ilookup(exported.root)?.ok_or(Error::Stale)?;
    let within = known(&root).and_then(|dir| dir.opens_handles());
    let within = within.ok_or(Error::Stale)?;
    let handle = sys::handle_of(kind, bytes).ok_or(Error::Stale)?;
    let (opened, found) = open_host_handle(fs, within, &handle)?;
    if found.key.space != exported.root.space {
        return Err(Error::Stale);
    }
    let is_whole = exported.is_whole;
    match found.attr.kind {
        // Nothing is outside. What its name is can wait until a lookup asks.
        kind if is_whole && kind != FileType::Directory && found.attr.nlink > 0 => {
            inode_of(fs, sb, as_fd(&opened), &found).map(ByNumber::Inode)
        }
        _ => below_root(fs, sb, &opened, &found, is_whole),
    }
}

/// What never changes for a root that is held.
#[derive(Debug)]
pub(crate) struct Exported {
    file_system: [u8; 8],
    root: InodeKey,
    /// The root is that of the host's whole file system, as far as the host tells (Linux 6.8).
    is_whole: bool,
}

/// Asks the host once.
fn exported(fs: &HostFs) -> Result<&Exported> {
    if let Some(exported) = fs.exported.get() {
        return Ok(exported);
    }
    let root = host::stat_fd(fs.root.fd())?.key;
    let exported = Exported {
        file_system: held::file_system_of(fs.root.fd())?,
        root,
        is_whole: is_whole(fs, host_mount(root)),
    };
    Ok(fs.exported.get_or_init(|| exported))
}

/// File system, type and bytes of a handle of the host.
fn parts(id: &[u8]) -> Option<([u8; 8], i32, &[u8])> {
    let id = id.strip_prefix(&[HOST])?;
    let (file_system, id) = id.split_first_chunk()?;
    let (kind, bytes) = id.split_first_chunk()?;
    Some((*file_system, i32::from_le_bytes(*kind), bytes))
}

fn is_whole(fs: &HostFs, mount: u64) -> bool {
    let told = retry_on_intr(|| {
        rustix::fs::statx(fs.root.fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::empty())
    });
    let is_top = told.is_ok_and(|told| told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    is_top && sys::is_mount_of_all(mount).unwrap_or(false)
}
