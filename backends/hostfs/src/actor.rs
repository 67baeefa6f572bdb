//! Whose credentials the host sees: those of this process, or the caller's.
//!
//! Linux keeps credentials per thread; the C library's calls that change a whole process
//! do so thread by thread. [`as_caller`] changes those of the calling thread alone, for
//! one question to the host:
//!
//! ```text
//!   read: effective ids, groups, capabilities         <- kept in `Daemon`
//!   setgroups, setresgid, setresuid, capset           <- now the caller
//!        the question
//!   setresuid, capset, setgroups, setresgid           <- the daemon again
//! ```
//!
//! Each of these makes the kernel copy the thread's credentials, for three microseconds or so;
//! reading them costs a tenth of that. So values that are right already are not set: mostly the
//! groups, and the capabilities, which go and come with user id 0.
//!
//! The permitted capabilities stay all along, so the daemon can get its credentials back. They
//! stay because the real or saved user id does: the kernel clears them only when none of the
//! three ids is 0 any more. So the saved ids are set to the former effective ones. A daemon
//! that is not root, and may act as other users all the same, has no such id; after acting as
//! root, the return would clear all capabilities. It keeps them by `PR_SET_KEEPCAPS` meanwhile.
//! A thread that cannot return would do the daemon's work with a stranger's rights, or a
//! stranger's with the daemon's: then the process is aborted.
//!
//! Besides, as with any change of an effective id: the process is not dumped any more
//! (`PR_SET_DUMPABLE`), and a signal that the thread is to get when its parent dies
//! (`PR_SET_PDEATHSIG`) is forgotten. A daemon that is not root loses its ambient
//! capabilities when it has acted as root: programs that the thread starts have none.

use std::fmt;

use rcuwalk::{Caps, Credentials, Error, Result};
use rustix::fs::{Gid, Mode, Uid};
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, get_keep_capabilities, set_capabilities,
    set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::process::host_caps;
use crate::sys;

/// Whose credentials the host sees when it is asked for a change, to open a file, or for
/// an extended attribute.
///
/// See the [crate's documentation](crate#permissions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Actor {
    /// Those of this process.
    #[default]
    Daemon,
    /// The caller's: user, group, further groups, and those of the caller's capabilities that
    /// this process has.
    #[doc(alias("setfsuid(2)", "override_creds"))]
    Caller,
}

/// Why this process cannot act as its callers.
#[derive(Debug)]
pub struct NotPrivileged(());

impl fmt::Display for NotPrivileged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "cannot act with the callers' credentials without CAP_SETUID and CAP_SETGID: \
             run as root, or act as the daemon (`Actor::Daemon`)",
        )
    }
}

impl std::error::Error for NotPrivileged {}

impl From<NotPrivileged> for Error {
    fn from(_: NotPrivileged) -> Error {
        Error::NotPermitted
    }
}

/// Returns whether the calling thread may act as other users.
pub(crate) fn may_switch() -> Result<(), NotPrivileged> {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    match capabilities(None) {
        Ok(held) if held.effective.contains(needed) => Ok(()),
        _ => Err(NotPrivileged(())),
    }
}

/// Does `ask` with the credentials `who` in this thread.
///
/// # Errors
/// [`Error::PermissionDenied`] if the host has no such user or group; the errors of `ask`.
pub(crate) fn as_caller<T>(who: &Credentials, ask: impl FnOnce() -> Result<T>) -> Result<T> {
    let daemon = Daemon::current()?;
    // A panic of `ask` goes by the drop of `daemon` as well.
    daemon.become_caller(who)?;
    ask()
}

/// Does `make` on a thread of its own whose files belong to `uid` and `gid`, with the rights of
/// this process otherwise: quotas and the reserve for root are this process's. Returns the user
/// that they do belong to: where this process may not give files away, itself.
///
/// # Errors
/// If no thread can be started; the errors of `make`.
#[doc(alias("setfsuid(2)", "setfsgid(2)"))]
pub(crate) fn as_owner(
    uid: u32,
    gid: u32,
    make: impl FnOnce() -> Result<()> + Send,
) -> Result<u32> {
    on_own_thread(|| {
        // Without the right to, or in a user namespace that does not know them, the file stays
        // this process's.
        let _ = become_owner(uid, gid);
        make().map(|()| geteuid().as_raw())
    })
}

