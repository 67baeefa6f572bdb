//! Changing attributes: chmod, chown, truncate, utimens, and several at once.
//!
//! | read              | to learn                                              |
//! |-------------------|-------------------------------------------------------|
//! | [`Vfs::setattr`]  | the calls by path; those by open file are in `file.rs` |
//! | `Target::chmod` … | each call, and the rights it needs                    |
//! | `notify_change`   | their common part, in the kernel's order              |
//! | `remove_privs`    | the privileges that a write removes                   |

use crate::attr::{FileType, InodeFlags};
use crate::context::{AsPath, Context};
use crate::error::{Error, Result};
use crate::filesystem::{SetAttr, SetTime};
use crate::permission::{Access, Caps};
use crate::target::Target;
use crate::vfs::Vfs;
use crate::walk::LookupFlags;

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// The attribute that gives capabilities to a process that executes the file.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

impl Vfs {
    /// Changes the permission bits of what `path` leads to.
    ///
    /// A caller outside of the file's group does not get the set-gid bit. An access ACL changes
    /// along.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::NotPermitted`] if the caller is neither the owner nor privileged,
    /// or the file is immutable or append-only; [`Error::ReadOnly`].
    #[doc(alias("notify_change", "chmod_common", "chmod(2)", "set_mode"))]
    pub fn chmod(&self, ctx: &Context, path: impl AsPath, mode: u16) -> Result<()> {
        self.on_target(ctx, path, LookupFlags::FOLLOW, |target| target.chmod(mode))
    }

    /// Changes owner, group, or both; takes the set-id bits and file capabilities off
    /// whatever is no directory.
    ///
    /// # Errors
    /// As [`chmod`](Self::chmod). An owner may change the group to one that he is in; all
    /// else needs [`Caps::CHOWN`]. [`Error::Invalid`] for the id 4294967295.
    #[doc(alias("chown_common", "chown(2)", "lchown(2)", "fchownat(2)"))]
    pub fn chown(
        &self,
        ctx: &Context,
        path: impl AsPath,
        uid: Option<u32>,
        gid: Option<u32>,
        flags: LookupFlags,
    ) -> Result<()> {
        self.on_target(ctx, path, flags, |target| target.chown(uid, gid))
    }

    /// Changes the size of a regular file.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::Invalid`] for a size of 2^63 or more, and if it is neither file nor
    /// directory, [`Error::IsADirectory`], [`Error::NotPermitted`] if it is append-only,
    /// [`Error::ReadOnly`], [`Error::FileTooBig`], [`Error::NoSpace`].
    #[doc(alias("vfs_truncate", "truncate(2)"))]
    pub fn truncate(&self, ctx: &Context, path: impl AsPath, size: u64) -> Result<()> {
        check_size(size)?;
        self.on_target(ctx, path, LookupFlags::FOLLOW, |target| {
            target.truncate(size)
        })
    }

    /// Sets the times of the last access and the last change; `None` leaves one as it is, and
    /// with both `None` the path is not even resolved.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::NotPermitted`] if the caller is not the owner; setting both to now
    /// only needs the right to write; [`Error::ReadOnly`].
    #[doc(alias("vfs_utimes", "utimensat(2)"))]
    pub fn utimens(
        &self,
        ctx: &Context,
        path: impl AsPath,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
        flags: LookupFlags,
    ) -> Result<()> {
        if (atime, mtime) == (None, None) {
            return Ok(());
        }
        self.on_target(ctx, path, flags, |target| target.utimens(atime, mtime))
    }

    /// Changes several attributes as one, with the checks of each.
    ///
    /// # Errors
    /// As [`chmod`](Self::chmod), [`chown`](Self::chown), [`truncate`](Self::truncate),
    /// [`utimens`](Self::utimens) and [`set_flags`](Self::set_flags).
    #[doc(alias("notify_change", "struct iattr"))]
    pub fn setattr(
        &self,
        ctx: &Context,
        path: impl AsPath,
        change: &SetAttr,
        flags: LookupFlags,
    ) -> Result<()> {
        self.on_target(ctx, path, flags, |target| target.setattr(change))
    }

