//! From an inode or a path of the VFS to a descriptor of the file that an operation acts on.
//!
//! No change relies on a name alone. The file is held first, then compared with the expected
//! inode ([`Stat::is_still`]), and the held file is changed:
//!
//! | the inode                         | is held by                                |
//! |-----------------------------------|-------------------------------------------|
//! | of a directory                    | the descriptor that is kept, or opened again: [`Dir`] |
//! | of a file made without a name     | the descriptor it keeps, [`Nameless`]     |
//! | of a file that the caller has open| that descriptor                           |
//! | of one that is open, whose name is gone | a descriptor of [`OpenFiles`](crate::opened::OpenFiles), checked |
//! | of one that was found by its number | its number once more, checked: `handles.rs` |
//! | of anything else                  | `O_PATH`, by directory and name, checked  |
//!
//! Only a change of the name itself cannot be made so; see `change.rs`.
//!
//! The VFS has permitted the operation by owner, mode and ACL as it had cached them. The host
//! refuses a privileged daemon nothing, so the held file has to have them still
//! ([`as_decided`]): else the former owner of a file could change it after it has become root's.

use std::any::Any;
use std::sync::Arc;

use rcuwalk::{
    Acl, At, Caller, Caps, Error, FileType, Freshness, HeldDescriptor, Inode, InodeFill, LastPut,
    Name, Result, SuperBlock,
};
use rustix::fd::OwnedFd;

use crate::dirs::{self, Dir, Pin};
use crate::file::HostFile;
use crate::handles;
use crate::host::held::Held;
use crate::host::{self, as_fd};
use crate::identity::Stat;
use crate::watch::{Registration, publish_latest};
use crate::{Actor, HostFs};

/// Private value of a directory's inode.
pub(crate) struct Directory {
    // First: a file that is no longer held need not be reported.
    watch: Option<Registration>,
    pub(crate) dir: Arc<Dir>,
}

impl LastPut for Directory {
    fn last_put(&self) {
        self.dir.give_up();
    }

    fn bytes(&self) -> usize {
        dirs::BYTES
    }
}

impl Directory {
    pub(crate) fn new(dir: Arc<Dir>, watch: Option<Registration>) -> Directory {
        Directory { watch, dir }
    }

    /// To be filled in with attributes that were asked for after `watch` began.
    ///
    /// With `Freshness::Always` the host is asked at once whether it has an ACL: only a
    /// directory that is known to have none can be searched without a permission check.
    pub(crate) fn fill(self, pin: &Pin, stat: &Stat, freshness: Freshness) -> InodeFill {
        let watched = self.watch.is_some();
        let mut fill = stat.fill();
        if freshness == Freshness::Always && stat.attr.mode & 0o111 == 0o111 {
            fill = fill.acl(
                match Held::kept(pin.fd()).get_xattr(b"system.posix_acl_access") {
                    Ok(acl) => Acl::Known(acl),
                    Err(Error::NoData | Error::NotSupported) => Acl::None,
                    Err(_) => Acl::Unknown,
                },
            );
        }
        let fill = fill.private_last_put(self);
        if watched { fill.watched() } else { fill }
    }
}

/// Private value of the inode of a file made without a name: the file, open for reading and
/// writing. Nothing else leads to it.
pub(crate) struct Nameless(
    pub(crate) OwnedFd,
    #[expect(dead_code, reason = "counts for as long as it lives")] pub(crate) HeldDescriptor,
);

/// A descriptor of a directory, for the time of a call.
///
/// # Errors
/// [`Error::NotADirectory`]; [`Error::Stale`] if it is not to be found any more.
pub(crate) fn pinned(sb: &SuperBlock, dir: &Inode) -> Result<Pin> {
    known(dir).ok_or(Error::NotADirectory)?.pin(sb)
}

/// The state of a directory.
pub(crate) fn known(dir: &Inode) -> Option<&Arc<Dir>> {
    let Directory { dir, .. } = dir.private()?;
    Some(dir)
}

/// The file just found as `name` in `dir`.
pub(crate) fn found_at(inode: &Inode, dir: &Inode, name: Name<'_>) {
    if let (Some(found), Some(dir)) = (known(inode), known(dir)) {
        found.found_at(dir, name.as_bytes());
    }
}

