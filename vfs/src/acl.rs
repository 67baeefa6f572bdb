//! POSIX ACLs: read, set, handed down, and brought in line with the permission bits.
//!
//! | read               | to learn                                             |
//! |--------------------|------------------------------------------------------|
//! | `acl/entries.rs`   | the format and meaning of an ACL                     |
//! | `vfs_inode/acl.rs` | how one is cached with its inode                     |
//! | `permission.rs`    | where it is checked                                  |
//! | this file          | reading, setting and inheriting ACLs                 |

mod entries;

pub(crate) use entries::permission;
use entries::{Entry, broken};

use crate::attr::FileType;
use crate::error::{Error, Result};
use crate::filesystem::{SetAttr, XattrFlags};
use crate::target::Target;
use crate::vfs_inode::Protection;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias("ACL_TYPE_ACCESS", "ACL_TYPE_DEFAULT"))]
pub(crate) enum Which {
    Access,
    Default,
}

impl Which {
    /// The extended attribute that it is.
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            Which::Access => b"system.posix_acl_access",
            Which::Default => b"system.posix_acl_default",
        }
    }
}

/// The owner, mode and ACLs of a new inode, from its creator and its directory.
pub(crate) struct Inherited {
    /// Its group.
    pub(crate) gid: u32,
    /// Its permission bits.
    pub(crate) mode: u16,
    /// Its access ACL.
    pub(crate) acl: Option<Box<[u8]>>,
    /// Its default ACL; for directories only.
    pub(crate) default_acl: Option<Box<[u8]>>,
}

/// Returns the attributes of a new inode of type `kind` in `dir` whose creator asks for `mode`.
///
/// A set-gid directory hands its group down, and the bit to directories.
#[doc(alias(
    "inode_init_owner",
    "vfs_prepare_mode",
    "mode_strip_sgid",
    "mode_strip_umask",
    "posix_acl_create"
))]
pub(crate) fn inherit(
    dir: &Target<'_>,
    kind: FileType,
    mut mode: u16,
    umask: u16,
) -> Result<Inherited> {
    const SET_GID: u16 = 0o2000;
    const SET_GID_AND_GROUP_EXECUTE: u16 = 0o2010;
    let parent = dir.inode().protection();
    let mut gid = dir.credentials.gid;
    if parent.mode() & SET_GID != 0 {
        gid = parent.gid;
        if kind == FileType::Directory {
            mode |= SET_GID;
        } else if mode & SET_GID_AND_GROUP_EXECUTE == SET_GID_AND_GROUP_EXECUTE
            && !dir.is_in_group_or_capable(gid)
        {
            mode &= !SET_GID;
        }
    }
    let mut new = Inherited {
        gid,
        mode,
        acl: None,
        default_acl: None,
    };
    if kind == FileType::Symlink {
        return Ok(new);
    }
    let Some(mut acl) = dir.default_acl()? else {
        new.mode &= !umask;
        return Ok(new);
    };
    if kind == FileType::Directory {
        new.default_acl = Some(entries::encode(&acl));
    }
    let (mode, more) = entries::meet(&mut acl, mode)?;
    new.mode = mode;
    new.acl = more.then(|| entries::encode(&acl));
    Ok(new)
}

fn parse(value: Option<Box<[u8]>>) -> Result<Option<Vec<Entry>>> {
    match value {
        Some(value) => entries::parse(&value).map_err(|_| broken()),
        None => Ok(None),
    }
}

