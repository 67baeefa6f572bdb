//! The interface that a back end implements: [`FileSystem`].
//!
//! The VFS calls these methods with no cache lock and no RCU guard held (RCU-2),
//! so all of them may block. `lookup` and `read_dir` run with the directory's lock
//! held, shared at least; the changes with it exclusive, and with that of the file
//! that gains or loses a name; `revalidate` and `refresh` possibly with none. Two
//! lookups of the same missing name never run at once. Attributes that a change gives an inode
//! (a link count, a size, times) are the back end's to publish, by
//! [`Inode::set_attr`].
//!
//! CALL-1: no `Drop` code of a back end runs on a thread that holds a lock of the VFS or of a
//! back end. Threads that hold no lock of the VFS and are in no call of a back end free the
//! objects that RCU has retired. This decides what a back end may do:
//!
//! | in …                          | a back end may                        | and may not |
//! |-------------------------------|---------------------------------------|-------------|
//! | a call: any method of [`FileSystem`] and [`FileHandle`], and [`LastPut::last_put`](crate::LastPut::last_put) | block; lock mutexes of its own; use the [`SuperBlock`] that it is given; drop inodes | use a [`Vfs`](crate::Vfs) or an open [`File`](crate::File), its own or another: debug builds panic |
//! | `Drop` of its private data in an inode, of a [`FileHandle`], and of the [`FileSystem`] | lock mutexes of its own; use a [`Vfs`](crate::Vfs) that it keeps | wait for a thread that waits for RCU: one that is in [`Vfs::umount`](crate::Vfs::umount) or [`SuperBlock::shrink`] |
//! | a thread of its own           | use a [`Vfs`](crate::Vfs), or its [`SuperBlock`] | hold a mutex meanwhile that its `Drop` code locks: outside of a call, `Drop` code runs there |
//!
//! The methods that return constants ([`name`](FileSystem::name),
//! [`number`](FileSystem::number), …) are called anywhere, and only compute.
//!
//! A back end that stands on another one therefore keeps that [`FileSystem`] and passes calls
//! on, with the [`SuperBlock`] that it was given: the inodes are in one cache then. Where it
//! has to stand on a whole tree, a thread of its own asks the other [`Vfs`](crate::Vfs), as the
//! kernel's loop device has its workers; of two trees, only one may stand on the other.
//! (Allowing calls within calls was the other choice. Which locks they take depends on what
//! is cached, so an order among trees would be found wrong at the first miss, in production.)
//!
//! A back end that is out of descriptors in a call returns [`Error::TooManyOpenFiles`], having
//! changed nothing. The VFS releases all locks and all unused cached objects, and calls it once
//! more.
//!
//! A back end never caches inodes itself: it asks [`SuperBlock::iget`] and either
//! gets the cached inode or a [`NewInode`](crate::NewInode) to fill in.

mod types;

use std::any::Any;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub use types::{
    Allocate, At, ByNumber, Caller, NewFile, Rename, RenameFlags, SeekTo, SetAttr, SetTime, StatFs,
    XattrFlags,
};

use crate::attr::FileType;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::open::OpenFlags;
use crate::permission::Credentials;
use crate::super_block::SuperBlock;
use crate::vfs_inode::{Inode, InodeKey, InodeRef};

/// How long cached names and attributes are valid without asking the back end again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Freshness {
    /// For ever: the back end changes only through this VFS.
    Always,
    /// For this long after the back end last said so; less by a tick of the kernel's clock at
    /// most, a few milliseconds.
    Ttl(Duration),
    /// Not at all: each use of a cached name asks [`FileSystem::revalidate`].
    EachUse,
    /// Until the back end itself makes it stale, by [`SuperBlock::invalidate_names`] or
    /// [`SuperBlock::invalidate_all`]: it is told of changes as they happen. Applies only to names
    /// in directories that are [watched](crate::InodeFill::watched). A file with several names
    /// may change through a directory that is not watched, so its names are as with
    /// [`EachUse`](Self::EachUse).
    Watched,
}

