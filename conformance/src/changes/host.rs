//! The kernel's side: operations made in a directory of the host.
//!
//! [`Host`] belongs to the thread that made it. The thread leaves the process's
//! `fs_struct`, enters a new directory for each sequence by chroot, and changes its
//! users as it goes: its ids with each, but of its capabilities only the effective
//! ones, so that it can always go back. SECBIT_NO_SETUID_FIXUP keeps the kernel from
//! adjusting capabilities to ids on its own, in setresuid(2) and in access(2).

mod calls;
mod raw;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets, UnshareFlags};

use crate::changes::answer::Outcome;
use crate::changes::known;
use crate::changes::op::{Op, SLOTS};
use crate::changes::side::Side;
use crate::changes::users::User;

/// The umask that a sequence starts with.
const UMASK: Mode = Mode::from_raw_mode(0o022);

/// A thread that makes operations in the kernel.
pub struct Host {
    /// Where the sequences' directories are.
    top: OwnedFd,
    clock: Clock,
    /// The way back from a chroot.
    real_root: OwnedFd,
    all: CapabilitySet,
    user: User,
    /// The machine protects hard links, and the comparison includes that.
    protected_hardlinks: bool,
    slots: [Option<OwnedFd>; SLOTS + 1],
    /// The user that opened the file in each slot.
    openers: [User; SLOTS + 1],
    /// For data that is read, names of attributes, entries of directories.
    buffer: Vec<u8>,
}

impl Host {
    /// Takes this thread for it; sequences run below the directory `top`. The thread
    /// must not do anything else afterwards that depends on its root and ids.
    ///
    /// # Errors
    /// What the kernel refuses: it takes root.
    pub fn new(top: &Path) -> io::Result<Host> {
        // SAFETY: CLONE_FS gives this thread its own root, current directory and umask
        // and touches no memory; the caller gives the thread away for it.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS)? };
        rustix::thread::set_capabilities_secure_bits(
            rustix::thread::capabilities_secure_bits()? | CapabilitiesSecureBits::NO_SETUID_FIXUP,
        )?;
        let dir = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        Ok(Host {
            clock: Clock::new(top)?,
            top: rustix::fs::openat(CWD, top, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?,
            real_root: rustix::fs::openat(CWD, "/", dir, Mode::empty())?,
            all: rustix::thread::capabilities(None)?.permitted,
            user: User::Root,
            protected_hardlinks: false,
            slots: Default::default(),
            openers: [User::Root; SLOTS + 1],
            buffer: vec![0; 128 << 10],
        })
    }

    /// With link(2) as the sysctl `protected_hardlinks` has it, which is left out otherwise.
    #[must_use]
    pub fn with_protected_hardlinks(self, protected_hardlinks: bool) -> Host {
        Host {
            protected_hardlinks,
            ..self
        }
    }

    /// Runs `work` with the new, empty directory `name` as root, and removes it.
    ///
    /// # Errors
    /// What the kernel refuses: not what an operation comes to.
    pub fn in_new_dir<T>(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Host) -> T,
    ) -> io::Result<T> {
        rustix::process::umask(Mode::empty());
        rustix::fs::mkdirat(&self.top, name, Mode::from_raw_mode(0o755))?;
        let dir = rustix::fs::openat(
            &self.top,
            name,
            OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        rustix::process::fchdir(&dir)?;
        rustix::process::chroot(".")?;
        rustix::process::umask(UMASK);
        let outcome = work(self);
        self.slots = Default::default();
        self.become_user(User::Root)?;
        rustix::process::fchdir(&self.real_root)?;
        rustix::process::chroot(".")?;
        rustix::process::umask(UMASK);
        remove(self.top.as_fd(), name, dir.as_fd())?;
        Ok(outcome)
    }

    /// Takes on another user's ids and capabilities.
    fn become_user(&mut self, user: User) -> io::Result<()> {
        if user == self.user {
            return Ok(());
        }
        self.change_to(user)?;
        self.user = user;
        Ok(())
    }

    fn change_to(&self, user: User) -> io::Result<()> {
        self.make_effective(self.all)?;
        let groups: Vec<Gid> = user
            .groups()
            .iter()
            .map(|&gid| Gid::from_raw(gid))
            .collect();
        rustix::thread::set_thread_groups(&groups)?;
        let (uid, gid) = (Uid::from_raw(user.uid()), Gid::from_raw(user.gid()));
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        self.make_effective(user.caps(self.all))
    }

    fn make_effective(&self, effective: CapabilitySet) -> io::Result<()> {
        let sets = CapabilitySets {
            effective,
            permitted: self.all,
            inheritable: CapabilitySet::empty(),
        };
        Ok(rustix::thread::set_capabilities(None, sets)?)
    }
}

/// Makes the kernel's coarse clock tick.
///
/// Files get the time of the last tick, up to 10 ms ago. The exception is a file that changes
/// after its times were queried: it gets the time to the nanosecond, and so do files that
/// change after it (multigrain timestamps, since Linux 6.13). So a program with one file at
/// hand can make sure that a change is visible in the times.
pub struct Clock(OwnedFd);

impl Clock {
    /// With a nameless file in `dir`, on any file system that has such timestamps.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(dir: &Path) -> io::Result<Clock> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(Clock(rustix::fs::openat(CWD, dir, flags, Mode::RUSR)?))
    }

    /// What changes from now on has later times than what has changed until now.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn tick(&self) -> io::Result<()> {
        // The first time may only catch up with a time that another process got to the
        // nanosecond; the second goes beyond it.
        for _ in 0..2 {
            rustix::fs::fstat(&self.0)?;
            rustix::io::pwrite(&self.0, b" ", 0)?;
        }
        Ok(())
    }
}

impl Side for Host {
    fn run(&mut self, user: User, op: &Op) -> Outcome {
        let user = match known::is_done_by_opener(op) {
            Some(slot) => self.openers[slot],
            None => user,
        };
        self.become_user(user)
            .and_then(|()| self.clock.tick())
            .unwrap_or_else(|err| panic!("cannot become {user:?}: {err}"));
        self.call(op)
            .unwrap_or_else(|errno| Outcome::Errno(errno.raw_os_error()))
    }
}

/// Removes the directory `path` and everything in it, also what is immutable.
///
/// # Errors
/// What the kernel says.
pub fn remove_all(path: &Path) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    remove(CWD, path, dir.as_fd())
}

/// Removes the directory `dir`, which is at `path`.
fn remove(from: BorrowedFd<'_>, path: impl Arg + Copy, dir: BorrowedFd<'_>) -> io::Result<()> {
    raw::file_setattr(dir, c"", AtFlags::EMPTY_PATH, 0)?;
    let names: Vec<CString> = rustix::fs::Dir::read_from(dir)?
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_owned())
        .filter(|name| !matches!(name.to_bytes(), b"." | b".."))
        .collect();
    for name in &names {
        let name = name.as_c_str();
        let unlinked = match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Err(Errno::PERM) => {
                raw::file_setattr(dir, name, AtFlags::SYMLINK_NOFOLLOW, 0)?;
                rustix::fs::unlinkat(dir, name, AtFlags::empty())
            }
            unlinked => unlinked,
        };
        match unlinked {
            Err(Errno::ISDIR) => {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below = rustix::fs::openat(dir, name, flags, Mode::empty())?;
                remove(dir, name, below.as_fd())?;
            }
            unlinked => unlinked?,
        }
    }
    Ok(rustix::fs::unlinkat(from, path, AtFlags::REMOVEDIR)?)
}
