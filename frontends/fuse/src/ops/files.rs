//! Opening, reading and writing; directories.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use rcuwalk::inode::NodeId;
use rcuwalk::{Allocate, Context, Error, File, FileType, InodeFlags, OpenFlags, Result, VfsPath};

use super::names::bits;
use super::{Found, Ops, SET_IDS, as_daemon, at_place, name};
use crate::caller::Caller;
use crate::handles::{OpenFile, Opened};
use crate::interrupt;
use crate::listing::{Keeping, Listed, OpenDir};
use crate::nodes::NodeRef;
use crate::shares::Share;
use crate::through::{Backing, Way};

/// The start of an LSEEK.
pub(crate) enum Offset {
    Data(u64),
    Hole(u64),
}

/// A file that has just been opened.
pub(crate) struct NewOpen {
    pub(crate) handle: u64,
    /// The kernel must not hold written data back: the file can only be appended to.
    pub(crate) is_direct: bool,
    open: Arc<OpenFile>,
    node: NodeRef,
}

impl Ops {
    /// OPEN.
    pub(crate) fn open_file(&self, who: Caller, id: NodeId, flags: i32) -> Result<NewOpen> {
        let share = self.share(who)?;
        let node = self.nodes.get(id)?;
        let flags = open_flags(flags) - OpenFlags::CREATE - OpenFlags::EXCL;
        let file = at_place(&node, |place| {
            let open = |flags| self.open_place(who, place, flags);
            let more = self.back.flags(flags);
            match open(more) {
                // Only to append, or not to be read by the caller.
                Err(Error::NotPermitted | Error::PermissionDenied) if more != flags => {
                    self.open_for_kernel(open(flags)?, more)
                }
                opened => opened,
            }
        })?;
        Ok(self.keep(file, node, None, share))
    }

    fn open_place(&self, who: Caller, place: &VfsPath, flags: OpenFlags) -> Result<File> {
        let open = |ctx: &Context| self.vfs.open(ctx, ctx.cwd(), flags);
        let place = place.clone();
        // A host that sees the caller goes by the caller's capabilities at the open.
        match flags.contains(OpenFlags::WRITE) && place.attr().mode & SET_IDS != 0 {
            true => open(&Context::within(place, who.for_set_ids())),
            false => self.ask(who, place, 0, open),
        }
    }

    /// Opens once more, as the daemon, a file that its user may open as `opened` and not by
    /// `flags`, which the kernel needs. If the daemon may not either, parts of pages cannot be
    /// written.
    fn open_for_kernel(&self, opened: File, flags: OpenFlags) -> Result<File> {
        if opened.attr().flags.contains(InodeFlags::APPEND) {
            return Ok(opened);
        }
        let ctx = as_daemon(opened.path().clone());
        let more = self.vfs.open(&ctx, ctx.cwd(), flags - OpenFlags::TRUNC);
        Ok(more.unwrap_or(opened))
    }

