//! Changes of the namespace: making, linking, removing and renaming.
//!
//! Every change resolves the directory, takes its lock exclusively, finds the last
//! name under it, lets the back end do the work, and then brings the cache in line.
//! Walks go on meanwhile: none of their hits takes that lock.
//!
//! LOCK-1, for two directories: under the super block's rename mutex the ancestor
//! is locked first, else by address; what is to lose or get a name is locked last,
//! so that its link count and its end are one change.

use rcuwalk_sync::lock::WriteGuard;

use crate::attr::FileType;
use crate::context::{Context, VfsPath};
use crate::dentry::{DentryRef, Flags};
use crate::error::{Error, Result};
use crate::filesystem::NewFile;
use crate::inode::{DEAD_DIR, InodeRef, Listed};
use crate::name::Name;
use crate::permission::{Access, Caps};
use crate::super_block::SuperBlock;
use crate::vfs::Vfs;
use crate::walk::{LookupFlags, Parent, d_confirm, d_revalidate, filename_parentat};

impl Vfs {
    /// Makes an empty regular file; `mode` has the umask applied already.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::Exists`], [`Error::ReadOnly`], and [`Error::IsADirectory`]
    /// for a path that ends in a slash.
    #[doc(alias("vfs_create", "O_CREAT|O_EXCL"))]
    pub fn create(&self, ctx: &Context, path: impl AsRef<[u8]>, mode: u16) -> Result<()> {
        self.make(ctx, path.as_ref(), FileType::Regular, mode, 0, b"")
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    #[doc(alias("vfs_mkdir", "mkdir(2)"))]
    pub fn mkdir(&self, ctx: &Context, path: impl AsRef<[u8]>, mode: u16) -> Result<()> {
        self.make(ctx, path.as_ref(), FileType::Directory, mode, 0, b"")
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`Error::NotFound`] for an empty target,
    /// [`Error::NameTooLong`] for one of 4096 bytes or more.
    #[doc(alias("vfs_symlink", "symlink(2)"))]
    pub fn symlink(
        &self,
        ctx: &Context,
        target: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<()> {
        let target = target.as_ref();
        match target.len() {
            0 => Err(Error::NotFound),
            crate::PATH_MAX.. => Err(Error::NameTooLong),
            _ if target.contains(&0) => Err(Error::Invalid),
            _ => self.make(ctx, path.as_ref(), FileType::Symlink, 0o777, 0, target),
        }
    }

    /// Makes a device node, pipe or socket.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    #[doc(alias("vfs_mknod", "mknod(2)"))]
    pub fn mknod(
        &self,
        ctx: &Context,
        path: impl AsRef<[u8]>,
        kind: FileType,
        mode: u16,
        rdev: u64,
    ) -> Result<()> {
        self.make(ctx, path.as_ref(), kind, mode, rdev, b"")
    }

    fn make(
        &self,
        ctx: &Context,
        path: &[u8],
        kind: FileType,
        mode: u16,
        rdev: u64,
        target: &[u8],
    ) -> Result<()> {
        let parent = self.parent(ctx, path)?;
        parent.no_dots(Error::Exists)?;
        if parent.must_be_dir && kind == FileType::Regular {
            // As open(2) says it: before anything is looked up.
            return Err(Error::IsADirectory);
        }
        let name = Name::new(&parent.last)?;
        let dir = Locked::new(self, ctx, &parent.dir)?;
        let old = dir.lookup(name)?;
        if old.inode_ref().is_some() {
            return Err(Error::Exists);
        }
        if parent.must_be_dir && kind != FileType::Directory {
            return Err(Error::NotFound);
        }
        dir.may_write()?;
        let credentials = ctx.credentials();
        // A set-gid directory hands its group down, and the bit to directories.
        let parent_attr = dir.inode.attr();
        let set_gid = parent_attr.mode & 0o2000 != 0;
        let gid = if set_gid {
            parent_attr.gid
        } else {
            credentials.gid
        };
        let mode = if set_gid && kind == FileType::Directory {
            mode | 0o2000
        } else {
            mode
        };
        let new = NewFile {
            kind,
            mode,
            uid: credentials.uid,
            gid,
            rdev,
            target,
        };
        let inode = dir.sb().fs().create(dir.sb(), dir.inode, name, &new)?;
        dir.replace(&old, name, Some(inode));
        Ok(())
    }

    /// Gives the file at `old` the further name `new`. Links are not followed.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`Error::NotPermitted`] for a directory,
    /// [`Error::CrossDevice`] for another mount.
    #[doc(alias("vfs_link", "link(2)"))]
    pub fn link(&self, ctx: &Context, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<()> {
        let target = self.lookup(ctx, old, LookupFlags::default())?;
        let parent = self.parent(ctx, new.as_ref())?;
        let name = parent.name_or(Error::Exists)?;
        let dir = Locked::new(self, ctx, &parent.dir)?;
        let old = dir.lookup(name)?;
        if old.inode_ref().is_some() {
            return Err(Error::Exists);
        }
        if parent.must_be_dir {
            return Err(Error::NotFound);
        }
        // As link(2) says it: after what is wrong with the new name.
        if !target.mnt().is(parent.dir.mnt()) {
            return Err(Error::CrossDevice);
        }
        dir.may_write()?;
        if target.inode().kind() == FileType::Directory {
            return Err(Error::NotPermitted);
        }
        let _target = target.inode().rwsem.write_nested();
        dir.sb().fs().link(target.inode(), dir.inode, name)?;
        dir.replace(&old, name, Some(target.inode_ref()));
        Ok(())
    }

    /// Removes the name of something that is no directory.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::IsADirectory`], [`Error::Busy`], [`Error::ReadOnly`].
    #[doc(alias("vfs_unlink", "unlink(2)"))]
    pub fn unlink(&self, ctx: &Context, path: impl AsRef<[u8]>) -> Result<()> {
        let parent = self.parent(ctx, path.as_ref())?;
        let name = parent.name_or(Error::IsADirectory)?;
        let dir = Locked::new(self, ctx, &parent.dir)?;
        let victim = dir.lookup(name)?;
        let inode = victim.inode_ref().ok_or(Error::NotFound)?;
        let is_dir = inode.kind() == FileType::Directory;
        if parent.must_be_dir {
            return Err(if is_dir {
                Error::IsADirectory
            } else {
                Error::NotADirectory
            });
        }
        dir.may_delete(&inode)?;
        if is_dir {
            return Err(Error::IsADirectory);
        }
        // No link is made to it between its last name and the end.
        let _victim = inode.rwsem.write_nested();
        dir.sb().fs().unlink(dir.inode, name, &inode)?;
        dir.remove(&victim, &inode);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::NotADirectory`], [`Error::NotEmpty`], [`Error::Busy`],
    /// [`Error::Invalid`] for a path that ends in `.`.
    #[doc(alias("vfs_rmdir", "rmdir(2)"))]
    pub fn rmdir(&self, ctx: &Context, path: impl AsRef<[u8]>) -> Result<()> {
        let parent = self.parent(ctx, path.as_ref())?;
        let name = parent.name_or(match &*parent.last {
            b".." => Error::NotEmpty,
            // A path of slashes: the root.
            _ if path.as_ref().iter().all(|byte| *byte == b'/') => Error::Busy,
            _ => Error::Invalid,
        })?;
        // Where others move directories, one may have two dentries for a while, which
        // disagree about what is above what: whoever locks two is alone (LOCK-1).
        let _one_at_a_time = parent.dir.mnt().sb.rename_mutex.lock();
        let dir = Locked::new(self, ctx, &parent.dir)?;
        let victim = dir.lookup(name)?;
        let inode = victim.inode_ref().ok_or(Error::NotFound)?;
        dir.may_delete(&inode)?;
        if inode.kind() != FileType::Directory {
            return Err(Error::NotADirectory);
        }
        // Nobody makes a name in it between the check and the end.
        let _victim = inode.rwsem.write_nested();
        if is_mountpoint(&victim) {
            return Err(Error::Busy);
        }
        dir.sb().fs().rmdir(dir.inode, name, &inode)?;
        inode.shared().set(DEAD_DIR);
        dir.remove(&victim, &inode);
        Ok(())
    }

    /// Renames `old` to `new`, replacing what has that name. Links are not followed.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::CrossDevice`], [`Error::Busy`], [`Error::NotEmpty`],
    /// [`Error::IsADirectory`], [`Error::NotADirectory`], and [`Error::Invalid`] for
    /// moving a directory below itself.
    #[doc(alias("vfs_rename", "rename(2)"))]
    pub fn rename(
        &self,
        ctx: &Context,
        old: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
    ) -> Result<()> {
        let from = self.parent(ctx, old.as_ref())?;
        let to = self.parent(ctx, new.as_ref())?;
        if !from.dir.mnt().is(to.dir.mnt()) {
            return Err(Error::CrossDevice);
        }
        from.no_dots(Error::Busy)?;
        to.no_dots(Error::Busy)?;
        let sb = &from.dir.mnt().sb;
        let across = !InodeRef::ptr_eq(from.dir.inode_held(), to.dir.inode_held());
        let mut alone = across;
        loop {
            let _one_at_a_time = alone.then(|| sb.rename_mutex.lock());
            let (from_dir, to_dir) = Locked::pair(self, ctx, &from.dir, &to.dir)?;
            let to_dir = to_dir.as_ref().unwrap_or(&from_dir);

            let from_name = Name::new(&from.last)?;
            let source = from_dir.lookup(from_name)?;
            let moved = source.inode_ref().ok_or(Error::NotFound)?;
            let to_name = Name::new(&to.last)?;
            let moves_dir = moved.kind() == FileType::Directory;
            if !moves_dir && (from.must_be_dir || to.must_be_dir) {
                return Err(Error::NotADirectory);
            }
            // The source is not above its new place, nor the target above its old one. In
            // one directory neither can be, and nobody keeps the directories above still.
            if across && is_ancestor(&source, to.dir.dentry()) {
                return Err(Error::Invalid);
            }
            let target = to_dir.lookup(to_name)?;
            if across && is_ancestor(&target, from.dir.dentry()) {
                return Err(Error::NotEmpty);
            }
            let replaced = target.inode_ref();
            if let Some(inode) = &replaced
                && InodeRef::ptr_eq(inode, &moved)
            {
                return Ok(());
            }
            from_dir.may_delete(&moved)?;
            match &replaced {
                None => to_dir.may_write()?,
                Some(inode) => {
                    to_dir.may_delete(inode)?;
                    match (moves_dir, inode.kind() == FileType::Directory) {
                        (true, false) => return Err(Error::NotADirectory),
                        (false, true) => return Err(Error::IsADirectory),
                        _ => {}
                    }
                }
            }
            // A directory whose parent changes gets a new `..`.
            if across && moves_dir {
                ctx.credentials().may(&moved, Access::WRITE)?;
            }
            if moves_dir && replaced.is_some() && !alone {
                // Two directories are locked: not without the mutex, see `rmdir`.
                alone = true;
                continue;
            }
            let _victim = replaced.as_ref().map(|inode| inode.rwsem.write_nested());
            if is_mountpoint(&source) || is_mountpoint(&target) {
                return Err(Error::Busy);
            }
            sb.fs()
                .rename(sb, (from_dir.inode, from_name), (to_dir.inode, to_name))?;
            if let Some(inode) = &replaced
                && moves_dir
            {
                inode.shared().set(DEAD_DIR);
            }
            match &replaced {
                Some(inode) => to_dir.remove(&target, inode),
                None => self.ns().caches.dcache.d_drop(&target),
            }
            let dcache = &self.ns().caches.dcache;
            dcache.d_move(&source, to_dir.path.dentry(), &dcache.name(to_name));
            return Ok(());
        }
    }

    /// Changes the permission bits of what `path` leads to.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::NotPermitted`] for who is neither its owner nor
    /// privileged, [`Error::ReadOnly`].
    #[doc(alias("notify_change", "chmod(2)"))]
    pub fn set_mode(&self, ctx: &Context, path: impl AsRef<[u8]>, mode: u16) -> Result<()> {
        let at = self.lookup(ctx, path, LookupFlags::FOLLOW)?;
        let inode = at.inode_ref();
        let _exclusive = inode.rwsem.write();
        let attr = inode.attr();
        let credentials = ctx.credentials();
        if credentials.uid != attr.uid && !credentials.caps.contains(Caps::FOWNER) {
            return Err(Error::NotPermitted);
        }
        at.mnt().sb.fs().set_mode(&inode, mode & 0o7777)?;
        // The mark is cleared before the change counts as done: no walk passes a
        // directory on the strength of permissions it no longer has.
        if inode.kind() == FileType::Directory {
            self.ns().caches.dcache.update_search_mark(at.dentry());
        }
        Ok(())
    }

    fn parent(&self, ctx: &Context, path: &[u8]) -> Result<Parent> {
        filename_parentat(self.request(ctx, path, LookupFlags::default()))
    }
}

impl Parent {
    /// The last component; `dots` if it is `.` or `..`, which no change applies to.
    fn name_or(&self, dots: Error) -> Result<Name<'_>> {
        self.no_dots(dots)?;
        Name::new(&self.last)
    }

    fn no_dots(&self, dots: Error) -> Result<()> {
        match &*self.last {
            b"." | b".." => Err(dots),
            _ => Ok(()),
        }
    }
}

/// A directory locked exclusively, for a change.
struct Locked<'a> {
    vfs: &'a Vfs,
    ctx: &'a Context,
    path: &'a VfsPath,
    inode: &'a InodeRef,
    _exclusive: WriteGuard<'a, Listed>,
}

impl<'a> Locked<'a> {
    fn new(vfs: &'a Vfs, ctx: &'a Context, path: &'a VfsPath) -> Result<Locked<'a>> {
        Self::lock(vfs, ctx, path, false)
    }

    /// Both directories of a rename; one if they are the same.
    #[doc(alias = "lock_rename")]
    fn pair(
        vfs: &'a Vfs,
        ctx: &'a Context,
        a: &'a VfsPath,
        b: &'a VfsPath,
    ) -> Result<(Locked<'a>, Option<Locked<'a>>)> {
        // By inode: two names of a directory, of which one was dropped from the cache,
        // have the same lock.
        if InodeRef::ptr_eq(a.inode_held(), b.inode_held()) {
            return Ok((Self::lock(vfs, ctx, a, false)?, None));
        }
        let a_first = if is_ancestor(a.dentry(), b.dentry()) {
            true
        } else if is_ancestor(b.dentry(), a.dentry()) {
            false
        } else {
            a.inode_held().shared().address() < b.inode_held().shared().address()
        };
        if a_first {
            let a = Self::lock(vfs, ctx, a, false)?;
            Ok((a, Some(Self::lock(vfs, ctx, b, true)?)))
        } else {
            let b = Self::lock(vfs, ctx, b, false)?;
            Ok((Self::lock(vfs, ctx, a, true)?, Some(b)))
        }
    }

    fn lock(vfs: &'a Vfs, ctx: &'a Context, path: &'a VfsPath, nested: bool) -> Result<Locked<'a>> {
        let inode = path.inode_held();
        let guard = if nested {
            inode.rwsem.write_nested()
        } else {
            inode.rwsem.write()
        };
        if inode.shared().has(DEAD_DIR) {
            return Err(Error::NotFound);
        }
        Ok(Locked {
            vfs,
            ctx,
            path,
            inode,
            _exclusive: guard,
        })
    }

    fn sb(&self) -> &SuperBlock {
        &self.path.mnt().sb
    }

    /// The dentry of a name, positive or negative. With the directory locked there
    /// is no lookup of it under way, and it stays what it is.
    fn lookup(&self, name: Name<'_>) -> Result<DentryRef> {
        self.ctx.credentials().may(self.inode, Access::EXEC)?;
        let dcache = &self.vfs.ns().caches.dcache;
        let hash = dcache.name(name);
        if let Some(dentry) = dcache.d_lookup(self.path.dentry(), &hash)
            && self.is_believable(&dentry, name)?
        {
            return Ok(dentry);
        }
        let validity = self.sb().validity();
        let inode = self.sb().fs().lookup(self.sb(), self.inode, name)?;
        Ok(dcache.d_add(self.path.dentry(), &hash, inode, validity))
    }

    /// A change relies on what the back end says now, not on what it said a while ago.
    fn is_believable(&self, dentry: &DentryRef, name: Name<'_>) -> Result<bool> {
        let revalidate = dentry.flags().contains(Flags::REVALIDATE);
        Ok(d_confirm(self.sb(), self.inode, dentry, name)?
            && (!revalidate || d_revalidate(self.sb(), self.inode, dentry, name)?))
    }

    #[doc(alias = "may_create")]
    fn may_write(&self) -> Result<()> {
        self.ctx
            .credentials()
            .may(self.inode, Access::WRITE | Access::EXEC)
    }

    fn may_delete(&self, inode: &InodeRef) -> Result<()> {
        self.may_write()?;
        let dir = self.inode.attr();
        let who = self.ctx.credentials();
        let sticky = dir.mode & 0o1000 != 0;
        let owner = who.uid == dir.uid || who.uid == inode.attr().uid;
        if sticky && !owner && !who.caps.contains(Caps::FOWNER) {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    /// The name stands for something else now.
    fn replace(&self, old: &DentryRef, name: Name<'_>, inode: Option<InodeRef>) {
        let dcache = &self.vfs.ns().caches.dcache;
        dcache.d_drop(old);
        dcache.d_add(
            self.path.dentry(),
            &dcache.name(name),
            inode,
            self.sb().validity(),
        );
        self.vfs.ns().caches.make_room(1);
    }

    /// The name stands for nothing any more. The inode leaves the cache with its
    /// last name, so that a later file with its number is not taken for it.
    fn remove(&self, victim: &DentryRef, inode: &InodeRef) {
        self.vfs.ns().caches.dcache.d_drop(victim);
        if inode.attr().nlink == 0 {
            self.sb().unhash(inode);
        }
    }
}

/// True if something is mounted there. Stays false while the inode is locked.
#[doc(alias = "is_local_mountpoint")]
fn is_mountpoint(dentry: &DentryRef) -> bool {
    dentry.flags().contains(Flags::MOUNTPOINT)
}

/// True if `above` is the same directory as `below` or one of those above it. Stable
/// while the super block's rename mutex is held.
#[doc(alias = "d_ancestor")]
fn is_ancestor(above: &DentryRef, below: &DentryRef) -> bool {
    let Some(above) = above.inode_ref() else {
        return false;
    };
    let mut at = Some(below.clone());
    while let Some(dentry) = at {
        let inode = dentry.inode_ref();
        if inode.is_some_and(|inode| InodeRef::ptr_eq(&inode, &above)) {
            return true;
        }
        at = dentry.parent_ref();
    }
    false
}
