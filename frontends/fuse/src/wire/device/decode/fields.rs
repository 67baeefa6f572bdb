//! The parts of messages. Each read returns a whole part, or [`Wrong`].

use rcuwalk::inode::NodeId;
use rcuwalk::{SetAttr, SetTime, Timestamp};

use super::super::abi::{self, set};
use super::{Forgets, NewFile, Offered, Operation, Piece};
use crate::ops::Change;

/// A field beyond the end, a string without an end, or a time that does not exist.
#[derive(Debug)]
pub(super) struct Wrong;

/// The rest of a message.
pub(super) struct Fields<'m>(pub(super) &'m [u8]);

impl<'m> Fields<'m> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Wrong)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Wrong> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Wrong> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, Wrong> {
        self.array().map(i32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Wrong> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'m [u8], Wrong> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Wrong)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Skips padding and unused fields.
    pub(super) fn skip(&mut self, len: usize) -> Result<(), Wrong> {
        self.take(len).map(drop)
    }

    pub(super) fn rest(&mut self) -> &'m [u8] {
        std::mem::take(&mut self.0)
    }

    /// A string, without the NUL that ends it.
    pub(super) fn name(&mut self) -> Result<&'m [u8], Wrong> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Wrong)?;
        let name = self.take(end)?;
        self.skip(1)?;
        Ok(name)
    }

    /// A number, and padding.
    pub(super) fn size(&mut self) -> Result<u32, Wrong> {
        let size = self.u32()?;
        self.skip(4).map(|()| size)
    }

    pub(super) fn end(&self) -> Result<(), Wrong> {
        self.0.is_empty().then_some(()).ok_or(Wrong)
    }

    pub(super) fn forgets(&mut self) -> Result<Forgets<'m>, Wrong> {
        let count = self.size()?;
        let (forgets, over) = self.rest().as_chunks();
        let is_whole = over.is_empty() && u32::try_from(forgets.len()) == Ok(count);
        is_whole.then_some(Forgets(forgets)).ok_or(Wrong)
    }

    /// `struct fuse_setattr_in`, and whether the caller loses set-id bits.
    pub(super) fn change(&mut self) -> Result<(Change, bool), Wrong> {
        let valid = self.size()?;
        let (fh, size) = (self.u64()?, self.u64()?);
        self.skip(8)?;
        let [atime, mtime, _ctime] = [self.u64()?, self.u64()?, self.u64()?];
        let [atime_nsec, mtime_nsec, _ctime_nsec] = [self.u32()?, self.u32()?, self.u32()?];
        let mode = self.u32()?;
        self.skip(4)?;
        let (uid, gid) = (self.u32()?, self.u32()?);
        self.skip(4)?;
        let time = |to, now, sec: u64, nsec| match () {
            () if valid & to == 0 => Ok(None),
            () if valid & now != 0 => Ok(Some(SetTime::Now)),
            () if nsec >= 1_000_000_000 => Err(Wrong),
            () => {
                let sec = sec.cast_signed();
                Ok(Some(SetTime::To(Timestamp { sec, nsec })))
            }
        };
        let mut what = SetAttr::default();
        what.mode = (valid & set::MODE != 0).then_some((mode & 0o7777) as u16);
        what.uid = (valid & set::UID != 0).then_some(uid);
        what.gid = (valid & set::GID != 0).then_some(gid);
        what.size = (valid & set::SIZE != 0).then_some(size);
        what.atime = time(set::ATIME, set::ATIME_NOW, atime, atime_nsec)?;
        what.mtime = time(set::MTIME, set::MTIME_NOW, mtime, mtime_nsec)?;
        let change = Change {
            what,
            handle: (valid & set::FH != 0).then_some(fh),
        };
        Ok((change, valid & set::KILL_SUIDGID != 0))
    }

    pub(super) fn rename(
        &mut self,
        flags: impl FnOnce(&mut Self) -> Result<u32, Wrong>,
    ) -> Result<Operation<'m>, Wrong> {
        let dir = NodeId(self.u64()?);
        let flags = flags(self)?;
        Ok(Operation::Rename {
            name: self.name()?,
            to: (dir, self.name()?),
            flags,
        })
    }

    /// `struct fuse_open_in`. The VFS decides whether set-id bits are cleared.
    pub(super) fn open(&mut self) -> Result<i32, Wrong> {
        let flags = self.i32()?;
        self.skip(4).map(|()| flags)
    }

    /// `struct fuse_create_in`.
    pub(super) fn new_file(&mut self) -> Result<NewFile, Wrong> {
        let new = NewFile {
            flags: self.i32()?,
            mode: self.u32()?,
            umask: self.u32()?,
            kills_set_ids: self.u32()? & abi::OPEN_KILL_SUIDGID != 0,
        };
        Ok(new)
    }

    /// `struct fuse_read_in`.
    pub(super) fn piece(&mut self) -> Result<Piece, Wrong> {
        let piece = Piece {
            fh: self.u64()?,
            offset: self.u64()?,
            size: self.u32()?,
        };
        self.skip(20).map(|()| piece)
    }

    pub(super) fn write(&mut self) -> Result<Operation<'m>, Wrong> {
        let (fh, offset, size, flags) = (self.u64()?, self.u64()?, self.u32()?, self.u32()?);
        self.skip(16)?;
        Ok(Operation::Write {
            fh,
            offset,
            is_cached: flags & abi::WRITE_CACHE != 0,
            kills_set_ids: flags & abi::WRITE_KILL_SUIDGID != 0,
            data: self.data(size)?,
        })
    }

    pub(super) fn data(&mut self, size: u32) -> Result<&'m [u8], Wrong> {
        self.take(usize::try_from(size).map_err(|_| Wrong)?)
    }

    pub(super) fn release(&mut self) -> Result<u64, Wrong> {
        let fh = self.u64()?;
        self.skip(16).map(|()| fh)
    }

    pub(super) fn sync(&mut self) -> Result<(u64, bool), Wrong> {
        let (fh, flags) = (self.u64()?, self.size()?);
        Ok((fh, flags & abi::FSYNC_DATA != 0))
    }

    /// `struct fuse_setxattr_in`, in the agreed form.
    pub(super) fn setxattr(&mut self, is_long: bool) -> Result<Operation<'m>, Wrong> {
        let (size, flags) = (self.u32()?, self.i32()?);
        let more = if is_long { Some(self.size()?) } else { None };
        Ok(Operation::Setxattr {
            name: self.name()?,
            value: self.data(size)?,
            flags,
            kills_set_gid: more.map(|more| more & abi::SETXATTR_ACL_KILL_SGID != 0),
        })
    }

    /// INIT. Later versions have more fields, none of which we use.
    pub(super) fn init(&mut self) -> Result<Operation<'m>, Wrong> {
        let (major, minor) = (self.u32()?, self.u32()?);
        let (max_readahead, flags) = match major {
            // Other major versions may continue with anything.
            abi::MAJOR => (self.u32()?, u64::from(self.u32()?)),
            _ => (0, 0),
        };
        let upper = match flags & abi::init::INIT_EXT {
            0 => 0,
            _ => u64::from(self.u32()?),
        };
        self.rest();
        Ok(Operation::Init(Offered {
            major,
            minor,
            max_readahead,
            flags: flags | upper << 32,
        }))
    }

    pub(super) fn ioctl(&mut self) -> Result<Operation<'m>, Wrong> {
        self.skip(12)?;
        let cmd = self.u32()?;
        self.skip(8)?;
        let (in_size, out_size) = (self.u32()?, self.u32()?);
        Ok(Operation::Ioctl {
            cmd,
            data: self.data(in_size)?,
            out_size,
        })
    }

    pub(super) fn copy(&mut self, is_long: bool) -> Result<Operation<'m>, Wrong> {
        let from = (self.u64()?, self.u64()?);
        self.skip(8)?;
        let (to, len) = ((self.u64()?, self.u64()?), self.u64()?);
        self.skip(8)?;
        Ok(Operation::CopyFileRange {
            from,
            to,
            len,
            is_long,
        })
    }
}
