//! Files found again by number or by handle, for clients that come back with either.
//!
//! HANDLE-1: an inode number and its generation, which is in the inode, are one file of the image.
//! A handle is both, after the image's UUID.
//! All files of an image are below its root, so only a directory needs a path: the one above it is
//! its `..`, and has its name among its entries.

use std::ops::ControlFlow;

use rcuwalk::{ByNumber, FileType, SuperBlock as Sb};

use super::{ROOT, check_named};
use crate::dir::Directory;
use crate::error::{Error, Result};
use crate::ext4::Ext4;
use crate::volume::InodeCursor;

/// Paths of more names are longer than the VFS walks.
const DEEPEST: usize = 4096;

impl Ext4 {
    /// The file that has `number`, which clients may make up.
    ///
    /// # Errors
    /// [`Stale`](rcuwalk::Error::Stale) if the inode is not in use, or no file's.
    pub(super) fn find_number(&self, sb: &Sb, number: u64) -> rcuwalk::Result<ByNumber> {
        let ino = u32::try_from(number).map_err(|_| rcuwalk::Error::Stale)?;
        // No directory has the number 0.
        check_named(self.volume.super_block(), 0, ino).map_err(|_| rcuwalk::Error::Stale)?;
        let inode = match self.volume.inode(ino) {
            Err(Error::NotFound) => return Err(rcuwalk::Error::Stale),
            inode => inode?,
        };
        if inode.kind == FileType::Directory {
            let path = self.path_of(ino)?.ok_or(rcuwalk::Error::Stale)?;
            return Ok(ByNumber::Path(path.into()));
        }
        let inode = self.iget(sb, &mut InodeCursor::default(), ino)?;
        Ok(ByNumber::Inode(inode))
    }

    /// The handle of the inode `ino`.
    pub(super) fn handle_of(&self, ino: u32, generation: u32) -> Box<[u8]> {
        let uuid = self.volume.super_block().uuid();
        let numbers = [ino, generation].map(u32::to_le_bytes);
        uuid.iter().chain(numbers.as_flattened()).copied().collect()
    }

    /// The file of a handle, which clients may make up.
    ///
    /// # Errors
    /// [`Stale`](rcuwalk::Error::Stale) if it is of another image, or of a file that is gone.
    pub(super) fn find_handle(&self, sb: &Sb, id: &[u8]) -> rcuwalk::Result<ByNumber> {
        let uuid = self.volume.super_block().uuid();
        let Some(([ino, generation], [])) = id.strip_prefix(uuid).map(<[u8]>::as_chunks) else {
            return Err(rcuwalk::Error::Stale);
        };
        let ino = u32::from_le_bytes(*ino);
        let found = self.find_number(sb, ino.into())?;
        match self.volume.inode(ino)?.generation.to_le_bytes() == *generation {
            true => Ok(found),
            false => Err(rcuwalk::Error::Stale),
        }
    }

    /// The path of the directory `dir` from the root; `None` if the image is damaged in such a way
    /// that it has none.
    fn path_of(&self, mut dir: u32) -> Result<Option<Vec<u8>>> {
        let mut path = Vec::new();
        for _ in 0..DEEPEST {
            if dir == ROOT {
                return Ok(Some(path));
            }
            let Some(above) = self.lookup(dir, b"..")? else {
                return Ok(None);
            };
            let Some(name) = self.name_in(above, dir)? else {
                return Ok(None);
            };
            path.splice(0..0, name.into_iter().chain(*b"/"));
            dir = above;
        }
        Ok(None)
    }

    /// The name of the directory `ino` in the one above it.
    fn name_in(&self, above: u32, ino: u32) -> Result<Option<Vec<u8>>> {
        let above = self.volume.inode(above)?;
        let mut name = None;
        Directory::open(&self.volume, &above)?.list(0, &mut |entry, _| {
            if entry.ino != ino || entry.is_dot() {
                return ControlFlow::Continue(());
            }
            name = Some(entry.name.to_vec());
            ControlFlow::Break(())
        })?;
        Ok(name)
    }
}
