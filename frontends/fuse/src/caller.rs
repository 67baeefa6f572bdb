//! Credentials of the caller, from a request.
//!
//! A request carries the user, the group and the thread, but not supplementary groups and
//! capabilities. They are read from `TID/status` of the held procfs (`rcuwalk-procfs`), which costs
//! two system calls and more, so only where they matter: after a refusal, and where a group
//! decides the effect of a change. The caller waits for the answer meanwhile, so the thread
//! still exists, unless it is killed; the file system user in that file must be the request's.
//! Capabilities in another user namespace do not count here.
//!
//! On a connection that allows idmapped mounts the kernel maps users for each mount, and sends
//! a user only with a request that makes a file: the owner of the file, as the tree knows it. A
//! check by these numbers would be wrong, and without them there is nothing to check by. So the
//! kernel's check (`default_permissions`) counts, see [`Caller::is_checked`].

use rcuwalk::{Caps, Credentials};

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The thread, 0 if it is not visible from this PID namespace.
    pub(crate) pid: u32,
    /// Whether the caller has CAP_FSETID, if the request says so.
    pub(crate) keeps_set_ids: Option<bool>,
    /// The connection allows idmapped mounts: the kernel has checked the caller's permissions,
    /// and the user and the group are those of the file that the request makes, or [`UNTOLD`].
    pub(crate) is_checked: bool,
    /// The caller is on another machine, whose kernel has checked its permissions and told its
    /// user: it has no thread here. Implies [`is_checked`](Caller::is_checked).
    pub(crate) is_guest: bool,
}

/// The user and the group that most requests carry on a connection with idmapped mounts.
#[doc(alias = "FUSE_INVALID_UIDGID")]
pub(crate) const UNTOLD: u32 = u32::MAX;

impl Caller {
    /// Returns the credentials that the request carries. User 0 counts as privileged: where its
    /// process lacks a capability, the kernel has refused already (`default_permissions`),
    /// unless it leaves the check to the file system.
    pub(crate) fn credentials(self) -> Credentials {
        let caps = match self.uid {
            _ if self.is_checked => Caps::all(),
            0 => Caps::all(),
            _ => Caps::empty(),
        };
        self.with(Box::default(), caps)
    }

    /// Returns the credentials with supplementary groups and capabilities, if there are any and
    /// they can be read.
    pub(crate) fn in_full(self) -> Option<Credentials> {
        if self.uid == 0 || self.is_checked {
            return None;
        }
        let (groups, caps) = self.status()?;
        (!groups.is_empty() || !caps.is_empty()).then(|| self.with(groups, caps))
    }

    /// Returns the credentials for a decision about set-id bits, which depends on groups and
    /// CAP_FSETID: user 0 has that only if its thread has it.
    #[doc(alias("CAP_FSETID", "in_group_or_capable"))]
    pub(crate) fn for_set_ids(self) -> Credentials {
        match self.status() {
            // The thread is not visible from here: assume that it lacks CAP_FSETID.
            None if self.is_checked && !self.is_guests_root() => {
                self.with(Box::default(), Caps::all() - Caps::FSETID)
            }
            None => self.credentials(),
            Some((groups, caps)) if self.uid == 0 || self.is_checked => {
                let others = Caps::all() - Caps::FSETID;
                self.with(groups, others | caps)
            }
            Some((groups, caps)) => self.with(groups, caps),
        }
    }

    /// True if the caller has `cap`. Assumed for user 0 where its thread is not visible.
    pub(crate) fn has(self, cap: Caps) -> bool {
        match self.status() {
            None => self.uid == 0 && !self.is_checked || self.is_guests_root(),
            Some((_, caps)) => caps.contains(cap),
        }
    }

    /// Returns the user whose share counts: that of the thread if the request carries none, or
    /// [`UNTOLD`] if the thread is not visible.
    pub(crate) fn user(self) -> u32 {
        match self.is_checked && !self.is_guest {
            true => user_of_thread(self.pid).unwrap_or(UNTOLD),
            false => self.uid,
        }
    }

