//! Looks up, makes, links, moves and removes names.

use rcuwalk::inode::NodeId;
use rcuwalk::{
    Caps, Context, Error, FileType, LookupFlags, OpenFlags, OpenHow, RenameFlags, Result, VfsPath,
};

use super::{Found, Ops, as_daemon, at_place, name};
use crate::caller::Caller;
use crate::removed::HeldFile;

/// Flags for lookups that the kernel requests. The kernel has not cached the name, or no
/// longer, and mostly it is not cached here either: a walk without references would fail. A
/// cached name costs little more with references, in a directory that is held.
const UNKNOWN: LookupFlags = LookupFlags::REF_WALK;

impl Ops {
    /// LOOKUP.
    pub(crate) fn lookup(&self, who: Caller, parent: NodeId, of: &[u8]) -> Result<Found<'_>> {
        self.slow_down();
        match of {
            b"." => return self.lookup_itself(parent),
            b".." => return self.lookup_above(parent),
            _ => {}
        }
        let (dir, of) = (self.place(parent)?, name(of)?);
        let mut tries = 8;
        loop {
            let ask = |ctx: &Context| self.vfs.lookup(ctx, of, UNKNOWN);
            let path = self.ask(who, dir.clone(), 0, ask)?;
            let found = self.found(&path)?;
            // HOLD-1: otherwise the name stands for something else now.
            if self.nodes.is_still_named(&path) || tries == 0 {
                return Ok(found);
            }
            tries -= 1;
        }
    }

    /// The LOOKUP in a READDIRPLUS: for the kernel, not for its caller, because a caller may
    /// list a directory without search permission.
    pub(super) fn lookup_listed(&self, dir: &VfsPath, of: &[u8]) -> Result<Found<'_>> {
        let ctx = as_daemon(dir.clone());
        let path = self.vfs.lookup(&ctx, name(of)?, UNKNOWN)?;
        self.found(&path)
    }

    /// MKDIR.
    pub(crate) fn mkdir(
        &self,
        who: Caller,
        (parent, of): (NodeId, &[u8]),
        mode: u32,
        umask: u32,
    ) -> Result<Found<'_>> {
        self.make(who, (parent, of), umask, |ctx| {
            self.vfs.mkdir(ctx, of, bits(mode))
        })
    }

    /// MKNOD, of regular files as well.
    pub(crate) fn mknod(
        &self,
        who: Caller,
        (parent, of): (NodeId, &[u8]),
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Found<'_>> {
        // Below 2^32, the C library's device numbers are the kernel's.
        let rdev = u64::from(rdev);
        let kind = FileType::from_mode(mode).ok_or(Error::Invalid)?;
        self.make(who, (parent, of), umask, |ctx| {
            self.vfs.mknod(ctx, of, kind, bits(mode), rdev)
        })
    }

    /// SYMLINK.
    pub(crate) fn symlink(
        &self,
        who: Caller,
        (parent, of): (NodeId, &[u8]),
        target: &[u8],
    ) -> Result<Found<'_>> {
        self.make(who, (parent, of), 0, |ctx| {
            self.vfs.symlink(ctx, target, of)
        })
    }

    /// LINK.
    pub(crate) fn link(
        &self,
        who: Caller,
        id: NodeId,
        (parent, of): (NodeId, &[u8]),
    ) -> Result<Found<'_>> {
        let file = self.nodes.get(id)?;
        self.make(who, (parent, of), 0, |ctx| {
            // The kernel has found the file by a name, and has checked the permissions. Linking
            // a held file needs this capability, whatever the caller has.
            let mut credentials = ctx.credentials().clone();
            credentials.caps |= Caps::DAC_READ_SEARCH;
            let ctx = ctx.clone().with_credentials(credentials);
            at_place(&file, |file| self.vfs.link(&ctx, file, of))
        })
    }

    /// UNLINK.
    pub(crate) fn unlink(&self, who: Caller, parent: NodeId, of: &[u8]) -> Result<()> {
        let (dir, of) = (self.place(parent)?, name(of)?);
        // HOLD-1: the removed file stays open, unless the user has reached the bound.
        let share = self.removed.share(who.user());
        let file = self.ask(who, dir, 0, |ctx| match share {
            Some(_) => match self.vfs.unlink_open(ctx, of) {
                // Nor can it stay open where there is no descriptor left.
                Err(Error::TooManyOpenFiles) => self.vfs.unlink(ctx, of).map(|()| None),
                removed => removed.map(Some),
            },
            None => self.vfs.unlink(ctx, of).map(|()| None),
        });
        let file = self.changed_names(&[(parent, of)], file)?;
        self.room.will_come();
        let held = file.zip(share);
        self.has_lost_a_name(held.map(|(file, _share)| HeldFile { file, _share }));
        Ok(())
    }

    /// RMDIR.
    pub(crate) fn rmdir(&self, who: Caller, parent: NodeId, of: &[u8]) -> Result<()> {
        let (dir, of) = (self.place(parent)?, name(of)?);
        let done = self.ask(who, dir, 0, |ctx| self.vfs.rmdir(ctx, of));
        self.changed_names(&[(parent, of)], done)?;
        self.room.will_come();
        Ok(())
    }

    /// RENAME and RENAME2.
    pub(crate) fn rename(
        &self,
        who: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Result<()> {
        let ((old_dir, old), (new_dir, new)) = (from, to);
        let (old_dir, new_dir) = (self.place(old_dir)?, self.place(new_dir)?);
        let (old, new) = (name(old)?, name(new)?);
        let flags = RenameFlags::from_bits(flags).ok_or(Error::Invalid)?;
        let replaces = !flags.intersects(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE);
        let held = replaces.then(|| self.hold(who, &new_dir, new)).flatten();
        let done = self.ask(who, old_dir, 0, |ctx| {
            // Neither directory is below the other; both names are single components.
            let ctx = ctx.clone().with_root(self.vfs.root());
            let old = (ctx.cwd(), old);
            self.vfs.renameat2(&ctx, old, (&new_dir, new), flags)
        });
        self.changed_names(&[from, to], done)?;
        if self.pushed.is_prompt() {
            self.has_moved(&new_dir, new);
        }
        if replaces {
            self.room.will_come();
        }
        self.has_lost_a_name(held);
        Ok(())
    }

    /// A file has just been moved to this name: its time of change is another.
    fn has_moved(&self, dir: &VfsPath, of: &[u8]) {
        let moved = self
            .vfs
            .lookup(&as_daemon(dir.clone()), of, LookupFlags::CACHED);
        if let Some(node) = moved.ok().and_then(|moved| self.nodes.id_of(&moved)) {
            self.pushed.changed(node);
        }
    }

    /// Opens the place of the file that `who` is about to take a name from (HOLD-1). `None` for
    /// a directory, which the back end keeps by itself, for a missing name, and at the bound.
    fn hold(&self, who: Caller, dir: &VfsPath, of: &[u8]) -> Option<HeldFile> {
        let share = self.removed.share(who.user())?;
        let how = OpenHow::from(OpenFlags::PATH | OpenFlags::NOFOLLOW);
        let file = self.vfs.open(&as_daemon(dir.clone()), of, how).ok()?;
        let is_directory = file.path().inode().kind() == FileType::Directory;
        (!is_directory).then_some(HeldFile {
            file,
            _share: share,
        })
    }

    fn has_lost_a_name(&self, held: Option<HeldFile>) {
        if let Some(held) = held {
            self.nodes.has_lost_a_name(held);
        }
    }

    /// Returns a name that the kernel may be asked to drop: of a known node that is no
    /// directory and not open.
    pub(crate) fn droppable_name(&self, id: NodeId) -> Option<KnownName> {
        let node = self.nodes.peek(id)?;
        let is_directory = node.place().inode().kind() == FileType::Directory;
        if is_directory || node.open_file().is_some() {
            return None;
        }
        self.name_of(id)
    }

    /// Returns a name of a known node, in a directory that the kernel knows.
    pub(crate) fn name_of(&self, id: NodeId) -> Option<KnownName> {
        let place = self.nodes.peek(id)?.place();
        let root = as_daemon(self.vfs.root());
        let path = self.vfs.path_of(&root, &place).ok()?;
        let slash = path.iter().rposition(|byte| *byte == b'/')?;
        let parent = &path[..slash.max(1)];
        let parent = self.vfs.lookup(&root, parent, LookupFlags::default());
        let parent = self.nodes.id_of(&parent.ok()?)?;
        Some(KnownName {
            parent,
            path,
            slash,
        })
    }

    /// Makes a name. The answer is the place that was made, whatever has the name by now.
    fn make(
        &self,
        who: Caller,
        (parent, of): (NodeId, &[u8]),
        umask: u32,
        make: impl Fn(&Context) -> Result<VfsPath>,
    ) -> Result<Found<'_>> {
        self.make_room()?;
        let dir = self.place(parent)?;
        name(of)?;
        let made = self.ask(who, dir, umask, make);
        let found = made.and_then(|made| self.made(&made));
        self.changed_names(&[(parent, of)], found)
    }
}

/// See [`Ops::name_of`].
pub(crate) struct KnownName {
    /// The node id of the directory.
    pub(crate) parent: NodeId,
    /// The path from the root of the tree.
    pub(crate) path: Box<[u8]>,
    /// The index of the slash before the name.
    slash: usize,
}

impl KnownName {
    /// The last component.
    pub(crate) fn name(&self) -> &[u8] {
        &self.path[self.slash + 1..]
    }
}

/// Permission bits.
pub(super) fn bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}
