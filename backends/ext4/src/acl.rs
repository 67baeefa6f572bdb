//! POSIX ACLs: from the compact form they are stored in to the one getxattr(2) returns.

use crate::bytes::{u16_at, u32_at};

const STORED_VERSION: u32 = 1;
const SHOWN_VERSION: u32 = 2;
/// The id of entries that have none.
const NO_ID: u32 = !0;
const USER: u16 = 0x02;
const GROUP: u16 = 0x08;

/// The value as getxattr(2) returns it. None if it is not an ACL: an entry that is cut
/// off, a tag that does not exist.
pub(crate) fn shown(stored: &[u8]) -> Option<Vec<u8>> {
    if stored.len() < 4 || u32_at(stored, 0) != STORED_VERSION {
        return None;
    }
    let mut shown = SHOWN_VERSION.to_le_bytes().to_vec();
    let mut rest = &stored[4..];
    while !rest.is_empty() {
        let tag = u16_at(rest, 0);
        // Only named users and groups are stored with an id.
        let (length, id) = match tag {
            USER | GROUP => (8, u32_at(rest, 4)),
            0x01 | 0x04 | 0x10 | 0x20 => (4, NO_ID),
            _ => return None,
        };
        let (entry, after) = rest.split_at_checked(length)?;
        shown.extend_from_slice(&entry[..4]);
        shown.extend_from_slice(&id.to_le_bytes());
        rest = after;
    }
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `u::rw-,u:1000:r--,g::r--,m::r--,o::---`: entries without an id get the one that
    /// means none.
    #[test]
    fn entries_grow_to_eight_bytes() {
        let stored = [
            1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 0xe8, 3, 0, 0, 4, 0, 4, 0, 0x10, 0, 4, 0, 0x20, 0,
            0, 0,
        ];
        let expected = [
            2, 0, 0, 0, //
            1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, //
            2, 0, 4, 0, 0xe8, 3, 0, 0, //
            4, 0, 4, 0, 0xff, 0xff, 0xff, 0xff, //
            0x10, 0, 4, 0, 0xff, 0xff, 0xff, 0xff, //
            0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
        ];
        assert_eq!(shown(&stored).as_deref(), Some(expected.as_slice()));
    }

    /// Returns `None` for anything that is not an ACL: another version, an unknown tag, a
    /// cut-off entry.
    #[test]
    fn what_is_no_acl_is_refused() {
        for stored in [
            &[][..],
            &[2, 0, 0, 0],
            &[1, 0, 0, 0, 3, 0, 4, 0],
            &[1, 0, 0, 0, 2, 0, 4, 0],
            &[1, 0, 0, 0, 1, 0],
        ] {
            assert_eq!(shown(stored), None, "{stored:?}");
        }
    }
}
