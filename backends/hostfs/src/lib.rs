//! A directory of the host as a file system for [`rcuwalk`].
//!
//! ```no_run
//! use rcuwalk::{Credentials, LookupFlags, Vfs};
//! use rcuwalk_hostfs::HostFs;
//!
//! let vfs = Vfs::new(HostFs::new("/srv/export")?)?;
//! let ctx = vfs.context(Credentials::user(1000, 1000));
//! let attr = vfs.stat(&ctx, "/etc/motd", LookupFlags::FOLLOW)?;
//! println!("{} bytes in /srv/export/etc/motd", attr.size);
//! vfs.rename(&ctx, "/home/me/draft", "/home/me/letter")?;
//! # Ok::<(), rcuwalk::Error>(())
//! ```
//!
//! | read          | to learn                                                     |
//! |---------------|--------------------------------------------------------------|
//! | `lib.rs`      | what a mount promises: root, freshness, permissions          |
//! | `lookup.rs`   | the [`FileSystem`](rcuwalk::FileSystem): names to inodes     |
//! | `identity.rs` | inode keys, and telling apart two files of one inode number  |
//! | `host.rs`     | the system calls, and why they cannot leave the root         |
//! | `pin.rs`      | from what the VFS means to a descriptor of it                |
//! | `dirs.rs`     | directories without a descriptor, and how they get one again |
//! | `create.rs`   | making files: whose they are, and that they are ours         |
//! | `change.rs`   | linking, removing, renaming, and what may happen in between  |
//! | `file.rs`     | open files                                                   |
//! | `handles.rs`  | files found again by number, for file handles                |
//! | `opened.rs`   | all of them, for when no name leads to one                   |
//! | `setattr.rs`, `xattr.rs` | attributes, extended ones and ACLs                |
//! | `actor.rs`    | whose credentials the host sees                              |
//! | `listing.rs`  | directory listings and their positions                       |
//! | `own.rs`      | the tree's own mount, where the tree shows it                |
//! | `process.rs`  | the credentials of this process                              |
//! | `sys.rs`      | the system calls that rustix has not: all unsafe code        |
//! | `watch.rs`    | changes on the host, heard of as they happen                 |
//! | `scan.rs`     | [`HostScan`]: the whole tree once, past all caches           |
//!
//! The rule that holds it together: **the host is only ever asked about one name in
//! one directory.** Links, `..`, and absolute paths are the VFS's to walk, so a link
//! to `/etc/passwd` means the `/etc/passwd` below the mounted root (WALK-3).
//!
//! # Descriptors
//!
//! Directories hold `O_PATH` descriptors, counted against the VFS's budget: those that were
//! used last, as many as the budget has room for, however many are cached or in use (MEM-1).
//! The others are opened again when they are needed, and compared with what they were:
//!
//! | how                            | when                                             |
//! |--------------------------------|--------------------------------------------------|
//! | by file handle, one call       | with CAP_DAC_READ_SEARCH in the first user namespace, on a file system that has handles (not FUSE); tried once per mount of the host |
//! | by name, from the next directory above that has a descriptor | else. Needs search permission on the directories between |
//!
//! Two things differ for a directory that is in use while it has no descriptor. One that
//! others remove on the host is [`Stale`](rcuwalk::Error::Stale), where it would be empty. So
//! is one that others move, if it has to be found by name: until it is looked up at its new
//! place. Who opens its place (`PATH`) holds it. [`HostFs::descriptors`] counts.
//!
//! Files, links and devices hold none. When the process or the host runs out, directories
//! give theirs back, then the VFS what it does not use
//! ([`SuperBlock::shrink`](rcuwalk::SuperBlock::shrink)); only if that does not help is the
//! error [`TooManyOpenFiles`](rcuwalk::Error::TooManyOpenFiles). Beside the budget there are
//! the root's descriptor, and of directories those in use by a call, open as a place, or
//! removed while somebody is in them.
//!
//! A file that was made without a name keeps one as well, counted like a directory's:
//! nothing else leads to it. An open file has its own, which is the caller's affair; so
//! does one of which only the place is open (`PATH`). By these a file is
//! reached that has lost its name, by calls that have its place and nothing else.
//!
//! # Changes
//!
//! A file is opened again by directory and name, and what was opened is compared
//! with what had been looked up: another file gives [`Stale`](rcuwalk::Error::Stale), which
//! the VFS answers by looking the name up once more. Attributes are changed in the same
//! way: the file is held by a descriptor, compared, and what is held is changed. So what
//! others do on the host at the same time leads to `Stale` or to the errno that it leads to
//! on the host, never to another file.
//!
//! **One window stays.** A name can only be removed or moved by name. Who puts another file
//! in its place between our last look and the call has that one removed or moved, as with
//! any program on the host; a name that the VFS has found free is not replaced even then,
//! where the host knows `RENAME_NOREPLACE`.
//!
//! What a change does to attributes (of the file, and of directories) is asked of the host
//! afterwards, by one statx(2) each, and published.
//!
//! | what                    | how it goes with the host                                |
//! |-------------------------|----------------------------------------------------------|
//! | rename flags            | renameat2(2) knows them or says `EINVAL`                 |
//! | times                   | the host's clock; reading sets access times there, as the host's mount says |
//! | immutable, append-only  | seen by statx(2), set by ioctl(2), of files and directories |
//! | extended attributes, the mode of what is not open | by `/proc/thread-self/fd`: without /proc they are `EOPNOTSUPP` |
//! | a truncation by path to the size that a file has | is not passed on     |
//! | the host is mounted read-only | each change says `EROFS`                           |
//!
//! # Freshness
//!
//! Others change the host's directory too. How soon that shows is set per mount:
//!
//! | [`Freshness`]       | a cached name or attribute is believed       | for                    |
//! |---------------------|----------------------------------------------|------------------------|
//! | `Always`            | until it leaves the cache                    | images, `/nix/store`   |
//! | `Ttl(d)` (1 s)      | for `d` after the host last confirmed it     | most things            |
//! | `EachUse`           | never: each use costs a statx(2)             | shared working trees   |
//! | `Watched`           | until the host reports a change; see [below](#watching) | trees on local disks |
//!
//! What none of them promises: a file whose name goes on being believed may have been
//! removed, so opening it can give `Stale`; two names of one file may be confirmed at
//! different times; several names are never confirmed as one moment. When threads
//! bring one inode's attributes up to date at the same time, the slower one may leave
//! the slightly older answer, until the next use asks again. Contents are not cached
//! here at all: reads always go to the host.
//!
//! A directory that is *moved out* of the root on the host stays reachable until its
//! name is looked at again, and for as long as somebody is in it: its descriptor (or file
//! handle) goes with it, as a bind mount's would. `..` does not: that is walked in the VFS.
//!
//! # Watching
//!
//! [`HostFs::watched`] has the host report changes, by fanotify(7) where this process may,
//! else by inotify(7). A report costs each cached name of that directory a statx(2) at its
//! next use; as long as nothing changes, nothing is asked. What changes shows after a
//! millisecond or two.
//!
//! | what                                      | with fanotify              | with inotify |
//! |-------------------------------------------|----------------------------|--------------|
//! | needs                                     | CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH | /proc, and read permission on directories |
//! | watches                                   | the whole file system      | each cached directory |
//! | wakes for changes outside of the root     | yes: a look into a map each. Where a handle does not say which number a file has (all but ext4, xfs and tmpfs), each whose number of names changes is opened (O_PATH) | no |
//! | limited by                                | `fs.fanotify.max_user_groups` | `fs.inotify.max_user_watches`, `…_instances` |
//! | a directory that cannot be watched        | as `EachUse`               | as `EachUse` |
//! | mounts of the host below the root         | watched as well            | watched as well |
//! | a cached file's second name in a directory that is not cached | heard of, on the root's mount | not heard of until a name of the file is next asked for |
//! | a cached file's second name that is removed within the millisecond or two | heard of, on the root's mount | everything is asked for again, ten times a second at most |
//! | what is written by a descriptor whose name is gone | heard of, on the root's mount, if that is ext4, xfs or tmpfs | not heard of until a name of the file is next asked for |
//! | more changes than the queue holds (16,384)| everything is asked for again | everything is asked for again |
//!
//! If the host stops reporting (reading its reports fails), everything is as with `EachUse`
//! from then on; [`HostFs::watch_health`] tells.
//!
//! Files with several names are as with `EachUse`, for any of the names may be used to
//! change them. Changes made through this mount are reported like others', and cost the
//! names in that directory one statx(2) more. **Not reported, so not seen** until the name
//! is asked for for another reason: what other hosts do on a network file system, changes
//! in the layers below an overlay, writing by way of a memory mapping, access times, and
//! blocks that the host allocates later.
//!
//! # Mounts of the host
//!
//! A mount below the root is walked into, as on the host; its files have keys of
//! their own, since the mount is part of the key. Automounts are not triggered.
//! A cached directory keeps its host mount busy until it leaves the cache: one descriptor
//! for each of these mounts.
//!
//! # Permissions
//!
//! The caller's credentials are checked by the VFS against owner, group, mode and ACL as the
//! host last told them. ACLs are asked for when they matter, and again after the file's
//! ctime has changed. Security labels are not seen by that check.
//!
//! Whose credentials the host sees is a setting, [`HostFs::acting_as`]. Names are looked up
//! and directories listed with those of this process in either case, for the cache is
//! everybody's: give it read and search permission on what it is to show.
//!
//! | changes, opens, extended attributes | [`Actor::Daemon`] (as is usual) | [`Actor::Caller`]        |
//! |--------------------------|--------------------------------------------|--------------------------|
//! | the host sees            | this process                               | the caller's user, groups and, of this process's capabilities, those the caller has |
//! | what the VFS allows on old information | is done                      | is refused by the host if it now says otherwise |
//! | security modules, quotas, root's reserve | are this process's         | are the caller's; for writing, those of who opened the file |
//! | a new file               | is given to the caller, if this process may; else it stays the process's, without set-id bits, and is shown so | is the caller's |
//! | needs                    | to be root, to serve more than one user    | CAP_SETUID and CAP_SETGID in each thread |
//! | costs                    | two calls more for a file that is given away | some tens of microseconds for each that is made as the caller |
//!
//! On a host file system without birth times, directories, pipes and the like are made as their
//! owner by a thread of their own, since a new one cannot be told from an old one that is moved
//! to its place (`create.rs`). There they have no set-id bits but those that the host gives.
//!
//! A daemon that is not root serves one user well: the one that it is. To others it is as
//! if they were that user, where the VFS lets them.
//!
//! Set-id bits and file capabilities that a write takes away are this process's to take,
//! whoever writes, if the host does not by itself.
//!
//! Modes are what the VFS says: the umask of this process does not count. A file system of
//! the host that knows no ACLs or attributes has none here either.

