//! Effects of a caller's user, groups and capabilities: set-id bits, file capabilities,
//! attributes.

mod attributes;
mod bits;
mod idmap;
mod set_id;

use std::time::Duration;

use rcuwalk_fuse::Options;
use rcuwalk_testkit::wait_until;
use rustix::fs::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::common::{Mount, can_mount};

/// A user with groups, the first of which is the primary group, and capabilities.
pub(crate) struct User<'a> {
    pub(crate) uid: u32,
    pub(crate) groups: &'a [u32],
    pub(crate) caps: CapabilitySet,
}

/// A user without supplementary groups and capabilities.
pub(crate) const fn user(uid: u32) -> User<'static> {
    User {
        uid,
        groups: &[4711],
        caps: CapabilitySet::empty(),
    }
}

impl User<'_> {
    /// Runs `work` as this user, on a thread of its own.
    pub(crate) fn does<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.become_user();
                work()
            });
            thread.join().unwrap()
        })
    }

    fn become_user(&self) {
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), groups[0]);
        // No more than this process has.
        let caps = self.caps & capabilities(None).unwrap().permitted;
        set_keep_capabilities(true).unwrap();
        set_thread_groups(&groups[1..]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        let sets = CapabilitySets {
            effective: caps,
            permitted: caps,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets).unwrap();
    }
}

/// Runs `test` on mounts that the kernel caches for an hour: with passthrough, with contents by
/// request, with a back end that acts as the caller, and of a tree in memory.
fn on_unshared(test: impl Fn(&Mount)) {
    if !can_mount() {
        return;
    }
    let hour = Duration::from_secs(3600);
    let options = |passthrough| {
        Options::default()
            .entry_timeout(hour)
            .attr_timeout(hour)
            .passthrough(passthrough)
    };
    for mount in [
        Mount::hostfs_with(&options(true)),
        Mount::hostfs_with(&options(false)),
        Mount::hostfs_by_callers(&options(true)),
        Mount::memfs_with(&options(false)),
    ] {
        eprintln!("{}, passes: {}", mount.kind, mount.mounted.passes_through());
        test(&mount);
    }
}

/// Waits until the mount has closed all files: the kernel tells of a close only after close(2).
pub(crate) fn wait_until_closed(mount: &Mount) {
    wait_until("all files are closed", || mount.mounted.open() == 0);
}