    /// CREATE: makes the file if it is missing, and opens it.
    pub(crate) fn create(
        &self,
        who: Caller,
        (parent, of): (NodeId, &[u8]),
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Result<(Found<'_>, NewOpen)> {
        self.make_room()?;
        let share = self.share(who)?;
        let (dir, of) = (self.place(parent)?, name(of)?);
        let asked = open_flags(flags);
        let mut flags = self.back.flags(asked) | OpenFlags::CREATE | OpenFlags::NOFOLLOW;
        // The kernel has checked that the caller may make a file, not that it may open this
        // one.
        flags.set(
            OpenFlags::EXCL,
            asked.contains(OpenFlags::EXCL) || who.is_checked,
        );
        let file = self.ask(who, dir, umask, |ctx| {
            match self.vfs.open(ctx, of, flags.mode(bits(mode))) {
                // A link by now, which only the kernel follows: it looks the name up again.
                Err(Error::TooManySymlinks) => Err(Error::Stale),
                // A file by now, whose permissions only the kernel checks.
                Err(Error::Exists) if !asked.contains(OpenFlags::EXCL) => Err(Error::Stale),
                opened => opened,
            }
        });
        let made = file.and_then(|file| Ok((self.made(file.path())?, file)));
        let (found, file) = self.changed_names(&[(parent, of)], made)?;
        let node = found.entry.known().clone();
        // The size of a file that existed before says nothing.
        let made_by = (found.attr_reply.attr.size == 0).then_some(who.pid);
        Ok((found, self.keep(file, node, made_by, share)))
    }

    /// TMPFILE: makes a file without a name, and opens it. LINK may give it one.
    #[doc(alias = "O_TMPFILE")]
    pub(crate) fn tmpfile(
        &self,
        who: Caller,
        dir: NodeId,
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Result<(Found<'_>, NewOpen)> {
        self.make_room()?;
        let share = self.share(who)?;
        let dir = self.place(dir)?;
        let flags = self.back.flags(open_flags(flags));
        let flags = (flags | OpenFlags::TMPFILE) - OpenFlags::CREATE;
        let file = self.ask(who, dir, umask, |ctx| {
            self.vfs.open(ctx, ctx.cwd(), flags.mode(bits(mode)))
        })?;
        let found = self.made(file.path())?;
        let node = found.entry.known().clone();
        Ok((found, self.keep(file, node, Some(who.pid), share)))
    }

    /// Decides how the contents are read and written, before the kernel is told that the file
    /// is open: in the way of earlier opens, if there are any. Otherwise by the kernel itself,
    /// if `register` can register the host's file.
    pub(crate) fn settle(
        &self,
        new: &NewOpen,
        register: impl FnOnce(BorrowedFd<'_>) -> io::Result<Backing>,
    ) -> Arc<Way> {
        let NewOpen { open, node, .. } = new;
        let way = node.ways().agree(|| {
            let host = open.file.backing().filter(|_| self.offer.stands());
            let expects_little = |pid| self.guess.is_small(pid);
            match host {
                Some(_) if open.made_by.is_some_and(expects_little) => Way::ByRequest,
                // Only requests tell whether the writer may keep these bits.
                Some(host) if open.file.attr().mode & SET_IDS == 0 => {
                    self.offer.way(host, register)
                }
                _ => Way::ByRequest,
            }
        });
        let _ = open.way.set(way.clone());
        if node.is_through()
            && open.made_by.is_none()
            && open.file.flags().contains(OpenFlags::WRITE)
        {
            // No report tells of writes to a mapping.
            self.pushed.changed(node.id());
        }
        way
    }

    /// READ: fills `data`, since less means the end of the file. Returns the number of bytes
    /// read.
    pub(crate) fn read_into(
        &self,
        who: Caller,
        handle: u64,
        offset: u64,
        data: &mut [u8],
    ) -> Result<usize> {
        let open = self.handles.file(handle)?;
        let mut read = 0;
        while read < data.len() {
            // A short answer would mark the end of the file, for all readers of the kernel's
            // cache: so return all of it, or an error because no caller is left to see it.
            if !interrupt::is_wanted() && who.is_being_killed() {
                return Err(interrupt::interrupted());
            }
            match open.file.read_at(&mut data[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(err) if read == 0 => return Err(err),
                // The bytes read so far are right; the next request is about the rest.
                Err(_) => break,
            }
        }
        Ok(read)
    }

    /// WRITE. With `is_cached` it writes a page back: to its own offset, also if the handle
    /// appends, and without a caller, so set-id bits stay.
    pub(crate) fn write(
        &self,
        who: Caller,
        (id, handle): (NodeId, u64),
        offset: u64,
        data: &[u8],
        is_cached: bool,
    ) -> Result<u32> {
        let open = self.handles.file(handle)?;
        if !is_cached {
            let user = self.user(who, &open.file);
            let write = |at, rest: &[u8]| match &user {
                Some(ctx) => open.file.as_user(ctx).write_at(rest, offset + at),
                None => open.file.write_at(rest, offset + at),
            };
            return self.room.ask(|| write_all(who, data, write));
        }
        let ctx = as_daemon(self.place(id)?);
        let anew = match open.file.flags().contains(OpenFlags::APPEND) {
            true => Some(self.vfs.open(&ctx, ctx.cwd(), OpenFlags::WRITE)?),
            false => None,
        };
        let file = anew.as_ref().unwrap_or(&open.file);
        self.room.ask(|| {
            write_all(who, data, |at, rest| {
                file.as_user(&ctx).write_at(rest, offset + at)
            })
        })
    }

    /// Returns the context of the caller for a change of a file that another user may have
    /// opened, if the caller matters: for the set-id bits that a change of the contents clears.
    pub(super) fn user(&self, who: Caller, file: &File) -> Option<Context> {
        let has_set_ids = file.attr().mode & SET_IDS != 0;
        has_set_ids.then(|| Context::within(file.path().clone(), who.for_set_ids()))
    }

    /// COPY_FILE_RANGE. May copy less than `len`: the kernel asks again for the rest.
    pub(crate) fn copy_file_range(
        &self,
        who: Caller,
        (handle, offset): (u64, u64),
        (to, to_offset): (u64, u64),
        len: u64,
    ) -> Result<u32> {
        let (from, to) = (self.handles.file(handle)?, self.handles.file(to)?);
        let len = len.min(MOST_COPIED);
        for open in [&from, &to] {
            if open.is_passing() {
                // The file may be longer by now.
                open.file.stat()?;
            }
        }
        let (from, to) = (&from.file, &to.file);
        // Within one file, only the whole range shows an overlap.
        let is_one = std::ptr::eq(from.path().inode(), to.path().inode());
        let piece = if is_one { len } else { COPIED_AT_ONCE };
        let mut copied = 0;
        while copied == 0 || copied < len {
            // Only after the first piece: with nothing copied, a signal would become an error.
            if copied > 0 && !interrupt::is_wanted() {
                break;
            }
            let (at, to_at) = (
                offset.saturating_add(copied),
                to_offset.saturating_add(copied),
            );
            let piece = piece.min(len - copied);
            let done = match self.user(who, to) {
                Some(ctx) => from.as_user(&ctx).copy_file_range(at, to, to_at, piece),
                None => from.copy_file_range(at, to, to_at, piece),
            };
            match done {
                Ok(0) => break,
                Ok(more) => copied += more,
                Err(err) if copied == 0 => return Err(err),
                Err(_) => break,
            }
        }
        u32::try_from(copied).map_err(|_| Error::Overflow)
    }

    /// FSYNC.
    pub(crate) fn fsync(&self, handle: u64, data_only: bool) -> Result<()> {
        self.handles.file(handle)?.file.sync(data_only)
    }

    /// FALLOCATE.
    pub(crate) fn fallocate(
        &self,
        who: Caller,
        handle: u64,
        (offset, len): (u64, u64),
        mode: i32,
    ) -> Result<()> {
        let how = u32::try_from(mode).ok().and_then(Allocate::from_bits);
        let how = how.ok_or(Error::NotSupported)?;
        let open = self.handles.file(handle)?;
        let user = self.user(who, &open.file);
        self.room.ask(|| match &user {
            Some(ctx) => open.file.as_user(ctx).allocate(how, offset, len),
            None => open.file.allocate(how, offset, len),
        })
    }

    /// LSEEK to data or to a hole; the kernel handles the rest.
    pub(crate) fn lseek(&self, handle: u64, to: &Offset) -> Result<u64> {
        let open = self.handles.file(handle)?;
        if open.is_passing() {
            // The file may be longer by now.
            open.file.stat()?;
        }
        match *to {
            Offset::Data(from) => open.file.seek_data(from),
            Offset::Hole(from) => open.file.seek_hole(from),
        }
    }

    /// OPENDIR: returns the handle, and whether the kernel may keep the listing.
    pub(crate) fn open_dir(&self, who: Caller, id: NodeId) -> Result<(u64, Keeping)> {
        let share = self.share(who)?;
        let node = self.nodes.get(id)?;
        let place = node.place();
        if place.inode().kind() != FileType::Directory {
            return Err(Error::NotADirectory);
        }
        let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
        let open = |ctx: &Context| self.vfs.open(ctx, ctx.cwd(), flags);
        let file = self.ask(who, place, 0, open)?;
        let (dir, keeping) = OpenDir::new(file, node, share);
        Ok((self.handles.add(Opened::Dir(Arc::new(dir))), keeping))
    }

    /// READDIR.
    pub(crate) fn list(
        &self,
        handle: u64,
        position: u64,
        mut take: impl FnMut(&Listed<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let dir = self.handles.dir(handle)?;
        let done = dir.list(position, |listed| Ok(take(&listed)));
        self.ahead.listed(&dir);
        done
    }

    /// READDIRPLUS: each entry with the answer to its LOOKUP, which counts as sent if `take`
    /// takes it. `.` and `..` go without, and so does an entry that cannot be looked up
    /// (another user's FUSE mount, say): it is still listed.
    pub(crate) fn readdirplus(
        &self,
        handle: u64,
        position: u64,
        mut take: impl FnMut(&Listed<'_>, Option<&Found<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.slow_down();
        let dir = self.handles.dir(handle)?;
        let done = dir.list(position, |listed| {
            if listed.is_dot {
                return Ok(take(&listed, None));
            }
            let found = match self.lookup_listed(dir.file.path(), listed.name) {
                Ok(found) => found,
                Err(err) if is_of_the_entry(&err) => return Ok(take(&listed, None)),
                Err(err) => return Err(err),
            };
            let taken = take(&listed, Some(&found));
            if taken.is_continue() {
                found.entry.sent();
            }
            Ok(taken)
        });
        self.ahead.listed(&dir);
        done
    }

    /// Reads ahead after an answer to READDIR or READDIRPLUS.
    pub(crate) fn read_ahead(&self, handle: u64) {
        if let Ok(dir) = self.handles.dir(handle) {
            dir.read_ahead();
        }
    }

    /// The attributes of an open directory.
    pub(crate) fn dir_attr(&self, handle: u64) -> Result<rcuwalk::Attr> {
        Ok(self.handles.dir(handle)?.attr())
    }

    /// FSYNCDIR.
    pub(crate) fn fsyncdir(&self, handle: u64, data_only: bool) -> Result<()> {
        self.handles.dir(handle)?.file.sync(data_only)
    }

    /// RELEASE and RELEASEDIR.
    pub(crate) fn release(&self, handle: u64) -> Result<()> {
        let closed = self.handles.release(handle)?;
        let Opened::File(open) = &closed else {
            return Ok(());
        };
        if open.file.attr().nlink == 0 {
            self.room.will_come();
        }
        if open.is_passing() && open.file.flags().contains(OpenFlags::WRITE) {
            // Updates the cached size and times. On failure, they are read when they expire.
            let _ = open.file.stat();
        }
        if let Some(pid) = open.made_by {
            self.guess.closed(pid, open.file.attr().size);
        }
        Ok(())
    }

    /// Takes a share for the caller, before the open.
    ///
    /// # Errors
    /// `ENFILE` if the user has too many files open, or all users have: not `EMFILE`, because
    /// the caller's own limit is another one.
    fn share(&self, who: Caller) -> Result<Share> {
        let share = self.opened.share(who.user());
        share.ok_or_else(|| Error::io(io::Error::from_raw_os_error(libc::ENFILE)))
    }

    fn keep(&self, file: File, node: NodeRef, made_by: Option<u32>, share: Share) -> NewOpen {
        // Open files of a back end without descriptors are not limited.
        let counts = self.limits_all_files || file.holds_descriptor();
        let share = counts.then_some(share);
        let is_direct = self.back.is_on() && file.flags().contains(OpenFlags::APPEND);
        let open = Arc::new(OpenFile {
            file,
            made_by,
            _share: share,
            way: OnceLock::new(),
        });
        node.opened(&open);
        NewOpen {
            handle: self.handles.add(Opened::File(open.clone())),
            is_direct,
            open,
            node,
        }
    }
}

impl OpenFile {
    /// True if the kernel reads and writes the file by itself.
    fn is_passing(&self) -> bool {
        self.way.get().is_some_and(|way| way.is_through())
    }
}

/// Most bytes copied for one request, and copied between two checks for an interrupt.
const MOST_COPIED: u64 = 128 << 20;
const COPIED_AT_ONCE: u64 = 16 << 20;

/// Writes until all of `data` is written; `write` gets its offset, and the rest of the data.
/// Stops early only if the caller is being killed: any other signal waits for a write to a
/// file.
#[doc(alias("generic_perform_write", "fatal_signal_pending"))]
fn write_all(who: Caller, data: &[u8], write: impl Fn(u64, &[u8]) -> Result<usize>) -> Result<u32> {
    let mut written = 0;
    while written < data.len() {
        if !interrupt::is_wanted() && who.is_being_killed() {
            match written {
                0 => return Err(interrupt::interrupted()),
                _ => break,
            }
        }
        match write(written as u64, &data[written..]) {
            Ok(0) => break,
            Ok(more) => written += more,
            Err(err) if written == 0 => return Err(err),
            Err(_) => break,
        }
    }
    u32::try_from(written).map_err(|_| Error::Overflow)
}

/// True if this one entry cannot be looked up; false if no entry can be just now, or if it has
/// been removed, which is not listed.
fn is_of_the_entry(err: &Error) -> bool {
    const OF_ALL: [i32; 4] = [libc::ENOENT, libc::EINTR, libc::EMFILE, libc::ENOMEM];
    !OF_ALL.contains(&err.errno())
}

/// Converts the flags of open(2). The kernel has handled the flags that are missing here.
fn open_flags(flags: i32) -> OpenFlags {
    let mut open = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => OpenFlags::WRITE,
        libc::O_RDWR => OpenFlags::READ | OpenFlags::WRITE,
        // Neither reading nor writing, only ioctl(2), which needs both rights.
        libc::O_ACCMODE => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::READ,
    };
    for (theirs, ours) in [
        (libc::O_APPEND, OpenFlags::APPEND),
        (libc::O_CREAT, OpenFlags::CREATE),
        (libc::O_EXCL, OpenFlags::EXCL),
        (libc::O_TRUNC, OpenFlags::TRUNC),
        (libc::O_NOATIME, OpenFlags::NOATIME),
        (libc::O_SYNC, OpenFlags::SYNC),
        (libc::O_DSYNC, OpenFlags::DSYNC),
    ] {
        open.set(ours, flags & theirs == theirs);
    }
    open.set(OpenFlags::EXEC, flags & FMODE_EXEC != 0);
    open
}

/// Set by the kernel where execve(2) opens a program; open(2) has no such flag.
const FMODE_EXEC: i32 = 0x20;
