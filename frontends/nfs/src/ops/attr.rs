//! GETATTR, SETATTR, ACCESS, READLINK.

use std::sync::Arc;

use rcuwalk::{Access, Error, FileType, LookupFlags, SetAttr, VfsPath};

use super::{Asked, after_change, answer, read_handle};
use crate::attr::{
    Around, is_same_time, read_change, read_time, write_after, write_around, write_attr,
};
use crate::files::Known;
use crate::opened::For;
use crate::status::{Result, Status};
use crate::xdr::{Decoded, Reader, Writer};

pub(super) fn getattr(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let handle = read_handle(reader)?;
    reader.end()?;
    let found = asked.place(handle).and_then(|path| asked.stat(&path));
    Ok(answer(out, found, write_attr, |_| {}))
}

pub(super) fn setattr(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let handle = read_handle(reader)?;
    let change = read_change(reader)?;
    let guard = reader.optional(read_time)?;
    reader.end()?;
    let mut around = Around::default();
    let done = asked.file(handle).and_then(|known| {
        let path = known.path();
        let done;
        (done, around) = asked.changing(&path, || {
            let is_guarded = guard.is_none_or(|ctime| is_same_time(path.attr().ctime, ctime));
            match is_guarded {
                true => asked.set(handle, &path, &change),
                false => Err(Status::NotSync),
            }
        });
        done?;
        asked.sync_attr(&known, &path)
    });
    let write = |out: &mut Writer| write_around(out, around);
    Ok(answer(out, done, |out, ()| write(out), write))
}

impl Asked<'_> {
    fn set(&self, handle: &[u8], path: &VfsPath, change: &SetAttr) -> Result<()> {
        let owns = self.who.uid == path.attr().uid;
        if change.size.is_some() && owns && path.inode().kind() == FileType::Regular {
            // A size takes the right to write, which an owner has (see `may_as_owner`): an open
            // file has it, too.
            let known = self.file(handle)?;
            let open = self.export.opened.get(&known, For::Writing)?;
            return Ok(open.file.as_user(&self.context()).setattr(change)?);
        }
        let export = self.export;
        Ok(export
            .vfs
            .setattr(&self.context(), path, change, LookupFlags::empty())?)
    }

    /// Returns when the attributes of a file, which were changed, are on disk. Links and devices
    /// cannot be opened for that, and where the daemon is not root, neither can files that its user
    /// may not open: theirs follow with the next change beside them.
    pub(super) fn sync_attr(&self, known: &Arc<Known>, path: &VfsPath) -> Result<()> {
        if !self.export.options.sync {
            return Ok(());
        }
        let synced = match path.inode().kind() {
            FileType::Directory => self.export.sync_dir(path),
            FileType::Regular => self.sync_file(known),
            _ => Ok(()),
        };
        match synced {
            Err(Error::PermissionDenied) => Ok(()),
            synced => after_change(synced),
        }
    }

    fn sync_file(&self, known: &Arc<Known>) -> rcuwalk::Result<()> {
        let opened = &self.export.opened;
        let open = match opened.get(known, For::Reading) {
            Err(Error::PermissionDenied) => opened.get(known, For::Writing)?,
            open => open?,
        };
        self.safe(known, &open, false, None)
    }
}

const READ: u32 = 1;
const LOOKUP: u32 = 2;
const MODIFY: u32 = 4;
const EXTEND: u32 = 8;
const DELETE: u32 = 16;
const EXECUTE: u32 = 32;

pub(super) fn access(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (handle, wanted) = (read_handle(reader)?, reader.u32()?);
    reader.end()?;
    let found = asked.place(handle).and_then(|path| {
        let granted = asked.granted(&path, wanted)?;
        Ok((asked.after(&path), granted))
    });
    let write = |out: &mut Writer, (after, granted)| {
        write_after(out, after);
        out.u32(granted);
    };
    Ok(answer(out, found, write, |out| write_after(out, None)))
}

impl Asked<'_> {
    /// The bits of `wanted` that the caller may.
    fn granted(&self, path: &VfsPath, wanted: u32) -> Result<u32> {
        let is_dir = path.inode().kind() == FileType::Directory;
        let rights = match is_dir {
            true => [
                (READ, Access::READ),
                (LOOKUP, Access::EXEC),
                (MODIFY | EXTEND | DELETE, Access::WRITE),
            ],
            // Who may remove a file is said of its directory.
            false => [
                (READ, Access::READ),
                (EXECUTE, Access::EXEC),
                (MODIFY | EXTEND, Access::WRITE),
            ],
        };
        let mut granted = 0;
        for (bits, right) in rights {
            if wanted & bits == 0 {
                continue;
            }
            match self.may(path, right) {
                Ok(()) => granted |= wanted & bits,
                Err(Status::Acces | Status::Perm | Status::RoFs) => {}
                Err(status) => return Err(status),
            }
        }
        Ok(granted)
    }
}

pub(super) fn readlink(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let handle = read_handle(reader)?;
    reader.end()?;
    let mut after = None;
    let target = asked.place(handle).and_then(|path| {
        let target = asked.export.vfs.read_link_at(&path);
        after = asked.after(&path);
        Ok(target?)
    });
    let write = |out: &mut Writer, target: Box<[u8]>| {
        write_after(out, after);
        out.opaque(&target);
    };
    Ok(answer(out, target, write, |out| write_after(out, after)))
}