/// Holds the file that `at` means.
///
/// # Errors
/// [`Error::Stale`] if its name stands for another file by now, or if it has lost the name and
/// is not open.
pub(crate) fn hold<'a>(fs: &HostFs, by: &Caller<'_>, at: &At<'a>) -> Result<Held<'a>> {
    hold_and_stat(fs, by, at).map(|(held, _)| held)
}

/// Like [`hold`]; also returns the attributes, if they had to be asked for.
fn hold_and_stat<'a>(
    fs: &HostFs,
    by: &Caller<'_>,
    at: &At<'a>,
) -> Result<(Held<'a>, Option<Stat>)> {
    if let Some(file) = open_file(at) {
        return Ok((Held::open(file.fd.fd()), None));
    }
    if let Some(held) = kept(by.sb, at.inode)? {
        return Ok((held, None));
    }
    let Some((dir, name)) = at.parent else {
        return handles::without_name(fs, by.sb, at.inode).map(|held| (held, None));
    };
    match hold_name(fs, by.sb, dir, name, at.inode) {
        // It may well be there under another name.
        Err(Error::NotFound) => Err(Error::Stale),
        held => held.map(|(held, stat)| (held, Some(stat))),
    }
}

/// Like [`hold`], for an operation that the VFS has permitted by attributes that it may have
/// cached for a while: they still have to be the file's; see [`as_decided`].
///
/// # Errors
/// As [`hold`]; [`Error::Stale`] if owner, group, mode or ACL are not what the VFS knew.
pub(crate) fn hold_as_decided<'a>(fs: &HostFs, by: &Caller<'_>, at: &At<'a>) -> Result<Held<'a>> {
    let (held, stat) = hold_and_stat(fs, by, at)?;
    if decides(fs, by) {
        let stat = stat.map_or_else(|| host::stat_fd(held.fd()), Ok)?;
        as_decided(fs, &held, &stat, at.inode)?;
    }
    Ok(held)
}

/// Returns whether the VFS alone decides what the caller may do: the host refuses the daemon
/// nothing. A caller with all capabilities may do everything in any case.
pub(crate) fn decides(fs: &HostFs, by: &Caller<'_>) -> bool {
    fs.actor == Actor::Daemon && !by.credentials.caps.contains(Caps::all())
}

/// Checks that the VFS has decided by the protection that the held file has by `stat`, which is
/// recent. Otherwise the daemon would do to another user's file what its former owner was
/// permitted.
///
/// # Errors
/// [`Error::Stale`] if the protection is another one. The inode has the file's attributes then,
/// so the VFS decides by them when it tries again.
pub(crate) fn as_decided(fs: &HostFs, held: &Held<'_>, stat: &Stat, inode: &Inode) -> Result<()> {
    if stat.is_owned_as(inode) && has_known_acl(held, stat, inode) {
        return Ok(());
    }
    publish(fs, held, inode);
    Err(Error::Stale)
}

/// An ACL can change without the mode. Then the ctime changes as well, as it does with all else:
/// so the ACL itself is compared.
fn has_known_acl(held: &Held<'_>, stat: &Stat, inode: &Inode) -> bool {
    if stat.attr.ctime == inode.attr().ctime || stat.attr.kind == FileType::Symlink {
        return true;
    }
    let known = match inode.cached_acl() {
        Acl::Unknown => return true,
        Acl::None => None,
        Acl::Known(acl) => Some(acl),
    };
    match held.get_xattr(b"system.posix_acl_access") {
        Ok(acl) => known == Some(acl),
        Err(Error::NoData | Error::NotSupported) => known.is_none(),
        Err(_) => false,
    }
}

/// Holds the file `name` in `dir`, which has to be `inode`, and returns its attributes.
///
/// # Errors
/// [`Error::NotFound`] if there is nothing, [`Error::Stale`] if it is something else.
pub(crate) fn hold_name<'a>(
    fs: &HostFs,
    sb: &SuperBlock,
    dir: &Inode,
    name: Name<'_>,
    inode: &Inode,
) -> Result<(Held<'a>, Stat)> {
    let dir = pinned(sb, dir)?;
    let pin = fs.dirs.open(|| host::pin_at(dir.fd(), name))?;
    let stat = host::stat_fd(as_fd(&pin))?;
    if !stat.is_still(inode) {
        return Err(Error::Stale);
    }
    Ok((Held::pinned(pin), stat))
}

