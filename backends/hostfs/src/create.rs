//! Making files: whose they are, which mode they get, and that they are ours.
//!
//! ```text
//!   openat2(O_CREAT|O_EXCL)           mkdirat, mknodat, symlinkat
//!          |                                     |
//!      statx(fd)                    statx(dir, name): made just now?
//!          |                                     | (else Stale: not touched)
//!          |             a directory, a link, or something to be set: pin, compare
//!          +------------------+------------------+
//!                             |
//!          what differs from what the VFS asked for: fchownat, fchmod, ACLs
//!                             |
//!                  statx, iget; the directory's statx
//! ```
//!
//! **A stranger's file is not taken for ours.** A new regular file comes with its descriptor.
//! For other kinds the host returns none, so between the creation and the first statx(2) a
//! process on the host, with write permission on the directory, could put another file in its
//! place and have us chown that one to the caller. So only a new file is given away: it was
//! born less than [`NEWBORN`] before its last change, it has no second name, and it belongs to
//! the user who made it, with no more permissions than were asked for: so it is not another
//! user's new file either. A rename or a link changes a file, so an old one does not pass. A
//! file with another owner stays as it is, as where the host's file system has owners of its own
//! (vfat). A symbolic link must also have the
//! requested target, which is cached with it.
//!
//! A host file system without birth times (ext4 with small inodes) does not tell a new file
//! from an old one. There, a separate thread makes the file, as its owner and with its final
//! mode ([`as_owner`]), and nothing is changed afterwards: a file with another owner is not
//! ours, and one with the same owner stays as it is.
//!
//! **Owner and mode.** As the daemon, a file that has to be given away is first made with a
//! mode for its owner alone, then given away, and only then opened to others: so no user has
//! access who does not have it later. Set-id bits are set last: a set-id file never belongs to
//! the daemon. The chmod undoes the umask of this process, which the host applies. Where the
//! host refuses to give the file away, it stays the daemon's, without set-id bits, and the VFS
//! shows it so.

use rcuwalk::{
    Caller, Error, FileHandle, FileType, Iget, Inode, InodeFill, InodeRef, Name, NewFile,
    OpenFlags, Result, SuperBlock, Timestamp, XattrFlags,
};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::process::{getegid, geteuid};

use crate::actor::{as_caller, as_owner, on_own_thread};
use crate::dirs::Pin;
use crate::file::{HostFile, access};
use crate::host::held::Held;
use crate::host::{self, as_fd, names};
use crate::identity::Stat;
use crate::lookup::{ATTEMPTS, retire_if_replaced};
use crate::pin::{Nameless, found_at, kept, pinned, publish_dir};
use crate::watch::Watch;
use crate::{Actor, HostFs};

/// How long after its birth a file may have changed, in nanoseconds, to count as new. Within
/// one system call, that is the time between two readings of the clock.
const NEWBORN: i128 = 100_000_000;

/// Makes a file of any kind.
pub(crate) fn create(
    fs: &HostFs,
    by: &Caller<'_>,
    dir: &Inode,
    name: Name<'_>,
    new: &NewFile<'_>,
) -> Result<InodeRef> {
    let at = &Within::new(by.sb, dir, name)?;
    let making = Making::begin(fs, by, new, Place::Named(at));
    if new.kind == FileType::Regular {
        let (inode, _) = making.regular(at, OFlags::RDONLY)?;
        return Ok(inode);
    }
    // Reserved here: a new file that cannot be opened for want of descriptors would be there when
    // the VFS calls again, and is not ours to remove. Where births are told, it is removed.
    let reserved = match at.tells_births() {
        true => None,
        false => Some(fs.dirs.open(|| host::duplicate(at.pin.fd()))?),
    };
    let owner = making.make_other(at)?;
    let stat = at.stat()?.ok_or(Error::Stale)?;
    if !is_newborn(&stat, new.kind, owner) {
        return Err(Error::Stale);
    }
    drop(reserved);
    let made = making.other(at, &stat, owner);
    if making.may_be_given(&stat, owner) {
        return settle(fs, at, &stat, made);
    }
    // It may be another user's, and is not ours to remove after an error.
    publish_dir(fs, dir, &at.pin);
    made
}