    /// Makes a file immutable or append-only, or takes that back.
    ///
    /// # Errors
    /// As [`Vfs`]; [`Error::NotPermitted`] for a caller other than the owner, and for a change
    /// without [`Caps::LINUX_IMMUTABLE`]; [`Error::ReadOnly`]; [`Error::NotSupported`].
    #[doc(alias("vfs_fileattr_set", "FS_IOC_SETFLAGS", "chattr"))]
    pub fn set_flags(&self, ctx: &Context, path: impl AsPath, flags: InodeFlags) -> Result<()> {
        let change = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        self.setattr(ctx, path, &change, LookupFlags::FOLLOW)
    }
}

/// A size that a file may be asked to have.
pub(crate) fn check_size(size: u64) -> Result<()> {
    match i64::try_from(size) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::Invalid),
    }
}

bitflags::bitflags! {
    /// Privileges that a change clears, and how it is checked.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    struct AttrFlags: u8 {
        /// The set-uid bit goes.
        #[doc(alias = "ATTR_KILL_SUID")]
        const KILL_SUID = 1;
        /// The set-gid bit goes.
        #[doc(alias = "ATTR_KILL_SGID")]
        const KILL_SGID = 2;
        /// File capabilities go.
        #[doc(alias = "ATTR_KILL_PRIV")]
        const KILL_CAPS = 4;
        /// A consequence of something that has been allowed already.
        #[doc(alias = "ATTR_FORCE")]
        const FORCE = 8;
        /// Both times become now; write permission is enough.
        #[doc(alias = "ATTR_TOUCH")]
        const TOUCH = 16;
        /// Times are set, for owners.
        #[doc(alias = "ATTR_TIMES_SET")]
        const TIMES = 32;
    }
}