    /// Returns the same caller, as one on another machine. Its thread's number there would name
    /// a stranger's here.
    pub(crate) fn of_guest(self) -> Caller {
        Caller {
            pid: 0,
            is_checked: true,
            is_guest: true,
            ..self
        }
    }

    fn is_guests_root(self) -> bool {
        self.is_guest && self.uid == 0
    }

    /// Returns the same caller, with the request's word on whether it has CAP_FSETID.
    pub(crate) fn keeping_set_ids(self, keeps: bool) -> Caller {
        Caller {
            keeps_set_ids: Some(keeps),
            ..self
        }
    }

    fn with(self, groups: Box<[u32]>, mut caps: Caps) -> Credentials {
        if let Some(keeps) = self.keeps_set_ids {
            caps.set(Caps::FSETID, keeps);
        }
        // Where the request carries neither, it makes no file that would belong to them.
        let told = |id| {
            if id == UNTOLD && self.is_checked {
                0
            } else {
                id
            }
        };
        Credentials {
            uid: told(self.uid),
            gid: told(self.gid),
            groups,
            caps,
            real: None,
        }
    }

    /// Reads supplementary groups, and capabilities over the daemon's users.
    fn status(self) -> Option<(Box<[u32]>, Caps)> {
        let status = status_file(self.pid)?;
        // With idmapped mounts the request's user is not the thread's.
        let uid = (!self.is_checked).then_some(self.uid);
        let (groups, mut caps) = parse_status(&status, uid)?;
        if !caps.is_empty() && !self.is_of_our_users() {
            // Every user is all-powerful in a user namespace of their own.
            caps = Caps::empty();
        }
        Some((groups, caps))
    }
}

impl Caller {
    /// True if the caller is being killed, and will see no answer: any signal that ends it is
    /// pending as SIGKILL.
    #[doc(alias = "fatal_signal_pending")]
    pub(crate) fn is_being_killed(self) -> bool {
        const KILL: u64 = 1 << (libc::SIGKILL - 1);
        let status = match self.pid {
            0 => return false,
            pid => rcuwalk_procfs::read_to_string(format!("{pid}/status")).unwrap_or_default(),
        };
        let lines = status.lines();
        let mut pending = lines.filter_map(|line| {
            let mask = line
                .strip_prefix("SigPnd:")
                .or(line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        });
        pending.any(|mask| mask & KILL != 0)
    }

    /// True if its capabilities are over the same users as ours; false if that is unknown.
    #[doc(alias("user_namespaces(7)", "capable_wrt_inode_uidgid"))]
    fn is_of_our_users(self) -> bool {
        let theirs = rcuwalk_procfs::read_link(format!("{}/ns/user", self.pid));
        let ours = rcuwalk_procfs::read_link("self/ns/user");
        matches!((theirs, ours), (Ok(theirs), Ok(ours)) if theirs == ours)
    }
}

/// Capabilities by their bits in `CapEff`.
const BITS: [(u32, Caps); 9] = [
    (0, Caps::CHOWN),
    (1, Caps::DAC_OVERRIDE),
    (2, Caps::DAC_READ_SEARCH),
    (3, Caps::FOWNER),
    (4, Caps::FSETID),
    (9, Caps::LINUX_IMMUTABLE),
    (21, Caps::SYS_ADMIN),
    (27, Caps::MKNOD),
    (31, Caps::SETFCAP),
];

/// Parses groups and capabilities of a thread; its file system user must be `uid`, if that is
/// known.
fn parse_status(status: &str, uid: Option<u32>) -> Option<(Box<[u32]>, Caps)> {
    let field = |name: &str| field(status, name);
    if uid.is_some_and(|uid| fsuid(status) != Some(uid)) {
        return None;
    }
    let groups = field("Groups")?.split_whitespace();
    let groups = groups.map(str::parse).collect::<Result<_, _>>().ok()?;
    let held = u64::from_str_radix(field("CapEff")?.trim(), 16).ok()?;
    let caps = BITS.iter().filter(|(bit, _)| held & 1 << bit != 0);
    Some((groups, caps.map(|(_, cap)| *cap).collect()))
}

/// Returns the file system user of a thread, if the thread is visible from here.
pub(crate) fn user_of_thread(pid: u32) -> Option<u32> {
    fsuid(&status_file(pid)?)
}

fn status_file(pid: u32) -> Option<String> {
    match pid {
        0 => None,
        pid => rcuwalk_procfs::read_to_string(format!("{pid}/status")).ok(),
    }
}

fn fsuid(status: &str) -> Option<u32> {
    // Real, effective, saved, file system.
    let fsuid = field(status, "Uid")?.split_whitespace().nth(3)?;
    fsuid.parse().ok()
}

fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tcat\nUmask:\t0022\nUid:\t1000\t1000\t1000\t1001\n\
                          Groups:\t4 24 \nCapEff:\t000000000000000a\n";