/// A file system that can be mounted.
#[doc(alias("inode_operations", "super_operations"))]
pub trait FileSystem: Send + Sync + 'static {
    /// A short name for messages: `memfs`, `hostfs`, …
    fn name(&self) -> &str;

    /// Called once, at mount: the inode of the root directory.
    #[doc(alias = "fill_super")]
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef>;

    /// Called once, after [`root`](Self::root), with the super block of this file system: for a
    /// back end with a thread of its own, which keeps a [`Weak`](std::sync::Weak). After an
    /// unmount the file system is dropped, and the thread must end. The default does nothing.
    ///
    /// # Errors
    /// Then it is not mounted.
    fn mounted(&self, sb: &Arc<SuperBlock>) -> Result<()> {
        let _ = sb;
        Ok(())
    }

    /// The number that front ends show for the inode number `ino` of the numbering that the inode
    /// `beside` belongs to: where a tree has several numberings (a directory of the host with
    /// other file systems mounted in it), one that no two files have. Always the same.
    fn number(&self, beside: InodeKey, ino: u64) -> u64 {
        let _ = beside;
        ino
    }

    /// A number that distinguishes files that have the same [number](Self::number) one after
    /// the other: 32 bits, the same each time, and the same when this file system is mounted
    /// again, if it shows the same files then. `None` where there is none.
    ///
    /// Called with no lock held. The name in `at` may refer to another file meanwhile: the
    /// generation of that one will do, since the caller compares it with a later answer.
    #[doc(alias("i_generation", "name_to_handle_at(2)"))]
    fn generation(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Option<u32>> {
        let _ = (by, at);
        Ok(None)
    }

    /// The file with that [number](Self::number), for clients that come back with a handle.
    ///
    /// # Errors
    /// [`Error::Stale`] if no file below the root has the number, or if this back end cannot tell.
    #[doc(alias("fh_to_dentry", "get_parent"))]
    fn by_number(&self, sb: &SuperBlock, number: u64) -> Result<ByNumber> {
        let _ = (sb, number);
        Err(Error::Stale)
    }

    /// Bytes that tell this file from every other file that this file system has had, the same each
    /// time and after a restart: 160 bytes at most. The default is the [number](Self::number) and
    /// the [generation](Self::generation).
    ///
    /// # Errors
    /// [`Error::NotSupported`] if there are none.
    #[doc(alias("export_operations", "encode_fh"))]
    fn encode_handle(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Box<[u8]>> {
        let generation = self.generation(by, at)?.ok_or(Error::NotSupported)?;
        let number = self.number(at.inode.inode_key(), at.inode.attr().ino);
        let bytes = number.to_le_bytes().into_iter();
        Ok(bytes.chain(generation.to_le_bytes()).collect())
    }

    /// The file of such bytes, which clients may have made up. An inode must be that file and below
    /// the root. A path may be out of date: the VFS walks it, asks the file there for its own handle
    /// and compares. The default finds the number, and compares the generation of an inode.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such file below the root, or if this back end cannot tell. Then
    /// the VFS walks to the place where the file was.
    #[doc(alias("fh_to_dentry", "fh_to_parent"))]
    fn open_handle(&self, sb: &SuperBlock, id: &[u8]) -> Result<ByNumber> {
        let (number, generation) = id.split_first_chunk().ok_or(Error::Stale)?;
        let found = self.by_number(sb, u64::from_le_bytes(*number))?;
        if let ByNumber::Inode(inode) = &found {
            let by = Caller {
                sb,
                credentials: &Credentials::root(),
            };
            let own = self.generation(&by, &At::new(inode))?;
            let is_it = own.is_some_and(|own| own.to_le_bytes() == generation);
            return if is_it { Ok(found) } else { Err(Error::Stale) };
        }
        Ok(found)
    }

    /// As [`refresh`](Self::refresh), for a file that was [found](ByNumber::Inode) without a name.
    fn refresh_by_number(&self, sb: &SuperBlock, inode: &Inode) -> Result<()> {
        let _ = (sb, inode);
        Ok(())
    }

    /// Told when a front end begins or ends to show the tree as a file system with this device
    /// number. Where the tree itself contains that file system, there is a loop: a back end
    /// returns [`Error::TooManySymlinks`] for the files in it, without asking it anything. The
    /// default does nothing.
    fn shown(&self, device: u64, is_shown: bool) {
        let _ = (device, is_shown);
    }

    /// Looks up the inode of `name` in `dir`; `None` if there is no such name.
    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>>;

    /// Whether [`lookup_around`](Self::lookup_around) finds many names at the price of
    /// one.
    fn looks_around(&self) -> bool {
        false
    }

    /// Like [`lookup`](Self::lookup), for a directory that has been listed: the caller is going
    /// to look up its names one by one. The entries that the back end reads along with `name`
    /// (the rest of a block) go to `around`, in the order in which it finds them, until that
    /// breaks; `name` itself may be among them. Entries that cannot be read are left out.
    ///
    /// Called with the directory held shared, as `lookup` is: other lookups in it and listings go on
    /// meanwhile, but no other call of this method in it.
    #[doc(alias("readdirplus", "nfs_readdir_use_readdirplus"))]
    fn lookup_around(
        &self,
        sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        around: &mut dyn FnMut(Name<'_>, InodeRef) -> ControlFlow<()>,
    ) -> Result<Option<InodeRef>> {
        let _ = around;
        self.lookup(sb, dir, name)
    }

    /// The target of a symbolic link. It is cached with the inode.
    #[doc(alias = "get_link")]
    fn read_link(&self, sb: &SuperBlock, inode: &Inode) -> Result<Box<[u8]>>;

    /// Hands the entries after the position `from` (0: from the start) to `emit` until it
    /// breaks or they end. `.` and `..` are not among them. It may return early once it has
    /// handed over one entry: the VFS calls it again for the next ones.
    #[doc(alias = "iterate_shared")]
    fn read_dir(&self, sb: &SuperBlock, dir: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()>;

    /// Whether the VFS keeps the listings of directories, within its budget: then a listing that is
    /// repeated asks nothing, and neither does a lookup of a missing name in a directory that
    /// was listed to the end. Where the back end tells of no changes, a listing from the start asks
    /// for the [version](Self::listing_version). Not for a back end that lists as fast as memory. Such a
    /// back end lists the same entries at the same positions until the directory changes.
    fn caches_listings(&self) -> bool {
        false
    }

    /// The version of `dir`: a number that is another one after each change of what is listed.
    /// `None`, and the listing is not kept, if there is none, or a change may come that does not change
    /// it. Asked when a listing begins.
    ///
    /// Under [`Freshness::Always`] and [`Freshness::Watched`] the VFS knows of changes, and any number will
    /// do: that is the default. Under the others, it asks again to learn whether a cached listing is
    /// still right; the default has none kept.
    #[doc(alias("i_version", "STATX_CHANGE_COOKIE"))]
    fn listing_version(&self, sb: &SuperBlock, dir: &Inode) -> Option<u64> {
        let _ = (sb, dir);
        matches!(self.freshness(), Freshness::Always | Freshness::Watched).then_some(0)
    }

    /// True if a name that no listing of `dir` has is certainly missing. Not so where a lookup
    /// finds more than is listed (`.snapshot`, automounts, names without regard to case). Asked
    /// once for each listing that is cached, with no lock held.
    fn lists_all_names(&self, sb: &SuperBlock, dir: &Inode) -> bool {
        let _ = (sb, dir);
        false
    }

    /// Opens a regular file for what `flags` say: of these only `READ`, `WRITE`,
    /// `APPEND`, `SYNC` and `DSYNC` are the back end's. A truncation follows by
    /// [`setattr`](Self::setattr).
    fn open(&self, by: &Caller<'_>, at: &At<'_>, flags: OpenFlags) -> Result<Box<dyn FileHandle>>;

    /// Called when a file is opened only as a path ([`OpenFlags::PATH`]): the VFS keeps the
    /// returned handle until the file is closed, and makes no calls on it. For a back end that
    /// can hold its inodes, and whose inodes may otherwise be removed and replaced behind its
    /// back. The default holds nothing.
    #[doc(alias = "O_PATH")]
    fn open_place(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Option<Box<dyn FileHandle>>> {
        let _ = (by, at);
        Ok(None)
    }

    /// True if nothing can be changed in it: then no change is asked for.
    #[doc(alias = "SB_RDONLY")]
    fn read_only(&self) -> bool {
        false
    }

    /// How long cached names and attributes of this file system are valid.
    fn freshness(&self) -> Freshness {
        Freshness::Always
    }

    /// True if each change of this inode is announced
    /// ([`SuperBlock::announce`](crate::SuperBlock::announce)), with the names in it if it is a
    /// directory. For a back end of [`Freshness::Watched`] that is told of each changed file.
    fn announces(&self, inode: &Inode) -> bool {
        let _ = inode;
        false
    }

    /// True if `name` in `dir` still refers to `inode` (or is still missing); brings the
    /// inode's attributes up to date where it does.
    #[doc(alias = "d_revalidate")]
    fn revalidate(
        &self,
        sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        inode: Option<&Inode>,
    ) -> Result<bool> {
        let _ = (sb, dir, name, inode);
        Ok(true)
    }

    /// Asks the back end for the attributes of an inode that was not reached by a name (a
    /// root). The default takes the cached ones.
    fn refresh(&self, sb: &SuperBlock, inode: &Inode) -> Result<()> {
        let _ = (sb, inode);
        Ok(())
    }

    /// Makes a new file, directory, link or node. The VFS has checked that the caller may. It
    /// presumes that the name is free, and has not asked if it need not.
    ///
    /// # Errors
    /// [`Error::Exists`] if it is not free.
    fn create(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        let _ = (by, dir, name, new);
        Err(Error::ReadOnly)
    }

    /// Makes a new regular file and opens it, whatever its mode says.
    #[doc(alias = "atomic_open")]
    fn create_open(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
        flags: OpenFlags,
    ) -> Result<(InodeRef, Box<dyn FileHandle>)> {
        let inode = self.create(by, dir, name, new)?;
        let at = At {
            parent: Some((dir, name)),
            inode: &inode,
            open: None,
        };
        let open = self.open(by, &at, flags);
        if let Err(Error::TooManyOpenFiles) = open {
            // The VFS calls again, and must not find this file then (O_EXCL). If removing it fails,
            // it stays, as after any other error.
            let _ = self.unlink(by, dir, name, &inode);
        }
        Ok((inode, open?))
    }

    /// Makes a regular file without a name, in the file system of `dir`. It can be
    /// [opened](Self::open), and [linked](Self::link).
    #[doc(alias = "O_TMPFILE")]
    fn tmpfile(&self, by: &Caller<'_>, dir: &Inode, new: &NewFile<'_>) -> Result<InodeRef> {
        let _ = (by, dir, new);
        Err(Error::NotSupported)
    }

    /// Gives a file one more name, which the VFS presumes to be free.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    fn link(&self, by: &Caller<'_>, file: &At<'_>, dir: &Inode, name: Name<'_>) -> Result<()> {
        let _ = (by, file, dir, name);
        Err(Error::ReadOnly)
    }

    /// Removes the name of a file that is no directory. How certain it is that the name refers
    /// to `inode` depends on the [freshness](Self::freshness): a back end whose names others
    /// change checks that itself.
    ///
    /// # Errors
    /// [`Error::Stale`] if the name refers to another file, or if the file has got another
    /// owner, which the sticky bit of a directory depends on: the back end removes nothing, and
    /// the VFS looks the name up again.
    fn unlink(&self, by: &Caller<'_>, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        let _ = (by, dir, name, inode);
        Err(Error::ReadOnly)
    }

    /// Like [`unlink`](Self::unlink), for a caller that keeps the file afterwards: first holds it as
    /// [`open_place`](Self::open_place) does, in `held`. For a back end that confirms the name
    /// by holding the file. The default makes both calls.
    ///
    /// What is in `held` after an error is dropped once the VFS has released its locks (CALL-1).
    fn unlink_open(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        inode: &Inode,
        held: &mut Option<Box<dyn FileHandle>>,
    ) -> Result<()> {
        *held = self.open_place(by, &At::new(inode).below(dir, name))?;
        self.unlink(by, dir, name, inode)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`unlink`](Self::unlink).
    fn rmdir(&self, by: &Caller<'_>, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        let _ = (by, dir, name, inode);
        Err(Error::ReadOnly)
    }

    /// Moves a name, replacing a file that has the new one, or exchanges two.
    ///
    /// # Errors
    /// [`Error::Invalid`] for flags that this back end does not know.
    fn rename(&self, by: &Caller<'_>, how: &Rename<'_>) -> Result<()> {
        let _ = (by, how);
        Err(Error::ReadOnly)
    }

    /// Changes attributes.
    #[doc(alias = "notify_change")]
    fn setattr(&self, by: &Caller<'_>, at: &At<'_>, change: &SetAttr) -> Result<()> {
        let _ = (by, at, change);
        Err(Error::ReadOnly)
    }

    /// Sets the time of the last access to now: it has been read, and the mount keeps
    /// such times. Back ends whose files keep it themselves do nothing.
    fn touch_atime(&self, inode: &Inode) {
        let _ = inode;
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is no such attribute.
    fn get_xattr(&self, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<Box<[u8]>> {
        let _ = (by, at, name);
        Err(Error::NotSupported)
    }

    /// The default ACL of a directory, which a file that is made there inherits; `None` if there
    /// is none. Asked for each new file: a back end may go by what it was told before, as long as
    /// attributes are valid ([`freshness`](Self::freshness)).
    #[doc(alias("get_default_acl", "i_default_acl"))]
    fn default_acl(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Option<Box<[u8]>>> {
        match self.get_xattr(by, at, b"system.posix_acl_default") {
            Ok(acl) => Ok(Some(acl)),
            Err(Error::NoData | Error::NotSupported) => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// The names of all extended attributes, in any order.
    fn list_xattrs(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Vec<Box<[u8]>>> {
        let _ = (by, at);
        Ok(Vec::new())
    }

    /// Sets an extended attribute.
    fn set_xattr(
        &self,
        by: &Caller<'_>,
        at: &At<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let _ = (by, at, name, value, flags);
        Err(Error::NotSupported)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is no such attribute.
    fn remove_xattr(&self, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<()> {
        let _ = (by, at, name);
        Err(Error::NotSupported)
    }

    /// Returns when the names in a directory, and its attributes, are safe.
    #[doc(alias = "fsync(2)")]
    fn sync_dir(&self, by: &Caller<'_>, at: &At<'_>) -> Result<()> {
        let _ = (by, at);
        Ok(())
    }

    /// Whether this file system has POSIX ACLs. They are the attributes
    /// `system.posix_acl_access` and `system.posix_acl_default`, in the kernel's format, which
    /// the VFS has checked. See [`InodeFill::acl`](crate::InodeFill::acl).
    #[doc(alias("SB_POSIXACL", "IS_POSIXACL"))]
    fn posix_acl(&self) -> bool {
        false
    }

    /// How full it is.
    #[doc(alias = "statfs(2)")]
    fn statfs(&self, sb: &SuperBlock) -> Result<StatFs> {
        let _ = sb;
        Ok(StatFs::default())
    }
}

/// An open file of a back end.
///
/// All calls that are given the inode have it locked exclusively, and publish its new
/// attributes.
#[doc(alias = "file_operations")]
pub trait FileHandle: Any + Send + Sync {
    /// Reads at `offset` into `buf`; 0 means the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;

    /// Writes at `offset`, and returns how much: not 0 unless `buf` is empty. Where the file
    /// was opened to append, `offset` is the end as the VFS knows it, unless `buf` is empty:
    /// then the back end only checks whether it may write.
    fn write_at(&self, inode: &Inode, buf: &[u8], offset: u64) -> Result<usize> {
        let _ = (inode, buf, offset);
        Err(Error::BadDescriptor)
    }

    /// Copies up to `len` bytes, not none, from `from_offset` on of another open file of this
    /// file system, or another range of this one, and returns how many: 0 at its end. `inode`
    /// is the destination. A back end that cannot do better than reading and writing returns
    /// `NotSupported`, having changed nothing.
    #[doc(alias = "copy_file_range(2)")]
    fn copy_range(
        &self,
        inode: &Inode,
        offset: u64,
        from: &dyn FileHandle,
        from_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let _ = (inode, offset, from, from_offset, len);
        Err(Error::NotSupported)
    }

    /// Allocates, punches or zeroes a range, which is not empty.
    #[doc(alias = "fallocate(2)")]
    fn allocate(&self, inode: &Inode, how: Allocate, offset: u64, len: u64) -> Result<()> {
        let _ = (inode, how, offset, len);
        Err(Error::NotSupported)
    }

    /// The next data or hole from `offset` on, which lies in the file; `None` if there is
    /// no data any more. A back end that does not know says so by `NotSupported`: then all
    /// of the file is data.
    #[doc(alias = "generic_file_llseek")]
    fn seek(&self, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        let _ = (offset, to);
        Err(Error::NotSupported)
    }

    /// Returns when the written data is safe; with `data_only` the times need not be.
    #[doc(alias("fsync(2)", "fdatasync(2)"))]
    fn sync(&self, data_only: bool) -> Result<()> {
        let _ = data_only;
        Ok(())
    }

    /// The host's file with the contents, all of them and at the same offsets, if there is one
    /// that a front end may read and write in place of [`read_at`](Self::read_at) and
    /// [`write_at`](Self::write_at). The VFS then does not see the change, until
    /// [`refresh`](Self::refresh).
    #[doc(alias("FUSE_PASSTHROUGH", "backing_file"))]
    fn backing(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether it holds a descriptor of this process as long as it is open: a server of many
    /// users counts those. By default, if it has a [`backing`](Self::backing).
    fn holds_descriptor(&self) -> bool {
        self.backing().is_some()
    }

    /// Asks for the attributes anew, and publishes them. A back end without a
    /// [`backing`](Self::backing) has nothing to ask.
    fn refresh(&self, inode: &Inode) -> Result<()> {
        let _ = inode;
        Ok(())
    }
}

/// Receives directory entries.
pub trait Emit {
    /// Takes one entry; `Break` means that it was not taken and no more are wanted.
    #[doc(alias = "filldir")]
    fn entry(&mut self, entry: RawEntry<'_>) -> ControlFlow<()>;
}

/// A directory entry as the back end knows it.
#[derive(Clone, Copy, Debug)]
pub struct RawEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// The inode number, as in [`Attr::ino`](crate::Attr::ino).
    pub ino: u64,
    /// Its type, if the directory tells.
    pub kind: Option<FileType>,
    /// The position after this entry: where a later call goes on. Never 0, never
    /// reused for another entry while the directory lives (DIR-1).
    pub next: u64,
}
