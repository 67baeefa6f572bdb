//! The options of a mount.

use std::thread;
use std::time::Duration;

/// Options of a mount.
///
/// ```
/// use std::time::Duration;
/// use rcuwalk_fuse::Options;
///
/// let options = Options::default().read_only(true).entry_timeout(Duration::from_secs(60));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The source that mount(8) shows.
    pub source: String,
    /// The mount is read-only.
    pub read_only: bool,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Set-id bits are honoured; for root.
    pub suid: bool,
    /// Device nodes work; for root.
    pub dev: bool,
    /// Files cannot be executed.
    pub noexec: bool,
    /// Reads do not update access times.
    pub noatime: bool,
    /// How long the kernel's cached names are valid.
    pub entry_timeout: Duration,
    /// How long the kernel's cached attributes are valid.
    pub attr_timeout: Duration,
    /// How long the kernel remembers that a name is missing; not at all if zero.
    pub negative_timeout: Duration,
    /// Threads that answer; 0 for as many as there are processors, two to eight. By io_uring
    /// that is divided among the processors and rounded up, at least one for each (two, if this
    /// is 0); one more answers at the device, and one for processors that are offline. While
    /// requests are stuck, there are more.
    pub threads: usize,
    /// Most nodes that the kernel may hold, beside those that it uses: above that, it is asked
    /// to drop unused ones, and meanwhile there may be a tenth more. At least [`FEWEST_NODES`].
    /// Each holds a name and an inode of the [`Vfs`](rcuwalk::Vfs): give its [`Budget`](rcuwalk::Budget) a
    /// quarter more of both.
    pub max_nodes: usize,
    /// Where the back end has its contents in files of the host, the kernel reads and writes
    /// those without asking. Needs Linux 6.9 and CAP_SYS_ADMIN; without either the kernel sends
    /// requests, as it does for a file on a stacked file system.
    pub passthrough: bool,
    /// The kernel holds written data back, and writes it in larger pieces later: small writes cost
    /// no request each. For a tree that only this mount changes: size and times of a file are the
    /// kernel's as long as it knows the file, whatever becomes of it elsewhere, and written data
    /// is lost with the daemon until fsync(2) or close(2). Contents go by request then, whatever
    /// `passthrough` says.
    #[doc(alias = "FUSE_WRITEBACK_CACHE")]
    pub writeback: bool,
    /// The mount can be idmapped (`mount -o X-mount.idmap`, mount_setattr(2)). Needs Linux
    /// 6.12. The kernel then sends no user with most requests, on other mounts of the tree as
    /// well, so its check of permissions is the only one: not for a back end that acts as the
    /// caller. For [`serve`](fn@crate::serve), `default_permissions` must be among the mount's
    /// options, or the kernel ends the connection.
    #[doc(alias("FUSE_ALLOW_IDMAP", "MOUNT_ATTR_IDMAP"))]
    pub idmap: bool,
    /// Where the back end announces each change ([`FileSystem::announces`](rcuwalk::FileSystem)),
    /// the kernel caches names, missing ones too, and attributes for a minute, unless the timeouts
    /// are longer, and is told of changes as they happen. Needs Linux 6.16.
    #[doc(alias("FUSE_NOTIFY_INVAL_ENTRY", "FUSE_NOTIFY_INVAL_INODE"))]
    pub watch: bool,
    /// Where the kernel offers it, requests come by io_uring, on the caller's processor: with
    /// fewer system calls, and without calls from one processor to another. Linux 6.15 and
    /// later have it if `/sys/module/fuse/parameters/enable_uring` says so; the default is `N`.
    /// Where io_uring itself is not available, requests are read from /dev/fuse.
    pub io_uring: bool,
    /// What the kernel may do with the contents that it has read. With `writeback` it keeps them.
    pub contents: Contents,
}

/// What the kernel may do with contents that it has read, see [`Options::contents`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contents {
    /// Cache them while the file is open, and as long as its size and time are the same.
    #[default]
    Cached,
    /// Cache them beyond the last close, as long as size and time of the file are the same.
    #[doc(alias = "FOPEN_KEEP_CACHE")]
    Kept,
    /// Ask for them each time; then such a file cannot be mapped to be shared.
    #[doc(alias = "FOPEN_DIRECT_IO")]
    Direct,
}

/// The least that [`Options::max_nodes`] may be; less counts as this.
pub const FEWEST_NODES: usize = 64;

impl Default for Options {
    /// A writable mount for its owner only, with caches valid for a second.
    fn default() -> Options {
        Options {
            source: "rcuwalk".to_owned(),
            read_only: false,
            allow_other: false,
            suid: false,
            dev: false,
            noexec: false,
            noatime: false,
            entry_timeout: Duration::from_secs(1),
            attr_timeout: Duration::from_secs(1),
            negative_timeout: Duration::ZERO,
            threads: 0,
            max_nodes: 800_000,
            passthrough: true,
            writeback: false,
            idmap: false,
            watch: true,
            io_uring: true,
            contents: Contents::default(),
        }
    }
}

impl Options {
    /// The number of threads that answer.
    pub(crate) fn handlers(&self) -> usize {
        let processors = || thread::available_parallelism().map_or(1, usize::from);
        match self.threads {
            0 => processors().clamp(2, 8),
            threads => threads,
        }
    }
}

rcuwalk::setters!(Options {
    source: String,
    read_only: bool,
    allow_other: bool,
    suid: bool,
    dev: bool,
    noexec: bool,
    noatime: bool,
    entry_timeout: Duration,
    attr_timeout: Duration,
    negative_timeout: Duration,
    threads: usize,
    max_nodes: usize,
    passthrough: bool,
    writeback: bool,
    idmap: bool,
    watch: bool,
    io_uring: bool,
    contents: Contents,
});
