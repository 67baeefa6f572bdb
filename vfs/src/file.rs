//! Open files.

use crate::attr::{Attr, FileType};
use crate::context::VfsPath;
use crate::error::{Error, Result};
use crate::filesystem::{At, FileHandle};
use crate::name::Name;

/// An open file. It keeps its inode, its name's place and its mount in use.
#[doc(alias = "struct file")]
pub struct File {
    path: VfsPath,
    handle: Box<dyn FileHandle>,
}

impl File {
    pub(crate) fn open(path: VfsPath) -> Result<File> {
        match path.inode().kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsADirectory),
            FileType::Symlink => return Err(Error::TooManySymlinks),
            _ => return Err(Error::NoSuchDevice),
        }
        let sb = &path.mnt().sb;
        let place = path.dentry().place();
        let dir = place.as_ref().and_then(|(parent, _)| parent.inode_ref());
        let parent = match (&dir, &place) {
            (Some(dir), Some((_, name))) => Some((&**dir, Name::new(name)?)),
            _ => None,
        };
        let handle = sb.fs().open(
            sb,
            &At {
                parent,
                inode: path.inode(),
            },
        )?;
        Ok(File { path, handle })
    }

    /// Reads at `offset` into `buf`; 0 means the end of the file. May block.
    ///
    /// # Errors
    /// What the back end reports.
    #[doc(alias = "pread(2)")]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.handle.read_at(buf, offset)
    }

    /// The attributes, as cached.
    #[doc(alias = "fstat(2)")]
    pub fn attr(&self) -> Attr {
        self.path.attr()
    }

    /// Where it was opened.
    pub fn path(&self) -> &VfsPath {
        &self.path
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("File").field(&self.path).finish()
    }
}
