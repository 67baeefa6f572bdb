//! The root, current directory and credentials of a walk: [`Context`]; the paths that walks
//! lead to; and how a call names its file: [`AsPath`].

use rcuwalk_sync::{Shared, rcu};

use crate::attr::Attr;
use crate::dentry::{Dentry, DentryRef, Flags};
use crate::mount::{Mount, MountRef};
use crate::permission::Credentials;
use crate::vfs_inode::{Inode, InodeRef};
use crate::walk::LookupFlags;

/// A path in the namespace, held: it stays the same file, whatever happens to its name, until
/// the `VfsPath` is dropped.
#[doc(alias = "struct path")]
#[derive(Clone)]
pub struct VfsPath {
    mnt: MountRef,
    /// `Some` until it is dropped.
    dentry: Option<DentryRef>,
    /// A positive dentry with a reference keeps its inode; held here as well, so that it can be
    /// borrowed without a guard.
    inode: InodeRef,
}

impl VfsPath {
    pub(crate) fn new(mnt: MountRef, dentry: DentryRef, inode: InodeRef) -> VfsPath {
        let dentry = Some(dentry);
        VfsPath { mnt, dentry, inode }
    }

    /// Takes references to a path that is still under RCU protection. The caller rechecks
    /// afterwards that it is the right one.
    pub(crate) fn try_get(mnt: &Shared<Mount>, dentry: &Shared<Dentry>) -> Option<VfsPath> {
        let dentry = dentry.try_get()?;
        let inode = dentry.inode_ref()?;
        Some(VfsPath::new(mnt.try_get()?, dentry, inode))
    }

    /// Goes on to another dentry of the same mount.
    pub(crate) fn step_to(&mut self, dentry: DentryRef, inode: InodeRef) {
        let from = self.dentry.replace(dentry);
        self.inode = inode;
        if let Some(from) = from {
            self.mnt.sb.caches.dcache.put(from);
        }
    }

    /// Its inode.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// A reference to the inode that outlives the path.
    pub fn inode_ref(&self) -> InodeRef {
        self.inode.clone()
    }

    pub(crate) fn inode_held(&self) -> &InodeRef {
        &self.inode
    }

    /// The inode's attributes, as cached. Takes no lock.
    pub fn attr(&self) -> Attr {
        self.inode.attr()
    }

    /// True if [`attr`](Self::attr) is up to date, as far as the back end's
    /// [`Freshness`](crate::Freshness) goes; otherwise [`Vfs::stat`](crate::Vfs::stat) asks the
    /// back end. Takes no lock.
    pub fn is_fresh(&self) -> bool {
        let guard = rcu::read_lock();
        let (dentry, sb) = (self.dentry(), &self.mnt.sb);
        let flags = dentry.flags();
        !flags.intersects(Flags::INVALIDATED | Flags::UNHASHED)
            && (!flags.contains(Flags::REVALIDATE) || sb.is_place_fresh(dentry, &guard))
    }

    /// The number to show users for the inode number `ino` of this inode, or of an entry of this
    /// directory: one that no two files of the file system have
    /// ([`FileSystem::number`](crate::FileSystem::number)).
    pub fn number_of(&self, ino: u64) -> u64 {
        self.mnt.sb.about().number(self.inode.inode_key(), ino)
    }

    /// As [`number_of`](Self::number_of), for an inode of the same file system: the number that
    /// its own path gives.
    pub fn number_of_inode(&self, inode: &Inode) -> u64 {
        let key = inode.inode_key();
        self.mnt.sb.about().number(key, key.ino)
    }

    /// False once the name is known to refer to another file, or to be missing: the file lives
    /// on, by its other names or as long as it is open.
    #[doc(alias = "d_unhashed")]
    pub fn is_named(&self) -> bool {
        !self.dentry().flags().contains(Flags::UNHASHED)
    }

