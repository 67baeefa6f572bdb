//! The in-process interface: [`Vfs`].

use std::sync::Arc;

use rcuwalk_sync::lock;

use crate::attr::{Attr, FileType};
use crate::budget::Budget;
use crate::caches::Caches;
use crate::context::{AsPath, Context, Start, VfsPath};
use crate::dentry::Flags;
use crate::error::{Error, Result};
use crate::filesystem::{FileSystem, StatFs};
use crate::inode::{InodeStatistics, Scheme};
use crate::mount::MountFlags;
use crate::name::Name;
use crate::namespace::Namespace;
use crate::permission::{Access, Credentials};
use crate::readdir::ReadDir;
use crate::stats::Statistics;
use crate::target::Target;
use crate::walk::{LookupFlags, Request, filename_lookup, path_parentat};

/// A tree of mounted file systems with its caches. Clones are handles to the same.
///
/// Paths are bytes: a `&str`, a `&[u8]`, or `path.as_os_str().as_bytes()` of a `Path`. Calls that
/// act on a file take one that is held in place of its path, see [`AsPath`]. Cache hits take no lock and make no back-end call; everything else may block in the back end.
///
/// Every method that takes a path fails with [`Error::NotFound`], [`Error::NotADirectory`],
/// [`Error::PermissionDenied`], [`Error::TooManySymlinks`] or [`Error::NameTooLong`] as the
/// system calls do, with [`Error::Invalid`] for a path with a NUL in it, and with errors of the
/// back end.
///
/// The drop of the last clone frees the caches, and their descriptors: that waits for walks
/// that are under way. Paths and open files that are still held keep theirs until they are
/// dropped.
#[derive(Clone)]
pub struct Vfs {
    ns: Arc<Namespace>,
}

impl Vfs {
    /// A tree with `root` at its root and the default [`Budget`].
    ///
    /// # Errors
    /// What the back end reports when its root directory is read.
    pub fn new(root: impl FileSystem) -> Result<Vfs> {
        Self::with_budget(root, Budget::default())
    }

