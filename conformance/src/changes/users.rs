//! The users who take turns.

use rustix::thread::CapabilitySet;

/// The user that makes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum User {
    /// uid 0 with every capability.
    Root,
    /// uid 1000, in no further groups.
    Alice,
    /// uid 1001, in Alice's group as well.
    Bob,
    /// uid 0 without any capability.
    Bare,
}

impl User {
    /// All of them.
    pub const ALL: [User; 4] = [User::Root, User::Alice, User::Bob, User::Bare];

    /// User id.
    pub fn uid(self) -> u32 {
        match self {
            User::Root | User::Bare => 0,
            User::Alice => 1000,
            User::Bob => 1001,
        }
    }

    /// Group id: there is a group for each user.
    pub fn gid(self) -> u32 {
        self.uid()
    }

    /// Supplementary groups.
    pub fn groups(self) -> &'static [u32] {
        match self {
            User::Bob => &[1000],
            _ => &[],
        }
    }

    /// The capabilities to set in the kernel; `all` is the set that this process has.
    pub fn caps(self, all: CapabilitySet) -> CapabilitySet {
        match self {
            User::Root => all,
            _ => CapabilitySet::empty(),
        }
    }
}