/// Makes a regular file, and opens it.
pub(crate) fn create_open(
    fs: &HostFs,
    by: &Caller<'_>,
    dir: &Inode,
    name: Name<'_>,
    new: &NewFile<'_>,
    flags: OpenFlags,
) -> Result<(InodeRef, Box<dyn FileHandle>)> {
    let at = &Within::new(by.sb, dir, name)?;
    let making = Making::begin(fs, by, new, Place::Named(at));
    let (inode, file) = making.regular(at, access(flags))?;
    let file = HostFile::new(fs, by, &inode, file, flags);
    Ok((inode, Box::new(file)))
}

/// Makes a regular file without a name.
pub(crate) fn tmpfile(
    fs: &HostFs,
    by: &Caller<'_>,
    dir: &Inode,
    new: &NewFile<'_>,
) -> Result<InodeRef> {
    let pin = pinned(by.sb, dir)?;
    let making = Making::begin(fs, by, new, Place::Nowhere);
    let mode = making.first_mode();
    let make = || names::make_nameless(pin.fd(), mode);
    let file = fs.dirs.open(|| fs.act(by, make))?;
    let held = Held::open(as_fd(&file));
    let stat = making.as_asked(&held, host::stat_fd(held.fd())?, true)?;
    let kept = Nameless(file, by.sb.hold_descriptor());
    making.inode(&stat, stat.fill().private(kept))
}

/// Sets owner, mode and ACLs of a whiteout that the host has made in a rename; unless the name
/// stands for another file.
pub(crate) fn adopt_whiteout(
    fs: &HostFs,
    by: &Caller<'_>,
    dir: &Inode,
    name: Name<'_>,
    new: &NewFile<'_>,
) -> Result<()> {
    let at = &Within::new(by.sb, dir, name)?;
    let pin = fs.dirs.open(|| host::pin_at(at.pin.fd(), name))?;
    let stat = host::stat_fd(as_fd(&pin))?;
    let making = Making::begin(fs, by, new, Place::Named(at));
    let maker = making.maker.0;
    if is_newborn(&stat, new.kind, maker) && stat.attr.rdev == new.rdev {
        let known = has_birth(&stat) && stat.attr.uid == maker;
        making.as_asked(&Held::kept(as_fd(&pin)), stat, known)?;
    }
    Ok(())
}

/// A file that is being made.
struct Making<'a> {
    fs: &'a HostFs,
    by: &'a Caller<'a>,
    new: &'a NewFile<'a>,
    place: Place<'a>,
    /// The user and the group whose credentials the host sees.
    maker: (u32, u32),
    /// The watch's counter before the creation; see `Watch::settle`.
    before: u64,
}

/// A name in a directory that is held.
struct Within<'a> {
    dir: &'a Inode,
    pin: Pin,
    name: Name<'a>,
}

impl<'a> Within<'a> {
    fn new(sb: &SuperBlock, dir: &'a Inode, name: Name<'a>) -> Result<Within<'a>> {
        let pin = pinned(sb, dir)?;
        Ok(Within { dir, pin, name })
    }

    fn stat(&self) -> Result<Option<Stat>> {
        host::stat_at(self.pin.fd(), self.name)
    }

    /// Returns whether the host records birth times here.
    fn tells_births(&self) -> bool {
        self.dir.attr().btime != Timestamp::default()
    }
}

/// Where a new file is found.
#[derive(Clone, Copy)]
enum Place<'a> {
    Named(&'a Within<'a>),
    /// By its inode's own descriptor only.
    Nowhere,
}

