//! An open file.

use std::sync::Arc;

use rcuwalk::{Allocate, Error, FileHandle, Inode, Result, SeekTo};

use crate::data::{Data, MAX_SIZE};
use crate::node::{Node, now};

/// An open regular file: it keeps the contents, also when the last name is gone.
pub(crate) struct Open(Arc<Node>);

impl Open {
    pub(crate) fn new(node: &Arc<Node>) -> Open {
        node.users(|state| state.opens += 1);
        Open(node.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.users(|state| state.opens -= 1);
    }
}

/// Bytes written under one lock of the contents: then readers get their turn.
const AT_ONCE: usize = 1 << 20;

impl FileHandle for Open {
    #[doc(alias = "shmem_file_read_iter")]
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.0.data()?.read_at(&self.0.space, buf, offset))
    }

    #[doc(alias = "shmem_file_write_iter")]
    fn write_at(&self, inode: &Inode, buf: &[u8], offset: u64) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let room = MAX_SIZE.saturating_sub(offset);
        if room == 0 {
            return Err(Error::FileTooBig);
        }
        let len = buf.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let written = self.0.write(&buf[..len], offset);
        // Also when nothing could be written: the kernel sets them first.
        self.0.contents_changed(Some(inode))?;
        written
    }

    #[doc(alias = "shmem_fallocate")]
    fn allocate(&self, inode: &Inode, how: Allocate, offset: u64, len: u64) -> Result<()> {
        let keep_size = how.contains(Allocate::KEEP_SIZE);
        let punch = how.contains(Allocate::PUNCH_HOLE);
        // A hole punched without `KEEP_SIZE`, and zeroing, are unknown here as in tmpfs.
        if !(Allocate::KEEP_SIZE | Allocate::PUNCH_HOLE).contains(how) || punch && !keep_size {
            return Err(Error::NotSupported);
        }
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > MAX_SIZE) {
            return Err(Error::FileTooBig);
        }
        let space = &self.0.space;
        if punch {
            self.0.data_mut()?.punch(space, offset, len);
        } else {
            self.0.data_mut()?.allocate(space, offset, len, keep_size)?;
        }
        self.0.contents_changed(Some(inode))
    }

    #[doc(alias = "shmem_file_llseek")]
    fn seek(&self, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        Ok(self.0.data()?.seek(offset, to))
    }
}

impl Node {
    /// As much as there is room for.
    pub(crate) fn write(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let mut written = 0;
        for part in buf.chunks(AT_ONCE) {
            let at = offset + written as u64;
            match self.data_mut()?.write_at(&self.space, part, at) {
                Ok(some) => written += some,
                Err(err) if written == 0 => return Err(err),
                Err(_) => break,
            }
            if written as u64 + offset < at + part.len() as u64 {
                break;
            }
        }
        Ok(written)
    }

    /// Replaces the contents.
    pub(crate) fn set_contents(&self, contents: &[u8]) -> Result<()> {
        self.data_mut()?.truncate(&self.space, 0);
        let written = self.write(contents, 0);
        self.contents_changed(None)?;
        match written? {
            all if all == contents.len() => Ok(()),
            _ => Err(Error::NoSpace),
        }
    }

    fn contents_changed(&self, inode: Option<&Inode>) -> Result<()> {
        let now = now();
        let data = self.data()?;
        self.change(inode, |attr| {
            size_of(&data, attr);
            (attr.mtime, attr.ctime) = (now, now);
        });
        Ok(())
    }
}

/// Size and blocks as they are.
pub(crate) fn size_of(data: &Data, attr: &mut rcuwalk::Attr) {
    (attr.size, attr.blocks) = (data.size(), data.taken() * 8);
}
