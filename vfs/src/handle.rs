//! File handles: a file found again by its number, when neither a cache nor the caller has a path.
//!
//! A server (FUSE, NFS) gives its clients a number and a generation for each file, and a client may
//! come back with both long after the file has left all caches. The back end tells the generation
//! ([`FileSystem::generation`]), and finds the file of a number if it can
//! ([`FileSystem::by_number`]). If it knows a path, the VFS walks that like any other, which stays
//! below the root (WALK-3). So a directory always has a name and a directory above it. Another file
//! may have no name here: the back end says then that it is below the root, no walk leads to it or
//! from it, and a later lookup of one of its names finds the same inode.
//!
//! [`FileSystem::generation`]: crate::FileSystem::generation
//! [`FileSystem::by_number`]: crate::FileSystem::by_number

use crate::attr::FileType;
use crate::context::{Context, VfsPath};
use crate::dentry::Dentry;
use crate::error::{Error, Result};
use crate::filesystem::ByNumber;
use crate::permission::Credentials;
use crate::target::Target;
use crate::vfs::Vfs;
use crate::walk::LookupFlags;

impl Vfs {
    /// Finds the file that the file system at the root shows as `number`
    /// ([`VfsPath::number_of`]), without search permission for the directories above it.
    /// Compare its [`generation`](VfsPath::generation) with the one that belongs to the number.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such file, or the back end cannot find files by number.
    #[doc(alias("open_by_handle_at(2)", "exportfs_decode_fh", "fh_to_dentry"))]
    pub fn by_number(&self, number: u64) -> Result<VfsPath> {
        let root = self.root();
        let sb = &root.mnt().sb;
        // Before the back end is asked (FRESH-1).
        let validity = sb.validity(None);
        let found = sb.caches.retry_held(|| sb.fs().by_number(sb, number))?;
        let path = match found {
            ByNumber::Path(path) => path,
            ByNumber::Inode(inode) if inode.kind() == FileType::Directory => {
                return Err(Error::Stale);
            }
            ByNumber::Inode(inode) => {
                let dentry = Dentry::found_without_name(sb.id(), inode.clone(), validity);
                return Ok(VfsPath::new(root.mnt().clone(), dentry, inode));
            }
        };
        let ctx = Context::within(root.clone(), Credentials::root());
        let found = match self.lookup(&ctx, path, LookupFlags::REF_WALK) {
            Err(Error::NotFound | Error::NotADirectory | Error::NameTooLong) => {
                return Err(Error::Stale);
            }
            found => found?,
        };
        // Another file may have taken the path meanwhile.
        let attr = found.attr();
        match attr.dev == u64::from(sb.id()) && found.number_of(attr.ino) == number {
            true => Ok(found),
            false => Err(Error::Stale),
        }
    }
}

impl VfsPath {
    /// Asks the back end for the generation of this file: of the files that have the same number
    /// one after the other, each has another one. `None` if the back end has none.
    ///
    /// # Errors
    /// Those of the back end.
    #[doc(alias = "i_generation")]
    pub fn generation(&self) -> Result<Option<u32>> {
        let daemon = Credentials::root();
        let target = Target::new(self, &daemon);
        let caches = &target.sb().caches;
        caches.retry_held(|| target.with_at(|at| target.sb().fs().generation(&target.caller(), at)))
    }

    /// The [number](Self::number_of) of the directory that this place is in, and its name there, of
    /// one moment. `None` for the root of a mount, and for a place that has lost its name.
    #[doc(alias = "dget_parent")]
    pub fn number_above(&self) -> Option<(u64, Box<[u8]>)> {
        if !self.is_named() {
            return None;
        }
        let (dir, name) = self.dentry().place()?;
        let dir = dir.inode_ref()?;
        let number = self.mnt().sb.fs().number(dir.inode_key(), dir.attr().ino);
        Some((number, name))
    }
}
