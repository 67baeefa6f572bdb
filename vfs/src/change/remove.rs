//! One name less.

use super::locked::{LastName, Locked};
use super::victim::{Attempt, with_victim};
use crate::attr::FileType;
use crate::context::{Context, VfsPath};
use crate::dentry::{DentryRef, Flags};
use crate::error::{Error, Result};
use crate::file::File;
use crate::mount::Writing;
use crate::name::Name;
use crate::open::OpenFlags;
use crate::vfs::Vfs;
use crate::vfs_inode::{DEAD_DIR, InodeRef};
use crate::walk::{LastType, LookupFlags};

impl Vfs {
    #[doc(alias = "do_unlinkat")]
    pub(super) fn unlink_name(&self, ctx: &Context, path: &[u8], flags: LookupFlags) -> Result<()> {
        self.unlink_as(ctx, path, flags, |dir, victim| {
            let (by, name) = (dir.caller(), victim.name());
            dir.fs().unlink(&by, dir.inode, name, victim.inode)
        })
    }

    /// Removes a name, and returns the file that it stood for.
    pub(super) fn unlink_held(
        &self,
        ctx: &Context,
        path: &[u8],
        flags: LookupFlags,
    ) -> Result<File> {
        // Both outlive the locks: dropping them runs `Drop` code of the back end (CALL-1).
        let (mut at, mut held) = (None, None);
        self.unlink_as(ctx, path, flags, |dir, victim| {
            // Before the removal: a dentry in use is unhashed, and stays this file's.
            at = Some(VfsPath::new(
                dir.path.mnt().clone(),
                victim.dentry.clone(),
                victim.inode.clone(),
            ));
            let (by, name) = (dir.caller(), victim.name());
            dir.fs()
                .unlink_open(&by, dir.inode, name, victim.inode, &mut held)
        })?;
        let at = at.ok_or(Error::NotFound)?;
        Ok(File::new(
            at,
            OpenFlags::PATH,
            ctx.credentials(),
            held,
            None,
        ))
    }

    /// Removes a name by `remove`, which asks the back end.
    fn unlink_as(
        &self,
        ctx: &Context,
        path: &[u8],
        flags: LookupFlags,
        remove: impl FnOnce(&Locked<'_>, &Removed<'_>) -> Result<()>,
    ) -> Result<()> {
        let parent = self.parent_of(ctx, (ctx.cwd(), path), flags)?;
        let name = parent.name(Error::IsADirectory)?;
        let _writing = Writing::new(&**parent.dir.mnt())?;
        let dir = Locked::new(self, ctx, &parent.dir);
        let last = dir.find_victim(name, flags)?;
        let (dentry, inode) = last.found()?;
        let may = match (parent.must_be_dir, inode.kind()) {
            (true, FileType::Directory) => Err(Error::IsADirectory),
            (true, _) => Err(Error::NotADirectory),
            (false, _) => dir.may_delete(inode, false),
        };
        may.map_err(|refusal| dir.refusal(flags, refusal))?;
        // No link is made to it between its last name and the end.
        let _victim = inode.lock_nested();
        if is_mountpoint(dentry) {
            return Err(Error::Busy);
        }
        let lived = inode.nlink() > 0;
        let victim = Removed {
            last: &last,
            dentry,
            inode,
        };
        let done = remove(&dir, &victim);
        done.inspect_err(|_| dir.not_removed(&last, inode, lived))?;
        dir.removed(&last, dentry, inode);
        Ok(())
    }

    #[doc(alias = "do_rmdir")]
    pub(super) fn remove_dir(&self, ctx: &Context, path: &[u8], flags: LookupFlags) -> Result<()> {
        let parent = self.parent_of(ctx, (ctx.cwd(), path), flags)?;
        let name = parent.name(match parent.last {
            LastType::DotDot => Error::NotEmpty,
            LastType::Root => Error::Busy,
            _ => Error::Invalid,
        })?;
        let _writing = Writing::new(&**parent.dir.mnt())?;
        with_victim(|victim| {
            let Some(dir) = victim.lock_dir(self, ctx, &parent.dir) else {
                return Ok(Attempt::Contended(None));
            };
            let last = dir.find_victim(name, flags)?;
            let (dentry, inode) = last.found()?;
            let may = dir.may_delete(inode, true);
            may.map_err(|refusal| dir.refusal(flags, refusal))?;
            // With the victim locked, no name appears in it between the check and the removal.
            let Some(_victim) = victim.lock(inode) else {
                return Ok(Attempt::Contended(Some(inode.clone())));
            };
            if is_mountpoint(dentry) {
                return Err(Error::Busy);
            }
            let (by, name) = (dir.caller(), last.name.name);
            let lived = inode.nlink() > 0;
            let done = dir.fs().rmdir(&by, dir.inode, name, inode);
            done.inspect_err(|_| dir.not_removed(&last, inode, lived))?;
            inode.shared().set(DEAD_DIR);
            dir.removed(&last, dentry, inode);
            Ok(Attempt::Done)
        })
    }
}

/// A name that is being removed, and the file that it stands for.
struct Removed<'a> {
    last: &'a LastName<'a>,
    dentry: &'a DentryRef,
    inode: &'a InodeRef,
}

impl Removed<'_> {
    fn name(&self) -> Name<'_> {
        self.last.name.name
    }
}

impl LastName<'_> {
    /// Something that is there.
    pub(crate) fn found(&self) -> Result<(&DentryRef, &InodeRef)> {
        let found = self.dentry.as_ref().zip(self.inode.as_ref());
        found.ok_or(Error::NotFound)
    }
}

impl Locked<'_> {
    /// Makes the name missing.
    fn removed(&self, last: &LastName<'_>, dentry: &DentryRef, inode: &InodeRef) {
        let dcache = &self.vfs.ns().caches.dcache;
        dcache.d_delete(dentry, last.validity);
        if let Some(listing) = self.inode.listing() {
            listing.removed(last.name.name.as_bytes());
        }
        self.lost_a_name(inode);
    }

    /// The back end says that it has not removed the name. The inode, which `lived` before,
    /// may tell otherwise.
    pub(super) fn not_removed(&self, last: &LastName<'_>, inode: &InodeRef, lived: bool) {
        self.invalidate(last);
        if lived && inode.nlink() == 0 {
            if inode.kind() == FileType::Directory {
                inode.shared().set(DEAD_DIR);
            }
            self.lost_a_name(inode);
        }
    }

    /// The inode leaves the cache with its last name, so that a later file with its number
    /// is not taken for it.
    pub(super) fn lost_a_name(&self, inode: &InodeRef) {
        if inode.nlink() == 0 {
            self.sb().unhash(inode);
        }
    }
}

/// True if something is mounted there. Stays false while the inode is locked.
#[doc(alias = "is_local_mountpoint")]
pub(super) fn is_mountpoint(dentry: &DentryRef) -> bool {
    dentry.flags().contains(Flags::MOUNTPOINT)
}