#![deny(unsafe_code)]

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcuwalk::{Caller, Error, Freshness};

mod actor;
mod change;
mod create;
mod dirs;
mod file;
mod handles;
mod host;
mod identity;
mod listing;
mod lookup;
mod numbers;
mod opened;
mod own;
mod pin;
mod process;
mod procfs;
mod scan;
mod setattr;
mod sys;
mod watch;
mod xattr;

pub use actor::{Actor, NotPrivileged};
pub use dirs::DescriptorCounts;
pub use identity::host_mount_id;
pub use process::process_credentials;
#[doc(hidden)]
pub use procfs::hold_procfs;
pub use scan::{HostScan, Order};
#[doc(hidden)]
pub use sys::close_on_exec_from;
pub use watch::{WatchHealth, Watcher};

use dirs::{Dirs, Pin};
use numbers::Numbers;
use opened::OpenFiles;
use own::OwnMounts;
use watch::Watch;

/// What [`HostFs::new`] mounts with: names and attributes are believed for a second.
pub const DEFAULT_FRESHNESS: Freshness = Freshness::Ttl(Duration::from_secs(1));

/// A directory of the host, to be mounted in a [`Vfs`](rcuwalk::Vfs).
///
/// See the [crate's documentation](crate) for what it promises.
#[derive(Debug)]
pub struct HostFs {
    root: Pin,
    freshness: Freshness,
    actor: Actor,
    watch: Option<Watch>,
    opened: Arc<OpenFiles>,
    dirs: Arc<Dirs>,
    numbers: Numbers,
    own_mounts: OwnMounts,
}

