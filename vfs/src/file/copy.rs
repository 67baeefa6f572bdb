//! Copying from one open file to another.

use super::{File, FileAs, LONGEST, MOST};
use crate::attr::{FileType, InodeFlags};
use crate::call::call;
use crate::error::{Error, Result};
use crate::open::OpenFlags;
use crate::target::Target;
use crate::vfs_inode::InodeRef;

/// Bytes per read and write where the back end does not copy by itself.
const AT_ONCE: usize = 1 << 17;

impl File {
    /// Copies up to `len` bytes from `offset` on to `to`, at `to_offset`, and returns how
    /// many: fewer at the end of this file, or where something fails half-way; 0 means that
    /// there are none. The back end copies, if it can; else they are read and written. No
    /// more than 2 GiB at a time. May block.
    ///
    /// # Errors
    /// [`Error::IsADirectory`], [`Error::Invalid`] if either is not a regular file, for ranges
    /// of one file that overlap, and for offsets of 2^63 and more; [`Error::BadDescriptor`] if
    /// this was not opened for reading, or `to` not for writing, or for appending;
    /// [`Error::CrossDevice`] for another file system, [`Error::NotPermitted`] if `to` is
    /// immutable, [`Error::Overflow`] if a range wraps, [`Error::FileTooBig`],
    /// [`Error::NoSpace`]; errors of the back end.
    #[doc(alias("copy_file_range(2)", "vfs_copy_file_range", "splice_copy_file_range"))]
    pub fn copy_file_range(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        self.as_opener().copy_file_range(offset, to, to_offset, len)
    }
}

impl FileAs<'_> {
    /// As [`File::copy_file_range`].
    ///
    /// # Errors
    /// As [`File::copy_file_range`].
    pub fn copy_file_range(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        let (file, who) = (self.file, &self.target(to));
        file.not_only_place()?;
        to.not_only_place()?;
        let len = file.check_copy((offset, to_offset, len), to)?;
        let (Some(from), Some(into)) = (&file.handle, &to.handle) else {
            return Err(Error::Invalid);
        };
        if len == 0 {
            return Ok(0);
        }
        let inode = to.path.inode_held();
        let by_back_end = {
            let _exclusive = inode.lock();
            who.remove_privs()?;
            call(&**into).copy_range(inode, to_offset, from.as_ref(), offset, len)
        };
        let copied = match by_back_end {
            Err(Error::NotSupported) => copy_by_hand(
                |buf, at| call(&**from).read_at(buf, offset + at),
                |piece, at| to.write_piece(who, inode, piece, to_offset + at),
                len,
            )?,
            done => done?,
        };
        if copied > 0 {
            file.accessed();
        }
        Ok(copied)
    }
}

impl File {
    /// Checks the arguments, in the kernel's order, and returns how much to copy.
    #[doc(alias("generic_copy_file_checks", "rw_verify_area"))]
    fn check_copy(&self, (offset, to_offset, len): (u64, u64, u64), to: &File) -> Result<u64> {
        let (from_inode, to_inode) = (self.path.inode(), to.path.inode());
        let kinds = [from_inode.kind(), to_inode.kind()];
        if kinds.contains(&FileType::Directory) {
            return Err(Error::IsADirectory);
        }
        if kinds != [FileType::Regular; 2] {
            return Err(Error::Invalid);
        }
        if !self.flags.contains(OpenFlags::READ)
            || !to.flags.contains(OpenFlags::WRITE)
            || to.flags.contains(OpenFlags::APPEND)
        {
            return Err(Error::BadDescriptor);
        }
        if !std::ptr::eq(&*self.path.mnt().sb, &*to.path.mnt().sb) {
            return Err(Error::CrossDevice);
        }
        if to_inode.flags().contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted);
        }
        if offset.checked_add(len).is_none() || to_offset.checked_add(len).is_none() {
            return Err(Error::Overflow);
        }
        // Up to the end as it is known. A file of another kind reports its end itself.
        let known = len.min(from_inode.attr().size.saturating_sub(offset));
        if to_offset == LONGEST {
            return Err(Error::FileTooBig);
        }
        let room = LONGEST.saturating_sub(to_offset);
        let is_same = std::ptr::eq(from_inode, to_inode);
        if is_same {
            let known = known.min(room);
            if to_offset + known > offset && to_offset < offset + known {
                return Err(Error::Invalid);
            }
        }
        if offset > LONGEST || to_offset > LONGEST {
            return Err(Error::Invalid);
        }
        let most = if is_same { known } else { len };
        Ok(most.min(room).min(LONGEST - offset).min(MOST as u64))
    }

    fn write_piece(
        &self,
        who: &Target<'_>,
        inode: &InodeRef,
        piece: &[u8],
        offset: u64,
    ) -> Result<usize> {
        let _exclusive = inode.lock();
        who.remove_privs()?;
        call(self.to_write()?).write_at(inode, piece, offset)
    }
}

/// Reads and writes; both are told how far it is.
fn copy_by_hand(
    read: impl Fn(&mut [u8], u64) -> Result<usize>,
    write: impl Fn(&[u8], u64) -> Result<usize>,
    len: u64,
) -> Result<u64> {
    let mut buf = vec![0; AT_ONCE.min(usize::try_from(len).unwrap_or(AT_ONCE))];
    let mut copied = 0;
    while copied < len {
        let left = usize::try_from(len - copied).unwrap_or(AT_ONCE);
        let most = buf.len().min(left);
        let piece = read(&mut buf[..most], copied).and_then(|read| match read {
            0 => Ok(0),
            read => write(&buf[..read], copied),
        });
        match piece {
            Ok(0) => break,
            Ok(written) => copied += written as u64,
            Err(err) if copied == 0 => return Err(err),
            // Bytes copied so far count; the next call is about the rest.
            Err(_) => break,
        }
    }
    Ok(copied)
}
