//! Open files: contents by position, space, holes, and syncing.
//!
//! A file is opened again by directory and name, and the opened file is compared with the one
//! that was looked up. From then on the descriptor is the file: it may lose its names, and
//! lives on.
//!
//! A change of the contents is followed by a statx(2): size, blocks and times are the host's,
//! whichever processes write to the file. That is a few hundred nanoseconds on top of a
//! pwrite(2) that takes a microsecond or more.

use std::any::Any;

use rcuwalk::{
    Allocate, At, Caller, Credentials, Error, FileHandle, FileType, Inode, Name, OpenFlags, Result,
    SeekTo,
};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

use crate::actor::as_caller;
use crate::dirs::Pin;
use crate::handles;
use crate::host::held::Held;
use crate::host::{self, as_fd};
use crate::identity::Stat;
use crate::opened::Opened;
use crate::pin::{
    Nameless, as_decided, decides, hold, known, open_file, pinned, publish_contents, refresh_held,
    set_ids, strips,
};
use crate::{Actor, HostFs, procfs};

/// A regular file, open.
pub(crate) struct HostFile {
    pub(crate) fd: Opened,
    /// It can be truncated.
    pub(crate) writable: bool,
    /// The credentials for writes, if not this process's: the host checks a user's quota and
    /// the reserve for root against them.
    opener: Option<Credentials>,
    /// A file of procfs: its contents depend on the reader.
    reads_as_opener: bool,
    /// The host reports other processes' changes, and published attributes have to hold until
    /// then.
    watched: bool,
    /// Changes of the contents take set-id bits away, which the host leaves to us.
    strips: bool,
}

impl HostFile {
    /// `fd` holds the file that `inode` is.
    pub(crate) fn new(
        fs: &HostFs,
        by: &Caller<'_>,
        inode: &Inode,
        fd: OwnedFd,
        flags: OpenFlags,
    ) -> HostFile {
        HostFile {
            fd: Opened::new(&fs.opened, inode, fd),
            writable: flags.contains(OpenFlags::WRITE),
            watched: fs.is_watched(),
            strips: strips(fs, by),
            reads_as_opener: false,
            opener: (fs.actor == Actor::Caller).then(|| by.credentials.clone()),
        }
    }

    /// Changes the contents, and tells the inode.
    fn change<T>(&self, inode: &Inode, ask: impl FnMut() -> rustix::io::Result<T>) -> Result<T> {
        let ask = || retry_on_intr(ask).map_err(host::err);
        // The writer may be another user than the opener, and be allowed to keep set-id bits: the
        // VFS has left those that it knows of.
        let keeps = set_ids(inode.attr().mode) != 0;
        let done = match &self.opener {
            None => ask(),
            Some(opener) => as_caller(opener, ask),
        };
        let held = Held::open(self.fd.fd());
        let strip = self.strips && !keeps && done.is_ok();
        publish_contents(&held, inode, self.watched, strip);
        done
    }
}

/// Opens a regular file with the access in `flags`.
pub(crate) fn open(
    fs: &HostFs,
    by: &Caller<'_>,
    at: &At<'_>,
    flags: OpenFlags,
) -> Result<Box<dyn FileHandle>> {
    match at.inode.kind() {
        FileType::Regular => {}
        FileType::Directory => return Err(Error::IsADirectory),
        FileType::Symlink => return Err(Error::TooManySymlinks),
        _ => return Err(Error::NoSuchDevice),
    }
    let (caller, daemon) = (by, Credentials::root());
    let by = match flags.contains(OpenFlags::EXEC) {
        // The caller may execute it, and open(2) asks for the right to read it.
        true => &Caller::new(by.sb, &daemon),
        false => by,
    };
    let (file, stat) = open_regular(fs, by, at, access(flags))?;
    // To be executed, it is opened as the daemon in any case.
    if decides(fs, caller) || flags.contains(OpenFlags::EXEC) {
        let held = Held::open(as_fd(&file));
        let stat = stat.map_or_else(|| host::stat_fd(held.fd()), Ok)?;
        as_decided(fs, &held, &stat, at.inode)?;
    }
    if !procfs::is_on_procfs(at.inode.inode_key(), as_fd(&file))
        || !procfs::is_asked_as(by.credentials)?
    {
        return Ok(Box::new(HostFile::new(fs, by, at.inode, file, flags)));
    }
    if procfs::is_about_this_process(as_fd(&file)) {
        return Err(Error::PermissionDenied);
    }
    let again = || Held::open(as_fd(&file)).reopen(access(flags));
    let file = as_caller(by.credentials, || fs.dirs.open(again))?;
    Ok(Box::new(HostFile {
        opener: Some(by.credentials.clone()),
        reads_as_opener: true,
        ..HostFile::new(fs, by, at.inode, file, flags)
    }))
}