    #[test]
    fn groups_and_capabilities_are_those_of_the_thread() {
        let (groups, caps) = parse_status(STATUS, Some(1001)).unwrap();
        assert_eq!(*groups, [4, 24]);
        assert_eq!(caps, Caps::DAC_OVERRIDE | Caps::FOWNER);
    }

    #[test]
    fn another_user_means_another_thread() {
        assert!(parse_status(STATUS, Some(1000)).is_none());
        assert!(parse_status("", Some(0)).is_none());
        assert!(parse_status("", None).is_none());
    }

    #[test]
    fn this_thread_can_be_read() {
        let pid = rustix::thread::gettid().as_raw_nonzero().get();
        let status = rcuwalk_procfs::read_to_string(format!("{pid}/status")).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert!(parse_status(&status, Some(uid)).is_some());
    }

    #[test]
    fn a_checked_caller_may_what_the_kernel_lets_it() {
        let untold = Caller {
            uid: UNTOLD,
            gid: UNTOLD,
            pid: 0,
            keeps_set_ids: None,
            is_checked: true,
            is_guest: false,
        };
        let credentials = untold.credentials();
        assert_eq!((credentials.uid, credentials.caps), (0, Caps::all()));
        let makes = Caller {
            uid: 100_000,
            gid: 100_001,
            ..untold
        };
        let credentials = makes.credentials();
        assert_eq!((credentials.uid, credentials.gid), (100_000, 100_001));
        // A check that the kernel leaves to the file system needs a capability of the thread's
        // own.
        assert!(!untold.has(Caps::SYS_ADMIN) && untold.user() == UNTOLD);
        assert!(!untold.for_set_ids().caps.contains(Caps::FSETID));
        let thread = Caller {
            pid: rustix::thread::gettid().as_raw_nonzero().get() as u32,
            ..makes
        };
        assert_eq!(thread.user(), rustix::process::geteuid().as_raw());
        // A guest's kernel tells users as well, and its threads are not ours.
        let guest = Caller {
            is_checked: false,
            ..thread
        };
        let guest = guest.of_guest();
        assert_eq!((guest.pid, guest.user()), (0, 100_000));
        assert!(!guest.has(Caps::SYS_ADMIN));
        assert!(!guest.for_set_ids().caps.contains(Caps::FSETID));
        assert!(guest.in_full().is_none() && guest.credentials().caps == Caps::all());
        let root = Caller { uid: 0, ..guest };
        assert!(root.has(Caps::SYS_ADMIN));
        assert!(root.for_set_ids().caps.contains(Caps::FSETID));
        // On other connections these numbers are no user's.
        let is_checked = false;
        let nobody = Caller {
            is_checked,
            ..untold
        };
        assert_eq!(nobody.credentials().caps, Caps::empty());
        assert_eq!(nobody.credentials().uid, UNTOLD);
    }
}
