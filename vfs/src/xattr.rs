//! Extended attributes: the rights depend on the part of the name before the dot.
//!
//! | namespace    | read                     | written by                                |
//! |--------------|--------------------------|-------------------------------------------|
//! | `user.`      | with the right to read   | with the right to write; files and directories only, sticky ones by owners |
//! | `trusted.`   | [`Caps::SYS_ADMIN`]; hidden from others | the same                   |
//! | `security.`  | everyone                 | [`Caps::SYS_ADMIN`], or [`Caps::SETFCAP`] for `security.capability` |
//! | `system.`    | ACLs only, see `acl.rs`  | owners                                    |

use crate::acl::Which;
use crate::attr::{FileType, InodeFlags};
use crate::context::{AsPath, Context};
use crate::error::{Error, Result};
use crate::filesystem::XattrFlags;
use crate::permission::{Access, Caps};
use crate::setattr::CAPABILITY;
use crate::target::Target;
use crate::vfs::Vfs;
use crate::walk::LookupFlags;

/// The longest name.
#[doc(alias = "XATTR_NAME_MAX")]
const LONGEST_NAME: usize = 255;

/// The longest value.
#[doc(alias = "XATTR_SIZE_MAX")]
const LONGEST_VALUE: usize = 65536;

impl Vfs {
    /// The value of an extended attribute of what `path` leads to.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::NoData`] if there is none, or none for this caller;
    /// [`Error::OutOfRange`] for a name that is empty or too long, [`Error::NotSupported`]
    /// for one in no namespace.
    #[doc(alias("vfs_getxattr", "getxattr(2)", "lgetxattr(2)"))]
    pub fn get_xattr(
        &self,
        ctx: &Context,
        path: impl AsPath,
        name: impl AsRef<[u8]>,
        flags: LookupFlags,
    ) -> Result<Box<[u8]>> {
        check_name(name.as_ref())?;
        self.on_target(ctx, path, flags, |target| target.get_xattr(name.as_ref()))
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As [`get_xattr`](Self::get_xattr); [`Error::NotPermitted`] if the caller may not,
    /// [`Error::TooBig`] for more than 65536 bytes, [`Error::ReadOnly`], and
    /// [`Error::Exists`] or [`Error::NoData`] as `how` says.
    #[doc(alias("vfs_setxattr", "setxattr(2)", "lsetxattr(2)"))]
    pub fn set_xattr(
        &self,
        ctx: &Context,
        path: impl AsPath,
        name: impl AsRef<[u8]>,
        value: &[u8],
        how: XattrFlags,
        flags: LookupFlags,
    ) -> Result<()> {
        check_set(name.as_ref(), value, how)?;
        self.on_target(ctx, path, flags, |target| {
            target.set_xattr(name.as_ref(), value, how)
        })
    }

    /// The names of all extended attributes that this caller may see.
    ///
    /// # Errors
    /// As [`Vfs`].
    #[doc(alias("vfs_listxattr", "listxattr(2)", "llistxattr(2)"))]
    pub fn list_xattrs(
        &self,
        ctx: &Context,
        path: impl AsPath,
        flags: LookupFlags,
    ) -> Result<Vec<Box<[u8]>>> {
        self.on_target(ctx, path, flags, |target| target.list_xattrs())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`set_xattr`](Self::set_xattr); [`Error::NoData`] if there is none.
    #[doc(alias("vfs_removexattr", "removexattr(2)", "lremovexattr(2)"))]
    pub fn remove_xattr(
        &self,
        ctx: &Context,
        path: impl AsPath,
        name: impl AsRef<[u8]>,
        flags: LookupFlags,
    ) -> Result<()> {
        check_name(name.as_ref())?;
        self.on_target(ctx, path, flags, |target| {
            target.remove_xattr(name.as_ref())
        })
    }
}

/// Errors in a name, found before anything is looked up.
#[doc(alias = "import_xattr_name")]
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        1..=LONGEST_NAME if name.contains(&0) => Err(Error::Invalid),
        1..=LONGEST_NAME => Ok(()),
        _ => Err(Error::OutOfRange),
    }
}

#[doc(alias = "setxattr_copy")]
pub(crate) fn check_set(name: &[u8], value: &[u8], how: XattrFlags) -> Result<()> {
    if !XattrFlags::all().contains(how) {
        return Err(Error::Invalid);
    }
    check_name(name)?;
    match value.len() {
        0..=LONGEST_VALUE => Ok(()),
        _ => Err(Error::TooBig),
    }
}

/// The namespace of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Acl(Which),
    /// `system.` and no ACL.
    System,
    Security,
    Trusted,
    User,
    /// A namespace that does not exist.
    Unknown,
}

