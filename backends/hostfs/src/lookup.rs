//! From names to inodes, and back to the host when they are used.
//!
//! A lookup costs one statx(2) if the name is missing, or the inode is cached, or
//! needs no descriptor. Only a directory or link that is not cached is pinned:
//!
//! ```text
//!            statx(dir, name)
//!                  |
//!      missing ----+---- iget(key) ---- Cached, the same file ----> update, done
//!        |                  |     \
//!      None               New      Cached, another file
//!                           |           |
//!          file, device ----+           statx again; still another:
//!            |              |           unhash, start again
//!          done     directory, link
//!                           |
//!                  openat2(O_PATH), statx(fd), [readlinkat(fd)]
//!                           |
//!                  the same file: done          another: start again
//! ```
//!
//! What is started again is a race with a change on the host; each round begins with
//! a new statx, and after [`ATTEMPTS`] rounds the answer is [`Error::Stale`].
//!
//! INODE-1 asks for care when the host gives an inode number away again: the cached
//! inode is only declared stale on the word of a statx that was made *after* the inode
//! was seen in the cache. An older answer could be the outdated one of the two.

use rcuwalk::{
    At, Emit, Error, FileHandle, FileSystem, FileType, Freshness, HeldDescriptor, Iget, Inode,
    InodeFill, InodeRef, Name, Result, SuperBlock,
};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::retry_on_intr;

use crate::HostFs;
use crate::host::{self, as_fd};
use crate::identity::Seen;
use crate::listing;

/// How often a lookup starts again when the name changes under it.
const ATTEMPTS: usize = 8;

/// What a directory's inode keeps: an `O_PATH` descriptor of it.
struct Pinned(
    OwnedFd,
    #[expect(dead_code, reason = "counts for as long as it lives")] HeldDescriptor,
);

/// What a link's inode keeps in place of a target: the errno of reading it. Links of
/// procfs can be seen by everyone and read by few.
struct Unreadable(i32);

impl FileSystem for HostFs {
    fn name(&self) -> &str {
        "hostfs"
    }

    fn freshness(&self) -> Freshness {
        self.freshness
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        let seen = host::stat_fd(as_fd(&self.root))?;
        match sb.iget(seen.key)? {
            Iget::Cached(root) => Ok(root),
            Iget::New(new) => {
                let pin = open(sb, || host::duplicate(as_fd(&self.root)))?;
                Ok(new.init(InodeFill::new(seen.attr).private(Pinned(pin, sb.hold_descriptor()))))
            }
        }
    }

    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        for _ in 0..ATTEMPTS {
            match lookup_once(sb, dir, name)? {
                Round::Answer(found) => return Ok(found),
                Round::Again => {}
            }
        }
        Err(Error::Stale)
    }

    fn revalidate(
        &self,
        _sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        inode: Option<&Inode>,
    ) -> Result<bool> {
        match (host::stat_at(pinned(dir)?, name)?, inode) {
            (Some(seen), Some(inode)) if seen.is_still(inode) => {
                seen.publish(inode);
                Ok(true)
            }
            (found, cached) => Ok(found.is_none() && cached.is_none()),
        }
    }

    fn refresh(&self, _sb: &SuperBlock, inode: &Inode) -> Result<()> {
        // What holds no descriptor can only be asked for by name, by `revalidate`.
        if let Some(Pinned(dir, _)) = inode.private() {
            host::stat_fd(as_fd(dir))?.publish(inode);
        }
        Ok(())
    }

    fn read_link(&self, _sb: &SuperBlock, inode: &Inode) -> Result<Box<[u8]>> {
        // A link whose target could be read was given it then, and is not asked for.
        Err(match inode.private() {
            Some(Unreadable(errno)) => std::io::Error::from_raw_os_error(*errno).into(),
            None => Error::Invalid,
        })
    }

    fn read_dir(&self, sb: &SuperBlock, dir: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        let pin = pinned(dir)?;
        let open = open(sb, || host::open_dir(pin))?;
        listing::read(&open, from, emit)
    }

    fn open(&self, sb: &SuperBlock, at: &At<'_>) -> Result<Box<dyn FileHandle>> {
        match at.inode.kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsADirectory),
            FileType::Symlink => return Err(Error::TooManySymlinks),
            _ => return Err(Error::NoSuchDevice),
        }
        // Only a root has no name, and a root is a directory.
        let (dir, name) = at.parent.ok_or(Error::Stale)?;
        let dir_pin = pinned(dir)?;
        let file = open(sb, || host::open_file_at(dir_pin, name))?;
        if !host::stat_fd(as_fd(&file))?.is_still(at.inode) {
            return Err(Error::Stale);
        }
        Ok(Box::new(HostFile(file)))
    }
}