impl Target<'_> {
    /// The access ACL as the back end has it; `None` if there is none.
    ///
    /// # Errors
    /// What the back end reports; [`Error::Io`] for an ACL that makes no sense.
    #[doc(alias("get_inode_acl", "__get_acl"))]
    fn access_acl(&self) -> Result<Option<Vec<Entry>>> {
        parse(self.acl_value(Which::Access)?)
    }

    /// The ACL that new files in this directory inherit.
    fn default_acl(&self) -> Result<Option<Vec<Entry>>> {
        let sb = self.sb();
        if !sb.posix_acl {
            return Ok(None);
        }
        parse(self.with_at(|at| sb.fs().default_acl(&self.caller(), at))?)
    }

    /// The same as getxattr(2) returns it.
    fn acl_value(&self, which: Which) -> Result<Option<Box<[u8]>>> {
        let sb = self.sb();
        if !sb.posix_acl {
            return Ok(None);
        }
        let value = self.with_at(|at| sb.fs().get_xattr(&self.caller(), at, which.name()));
        match value {
            Ok(value) => Ok(Some(value)),
            Err(Error::NoData | Error::NotSupported) => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// Reads the access ACL from the back end and caches it with the inode. Returns it together
    /// with the inode's other permissions, all of one moment.
    #[cold]
    pub(crate) fn ask_access_acl(&self) -> Result<(Protection, Option<Box<[u8]>>)> {
        let inode = self.inode();
        loop {
            let asked = inode.before_asking();
            let is = inode.protection();
            let answer = self.acl_value(Which::Access)?;
            // A mask among the permission bits is not to be taken for the group's rights
            // because its ACL was gone, or not there yet, a moment before or after.
            if inode.is_as_asked(asked) {
                inode.keep_answer(asked, answer.as_deref());
                return Ok((is, answer));
            }
        }
    }

    /// The extended attribute that is an ACL. Anybody may read it.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none, [`Error::NotSupported`] where there are none.
    #[doc(alias("vfs_get_acl", "do_get_acl"))]
    pub(crate) fn get_acl(&self, which: Which) -> Result<Box<[u8]>> {
        if !self.sb().posix_acl || self.inode().kind() == FileType::Symlink {
            return Err(Error::NotSupported);
        }
        self.acl_value(which)?.ok_or(Error::NoData)
    }

    /// Sets or, with an empty value, removes an ACL. The caller may write here, and holds
    /// the inode exclusively.
    #[doc(alias("vfs_set_acl", "do_set_acl", "set_posix_acl", "vfs_remove_acl"))]
    pub(crate) fn set_acl(&self, which: Which, value: &[u8]) -> Result<()> {
        let acl = match value {
            [] => None,
            value => entries::parse(value)?,
        };
        self.may_write_xattr()?;
        let kind = self.inode().kind();
        if !self.sb().posix_acl || kind == FileType::Symlink {
            return Err(Error::NotSupported);
        }
        if which == Which::Default && kind != FileType::Directory {
            return match acl {
                Some(_) => Err(Error::PermissionDenied),
                None => Ok(()),
            };
        }
        if !self.is_owner_or_capable() {
            return Err(Error::NotPermitted);
        }
        if let Some(acl) = &acl {
            entries::check(acl)?;
        }
        match which {
            Which::Default => self.store_acl(which, acl.as_deref()),
            Which::Access => self.set_access_acl(acl),
        }
    }

    /// One that says no more than permission bits can becomes just those.
    #[doc(alias("posix_acl_update_mode", "simple_set_acl"))]
    fn set_access_acl(&self, acl: Option<Vec<Entry>>) -> Result<()> {
        let is = self.inode().protection();
        let mut mode = is.mode();
        let mut kept = None;
        let removes = acl.is_none();
        if let Some(acl) = acl {
            let (bits, more) = entries::equivalent_mode(&acl);
            mode = mode & !0o777 | bits;
            kept = more.then_some(acl);
            if !self.is_in_group_or_capable(is.gid) {
                mode &= !0o2000;
            }
        }
        // From here until the change is complete, permission checks ask the back end: no check
        // may take the mask, once it is among the permission bits, for the group's rights.
        let changing = self.inode().change_acl();
        self.update_search_mark();
        // For the same reason there is an ACL whenever there is a mask.
        if kept.is_none() && !removes {
            self.set_mode(mode)?;
        }
        self.store_acl(Which::Access, kept.as_deref())?;
        // A back end may know what the removal of one does to the permission bits.
        if !removes {
            self.set_mode(mode)?;
        }
        let value = kept.as_deref().map(entries::encode);
        changing.done(value.as_deref());
        self.update_search_mark();
        Ok(())
    }

    /// Sets the permission bits that go with an ACL, if the back end has not done so by
    /// itself.
    fn set_mode(&self, mode: u16) -> Result<()> {
        if self.inode().protection().mode() == mode {
            return Ok(());
        }
        let change = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        self.with_at(|at| self.sb().fs().setattr(&self.caller(), at, &change))
    }

    /// After a change of the permission bits, which are part of the ACL as well. The caller
    /// holds the inode exclusively.
    #[doc(alias = "posix_acl_chmod")]
    pub(crate) fn chmod_acl(&self, mode: u16) -> Result<()> {
        if !self.inode().protection().may_have_acl() {
            return Ok(());
        }
        let changing = self.inode().change_acl();
        let Some(mut acl) = self.access_acl()? else {
            changing.done(None);
            return Ok(());
        };
        entries::chmod(&mut acl, mode)?;
        self.store_acl(Which::Access, Some(&acl))?;
        changing.done(Some(&entries::encode(&acl)));
        Ok(())
    }

    fn store_acl(&self, which: Which, acl: Option<&[Entry]>) -> Result<()> {
        let (sb, by, name) = (self.sb(), self.caller(), which.name());
        let stored = self.with_at(|at| match acl {
            Some(acl) => {
                let value = entries::encode(acl);
                sb.fs()
                    .set_xattr(&by, at, name, &value, XattrFlags::empty())
            }
            None => sb.fs().remove_xattr(&by, at, name),
        });
        match stored {
            // There was none: as good as removed.
            Err(Error::NoData) if acl.is_none() => Ok(()),
            stored => stored,
        }
    }
}