impl<'a> Making<'a> {
    fn begin(
        fs: &'a HostFs,
        by: &'a Caller<'a>,
        new: &'a NewFile<'a>,
        place: Place<'a>,
    ) -> Making<'a> {
        Making {
            fs,
            by,
            new,
            place,
            maker: match fs.actor {
                Actor::Daemon => (geteuid().as_raw(), getegid().as_raw()),
                Actor::Caller => (by.credentials.uid, by.credentials.gid),
            },
            before: fs.watch.as_ref().map_or(0, Watch::unplaced),
        }
    }

    /// The mode that the host is asked for at first.
    fn first_mode(&self) -> u16 {
        let NewFile { mode, uid, gid, .. } = *self.new;
        match self.fs.actor {
            Actor::Caller => mode,
            Actor::Daemon if self.maker == (uid, gid) => mode & 0o1777,
            Actor::Daemon => mode & 0o1700,
        }
    }

    /// Makes a file that is not regular. Returns its owner's user id.
    fn make_other(&self, at: &Within<'_>) -> Result<u32> {
        let (fs, by, new) = (self.fs, self.by, self.new);
        let (dir, name) = (at.pin.fd(), at.name);
        if at.tells_births() {
            let mode = self.first_mode();
            fs.act(by, || names::make_other(dir, name, new, mode))?;
            return Ok(self.maker.0);
        }
        let make = || names::make_other(dir, name, new, new.mode);
        match fs.actor {
            Actor::Daemon => as_owner(new.uid, new.gid, make),
            Actor::Caller => {
                on_own_thread(|| as_caller(by.credentials, make))?;
                Ok(self.maker.0)
            }
        }
    }

    /// A regular file, with the descriptor that it was made by.
    fn regular(&self, at: &Within<'_>, access: OFlags) -> Result<(InodeRef, OwnedFd)> {
        let mode = self.first_mode();
        let file = self.fs.dirs.open(|| {
            let make = || names::make_file(at.pin.fd(), at.name, access, mode);
            self.fs.act(self.by, make)
        })?;
        let stat = host::stat_fd(as_fd(&file))?;
        let made = self
            .as_asked(&Held::open(as_fd(&file)), stat, true)
            .and_then(|stat| self.inode(&stat, stat.fill()));
        Ok((settle(self.fs, at, &stat, made)?, file))
    }

    /// Finishes a creation that returned no descriptor.
    fn other(&self, at: &Within<'_>, stat: &Stat, owner: u32) -> Result<InodeRef> {
        let new = self.new;
        let done = stat.attr;
        let is_as_asked = (done.uid, done.gid) == (new.uid, new.gid)
            && done.mode == new.mode
            && new.acl.is_none()
            && new.default_acl.is_none();
        // A directory is kept by a descriptor, and a link's target read through one.
        if !matches!(new.kind, FileType::Directory | FileType::Symlink) && is_as_asked {
            return self.inode(stat, stat.fill());
        }
        if new.kind == FileType::Directory {
            return self.directory(at, stat, owner);
        }
        let pin = self.fs.dirs.open(|| host::pin_at(at.pin.fd(), at.name))?;
        if new.kind == FileType::Symlink && *host::read_link(as_fd(&pin))? != *new.target {
            return Err(Error::Stale);
        }
        let stat = self.held_as_asked(&Held::kept(as_fd(&pin)), stat, owner)?;
        let fill = match new.kind {
            FileType::Symlink => stat.fill().link(new.target),
            _ => stat.fill(),
        };
        self.inode(&stat, fill)
    }

    fn directory(&self, at: &Within<'_>, stat: &Stat, owner: u32) -> Result<InodeRef> {
        let opened = self.fs.open_directory(self.by.sb, &at.pin, at.name)?;
        let watch = self.fs.register(opened.fd(), stat.key);
        let stat = self.held_as_asked(&Held::dir(opened.clone()), stat, owner)?;
        let place = (at.dir, at.name);
        let fill = self
            .fs
            .fill_directory(self.by.sb, place, &opened, watch, &stat)?;
        self.inode(&stat, fill)
    }

    /// Calls `as_asked` for the held file, if it is the one that was made.
    fn held_as_asked(&self, held: &Held<'_>, made: &Stat, owner: u32) -> Result<Stat> {
        let stat = host::stat_fd(held.fd())?;
        if stat.key != made.key || !is_newborn(&stat, self.new.kind, owner) {
            return Err(Error::Stale);
        }
        let known = self.may_be_given(&stat, owner);
        self.as_asked(held, stat, known)
    }

    /// Returns whether the new file, which its maker's credentials have made, may be given to
    /// its owner: see the module's documentation.
    fn may_be_given(&self, stat: &Stat, maker: u32) -> bool {
        has_birth(stat) && is_makers(stat, maker, self.first_mode())
    }

    /// Sets owner, mode and ACLs of the new file, whose attributes are `stat`, as far as the host
    /// allows it; unless it is not `known` to be the new one.
    fn as_asked(&self, held: &Held<'_>, mut stat: Stat, known: bool) -> Result<Stat> {
        if !known {
            return Ok(stat);
        }
        let (fs, by, new) = (self.fs, self.by, self.new);
        let mut mode = new.mode;
        // A file's set-gid bit, where the host has left it to the caller.
        let is_given = new.kind == FileType::Directory || stat.attr.mode & 0o2000 != 0;
        let mut changed = false;
        // As the caller, whose it is has been the host's to decide.
        if fs.actor == Actor::Daemon && (stat.attr.uid, stat.attr.gid) != (new.uid, new.gid) {
            match held.chown(Some(new.uid), Some(new.gid)) {
                Ok(()) => changed = true,
                // No privilege here; or a user that this namespace does not know.
                Err(Error::NotPermitted | Error::Invalid) => {
                    let set_ids = match new.kind {
                        FileType::Directory => 0o4000,
                        _ => 0o6000,
                    };
                    mode &= !set_ids;
                }
                Err(err) => return Err(err),
            }
        }
        if new.kind != FileType::Symlink && (changed || stat.attr.mode != mode) {
            fs.act(by, || held.chmod(mode))?;
            changed = true;
        }
        for (name, acl) in [
            (&b"system.posix_acl_access"[..], new.acl),
            (b"system.posix_acl_default", new.default_acl),
        ] {
            // The host may have inherited the same ACL already. Setting it again as a user
            // outside of the group would clear the set-gid bit.
            if let Some(acl) = acl
                && held.get_xattr(name).ok().as_deref() != Some(acl)
            {
                fs.act(by, || held.set_xattr(name, acl, XattrFlags::empty()))?;
                changed = true;
            }
        }
        if changed {
            stat = host::stat_fd(held.fd())?;
        }
        let keeps = is_given && mode & 0o2000 != 0;
        if keeps && stat.attr.mode & 0o2000 == 0 && fs.actor == Actor::Caller {
            // In a directory that hands its group down, a chmod(2) and an ACL take this if
            // the caller is not in the group, as making it does not; and a chmod(2) it takes
            // where this process has a umask. Without the right to
            // give it back, the host's answer stands.
            if held.chmod(stat.attr.mode | 0o2000).is_ok() {
                stat = host::stat_fd(held.fd())?;
            }
        }
        Ok(stat)
    }

    /// The inode of the new file.
    fn inode(&self, stat: &Stat, fill: InodeFill) -> Result<InodeRef> {
        for _ in 0..ATTEMPTS {
            match self.by.sb.iget(stat.key)? {
                Iget::New(new) => {
                    let inode = new.init(fill);
                    if let Some(watch) = &self.fs.watch {
                        watch.settle(self.by.sb, &inode, self.before, || self.ask(&inode))?;
                    }
                    return Ok(inode);
                }
                Iget::Cached(inode) if stat.attr.nlink > 0 && stat.is_still(&inode) => {
                    // Another lookup has found it by a second name that it was given on the
                    // host.
                    let ask = || self.ask(&inode);
                    self.fs.publish_stat(&inode, *stat, self.before, ask)?;
                    if let Place::Named(at) = self.place {
                        found_at(&inode, at.dir, at.name);
                    }
                    return Ok(inode);
                }
                Iget::Cached(inode) => self.retire(&inode)?,
            }
        }
        Err(Error::Stale)
    }

    fn ask(&self, inode: &Inode) -> Result<Option<Stat>> {
        match self.place {
            Place::Named(at) => at.stat(),
            Place::Nowhere => kept(self.by.sb, inode)?
                .map(|held| host::stat_fd(held.fd()))
                .transpose(),
        }
    }

    /// A cached inode has the key of the new one: an older file's, whose number the host
    /// has given away again.
    fn retire(&self, old: &InodeRef) -> Result<()> {
        match self.place {
            Place::Named(at) => retire_if_replaced(self.by.sb, at.pin.fd(), at.name, old),
            Place::Nowhere => {
                self.by.sb.unhash(old);
                Ok(())
            }
        }
    }
}

