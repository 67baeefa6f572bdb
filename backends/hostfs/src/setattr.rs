//! Changing attributes of a file that is held.

use rcuwalk::{At, Caller, Caps, Credentials, Error, FileType, Inode, Result, SetAttr, SetTime};
use rustix::fs::OFlags;

use crate::HostFs;
use crate::file::open_regular;
use crate::host::held::Held;
use crate::host::{self, as_fd};
use crate::pin::{hold_as_decided, open_file, publish_contents, strips};

/// Changes the attributes that `change` names.
///
/// The host has a call for each of them. The one that fails most, for want of space or
/// quota, is the first, and times are the last, since the others set some themselves.
pub(crate) fn setattr(fs: &HostFs, by: &Caller<'_>, at: &At<'_>, change: &SetAttr) -> Result<()> {
    let held = hold_as_decided(fs, by, at)?;
    let done = apply(fs, by, at, &held, change);
    // If the second of two has failed, the first is told all the same.
    let strip = change.size.is_some() && strips(fs, by) && done.is_ok();
    publish_contents(&held, at.inode, fs.is_watched(), strip);
    done
}

fn apply(
    fs: &HostFs,
    by: &Caller<'_>,
    at: &At<'_>,
    held: &Held<'_>,
    change: &SetAttr,
) -> Result<()> {
    if let Some(size) = change.size {
        set_size(fs, by, at, held, size, change)?;
    }
    // A chown(2) without an owner is a change as well, of the ctime.
    if change.uid.is_some() || change.gid.is_some() || *change == SetAttr::default() {
        fs.act(by, || held.chown(change.uid, change.gid))?;
    }
    if let Some(mode) = change.mode {
        // A change of owner takes the set-id bits away: so the mode comes after it.
        match lost_set_ids(by, at.inode, mode) {
            0 => fs.act(by, || held.chmod(mode))?,
            lost => lose_set_ids(held, lost)?,
        }
    }
    // The truncation has set the mtime; one time alone is an owner's to set.
    let is_set = change.size.is_some() && change.mtime == Some(SetTime::Now);
    let mtime = change.mtime.filter(|_| !is_set);
    if change.atime.is_some() || mtime.is_some() {
        fs.act(by, || held.set_times(change.atime, mtime))?;
    }
    if let Some(flags) = change.flags {
        match at.inode.kind() {
            FileType::Regular | FileType::Directory => {
                let open = held.opened()?;
                fs.act(by, || open.set_flags(flags))?;
            }
            // To set them, the host would have to open a device.
            _ => return Err(Error::NotSupported),
        }
    }
    Ok(())
}

/// Owners choose a mode. For others, the VFS takes set-id bits away because of something
/// else, mostly a write: these bits.
fn lost_set_ids(by: &Caller<'_>, inode: &Inode, mode: u16) -> u16 {
    let Credentials { uid, caps, .. } = by.credentials;
    let known = inode.attr();
    let chooses = *uid == known.uid || caps.contains(Caps::FOWNER);
    let lost = known.mode & 0o6000 & !mode;
    if chooses || known.mode & !lost != mode {
        return 0;
    }
    lost
}

/// Clears these set-id bits, which is never the caller's to do.
fn lose_set_ids(held: &Held<'_>, lost: u16) -> Result<()> {
    match held.lose_set_ids(lost) {
        // A caller that the host refuses this loses the bits with the change itself, unless the
        // mode is immutable.
        Err(Error::NotPermitted) if host::stat_fd(held.fd())?.attr.flags.is_empty() => Ok(()),
        done => done,
    }
}

fn set_size(
    fs: &HostFs,
    by: &Caller<'_>,
    at: &At<'_>,
    held: &Held<'_>,
    size: u64,
    change: &SetAttr,
) -> Result<()> {
    match at.inode.kind() {
        FileType::Regular => {}
        FileType::Directory => return Err(Error::IsADirectory),
        _ => return Err(Error::Invalid),
    }
    // Only ftruncate(2) takes a descriptor, and it sets the mtime whatever the size was,
    // as truncate(2) need not.
    if change.mtime.is_none() && host::stat_fd(held.fd())?.attr.size == size {
        return fs.act(by, || held.truncate_to_its_size(size));
    }
    let opened;
    let fd = match open_file(at) {
        Some(file) if file.writable => file.fd.fd(),
        _ => {
            (opened, _) = open_regular(fs, by, at, OFlags::WRONLY)?;
            as_fd(&opened)
        }
    };
    fs.act(by, || host::held::truncate(fd, size))
}
