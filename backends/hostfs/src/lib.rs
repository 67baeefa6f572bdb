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
//! | `pin.rs`      | from an inode or a path of the VFS to a descriptor of it     |
//! | `dirs.rs`     | directories without a descriptor, and how they get one again |
//! | `create.rs`   | making files: whose they are, and that they are ours         |
//! | `change.rs`   | linking, removing, renaming, and the races with the host     |
//! | `file.rs`     | open files                                                   |
//! | `handles.rs`  | files found again by number, for file handles                |
//! | `opened.rs`   | the table of open files, for files that no name leads to     |
//! | `setattr.rs`, `xattr.rs` | attributes, extended ones and ACLs                |
//! | `actor.rs`    | whose credentials the host sees                              |
//! | `listing.rs`  | directory listings and their positions                       |
//! | `own.rs`      | the tree's own mount, where the tree shows it                |
//! | `process.rs`  | the credentials of this process                              |
//! | `sys.rs`      | system calls that rustix lacks: all unsafe code              |
//! | `watch.rs`    | changes on the host, reported as they happen                 |
//! | `scan.rs`     | [`HostScan`]: the whole tree once, past all caches           |
//!
//! The rule that holds it together: **the host is only ever asked about one name in
//! one directory.** Links, `..`, and absolute paths are the VFS's to walk, so a link
//! to `/etc/passwd` means the `/etc/passwd` below the mounted root (WALK-3).
//!
//! # Descriptors
//!
//! Directories hold `O_PATH` descriptors, counted against the VFS's budget: those used last, as
//! many as the budget allows, however many directories are cached or in use (MEM-1). The others
//! are opened again when they are needed, and compared with what they were:
//!
//! | how                            | when                                             |
//! |--------------------------------|--------------------------------------------------|
//! | by file handle, one call       | with CAP_DAC_READ_SEARCH in the first user namespace, on a file system that has handles (not FUSE); tried once per mount of the host |
//! | by name, from the next directory above that has a descriptor | else. Needs search permission on the directories between |
//!
//! Two things differ for a directory that is in use while it has no descriptor. If another
//! process removes it on the host, it is [`Stale`](rcuwalk::Error::Stale), where it would be
//! empty. So is one that another process moves, if it has to be found by name: until it is
//! looked up at its new path. Opening its path (`PATH`) holds it. [`HostFs::descriptors`]
//! counts.
//!
//! Files, links and devices hold none. When the process or the host runs out of descriptors,
//! directories give theirs back, then the VFS closes unused ones
//! ([`SuperBlock::shrink`](rcuwalk::SuperBlock::shrink)); only if that does not help is the
//! error [`TooManyOpenFiles`](rcuwalk::Error::TooManyOpenFiles). Not limited by the budget are
//! the root's descriptor, and those of directories that a call uses, that are open with `PATH`,
//! or that were removed while a process is in them.
//!
//! A file that was made without a name keeps a descriptor as well, counted like a directory's:
//! nothing else leads to it. An open file has its own, which belongs to the caller; so does one
//! that is open with `PATH`. By these, calls that have only its path reach a file that has lost
//! its name.
//!
//! # Changes
//!
//! A file is opened again by directory and name, and the opened file is compared with the one
//! that was looked up: another file gives [`Stale`](rcuwalk::Error::Stale), and the VFS then
//! looks the name up once more. Attributes are changed in the same way: a descriptor holds the
//! file, it is compared, and the change goes to the descriptor. So concurrent changes by other
//! processes on the host lead to `Stale` or to the errno that they lead to on the host, never
//! to another file.
//!
//! **One window stays.** A name can only be removed or moved by name. If a process puts another
//! file in its place between our last statx(2) and the call, that file is removed or moved, as
//! with any program on the host; a name that the VFS has found free is not replaced even then,
//! where the host knows `RENAME_NOREPLACE`.
//!
//! After a change, one statx(2) each reads the attributes of the file and of the directories,
//! which are then published.
//!
//! | what                    | how the host handles it                                  |
//! |-------------------------|----------------------------------------------------------|
//! | rename flags            | renameat2(2) knows them or says `EINVAL`                 |
//! | times                   | the host's clock; reading sets access times there, as the host's mount says |
//! | immutable, append-only  | read by statx(2), set by ioctl(2), of files and directories |
//! | extended attributes, the mode of a file that is not open | by `/proc/thread-self/fd`: without /proc they are `EOPNOTSUPP` |
//! | a truncation by path to the size that a file has | is not passed on     |
//! | the host is mounted read-only | each change says `EROFS`                           |
//!
//! # Freshness
//!
//! Others change the host's directory too. How soon that shows is set per mount:
//!
//! | [`Freshness`]       | a cached name or attribute is valid          | for                    |
//! |---------------------|----------------------------------------------|------------------------|
//! | `Always`            | until it leaves the cache                    | images, `/nix/store`   |
//! | `Ttl(d)` (1 s)      | for `d` after the host last confirmed it     | most things            |
//! | `EachUse`           | never: each use costs a statx(2)             | shared working trees   |
//! | `Watched`           | until the host reports a change; see [below](#watching) | trees on local disks |
//!
//! None of them promises more: a file whose name is still valid may have been removed, so
//! opening it can give `Stale`; two names of one file may be confirmed at different times;
//! several names are never confirmed as one moment. When threads refresh one inode's attributes
//! at the same time, the slower one may leave the slightly older answer, until the next use
//! asks again. Contents are not cached here at all: reads always go to the host.
//!
//! A directory that has been listed is remembered, within the budget of listings. With `Ttl` and
//! `EachUse`, a later listing of it costs one statx(2): it is right if the ctime is still the same. With
//! `Ttl`, names that it does not have are missing for `d`. Under `Watched` and `Always` nothing is asked.
//!
//! A directory that is *moved out* of the root on the host stays reachable until its name is
//! revalidated, and for as long as a process is in it: its descriptor (or file handle) goes
//! with it, as a bind mount's would. `..` does not: the VFS walks that.
//!
//! # Watching
//!
//! [`HostFs::watched`] has the host report changes, by fanotify(7) where this process may, else
//! by inotify(7). A report costs each cached name of that directory a statx(2) at its next use;
//! as long as nothing changes, the host is not asked. A change shows after a millisecond or
//! two.
//!
//! |                                           | with fanotify              | with inotify |
//! |-------------------------------------------|----------------------------|--------------|
//! | needs                                     | CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH | /proc, and read permission on directories |
//! | watches                                   | the whole file system      | each cached directory |
//! | wakes for changes outside of the root     | yes: a map lookup each. Where a handle does not say which number a file has (all but ext4, xfs and tmpfs), each file whose link count changes is opened (O_PATH) | no |
//! | limited by                                | `fs.fanotify.max_user_groups` | `fs.inotify.max_user_watches`, `…_instances` |
//! | a directory that cannot be watched        | as `EachUse`               | as `EachUse` |
//! | mounts of the host below the root         | watched as well            | watched as well |
//! | a cached file's second name in a directory that is not cached | reported, on the root's mount | unknown until a name of the file is next asked for |
//! | a cached file's second name that is removed within the millisecond or two | reported, on the root's mount | everything is asked for again, ten times a second at most |
//! | writes by a descriptor whose name is gone | reported, on the root's mount, if that is ext4, xfs or tmpfs | unknown until a name of the file is next asked for |
//! | more changes than the queue holds (16,384)| everything is asked for again | everything is asked for again |
//!
//! With fanotify on ext4, xfs and tmpfs, each change of a file in the root's mount is also
//! announced to a front end that [listens](rcuwalk::Vfs::listen), with the thread that made it.
//!
//! If the host stops reporting (reading its reports fails), everything is as with `EachUse`
//! from then on; [`HostFs::watch_health`] tells.
//!
//! Files with several names are as with `EachUse`, for any of the names may be used to change
//! them. Changes made through this mount are reported like other processes', and cost the names
//! in that directory one statx(2) more. **Not reported, so not seen** until the name is asked
//! for for another reason: changes by other hosts on a network file system, changes in the
//! layers below an overlay, writing by a memory mapping, access times, and blocks that the host
//! allocates later.
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
//! ctime has changed; that a directory has no default ACL is valid as long as an attribute is. Security labels are not seen by that check.
//!
//! [`HostFs::acting_as`] sets whose credentials the host sees. Names are looked up and
//! directories listed with those of this process in either case, since all callers share the
//! cache: this process needs read and search permission on the tree.
//!
//! | changes, opens, extended attributes | [`Actor::Daemon`] (the default) | [`Actor::Caller`]        |
//! |--------------------------|--------------------------------------------|--------------------------|
//! | the host sees            | this process                               | the caller's user, groups and, of this process's capabilities, those the caller has |
//! | if the VFS permits it by outdated attributes | of a file: it decides anew by the current ones; of a directory whose names change: it is done | the host refuses it by the current ones |
//! | security modules, quotas, root's reserve | apply to this process      | apply to the caller; for writing, to the opener of the file |
//! | a new file               | is given to the caller, if this process may; else it stays the process's, without set-id bits, and is shown so | is the caller's |
//! | needs                    | to be root, to serve more than one user    | CAP_SETUID and CAP_SETGID in each thread |
//! | costs                    | two calls more for a file that is given away | some tens of microseconds for each call made as the caller |
//!
//! On a host file system without birth times, a separate thread makes directories, pipes and
//! the like as their owner, since a new one cannot be told from an old one that is moved to its
//! name (`create.rs`). There they have no set-id bits except those that the host gives.
//!
//! A daemon that is not root serves one user well: the one that it is. To others it is as
//! if they were that user, where the VFS lets them.
//!
//! Where the host does not itself clear set-id bits and file capabilities at a write, this
//! process clears them, whoever the writer is.
//!
//! Modes are exactly as the VFS requests them: the umask of this process does not count. A file
//! system of the host without ACLs or attributes has none here either.