/// Ends a creation: publishes the directory's change, and removes the new file after an error.
fn settle<T>(fs: &HostFs, at: &Within<'_>, made: &Stat, done: Result<T>) -> Result<T> {
    // Stale means that the name stands for another file.
    if matches!(&done, Err(err) if !matches!(err, Error::Stale))
        && let Ok(Some(now)) = at.stat()
        && now.key == made.key
    {
        // No caller has seen it. If it cannot be removed, the next lookup finds it.
        let _ = names::remove(at.pin.fd(), at.name, now.attr.kind);
    }
    publish_dir(fs, at.dir, &at.pin);
    done
}

/// Returns whether this can be the file made just now, for `owner`; see the module's
/// documentation.
fn is_newborn(stat: &Stat, kind: FileType, owner: u32) -> bool {
    let attr = &stat.attr;
    let one_name = kind == FileType::Directory || attr.nlink == 1;
    let untouched = if has_birth(stat) {
        (0..NEWBORN).contains(&(nanoseconds(attr.ctime) - nanoseconds(attr.btime)))
    } else {
        attr.uid == owner
    };
    attr.kind == kind && one_name && untouched
}

/// Returns whether the file belongs to `maker` and opens itself to nobody whom `mode` excludes.
/// The host makes a link's mode; it may take permissions off others', and hands down set-gid.
fn is_makers(stat: &Stat, maker: u32, mode: u16) -> bool {
    let excess = stat.attr.mode & 0o777 & !mode;
    stat.attr.uid == maker && (stat.attr.kind == FileType::Symlink || excess == 0)
}

