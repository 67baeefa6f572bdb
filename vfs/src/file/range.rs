//! Sizes, holes and allocation of open files.

use super::{File, FileAs, LONGEST};
use crate::attr::{FileType, InodeFlags};
use crate::call::call;
use crate::error::{Error, Result};
use crate::filesystem::{Allocate, SeekTo, SetTime};
use crate::open::OpenFlags;
use crate::setattr::check_size;

impl File {
    /// Changes its size. It counts as written also if the size stays.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no regular file that was opened for writing, and for a size
    /// of 2^63 or more; [`Error::BadDescriptor`] if it was opened as a path,
    /// [`Error::NotPermitted`] if it is append-only, [`Error::FileTooBig`], [`Error::NoSpace`].
    #[doc(alias("ftruncate(2)", "do_ftruncate"))]
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.as_opener().set_len(size)
    }

    /// Allocates, punches or zeroes `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for a combination of `how` that does not exist, or that
    /// this back end has not got; [`Error::Invalid`] for an empty range and numbers of
    /// 2^63 or more, [`Error::FileTooBig`] for an end past 2^63, [`Error::BadDescriptor`]
    /// if it was not opened to be written, [`Error::NotPermitted`] if it is immutable or
    /// append-only, [`Error::NoSpace`].
    #[doc(alias("fallocate(2)", "vfs_fallocate"))]
    pub fn allocate(&self, how: Allocate, offset: u64, len: u64) -> Result<()> {
        self.as_opener().allocate(how, offset, len)
    }

    /// The next byte from `offset` on that is in no hole.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`] if there is none up to the end of the file, [`Error::Invalid`]
    /// for a directory, [`Error::BadDescriptor`] if it was opened as a path.
    #[doc(alias("lseek(2)", "SEEK_DATA"))]
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.seek(offset, SeekTo::Data)
    }

    /// The next hole from `offset` on; the end of the file counts as one.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`] if `offset` is the end of the file or beyond; as
    /// [`seek_data`](Self::seek_data).
    #[doc(alias("lseek(2)", "SEEK_HOLE"))]
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.seek(offset, SeekTo::Hole)
    }

    #[doc(alias = "generic_file_llseek")]
    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.not_only_place()?;
        let handle = self.handle.as_deref().ok_or(Error::Invalid)?;
        let size = self.attr().size;
        if offset >= size {
            return Err(Error::NoSuchDevice);
        }
        let found = call(handle).seek(offset, to);
        match (found, to) {
            (Ok(Some(found)), _) => Ok(found),
            (Ok(None), SeekTo::Data) => Err(Error::NoSuchDevice),
            (Ok(None), SeekTo::Hole) => Ok(size),
            // It is all data, with a hole behind it.
            (Err(Error::NotSupported), SeekTo::Data) => Ok(offset),
            (Err(Error::NotSupported), SeekTo::Hole) => Ok(size),
            (Err(err), _) => Err(err),
        }
    }
}

impl FileAs<'_> {
    /// As [`File::set_len`].
    ///
    /// # Errors
    /// As [`File::set_len`].
    pub fn set_len(&self, size: u64) -> Result<()> {
        let file = self.file;
        check_size(size)?;
        file.not_only_place()?;
        if file.handle.is_none() || !file.flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid);
        }
        if file.path.inode().flags().contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted);
        }
        self.target(file).do_truncate(size, Some(SetTime::Now))
    }

    /// As [`File::allocate`].
    ///
    /// # Errors
    /// As [`File::allocate`].
    pub fn allocate(&self, how: Allocate, offset: u64, len: u64) -> Result<()> {
        let file = self.file;
        file.not_only_place()?;
        if offset > LONGEST || len > LONGEST || len == 0 {
            return Err(Error::Invalid);
        }
        let what = how - Allocate::KEEP_SIZE;
        let keeps_size = how.contains(Allocate::KEEP_SIZE);
        match what {
            Allocate::PUNCH_HOLE if keeps_size => {}
            Allocate::ZERO_RANGE => {}
            what if what.is_empty() => {}
            _ => return Err(Error::NotSupported),
        }
        if !file.flags.contains(OpenFlags::WRITE) {
            return Err(Error::BadDescriptor);
        }
        let flags = file.path.inode().flags();
        let preallocates = what.is_empty();
        if flags.contains(InodeFlags::APPEND) && !preallocates
            || flags.contains(InodeFlags::IMMUTABLE)
        {
            return Err(Error::NotPermitted);
        }
        let handle = match (file.path.inode().kind(), &file.handle) {
            (FileType::Regular, Some(handle)) => handle,
            (FileType::Directory, _) => return Err(Error::IsADirectory),
            (FileType::Fifo, _) => return Err(Error::IllegalSeek),
            _ => return Err(Error::NoDevice),
        };
        match offset.checked_add(len) {
            Some(..=LONGEST) => {}
            _ => return Err(Error::FileTooBig),
        }
        let inode = file.path.inode_held();
        let _exclusive = inode.lock();
        let allocated = call(&**handle).allocate(inode, how, offset, len);
        // A back end without this operation says so before anything changes.
        if !matches!(allocated, Err(Error::NotSupported)) {
            self.target(file).remove_privs()?;
        }
        allocated
    }
}
