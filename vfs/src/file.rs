//! Open files.
//!
//! | read             | to learn                                             |
//! |------------------|------------------------------------------------------|
//! | `open.rs`        | how a file comes to be open                          |
//! | this file        | reading, writing, and the file's attributes          |
//! | `file/range.rs`  | sizes, holes and allocation                          |
//! | `file/copy.rs`   | copying from one to another                          |
//! | `file/atime.rs`  | when a file counts as read                           |
//!
//! Every change of the file holds its inode exclusively; reading holds nothing. The rights were
//! decided when the file was opened, for the opener's credentials.

mod as_user;
mod atime;
mod copy;
mod range;

pub use as_user::FileAs;

use std::os::fd::BorrowedFd;

use crate::attr::{Attr, FileType};
use crate::call::call;
use crate::context::{Context, VfsPath};
use crate::error::{Error, Result};
use crate::filesystem::{FileHandle, SetAttr, StatFs, XattrFlags};
use crate::mount::{MountRef, Writing};
use crate::open::OpenFlags;
use crate::permission::Credentials;
use crate::readdir::{self, ReadDir};
use crate::target::Target;
use crate::vfs_inode::DEAD_DIR;
use crate::xattr;

/// No more than this is read or written at a time.
#[doc(alias = "MAX_RW_COUNT")]
const MOST: usize = 0x7fff_f000;

/// The end of the longest file.
#[doc(alias = "MAX_LFS_FILESIZE")]
const LONGEST: u64 = i64::MAX as u64;

/// An open file. It keeps its inode, its name's place and its mount in use, and lives on
/// when its last name is removed.
#[doc(alias = "struct file")]
pub struct File {
    path: VfsPath,
    flags: OpenFlags,
    credentials: Credentials,
    /// Regular files that are open for more than their place have one, and places that the
    /// back end wants to hold.
    handle: Option<Box<dyn FileHandle>>,
    /// While it is open for writing, the mount does not become read-only.
    _writing: Option<Writing<MountRef>>,
}

impl File {
    pub(crate) fn new(
        path: VfsPath,
        flags: OpenFlags,
        credentials: &Credentials,
        handle: Option<Box<dyn FileHandle>>,
        writing: Option<Writing<MountRef>>,
    ) -> File {
        File {
            path,
            flags,
            credentials: credentials.clone(),
            handle,
            _writing: writing,
        }
    }

    /// The file, used on behalf of `ctx` instead of its opener: for a server that keeps one open
    /// file for several clients.
    ///
    /// ```
    /// # let vfs = rcuwalk::Vfs::new(rcuwalk_memfs::MemFs::new())?;
    /// use rcuwalk::{Credentials, OpenFlags};
    ///
    /// let root = vfs.context(Credentials::root());
    /// let how = OpenFlags::WRITE | OpenFlags::CREATE;
    /// let file = vfs.open(&root, "/program", how.mode(0o4755))?;
    /// // A write by root keeps the set-id bit, one by a user takes it away.
    /// let user = vfs.context(Credentials::user(1000, 1000));
    /// file.write_at(b"from root", 0)?;
    /// assert_eq!(file.attr().mode, 0o4755);
    /// file.as_user(&user).write_at(b"from a user", 0)?;
    /// assert_eq!(file.attr().mode, 0o755);
    /// # Ok::<(), rcuwalk::Error>(())
    /// ```
    pub fn as_user<'f>(&'f self, ctx: &'f Context) -> FileAs<'f> {
        FileAs {
            file: self,
            who: ctx.credentials(),
        }
    }

