//! What a back end implements: [`FileSystem`].
//!
//! The VFS calls these methods with no cache lock and no RCU guard held (RCU-2),
//! so all of them may block. `lookup` and `read_dir` run with the directory's lock
//! held, shared at least; the changes with it exclusive, and with that of the file
//! that gains or loses a name; `revalidate` and `refresh` possibly with none. Two
//! lookups of the same missing name never run at once. Attributes that a change gives an inode
//! (a link count, a size, times) are the back end's to publish, by
//! [`Inode::set_attr`].
//!
//! A back end never caches inodes itself: it asks [`SuperBlock::iget`] and either
//! gets the cached inode or a [`NewInode`](crate::NewInode) to fill in.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::attr::{Attr, FileType};
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeRef};
use crate::name::Name;
use crate::super_block::SuperBlock;

/// How long what was looked up stays believed without asking the back end again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// For ever: nobody changes the back end but through this VFS.
    Always,
    /// For this long after the back end last said so.
    Ttl(Duration),
    /// Not at all: each use of a cached name asks [`FileSystem::revalidate`].
    EachUse,
}

/// A file system that can be mounted.
#[doc(alias("inode_operations", "super_operations"))]
pub trait FileSystem: Send + Sync + 'static {
    /// A short name for messages: `memfs`, `hostfs`, …
    fn name(&self) -> &str;

    /// Called once, at mount: the inode of the root directory.
    #[doc(alias = "fill_super")]
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef>;

    /// The inode that `name` in `dir` stands for, or `None` if there is no such name.
    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>>;

    /// Whether [`lookup_around`](Self::lookup_around) finds many names at the price of
    /// one.
    fn looks_around(&self) -> bool {
        false
    }

    /// As [`lookup`](Self::lookup), for a caller who will go on to ask for the names of
    /// this directory one by one: he has listed it. What comes to light with `name`
    /// (the rest of a block) goes to `around`, in the order it is found, until that
    /// breaks; `name` itself may be among it. Others that cannot be read are left out.
    ///
    /// Called with the directory held exclusively.
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

    /// Hands the entries after the position `from` (0: from the start) to `emit`
    /// until it breaks or they end. `.` and `..` are not among them.
    #[doc(alias = "iterate_shared")]
    fn read_dir(&self, sb: &SuperBlock, dir: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()>;

    /// Opens a regular file for reading.
    fn open(&self, sb: &SuperBlock, at: &At<'_>) -> Result<Box<dyn FileHandle>>;

    /// How long cached names and attributes of this file system are believed.
    fn freshness(&self) -> Freshness {
        Freshness::Always
    }

    /// True if `name` in `dir` still stands for `inode` (or still for nothing);
    /// brings the inode's attributes up to date where it does.
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

    /// Asks the back end for the attributes of an inode that was not reached by a
    /// name (a root). The default believes the cache.
    fn refresh(&self, sb: &SuperBlock, inode: &Inode) -> Result<()> {
        let _ = (sb, inode);
        Ok(())
    }

    /// Makes a new file, directory, link or node. The VFS has checked that the
    /// caller may and that the name is free.
    fn create(
        &self,
        sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        let _ = (sb, dir, name, new);
        Err(Error::ReadOnly)
    }

    /// Gives `inode` one more name.
    fn link(&self, inode: &Inode, dir: &Inode, name: Name<'_>) -> Result<()> {
        let _ = (inode, dir, name);
        Err(Error::ReadOnly)
    }

    /// Changes the permission bits of `inode`.
    fn set_mode(&self, inode: &Inode, mode: u16) -> Result<()> {
        let _ = (inode, mode);
        Err(Error::ReadOnly)
    }

    /// Removes the name of something that is no directory.
    fn unlink(&self, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        let _ = (dir, name, inode);
        Err(Error::ReadOnly)
    }

    /// Removes an empty directory.
    fn rmdir(&self, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        let _ = (dir, name, inode);
        Err(Error::ReadOnly)
    }

    /// Moves a name, replacing what has the new one.
    fn rename(
        &self,
        sb: &SuperBlock,
        from: (&Inode, Name<'_>),
        to: (&Inode, Name<'_>),
    ) -> Result<()> {
        let _ = (sb, from, to);
        Err(Error::ReadOnly)
    }
}

/// Where an opened file was found: back ends that hold no descriptor per inode
/// open it again by directory and name, and check that it is still the same.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// The directory and name it was reached by; `None` for a root.
    pub parent: Option<(&'a Inode, Name<'a>)>,
    /// The file itself.
    pub inode: &'a Inode,
}

/// An open file of a back end.
pub trait FileHandle: Send + Sync {
    /// Reads at `offset` into `buf`; 0 means the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
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
    /// The inode number, as in [`Attr::ino`].
    pub ino: u64,
    /// What it is, if the directory tells.
    pub kind: Option<FileType>,
    /// The position after this entry: where a later call goes on. Never 0, never
    /// reused for another entry while the directory lives (DIR-1).
    pub next: u64,
}

/// What [`FileSystem::create`] is to make.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// Regular file, directory, symbolic link, device node, …
    pub kind: FileType,
    /// Permission bits, the umask already applied.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number for device nodes.
    pub rdev: u64,
    /// Target, for a symbolic link.
    pub target: &'a [u8],
}

impl NewFile<'_> {
    /// The attributes the new inode starts with.
    pub fn attr(&self, ino: u64) -> Attr {
        Attr {
            nlink: if self.kind == FileType::Directory {
                2
            } else {
                1
            },
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.target.len() as u64,
            ..Attr::new(ino, self.kind, self.mode)
        }
    }
}
