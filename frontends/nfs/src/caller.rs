//! The credentials of a call, from the user that it names.

use rcuwalk::{Caps, Credentials};

use crate::options::{NOBODY, Squash};
use crate::rpc::User;

/// No user: chown(2) takes it for "no change".
const NO_ID: u32 = u32::MAX;

/// The credentials that a user acts with.
pub(crate) fn credentials(user: &User, squash: Squash) -> Credentials {
    let nobody = Credentials::user(NOBODY, NOBODY);
    let User::Ids { uid, gid, groups } = user else {
        return nobody;
    };
    match (squash, *uid) {
        (Squash::All, _) | (_, NO_ID) => nobody,
        (Squash::None, 0) => Credentials {
            gid: own(*gid),
            groups: groups.iter().copied().map(own).collect(),
            ..Credentials::root()
        },
        (Squash::None, uid) => Credentials {
            groups: groups.iter().copied().map(own).collect(),
            ..Credentials::user(uid, own(*gid))
        },
        (Squash::Root, 0) => nobody,
        (Squash::Root, uid) => Credentials {
            groups: groups.iter().map(|gid| squashed(*gid)).collect(),
            ..Credentials::user(uid, squashed(*gid))
        },
    }
}

fn own(gid: u32) -> u32 {
    if gid == NO_ID { NOBODY } else { gid }
}

fn squashed(gid: u32) -> u32 {
    if gid == 0 { NOBODY } else { own(gid) }
}

/// These credentials with the right to search and read everything, for a step whose own checks
/// have been made.
pub(crate) fn that_finds_all(credentials: &Credentials) -> Credentials {
    let mut credentials = credentials.clone();
    credentials.caps |= Caps::DAC_READ_SEARCH;
    credentials
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acts(uid: u32, gid: u32, groups: &[u32], squash: Squash) -> Credentials {
        let groups = groups.into();
        credentials(&User::Ids { uid, gid, groups }, squash)
    }

    #[test]
    fn root_is_nobody_unless_it_is_asked_for() {
        let nobody = Credentials::user(NOBODY, NOBODY);
        assert_eq!(acts(0, 5, &[6], Squash::Root), nobody);
        assert_eq!(acts(1000, 5, &[], Squash::All), nobody);
        assert_eq!(credentials(&User::Nobody, Squash::None), nobody);
        let root = acts(0, 0, &[4], Squash::None);
        assert_eq!(
            (root.uid, root.caps, &*root.groups),
            (0, Caps::all(), &[4][..])
        );
        let user = acts(1000, 0, &[0, 7], Squash::Root);
        assert_eq!(
            (user.uid, user.gid, &*user.groups),
            (1000, NOBODY, &[NOBODY, 7][..])
        );
        assert!(user.caps.is_empty());
        let user = acts(1000, 0, &[0], Squash::None);
        assert_eq!((user.gid, &*user.groups), (0, &[0][..]));
    }

    /// A chown to this number changes nothing: a new file would stay root's.
    #[test]
    fn the_number_that_is_no_user_is_nobody() {
        for squash in [Squash::Root, Squash::None] {
            assert_eq!(acts(NO_ID, 5, &[], squash).uid, NOBODY);
            let user = acts(1000, NO_ID, &[NO_ID], squash);
            assert_eq!((user.gid, &*user.groups), (NOBODY, &[NOBODY][..]));
        }
    }
}
