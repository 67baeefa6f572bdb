//! The format of `system.posix_acl_*`, and the meaning of its entries.
//!
//! ```text
//!   u32 version = 2, then 8 bytes per entry: u16 tag, u16 permissions, u32 id
//! ```
//!
//! All of it is little-endian. The order of the entries is fixed: the owner, named users,
//! the group, named groups, the mask, everyone else.

use crate::error::{Error, Result};
use crate::permission::Credentials;

const VERSION: u32 = 2;
/// The id of entries without a user or group.
const NO_ID: u32 = u32::MAX;

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    UserObj,
    User,
    GroupObj,
    Group,
    Mask,
    Other,
}

impl Tag {
    const ALL: [(u16, Tag); 6] = [
        (0x01, Tag::UserObj),
        (0x02, Tag::User),
        (0x04, Tag::GroupObj),
        (0x08, Tag::Group),
        (0x10, Tag::Mask),
        (0x20, Tag::Other),
    ];

    fn of(number: u16) -> Option<Tag> {
        let known = Tag::ALL.iter().find(|(known, _)| *known == number)?;
        Some(known.1)
    }

    fn number(self) -> u16 {
        let known = Tag::ALL.iter().find(|(_, known)| *known == self);
        known.map_or(0, |(number, _)| *number)
    }

    fn is_named(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
}

/// One line of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) tag: Tag,
    /// Read, write, execute, as in a class of permission bits.
    pub(crate) perm: u16,
    /// Which user or group, if the tag names one.
    pub(crate) id: u32,
}

/// The entries of a value, one by one; an error in place of one with an unknown tag.
fn entries(value: &[u8]) -> Result<impl Iterator<Item = Result<Entry>> + '_> {
    let (version, rest) = value.split_first_chunk::<4>().ok_or(Error::Invalid)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Error::NotSupported);
    }
    let (entries, cut_off) = rest.as_chunks::<8>();
    if !cut_off.is_empty() {
        return Err(Error::Invalid);
    }
    Ok(entries.iter().map(|entry| {
        let [t0, t1, p0, p1, id @ ..] = *entry;
        let tag = Tag::of(u16::from_le_bytes([t0, t1])).ok_or(Error::Invalid)?;
        Ok(Entry {
            tag,
            perm: u16::from_le_bytes([p0, p1]),
            id: u32::from_le_bytes(id),
        })
    }))
}

/// An ACL from a value as setxattr(2) takes it; `None` for one without entries.
///
/// # Errors
/// [`Error::Invalid`] for a malformed one, [`Error::NotSupported`] for another version.
#[doc(alias = "posix_acl_from_xattr")]
pub(crate) fn parse(value: &[u8]) -> Result<Option<Vec<Entry>>> {
    let entries = entries(value)?.collect::<Result<Vec<_>>>()?;
    if entries
        .iter()
        .any(|entry| entry.tag.is_named() && entry.id == NO_ID)
    {
        return Err(Error::Invalid);
    }
    Ok((!entries.is_empty()).then_some(entries))
}

