//! Opening an existing file: permission checks, and the back end's handle.

use crate::attr::{FileType, InodeFlags};
use crate::context::{Context, VfsPath};
use crate::error::{Error, Result};
use crate::file::File;
use crate::filesystem::{FileHandle, SetTime};
use crate::mount::{MountFlags, MountRef, Writing};
use crate::open::OpenFlags;
use crate::permission::Access;
use crate::target::Target;
use crate::vfs_inode::Protection;

/// Opens an existing file. With `CREATE`, `expected_in` is the owner and mode of the directory,
/// as the walk found them: the caller expected to create the file there.
pub(super) fn do_open(
    ctx: &Context,
    at: VfsPath,
    flags: OpenFlags,
    expected_in: Option<Protection>,
) -> Result<File> {
    let who = ctx.credentials();
    let target = Target::new(&at, who);
    let opened = open_target(&target, flags, expected_in);
    let opened = opened.inspect_err(|err| target.invalidate_if_stale(err));
    let (handle, writing) = opened?;
    Ok(File::new(at, flags, who, handle, writing))
}

/// The back end's handle of an open file, and a guard that keeps the mount writable.
type Opened = (Option<Box<dyn FileHandle>>, Option<Writing<MountRef>>);

fn open_target(
    target: &Target<'_>,
    flags: OpenFlags,
    expected_in: Option<Protection>,
) -> Result<Opened> {
    let (sb, by) = (target.sb(), target.caller());
    if flags.contains(OpenFlags::PATH) {
        return Ok((target.with_at(|at| sb.fs().open_place(&by, at))?, None));
    }
    let kind = target.inode().kind();
    if let Some(dir) = expected_in {
        if kind == FileType::Directory {
            return Err(Error::IsADirectory);
        }
        may_create_in_sticky(target, dir)?;
    }
    let truncates = flags.contains(OpenFlags::TRUNC) && kind == FileType::Regular;
    let _truncating = truncates.then(|| target.want_write()).transpose()?;
    may_open(target, flags.access(), flags)?;
    let mut writing = None;
    let handle = match kind {
        FileType::Regular => {
            writing = to_write(target.path, flags)?;
            let flags = flags & OpenFlags::OF_BACK_END;
            Some(target.with_at(|at| sb.fs().open(&by, at, flags))?)
        }
        FileType::Directory => None,
        _ => return Err(Error::NoSuchDevice),
    };
    if truncates {
        let open = Target {
            open: handle.as_deref(),
            ..*target
        };
        open.do_truncate(0, Some(SetTime::Now))?;
    }
    Ok((handle, writing))
}

/// Refuses to open, with `CREATE`, another user's file in a directory that is sticky and
/// writable for all: any file on a mount with [`MountFlags::PROTECTED_LINKS`], and on every
/// mount one that is neither a regular file nor a pipe.
///
/// The directory is the one that the walk found the name in: by now, another process may have
/// moved the file somewhere else.
fn may_create_in_sticky(target: &Target<'_>, dir: Protection) -> Result<()> {
    let inode = target.inode();
    let protects = target
        .path
        .mnt()
        .flags()
        .contains(MountFlags::PROTECTED_LINKS);
    // The sysctls are about these two: all else is refused in any case.
    if !protects && matches!(inode.kind(), FileType::Regular | FileType::Fifo) {
        return Ok(());
    }
    let owner = inode.protection().uid;
    let is_own = owner == dir.uid || owner == target.credentials.uid;
    if dir.is_sticky_for_all() && !is_own {
        return Err(Error::PermissionDenied);
    }
    Ok(())
}

/// A guard that keeps the mount writable while a file is open for writing.
#[doc(alias = "file_get_write_access")]
pub(super) fn to_write(at: &VfsPath, flags: OpenFlags) -> Result<Option<Writing<MountRef>>> {
    let writes = flags.contains(OpenFlags::WRITE);
    writes.then(|| Writing::new(at.mnt().clone())).transpose()
}

/// Checks whether a file may be opened. A file that has just been created is opened as
/// requested, so no rights on it are `wanted`.
pub(super) fn may_open(target: &Target<'_>, wanted: Access, mut flags: OpenFlags) -> Result<()> {
    match target.inode().kind() {
        FileType::Symlink => return Err(Error::TooManySymlinks),
        FileType::Directory if wanted.contains(Access::WRITE) => return Err(Error::IsADirectory),
        FileType::Directory | FileType::Regular => {}
        // There is nothing to truncate.
        _ => flags.remove(OpenFlags::TRUNC),
    }
    target.may(wanted)?;
    if target.inode().flags().contains(InodeFlags::APPEND) {
        let overwrites = flags.contains(OpenFlags::WRITE) && !flags.contains(OpenFlags::APPEND);
        if overwrites || flags.contains(OpenFlags::TRUNC) {
            return Err(Error::NotPermitted);
        }
    }
    if flags.contains(OpenFlags::NOATIME) && !target.is_owner_or_capable() {
        return Err(Error::NotPermitted);
    }
    Ok(())
}
