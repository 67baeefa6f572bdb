//! LOOKUP, REMOVE, RMDIR, RENAME, LINK.

use std::sync::Arc;

use rcuwalk::{Access, Context, FileType, LookupFlags, Name, RenameFlags, Vfs, VfsPath};

use super::{Asked, answer, checked, read_handle, read_name};
use crate::attr::{Around, write_after, write_around};
use crate::caller::that_finds_all;
use crate::files::Known;
use crate::status::{Result, Status};
use crate::xdr::{Decoded, Reader, Writer};

pub(super) fn lookup(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (handle, name) = read_name(reader)?;
    reader.end()?;
    let mut after = None;
    let found = asked.place(handle).and_then(|dir| {
        let found = asked.look_up(&dir, name);
        after = asked.after(&dir);
        let path = found?;
        Ok((asked.export.files.of(&path)?, asked.after(&path)))
    });
    let write = |out: &mut Writer, (known, attr): (Arc<Known>, _)| {
        out.opaque(known.wire());
        write_after(out, attr);
        write_after(out, after);
    };
    Ok(answer(out, found, write, |out| write_after(out, after)))
}

impl Asked<'_> {
    /// The file of a name, which may be `.` or `..`: the latter does not lead out of the export
    /// (WALK-3).
    pub(super) fn look_up(&self, dir: &VfsPath, name: &[u8]) -> Result<VfsPath> {
        is_directory(dir)?;
        if !matches!(name, b"." | b"..") {
            Name::new(name)?;
        }
        let ctx = self.context_in(dir);
        Ok(self.export.vfs.lookup(&ctx, name, LookupFlags::empty())?)
    }
}

pub(super) fn is_directory(dir: &VfsPath) -> Result<()> {
    match dir.inode().kind() {
        FileType::Directory => Ok(()),
        _ => Err(Status::NotDir),
    }
}

pub(super) fn remove(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    take_away(asked, reader, out, |vfs, ctx, name| vfs.unlink(ctx, name))
}

pub(super) fn rmdir(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    take_away(asked, reader, out, |vfs, ctx, name| vfs.rmdir(ctx, name))
}

fn take_away(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
    remove: impl FnOnce(&Vfs, &Context, &[u8]) -> rcuwalk::Result<()>,
) -> Decoded<Result<()>> {
    let (handle, name) = read_name(reader)?;
    reader.end()?;
    let mut around = Around::default();
    let done = asked.place(handle).and_then(|dir| {
        is_directory(&dir)?;
        let done;
        (done, around) = asked.changing(&dir, || {
            let name = checked(name, Status::Inval)?;
            Ok(remove(&asked.export.vfs, &asked.context_in(&dir), name)?)
        });
        asked.synced(&dir, done)
    });
    let write = |out: &mut Writer| write_around(out, around);
    Ok(answer(out, done, |out, ()| write(out), write))
}

pub(super) fn rename(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let ((from_dir, from), (to_dir, to)) = (read_name(reader)?, read_name(reader)?);
    reader.end()?;
    let mut around = [Around::default(); 2];
    let done = rename_between(asked, (from_dir, from), (to_dir, to), &mut around);
    let write = |out: &mut Writer| around.into_iter().for_each(|one| write_around(out, one));
    Ok(answer(out, done, |out, ()| write(out), write))
}

fn rename_between(
    asked: &Asked<'_>,
    (from_dir, from): (&[u8], &[u8]),
    (to_dir, to): (&[u8], &[u8]),
    around: &mut [Around; 2],
) -> Result<()> {
    let dirs = [asked.place(from_dir)?, asked.place(to_dir)?];
    let [from_dir, to_dir] = &dirs;
    dirs.iter().try_for_each(is_directory)?;
    let done = {
        let _turn = asked.export.turns.of_two(from_dir.inode(), to_dir.inode());
        let before = [asked.before(from_dir), asked.before(to_dir)];
        let rename = || {
            let (from, to) = (checked(from, Status::Inval)?, checked(to, Status::Inval)?);
            let (from, to) = ((from_dir, from), (to_dir, to));
            let vfs = &asked.export.vfs;
            Ok(vfs.renameat2(&asked.context(), from, to, RenameFlags::empty())?)
        };
        let done = rename();
        let after = [asked.after(from_dir), asked.after(to_dir)];
        for ((around, before), after) in around.iter_mut().zip(before).zip(after) {
            *around = Around { before, after };
        }
        done
    };
    // The new name first: if the machine stops between the two, the file has two names, and not
    // none.
    let done = asked.synced(to_dir, done);
    match std::ptr::eq(from_dir.inode(), to_dir.inode()) {
        true => done,
        false => asked.synced(from_dir, done),
    }
}

pub(super) fn link(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (file, (dir, name)) = (read_handle(reader)?, read_name(reader)?);
    reader.end()?;
    let (mut after, mut around) = (None, Around::default());
    let done = asked.place(file).and_then(|path| {
        let dir = asked.place(dir)?;
        is_directory(&dir)?;
        let done;
        (done, around) = asked.changing(&dir, || asked.link(&path, &dir, name));
        after = asked.after(&path);
        asked.synced(&dir, done)
    });
    let write = |out: &mut Writer| {
        write_after(out, after);
        write_around(out, around);
    };
    Ok(answer(out, done, |out, ()| write(out), write))
}

impl Asked<'_> {
    fn link(&self, path: &VfsPath, dir: &VfsPath, name: &[u8]) -> Result<()> {
        let name = checked(name, Status::Exist)?;
        // To link a file that is held takes its owner, as the VFS has no path of it that the caller
        // could have walked. A client has walked one. So the caller's rights to the directory are
        // checked here, and the rest is linked by one who may.
        self.may(dir, Access::WRITE | Access::EXEC)?;
        let ctx = self.context_in(dir);
        let ctx = ctx.with_credentials(that_finds_all(&self.who));
        self.export.vfs.link(&ctx, path, name)?;
        Ok(())
    }
}
