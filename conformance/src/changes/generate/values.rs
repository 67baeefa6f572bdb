//! Moments, names and values of extended attributes, access control lists.

use super::choose::weighted;
use crate::changes::op::{Bytes, When};
use rcuwalk_testkit::Rng;

/// A moment to set: none of them near now, which the comparison relies on.
pub(super) fn when(rng: &mut Rng) -> When {
    let moments = [
        (When::Now, 6),
        (When::Omit, 5),
        (When::At(0, 0), 2),
        (When::At(1, 1), 2),
        (When::At(1_000_000_000, 123_456_789), 4),
        (When::At(-1, 5), 1),
        (When::At(4_102_444_800, 999_999_999), 3),
        (When::At(1 << 40, 0), 1),
        (When::At(-(1 << 40), 7), 1),
        (When::At(5, 1_000_000_000), 1),
        (When::At(5, -1), 1),
    ];
    *weighted(rng, &moments)
}

pub(super) fn xattr_name(rng: &mut Rng) -> String {
    let names = [
        ("user.a", 10),
        ("user.b", 6),
        ("trusted.t", 5),
        ("security.s", 4),
        ("user.", 1),
        ("system.other", 1),
        ("bogus.x", 1),
        ("bogus", 1),
        ("", 1),
    ];
    let name = *weighted(rng, &names);
    match rng.below(40) {
        0 => format!("user.{}", "n".repeat(250)),
        1 => format!("user.{}", "n".repeat(251)),
        _ => name.into(),
    }
}

pub(super) fn xattr_value(rng: &mut Rng) -> Bytes {
    let lengths = [
        (0, 4),
        (1, 6),
        (20, 10),
        (300, 4),
        (2000, 2),
        (5000, 1),
        (65_537, 1),
    ];
    let length = *weighted(rng, &lengths);
    Bytes(vec![rng.between(1, 255) as u8; length])
}

pub(super) fn xattr_flags(rng: &mut Rng) -> u32 {
    let create = libc::XATTR_CREATE as u32;
    let replace = libc::XATTR_REPLACE as u32;
    let flags = [
        (0, 16),
        (create, 4),
        (replace, 4),
        (create | replace, 1),
        (4, 1),
    ];
    *weighted(rng, &flags)
}

pub(super) fn acl_name(default: bool) -> &'static str {
    if default {
        "system.posix_acl_default"
    } else {
        "system.posix_acl_access"
    }
}

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NOBODY: u32 = u32::MAX;

/// An access control list as the kernel takes it: mostly a valid one.
pub(super) fn acl(rng: &mut Rng) -> Bytes {
    let mut entries = vec![(USER_OBJ, perm(rng), NOBODY)];
    // Without: as permission bits say it.
    let extended = rng.chance(65);
    if extended && rng.chance(70) {
        entries.push((USER, perm(rng), 1000));
    }
    if extended && rng.chance(40) {
        entries.push((USER, perm(rng), 1001));
    }
    entries.push((GROUP_OBJ, perm(rng), NOBODY));
    if extended && rng.chance(50) {
        entries.push((GROUP, perm(rng), 1000));
    }
    if extended {
        entries.push((MASK, perm(rng), NOBODY));
    }
    entries.push((OTHER, perm(rng), NOBODY));
    let mut version = 2;
    let mut cut = 0;
    match rng.below(40) {
        0 => entries.clear(),
        1 => version = 1,
        2 => cut = 3,
        3 => entries.reverse(),
        4 => {
            let again = entries[0];
            entries.insert(0, again);
        }
        5 => entries.truncate(1),
        6 => entries[0].1 = 8,
        7 => entries[0].0 = 0x40,
        8 => entries.retain(|(tag, ..)| *tag != MASK),
        9 => return Bytes(Vec::new()),
        _ => {}
    }
    let mut bytes = Vec::from(u32::to_le_bytes(version));
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes.truncate(bytes.len() - cut);
    Bytes(bytes)
}

fn perm(rng: &mut Rng) -> u16 {
    *rng.pick(&[7, 7, 7, 6, 5, 4, 0])
}
