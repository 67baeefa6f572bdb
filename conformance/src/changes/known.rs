//! Every difference that is meant, each with its line in docs/semantics.md.
//!
//! Most need nothing here: they lie in what is not asked. The others are of three
//! kinds: the kernel's side is kept from doing what rcuwalk does not do; two answers
//! count as one; or a sequence ends there, because both sides go different ways.

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::changes::answer::Outcome;
use crate::changes::generate::Sticky;
use crate::changes::op::{At, Op, Step};
use crate::changes::sysctls::Sysctls;
use crate::changes::users::User;

/// What follows from a difference that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// The two answers count as one.
    Ignore,
    /// The two sides are no longer alike: the sequence ends here.
    Stop,
    /// The kernel's side is kept from it.
    Avoided,
}

/// A difference that is meant.
pub struct Deviation {
    /// Its section in docs/semantics.md.
    pub section: &'static str,
    /// How its line begins there.
    pub line: &'static str,
    /// Only with hostfs.
    pub on_host: bool,
    /// What follows.
    pub handling: Handling,
    /// Whether it is this one: the kernel's answer, then rcuwalk's.
    pub is: fn(&Step, &Outcome, &Outcome) -> bool,
}

/// All of them.
pub const ALL: [Deviation; 13] = [
    Deviation {
        section: "Paths",
        line: "- `protected_symlinks`, `protected_hardlinks`, `protected_regular` and",
        on_host: false,
        handling: Handling::Avoided,
        is: |_, _, _| false,
    },
    Deviation {
        section: "Opening and reading",
        line: "- On hostfs a truncation by path to the size that a file has",
        on_host: true,
        handling: Handling::Avoided,
        is: |_, _, _| false,
    },
    Deviation {
        section: "Opening and reading",
        line: "- On hostfs a write or an allocation that the host finds too far out",
        on_host: true,
        handling: Handling::Avoided,
        is: |_, _, _| false,
    },
    Deviation {
        section: "Opening and reading",
        line: "- Data and holes are sought in regular files.",
        on_host: false,
        handling: Handling::Avoided,
        is: |_, _, _| false,
    },
    Deviation {
        section: "Opening and reading",
        line: "- A hole in the last page that a file can have is found.",
        on_host: false,
        handling: Handling::Ignore,
        is: |step, kernel, ours| {
            let last_page = 1_u64 << 63 >> 12;
            kernel.errno() != 0
                && ours.errno() == 0
                && matches!(step.op, Op::SeekHole { at, .. } if (at as u64 + 1) >> 12 >= last_page - 1)
        },
    },
    Deviation {
        section: "Changes",
        line: "- An open file without a name can be linked by its owner",
        on_host: false,
        handling: Handling::Ignore,
        is: |step, kernel, ours| ours.errno() != 0 && is_link_by_owner(step, kernel),
    },
    Deviation {
        section: "Changes",
        line: "- An open file without a name can be linked by its owner",
        on_host: false,
        handling: Handling::Stop,
        is: |step, kernel, ours| ours.errno() == 0 && is_link_by_owner(step, kernel),
    },
    Deviation {
        section: "Opening and reading",
        line: "- `allocate` neither collapses nor inserts ranges",
        on_host: false,
        handling: Handling::Avoided,
        is: |_, _, _| false,
    },
    Deviation {
        section: "Opening and reading",
        line: "- Reading no bytes leaves the time of the last access alone.",
        on_host: false,
        handling: Handling::Avoided,
        is: |_, _, _| false,
    },
    Deviation {
        section: "Opening and reading",
        line: "- Regular files and directories open, and with `PATH` anything.",
        on_host: false,
        handling: Handling::Avoided,
        is: |_, _, _| false,
    },
    Deviation {
        section: "Opening and reading",
        line: "- An open file acts with its opener's credentials.",
        on_host: false,
        handling: Handling::Avoided,
        is: |_, _, _| false,
    },
    Deviation {
        section: "Attributes and permissions",
        line: "- On hostfs the time of the last access is the host's own affair",
        on_host: true,
        handling: Handling::Avoided,
        is: |_, _, _| false,
    },
    Deviation {
        section: "Attributes and permissions",
        line: "- The time of the last access of a symbolic link",
        on_host: false,
        handling: Handling::Avoided,
        is: |_, _, _| false,
    },
];

/// The difference that two answers are an instance of.
pub fn find(
    step: &Step,
    kernel: &Outcome,
    ours: &Outcome,
    on_host: bool,
) -> Option<&'static Deviation> {
    ALL.iter()
        .filter(|known| on_host || !known.on_host)
        .find(|known| (known.is)(step, kernel, ours))
}

/// The kernel's side never has the credentials that opened it.
fn is_link_by_owner(step: &Step, kernel: &Outcome) -> bool {
    let of_handle = matches!(
        step.op,
        Op::Link {
            old: At::Handle(_),
            ..
        }
    );
    of_handle && step.user != User::Root && kernel.errno() == libc::ENOENT
}

/// There are no pipes, sockets and devices behind rcuwalk: "Devices, pipes and sockets are `ENXIO`."
pub(super) fn opens(st_mode: u32) -> Result<(), Errno> {
    match st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFDIR => Ok(()),
        _ => Err(Errno::NXIO),
    }
}

/// "Data and holes are sought in regular files. Some file systems seek in directories."
pub(super) fn sought<T>(st_mode: u32, found: Result<T, Errno>) -> Result<T, Errno> {
    match found {
        Ok(_) | Err(Errno::NXIO) if st_mode & libc::S_IFMT == libc::S_IFDIR => Err(Errno::INVAL),
        found => found,
    }
}

/// With CAP_FOWNER, protected_hardlinks does not apply; in link(2) it is good for
/// nothing else.
pub(super) fn caps_for_link(caps: CapabilitySet) -> CapabilitySet {
    caps | CapabilitySet::FOWNER
}

/// protected_symlinks, protected_regular and protected_fifos apply in sticky
/// directories. Where the machine has one of them on, there are none in a sequence, unless
/// rcuwalk's mount has its flag for them.
pub fn sticky_directories(machine: &Sysctls) -> Sticky {
    match machine.leave_sticky_directories_alone() {
        true => Sticky::Some,
        false => Sticky::None,
    }
}

/// An open file here acts with the credentials of its opener; Linux uses the caller's for some
/// operations. Returns the opener's slot for operations that act on the open file alone.
pub(super) fn is_done_by_opener(op: &Op) -> Option<usize> {
    match op {
        Op::Read { slot, .. }
        | Op::Write { slot, .. }
        | Op::SetLen { slot, .. }
        | Op::Allocate { slot, .. } => Some(*slot),
        _ => None,
    }
}

/// "The time of the last access of a symbolic link" is not kept: reading it, and walking
/// through it, is left to the cache. "On hostfs the time of the last access is the host's
/// own affair", `on_host`.
pub(super) fn keeps_atime(kind: u32, on_host: bool) -> bool {
    kind != libc::S_IFLNK && !on_host
}

/// "Reading no bytes leaves the time of the last access alone": on ext4 too, not on tmpfs.
pub(super) fn sets_no_atime(read: usize) -> bool {
    read == 0
}

/// "`allocate` neither collapses nor inserts ranges, nor unshares them": as a mode that
/// does not exist.
pub(super) fn allocates(mode: FallocateFlags) -> FallocateFlags {
    use FallocateFlags as Flags;
    let missing = Flags::COLLAPSE_RANGE | Flags::INSERT_RANGE | Flags::UNSHARE_RANGE;
    if mode.intersects(missing) {
        Flags::from_bits_retain(0x1000)
    } else {
        mode
    }
}