impl HostFs {
    /// The directory at `path`, which may lead there through symbolic links.
    ///
    /// It is opened now: a later rename of `path` does not matter.
    ///
    /// # Errors
    /// [`RootError`], with the path in it, if there is no directory, or none that this
    /// process may list.
    ///
    /// ```
    /// use rcuwalk_hostfs::HostFs;
    ///
    /// let missing = HostFs::new("/no/such/directory").unwrap_err();
    /// assert_eq!(
    ///     missing.to_string(),
    ///     "cannot use /no/such/directory as root: no such file or directory"
    /// );
    /// ```
    pub fn new(path: impl AsRef<Path>) -> Result<HostFs, RootError> {
        let path = path.as_ref();
        let root = host::open_root(path).map_err(|source| RootError {
            path: path.to_owned(),
            source,
        })?;
        let seen = host::stat_fd(host::as_fd(&root));
        let seen = seen.map_err(|source| RootError {
            path: path.to_owned(),
            source,
        })?;
        Ok(HostFs {
            numbers: Numbers::of_root(seen.key),
            own_mounts: OwnMounts::of_root(host::as_fd(&root)),
            root: Pin::uncounted(root),
            freshness: DEFAULT_FRESHNESS,
            actor: Actor::default(),
            watch: None,
            opened: Arc::default(),
            dirs: Arc::default(),
        })
    }