/// By the descriptor that an inode keeps, or opens again, if it is one that does.
pub(crate) fn kept<'a>(sb: &SuperBlock, inode: &'a Inode) -> Result<Option<Held<'a>>> {
    if let Some(Nameless(fd, _)) = inode.private() {
        return Ok(Some(Held::open(as_fd(fd))));
    }
    let dir = known(inode).map(|dir| dir.pin(sb)).transpose()?;
    Ok(dir.map(Held::dir))
}

/// The file that the caller came with, if it is one of ours and stands for the inode.
pub(crate) fn open_file<'a>(at: &At<'a>) -> Option<&'a HostFile> {
    let open: &dyn Any = at.open?;
    open.downcast_ref()
}

/// `name` in `dir` as it is now, if it is `inode`.
///
/// # Errors
/// [`Error::NotFound`] if there is nothing, [`Error::Stale`] if it is something else.
pub(crate) fn confirm(dir: &Pin, name: Name<'_>, inode: &Inode) -> Result<Stat> {
    match host::stat_at(dir.fd(), name)? {
        None => Err(Error::NotFound),
        Some(stat) if stat.is_still(inode) => Ok(stat),
        Some(_) => Err(Error::Stale),
    }
}

/// Publishes the held file's attributes. The change itself is done: if the host does not
/// answer, the attributes come with the next question.
pub(crate) fn publish(fs: &HostFs, held: &Held<'_>, inode: &Inode) {
    publish_held(held, inode, fs.is_watched());
}

/// Like `publish`, after a change of the contents.
///
/// The VFS has removed the set-id bits that it knew of. The host removes all of them, but not
/// if the daemon is privileged: so with `strip`, bits that the file has got meanwhile are
/// removed now. While the file is open for writing, it is not executed.
pub(crate) fn publish_contents(held: &Held<'_>, inode: &Inode, watched: bool, strip: bool) {
    if let Some(Stat { attr, .. }) = publish_held(held, inode, watched)
        && strip
        && attr.kind == FileType::Regular
        && let lost = set_ids(attr.mode)
        && lost != 0
        && held.lose_set_ids(lost).is_ok()
    {
        publish_held(held, inode, watched);
    }
}

/// Returns whether this process has to clear set-id bits: the host keeps them when the daemon
/// writes.
pub(crate) fn strips(fs: &HostFs, by: &Caller<'_>) -> bool {
    fs.actor == Actor::Daemon && !by.credentials.caps.contains(Caps::FSETID)
}

/// Without execution by the group, the second bit means something else.
#[doc(alias = "setattr_should_drop_suidgid")]
pub(crate) fn set_ids(mode: u16) -> u16 {
    let group = if mode & 0o010 == 0 { 0 } else { 0o2000 };
    mode & (0o4000 | group)
}

/// Like `publish`, by an open file, which knows whether its file system is watched.
fn publish_held(held: &Held<'_>, inode: &Inode, watched: bool) -> Option<Stat> {
    let mut last = None;
    let mut ask = || {
        let stat = host::stat_fd(held.fd())?;
        last = Some(stat);
        // Of another one there is nothing to tell.
        Ok(Some(stat).filter(|stat| stat.key == inode.inode_key()))
    };
    if watched {
        let _ = publish_latest(inode, ask);
    } else if let Ok(Some(stat)) = ask() {
        stat.publish(inode);
    }
    last
}

/// Publishes the held file's current attributes.
pub(crate) fn refresh_held(held: &Held<'_>, inode: &Inode, watched: bool) -> Result<()> {
    match publish_held(held, inode, watched) {
        Some(_) => Ok(()),
        None => Err(host::stat_fd(held.fd()).err().unwrap_or(Error::Stale)),
    }
}

/// Like the above for a directory in which a name has changed.
pub(crate) fn publish_dir(fs: &HostFs, dir: &Inode, pin: &Pin) {
    publish(fs, &Held::dir(pin.clone()), dir);
}
