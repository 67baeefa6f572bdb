//! The in-process interface: [`Vfs`].

use std::sync::Arc;

use crate::attr::{Attr, FileType};
use crate::budget::Budget;
use crate::caches::Caches;
use crate::context::{Context, VfsPath};
use crate::dentry::Flags;
use crate::error::{Error, Result};
use crate::file::File;
use crate::filesystem::FileSystem;
use crate::inode::{InodeStatistics, Scheme};
use crate::name::Name;
use crate::namespace::Namespace;
use crate::permission::{Access, Credentials};
use crate::readdir::ReadDir;
use crate::stats::Statistics;
use crate::walk::{LookupFlags, Request, filename_lookup, filename_parentat};

/// A tree of mounted file systems with its caches. Clones are handles to the same.
///
/// Paths are bytes: a `&str`, a `&[u8]`, or `path.as_os_str().as_bytes()` of a
/// `Path`. What is cached is answered without a lock and without a back-end call;
/// everything else may block in the back end.
///
/// Every method that takes a path fails with [`Error::NotFound`],
/// [`Error::NotADirectory`], [`Error::PermissionDenied`], [`Error::TooManySymlinks`]
/// or [`Error::NameTooLong`] as the system calls do, with [`Error::Invalid`] for a
/// path with a NUL in it, and with what the back end reports.
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

    /// Somebody who walks from the root of the tree.
    pub fn context(&self, credentials: Credentials) -> Context {
        Context::new(self.root(), credentials)
    }

    /// What the inode cache has been doing. Takes no lock.
    pub fn inode_statistics(&self) -> InodeStatistics {
        self.ns.caches.icache.statistics()
    }

    /// The root of the tree.
    pub fn root(&self) -> VfsPath {
        self.ns.root()
    }

    /// Mounts `fs` on a directory; what was there is hidden until it is unmounted.
    ///
    /// # Errors
    /// [`Error::NotADirectory`] if `at` is none.
    #[doc(alias = "mount(2)")]
    pub fn mount(&self, ctx: &Context, at: impl AsRef<[u8]>, fs: impl FileSystem) -> Result<()> {
        let at = self.lookup(ctx, at, LookupFlags::FOLLOW | LookupFlags::DIRECTORY)?;
        self.ns.mount(&at, Box::new(fs))
    }

    /// Unmounts the file system whose root `at` is.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `at` is not the root of a mount, or is that of the whole
    /// tree. [`Error::Busy`] while somebody holds a path or an open file in it, or
    /// something is mounted in it.
    #[doc(alias = "umount2(2)")]
    pub fn umount(&self, ctx: &Context, at: impl AsRef<[u8]>) -> Result<()> {
        let at = self.lookup(ctx, at, LookupFlags::FOLLOW)?;
        self.ns.umount(at)
    }

    /// Resolves `path` and holds what it leads to.
    ///
    /// # Errors
    /// See [`Vfs`].
    #[doc(alias("kern_path", "O_PATH"))]
    pub fn lookup(
        &self,
        ctx: &Context,
        path: impl AsRef<[u8]>,
        flags: LookupFlags,
    ) -> Result<VfsPath> {
        let request = self.request(ctx, path.as_ref(), flags);
        filename_lookup(&request, |found| found.try_get(), Ok)
    }

    /// The attributes of what `path` leads to. A cached answer takes no reference.
    ///
    /// # Errors
    /// See [`Vfs`].
    #[doc(alias("vfs_statx", "stat(2)", "lstat(2)"))]
    pub fn stat(&self, ctx: &Context, path: impl AsRef<[u8]>, flags: LookupFlags) -> Result<Attr> {
        let request = self.request(ctx, path.as_ref(), flags);
        filename_lookup(
            &request,
            |found| {
                let attr = found.inode()?.attr();
                found.is_still_true().then_some(attr)
            },
            |path| Ok(path.attr()),
        )
    }

    /// Checks whether the caller may access what `path` leads to; with an empty
    /// `mode`, whether it exists. A cached answer takes no reference.
    ///
    /// # Errors
    /// See [`Vfs`]; [`Error::PermissionDenied`] if the caller may not.
    #[doc(alias("access(2)", "faccessat2(2)"))]
    #[inline]
    pub fn access(
        &self,
        ctx: &Context,
        path: impl AsRef<[u8]>,
        mode: Access,
        flags: LookupFlags,
    ) -> Result<()> {
        let request = self.request(ctx, path.as_ref(), flags);
        let allowed = filename_lookup(
            &request,
            |found| {
                let allowed =
                    mode.is_empty() || ctx.credentials().may(found.inode()?, mode).is_ok();
                found.is_still_true().then_some(allowed)
            },
            |path| Ok(ctx.credentials().may(path.inode(), mode).is_ok()),
        )?;
        if allowed {
            Ok(())
        } else {
            Err(Error::PermissionDenied)
        }
    }

    /// The target of the symbolic link that `path` leads to.
    ///
    /// # Errors
    /// See [`Vfs`]; [`Error::Invalid`] if it is no symbolic link.
    #[doc(alias = "readlink(2)")]
    pub fn read_link(&self, ctx: &Context, path: impl AsRef<[u8]>) -> Result<Box<[u8]>> {
        let link = self.lookup(ctx, path, LookupFlags::default())?;
        if link.inode().kind() != FileType::Symlink {
            return Err(Error::Invalid);
        }
        let body = self.ns.link_body(&link.mnt().sb, &link.inode_ref())?;
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
    pub fn read_dir(&self, ctx: &Context, path: impl AsRef<[u8]>) -> Result<ReadDir> {
        let flags = LookupFlags::FOLLOW | LookupFlags::DIRECTORY;
        let dir = self.lookup(ctx, path, flags)?;
        ctx.credentials().may(dir.inode(), Access::READ)?;
        Ok(ReadDir::new(dir))
    }

    /// Opens the regular file that `path` leads to, for reading. With
    /// [`LookupFlags::CACHED`] the walk does not block; opening may.
    ///
    /// # Errors
    /// See [`Vfs`]; [`Error::IsADirectory`], and [`Error::NoSuchDevice`] for what is
    /// neither file nor directory.
    #[doc(alias("openat2(2)", "do_filp_open"))]
    pub fn open(&self, ctx: &Context, path: impl AsRef<[u8]>, flags: LookupFlags) -> Result<File> {
        let open = |flags| {
            let at = self.lookup(ctx, path.as_ref(), flags)?;
            ctx.credentials().may(at.inode(), Access::READ)?;
            File::open(at)
        };
        match open(flags) {
            // The name stands for another file by now: once more, asking the back end.
            Err(Error::Stale) => open(flags | LookupFlags::REVAL),
            opened => opened,
        }
    }

    /// Drops every cached name and inode that nobody uses.
    pub fn drop_caches(&self) {
        self.ns.caches.drop_unused();
    }

    /// Casts doubt on what the cache says about the last name of `path`, found or
    /// missing: the next walk asks the back end, and drops the cached name if it
    /// stands for something else by now. Who holds the old one keeps it. What is
    /// cached below a directory belongs to the directory and stays.
    ///
    /// Waits for lookups and changes of that directory that are under way, so that
    /// their answers are doubted, too; not to be called by a back end from within one.
    ///
    /// # Errors
    /// See [`Vfs`]. [`Error::Invalid`] for a path that ends in no name: `/`, `.`, `..`.
    #[doc(alias("d_invalidate", "FUSE_NOTIFY_INVAL_ENTRY"))]
    pub fn invalidate(&self, ctx: &Context, path: impl AsRef<[u8]>) -> Result<()> {
        let request = self.request(ctx, path.as_ref(), LookupFlags::default());
        let parent = filename_parentat(request)?;
        let dcache = &self.ns.caches.dcache;
        let name = dcache.name(Name::new(&parent.last)?);
        // What has been asked and not answered yet is in doubt as well: wait for it.
        let _exclusive = parent.dir.inode_held().rwsem.write();
        if let Some(dentry) = dcache.d_lookup(parent.dir.dentry(), &name) {
            dcache.change_flags(&dentry, |flags| flags.insert(Flags::DOUBTED));
        }
        Ok(())
    }

    /// What the caches have been doing, and what they hold.
    pub fn statistics(&self) -> Statistics {
        self.ns.caches.statistics()
    }

    #[inline(always)]
    pub(crate) fn request<'a>(
        &'a self,
        ctx: &'a Context,
        path: &'a [u8],
        flags: LookupFlags,
    ) -> Request<'a> {
        Request {
            ns: &self.ns,
            ctx,
            path,
            flags,
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
