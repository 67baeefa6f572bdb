//! Permission checks: credentials against owner, group, permission bits and ACL.
//!
//! [`Credentials::may`] decides from the cache, and takes no lock: walks call it for every
//! directory that not everyone may search. If it needs an ACL that is not cached, it returns
//! [`Error::WouldBlock`]; [`Target::may`] goes on from there and asks the back end.

use crate::acl;
use crate::attr::{FileType, InodeFlags};
use crate::error::{Error, Result};
use crate::target::Target;
use crate::vfs_inode::{Inode, Protection};

/// The identity of a caller.
#[doc(alias = "struct cred")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Further groups.
    pub groups: Box<[u32]>,
    /// Rights beyond the permission bits.
    pub caps: Caps,
    /// The real user and group where they are other ones, as in a set-user-id program:
    /// access(2) goes by them.
    #[doc(alias("getuid(2)", "getgid(2)"))]
    pub real: Option<(u32, u32)>,
}

bitflags::bitflags! {
    /// Capabilities that the VFS asks for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Caps: u32 {
        /// All rights, except executing a file without any execute bit.
        #[doc(alias = "CAP_DAC_OVERRIDE")]
        const DAC_OVERRIDE = 1;
        /// Reading files, reading and searching directories.
        #[doc(alias = "CAP_DAC_READ_SEARCH")]
        const DAC_READ_SEARCH = 2;
        /// The rights that only the owner of a file has.
        #[doc(alias = "CAP_FOWNER")]
        const FOWNER = 4;
        /// Giving files away.
        #[doc(alias = "CAP_CHOWN")]
        const CHOWN = 8;
        /// Keeps the set-id bits of files written or chowned, and sets the set-gid bit for a
        /// group that the caller is not in.
        #[doc(alias = "CAP_FSETID")]
        const FSETID = 16;
        /// Making device nodes.
        #[doc(alias = "CAP_MKNOD")]
        const MKNOD = 32;
        /// Setting and clearing "immutable" and "append only".
        #[doc(alias = "CAP_LINUX_IMMUTABLE")]
        const LINUX_IMMUTABLE = 64;
        /// Extended attributes `trusted.*`, and `security.*`.
        #[doc(alias = "CAP_SYS_ADMIN")]
        const SYS_ADMIN = 128;
        /// The extended attribute `security.capability`.
        #[doc(alias = "CAP_SETFCAP")]
        const SETFCAP = 256;
    }
}

bitflags::bitflags! {
    /// The rights to check, as in access(2); none at all is `F_OK`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Access: u32 {
        /// Execute a file, search a directory.
        #[doc(alias("X_OK", "MAY_EXEC"))]
        const EXEC = 1;
        /// Write.
        #[doc(alias("W_OK", "MAY_WRITE"))]
        const WRITE = 2;
        /// Read.
        #[doc(alias("R_OK", "MAY_READ"))]
        const READ = 4;
    }
}

impl Credentials {
    /// User 0 with every capability.
    pub fn root() -> Credentials {
        Credentials {
            uid: 0,
            gid: 0,
            groups: Box::default(),
            caps: Caps::all(),
            real: None,
        }
    }

    /// A user without capabilities and further groups.
    pub fn user(uid: u32, gid: u32) -> Credentials {
        Credentials {
            uid,
            gid,
            groups: Box::default(),
            caps: Caps::empty(),
            real: None,
        }
    }