/// How the caller sets these times.
fn times(atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<AttrFlags> {
    for time in [atime, mtime].into_iter().flatten() {
        if let SetTime::To(time) = time
            && time.nsec >= 1_000_000_000
        {
            return Err(Error::Invalid);
        }
    }
    Ok(match (atime, mtime) {
        (None, None) => AttrFlags::empty(),
        (Some(SetTime::Now), Some(SetTime::Now)) => AttrFlags::TOUCH,
        _ => AttrFlags::TIMES,
    })
}

impl Target<'_> {
    pub(crate) fn chmod(&self, mode: u16) -> Result<()> {
        let _writing = self.want_write()?;
        let inode = self.path.inode_held();
        let _exclusive = inode.lock();
        let change = SetAttr {
            mode: Some(mode & 0o7777),
            ..SetAttr::default()
        };
        self.notify_change(change, AttrFlags::empty())
    }

    pub(crate) fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let _writing = self.want_write()?;
        if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
            return Err(Error::Invalid);
        }
        let inode = self.path.inode_held();
        let _exclusive = inode.lock();
        let change = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        // Also where nothing changes hands.
        let lost = self.lost_by_chown(inode.protection().mode());
        self.notify_change(change, lost)
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<()> {
        self.may_truncate()?;
        self.may(Access::WRITE)?;
        let _writing = self.want_write()?;
        if self.inode().flags().contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted);
        }
        self.do_truncate(size, None)
    }

    /// Only a regular file can be truncated.
    fn may_truncate(&self) -> Result<()> {
        match self.inode().kind() {
            FileType::Regular => Ok(()),
            FileType::Directory => Err(Error::IsADirectory),
            _ => Err(Error::Invalid),
        }
    }

    /// Truncates if the caller may. `mtime` is given for an open file: then it counts as
    /// written even if the size stays.
    pub(crate) fn do_truncate(&self, size: u64, mtime: Option<SetTime>) -> Result<()> {
        let change = SetAttr {
            size: Some(size),
            mtime,
            ..SetAttr::default()
        };
        let inode = self.path.inode_held();
        let _exclusive = inode.lock();
        // With the lock held, unlike the kernel: an answer from before another caller gives the
        // file a capability must not be cached after that.
        let mut how = self.lost_by_write()?;
        how.set(AttrFlags::FORCE, !how.is_empty());
        self.notify_change(change, how)
    }

    pub(crate) fn utimens(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        let how = times(atime, mtime)?;
        let _writing = self.want_write()?;
        let inode = self.path.inode_held();
        let _exclusive = inode.lock();
        let change = SetAttr {
            atime,
            mtime,
            ..SetAttr::default()
        };
        self.notify_change(change, how)
    }

    /// Several changes as one: those by path of each kind, with one call to the back end.
    pub(crate) fn setattr(&self, change: &SetAttr) -> Result<()> {
        let mut change = *change;
        let mut how = times(change.atime, change.mtime)?;
        if [change.uid, change.gid].contains(&Some(u32::MAX)) {
            return Err(Error::Invalid);
        }
        if let Some(size) = change.size {
            check_size(size)?;
            self.may_truncate()?;
            if self.open.is_none() {
                self.may(Access::WRITE)?;
            }
        }
        let _writing = self.want_write()?;
        let inode = self.path.inode_held();
        let _exclusive = inode.lock();
        if let Some(flags) = change.flags {
            self.may_set_flags(flags)?;
        }
        if change.size.is_some() && inode.flags().contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted);
        }
        if let Some(mode) = &mut change.mode {
            *mode &= 0o7777;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let mode = change.mode.unwrap_or(inode.protection().mode());
            how |= self.lost_by_chown(mode);
        }
        let lost = match change.size {
            Some(_) => self.lost_by_write()?,
            None => AttrFlags::empty(),
        };
        if !lost.is_empty() {
            // A truncation removes privileges for every caller; the rest is checked first.
            self.may_setattr(&change, how)?;
            self.setattr_prepare(&mut change, how)?;
            how |= lost | AttrFlags::FORCE;
        }
        self.notify_change(change, how)
    }

    #[doc(alias = "fileattr_set_prepare")]
    fn may_set_flags(&self, flags: InodeFlags) -> Result<()> {
        // Before all else: links and devices have none on any file system.
        let kind = self.inode().kind();
        if !matches!(kind, FileType::Regular | FileType::Directory) {
            return Err(Error::NotSupported);
        }
        if !self.is_owner_or_capable() {
            return Err(Error::NotPermitted);
        }
        let changes = flags != self.inode().flags();
        if changes && !self.credentials.caps.contains(Caps::LINUX_IMMUTABLE) {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    /// Takes set-id bits and file capabilities off a file that is written to. The caller
    /// holds the inode exclusively.
    #[doc(alias = "file_remove_privs")]
    pub(crate) fn remove_privs(&self) -> Result<()> {
        if self.inode().kind() != FileType::Regular {
            return Ok(());
        }
        let remove = || match self.lost_by_write()? {
            none if none.is_empty() => Ok(()),
            lost => self.notify_change(SetAttr::default(), lost | AttrFlags::FORCE),
        };
        match remove() {
            // The mode was outdated; by now it is not.
            Err(Error::Stale) => remove(),
            done => done,
        }
    }

    /// The privileges that a change of the contents clears.
    #[doc(alias("dentry_needs_remove_privs", "setattr_should_drop_suidgid"))]
    fn lost_by_write(&self) -> Result<AttrFlags> {
        let mode = self.inode().protection().mode();
        let mut lost = self.set_gid_lost(mode);
        lost.set(AttrFlags::KILL_SUID, mode & SET_UID != 0);
        if self.inode().kind() != FileType::Regular || self.credentials.caps.contains(Caps::FSETID)
        {
            lost = AttrFlags::empty();
        }
        lost.set(AttrFlags::KILL_CAPS, self.has_capability()?);
        Ok(lost)
    }

    /// The privileges that a change of owner or group clears from `mode`.
    fn lost_by_chown(&self, mode: u16) -> AttrFlags {
        match self.inode().kind() {
            FileType::Directory => AttrFlags::empty(),
            _ => AttrFlags::KILL_SUID | AttrFlags::KILL_CAPS | self.set_gid_lost(mode),
        }
    }

    /// Without the right to execute for the group, set-gid meant mandatory locking once:
    /// that stays with the group's members.
    #[doc(alias = "setattr_should_drop_sgid")]
    fn set_gid_lost(&self, mode: u16) -> AttrFlags {
        let gid = self.inode().protection().gid;
        let executes = mode & GROUP_EXECUTE != 0;
        if mode & SET_GID != 0 && (executes || !self.is_in_group_or_capable(gid)) {
            AttrFlags::KILL_SGID
        } else {
            AttrFlags::empty()
        }
    }

    /// True if the file gives capabilities to a process that executes it. The answer "no" is
    /// cached where the back end changes only through this VFS; other back ends handle it
    /// themselves. The caller holds the inode exclusively.
    #[doc(alias("security_inode_need_killpriv", "cap_inode_need_killpriv"))]
    fn has_capability(&self) -> Result<bool> {
        if self.inode().has_no_caps() || !self.sb().never_expires() {
            return Ok(false);
        }
        match self.with_at(|at| self.sb().fs().get_xattr(&self.caller(), at, CAPABILITY)) {
            Ok(_) => Ok(true),
            Err(Error::NoData | Error::NotSupported) => {
                self.inode().set_no_caps(true);
                Ok(false)
            }
            Err(err) => Err(err),
        }
    }

    /// The last step of all changes. The caller holds the inode exclusively.
    fn notify_change(&self, mut change: SetAttr, how: AttrFlags) -> Result<()> {
        self.may_setattr(&change, how)?;
        let inode = self.inode();
        let is = inode.protection();
        if change.mode.is_some() && inode.kind() == FileType::Symlink {
            return Err(Error::NotSupported);
        }
        let lost = |what, bit| {
            if how.contains(what) && change.mode.unwrap_or(is.mode()) & bit != 0 {
                bit
            } else {
                0
            }
        };
        let lost = lost(AttrFlags::KILL_SUID, SET_UID) | lost(AttrFlags::KILL_SGID, SET_GID);
        if lost != 0 {
            change.mode = Some(change.mode.unwrap_or(is.mode()) & !lost);
        }
        if !how.contains(AttrFlags::FORCE) {
            self.setattr_prepare(&mut change, how)?;
        }
        let (sb, by) = (self.sb(), self.caller());
        if how.contains(AttrFlags::KILL_CAPS) && self.has_capability()? {
            self.with_at(|at| sb.fs().remove_xattr(&by, at, CAPABILITY))?;
        }
        let mut changed = self.with_at(|at| sb.fs().setattr(&by, at, &change));
        if changed.is_ok()
            && let Some(mode) = change.mode
            && (mode ^ is.mode()) & 0o777 != 0
        {
            // Set-id bits are not part of an ACL, and the caller that loses them may not own
            // the file.
            changed = self.chmod_acl(mode);
        }
        // The mark is brought in line before the change counts as done: no walk passes a
        // directory on the strength of permissions it no longer has. Also after an error:
        // the back end may have got half-way.
        self.update_search_mark();
        changed
    }

    /// Changes that are forbidden for all, or that only need the right to write.
    fn may_setattr(&self, change: &SetAttr, how: AttrFlags) -> Result<()> {
        let flags = self.inode().flags();
        let changes = change.mode.is_some() || change.uid.is_some() || change.gid.is_some();
        if (changes || how.contains(AttrFlags::TIMES))
            && flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
        {
            return Err(Error::NotPermitted);
        }
        if how.contains(AttrFlags::TOUCH) {
            if flags.contains(InodeFlags::IMMUTABLE) {
                return Err(Error::NotPermitted);
            }
            if !self.is_owner_or_capable() {
                self.may(Access::WRITE)?;
            }
        }
        Ok(())
    }

    /// Checks the changes that need the owner, or a member of the group. Clears the set-gid bit
    /// where the caller may not set it.
    fn setattr_prepare(&self, change: &mut SetAttr, how: AttrFlags) -> Result<()> {
        let is = self.inode().protection();
        let who = self.credentials;
        let may_give_away = who.caps.contains(Caps::CHOWN);
        let owns = who.uid == is.uid;
        if let Some(uid) = change.uid
            && !(owns && uid == is.uid || may_give_away)
        {
            return Err(Error::NotPermitted);
        }
        if let Some(gid) = change.gid
            && !(owns && (gid == is.gid || who.is_in_group(gid)) || may_give_away)
        {
            return Err(Error::NotPermitted);
        }
        if let Some(mode) = &mut change.mode {
            if !self.is_owner_or_capable() {
                return Err(Error::NotPermitted);
            }
            if !self.is_in_group_or_capable(change.gid.unwrap_or(is.gid)) {
                *mode &= !SET_GID;
            }
        }
        if how.contains(AttrFlags::TIMES) && !self.is_owner_or_capable() {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    /// Brings the mark "everyone may search" of the dentry in line with the inode.
    pub(crate) fn update_search_mark(&self) {
        if self.inode().kind() == FileType::Directory {
            let dcache = &self.sb().caches.dcache;
            dcache.update_search_mark(self.path.dentry());
        }
    }
}
