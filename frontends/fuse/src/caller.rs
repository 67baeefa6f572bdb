//! Who asks: credentials from a request.
//!
//! A request tells the user, the group and the thread; further groups and capabilities it
//! does not tell. They are read from `TID/status` of the procfs that is held (`procfs.rs`), which costs two system calls and
//! more, so only where they matter: after a refusal, and where a group decides what a
//! change does. The caller waits for the answer meanwhile, so the thread is still there,
//! unless it is killed; the file system user in that file must be the request's. Capabilities
//! in another user namespace are none here.

use rcuwalk::{Caps, Credentials};

use crate::procfs;

/// Who sends a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The thread, 0 if it is not seen from here.
    pub(crate) pid: u32,
    /// Whether it has CAP_FSETID, where the request tells.
    pub(crate) keeps_set_ids: Option<bool>,
}

impl Caller {
    /// As far as the request tells. User 0 counts as privileged: what its process may not
    /// do for want of capabilities the kernel has refused before (`default_permissions`),
    /// unless it leaves that to the file system.
    pub(crate) fn credentials(self) -> Credentials {
        let caps = match self.uid {
            0 => Caps::all(),
            _ => Caps::empty(),
        };
        self.with(Box::default(), caps)
    }

    /// With its further groups and capabilities, if there are any and they can be seen.
    pub(crate) fn in_full(self) -> Option<Credentials> {
        if self.uid == 0 {
            return None;
        }
        let (groups, caps) = self.status()?;
        (!groups.is_empty() || !caps.is_empty()).then(|| self.with(groups, caps))
    }

    /// For a decision about set-id bits, which groups and CAP_FSETID take part in: user 0 has
    /// that only if its thread has.
    #[doc(alias("CAP_FSETID", "in_group_or_capable"))]
    pub(crate) fn for_set_ids(self) -> Credentials {
        match self.status() {
            None => self.credentials(),
            Some((groups, caps)) if self.uid == 0 => {
                let others = Caps::all() - Caps::FSETID;
                self.with(groups, others | caps)
            }
            Some((groups, caps)) => self.with(groups, caps),
        }
    }

    /// Whether it has CAP_SYS_ADMIN. Of user 0 that is assumed where its thread is not seen.
    pub(crate) fn is_admin(self) -> bool {
        match self.status() {
            None => self.uid == 0,
            Some((_, caps)) => caps.contains(Caps::SYS_ADMIN),
        }
    }

    /// The same caller, of whom the request tells whether it has CAP_FSETID.
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
        Credentials {
            uid: self.uid,
            gid: self.gid,
            groups,
            caps,
            real: None,
        }
    }

    /// Further groups, and capabilities over the daemon's users.
    fn status(self) -> Option<(Box<[u32]>, Caps)> {
        if self.pid == 0 {
            return None;
        }
        let status = procfs::read_to_string(format!("{}/status", self.pid)).ok()?;
        let (groups, mut caps) = parse_status(&status, self.uid)?;
        if !caps.is_empty() && !self.is_of_our_users() {
            // Anybody is all-powerful in a user namespace of his own.
            caps = Caps::empty();
        }
        Some((groups, caps))
    }
}

impl Caller {
    /// Whether it is on its way out, and sees no answer any more: a signal that ends it is
    /// pending as SIGKILL, whichever it was.
    #[doc(alias = "fatal_signal_pending")]
    pub(crate) fn is_being_killed(self) -> bool {
        const KILL: u64 = 1 << (libc::SIGKILL - 1);
        let status = match self.pid {
            0 => return false,
            pid => procfs::read_to_string(format!("{pid}/status")).unwrap_or_default(),
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

    /// Whether its capabilities are over the same users as ours. If that cannot be told, no.
    #[doc(alias("user_namespaces(7)", "capable_wrt_inode_uidgid"))]
    fn is_of_our_users(self) -> bool {
        let theirs = procfs::read_link(format!("{}/ns/user", self.pid));
        let ours = procfs::read_link("self/ns/user");
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

/// Groups and capabilities of a thread that acts as `uid`.
fn parse_status(status: &str, uid: u32) -> Option<(Box<[u32]>, Caps)> {
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    // Real, effective, saved, file system.
    let fsuid = field("Uid")?.split_whitespace().nth(3)?;
    if fsuid.parse() != Ok(uid) {
        return None;
    }
    let groups = field("Groups")?.split_whitespace();
    let groups = groups.map(str::parse).collect::<Result<_, _>>().ok()?;
    let held = u64::from_str_radix(field("CapEff")?.trim(), 16).ok()?;
    let caps = BITS.iter().filter(|(bit, _)| held & 1 << bit != 0);
    Some((groups, caps.map(|(_, cap)| *cap).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tcat\nUmask:\t0022\nUid:\t1000\t1000\t1000\t1001\n\
                          Groups:\t4 24 \nCapEff:\t000000000000000a\n";

    #[test]
    fn groups_and_capabilities_are_those_of_the_thread() {
        let (groups, caps) = parse_status(STATUS, 1001).unwrap();
        assert_eq!(*groups, [4, 24]);
        assert_eq!(caps, Caps::DAC_OVERRIDE | Caps::FOWNER);
    }

    #[test]
    fn another_user_means_another_thread() {
        assert!(parse_status(STATUS, 1000).is_none());
        assert!(parse_status("", 0).is_none());
    }

    #[test]
    fn this_thread_can_be_read() {
        let pid = rustix::thread::gettid().as_raw_nonzero().get();
        let status = procfs::read_to_string(format!("{pid}/status")).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert!(parse_status(&status, uid).is_some());
    }
}