/// A thread that is to end needs no way back.
fn become_owner(uid: u32, gid: u32) -> rustix::io::Result<()> {
    if uid == u32::MAX || gid == u32::MAX {
        // "As it is", to the kernel.
        return Err(rustix::io::Errno::INVAL);
    }
    let mine = capabilities(None)?;
    // The real id stays, and with it the permitted capabilities.
    set_thread_res_uid(None, Uid::from_raw(uid), None)?;
    set_capabilities(None, mine)?;
    set_thread_res_gid(None, Gid::from_raw(gid), None)
}

/// Does `work` on a thread of its own, to which the umask of this process does not apply.
///
/// # Errors
/// If no thread can be started; the errors of `work`.
pub(crate) fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("rcuwalk-make".to_owned());
        let thread = thread.spawn_scoped(scope, || {
            // A sandbox may refuse it; then the umask applies to the mode.
            if sys::leave_shared_umask().is_ok() {
                rustix::process::umask(Mode::empty());
            }
            work()
        });
        match thread.map_err(Error::io)?.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The thread's own credentials, restored on drop.
struct Daemon {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    caps: CapabilitySets,
    /// Its capabilities have to be kept while it is away, as they usually are not.
    keeps: bool,
}

impl Daemon {
    fn current() -> Result<Daemon> {
        let held = || {
            Ok(Daemon {
                uid: geteuid(),
                gid: getegid(),
                groups: getgroups()?,
                caps: capabilities(None)?,
                keeps: !geteuid().is_root() && !get_keep_capabilities()?,
            })
        };
        held().map_err(crate::host::err)
    }

    fn become_caller(&self, who: &Credentials) -> Result<()> {
        // -1 means "as it is" to the kernel, and must never be that.
        if who.uid == u32::MAX || who.gid == u32::MAX || who.groups.contains(&u32::MAX) {
            return Err(Error::PermissionDenied);
        }
        let groups: Vec<Gid> = who.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let switch = || {
            if self.keeps {
                set_keep_capabilities(true)?;
            }
            set_groups(&groups)?;
            if getegid().as_raw() != who.gid {
                set_thread_res_gid(None, Gid::from_raw(who.gid), self.gid)?;
            }
            if geteuid().as_raw() != who.uid {
                set_thread_res_uid(None, Uid::from_raw(who.uid), self.uid)?;
            }
            self.set_effective(self.effective_for(who))
        };
        switch().map_err(|_| Error::PermissionDenied)
    }

    /// Those of our effective capabilities that the caller has: all only if the caller has all
    /// that the VFS knows.
    fn effective_for(&self, who: &Credentials) -> CapabilitySet {
        if who.caps.contains(Caps::all()) {
            self.caps.effective
        } else {
            self.caps.effective & host_caps(who.caps)
        }
    }

    fn come_back(&self) -> rustix::io::Result<()> {
        // It is the saved one, so this needs no capability; the others may, and get back
        // those that are permitted still.
        if geteuid() != self.uid {
            set_thread_res_uid(None, self.uid, None)?;
        }
        self.set_effective(self.caps.effective)?;
        set_groups(&self.groups)?;
        if getegid() != self.gid {
            set_thread_res_gid(None, self.gid, None)?;
        }
        if self.keeps {
            set_keep_capabilities(false)?;
        }
        Ok(())
    }

    fn set_effective(&self, effective: CapabilitySet) -> rustix::io::Result<()> {
        if capabilities(None)?.effective == effective {
            return Ok(());
        }
        let caps = CapabilitySets {
            effective,
            ..self.caps
        };
        set_capabilities(None, caps)
    }
}

