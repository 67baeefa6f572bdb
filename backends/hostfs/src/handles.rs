//! Files found again by number or by the host's handle, for clients that come back with either.
//!
//! HANDLE-1: a number and a generation lead to the file that they were given for, or to nothing
//! ([`Error::Stale`]); never to another file, and never to one outside of the root.
//!
//! **The generation** is a hash of data of the host that tell apart the uses of an inode number, so
//! it is the same for every daemon that serves the file. Where the host reuses numbers at once, that
//! is its own file handle, which takes a system call for each file. A time of birth would not do:
//! two files of one number can be born within one tick of the clock. tmpfs and btrfs do not reuse
//! numbers ([`Numbers::are_given_once`](crate::numbers::Numbers::are_given_once)): there the time of
//! birth, which comes with the attributes, is enough.
//!
//! **The way back** is the host's handle as well. ext2, ext3, ext4 and f2fs open a file by its
//! inode number alone if the handle has the generation 0, and this process may open handles if it
//! has CAP_DAC_READ_SEARCH in the first user namespace. Nothing has to be remembered for that. On
//! other file systems, and without the capability, no file is found by its number alone.
//!
//! **The root is the boundary.** A handle opens any file of the host's file system, also those
//! outside of the root, and clients can make up numbers. So a file counts only if it is below the
//! root, as exportfs's `subtree_check` demands:
//!
//! | the file                         | is below the root if                                |
//! |----------------------------------|-----------------------------------------------------|
//! | a directory                      | the path that the host has of it leads there        |
//! | another one whose name the host has in its cache | the same                            |
//! | another one, and the root is that of the host's whole file system | always: nothing is outside |
//! | any other one                    | it is not found: the host cannot tell where it is   |
//!
//! A path is only a hint: the VFS walks it from the root, and compares. A file of another device
//! than the root's is not found. Its number says too little about which mount below the root it has
//! to be in.
//!
//! `handles/kernel.rs` is about handles that hold the host's own: they work on every file system
//! that NFS could serve, and hold the host's generation, so nothing has to be compared.

pub(crate) mod kernel;

use rcuwalk::{
    At, ByNumber, Caller, Error, FileType, Iget, Inode, InodeRef, Result, SuperBlock, Timestamp,
};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::HostFs;
use crate::host::held::{Held, statfs};
use crate::host::{self, as_fd};
use crate::identity::Stat;
use crate::lookup::{ATTEMPTS, fill_link};
use crate::pin::{kept, known, pinned};
use crate::sys;

/// Tells the file of `at` apart from others that have had its inode number.
pub(crate) fn generation(fs: &HostFs, by: &Caller<'_>, at: &At<'_>) -> Result<Option<u32>> {
    let Timestamp { sec, nsec } = at.inode.attr().btime;
    if fs.numbers.are_given_once(at.inode.inode_key()) && (sec, nsec) != (0, 0) {
        let sec = sec.to_ne_bytes();
        return Ok(Some(hash(sec.iter().chain(&nsec.to_ne_bytes()))));
    }
    let told = match (at.parent, at.inode.kind()) {
        (Some((dir, name)), kind) if kind != FileType::Directory => {
            let dir = pinned(by.sb, dir)?;
            sys::name_to_handle_at(dir.fd(), name)
        }
        _ => {
            let held = match kept(by.sb, at.inode)? {
                Some(held) => held,
                None => without_name(fs, by.sb, at.inode)?,
            };
            sys::name_to_handle(held.fd())
        }
    };
    match told {
        Ok(handle) => Ok(Some(hash(handle.iter()))),
        Err(Errno::OPNOTSUPP | Errno::OVERFLOW) => Ok(None),
        Err(errno) => Err(host::err(errno)),
    }
}

/// Finds the file that has `number`.
pub(crate) fn by_number(fs: &HostFs, sb: &SuperBlock, number: u64) -> Result<ByNumber> {
    let (file, found, is_whole) = open_number(fs, sb, number)?;
    below_root(fs, sb, &file, &found, is_whole)
}

/// Finds the place of a file of the root's device, if it is below the root: the module's table.
fn below_root(
    fs: &HostFs,
    sb: &SuperBlock,
    file: &OwnedFd,
    found: &Stat,
    is_whole: bool,
) -> Result<ByNumber> {
    if found.attr.nlink == 0 {
        return Err(Error::Stale);
    }
    let path = path_below(fs.root.fd(), as_fd(file));
    if !is_whole || found.attr.kind == FileType::Directory {
        return path.map(ByNumber::Path);
    }
    match path {
        Ok(path) if leads_to(fs.root.fd(), &path, found) => Ok(ByNumber::Path(path)),
        _ => inode_of(fs, sb, as_fd(file), found).map(ByNumber::Inode),
    }
}

/// Holds a file of which the VFS knows no name: one that has lost it, or was found without one.
///
/// # Errors
/// [`Error::Stale`] if it is neither open nor found by its number.
pub(crate) fn without_name(fs: &HostFs, sb: &SuperBlock, inode: &Inode) -> Result<Held<'static>> {
    match fs.opened.find(inode) {
        Some(held) => Ok(held),
        None => hold(fs, sb, inode),
    }
}

/// Holds a file by its number. The root has to be that of the whole file system: the VFS has known
/// the file, but it may have left the root since.
pub(crate) fn hold(fs: &HostFs, sb: &SuperBlock, inode: &Inode) -> Result<Held<'static>> {
    let number = fs.numbers.number(inode.inode_key(), inode.inode_key().ino);
    let (file, found, is_whole) = open_number(fs, sb, number)?;
    match is_whole && found.is_still(inode) {
        true => Ok(Held::pinned(file)),
        false => Err(Error::Stale),
    }
}