impl Space {
    const ALL: [(&'static [u8], Space); 4] = [
        (b"user.", Space::User),
        (b"trusted.", Space::Trusted),
        (b"security.", Space::Security),
        (b"system.", Space::System),
    ];

    fn of(name: &[u8]) -> Space {
        for which in [Which::Access, Which::Default] {
            if name == which.name() {
                return Space::Acl(which);
            }
        }
        let known = Space::ALL.iter().find(|(way, _)| name.starts_with(way));
        known.map_or(Space::Unknown, |(_, space)| *space)
    }

    /// Whether a back end may have such attributes at all.
    #[doc(alias = "xattr_resolve_name")]
    fn resolve(self, name: &[u8]) -> Result<()> {
        match self {
            Space::System | Space::Unknown => Err(Error::NotSupported),
            // Nothing behind the dot.
            _ if name.last() == Some(&b'.') && Space::ALL.iter().any(|(way, _)| *way == name) => {
                Err(Error::Invalid)
            }
            _ => Ok(()),
        }
    }
}

impl Target<'_> {
    pub(crate) fn get_xattr(&self, name: &[u8]) -> Result<Box<[u8]>> {
        let space = Space::of(name);
        if let Space::Acl(which) = space {
            return self.get_acl(which);
        }
        self.xattr_permission(space, Access::READ)?;
        space.resolve(name)?;
        self.with_at(|at| self.sb().fs().get_xattr(&self.caller(), at, name))
    }

    pub(crate) fn set_xattr(&self, name: &[u8], value: &[u8], how: XattrFlags) -> Result<()> {
        let _writing = self.want_write()?;
        let inode = self.path.inode_held();
        let space = Space::of(name);
        if let Space::Acl(which) = space {
            let _exclusive = inode.lock();
            return self.set_acl(which, value);
        }
        if name == CAPABILITY {
            self.check_capability(value)?;
        }
        let _exclusive = inode.lock();
        self.xattr_permission(space, Access::WRITE)?;
        self.may_change_security(name, space)?;
        space.resolve(name)?;
        if name == CAPABILITY {
            // Before it is there: a write from now on looks.
            inode.set_no_caps(false);
        }
        self.with_at(|at| {
            let by = self.caller();
            self.sb().fs().set_xattr(&by, at, name, value, how)
        })
    }

    pub(crate) fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let _writing = self.want_write()?;
        let inode = self.path.inode_held();
        let _exclusive = inode.lock();
        let space = Space::of(name);
        if let Space::Acl(which) = space {
            return self.set_acl(which, b"");
        }
        self.xattr_permission(space, Access::WRITE)?;
        self.may_change_security(name, space)?;
        if name == CAPABILITY && !self.credentials.caps.contains(Caps::SETFCAP) {
            return Err(Error::NotPermitted);
        }
        space.resolve(name)?;
        self.with_at(|at| self.sb().fs().remove_xattr(&self.caller(), at, name))
    }

    /// Names that this caller may see; nothing else is asked for.
    pub(crate) fn list_xattrs(&self) -> Result<Vec<Box<[u8]>>> {
        let mut names = self.with_at(|at| self.sb().fs().list_xattrs(&self.caller(), at))?;
        if !self.credentials.caps.contains(Caps::SYS_ADMIN) {
            names.retain(|name| Space::of(name) != Space::Trusted);
        }
        Ok(names)
    }

    /// Attributes of an immutable or append-only file cannot be changed.
    pub(crate) fn may_write_xattr(&self) -> Result<()> {
        let kept = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        match self.inode().flags().intersects(kept) {
            true => Err(Error::NotPermitted),
            false => Ok(()),
        }
    }

    fn xattr_permission(&self, space: Space, wanted: Access) -> Result<()> {
        let writes = wanted == Access::WRITE;
        if writes {
            self.may_write_xattr()?;
        }
        // As if there were none, or not for this caller.
        let denied = Err(if writes {
            Error::NotPermitted
        } else {
            Error::NoData
        });
        let inode = self.inode();
        match space {
            Space::Security | Space::System | Space::Acl(_) => return Ok(()),
            Space::Trusted if self.credentials.caps.contains(Caps::SYS_ADMIN) => return Ok(()),
            Space::Trusted => return denied,
            Space::User => {
                let is_dir = inode.kind() == FileType::Directory;
                if !is_dir && inode.kind() != FileType::Regular {
                    return denied;
                }
                let sticky = is_dir && inode.protection().mode() & 0o1000 != 0;
                if sticky && writes && !self.is_owner_or_capable() {
                    return denied;
                }
            }
            Space::Unknown => {}
        }
        self.may(wanted)
    }

    /// `security.capability` has checks of its own.
    #[doc(alias("cap_inode_setxattr", "cap_inode_removexattr"))]
    fn may_change_security(&self, name: &[u8], space: Space) -> Result<()> {
        if space != Space::Security || name == CAPABILITY {
            return Ok(());
        }
        match self.credentials.caps.contains(Caps::SYS_ADMIN) {
            true => Ok(()),
            false => Err(Error::NotPermitted),
        }
    }

    /// The value is one of version 2 or 3, and the caller may give capabilities away.
    #[doc(alias("cap_convert_nscap", "validheader"))]
    fn check_capability(&self, value: &[u8]) -> Result<()> {
        if value.is_empty() {
            return Ok(());
        }
        // The lowest bit says whether they are effective at once.
        let header = value.first_chunk::<4>();
        let version = header.map(|word| u32::from_le_bytes(*word) & !1);
        let known = (value.len(), version.unwrap_or(0));
        if !matches!(known, (20, 0x0200_0000) | (24, 0x0300_0000)) {
            return Err(Error::Invalid);
        }
        match self.credentials.caps.contains(Caps::SETFCAP) {
            true => Ok(()),
            false => Err(Error::NotPermitted),
        }
    }
}
