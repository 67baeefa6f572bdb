//! Extended attributes of a file that is held, ACLs among them.

use std::time::Instant;

use rcuwalk::{At, Caller, Caps, Error, Freshness, Result, XattrFlags};

use crate::HostFs;
use crate::pin::{hold, hold_as_decided, known, publish};

/// Which capabilities a program starts with.
const CAPABILITY: &[u8] = b"security.capability";

const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

pub(crate) fn get(fs: &HostFs, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<Box<[u8]>> {
    if name.starts_with(b"system.posix_acl_") {
        // Everybody may read these. The VFS asks for most of them, to check a permission.
        return hold(fs, by, at)?.get_xattr(name);
    }
    let held = hold_as_decided(fs, by, at)?;
    fs.act(by, || held.get_xattr(name))
}

/// The default ACL of a directory, for a file that is made there. That there is none is believed
/// for as long as an attribute is.
pub(crate) fn default_acl(fs: &HostFs, by: &Caller<'_>, at: &At<'_>) -> Result<Option<Box<[u8]>>> {
    let ask = || match get(fs, by, at, DEFAULT_ACL) {
        Ok(acl) => Ok(Some(acl)),
        Err(Error::NoData | Error::NotSupported) => Ok(None),
        Err(err) => Err(err),
    };
    let (Freshness::Ttl(valid), Some(dir)) = (fs.freshness, known(at.inode)) else {
        return ask();
    };
    // Held while the host is asked: a change through this mount ends what was asked before it.
    let mut none_until = dir.no_default_acl();
    let now = Instant::now();
    if none_until.is_some_and(|until| now < until) {
        return Ok(None);
    }
    let acl = ask()?;
    *none_until = match acl {
        Some(_) => None,
        None => now.checked_add(valid),
    };
    Ok(acl)
}

/// After a change of an extended attribute, or an attempt.
fn changed(at: &At<'_>, name: &[u8]) {
    if let (DEFAULT_ACL, Some(dir)) = (name, known(at.inode)) {
        *dir.no_default_acl() = None;
    }
}

pub(crate) fn list(fs: &HostFs, by: &Caller<'_>, at: &At<'_>) -> Result<Vec<Box<[u8]>>> {
    let held = hold(fs, by, at)?;
    let names = fs.act(by, || held.list_xattrs())?;
    // The host shows them to this process, which may be more privileged than the caller.
    let sees_trusted = by.credentials.caps.contains(Caps::SYS_ADMIN);
    let names = names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && (sees_trusted || !name.starts_with(b"trusted.")));
    Ok(names.map(Box::from).collect())
}

pub(crate) fn set(
    fs: &HostFs,
    by: &Caller<'_>,
    at: &At<'_>,
    name: &[u8],
    value: &[u8],
    flags: XattrFlags,
) -> Result<()> {
    let held = hold_as_decided(fs, by, at)?;
    let done = fs.act(by, || held.set_xattr(name, value, flags));
    changed(at, name);
    publish(fs, &held, at.inode);
    done
}

pub(crate) fn remove(fs: &HostFs, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<()> {
    let held = hold_as_decided(fs, by, at)?;
    let done = if name == CAPABILITY && !by.credentials.caps.contains(Caps::SETFCAP) {
        // The VFS would not have let the caller remove it. A write does, with rights that the
        // caller lacks; and if this process lacks them too, the host does it at the write.
        match held.remove_xattr(name) {
            Err(Error::NotPermitted) => Ok(()),
            done => done,
        }
    } else {
        fs.act(by, || held.remove_xattr(name))
    };
    changed(at, name);
    publish(fs, &held, at.inode);
    done
}
