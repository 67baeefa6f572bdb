//! Changes of the namespace: making, linking, removing and renaming.
//!
//! Every change resolves the directory, takes its lock exclusively, finds the last
//! name under it, lets the back end do the work, and then brings the cache in line.
//! Walks go on meanwhile: none of their hits takes that lock.
//!
//! | read               | to learn                                                   |
//! |--------------------|------------------------------------------------------------|
//! | this file          | the calls                                                  |
//! | `change/locked.rs` | a directory under change, and the permission to change it  |
//! | `change/make.rs`   | new files, directories, links to paths, devices            |
//! | `change/link.rs`   | one more name                                              |
//! | `change/remove.rs` | one name less                                              |
//! | `change/rename.rs` | a name for another one, or two for each other              |
//! | `change/victim.rs` | a directory that is removed or replaced                    |
//!
//! LOCK-1, for two directories: a thread waits for the second one only while it holds the super
//! block's rename mutex, as a rename between two does. So one thread does at a time, and those
//! that it waits for do not wait for a directory. Every other thread [tries](victim). Files that
//! lose or get a name are locked last, and directories among them before all other files, so
//! that a directory's link count and its removal are one change.
//!
//! The checks come in the kernel's order (`fs/namei.c`), which decides the error that is
//! reported when several apply.

mod link;
mod locked;
mod make;
mod remove;
mod rename;
mod victim;

pub(crate) use locked::{LastName, Locked, may_exist};
pub(crate) use make::Make;

use crate::attr::FileType;
use crate::context::{AsPath, Context, VfsPath};
use crate::error::{Error, Result};
use crate::file::File;
use crate::filesystem::RenameFlags;
use crate::vfs::Vfs;
use crate::walk::{LookupFlags, Parent, path_parentat};

impl Vfs {
    /// Makes an empty regular file, and returns it. The context's umask is taken off `mode`.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::Exists`], [`Error::ReadOnly`], and [`Error::IsADirectory`]
    /// for a path that ends in a slash.
    #[doc(alias("vfs_create", "O_CREAT|O_EXCL"))]
    pub fn create(&self, ctx: &Context, path: impl AsRef<[u8]>, mode: u16) -> Result<VfsPath> {
        let file = Make::new(FileType::Regular, mode);
        let is_opened = true;
        self.make(ctx, path.as_ref(), &file, is_opened)
    }

    /// Makes a directory, and returns it. The context's umask is taken off `mode`, of which the set-id
    /// bits do not count.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    #[doc(alias("vfs_mkdir", "mkdir(2)"))]
    pub fn mkdir(&self, ctx: &Context, path: impl AsRef<[u8]>, mode: u16) -> Result<VfsPath> {
        let dir = Make::new(FileType::Directory, mode);
        self.make(ctx, path.as_ref(), &dir, false)
    }

