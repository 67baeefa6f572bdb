//! Linking, removing and renaming.
//!
//! A link goes from a file that is held to a name that must be free: the host does both
//! checks. A removal and a rename can only be asked for by name:
//!
//! ```text
//!   statx(dir, name): still the inode?   <- Stale or NotFound if not; Stale, too, if the
//!                                           file to remove has got another owner
//!                                           (a)
//!   unlinkat(dir, name), renameat2(...)
//!                                           (b)
//!   statx of the held file, and of the new name
//! ```
//!
//! A file that loses its only name while it is not open has no attributes to report afterwards,
//! so it is not held, unless the caller wants it: then the descriptor that holds it confirms the
//! name, and the first statx(2) falls away.
//!
//! At (a) there is an unavoidable window: the host has no call that removes a name if it still
//! stands for a given file. If another process replaces the file just then, the new one is
//! removed or moved: as by any program that asks for a removal by name. A name that the VFS
//! found free is never replaced without the right to, since the host is asked for NOREPLACE.
//! For a file system that does not know it, a last check has to do.
//!
//! Afterwards the inodes get the attributes of the files themselves, which are held where the
//! last name may have gone. A rename whose new name is not the moved inode is [`Error::Stale`]:
//! the caller looks the names up again.

use rcuwalk::{At, Caller, Error, FileHandle, FileType, Inode, Name, Rename, RenameFlags, Result};
use rustix::fs::RenameFlags as HostRenameFlags;

use crate::HostFs;
use crate::create::adopt_whiteout;
use crate::dirs::Pin;
use crate::file::held_place;
use crate::host::held::Held;
use crate::host::{self, names};
use crate::identity::Stat;
use crate::opened::Opened;
use crate::pin::{
    Nameless, confirm, hold_as_decided, hold_name, kept, known, pinned, publish, publish_dir,
};

/// Gives a file one more name.
pub(crate) fn link(
    fs: &HostFs,
    by: &Caller<'_>,
    file: &At<'_>,
    dir: &Inode,
    name: Name<'_>,
) -> Result<()> {
    let held = hold_as_decided(fs, by, file)?;
    let dir_pin = pinned(by.sb, dir)?;
    let done = fs.act(by, || names::link(held.fd(), dir_pin.fd(), name));
    publish(fs, &held, file.inode);
    publish_dir(fs, dir, &dir_pin);
    done
}

/// Removes a name: an empty directory's, or that of anything else.
pub(crate) fn remove(
    fs: &HostFs,
    by: &Caller<'_>,
    dir: &Inode,
    name: Name<'_>,
    inode: &Inode,
) -> Result<()> {
    let dir_pin = pinned(by.sb, dir)?;
    if is_last_of_it(fs, inode) {
        let stat = confirm(&dir_pin, name, inode)?;
        if stat.attr.nlink == 1 {
            if !is_whose_it_was(&stat, inode) {
                stat.publish(inode);
                return Err(Error::Stale);
            }
            return remove_last(fs, by, (dir, &dir_pin), name, inode, stat);
        }
    }
    // Held, to learn how many names are left.
    let (held, stat) = hold_victim(fs, by, (dir, &dir_pin), name, inode)?;
    if !is_whose_it_was(&stat, inode) {
        publish(fs, &held, inode);
        return Err(Error::Stale);
    }
    let done = fs.act(by, || names::remove(dir_pin.fd(), name, inode.kind()));
    if done.is_ok() {
        removed(&held, inode);
    }
    publish(fs, &held, inode);
    publish_dir(fs, dir, &dir_pin);
    done
}

