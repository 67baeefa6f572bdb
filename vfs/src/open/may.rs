//! What a path led to: who may open it, for what.

use crate::attr::{FileType, InodeFlags};
use crate::context::{Context, VfsPath};
use crate::error::{Error, Result};
use crate::file::File;
use crate::filesystem::{FileHandle, SetTime};
use crate::mount::{MountFlags, MountRef, Writing};
use crate::open::OpenFlags;
use crate::permission::Access;
use crate::target::Target;

/// Opens what is there. With `CREATE`, that is something else than expected.
pub(super) fn do_open(ctx: &Context, at: VfsPath, flags: OpenFlags) -> Result<File> {
    let who = ctx.credentials();
    let target = Target::new(&at, who);
    let opened = open_target(&target, flags).inspect_err(|err| target.doubt_if_stale(err));
    let (handle, writing) = opened?;
    Ok(File::new(at, flags, who, handle, writing))
}

/// What an open file has of its back end, and what keeps its mount writable.
type Opened = (Option<Box<dyn FileHandle>>, Option<Writing<MountRef>>);

fn open_target(target: &Target<'_>, flags: OpenFlags) -> Result<Opened> {
    let (fs, by) = (target.sb().fs(), target.caller());
    if flags.contains(OpenFlags::PATH) {
        return Ok((target.with_at(|at| fs.open_place(&by, at))?, None));
    }
    let kind = target.inode().kind();
    if flags.contains(OpenFlags::CREATE) {
        if kind == FileType::Directory {
            return Err(Error::IsADirectory);
        }
        may_create_in_sticky(target)?;
    }
    let truncates = flags.contains(OpenFlags::TRUNC) && kind == FileType::Regular;
    let _truncating = truncates.then(|| target.want_write()).transpose()?;
    may_open(target, flags.access(), flags)?;
    let mut writing = None;
    let handle = match kind {
        FileType::Regular => {
            writing = to_write(target.path, flags)?;
            let flags = flags & OpenFlags::OF_BACK_END;
            Some(target.with_at(|at| fs.open(&by, at, flags))?)
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

/// On a mount that protects from it, nobody who means to make a file in a sticky directory
/// for all opens what somebody else has put there. What is neither file nor pipe, on none.
fn may_create_in_sticky(target: &Target<'_>) -> Result<()> {
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
    let Some(dir) = target
        .path
        .dentry()
        .parent_ref()
        .and_then(|dir| dir.inode_ref())
    else {
        return Ok(());
    };
    let (dir, owner) = (dir.protection(), inode.protection().uid);
    let is_own = owner == dir.uid || owner == target.credentials.uid;
    if dir.mode() & 0o1002 == 0o1002 && !is_own {
        return Err(Error::PermissionDenied);
    }
    Ok(())
}

/// What keeps the mount writable while a file is open for writing.
#[doc(alias = "file_get_write_access")]
pub(super) fn to_write(at: &VfsPath, flags: OpenFlags) -> Result<Option<Writing<MountRef>>> {
    let writes = flags.contains(OpenFlags::WRITE);
    writes.then(|| Writing::new(at.mnt().clone())).transpose()
}

/// What stands against opening a file. A file that has just been made is opened for what
/// its maker wants, so that no rights on it are `wanted`.
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
