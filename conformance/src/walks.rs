//! A walk as plain data: the user, the path, the start, and the flags.

mod plan;

use std::fmt;

use rcuwalk::{Caps, Credentials, LookupFlags};

pub use plan::Planner;

use crate::tree::{NodeIx, Short};

/// One lookup of one path.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Where it starts, and what `/` is.
    pub place: Place,
    /// Whose permissions count.
    pub user: User,
    /// The path.
    pub path: Vec<u8>,
    /// [`LookupFlags::FOLLOW`], `DIRECTORY` and `EMPTY_PATH`.
    pub flags: LookupFlags,
    /// Which of [`ORDERS`](crate::differ::ORDERS) it is asked in. Part of the walk,
    /// so that it stays the same while the walks before it are left out.
    pub order: usize,
}

/// The two directories a process walks from. `cwd` is `root` or below it: outside,
/// `..` would lead on into the rest of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// What `/` is.
    pub root: NodeIx,
    /// The current directory.
    pub cwd: NodeIx,
}

/// The callers that walks are made as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// uid 0 with its capabilities.
    Root,
    /// uid 1000, in no further groups.
    Plain,
    /// uid 2000, in groups 1000 and 3000 as well.
    Member,
    /// uid 1000 with CAP_DAC_READ_SEARCH.
    Searcher,
    /// uid 2000 with CAP_DAC_OVERRIDE.
    Overrider,
    /// uid 0 without any capability: an owner like others.
    Powerless,
}

impl User {
    /// All of them.
    pub const ALL: [User; 6] = [
        User::Root,
        User::Plain,
        User::Member,
        User::Searcher,
        User::Overrider,
        User::Powerless,
    ];

    /// User id.
    pub fn uid(self) -> u32 {
        match self {
            User::Root | User::Powerless => 0,
            User::Plain | User::Searcher => 1000,
            User::Member | User::Overrider => 2000,
        }
    }

    /// Group id: there is a group for each user.
    pub fn gid(self) -> u32 {
        self.uid()
    }

    /// Supplementary groups.
    pub fn groups(self) -> &'static [u32] {
        match self {
            User::Member => &[1000, 3000],
            _ => &[],
        }
    }

    /// The capabilities that matter to a walk.
    pub fn caps(self) -> Caps {
        match self {
            User::Root => Caps::DAC_OVERRIDE | Caps::DAC_READ_SEARCH,
            User::Searcher => Caps::DAC_READ_SEARCH,
            User::Overrider => Caps::DAC_OVERRIDE,
            User::Plain | User::Member | User::Powerless => Caps::empty(),
        }
    }

    /// As rcuwalk wants to be told.
    pub fn credentials(self) -> Credentials {
        Credentials {
            uid: self.uid(),
            gid: self.gid(),
            groups: self.groups().into(),
            caps: self.caps(),
            real: None,
        }
    }
}

impl fmt::Display for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Walk {
            place,
            user,
            path,
            flags,
            order,
        } = self;
        let Place { root, cwd } = place;
        write!(f, "\"{}\" ({} bytes)", Short(path), path.len())?;
        write!(f, " flags {flags:?} as {user:?}, root node {root}")?;
        write!(f, ", cwd node {cwd}, order {order}")
    }
}