fn set_groups(groups: &[Gid]) -> rustix::io::Result<()> {
    if getgroups()? == groups {
        return Ok(());
    }
    set_thread_groups(groups)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.come_back().is_err() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use rcuwalk_testkit::skip;

    use super::*;

    fn state() -> (u32, u32, Vec<u32>, CapabilitySet) {
        (
            geteuid().as_raw(),
            getegid().as_raw(),
            getgroups().unwrap().iter().map(|g| g.as_raw()).collect(),
            capabilities(None).unwrap().effective,
        )
    }

    fn caller() -> Credentials {
        Credentials {
            groups: [1001, 1002].into(),
            ..Credentials::user(1000, 1003)
        }
    }

    /// EDGE-1: the caller's ids, groups and capabilities while it asks, and only then.
    #[test]
    fn the_thread_is_the_caller_for_one_question() {
        if may_switch().is_err() || !geteuid().is_root() {
            return skip("needs root");
        }
        let before = state();
        let during = as_caller(&caller(), || Ok(state())).unwrap();
        assert_eq!(
            during,
            (1000, 1003, vec![1001, 1002], CapabilitySet::empty()),
            "EDGE-1"
        );
        assert_eq!(state(), before, "EDGE-1: and back");

        let chowner = Credentials {
            caps: Caps::CHOWN,
            ..caller()
        };
        let during = as_caller(&chowner, || Ok(state())).unwrap();
        assert_eq!(during.3, CapabilitySet::CHOWN, "EDGE-1");
        assert_eq!(state(), before, "EDGE-1: and back");
    }

    /// EDGE-1: a panic or an error in between does not leave the thread a stranger.
    #[test]
    fn a_panic_restores() {
        if may_switch().is_err() {
            return skip("needs root");
        }
        let before = state();
        let panicked = std::panic::catch_unwind(|| {
            let _ = as_caller(&caller(), || -> Result<()> { panic!("on purpose") });
        });
        assert!(panicked.is_err());
        assert_eq!(state(), before, "EDGE-1");
        let refused = as_caller(&caller(), || Err::<(), _>(Error::NotFound));
        assert!(matches!(refused, Err(Error::NotFound)));
        assert_eq!(state(), before, "EDGE-1");
    }

    /// EDGE-1: a daemon that is not root, but may act as other users, gets its credentials back
    /// after acting as root. Leaving uid 0 clears the capabilities.
    #[test]
    fn a_daemon_with_capabilities_comes_back_from_root() {
        if may_switch().is_err() || !geteuid().is_root() {
            return skip("needs root");
        }
        let thread = std::thread::spawn(|| {
            let own = (Uid::from_raw(1000), Gid::from_raw(1000));
            set_keep_capabilities(true).unwrap();
            set_thread_res_gid(own.1, own.1, own.1).unwrap();
            set_thread_res_uid(own.0, own.0, own.0).unwrap();
            set_keep_capabilities(false).unwrap();
            // Typical capabilities of a service that does not run as root.
            let held = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN;
            let caps = CapabilitySets {
                effective: held,
                permitted: held,
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, caps).unwrap();
            let before = (state(), capabilities(None).unwrap().permitted);
            for who in [Credentials::root(), Credentials::user(0, 0), caller()] {
                let during = as_caller(&who, || Ok(state())).unwrap();
                assert_eq!((during.0, during.1), (who.uid, who.gid), "EDGE-1");
                let expected = match who.caps.contains(Caps::all()) {
                    true => held,
                    false => CapabilitySet::empty(),
                };
                assert_eq!(during.3, expected, "EDGE-1");
                let after = (state(), capabilities(None).unwrap().permitted);
                assert_eq!(after, before, "EDGE-1: and back");
            }
            assert!(!get_keep_capabilities().unwrap(), "EDGE-1: as it was");
        });
        thread.join().unwrap();
    }

    /// EDGE-1: a file that a separate thread makes belongs to its owner, even where only this
    /// process may make files, whatever the umask; the calling thread keeps its credentials.
    #[test]
    fn a_thread_makes_files_for_another_owner_and_keeps_its_rights() {
        use std::os::unix::fs::{DirBuilderExt, MetadataExt};
        if may_switch().is_err() || !geteuid().is_root() {
            return skip("needs root");
        }
        let before = state();
        // A directory that its owner alone may write to.
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, uid, gid| {
            let path = dir.path().join(name);
            let made = as_owner(uid, gid, || {
                let effective = capabilities(None).unwrap().effective;
                assert_eq!(effective, before.3, "EDGE-1: all rights");
                let mut dir = std::fs::DirBuilder::new();
                dir.mode(0o777).create(&path).map_err(Error::io)
            });
            let meta = path.metadata().unwrap();
            (made.unwrap(), meta.uid(), meta.gid(), meta.mode() & 0o7777)
        };
        assert_eq!(make("user", 1000, 1003), (1000, 1000, 1003, 0o777));
        assert_eq!(make("root", 0, 0), (0, 0, 0, 0o777), "EDGE-1");
        assert_eq!(make("none", u32::MAX, 1), (0, 0, 0, 0o777), "EDGE-1");
        assert_eq!(state(), before, "EDGE-1: the thread that asks");
        let failed = as_owner(1000, 1000, || Err(Error::NotFound));
        assert!(matches!(failed, Err(Error::NotFound)), "EDGE-1");
    }

    /// EDGE-1: ids that mean "as it is" to the kernel are refused.
    #[test]
    fn minus_one_is_nobody() {
        for who in [
            Credentials::user(u32::MAX, 1),
            Credentials::user(1, u32::MAX),
        ] {
            let asked = as_caller(&who, || Ok(()));
            assert!(matches!(asked, Err(Error::PermissionDenied)), "EDGE-1");
        }
    }
}
