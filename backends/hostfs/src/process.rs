//! Who this process is, as the VFS understands it.

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
    // Neither call fails for one's own thread; without an answer, assume nothing.
    let groups = rustix::process::getgroups().unwrap_or_default();
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    Credentials {
        uid: uid.as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: groups.iter().map(|group| group.as_raw()).collect(),
        caps: caps(held.unwrap_or(CapabilitySet::empty())),
    }
}

fn caps(held: CapabilitySet) -> Caps {
    let known = [
        (CapabilitySet::DAC_OVERRIDE, Caps::DAC_OVERRIDE),
        (CapabilitySet::DAC_READ_SEARCH, Caps::DAC_READ_SEARCH),
        (CapabilitySet::FOWNER, Caps::FOWNER),
    ];
    let has = known.iter().filter(|(theirs, _)| held.contains(*theirs));
    has.map(|(_, ours)| *ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_told_apart() {
        assert_eq!(caps(CapabilitySet::empty()), Caps::empty());
        assert_eq!(caps(CapabilitySet::all()), Caps::all());
        assert_eq!(caps(CapabilitySet::FOWNER), Caps::FOWNER);
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
