//! The users who take turns.

use rustix::thread::CapabilitySet;

/// The user that makes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// uid 0 with every capability.
    Root,
    /// uid 1000, in no further groups.
    Alice,
    /// uid 1001, in Alice's group as well.
    Bob,
    /// uid 0 without any capability.
    Bare,
}

impl Who {
    /// All of them.
    pub const ALL: [Who; 4] = [Who::Root, Who::Alice, Who::Bob, Who::Bare];

    /// User id.
    pub fn uid(self) -> u32 {
        match self {
            Who::Root | Who::Bare => 0,
            Who::Alice => 1000,
            Who::Bob => 1001,
        }
    }

    /// Group id: there is a group for each user.
    pub fn gid(self) -> u32 {
        self.uid()
    }

    /// Supplementary groups.
    pub fn groups(self) -> &'static [u32] {
        match self {
            Who::Bob => &[1000],
            _ => &[],
        }
    }

    /// The capabilities to set in the kernel; `all` is the set that this process has.
    pub fn caps(self, all: CapabilitySet) -> CapabilitySet {
        match self {
            Who::Root => all,
            _ => CapabilitySet::empty(),
        }
    }
}
