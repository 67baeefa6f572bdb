//! Who may do what: credentials against owner, group and permission bits.

use crate::attr::FileType;
use crate::error::{Error, Result};
use crate::inode::Inode;

/// Who asks.
#[doc(alias = "struct cred")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Further groups.
    pub groups: Box<[u32]>,
    /// What permission bits do not stop.
    pub caps: Caps,
}

bitflags::bitflags! {
    /// Capabilities that the VFS asks for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Caps: u32 {
        /// Everything, but executing what nobody may execute.
        #[doc(alias = "CAP_DAC_OVERRIDE")]
        const DAC_OVERRIDE = 1;
        /// Reading files, reading and searching directories.
        #[doc(alias = "CAP_DAC_READ_SEARCH")]
        const DAC_READ_SEARCH = 2;
        /// What only the owner of a file may do.
        #[doc(alias = "CAP_FOWNER")]
        const FOWNER = 4;
    }
}

bitflags::bitflags! {
    /// What is asked for, as in access(2); nothing at all is `F_OK`.
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
        }
    }

    /// A user without capabilities and further groups.
    pub fn user(uid: u32, gid: u32) -> Credentials {
        Credentials {
            uid,
            gid,
            groups: Box::default(),
            caps: Caps::empty(),
        }
    }

    fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Checks `wanted` against an inode's permissions, as of one moment. Takes no lock.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`].
    #[doc(alias("inode_permission", "generic_permission"))]
    pub(crate) fn may(&self, inode: &Inode, wanted: Access) -> Result<()> {
        let (uid, gid, mode) = inode.owner_and_mode();
        // One class decides, even if another one would allow more.
        let class = if self.uid == uid {
            mode >> 6
        } else if self.is_in_group(gid) {
            mode >> 3
        } else {
            mode
        };
        if wanted.bits() & !u32::from(class) & 0o7 == 0 {
            return Ok(());
        }
        let is_dir = inode.kind() == FileType::Directory;
        let nobody_executes = !is_dir && mode & 0o111 == 0;
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
