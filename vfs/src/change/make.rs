//! Creation of files, directories, links to paths, and devices.

use super::locked::{LastName, Locked};
use crate::acl;
use crate::attr::FileType;
use crate::context::{Context, VfsPath};
use crate::dentry::DentryRef;
use crate::error::{Error, Result};
use crate::filesystem::{Caller, NewFile};
use crate::mount::Writing;
use crate::permission::{Caps, Credentials};
use crate::vfs::Vfs;
use crate::vfs_inode::InodeRef;

/// The file that the caller asks for.
pub(crate) struct Make<'a> {
    pub(crate) kind: FileType,
    /// As asked for: nothing has been taken off yet.
    pub(crate) mode: u16,
    pub(crate) rdev: u64,
    pub(crate) target: &'a [u8],
}

impl Make<'_> {
    pub(crate) fn new(kind: FileType, mode: u16) -> Make<'static> {
        Make {
            kind,
            mode,
            rdev: 0,
            target: b"",
        }
    }
}

impl Vfs {
    /// `is_opened`: by open(2), which says at once that a path with a slash behind it is
    /// no file's.
    #[doc(alias = "filename_create")]
    pub(super) fn make(
        &self,
        ctx: &Context,
        path: &[u8],
        make: &Make<'_>,
        is_opened: bool,
    ) -> Result<VfsPath> {
        self.retry(ctx, |reval| {
            let parent = self.parent_of(ctx, (ctx.cwd(), path), reval)?;
            let name = parent.name(Error::Exists)?;
            if parent.must_be_dir && is_opened {
                return Err(Error::IsADirectory);
            }
            let writing = Writing::new(&**parent.dir.mnt());
            let dir = Locked::new(self, ctx, &parent.dir);
            let may = || {
                if parent.must_be_dir && make.kind != FileType::Directory {
                    return Err(Error::NotFound);
                }
                let writing = writing?;
                dir.may_create()?;
                may_mknod(make, ctx.credentials())?;
                Ok(writing)
            };
            let (dentry, inode) = dir.with_missing((name, reval), may, |last| {
                dir.make(last, make, |by, new| {
                    let name = last.name.name;
                    let inode = by.sb.fs().create(by, dir.inode, name, new)?;
                    Ok((inode.clone(), inode))
                })
            })?;
            Ok(VfsPath::new(parent.dir.mnt().clone(), dentry, inode))
        })
    }
}

impl Locked<'_> {
    /// Creates the file for a missing name. `ask` calls the back end, and may return something
    /// else along with the inode: the file, open already. The caller has checked that it [may
    /// be created](Self::may_create).
    #[doc(alias("vfs_create", "vfs_mknod", "atomic_open"))]
    pub(crate) fn make<T>(
        &self,
        last: &LastName<'_>,
        make: &Make<'_>,
        ask: impl FnOnce(&Caller<'_>, &NewFile<'_>) -> Result<(InodeRef, T)>,
    ) -> Result<(DentryRef, T)> {
        let mask = match make.kind {
            FileType::Directory => 0o1777,
            _ => 0o7777,
        };
        let from = acl::inherit(
            &self.target(),
            make.kind,
            make.mode & mask,
            self.ctx.umask(),
        )?;
        let by = self.caller();
        let new = NewFile {
            uid: by.credentials.uid,
            gid: from.gid,
            rdev: make.rdev,
            target: make.target,
            acl: from.acl.as_deref(),
            default_acl: from.default_acl.as_deref(),
            ..NewFile::new(make.kind, from.mode)
        };
        let made = ask(&by, &new).inspect_err(|_| self.invalidate(last));
        let (inode, beside) = made?;
        Ok((self.instantiate(last, inode), beside))
    }
}

/// Devices are for the privileged; but for a whiteout, which opens nothing.
fn may_mknod(make: &Make<'_>, who: &Credentials) -> Result<()> {
    let harmless = match make.kind {
        FileType::BlockDevice => false,
        FileType::CharDevice => make.rdev == 0,
        _ => true,
    };
    if harmless || who.caps.contains(Caps::MKNOD) {
        Ok(())
    } else {
        Err(Error::NotPermitted)
    }
}