    /// A tree whose caches keep to `budget`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_budget(root: impl FileSystem, budget: Budget) -> Result<Vfs> {
        Self::with_scheme(root, budget, Scheme::OURS)
    }

    /// A tree whose inode cache locks in another way: to compare with.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_scheme(root: impl FileSystem, budget: Budget, scheme: Scheme) -> Result<Vfs> {
        let ns = Namespace::new(Box::new(root), Caches::new(budget, scheme))?;
        Ok(Vfs { ns: Arc::new(ns) })
    }

    /// A context at the root of the tree, with these credentials.
    pub fn context(&self, credentials: Credentials) -> Context {
        Context::within(self.root(), credentials)
    }

    /// Counters of the inode cache. Takes no lock.
    pub fn inode_statistics(&self) -> InodeStatistics {
        self.ns.caches.icache.statistics()
    }

    /// The root of the tree.
    pub fn root(&self) -> VfsPath {
        self.ns.root()
    }

    /// For front ends: the tree is shown as a file system that has this device number, or not any
    /// more. The back end of the root is told ([`FileSystem::shown`]).
    pub fn shown(&self, device: u64, is_shown: bool) {
        self.root().mnt().sb.fs().shown(device, is_shown);
    }

    /// Mounts `fs` on a directory, whose contents are hidden until it is unmounted.
    ///
    /// # Errors
    /// [`Error::NotADirectory`] if `at` is none.
    #[doc(alias = "mount(2)")]
    pub fn mount(&self, ctx: &Context, at: impl AsRef<[u8]>, fs: impl FileSystem) -> Result<()> {
        self.mount_with(ctx, at, fs, MountFlags::empty())
    }

    /// As [`mount`](Self::mount), a mount with flags.
    ///
    /// # Errors
    /// As [`mount`](Self::mount).
    #[doc(alias("mount(2)", "mount_setattr(2)"))]
    pub fn mount_with(
        &self,
        ctx: &Context,
        at: impl AsRef<[u8]>,
        fs: impl FileSystem,
        flags: MountFlags,
    ) -> Result<()> {
        let at = self.lookup(ctx, at, LookupFlags::FOLLOW | LookupFlags::DIRECTORY)?;
        self.ns.mount(&at, Box::new(fs), flags)
    }

    /// Sets the flags of the mount with the root `at`, which may be the root mount: these flags
    /// and no others.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `at` is not the root of a mount. [`Error::Busy`] if the flags make
    /// it read-only while a file in it is open for writing or a change is under way.
    #[doc(alias("MS_REMOUNT", "mount_setattr(2)"))]
    pub fn remount(&self, ctx: &Context, at: impl AsRef<[u8]>, flags: MountFlags) -> Result<()> {
        let at = self.lookup(ctx, at, LookupFlags::FOLLOW)?;
        self.ns.remount(&at, flags)
    }

    /// The path of `place` as `ctx` sees it: from its root, through all mounts, and as of
    /// one moment, whatever is renamed meanwhile. Does not block.
    ///
    /// # Errors
    /// As getcwd(3): [`Error::Invalid`] for a path of another `Vfs`, [`Error::NotFound`] if the
    /// name has been removed, or the path is not below the context's root.
    #[doc(alias("d_path", "getcwd(2)"))]
    pub fn path_of(&self, ctx: &Context, place: &VfsPath) -> Result<Box<[u8]>> {
        self.is_own(place)?;
        if place.dentry().flags().contains(Flags::UNHASHED) {
            return Err(Error::NotFound);
        }
        let dcache = &self.ns.caches.dcache;
        let path = dcache.path_between(ctx.root(), place);
        path.ok_or(Error::NotFound)
    }

    /// Unmounts the file system whose root `at` is.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `at` is not the root of a mount, or is that of the whole tree.
    /// [`Error::Busy`] while a path or an open file in it is held, or something is mounted in
    /// it.
    #[doc(alias = "umount2(2)")]
    pub fn umount(&self, ctx: &Context, at: impl AsRef<[u8]>) -> Result<()> {
        let at = self.lookup(ctx, at, LookupFlags::FOLLOW)?;
        self.ns.umount(at)
    }

    /// Resolves `path` and holds the file it leads to.
    ///
    /// # Errors
    /// See [`Vfs`].
    #[doc(alias("kern_path", "O_PATH"))]
    pub fn lookup(&self, ctx: &Context, path: impl AsPath, flags: LookupFlags) -> Result<VfsPath> {
        let request = self.request(ctx, self.start(ctx, &path)?, flags);
        filename_lookup(&request, |found| found.try_get(), Ok)
    }

    /// Like [`lookup`](Self::lookup), within an operation that is tried again as a whole.
    pub(crate) fn lookup_within(
        &self,
        ctx: &Context,
        start: Start<'_>,
        flags: LookupFlags,
    ) -> Result<VfsPath> {
        let request = self.request_at(ctx, start.place, start.path, flags | start.flags);
        filename_lookup(&request, |found| found.try_get(), Ok)
    }

    /// The attributes of what `path` leads to. A cached answer takes no reference.
    ///
    /// # Errors
    /// See [`Vfs`].
    #[doc(alias("vfs_statx", "stat(2)", "lstat(2)"))]
    pub fn stat(&self, ctx: &Context, path: impl AsPath, flags: LookupFlags) -> Result<Attr> {
        let request = self.request(ctx, self.start(ctx, &path)?, flags);
        filename_lookup(
            &request,
            |found| {
                let attr = found.inode()?.attr();
                found.is_still_true().then_some(attr)
            },
            |path| Ok(path.attr()),
        )
    }

    /// How full the file system is that `path` leads to.
    ///
    /// # Errors
    /// See [`Vfs`].
    #[doc(alias("statfs(2)", "statvfs(3)"))]
    pub fn statfs(&self, ctx: &Context, path: impl AsPath) -> Result<StatFs> {
        let at = self.lookup(ctx, path, LookupFlags::FOLLOW)?;
        let sb = &at.mnt().sb;
        sb.caches.retry_held(|| sb.fs().statfs(sb))
    }

    /// The target of the symbolic link that `path` leads to.
    ///
    /// # Errors
    /// See [`Vfs`]; [`Error::Invalid`] if it is no symbolic link.
    #[doc(alias = "readlink(2)")]
    pub fn read_link(&self, ctx: &Context, path: impl AsRef<[u8]>) -> Result<Box<[u8]>> {
        self.read_link_at(&self.lookup(ctx, path, LookupFlags::default())?)
    }

    /// The target of the symbolic link that is held here. Needs no permission.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no symbolic link; errors of the back end.
    #[doc(alias("readlinkat(2)", "AT_EMPTY_PATH"))]
    pub fn read_link_at(&self, link: &VfsPath) -> Result<Box<[u8]>> {
        self.is_own(link)?;
        if link.inode().kind() != FileType::Symlink {
            return Err(Error::Invalid);
        }
        let sb = &link.mnt().sb;
        let read = || self.ns.link_body(sb, &link.inode_ref());
        let body = sb.caches.retry_held(read)?;
        Ok((**body).clone())
    }

    /// Lists the directory that `path` leads to, without `.` and `..`.
    ///
    /// DIR-1: an entry that is there all through the listing is returned exactly
    /// once; one that comes or goes meanwhile, at most once.
    ///
    /// # Errors
    /// See [`Vfs`]; [`Error::PermissionDenied`] if the caller may not read it.
    #[doc(alias("getdents64(2)", "iterate_dir"))]
    pub fn read_dir(&self, ctx: &Context, path: impl AsPath) -> Result<ReadDir> {
        let flags = LookupFlags::FOLLOW | LookupFlags::DIRECTORY;
        let dir = self.lookup(ctx, path, flags)?;
        Target::new(&dir, ctx.credentials()).may(Access::READ)?;
        Ok(ReadDir::new(dir))
    }

    /// Drops every unused name and inode from the cache.
    pub fn drop_caches(&self) {
        self.ns.caches.drop_unused();
    }

    /// Makes the last name of `path` stale, found or missing: the next walk asks the back end,
    /// and drops the cached name if it now refers to another file. Holders of the old file keep
    /// it. Names cached below a directory belong to the directory and stay.
    ///
    /// Waits for lookups and changes of that directory that are under way, so that their
    /// answers are stale, too; a back end must not call this from within one.
    ///
    /// # Errors
    /// See [`Vfs`]. [`Error::Invalid`] for a path that ends in no name: `/`, `.`, `..`.
    #[doc(alias("d_invalidate", "FUSE_NOTIFY_INVAL_ENTRY"))]
    pub fn invalidate(&self, ctx: &Context, path: impl AsRef<[u8]>) -> Result<()> {
        let start = Start::of(ctx, path.as_ref());
        let request = self.request(ctx, start, LookupFlags::default());
        let parent = path_parentat(&request)?;
        let dcache = &self.ns.caches.dcache;
        let name = dcache.name(Name::new(parent.name(Error::Invalid)?)?);
        // Answers that are still under way must be stale as well: wait for them.
        let _exclusive = parent.dir.inode_held().lock();
        if let Some(dentry) = dcache.d_lookup(parent.dir.dentry(), &name) {
            dcache.d_invalidate(&dentry);
            dcache.put(dentry);
        }
        Ok(())
    }

    /// Counters of the caches, and their sizes.
    pub fn statistics(&self) -> Statistics {
        self.ns.caches.statistics()
    }

    #[inline(always)]
    pub(crate) fn request<'a>(
        &'a self,
        ctx: &'a Context,
        start: Start<'a>,
        flags: LookupFlags,
    ) -> Request<'a> {
        Request {
            is_all: true,
            ..self.request_at(ctx, start.place, start.path, flags | start.flags)
        }
    }

    /// A relative path starts at `start`. The walk is part of an operation.
    #[inline(always)]
    pub(crate) fn request_at<'a>(
        &'a self,
        ctx: &'a Context,
        start: &'a VfsPath,
        path: &'a [u8],
        flags: LookupFlags,
    ) -> Request<'a> {
        // Here and not at the first call: whether there is one depends on the caches.
        lock::assert_no_call();
        Request {
            ns: &self.ns,
            ctx,
            start,
            path,
            flags,
            links: 0,
            is_head: false,
            is_all: false,
        }
    }

    /// # Errors
    /// [`Error::Invalid`] for a held place of another `Vfs`. The walk checks those of the context.
    #[inline(always)]
    pub(crate) fn start<'a>(&self, ctx: &'a Context, path: &'a impl AsPath) -> Result<Start<'a>> {
        let start = path.start(ctx);
        if start.is_held {
            self.is_own(start.place)?;
        }
        Ok(start)
    }

    /// # Errors
    /// [`Error::Invalid`] for a path of another `Vfs`.
    pub(crate) fn is_own(&self, place: &VfsPath) -> Result<()> {
        match place.home() == self.ns.home() {
            true => Ok(()),
            false => Err(Error::Invalid),
        }
    }

    pub(crate) fn ns(&self) -> &Namespace {
        &self.ns
    }
}

impl std::fmt::Debug for Vfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stats = self.statistics();
        write!(
            f,
            "Vfs({} names, {} inodes cached)",
            stats.dentries.0, stats.inodes.0
        )
    }
}