/// How one round of a lookup ended.
enum Round {
    Answer(Option<InodeRef>),
    /// The host changed under it.
    Again,
}

fn lookup_once(sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Round> {
    let dir_pin = pinned(dir)?;
    let Some(seen) = host::stat_at(dir_pin, name)? else {
        return Ok(Round::Answer(None));
    };
    match sb.iget(seen.key)? {
        Iget::Cached(inode) if seen.is_still(&inode) => {
            seen.publish(&inode);
            Ok(Round::Answer(Some(inode)))
        }
        Iget::Cached(inode) => {
            retire_if_replaced(sb, dir_pin, name, &inode)?;
            Ok(Round::Again)
        }
        Iget::New(new) => Ok(match read_in(sb, dir, name, seen)? {
            Some(fill) => Round::Answer(Some(new.init(fill))),
            // Dropping `new` sends its waiters to look for themselves (INODE-3).
            None => Round::Again,
        }),
    }
}

/// Takes `inode` out of the cache if the host now uses its number for another file.
#[cold]
fn retire_if_replaced(
    sb: &SuperBlock,
    dir: BorrowedFd<'_>,
    name: Name<'_>,
    inode: &InodeRef,
) -> Result<()> {
    // The first statx may be older than the cached inode, and the inode right. Of one
    // made now, with the inode at hand, only the newer file can be the result.
    if let Some(now) = host::stat_at(dir, name)?
        && now.key == inode.inode_key()
        && !now.is_still(inode)
    {
        sb.unhash(inode);
    }
    Ok(())
}

/// What a new inode starts with, or `None` if the name was given to another file.
fn read_in(sb: &SuperBlock, dir: &Inode, name: Name<'_>, seen: Seen) -> Result<Option<InodeFill>> {
    if !matches!(seen.attr.kind, FileType::Directory | FileType::Symlink) {
        return Ok(Some(InodeFill::new(seen.attr)));
    }
    let dir_pin = pinned(dir)?;
    let pin = match open(sb, || host::pin_at(dir_pin, name)) {
        Err(Error::NotFound) => return Ok(None),
        pin => pin?,
    };
    // From here on the descriptor is the truth, and the name may change as it likes.
    let held = host::stat_fd(as_fd(&pin))?;
    if held.key != seen.key || held.attr.kind != seen.attr.kind {
        return Ok(None);
    }
    let fill = InodeFill::new(held.attr);
    if held.attr.kind == FileType::Directory {
        return Ok(Some(fill.private(Pinned(pin, sb.hold_descriptor()))));
    }
    Ok(Some(match host::read_link(as_fd(&pin)) {
        Ok(target) => fill.link(target),
        // It can be looked at all the same, as with lstat(2).
        Err(err @ (Error::PermissionDenied | Error::NotFound)) => {
            fill.private(Unreadable(err.errno()))
        }
        Err(err) => return Err(err),
    }))
}

/// The descriptor that a directory's inode holds.
fn pinned(dir: &Inode) -> Result<BorrowedFd<'_>> {
    let Pinned(fd, _) = dir.private().ok_or(Error::NotADirectory)?;
    Ok(as_fd(fd))
}

/// Opens, with a second try after the caches have given descriptors back (MEM-1).
fn open<T>(sb: &SuperBlock, open: impl Fn() -> Result<T>) -> Result<T> {
    host::with_descriptors(
        || {
            sb.shrink();
        },
        open,
    )
}

/// A regular file, open for reading.
struct HostFile(OwnedFd);

impl FileHandle for HostFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        retry_on_intr(|| rustix::io::pread(&self.0, &mut *buf, offset)).map_err(host::err)
    }
}