/// The value as getxattr(2) returns it.
#[doc(alias = "posix_acl_to_xattr")]
pub(crate) fn encode(acl: &[Entry]) -> Box<[u8]> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in acl {
        let id = if entry.tag.is_named() {
            entry.id
        } else {
            NO_ID
        };
        value.extend_from_slice(&entry.tag.number().to_le_bytes());
        value.extend_from_slice(&entry.perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value.into()
}

/// Checks the order of the entries, and that none is missing.
///
/// # Errors
/// [`Error::Invalid`].
#[doc(alias = "posix_acl_valid")]
pub(crate) fn check(acl: &[Entry]) -> Result<()> {
    // The previous entry, and whether a mask is required because an entry has an id.
    let mut last = None;
    let mut needs_mask = false;
    for entry in acl {
        if entry.perm & !0o7 != 0 {
            return Err(Error::Invalid);
        }
        let follows = match entry.tag {
            Tag::UserObj => last.is_none(),
            Tag::User | Tag::GroupObj => matches!(last, Some(Tag::UserObj | Tag::User)),
            Tag::Group | Tag::Mask => matches!(last, Some(Tag::GroupObj | Tag::Group)),
            Tag::Other => match last {
                Some(Tag::Mask) => true,
                Some(Tag::GroupObj | Tag::Group) => !needs_mask,
                _ => false,
            },
        };
        if !follows {
            return Err(Error::Invalid);
        }
        needs_mask |= entry.tag.is_named();
        last = Some(entry.tag);
    }
    match last {
        Some(Tag::Other) => Ok(()),
        _ => Err(Error::Invalid),
    }
}

/// Whether the ACL `value` of a file of `owner` and `group` lets `who` do all of `want`.
///
/// # Errors
/// [`Error::PermissionDenied`]; [`Error::Io`] for an ACL that is none.
#[doc(alias = "posix_acl_permission")]
pub(crate) fn permission(
    value: &[u8],
    who: &Credentials,
    (owner, group): (u32, u32),
    want: u16,
) -> Result<()> {
    let mut rest = entries(value).map_err(|_| broken())?;
    let allows = |perm: u16| match perm & want == want {
        true => Ok(()),
        false => Err(Error::PermissionDenied),
    };
    let mut in_a_group = false;
    while let Some(entry) = rest.next() {
        let entry = entry.map_err(|_| broken())?;
        let decides = match entry.tag {
            Tag::UserObj if who.uid == owner => return allows(entry.perm),
            Tag::Other if in_a_group => return Err(Error::PermissionDenied),
            Tag::Other => return allows(entry.perm),
            Tag::User => who.uid == entry.id,
            Tag::GroupObj | Tag::Group => {
                let gid = match entry.tag {
                    Tag::Group => entry.id,
                    _ => group,
                };
                let member = who.is_in_group(gid);
                in_a_group |= member;
                // A group that does not allow it leaves the word to the next one.
                member && allows(entry.perm).is_ok()
            }
            Tag::UserObj | Tag::Mask => false,
        };
        if decides {
            let mask = rest
                .filter_map(Result::ok)
                .find(|entry| entry.tag == Tag::Mask);
            return allows(entry.perm & mask.map_or(0o7, |mask| mask.perm));
        }
    }
    Err(broken())
}

/// The permission bits that say the same, or as much of it as such bits can; and whether
/// there is more.
#[doc(alias = "posix_acl_equiv_mode")]
pub(crate) fn equivalent_mode(acl: &[Entry]) -> (u16, bool) {
    let (mut mode, mut more) = (0, false);
    for entry in acl {
        match entry.tag {
            Tag::UserObj => mode |= entry.perm << 6,
            Tag::GroupObj => mode |= entry.perm << 3,
            Tag::Other => mode |= entry.perm,
            // In place of the group's, which it comes after.
            Tag::Mask => mode = mode & !0o070 | entry.perm << 3,
            Tag::User | Tag::Group => {}
        }
        more |= matches!(entry.tag, Tag::Mask | Tag::User | Tag::Group);
    }
    (mode, more)
}

/// Combines a default ACL with the permission bits that the creator asks for: each loses the
/// rights that the other lacks. Returns the bits, and whether the ACL says more.
///
/// # Errors
/// [`Error::Io`] for an ACL that is none.
#[doc(alias = "posix_acl_create_masq")]
pub(crate) fn meet(acl: &mut [Entry], mode: u16) -> Result<(u16, bool)> {
    let mut meets = mode;
    let mut meet = |entry: &mut Entry, shift: u32| {
        entry.perm &= mode >> shift & 0o7;
        meets &= entry.perm << shift | !(0o7 << shift);
    };
    for entry in acl.iter_mut() {
        match entry.tag {
            Tag::UserObj => meet(entry, 6),
            Tag::Other => meet(entry, 0),
            _ => {}
        }
    }
    meet(group_class(acl)?, 3);
    let (_, more) = equivalent_mode(acl);
    Ok((meets, more))
}

/// Brings an ACL in line with permission bits that were set.
///
/// # Errors
/// [`Error::Io`] for an ACL that is none.
#[doc(alias = "__posix_acl_chmod_masq")]
pub(crate) fn chmod(acl: &mut [Entry], mode: u16) -> Result<()> {
    for entry in acl.iter_mut() {
        match entry.tag {
            Tag::UserObj => entry.perm = mode >> 6 & 0o7,
            Tag::Other => entry.perm = mode & 0o7,
            _ => {}
        }
    }
    group_class(acl)?.perm = mode >> 3 & 0o7;
    Ok(())
}

/// The entry behind the group's permission bits: the mask, or else the group's entry.
fn group_class(acl: &mut [Entry]) -> Result<&mut Entry> {
    let place = |tag| acl.iter().position(|entry| entry.tag == tag);
    let place = place(Tag::Mask).or(place(Tag::GroupObj));
    place
        .and_then(|place| acl.get_mut(place))
        .ok_or_else(broken)
}

/// The back end has an ACL that makes no sense.
pub(crate) fn broken() -> Error {
    Error::io(std::io::ErrorKind::InvalidData)
}
