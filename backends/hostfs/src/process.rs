//! This process's credentials, as the VFS understands them.

use rcuwalk::{Caps, Credentials};
use rustix::thread::CapabilitySet;

/// The credentials of the calling thread: effective user and group, further groups,
/// and those of its effective capabilities that the VFS knows.
///
/// A context with these sees of a [`HostFs`](crate::HostFs) what the process itself
/// would see of the directory, ACLs and security labels aside.
///
/// ```
/// use rcuwalk::{LookupFlags, Vfs};
/// use rcuwalk_hostfs::{HostFs, process_credentials};
///
/// let vfs = Vfs::new(HostFs::new("/")?)?;
/// let ctx = vfs.context(process_credentials());
/// assert!(vfs.stat(&ctx, "/etc/passwd", LookupFlags::FOLLOW).is_ok());
/// # Ok::<(), rcuwalk::Error>(())
/// ```
#[doc(alias("current_cred", "getgroups(2)", "capget(2)"))]
pub fn process_credentials() -> Credentials {
    let uid = rustix::process::geteuid();
    let gid = rustix::process::getegid();
    let real = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    // Neither call fails for one's own thread; without an answer, assume nothing.
    let groups = rustix::process::getgroups().unwrap_or_default();
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    Credentials {
        uid: uid.as_raw(),
        gid: gid.as_raw(),
        groups: groups.iter().map(|group| group.as_raw()).collect(),
        caps: caps(held.unwrap_or(CapabilitySet::empty())),
        real: (real != (uid.as_raw(), gid.as_raw())).then_some(real),
    }
}

/// The capabilities that the VFS asks for, under both names.
const KNOWN: [(CapabilitySet, Caps); 9] = [
    (CapabilitySet::DAC_OVERRIDE, Caps::DAC_OVERRIDE),
    (CapabilitySet::DAC_READ_SEARCH, Caps::DAC_READ_SEARCH),
    (CapabilitySet::FOWNER, Caps::FOWNER),
    (CapabilitySet::CHOWN, Caps::CHOWN),
    (CapabilitySet::FSETID, Caps::FSETID),
    (CapabilitySet::MKNOD, Caps::MKNOD),
    (CapabilitySet::LINUX_IMMUTABLE, Caps::LINUX_IMMUTABLE),
    (CapabilitySet::SYS_ADMIN, Caps::SYS_ADMIN),
    (CapabilitySet::SETFCAP, Caps::SETFCAP),
];

fn caps(held: CapabilitySet) -> Caps {
    let has = KNOWN.iter().filter(|(theirs, _)| held.contains(*theirs));
    has.map(|(_, ours)| *ours).collect()
}

/// The host's names of these.
pub(crate) fn host_caps(caps: Caps) -> CapabilitySet {
    let has = KNOWN.iter().filter(|(_, ours)| caps.contains(*ours));
    has.map(|(theirs, _)| *theirs)
        .fold(CapabilitySet::empty(), |all, one| all | one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_told_apart() {
        assert_eq!(caps(CapabilitySet::empty()), Caps::empty());
        assert_eq!(caps(CapabilitySet::all()), Caps::all());
        assert_eq!(caps(CapabilitySet::FOWNER), Caps::FOWNER);
        assert_eq!(caps(host_caps(Caps::all())), Caps::all());
        assert_eq!(host_caps(Caps::MKNOD), CapabilitySet::MKNOD);
    }

    #[test]
    fn the_user_is_the_one_whose_files_this_process_makes() {
        use std::os::unix::fs::MetadataExt;
        let made = tempfile::NamedTempFile::new().unwrap();
        let meta = made.as_file().metadata().unwrap();
        let who = process_credentials();
        assert_eq!(who.uid, meta.uid());
    }
}
