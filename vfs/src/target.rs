//! [`Target`]: a file, and the credentials that use it.
//!
//! The operations are in `permission.rs`, `setattr.rs`, `xattr.rs`, `acl.rs`. Each exists for
//! paths ([`Vfs`](crate::Vfs)) and for open files ([`File`](crate::File)), and both make a
//! target first.

use rcuwalk_sync::Shared;

use crate::context::{AsPath, Context, VfsPath};
use crate::dentry::Flags;
use crate::error::{Error, Result};
use crate::filesystem::{At, Caller, FileHandle};
use crate::mount::{Mount, Writing};
use crate::name::Name;
use crate::permission::{Caps, Credentials};
use crate::super_block::SuperBlock;
use crate::vfs::Vfs;
use crate::vfs_inode::Inode;
use crate::walk::LookupFlags;

/// A file, and the credentials that use it.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) path: &'a VfsPath,
    pub(crate) credentials: &'a Credentials,
    /// As it is open, if the caller came with an open file.
    pub(crate) open: Option<&'a dyn FileHandle>,
}

impl Vfs {
    /// Calls `ask` with the file that `path` leads to, [again](crate::retry) if the caches made
    /// that fail.
    pub(crate) fn on_target<R>(
        &self,
        ctx: &Context,
        path: impl AsPath,
        flags: LookupFlags,
        ask: impl Fn(&Target<'_>) -> Result<R>,
    ) -> Result<R> {
        let start = self.start(ctx, &path)?;
        self.retry(ctx, |more| {
            let at = self.lookup_within(ctx, start, flags | more)?;
            let target = Target::new(&at, ctx.credentials());
            ask(&target).inspect_err(|err| target.invalidate_if_stale(err))
        })
    }
}

impl<'a> Target<'a> {
    /// The file that a path led to.
    pub(crate) fn new(path: &'a VfsPath, credentials: &'a Credentials) -> Target<'a> {
        Target {
            path,
            credentials,
            open: None,
        }
    }

    pub(crate) fn inode(&self) -> &'a Inode {
        self.path.inode()
    }

    pub(crate) fn sb(&self) -> &'a SuperBlock {
        &self.path.mnt().sb
    }

    /// For the back end.
    pub(crate) fn caller(&self) -> Caller<'a> {
        Caller {
            sb: self.sb(),
            credentials: self.credentials,
        }
    }

    /// Calls `ask` with the file's directory and name, for a back end that opens it by name.
    pub(crate) fn with_at<R>(&self, ask: impl FnOnce(&At<'_>) -> Result<R>) -> Result<R> {
        let dentry = self.path.dentry();
        // Off the hash table: the name has been removed, or is another's.
        let lost = dentry.flags().contains(Flags::UNHASHED);
        let place = if lost { None } else { dentry.place() };
        let dir = place.as_ref().and_then(|(parent, _)| parent.inode_ref());
        let parent = match (&dir, &place) {
            (Some(dir), Some((_, name))) => Some((&**dir, Name::new(name)?)),
            _ => None,
        };
        ask(&At {
            parent,
            inode: self.inode(),
            open: self.open,
        })
    }

    /// If the back end has not found it by its name, the name is stale, whatever its time to
    /// live.
    pub(crate) fn invalidate_if_stale(&self, err: &Error) {
        if matches!(err, Error::Stale) {
            self.sb().caches.dcache.d_invalidate(self.path.dentry());
        }
    }

    /// The right to change something here.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly).
    #[doc(alias = "mnt_want_write")]
    pub(crate) fn want_write(&self) -> Result<Writing<&'a Shared<Mount>>> {
        Writing::new(&**self.path.mnt())
    }

    /// True for the owner, and for callers with the owner's rights.
    #[doc(alias = "inode_owner_or_capable")]
    pub(crate) fn is_owner_or_capable(&self) -> bool {
        self.credentials.uid == self.inode().protection().uid
            || self.credentials.caps.contains(Caps::FOWNER)
    }

    /// True for members of the group `gid`, and for callers that may keep set-id bits.
    #[doc(alias = "in_group_or_capable")]
    pub(crate) fn is_in_group_or_capable(&self, gid: u32) -> bool {
        self.credentials.is_in_group(gid) || self.credentials.caps.contains(Caps::FSETID)
    }
}
