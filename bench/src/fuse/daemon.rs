//! What a contender must be able to do, and ours.

use std::io;
use std::path::Path;
use std::time::Duration;

use rcuwalk::{Budget, Vfs};
use rcuwalk_fuse::{Mounted, Options, mount};
use rcuwalk_hostfs::{HostFs, Watcher};

/// A daemon that shows a directory of the host.
pub trait Daemon: Sync {
    /// Its name in the report.
    fn name(&self) -> &'static str;

    /// Mounts it. Dropped, the result is unmounted, and no thread answers any more.
    ///
    /// # Errors
    /// What the kernel says.
    fn mount(&self, how: &Mounting<'_>) -> io::Result<Box<dyn Served>>;
}

/// The daemon to mount, and its settings.
#[derive(Clone, Copy, Debug)]
pub struct Mounting<'a> {
    /// The directory that is shown.
    pub backing: &'a Path,
    /// Where.
    pub mount_point: &'a Path,
    /// How many threads answer.
    pub threads: usize,
    /// How long the kernel caches names and attributes.
    pub timeout: Duration,
}

/// A daemon that is mounted.
pub trait Served: Send {
    /// True if the kernel reads and writes contents without asking it.
    fn passes_through(&self) -> bool {
        false
    }

    /// True if requests come to it by io_uring.
    fn is_by_io_uring(&self) -> bool {
        false
    }
}

/// `rcuwalk mount` of a directory with all its features, and without some of those that the
/// plain daemon does not have.
pub(super) struct Ours {
    name: &'static str,
    /// The kernel is told of changes on the host, and caches names and attributes for a minute.
    watch: bool,
    passthrough: bool,
    pub(super) io_uring: bool,
}

impl Ours {
    pub(super) const ALL: [Ours; 3] = [
        Ours {
            name: "rcuwalk",
            watch: true,
            passthrough: true,
            io_uring: true,
        },
        Ours {
            name: "rcuwalk, noio_uring",
            watch: true,
            passthrough: true,
            io_uring: false,
        },
        Ours {
            name: "rcuwalk, bare",
            watch: false,
            passthrough: false,
            io_uring: false,
        },
    ];
}

impl Daemon for Ours {
    fn name(&self) -> &'static str {
        self.name
    }

    fn mount(&self, how: &Mounting<'_>) -> io::Result<Box<dyn Served>> {
        let open = || HostFs::new(how.backing).map_err(io::Error::other);
        let watched = self.watch.then(|| {
            open()?
                .watched_by(Watcher::Fanotify)
                .map_err(io::Error::other)
        });
        let host = match watched {
            // As the command does: a watch that does not say everything is none.
            Some(Ok(host)) if host.announces_changes() => host,
            _ => open()?,
        };
        let vfs = Vfs::with_budget(host, Budget::default()).map_err(io::Error::other)?;
        let options = Options::default()
            .entry_timeout(how.timeout)
            .attr_timeout(how.timeout)
            .threads(how.threads)
            .watch(self.watch)
            .passthrough(self.passthrough)
            .io_uring(self.io_uring);
        let mounted = mount(vfs, how.mount_point, &options).map_err(io::Error::other)?;
        Ok(Box::new(OursServed(mounted)))
    }
}

struct OursServed(Mounted);

impl Served for OursServed {
    fn passes_through(&self) -> bool {
        self.0.passes_through()
    }

    fn is_by_io_uring(&self) -> bool {
        self.0.is_by_io_uring()
    }
}