/// A file system whose handles are an inode number and a generation, 0 for any.
struct TakesAny {
    /// As statfs(2) calls it.
    kind: u64,
    /// The inode number of its root directory.
    root: u64,
}

/// ext2, ext3, ext4; f2fs.
const TAKE_ANY: [TakesAny; 2] = [
    TakesAny {
        kind: 0xEF53,
        root: 2,
    },
    TakesAny {
        kind: 0xF2F5_2010,
        root: 3,
    },
];

/// Opens the file that has `number` in the root's file system, and says whether the root is that
/// of the whole file system.
fn open_number(fs: &HostFs, sb: &SuperBlock, number: u64) -> Result<(OwnedFd, Stat, bool)> {
    // Numbers of other devices do not fit.
    let ino = u32::try_from(number).map_err(|_| Error::Stale)?;
    let top = host::stat_fd(fs.root.fd())?;
    let root = sb.ilookup(top.key)?.ok_or(Error::Stale)?;
    let within = known(&root).and_then(|dir| dir.opens_handles());
    let within = within.ok_or(Error::Stale)?;
    let kind = statfs(within)?.kind;
    let takes_any = TAKE_ANY.iter().find(|any| any.kind == kind);
    let takes_any = takes_any.ok_or(Error::Stale)?;
    let handle = any_generation(within, top.key.ino, ino).ok_or(Error::Stale)?;
    let (opened, found) = open_host_handle(fs, within, &handle)?;
    let is_it = found.key.space == top.key.space && found.key.ino == number;
    match is_it {
        true => Ok((opened, found, top.key.ino == takes_any.root)),
        false => Err(Error::Stale),
    }
}

fn open_host_handle(fs: &HostFs, within: BorrowedFd<'_>, handle: &[u8]) -> Result<(OwnedFd, Stat)> {
    let opened = fs.dirs.open(|| {
        sys::open_by_handle(within, handle).map_err(|errno| match errno {
            Errno::STALE | Errno::NOENT | Errno::INVAL => Error::Stale,
            errno => host::err(errno),
        })
    })?;
    let found = host::stat_fd(as_fd(&opened))?;
    Ok((opened, found))
}

/// The handle of the inode `ino`, whatever its generation, made from that of the root.
fn any_generation(root: BorrowedFd<'_>, root_ino: u64, ino: u32) -> Option<[u8; 16]> {
    let of_root = sys::lasting_handle(root, c"").ok()?;
    let mut handle: [u8; 16] = (*of_root).try_into().ok()?;
    let (number, generation) = (sys::HEAD..sys::HEAD + 4, sys::HEAD + 4..16);
    if handle[number.clone()] != u32::try_from(root_ino).ok()?.to_ne_bytes() {
        return None;
    }
    handle[number].copy_from_slice(&ino.to_ne_bytes());
    handle[generation].fill(0);
    Some(handle)
}

/// The path by which the host reaches `file` from `root`. It is wrong for a file without a name in
/// the host's cache, and for one that has lost the name that it was reached by.
fn path_below(root: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<Box<[u8]>> {
    let (top, path) = (path_of(root)?, path_of(file)?);
    let below = path.strip_prefix(&*top).ok_or(Error::Stale)?;
    if below.is_empty() {
        return Ok(Box::default());
    }
    // The root's path ends with a slash only if it is "/".
    match top.ends_with(b"/") {
        true => Ok(below.into()),
        false => below.strip_prefix(b"/").map(Box::from).ok_or(Error::Stale),
    }
}

/// True if this path leads the VFS to the file that looks like `found`.
fn leads_to(root: BorrowedFd<'_>, path: &[u8], found: &Stat) -> bool {
    const BELOW: ResolveFlags = ResolveFlags::BENEATH
        .union(ResolveFlags::NO_SYMLINKS)
        .union(ResolveFlags::NO_MAGICLINKS);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat2(root, path, flags, Mode::empty(), BELOW);
    let there = retry_on_intr(open).map_err(host::err);
    let there = there.and_then(|there| host::stat_fd(as_fd(&there)));
    there.is_ok_and(|there| there.key == found.key)
}

/// The host's path of the file that `fd` holds.
fn path_of(fd: BorrowedFd<'_>) -> Result<Box<[u8]>> {
    let (top, link) = rcuwalk_procfs::magic_link(fd).map_err(|_| Error::Stale)?;
    let read = || rustix::fs::readlinkat(top, &*link, Vec::new());
    let path = retry_on_intr(read).map_err(|_| Error::Stale)?;
    Ok(path.into_bytes().into())
}

/// The inode of the file that `fd` holds: not a directory, with the attributes `found`.
fn inode_of(fs: &HostFs, sb: &SuperBlock, fd: BorrowedFd<'_>, found: &Stat) -> Result<InodeRef> {
    for _ in 0..ATTEMPTS {
        match sb.iget(found.key)? {
            Iget::Cached(inode) if found.is_still(&inode) => {
                if fs.is_watched() {
                    // A report may have been answered since `found` was asked for.
                    fs.publish(&inode, || host::stat_fd(fd).map(Some))?;
                } else {
                    found.publish(&inode);
                }
                return Ok(inode);
            }
            // While the file is held, the number is no other file's (INODE-1).
            Iget::Cached(inode) => match host::stat_fd(fd)?.is_still(&inode) {
                true => return Ok(inode),
                false => sb.unhash(&inode),
            },
            Iget::New(new) => {
                let fill = match found.attr.kind {
                    FileType::Symlink => fill_link(fd, found, false)?,
                    _ => found.fill(),
                };
                return Ok(new.init(fill));
            }
        }
    }
    Err(Error::Stale)
}

/// FNV-1a, folded: the same in each daemon.
fn hash<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ hash >> 32) as u32
}