/// Opens the regular file that `at` means; also returns the attributes, if they had to be asked
/// for.
pub(crate) fn open_regular(
    fs: &HostFs,
    by: &Caller<'_>,
    at: &At<'_>,
    access: OFlags,
) -> Result<(OwnedFd, Option<Stat>)> {
    if let Some(Nameless(fd, _)) = at.inode.private() {
        return Ok((open_nameless(fs, fd, access)?, None));
    }
    if let Some(open) = open_file(at) {
        let held = Held::open(open.fd.fd());
        let file = fs.dirs.open(|| fs.act(by, || held.reopen(access)))?;
        return Ok((file, None));
    }
    let Some((dir, name)) = at.parent else {
        let held = handles::without_name(fs, by.sb, at.inode)?;
        let file = fs.dirs.open(|| fs.act(by, || held.reopen(access)))?;
        return Ok((file, None));
    };
    let dir = pinned(by.sb, dir)?;
    if fs.opens_held {
        return Ok((open_held(fs, by, at, (&dir, name), access)?, None));
    }
    let file = fs
        .dirs
        .open(|| fs.act(by, || host::open_file_at(dir.fd(), name, access)))?;
    let stat = host::stat_fd(as_fd(&file))?;
    if !stat.is_still(at.inode) {
        return Err(Error::Stale);
    }
    Ok((file, Some(stat)))
}

