//! Trees that are mounted for a test, and unmounted however the test ends.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses its own part"
)]

pub(crate) mod counted;
pub(crate) mod numbers;
pub(crate) mod slow;

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use rcuwalk::{Freshness, Vfs};
use rcuwalk_fuse::{Mounted, Options, mount};
use rcuwalk_hostfs::{Actor, HostFs, Watcher};
use rcuwalk_memfs::MemFs;
pub(crate) use rcuwalk_testkit::{setting, skip};

/// A mounted tree.
pub(crate) struct Mount {
    // Declared first, so that it is unmounted before its directory is removed.
    pub(crate) mounted: Mounted,
    at: tempfile::TempDir,
    /// The directory that a host mount shows.
    pub(crate) backing: Option<tempfile::TempDir>,
    pub(crate) kind: &'static str,
}

impl Mount {
    pub(crate) fn path(&self) -> &Path {
        self.at.path()
    }

    pub(crate) fn memfs() -> Mount {
        Mount::memfs_with(&Options::default())
    }

    pub(crate) fn hostfs() -> Mount {
        Mount::hostfs_with(&Options::default())
    }

    pub(crate) fn memfs_with(options: &Options) -> Mount {
        Mount::with(Vfs::new(MemFs::new()).unwrap(), None, "memfs", options)
    }

    pub(crate) fn hostfs_with(options: &Options) -> Mount {
        let backing = open_to_all();
        let vfs = Vfs::new(HostFs::new(backing.path()).unwrap()).unwrap();
        Mount::with(vfs, Some(backing), "hostfs", options)
    }

    /// A host mount whose back end acts as its callers.
    pub(crate) fn hostfs_by_callers(options: &Options) -> Mount {
        let backing = open_to_all();
        let host = HostFs::new(backing.path()).unwrap();
        let vfs = Vfs::new(host.acting_as(Actor::Caller).unwrap()).unwrap();
        Mount::with(vfs, Some(backing), "hostfs", options)
    }

    /// A host mount whose back end assumes that no other process changes the directory.
    pub(crate) fn hostfs_unshared(options: &Options) -> Mount {
        let backing = open_to_all();
        let host = HostFs::new(backing.path()).unwrap();
        let vfs = Vfs::new(host.with_freshness(Freshness::Always)).unwrap();
        Mount::with(vfs, Some(backing), "hostfs", options)
    }

    /// A host mount whose back end announces changes; `None` if the host or the kernel cannot.
    pub(crate) fn watched(options: &Options) -> Option<Mount> {
        Mount::watched_at(open_to_all(), options)
    }

    /// The same, of this directory.
    pub(crate) fn watched_at(backing: tempfile::TempDir, options: &Options) -> Option<Mount> {
        if !can_mount() {
            return None;
        }
        let host = HostFs::new(backing.path()).unwrap();
        let Ok(host) = host.watched_by(Watcher::Fanotify) else {
            skip("needs root (fanotify)");
            return None;
        };
        let vfs = Vfs::new(host).unwrap();
        let mount = Mount::with(vfs, Some(backing), "hostfs", options);
        if !mount.mounted.is_told_of_changes() {
            skip("needs Linux 6.16 (FUSE_NOTIFY_INC_EPOCH), and ext4, xfs or tmpfs");
            return None;
        }
        Some(mount)
    }

    /// A host mount of a directory that the caller removes.
    pub(crate) fn host_dir(dir: &Path, options: &Options) -> Mount {
        let vfs = Vfs::new(HostFs::new(dir).unwrap()).unwrap();
        Mount::with(vfs, None, "hostfs", options)
    }

    pub(crate) fn with(
        vfs: Vfs,
        backing: Option<tempfile::TempDir>,
        kind: &'static str,
        options: &Options,
    ) -> Mount {
        let at = tempfile::tempdir().unwrap();
        let options = options.clone().allow_other(true).suid(true);
        let mounted = mount(vfs, at.path(), &options).unwrap();
        if is_by_io_uring() {
            assert_eq!(mounted.is_by_io_uring(), options.io_uring);
        }
        Mount {
            mounted,
            at,
            backing,
            kind,
        }
    }
}

/// Ends a test that does not end, and its mount: calls that wait for that get an error.
pub(crate) struct Watchdog {
    _stop: Sender<()>,
}

impl Watchdog {
    pub(crate) fn over(mount: &Mount, limit: Duration) -> Watchdog {
        let at = mount.path().to_owned();
        let (stop, stopped) = mpsc::channel();
        thread::spawn(move || {
            if stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("not done after {limit:?}: {}", at.display());
                let _ = rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH);
                // The process's end of /dev/fuse closes with it, which ends all requests.
                std::process::abort();
            }
        });
        Watchdog { _stop: stop }
    }
}

/// True with `RCUWALK_TRANSPORT=io_uring`: the mounts of these tests are served by io_uring,
/// which the kernel must offer then.
pub(crate) fn is_by_io_uring() -> bool {
    std::env::var_os("RCUWALK_TRANSPORT").is_some_and(|transport| transport == "io_uring")
}

fn open_to_all() -> tempfile::TempDir {
    let backing = tempfile::tempdir().unwrap();
    // Like a root user's directory usually: other users may walk through it.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(backing.path(), mode).unwrap();
    backing
}

/// Runs `test` on a mount of each back end, or reports why not.
pub(crate) fn on_each(test: impl Fn(&Mount)) {
    if !can_mount() {
        return;
    }
    for make in [Mount::memfs, Mount::hostfs] {
        let mount = make();
        eprintln!("on {}", mount.kind);
        test(&mount);
    }
}

/// True if this process can mount.
pub(crate) fn can_mount() -> bool {
    !rcuwalk_testkit::lacks_fuse()
}