#![deny(unsafe_code)]
#![warn(missing_debug_implementations)]

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
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
pub use scan::{HostScan, Order};
#[doc(hidden)]
pub use sys::close_on_exec_from;
pub use watch::{WatchHealth, Watcher};

use dirs::{Dirs, Pin};
use handles::kernel::Exported;
use numbers::Numbers;
use opened::OpenFiles;
use own::OwnMounts;
use watch::Watch;

/// The freshness of [`HostFs::new`]: names and attributes are valid for a second.
pub const DEFAULT_FRESHNESS: Freshness = Freshness::Ttl(Duration::from_secs(1));

/// A directory of the host, to be mounted in a [`Vfs`](rcuwalk::Vfs).
///
/// See the [crate's documentation](crate) for its guarantees.
#[derive(Debug)]
pub struct HostFs {
    root: Pin,
    freshness: Freshness,
    actor: Actor,
    /// A file is held and looked at before it is opened.
    opens_held: bool,
    watch: Option<Watch>,
    opened: Arc<OpenFiles>,
    dirs: Arc<Dirs>,
    numbers: Numbers,
    own_mounts: OwnMounts,
    exported: OnceLock<Exported>,
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
        let stat = host::stat_fd(host::as_fd(&root));
        let stat = stat.map_err(|source| RootError {
            path: path.to_owned(),
            source,
        })?;
        Ok(HostFs {
            numbers: Numbers::of_root(stat.key, host::as_fd(&root)),
            own_mounts: OwnMounts::of_root(host::as_fd(&root)),
            root: Pin::uncounted(root),
            freshness: DEFAULT_FRESHNESS,
            actor: Actor::default(),
            opens_held: false,
            watch: None,
            opened: Arc::default(),
            dirs: Arc::default(),
            exported: OnceLock::new(),
        })
    }

    /// Sets how long cached names and attributes are valid.
    ///
    /// For [`Freshness::Watched`] use [`watched`](Self::watched); without it, `Watched` acts as
    /// `EachUse`.
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

    /// Watches the directory for changes: cached names and attributes are valid until the host
    /// reports a change, which takes a millisecond or two ([`Freshness::Watched`]). Uses
    /// [`Watcher::Fanotify`] where this process may, else [`Watcher::Inotify`].
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

    /// The watcher in use, if changes are watched.
    pub fn watcher(&self) -> Option<Watcher> {
        self.watch.as_ref().map(Watch::watcher)
    }

    /// True if each change of a file in the root's mount is reported with the file, so that a
    /// front end can be told of it ([`rcuwalk::Vfs::listen`]): by fanotify, on ext4, xfs and
    /// tmpfs. Files in other mounts below the root are watched without that.
    pub fn announces_changes(&self) -> bool {
        let root = host::stat_fd(self.root.fd());
        let watch = self.watch.as_ref();
        watch.is_some_and(|watch| root.is_ok_and(|root| watch.announces(root.key)))
    }

    /// Tells, for as long as it is kept, whether the host still reports changes: if it stops
    /// (which no known kernel does), everything is revalidated at each use.
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

    /// Sets the credentials that the host sees; see [Permissions](crate#permissions).
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

    /// Opens a file only once a descriptor (`O_PATH`) holds it, and it is known to be a regular file.
    ///
    /// Otherwise a file is opened by its name, and looked at afterwards. If it has been replaced by a
    /// device since it was found, that is not read, but opened, which has an effect with some
    /// (watchdogs, tapes). This is for trees in which somebody who is not trusted may make or move
    /// device nodes: a guest's root, for one. It costs two more calls for each open, and needs `/proc`.
    ///
    /// ```
    /// use rcuwalk_hostfs::HostFs;
    ///
    /// let fs = HostFs::new(".")?.opening_held_files();
    /// # Ok::<(), rcuwalk_hostfs::RootError>(())
    /// ```
    #[must_use]
    pub fn opening_held_files(self) -> HostFs {
        HostFs {
            opens_held: true,
            ..self
        }
    }

    /// Statistics of directory descriptors. They can be read at any time later.
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

    /// Makes a request to the host, with the credentials that the setting selects.
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
/// The caller chooses another freshness: [`Freshness::Ttl`] shows changes later,
/// [`Freshness::EachUse`] costs a statx(2) per use.
#[derive(Debug)]
pub struct WatchError {
    tried: Vec<(Watcher, Error)>,
}

impl WatchError {
    /// The watchers that were tried, and the error of each.
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
