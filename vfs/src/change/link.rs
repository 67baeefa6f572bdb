//! One more name for a file.

use super::locked::{LastName, Locked};
use crate::attr::{FileType, InodeFlags};
use crate::context::{Context, VfsPath};
use crate::dentry::DentryRef;
use crate::error::{Error, Result};
use crate::mount::{MountFlags, Writing};
use crate::permission::{Access, Caps};
use crate::target::Target;
use crate::vfs::Vfs;
use crate::vfs_inode::LINKABLE;
use crate::walk::{LookupFlags, filename_lookup};

impl Vfs {
    #[doc(alias = "do_linkat")]
    pub(super) fn link_names(
        &self,
        ctx: &Context,
        old: (&VfsPath, &[u8]),
        new: (&VfsPath, &[u8]),
        flags: LookupFlags,
    ) -> Result<VfsPath> {
        let ways = LookupFlags::REF_WALK | LookupFlags::REVAL;
        let known = LookupFlags::FOLLOW | LookupFlags::EMPTY_PATH | ways;
        if !known.contains(flags) {
            return Err(Error::Invalid);
        }
        self.retry(ctx, |reval| {
            let file = self.file_to_link(ctx, old, flags | reval)?;
            self.link_file(ctx, &file, new, flags & ways | reval)
        })
    }

    fn file_to_link(
        &self,
        ctx: &Context,
        (start, path): (&VfsPath, &[u8]),
        flags: LookupFlags,
    ) -> Result<VfsPath> {
        self.is_own(start)?;
        if path.is_empty() && flags.contains(LookupFlags::EMPTY_PATH) {
            // An open descriptor that was passed on does not allow its receiver to name the
            // file.
            let who = ctx.credentials();
            let may = who.caps.contains(Caps::DAC_READ_SEARCH)
                || Target::new(start, who).is_owner_or_capable();
            return may.then(|| start.clone()).ok_or(Error::NotFound);
        }
        let request = self.request_at(ctx, start, path, flags);
        filename_lookup(&request, |found| found.try_get(), Ok)
    }

    fn link_file(
        &self,
        ctx: &Context,
        file: &VfsPath,
        new: (&VfsPath, &[u8]),
        flags: LookupFlags,
    ) -> Result<VfsPath> {
        let parent = self.parent_of(ctx, new, flags)?;
        let name = parent.name(Error::Exists)?;
        let writing = Writing::new(&**parent.dir.mnt());
        let dir = Locked::new(self, ctx, &parent.dir);
        let inode = file.inode_held();
        let may = || {
            if parent.must_be_dir {
                return Err(Error::NotFound);
            }
            let writing = writing?;
            if !file.mnt().is(parent.dir.mnt()) {
                return Err(Error::CrossDevice);
            }
            dir.may_link(file)?;
            dir.may_create()?;
            let kept = InodeFlags::APPEND | InodeFlags::IMMUTABLE;
            if inode.flags().intersects(kept) || inode.kind() == FileType::Directory {
                return Err(Error::NotPermitted);
            }
            Ok(writing)
        };
        let dentry = dir.with_missing((name, flags), may, |last| dir.link(file, last))?;
        Ok(VfsPath::new(file.mnt().clone(), dentry, file.inode_ref()))
    }
}

impl Locked<'_> {
    #[doc(alias = "vfs_link")]
    fn link(&self, file: &VfsPath, last: &LastName<'_>) -> Result<DentryRef> {
        let inode = file.inode_held();
        let _file = inode.lock_nested();
        // It lost its last name while this call was under way; or it never had one.
        if inode.nlink() == 0 && !inode.shared().has(LINKABLE) {
            return Err(Error::NotFound);
        }
        let name = last.name.name;
        let target = Target::new(file, self.ctx.credentials());
        let done = target.with_at(|at| self.fs().link(&self.caller(), at, self.inode, name));
        if let Err(err) = &done {
            self.invalidate(last);
            target.invalidate_if_stale(err);
        }
        let has_name = done.is_ok() || inode.nlink() > 0;
        if has_name && inode.shared().has(LINKABLE) {
            inode.shared().clear(LINKABLE);
            inode.do_cache();
        }
        done?;
        Ok(self.instantiate(last, file.inode_ref()))
    }

    /// Checks the hard-link restrictions of a mount that has them: a file gets further names
    /// from its owner, and, unless it is special or set-ID, from callers that may read and
    /// write it.
    #[doc(alias("may_linkat", "safe_hardlink_source"))]
    fn may_link(&self, file: &VfsPath) -> Result<()> {
        if !file.mnt().flags().contains(MountFlags::PROTECTED_LINKS) {
            return Ok(());
        }
        let inode = file.inode();
        let file = Target::new(file, self.ctx.credentials());
        let mode = inode.protection().mode();
        let set_id = mode & 0o4000 != 0 || mode & 0o2010 == 0o2010;
        let harmless = inode.kind() == FileType::Regular
            && !set_id
            && file.may(Access::READ | Access::WRITE).is_ok();
        if harmless || file.is_owner_or_capable() {
            Ok(())
        } else {
            Err(Error::NotPermitted)
        }
    }
}