    /// The directory in which the cache has the file, and its name there; `None` for a root. Asks
    /// no back end and takes no lock. The name may be gone by now ([`is_named`](Self::is_named)).
    #[doc(alias("d_parent", "d_name"))]
    pub fn dir_and_name(&self) -> Option<(InodeRef, Box<[u8]>)> {
        let (dir, name) = self.dentry().place()?;
        Some((dir.inode_ref()?, name))
    }

    /// True if both are the same name in the same mount.
    pub fn is_same_place(&self, other: &VfsPath) -> bool {
        DentryRef::ptr_eq(self.dentry(), other.dentry()) && self.mnt.is(&other.mnt)
    }

    #[inline]
    pub(crate) fn mnt(&self) -> &MountRef {
        &self.mnt
    }

    #[inline]
    pub(crate) fn dentry(&self) -> &DentryRef {
        self.dentry.as_ref().expect("there until it is dropped")
    }

    /// The caches of the `Vfs` that it belongs to, by address: those stay as long as it is held.
    pub(crate) fn home(&self) -> usize {
        std::ptr::from_ref(&*self.mnt.sb.caches).addr()
    }

    /// False for the root of the root mount.
    fn has_something_above(&self) -> bool {
        !self.is_mount_root() || self.mnt.point.is_some()
    }

    pub(crate) fn is_mount_root(&self) -> bool {
        DentryRef::ptr_eq(self.dentry(), &self.mnt.root)
    }
}

impl Drop for VfsPath {
    fn drop(&mut self) {
        if let Some(dentry) = self.dentry.take() {
            self.mnt.sb.caches.dcache.put(dentry);
        }
    }
}

impl std::fmt::Debug for VfsPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Attr { dev, ino, kind, .. } = self.attr();
        write!(f, "VfsPath({kind:?} {dev}:{ino})")
    }
}

/// How a call of [`Vfs`](crate::Vfs) names its file: by a path, or as a [`VfsPath`] that the caller
/// holds. A path is a `&str`, a `&[u8]` and the like; a relative one starts at the context's current
/// directory. A held file is found whatever has happened to its name, and the context only says who
/// asks.
///
/// ```
/// use rcuwalk::{Credentials, LookupFlags, OpenFlags, Vfs};
///
/// let vfs = Vfs::new(rcuwalk_memfs::MemFs::new())?;
/// let ctx = vfs.context(Credentials::root());
/// vfs.mkdir(&ctx, "/dir", 0o755)?;
/// vfs.create(&ctx, "/dir/file", 0o644)?;
/// let held = vfs.lookup(&ctx, "/dir/file", LookupFlags::FOLLOW)?;
/// vfs.rename(&ctx, "/dir/file", "/moved")?;
/// vfs.chmod(&ctx, &held, 0o600)?;
/// assert_eq!(vfs.stat(&ctx, "/moved", LookupFlags::FOLLOW)?.mode, 0o600);
/// vfs.open(&ctx, &held, OpenFlags::READ)?;
/// # Ok::<(), rcuwalk::Error>(())
/// ```
#[doc(alias = "AT_EMPTY_PATH")]
pub trait AsPath {
    /// For calls of the library.
    #[doc(hidden)]
    fn start<'a>(&'a self, ctx: &'a Context) -> Start<'a>;
}

impl<T: AsRef<[u8]>> AsPath for T {
    #[inline(always)]
    fn start<'a>(&'a self, ctx: &'a Context) -> Start<'a> {
        Start::of(ctx, self.as_ref())
    }
}

impl AsPath for &VfsPath {
    #[inline]
    fn start<'a>(&'a self, _: &'a Context) -> Start<'a> {
        Start {
            place: self,
            path: &[],
            flags: LookupFlags::EMPTY_PATH,
            is_held: true,
        }
    }
}

/// Where a walk starts, and its path.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    pub(crate) place: &'a VfsPath,
    pub(crate) path: &'a [u8],
    pub(crate) flags: LookupFlags,
    /// The caller has named a place of its own, perhaps of another `Vfs`.
    pub(crate) is_held: bool,
}