/// Opens what `name` stands for once it is known to be the regular file that `at` means
/// ([`HostFs::opening_held_files`]).
fn open_held(
    fs: &HostFs,
    by: &Caller<'_>,
    at: &At<'_>,
    (dir, name): (&Pin, Name<'_>),
    access: OFlags,
) -> Result<OwnedFd> {
    let pin = match fs.dirs.open(|| host::pin_at(dir.fd(), name)) {
        Err(Error::NotFound) => return Err(Error::Stale),
        pin => pin?,
    };
    let stat = host::stat_fd(as_fd(&pin))?;
    if stat.attr.kind != FileType::Regular || !stat.is_still(at.inode) {
        return Err(Error::Stale);
    }
    let held = Held::pinned(pin);
    match fs.dirs.open(|| fs.act(by, || held.reopen(access))) {
        // A lease, as in `open_file_at`.
        Err(Error::WouldBlock) => Err(Error::Busy),
        opened => opened,
    }
}

/// Opens a file that has no name. Its maker may open it for any access, whatever its mode; so
/// the daemon opens it. Where the mode stops the daemon too, the descriptor that is open
/// already is duplicated.
fn open_nameless(fs: &HostFs, fd: &OwnedFd, access: OFlags) -> Result<OwnedFd> {
    let dirs = &fs.dirs;
    match dirs.open(|| Held::open(as_fd(fd)).reopen(access)) {
        Err(Error::PermissionDenied | Error::NotSupported)
            if access.difference(OFlags::RWMODE).is_empty() =>
        {
            dirs.open(|| host::duplicate(as_fd(fd)))
        }
        opened => opened,
    }
}

/// A file opened with `PATH`: it is kept after its last name, and no other file gets its
/// number.
enum HeldPlace {
    File(#[expect(dead_code, reason = "holds for as long as it lives")] Opened),
    Directory(#[expect(dead_code, reason = "holds for as long as it lives")] Pin),
}

impl FileHandle for HeldPlace {
    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> Result<usize> {
        Err(Error::BadDescriptor)
    }
}

/// Holds a file for `PATH`, unless its inode holds it for good.
pub(crate) fn open_place(
    fs: &HostFs,
    by: &Caller<'_>,
    at: &At<'_>,
) -> Result<Option<Box<dyn FileHandle>>> {
    if at.inode.private::<Nameless>().is_some() {
        return Ok(None);
    }
    if let Some(dir) = known(at.inode) {
        return Ok(Some(Box::new(HeldPlace::Directory(dir.pin(by.sb)?))));
    }
    let fd = Opened::held(&fs.opened, at.inode, hold(fs, by, at)?)?;
    Ok(Some(held_place(fd)))
}

/// The handle of a file that is held by `fd`.
pub(crate) fn held_place(fd: Opened) -> Box<dyn FileHandle> {
    Box::new(HeldPlace::File(fd))
}

/// The host's words for `flags`.
pub(crate) fn access(flags: OpenFlags) -> OFlags {
    let mut access = match (
        flags.contains(OpenFlags::READ),
        flags.contains(OpenFlags::WRITE),
    ) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    access.set(OFlags::APPEND, flags.contains(OpenFlags::APPEND));
    if flags.contains(OpenFlags::DSYNC) {
        access |= OFlags::DSYNC;
    }
    if flags.contains(OpenFlags::SYNC) {
        access |= OFlags::SYNC;
    }
    access
}

impl FileHandle for HostFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut read = || {
            retry_on_intr(|| rustix::io::pread(self.fd.fd(), &mut *buf, offset)).map_err(host::err)
        };
        match &self.opener {
            Some(opener) if self.reads_as_opener => as_caller(opener, read),
            _ => read(),
        }
    }

    fn write_at(&self, inode: &Inode, buf: &[u8], offset: u64) -> Result<usize> {
        if buf.is_empty() {
            // Nothing changes, but the host may refuse it.
            let write = || rustix::io::pwrite(self.fd.fd(), buf, offset);
            return retry_on_intr(write).map_err(host::err);
        }
        // Linux ignores `offset` on a file that was opened to append: so data that other
        // processes on the host have appended meanwhile is not overwritten.
        self.change(inode, || rustix::io::pwrite(self.fd.fd(), buf, offset))
    }

    fn copy_range(
        &self,
        inode: &Inode,
        mut offset: u64,
        from: &dyn FileHandle,
        mut from_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let from: &dyn Any = from;
        let Some(from) = from.downcast_ref::<HostFile>() else {
            return Err(Error::NotSupported);
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut by_hand = false;
        let copied = self.change(inode, || {
            let (from, to) = (from.fd.fd(), self.fd.fd());
            let from = (from, Some(&mut from_offset));
            match rustix::fs::copy_file_range(from.0, from.1, to, Some(&mut offset), len) {
                // Two file systems of the host, or one that does not copy.
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    by_hand = true;
                    Ok(0)
                }
                done => done,
            }
        })?;
        match by_hand {
            true => Err(Error::NotSupported),
            false => Ok(copied as u64),
        }
    }

    fn allocate(&self, inode: &Inode, how: Allocate, offset: u64, len: u64) -> Result<()> {
        let how = FallocateFlags::from_bits_retain(how.bits());
        self.change(inode, || {
            rustix::fs::fallocate(self.fd.fd(), how, offset, len)
        })
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        // It moves the descriptor's own position, which nothing here reads.
        let to = match to {
            SeekTo::Data => SeekFrom::Data(offset),
            SeekTo::Hole => SeekFrom::Hole(offset),
        };
        match rustix::fs::seek(self.fd.fd(), to) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL) => Err(Error::NotSupported),
            Err(errno) => Err(host::err(errno)),
        }
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        host::held::sync(self.fd.fd(), data_only)
    }

    /// None where the host has to see the opener's credentials: by this descriptor it would see
    /// another user.
    fn backing(&self) -> Option<BorrowedFd<'_>> {
        self.opener.is_none().then(|| self.fd.fd())
    }

    fn holds_descriptor(&self) -> bool {
        true
    }

    fn refresh(&self, inode: &Inode) -> Result<()> {
        refresh_held(&Held::open(self.fd.fd()), inode, self.watched)
    }
}