/// Returns whether the host records birth times.
fn has_birth(stat: &Stat) -> bool {
    stat.attr.btime != Timestamp::default()
}

fn nanoseconds(stamp: rcuwalk::Timestamp) -> i128 {
    i128::from(stamp.sec) * 1_000_000_000 + i128::from(stamp.nsec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcuwalk::{Attr, InodeKey, Timestamp};

    fn stat(birth: i64, change: (i64, u32), nlink: u32) -> Stat {
        let attr = Attr::new(12, FileType::Fifo, 0o600)
            .nlink(nlink)
            .btime(Timestamp {
                sec: birth,
                nsec: 999_999_999,
            })
            .ctime(Timestamp {
                sec: change.0,
                nsec: change.1,
            });
        let key = InodeKey::new(12);
        Stat { key, attr }
    }

    /// INODE-1: another user's new file is not given away, and neither is one of the maker's that
    /// is open to others already.
    #[test]
    fn a_new_file_of_another_maker_is_not_given_away() {
        let mut new = stat(5, (5, 999_999_999), 1);
        assert!(is_makers(&new, 0, 0o700), "INODE-1: ours");
        assert!(!is_makers(&new, 0, 0o400), "INODE-1: another mode");
        new.attr.uid = 1000;
        assert!(is_newborn(&new, FileType::Fifo, 0), "new, but");
        assert!(!is_makers(&new, 0, 0o700), "INODE-1: another's");
    }

    /// INODE-1: a file moved or linked to a new file's name is not taken for the new file.
    #[test]
    fn an_old_file_is_not_newborn() {
        let is = |stat: &Stat| is_newborn(stat, FileType::Fifo, 0);
        assert!(is(&stat(5, (5, 999_999_999), 1)), "INODE-1: of one moment");
        assert!(is(&stat(5, (6, 9_000_000), 1)), "INODE-1: a tick later");
        assert!(!is(&stat(5, (7, 0), 1)), "INODE-1: changed later");
        assert!(!is(&stat(5, (5, 999_999_999), 2)), "INODE-1: linked");
        assert!(!is(&stat(5, (5, 0), 1)), "INODE-1: changed before it was");
        let same = stat(5, (5, 999_999_999), 1);
        assert!(!is_newborn(&same, FileType::Socket, 0), "INODE-1: retyped");
        let mut unborn = same;
        unborn.attr.btime = Timestamp::default();
        assert!(is(&unborn), "INODE-1: of its owner");
        assert!(
            !is_newborn(&unborn, FileType::Fifo, 1),
            "INODE-1: another's"
        );
    }
}