    /// Makes a symbolic link to `target`, and returns the link.
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
    ) -> Result<VfsPath> {
        let target = target.as_ref();
        match target.len() {
            0 => return Err(Error::NotFound),
            crate::PATH_MAX.. => return Err(Error::NameTooLong),
            _ if target.contains(&0) => return Err(Error::Invalid),
            _ => {}
        }
        let link = Make {
            target,
            ..Make::new(FileType::Symlink, 0o777)
        };
        self.make(ctx, path.as_ref(), &link, false)
    }

    /// Makes a device node, pipe, socket or empty regular file, and returns it. The context's umask is
    /// taken off `mode`; `rdev` counts for devices.
    ///
    /// # Errors
    /// As [`create`](Self::create). [`Error::NotPermitted`] for a directory, and for a
    /// device without [`Caps::MKNOD`](crate::Caps::MKNOD), unless it is the character device 0 (a whiteout);
    /// [`Error::Invalid`] for a symbolic link.
    #[doc(alias("vfs_mknod", "mknod(2)"))]
    pub fn mknod(
        &self,
        ctx: &Context,
        path: impl AsRef<[u8]>,
        kind: FileType,
        mode: u16,
        rdev: u64,
    ) -> Result<VfsPath> {
        let rdev = match kind {
            FileType::Directory => return Err(Error::NotPermitted),
            FileType::Symlink => return Err(Error::Invalid),
            FileType::BlockDevice | FileType::CharDevice => rdev,
            FileType::Regular | FileType::Fifo | FileType::Socket => 0,
        };
        let node = Make {
            rdev,
            ..Make::new(kind, mode)
        };
        self.make(ctx, path.as_ref(), &node, false)
    }

    /// Gives the file at `old` the further name `new`, and returns it by that name. Links are not
    /// followed. A file that is held takes the rights that [`linkat`](Self::linkat) asks for an
    /// empty path.
    ///
    /// # Errors
    /// As [`linkat`](Self::linkat).
    #[doc(alias = "link(2)")]
    pub fn link(&self, ctx: &Context, old: impl AsPath, new: impl AsRef<[u8]>) -> Result<VfsPath> {
        let old = self.start(ctx, &old)?;
        let new = (ctx.cwd(), new.as_ref());
        self.link_names(ctx, (old.place, old.path), new, old.flags)
    }

    /// Gives the file at `old` the further name `new`, and returns it by that name; relative paths
    /// start at the places they come with.
    ///
    /// With [`LookupFlags::FOLLOW`] a symbolic link at `old` is followed. With
    /// [`LookupFlags::EMPTY_PATH`] an empty `old` means the start itself, for an open file or
    /// one without a name; only its owner may do this, or a caller with
    /// [`Caps::DAC_READ_SEARCH`](crate::Caps::DAC_READ_SEARCH) (the kernel compares credentials
    /// with those of the open file, which a path does not have).
    ///
    /// # Errors
    /// As [`create`](Self::create). [`Error::NotPermitted`] for a directory, for an immutable
    /// or append-only file, and on a mount with
    /// [`PROTECTED_LINKS`](crate::MountFlags::PROTECTED_LINKS) for a caller that could not open
    /// the file for writing; [`Error::CrossDevice`] for another mount, [`Error::NotFound`] for
    /// a file that has lost its last name, [`Error::TooManyLinks`], [`Error::Invalid`] for
    /// other flags.
    #[doc(alias("vfs_link", "linkat(2)"))]
    pub fn linkat(
        &self,
        ctx: &Context,
        old: (&VfsPath, impl AsRef<[u8]>),
        new: (&VfsPath, impl AsRef<[u8]>),
        flags: LookupFlags,
    ) -> Result<VfsPath> {
        let (old, new) = ((old.0, old.1.as_ref()), (new.0, new.1.as_ref()));
        self.link_names(ctx, old, new, flags)
    }

    /// Removes the name of something that is no directory.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::IsADirectory`], [`Error::Busy`], [`Error::ReadOnly`], and
    /// [`Error::NotPermitted`] in a sticky directory for a caller that owns neither the
    /// directory nor the file, and for an immutable or append-only file.
    #[doc(alias("vfs_unlink", "unlink(2)"))]
    pub fn unlink(&self, ctx: &Context, path: impl AsRef<[u8]>) -> Result<()> {
        self.retry(ctx, |reval| self.unlink_name(ctx, path.as_ref(), reval))
    }

    /// Like [`unlink`](Self::unlink). Returns the file, open as a path
    /// ([`OpenFlags::PATH`]): if that was its last name, it lives on until this is dropped, and
    /// can be opened again.
    ///
    /// ```
    /// # let vfs = rcuwalk::Vfs::new(rcuwalk_memfs::MemFs::new())?;
    /// use rcuwalk::{Credentials, OpenFlags};
    ///
    /// let root = vfs.context(Credentials::root());
    /// vfs.create(&root, "/file", 0o644)?;
    /// let removed = vfs.unlink_open(&root, "/file")?;
    /// assert_eq!(removed.attr().nlink, 0);
    /// assert!(vfs.open(&root, removed.path(), OpenFlags::READ).is_ok());
    /// # Ok::<(), rcuwalk::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`unlink`](Self::unlink); [`Error::TooManyOpenFiles`] if the file cannot be held: then
    /// it has not been removed.
    ///
    /// [`OpenFlags::PATH`]: crate::OpenFlags::PATH
    pub fn unlink_open(&self, ctx: &Context, path: impl AsRef<[u8]>) -> Result<File> {
        self.retry(ctx, |reval| self.unlink_held(ctx, path.as_ref(), reval))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`unlink`](Self::unlink); [`Error::NotADirectory`], [`Error::NotEmpty`],
    /// [`Error::Busy`], [`Error::Invalid`] for a path that ends in `.`.
    #[doc(alias("vfs_rmdir", "rmdir(2)"))]
    pub fn rmdir(&self, ctx: &Context, path: impl AsRef<[u8]>) -> Result<()> {
        self.retry(ctx, |reval| self.remove_dir(ctx, path.as_ref(), reval))
    }

    /// Renames `old` to `new`, replacing a file that has that name. Links are not followed.
    ///
    /// # Errors
    /// As [`renameat2`](Self::renameat2).
    #[doc(alias = "rename(2)")]
    pub fn rename(
        &self,
        ctx: &Context,
        old: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
    ) -> Result<()> {
        let old = (ctx.cwd(), old);
        self.renameat2(ctx, old, (ctx.cwd(), new), RenameFlags::empty())
    }

    /// Renames `old` to `new`, as `flags` say; relative paths start at the places they
    /// come with. Links are not followed.
    ///
    /// A concurrent walk finds the moved file under its old name or its new one, and in an
    /// exchange one of the two files under each name.
    ///
    /// # Errors
    /// As [`unlink`](Self::unlink); [`Error::CrossDevice`], [`Error::Busy`],
    /// [`Error::NotEmpty`], [`Error::IsADirectory`], [`Error::NotADirectory`];
    /// [`Error::Exists`] with `NOREPLACE`; [`Error::Invalid`] for moving a directory below
    /// itself, for flags that do not go together, and for flags that the back end does not
    /// know.
    #[doc(alias("vfs_rename", "renameat2(2)"))]
    pub fn renameat2(
        &self,
        ctx: &Context,
        old: (&VfsPath, impl AsRef<[u8]>),
        new: (&VfsPath, impl AsRef<[u8]>),
        flags: RenameFlags,
    ) -> Result<()> {
        let (old, new) = ((old.0, old.1.as_ref()), (new.0, new.1.as_ref()));
        self.rename_names(ctx, old, new, flags)
    }

    /// Resolves all of a path but its last component; a relative one starts at the directory
    /// that comes with it.
    fn parent_of<'a>(
        &'a self,
        ctx: &'a Context,
        (start, path): (&'a VfsPath, &'a [u8]),
        flags: LookupFlags,
    ) -> Result<Parent<'a>> {
        self.is_own(start)?;
        let request = self.request_at(ctx, start, path, flags);
        let parent = path_parentat(&request)?;
        if flags.contains(LookupFlags::REVAL) {
            parent.revalidate(&request);
        }
        Ok(parent)
    }

    /// Runs a whole operation, [again](crate::retry) if the caches made it fail.
    pub(crate) fn retry<R>(
        &self,
        ctx: &Context,
        attempt: impl FnMut(LookupFlags) -> Result<R>,
    ) -> Result<R> {
        let is_contained = ctx.is_contained();
        self.ns()
            .caches
            .retry(LookupFlags::empty(), is_contained, attempt)
    }
}