    fn as_opener(&self) -> FileAs<'_> {
        FileAs {
            file: self,
            who: &self.credentials,
        }
    }

    /// Reads at `offset` into `buf`; 0 means the end of the file. May block.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] if it was not opened for reading, [`Error::IsADirectory`],
    /// [`Error::Invalid`] for an end past 2^63; errors of the back end.
    #[doc(alias("pread(2)", "vfs_read"))]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        check_range(offset, 0)?;
        if !self.flags.contains(OpenFlags::READ) {
            return Err(Error::BadDescriptor);
        }
        check_range(offset, buf.len())?;
        let handle = self.handle()?;
        let most = buf.len().min(MOST);
        let buf = &mut buf[..most];
        if buf.is_empty() {
            return Ok(0);
        }
        let read = call(handle).read_at(buf, offset)?;
        self.accessed();
        Ok(read)
    }

    /// Writes at `offset`, or at the end if the file was opened to append; returns how
    /// much. Set-id bits and file capabilities are lost. May block.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] if it was not opened for writing, [`Error::Invalid`] for an end
    /// past 2^63, [`Error::FileTooBig`], [`Error::NoSpace`]; errors of the back end.
    #[doc(alias("pwrite(2)", "vfs_write", "generic_write_checks"))]
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.as_opener().write_at(buf, offset)
    }

    /// Returns when the written data is safe; with `data_only` the times need not be. For a
    /// directory, when its names are.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] if it was opened as a path; errors of the back end.
    #[doc(alias("fsync(2)", "fdatasync(2)"))]
    pub fn sync(&self, data_only: bool) -> Result<()> {
        self.not_only_place()?;
        match &self.handle {
            Some(handle) => call(&**handle).sync(data_only),
            None => self.retry(|| {
                let target = self.target();
                target.with_at(|at| target.sb().fs().sync_dir(&target.caller(), at))
            }),
        }
    }

    /// The attributes, as cached.
    #[doc(alias = "fstat(2)")]
    pub fn attr(&self) -> Attr {
        self.path.attr()
    }

    /// The attributes, which the back end reads from the open file or directory: for callers
    /// that know of a change past the VFS. May block.
    ///
    /// # Errors
    /// What the back end reports.
    pub fn stat(&self) -> Result<Attr> {
        if let Some(handle) = &self.handle {
            let inode = self.path.inode_held();
            // So that the later of two answers stays.
            let _exclusive = inode.lock();
            call(&**handle).refresh(inode)?;
        } else if self.attr().kind == FileType::Directory {
            // As a walk does that starts here: lookups in it go on meanwhile.
            let sb = &self.path.mnt().sb;
            self.retry(|| sb.fs().refresh(sb, self.path.inode()))?;
        }
        Ok(self.attr())
    }

    /// The host's file that holds the contents, if there is one that the caller may read and
    /// write in place of this one, with the rights that this one was opened with. Only the host
    /// removes set-id bits for writes there, and the VFS learns of them only by
    /// [`stat`](Self::stat).
    #[doc(alias = "FUSE_PASSTHROUGH")]
    pub fn backing(&self) -> Option<BorrowedFd<'_>> {
        self.handle.as_deref()?.backing()
    }

    /// Whether it holds a descriptor of this process ([`FileHandle::holds_descriptor`]).
    pub fn holds_descriptor(&self) -> bool {
        let handle = self.handle.as_deref();
        handle.is_some_and(FileHandle::holds_descriptor)
    }

    /// Changes attributes with the opener's credentials.
    ///
    /// # Errors
    /// As [`Vfs::setattr`](crate::Vfs::setattr); [`Error::BadDescriptor`] for an `O_PATH` file,
    /// [`Error::Invalid`] for the size of a file that is not open for writing.
    #[doc(alias("fchmod(2)", "fchown(2)", "futimens(3)"))]
    pub fn setattr(&self, change: &SetAttr) -> Result<()> {
        self.not_only_place()?;
        if change.size.is_some() && !self.flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid);
        }
        self.as_opener().setattr(change)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// As [`Vfs::get_xattr`](crate::Vfs::get_xattr); [`Error::BadDescriptor`] if it was opened
    /// as a path.
    #[doc(alias = "fgetxattr(2)")]
    pub fn get_xattr(&self, name: impl AsRef<[u8]>) -> Result<Box<[u8]>> {
        xattr::check_name(name.as_ref())?;
        self.not_only_place()?;
        self.retry(|| self.target().get_xattr(name.as_ref()))
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As [`Vfs::set_xattr`](crate::Vfs::set_xattr); [`Error::BadDescriptor`] if it was opened
    /// as a path.
    #[doc(alias = "fsetxattr(2)")]
    pub fn set_xattr(&self, name: impl AsRef<[u8]>, value: &[u8], how: XattrFlags) -> Result<()> {
        xattr::check_set(name.as_ref(), value, how)?;
        self.not_only_place()?;
        self.retry(|| self.target().set_xattr(name.as_ref(), value, how))
    }

    /// The names of all extended attributes that the opener of the file may see.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] if it was opened as a path; errors of the back end.
    #[doc(alias = "flistxattr(2)")]
    pub fn list_xattrs(&self) -> Result<Vec<Box<[u8]>>> {
        self.not_only_place()?;
        self.retry(|| self.target().list_xattrs())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`Vfs::remove_xattr`](crate::Vfs::remove_xattr); [`Error::BadDescriptor`] if it was
    /// opened as a path.
    #[doc(alias = "fremovexattr(2)")]
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        xattr::check_name(name.as_ref())?;
        self.not_only_place()?;
        self.retry(|| self.target().remove_xattr(name.as_ref()))
    }

    /// Lists the directory from its start, as [`Vfs::read_dir`](crate::Vfs::read_dir).
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] if it was opened as a path, [`Error::NotADirectory`].
    #[doc(alias("getdents64(2)", "iterate_dir"))]
    pub fn read_dir(&self) -> Result<ReadDir> {
        self.read_dir_from(0)
    }

    /// Lists the directory after a position: that of an entry
    /// ([`DirEntry::next`](crate::DirEntry::next)), or 0 for the start. The entry may have been
    /// removed since.
    ///
    /// # Errors
    /// As [`read_dir`](Self::read_dir).
    #[doc(alias("seekdir(3)", "telldir(3)"))]
    pub fn read_dir_from(&self, position: u64) -> Result<ReadDir> {
        self.may_list()?;
        Ok(ReadDir::from(self.path.clone(), position))
    }

    fn may_list(&self) -> Result<()> {
        self.not_only_place()?;
        if self.path.inode().kind() != FileType::Directory {
            return Err(Error::NotADirectory);
        }
        // A removed directory has no entries any more.
        if !self.path.inode_held().shared().has(DEAD_DIR) {
            self.accessed();
        }
        Ok(())
    }

    /// Fills `buf` with the entries after a position, in the layout of getdents64(2), and returns
    /// how many bytes it has written: 0 at the end. [`Entries`](crate::Entries) reads them. Each
    /// entry has the position after it (`d_off`), and a later call goes on from any of them. `.`
    /// and `..` are not among the entries. Allocates nothing, and holds no lock between two calls.
    ///
    /// ```
    /// use rcuwalk::{Credentials, Entries, File, OpenFlags, Result, Vfs};
    ///
    /// fn names(dir: &File) -> Result<Vec<Box<[u8]>>> {
    ///     let (mut names, mut buf, mut position) = (Vec::new(), vec![0; 32 * 1024], 0);
    ///     loop {
    ///         let filled = dir.fill(position, &mut buf)?;
    ///         if filled == 0 {
    ///             return Ok(names);
    ///         }
    ///         for entry in Entries::new(&buf[..filled]) {
    ///             names.push(entry.name.into());
    ///             position = entry.next;
    ///         }
    ///     }
    /// }
    ///
    /// # fn main() -> Result<()> {
    /// let vfs = Vfs::new(rcuwalk_memfs::MemFs::new())?;
    /// let me = vfs.context(Credentials::root());
    /// vfs.create(&me, "/a", 0o644)?;
    /// vfs.mkdir(&me, "/b", 0o755)?;
    /// let root = vfs.open(&me, "/", OpenFlags::READ)?;
    /// assert_eq!(names(&root)?.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`read_dir`](Self::read_dir); [`Error::NotFound`] if the directory has been removed;
    /// [`Error::Invalid`] if `buf` has no room for the next entry: 280 bytes are enough for any.
    #[doc(alias("getdents64(2)", "filldir64"))]
    pub fn fill(&self, position: u64, buf: &mut [u8]) -> Result<usize> {
        self.may_list()?;
        self.retry(|| readdir::fill(&self.path, position, buf))
    }

    /// How full its file system is.
    ///
    /// # Errors
    /// What the back end reports.
    #[doc(alias = "fstatfs(2)")]
    pub fn statfs(&self) -> Result<StatFs> {
        let sb = &self.path.mnt().sb;
        self.retry(|| sb.fs().statfs(sb))
    }

    /// The path that was opened. As the current directory of a [`Context`](crate::Context) it
    /// is the start of the `…at` calls; with an empty path and
    /// [`LookupFlags::EMPTY_PATH`](crate::LookupFlags::EMPTY_PATH), the file itself.
    #[doc(alias = "fchdir(2)")]
    pub fn path(&self) -> &VfsPath {
        &self.path
    }

    /// The flags it was opened with.
    #[doc(alias = "F_GETFL")]
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Runs an operation, [again](crate::retry) if the caches made it fail: `Stale` says that
    /// the attributes by which it was permitted are outdated.
    fn retry<R>(&self, operation: impl FnMut() -> Result<R>) -> Result<R> {
        self.path.mnt().sb.caches.retry_held(operation)
    }

    /// The file, with the credentials of its opener.
    fn target(&self) -> Target<'_> {
        Target {
            open: self.handle.as_deref(),
            ..Target::new(&self.path, &self.credentials)
        }
    }

    /// Reading and writing are not for directories.
    fn handle(&self) -> Result<&dyn FileHandle> {
        self.handle.as_deref().ok_or(Error::IsADirectory)
    }

    fn to_write(&self) -> Result<&dyn FileHandle> {
        if !self.flags.contains(OpenFlags::WRITE) {
            return Err(Error::BadDescriptor);
        }
        self.handle()
    }

    fn not_only_place(&self) -> Result<()> {
        match self.flags.contains(OpenFlags::PATH) {
            true => Err(Error::BadDescriptor),
            false => Ok(()),
        }
    }
}

/// Offsets are signed in the kernel's interface.
#[doc(alias = "rw_verify_area")]
fn check_range(offset: u64, len: usize) -> Result<()> {
    let end = u64::try_from(len)
        .ok()
        .and_then(|len| offset.checked_add(len));
    match end {
        Some(..=LONGEST) => Ok(()),
        _ => Err(Error::Invalid),
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({:?}, {:?})", self.path, self.flags)
    }
}