/// Removes a name of a file that is no directory, and holds the file, which also confirms the
/// name.
pub(crate) fn remove_held(
    fs: &HostFs,
    by: &Caller<'_>,
    (dir, name): (&Inode, Name<'_>),
    inode: &Inode,
    held: &mut Option<Box<dyn FileHandle>>,
) -> Result<()> {
    if inode.private::<Nameless>().is_some() {
        return remove(fs, by, dir, name, inode);
    }
    let dir_pin = pinned(by.sb, dir)?;
    let (place, stat) = hold_name(fs, by.sb, dir, name, inode)?;
    let place = Opened::held(&fs.opened, inode, place)?;
    if !is_whose_it_was(&stat, inode) {
        stat.publish(inode);
        return Err(Error::Stale);
    }
    let done = fs.act(by, || names::remove(dir_pin.fd(), name, inode.kind()));
    // Asked, even if this was its only name: the host may have removed another file, at (a).
    publish(fs, &Held::kept(place.fd()), inode);
    publish_dir(fs, dir, &dir_pin);
    *held = Some(held_place(place));
    done
}

/// In a sticky directory the owner decides about removal. If the VFS has decided by an owner
/// that was cached for a while, it has to check once more.
fn is_whose_it_was(stat: &Stat, inode: &Inode) -> bool {
    stat.attr.uid == inode.attr().uid
}

/// True if the file is freed with this name: it is the only one, and the file is not open. With
/// a watch, reports that arrive meanwhile have to be told from answers, so the file is held.
fn is_last_of_it(fs: &HostFs, inode: &Inode) -> bool {
    inode.kind() == FileType::Regular
        && inode.private::<Nameless>().is_none()
        && inode.nlink() == 1
        && !fs.is_watched()
        && !fs.opened.has(inode)
}

/// Removes the only name of a file that is not open. No question about it can follow, so it
/// need not be held; should another process give it another name just then, it is found as a
/// new file by that.
fn remove_last(
    fs: &HostFs,
    by: &Caller<'_>,
    (dir, dir_pin): (&Inode, &Pin),
    name: Name<'_>,
    inode: &Inode,
    stat: Stat,
) -> Result<()> {
    let done = fs.act(by, || names::remove(dir_pin.fd(), name, inode.kind()));
    if done.is_ok() {
        match fs.opened.find(inode) {
            // Another process has opened it meanwhile.
            Some(held) => publish(fs, &held, inode),
            None => stat.removed().publish(inode),
        }
    }
    publish_dir(fs, dir, dir_pin);
    done
}

/// A process whose current directory has been removed stays there.
fn removed(held: &Held<'_>, inode: &Inode) {
    if let (Some(dir), Some(pin)) = (known(inode), held.pin()) {
        dir.removed(pin);
    }
}

/// Moves a name, or exchanges two.
pub(crate) fn rename(fs: &HostFs, by: &Caller<'_>, how: &Rename<'_>) -> Result<()> {
    let (from_dir, from_name) = how.from;
    let (to_dir, to_name) = how.to;
    let pins = Pins {
        from: pinned(by.sb, from_dir)?,
        to: pinned(by.sb, to_dir)?,
    };
    let stat = confirm(&pins.from, from_name, how.moved)?;
    if !is_whose_it_was(&stat, how.moved) {
        stat.publish(how.moved);
        return Err(Error::Stale);
    }
    let replaced = match how.replaced {
        None => None,
        Some(inode) => {
            let dir = (to_dir, &pins.to);
            let (held, stat) = hold_victim(fs, by, dir, to_name, inode)?;
            if !is_whose_it_was(&stat, inode) {
                publish(fs, &held, inode);
                return Err(Error::Stale);
            }
            Some((held, inode))
        }
    };
    let done = move_names(fs, by, how, &pins);
    if let (Ok(()), Some((held, inode))) = (&done, &replaced)
        && !how.flags.contains(RenameFlags::EXCHANGE)
    {
        removed(held, inode);
    }
    let done = done.and_then(|()| arrived(fs, how, &pins));
    if let (Ok(()), Some(whiteout)) = (&done, how.whiteout) {
        // The rename is done: if this fails, the whiteout is as the host has made it.
        let _ = adopt_whiteout(fs, by, from_dir, from_name, whiteout);
    }
    publish_dir(fs, from_dir, &pins.from);
    publish_dir(fs, to_dir, &pins.to);
    if let Some((held, inode)) = &replaced {
        publish(fs, held, inode);
    }
    done
}

/// The directories of a rename.
struct Pins {
    from: Pin,
    to: Pin,
}

/// Moves on the host, and updates where directories are found: no thread goes there by name in
/// between.
fn move_names(fs: &HostFs, by: &Caller<'_>, how: &Rename<'_>, pins: &Pins) -> Result<()> {
    let exchanged = how
        .replaced
        .filter(|_| how.flags.contains(RenameFlags::EXCHANGE));
    let moves = [
        (known(how.moved), known(how.to.0), how.to.1),
        (exchanged.and_then(known), known(how.from.0), how.from.1),
    ];
    let moves_dir = moves.iter().any(|(moved, ..)| moved.is_some());
    let _alone = moves_dir.then(|| fs.dirs.moving());
    fs.act(by, || ask_rename(how, pins))?;
    for (moved, dir, name) in moves {
        if let (Some(moved), Some(dir)) = (moved, dir) {
            moved.moved_to(dir, name.as_bytes());
        }
    }
    Ok(())
}

/// Holds a file about to lose a name, and confirms the name; also returns its attributes.
fn hold_victim<'a>(
    fs: &HostFs,
    by: &Caller<'_>,
    (dir, pin): (&Inode, &Pin),
    name: Name<'_>,
    inode: &'a Inode,
) -> Result<(Held<'a>, Stat)> {
    let held = match kept(by.sb, inode)? {
        // While that descriptor is open, no other file gets its number: so it holds the file that
        // the name is confirmed to stand for.
        None => fs.opened.held(inode),
        held => held,
    };
    match held {
        Some(held) => confirm(pin, name, inode).map(|stat| (held, stat)),
        None => hold_name(fs, by.sb, dir, name, inode),
    }
}

fn ask_rename(how: &Rename<'_>, pins: &Pins) -> Result<()> {
    let from = (pins.from.fd(), how.from.1);
    let to = (pins.to.fd(), how.to.1);
    let mut flags = HostRenameFlags::empty();
    for (ours, hosts) in [
        (RenameFlags::NOREPLACE, HostRenameFlags::NOREPLACE),
        (RenameFlags::EXCHANGE, HostRenameFlags::EXCHANGE),
        (RenameFlags::WHITEOUT, HostRenameFlags::WHITEOUT),
    ] {
        flags.set(hosts, how.flags.contains(ours));
    }
    let asked_for = how.flags.contains(RenameFlags::NOREPLACE);
    if how.replaced.is_some() || asked_for {
        return names::rename(from, to, flags);
    }
    match names::rename(from, to, flags | HostRenameFlags::NOREPLACE) {
        // The VFS has seen the name free. It decides anew with the file that has the name now.
        Err(Error::Exists) => Err(Error::Stale),
        // Some file systems know no flags; others have had something else to say, and
        // will say it again.
        Err(Error::Invalid) if host::stat_at(to.0, to.1)?.is_none() => {
            names::rename(from, to, flags)
        }
        done => done,
    }
}

/// Publishes the moved file's attributes, if the new name stands for it.
fn arrived(fs: &HostFs, how: &Rename<'_>, pins: &Pins) -> Result<()> {
    let arrived = fs.publish(how.moved, || {
        let stat = host::stat_at(pins.to.fd(), how.to.1)?;
        Ok(stat.filter(|stat| stat.is_still_after_rename(how.moved)))
    })?;
    if arrived { Ok(()) } else { Err(Error::Stale) }
}