    /// The same directory, believed for as long as `freshness` says.
    ///
    /// For [`Freshness::Watched`] use [`watched`](Self::watched); by itself it believes
    /// nothing, as `EachUse`.
    ///
    /// ```
    /// use rcuwalk::Freshness;
    /// use rcuwalk_hostfs::HostFs;
    ///
    /// // Nothing below /usr changes while this program runs.
    /// let usr = HostFs::new("/usr")?.with_freshness(Freshness::Always);
    /// # Ok::<(), rcuwalk_hostfs::RootError>(())
    /// ```
    #[must_use]
    pub fn with_freshness(self, freshness: Freshness) -> HostFs {
        HostFs {
            freshness,
            watch: None,
            ..self
        }
    }

    /// The same directory, its changes watched: what is cached is believed until the host
    /// reports a change, which takes a millisecond or two ([`Freshness::Watched`]). By
    /// [`Watcher::Fanotify`] where this process may, else by [`Watcher::Inotify`].
    ///
    /// See [the limits](crate#watching) of it.
    ///
    /// # Errors
    /// [`WatchError`] if neither can be had.
    ///
    /// ```
    /// use rcuwalk_hostfs::HostFs;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let watched = HostFs::new(dir.path())?.watched()?;
    /// println!("by {:?}", watched.watcher());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watched(self) -> Result<HostFs, WatchError> {
        self.watched_by_first_of(&[Watcher::Fanotify, Watcher::Inotify])
    }

    /// As [`watched`](Self::watched), by this watcher and no other.
    ///
    /// # Errors
    /// [`WatchError`] if it cannot be had.
    pub fn watched_by(self, watcher: Watcher) -> Result<HostFs, WatchError> {
        self.watched_by_first_of(&[watcher])
    }

    /// Who watches, if anyone.
    pub fn watcher(&self) -> Option<Watcher> {
        self.watch.as_ref().map(Watch::watcher)
    }

    /// Tells, for as long as it is kept, whether the host still reports changes: if it
    /// stops (which no known kernel does), nothing is believed any more.
    pub fn watch_health(&self) -> Option<WatchHealth> {
        self.watch.as_ref().map(Watch::health)
    }

    fn watched_by_first_of(self, watchers: &[Watcher]) -> Result<HostFs, WatchError> {
        let mut tried = Vec::new();
        for &watcher in watchers {
            match Watch::new(self.root.fd(), watcher) {
                Ok(watch) => {
                    return Ok(HostFs {
                        freshness: Freshness::Watched,
                        watch: Some(watch),
                        ..self
                    });
                }
                Err(err) => tried.push((watcher, err)),
            }
        }
        Err(WatchError { tried })
    }

    /// The same directory, changed with these credentials; see
    /// [Permissions](crate#permissions).
    ///
    /// # Errors
    /// [`NotPrivileged`] if the host is to see the callers, and this thread may not act as
    /// others. All threads that use the `Vfs` need the privilege.
    ///
    /// ```
    /// use rcuwalk_hostfs::{Actor, HostFs};
    ///
    /// let fs = HostFs::new(".")?.acting_as(Actor::Caller);
    /// if let Err(err) = fs {
    ///     assert!(err.to_string().contains("run as root"));
    /// }
    /// # Ok::<(), rcuwalk_hostfs::RootError>(())
    /// ```
    pub fn acting_as(self, actor: Actor) -> Result<HostFs, NotPrivileged> {
        if actor == Actor::Caller {
            actor::may_switch()?;
        }
        Ok(HostFs { actor, ..self })
    }

    /// What is done with descriptors of directories, to be read at any time later:
    /// statistics.
    ///
    /// ```
    /// use rcuwalk::{Credentials, LookupFlags, Vfs};
    /// use rcuwalk_hostfs::HostFs;
    ///
    /// let fs = HostFs::new("/")?;
    /// let counts = fs.descriptors();
    /// let vfs = Vfs::new(fs)?;
    /// vfs.stat(&vfs.context(Credentials::root()), "/usr/bin", LookupFlags::FOLLOW)?;
    /// println!("{} directories are held", counts.kept());
    /// # Ok::<(), rcuwalk::Error>(())
    /// ```
    pub fn descriptors(&self) -> DescriptorCounts {
        DescriptorCounts(self.dirs.clone())
    }

    fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Asks the host for something, as whoever the setting says.
    fn act<T>(
        &self,
        by: &Caller<'_>,
        ask: impl FnOnce() -> rcuwalk::Result<T>,
    ) -> rcuwalk::Result<T> {
        match self.actor {
            Actor::Daemon => ask(),
            Actor::Caller => actor::as_caller(by.credentials, ask),
        }
    }
}