impl<'a> Start<'a> {
    #[inline(always)]
    pub(crate) fn of(ctx: &'a Context, path: &'a [u8]) -> Start<'a> {
        Start {
            place: ctx.cwd(),
            path,
            flags: LookupFlags::empty(),
            is_held: false,
        }
    }
}

/// The caller of a path walk, as the kernel keeps it with a process: a root, a current
/// directory, and credentials.
#[doc(alias("struct fs_struct", "struct cred"))]
#[derive(Clone, Debug)]
pub struct Context {
    root: VfsPath,
    /// Unless that is the root.
    cwd: Option<VfsPath>,
    credentials: Credentials,
    umask: u16,
    /// There is something above the root that a walk must not reach (WALK-3).
    contained: bool,
    /// The [home](VfsPath::home) of its root and current directory; 0 if they have two, or if
    /// walks are contained. So a walk compares one word to know that it has nothing of this to
    /// check.
    plain_home: usize,
}

impl Context {
    /// A context whose root and current directory is `root`, and whose walks get no further up:
    /// for servers whose clients name a directory, and a name in it.
    /// [`Vfs::context`](crate::Vfs::context) is for callers that have the whole tree.
    pub fn within(root: VfsPath, credentials: Credentials) -> Context {
        Context {
            cwd: None,
            contained: root.has_something_above(),
            plain_home: 0,
            root,
            credentials,
            umask: 0,
        }
        .at_home()
    }

    /// Replaces the root: absolute paths and links start there, and `..` does not lead above
    /// it. The current directory stays; walks from one that is not below the root, or that is
    /// moved out of it, fail with [`Error::CrossDevice`](crate::Error::CrossDevice).
    #[doc(alias = "chroot")]
    pub fn with_root(self, root: VfsPath) -> Context {
        let cwd = Some(self.cwd.unwrap_or(self.root));
        Context {
            contained: root.has_something_above(),
            root,
            cwd,
            ..self
        }
        .at_home()
    }

    /// Replaces the current directory: relative paths start there.
    #[doc(alias("chdir", "fchdir"))]
    pub fn with_cwd(self, cwd: VfsPath) -> Context {
        let cwd = Some(cwd);
        Context { cwd, ..self }.at_home()
    }

    fn at_home(self) -> Context {
        let home = self.root.home();
        let is_plain = !self.contained && self.is_of(home);
        let plain_home = if is_plain { home } else { 0 };
        Context { plain_home, ..self }
    }

    /// Replaces the credentials.
    pub fn with_credentials(self, credentials: Credentials) -> Context {
        Context {
            credentials,
            ..self
        }
    }

    /// Sets the permission bits that new files do not get; by default none.
    #[doc(alias = "umask(2)")]
    pub fn with_umask(self, umask: u16) -> Context {
        Context {
            umask: umask & 0o777,
            ..self
        }
    }

    /// Permission bits that new files do not get.
    pub fn umask(&self) -> u16 {
        self.umask
    }

    /// True if a walk has to stay below the root, because there is more above it.
    pub(crate) fn is_contained(&self) -> bool {
        self.contained
    }

    /// True if its walks are walks of the `Vfs` with this [home](VfsPath::home), and are not
    /// contained.
    #[inline]
    pub(crate) fn is_plain_in(&self, home: usize) -> bool {
        self.plain_home == home
    }

    /// True if its places are those of the `Vfs` with this [home](VfsPath::home).
    pub(crate) fn is_of(&self, home: usize) -> bool {
        self.root.home() == home && self.cwd().home() == home
    }

    /// Where absolute paths start.
    #[inline]
    pub fn root(&self) -> &VfsPath {
        &self.root
    }

    /// Where relative paths start.
    #[inline]
    pub fn cwd(&self) -> &VfsPath {
        self.cwd.as_ref().unwrap_or(&self.root)
    }

    /// The credentials that permission checks use.
    #[inline]
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }
}