    #[doc(alias = "in_group_p")]
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Checks `wanted` against the cached permissions of an inode, as of one moment. Takes no
    /// lock.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`]; [`Error::NotPermitted`] for writing an immutable file;
    /// [`Error::WouldBlock`] if the decision needs an ACL that is not cached.
    #[doc(alias("inode_permission", "generic_permission", "MAY_NOT_BLOCK"))]
    pub(crate) fn may(&self, inode: &Inode, wanted: Access) -> Result<()> {
        let is = inode.protection();
        if wanted.contains(Access::WRITE) && is.flags().contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted);
        }
        if self.is_ruled_by_acl(is) {
            return inode
                .with_acl(|acl| self.may_by_acl(inode, is, Some(acl), wanted))
                .unwrap_or(Err(Error::WouldBlock));
        }
        self.may_by_mode(inode, is, wanted)
    }

    /// For owners, and where the mask forbids everything, the permission bits say it all.
    fn is_ruled_by_acl(&self, is: Protection) -> bool {
        is.may_have_acl() && is.mode() & 0o070 != 0 && self.uid != is.uid
    }

    #[cold]
    #[doc(alias = "check_acl")]
    fn may_by_acl(
        &self,
        inode: &Inode,
        is: Protection,
        acl: Option<&[u8]>,
        wanted: Access,
    ) -> Result<()> {
        let Some(acl) = acl else {
            return self.may_by_mode(inode, is, wanted);
        };
        match acl::permission(acl, self, (is.uid, is.gid), wanted.bits() as u16) {
            Err(Error::PermissionDenied) => self.overrides(inode, is, wanted),
            decided => decided,
        }
    }

    #[doc(alias = "acl_permission_check")]
    fn may_by_mode(&self, inode: &Inode, is: Protection, wanted: Access) -> Result<()> {
        // One class decides, even if another one would allow more.
        let class = if self.uid == is.uid {
            is.mode() >> 6
        } else if self.is_in_group(is.gid) {
            is.mode() >> 3
        } else {
            is.mode()
        };
        if wanted.bits() & !u32::from(class) & 0o7 == 0 {
            return Ok(());
        }
        self.overrides(inode, is, wanted)
    }

    /// Checks whether capabilities allow it nevertheless.
    #[doc(alias = "capable_wrt_inode_uidgid")]
    fn overrides(&self, inode: &Inode, is: Protection, wanted: Access) -> Result<()> {
        let is_dir = inode.kind() == FileType::Directory;
        let nobody_executes = !is_dir && is.mode() & 0o111 == 0;
        let overridden = self.caps.contains(Caps::DAC_OVERRIDE)
            && !(wanted.contains(Access::EXEC) && nobody_executes);
        let read_or_search = if is_dir {
            Access::READ | Access::EXEC
        } else {
            Access::READ
        };
        let may_read =
            self.caps.contains(Caps::DAC_READ_SEARCH) && (wanted - read_or_search).is_empty();
        if overridden || may_read {
            Ok(())
        } else {
            Err(Error::PermissionDenied)
        }
    }
}

impl Target<'_> {
    /// Checks `wanted`; may ask the back end for an ACL.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] for writing to a read-only back end (a read-only mount is checked
    /// later); [`Error::PermissionDenied`]; [`Error::NotPermitted`] for writing an immutable
    /// file; errors of the back end.
    #[doc(alias("inode_permission", "sb_permission"))]
    pub(crate) fn may(&self, wanted: Access) -> Result<()> {
        if wanted.contains(Access::WRITE) && self.sb().read_only && is_kept(self.inode()) {
            return Err(Error::ReadOnly);
        }
        match self.credentials.may(self.inode(), wanted) {
            Err(Error::WouldBlock) => self.may_asking(wanted),
            decided => decided,
        }
    }

    #[cold]
    fn may_asking(&self, wanted: Access) -> Result<()> {
        let inode = self.inode();
        let (is, acl) = self.ask_access_acl()?;
        if !self.credentials.is_ruled_by_acl(is) {
            // Changed hands meanwhile.
            return self.credentials.may_by_mode(inode, is, wanted);
        }
        self.credentials
            .may_by_acl(inode, is, acl.as_deref(), wanted)
    }
}

/// Writing changes the file system only for files, directories and links; a device, pipe or
/// socket leads elsewhere.
#[doc(alias("special_file", "sb_permission"))]
pub(crate) fn is_kept(inode: &Inode) -> bool {
    use FileType::{Directory, Regular, Symlink};
    matches!(inode.kind(), Regular | Directory | Symlink)
}