/// Why a directory cannot be a root.
///
/// Turns into the [`Error`] it was caused by, for callers that want the errno more
/// than the path.
///
/// ```
/// use rcuwalk_hostfs::HostFs;
///
/// let err = HostFs::new("/dev/null").unwrap_err();
/// assert_eq!(err.path(), std::path::Path::new("/dev/null"));
/// assert!(matches!(rcuwalk::Error::from(err), rcuwalk::Error::NotADirectory));
/// ```
#[derive(Debug)]
pub struct RootError {
    path: PathBuf,
    source: Error,
}

impl RootError {
    /// The path that was to be the root.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for RootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot use {} as root: {}",
            self.path.display(),
            self.source
        )
    }
}

impl std::error::Error for RootError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<RootError> for Error {
    fn from(err: RootError) -> Error {
        err.source
    }
}

/// Why changes of a directory cannot be watched.
///
/// The caller decides what to do without: [`Freshness::Ttl`] shows changes later,
/// [`Freshness::EachUse`] costs a statx(2) per use.
#[derive(Debug)]
pub struct WatchError {
    tried: Vec<(Watcher, Error)>,
}

impl WatchError {
    /// What was tried, and what came of it.
    pub fn tried(&self) -> &[(Watcher, Error)] {
        &self.tried
    }
}

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot watch the host for changes")?;
        for (n, (watcher, err)) in self.tried.iter().enumerate() {
            let before = if n == 0 { ": " } else { "; " };
            match watcher {
                Watcher::Fanotify => write!(f, "{before}fanotify: {err}")?,
                Watcher::Inotify => write!(f, "{before}inotify: {err}")?,
            }
        }
        write!(
            f,
            " (without it: a freshness of Ttl or EachUse; fanotify needs CAP_SYS_ADMIN and \
             CAP_DAC_READ_SEARCH, inotify /proc and room in fs.inotify.max_user_instances \
             and max_user_watches)"
        )
    }
}

impl std::error::Error for WatchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let (_, err) = self.tried.last()?;
        Some(err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply cannot wait for another: the struct is shared by all threads as it is.
    #[test]
    fn hostfs_is_shared_without_locks() {
        fn shared<T: Send + Sync + 'static>() {}
        shared::<HostFs>();
    }

    /// EDGE-1: a root that cannot be used is reported with its path and its errno.
    #[test]
    fn a_bad_root_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        for (path, errno) in [
            (file, Error::NotADirectory),
            (dir.path().join("none"), Error::NotFound),
        ] {
            let err = HostFs::new(&path).unwrap_err();
            assert!(
                err.to_string().contains(path.to_str().unwrap()),
                "EDGE-1: {err}"
            );
            assert_eq!(Error::from(err).errno(), errno.errno(), "EDGE-1");
        }
    }
}

/// The examples of README.md are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
