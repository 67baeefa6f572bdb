//! A directory of the host as a file system for [`rcuwalk`]: the read side.
//!
//! ```no_run
//! use rcuwalk::{Credentials, LookupFlags, Vfs};
//! use rcuwalk_hostfs::HostFs;
//!
//! let vfs = Vfs::new(HostFs::new("/srv/export")?)?;
//! let ctx = vfs.context(Credentials::user(1000, 1000));
//! let attr = vfs.stat(&ctx, "/etc/motd", LookupFlags::FOLLOW)?;
//! println!("{} bytes in /srv/export/etc/motd", attr.size);
//! # Ok::<(), rcuwalk::Error>(())
//! ```
//!
//! | read          | to learn                                                     |
//! |---------------|--------------------------------------------------------------|
//! | `lib.rs`      | what a mount promises: root, freshness, permissions          |
//! | `lookup.rs`   | the [`FileSystem`](rcuwalk::FileSystem): names to inodes     |
//! | `identity.rs` | inode keys, and telling apart two files of one inode number  |
//! | `host.rs`     | the system calls, and why they cannot leave the root         |
//! | `listing.rs`  | directory listings and their positions                       |
//! | `process.rs`  | the credentials of this process                              |
//! | `scan.rs`     | [`HostScan`]: the whole tree once, past all caches           |
//!
//! The rule that holds it together: **the host is only ever asked about one name in
//! one directory.** Links, `..`, and absolute paths are the VFS's to walk, so a link
//! to `/etc/passwd` means the `/etc/passwd` below the mounted root (WALK-3).
//!
//! # Descriptors
//!
//! A cached directory holds one `O_PATH` descriptor, counted against the VFS's
//! budget; files, links and devices hold none, however many are cached (MEM-1).
//! When the process or the host runs out, the VFS is asked once to give up what it
//! does not use ([`SuperBlock::shrink`](rcuwalk::SuperBlock::shrink)); only if that
//! does not help is the error [`TooManyOpenFiles`](rcuwalk::Error::TooManyOpenFiles).
//!
//! A file is opened again by directory and name, and what was opened is compared
//! with what had been looked up: another file gives [`Stale`](rcuwalk::Error::Stale).
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
//!
//! What none of them promises: a file whose name goes on being believed may have been
//! removed, so opening it can give `Stale`; two names of one file may be confirmed at
//! different times; several names are never confirmed as one moment. When threads
//! bring one inode's attributes up to date at the same time, the slower one may leave
//! the slightly older answer, until the next use asks again. Contents are not cached
//! here at all: reads always go to the host.
//!
//! A directory that is *moved out* of the root on the host stays reachable until its
//! name is looked at again, and for as long as somebody is in it: its descriptor goes
//! with it, as a bind mount's would. `..` does not: that is walked in the VFS.
//!
//! # Mounts of the host
//!
//! A mount below the root is walked into, as on the host; its files have keys of
//! their own, since the mount is part of the key. Automounts are not triggered.
//! A cached directory keeps its host mount busy until it leaves the cache.
//!
//! # Permissions
//!
//! The host is asked with the credentials of this process, whoever the caller is: give
//! it read and search permission on what it is to show. The caller's credentials are
//! checked by the VFS against owner, group and mode as the host last told them.
//!
//! **The host's ACLs, capabilities and security labels are not seen by that check.** On
//! a file with a POSIX ACL, the group bits of the mode are the ACL's *mask*: a member
//! of the owning group may get more than the ACL grants it, and users named in the ACL
//! are treated as others. Do not rely on ACLs below a mounted root in this version.

#![forbid(unsafe_code)]

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcuwalk::{Error, Freshness};
use rustix::fd::OwnedFd;

mod host;
mod identity;
mod listing;
mod lookup;
mod process;
mod scan;

pub use identity::host_mount_id;
pub use process::process_credentials;
pub use scan::{HostScan, Order};

/// What [`HostFs::new`] mounts with: names and attributes are believed for a second.
pub const DEFAULT_FRESHNESS: Freshness = Freshness::Ttl(Duration::from_secs(1));

/// A directory of the host, to be mounted in a [`Vfs`](rcuwalk::Vfs).
///
/// See the [crate's documentation](crate) for what it promises.
#[derive(Debug)]
pub struct HostFs {
    root: OwnedFd,
    freshness: Freshness,
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
        Ok(HostFs {
            root,
            freshness: DEFAULT_FRESHNESS,
        })
    }

    /// The same directory, believed for as long as `freshness` says.
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
        HostFs { freshness, ..self }
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
