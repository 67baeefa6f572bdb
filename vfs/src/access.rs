//! access(2): the credentials that it checks, and their rights.

use crate::context::{AsPath, Context, Start};
use crate::error::{Error, Result};
use crate::mount::MountInfo;
use crate::permission::{Access, Caps, Credentials, is_kept};
use crate::target::Target;
use crate::vfs::Vfs;
use crate::vfs_inode::Inode;
use crate::walk::{LookupFlags, filename_lookup};

/// The answer for a place without a reference to it.
#[derive(Clone, Copy)]
enum Permission {
    Allowed,
    Denied,
    Immutable,
    ReadOnly,
}

impl Vfs {
    /// Checks whether the caller may access what `path` leads to; with an empty
    /// `mode`, whether it exists. A cached answer takes no reference.
    ///
    /// Like access(2), this checks the [real ids](Credentials::real) all the way, with the
    /// capabilities that a user has by being user 0; with [`LookupFlags::EACCESS`], the
    /// credentials that all other calls check.
    ///
    /// # Errors
    /// See [`Vfs`]; [`Error::PermissionDenied`] if the caller may not, [`Error::NotPermitted`]
    /// for writing an immutable file, [`Error::ReadOnly`].
    #[doc(alias("access(2)", "faccessat2(2)", "do_faccessat"))]
    #[inline]
    pub fn access(
        &self,
        ctx: &Context,
        path: impl AsPath,
        mode: Access,
        flags: LookupFlags,
    ) -> Result<()> {
        let start = self.start(ctx, &path)?;
        if ctx.credentials().differ_for_access() && !flags.contains(LookupFlags::EACCESS) {
            return self.access_for_real(ctx, start, mode, flags);
        }
        self.may_access(ctx, start, mode, flags)
    }

    #[cold]
    #[doc(alias = "access_override_creds")]
    fn access_for_real(
        &self,
        ctx: &Context,
        start: Start<'_>,
        mode: Access,
        flags: LookupFlags,
    ) -> Result<()> {
        let real = ctx.credentials().for_access();
        self.may_access(&ctx.clone().with_credentials(real), start, mode, flags)
    }

    #[inline]
    fn may_access(
        &self,
        ctx: &Context,
        start: Start<'_>,
        mode: Access,
        flags: LookupFlags,
    ) -> Result<()> {
        let who = ctx.credentials();
        let request = self.request(ctx, start, flags);
        let verdict = filename_lookup(
            &request,
            |found| {
                let (mnt, inode) = (found.mnt(), found.inode()?);
                if mode.contains(Access::WRITE) && mnt.sb.read_only {
                    // `ReadOnly` comes before errors about the caller.
                    return None;
                }
                let verdict = cached_verdict(who, inode, mode)?.through(mnt, inode, mode);
                found.is_still_true().then_some(verdict)
            },
            |path| {
                Target::new(&path, who).may(mode)?;
                Ok(Permission::Allowed.through(path.mnt(), path.inode(), mode))
            },
        )?;
        match verdict {
            Permission::Allowed => Ok(()),
            Permission::Denied => Err(Error::PermissionDenied),
            Permission::Immutable => Err(Error::NotPermitted),
            Permission::ReadOnly => Err(Error::ReadOnly),
        }
    }
}

impl Permission {
    /// A read-only mount refuses writing, except to devices, pipes and sockets.
    #[inline]
    #[doc(alias("__mnt_is_readonly", "special_file"))]
    fn through(self, mnt: &MountInfo, inode: &Inode, mode: Access) -> Permission {
        if !mode.contains(Access::WRITE) || !is_kept(inode) {
            return self;
        }
        // A file system that takes no changes says so before it looks at the file.
        match self {
            _ if mnt.sb.read_only => Permission::ReadOnly,
            Permission::Allowed if mnt.is_read_only() => Permission::ReadOnly,
            decided => decided,
        }
    }
}

/// The answer of the cache; `None` if the back end must be asked.
#[inline]
fn cached_verdict(who: &Credentials, inode: &Inode, mode: Access) -> Option<Permission> {
    if mode.is_empty() {
        return Some(Permission::Allowed);
    }
    match who.may(inode, mode) {
        Ok(()) => Some(Permission::Allowed),
        Err(Error::PermissionDenied) => Some(Permission::Denied),
        Err(Error::NotPermitted) => Some(Permission::Immutable),
        Err(_) => None,
    }
}

impl Credentials {
    /// True if access(2) uses other credentials than all other calls.
    #[doc(alias = "access_need_override_creds")]
    fn differ_for_access(&self) -> bool {
        self.real.is_some() || self.uid != 0 && !self.caps.is_empty()
    }

    /// The credentials for access(2): a set-user-id program asks about the rights of the user
    /// that runs it.
    fn for_access(&self) -> Credentials {
        let (uid, gid) = self.real.unwrap_or((self.uid, self.gid));
        let caps = match (uid, self.uid) {
            (0, 0) => self.caps,
            // Capabilities that it is permitted and does not use at the moment.
            (0, _) => Caps::all(),
            _ => Caps::empty(),
        };
        Credentials {
            uid,
            gid,
            caps,
            groups: self.groups.clone(),
            real: None,
        }
    }
}
