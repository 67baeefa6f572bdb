//! The files that are open or held: by inode, for when no name leads to them.
//!
//! An open file lives on when its last name goes, as does one opened by `O_PATH`, and no system
//! call finds it again: only a descriptor of it does. A caller with an open file
//! ([`At::open`](rcuwalk::At::open)) needs nothing else. A caller with a path alone (to set an
//! attribute, to give it a name, to open it once more) finds the descriptor here.
//!
//! One entry per open file, so as many as the process has descriptors for; one short lock to
//! open and one to close. A descriptor that a caller has been given stays open until it is
//! done, even if the file is closed meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rcuwalk::{Inode, InodeKey, Result};
use rustix::fd::{BorrowedFd, OwnedFd};

use crate::host::held::Held;
use crate::host::{self, as_fd};

const SHARDS: usize = 16;

/// The open files of a [`HostFs`](crate::HostFs).
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    shards: [Mutex<Shard>; SHARDS],
}

type Shard = BTreeMap<Entry, Holder>;

/// A descriptor, and whether it is `O_PATH`.
type Holder = (Arc<OwnedFd>, bool);

/// Inode number and space, and the address of the descriptor: unique while that is open.
type Entry = (u64, u64, usize);

impl OpenFiles {
    /// A descriptor of `inode`, if there is one.
    pub(crate) fn find(&self, inode: &Inode) -> Option<Held<'static>> {
        let held = self.held(inode)?;
        // The inode may be an older file's, whose number that one has got.
        let stat = host::stat_fd(held.fd()).ok()?;
        stat.is_still(inode).then_some(held)
    }

    /// A descriptor of a file with the number of `inode`, if there is one: of `inode` itself, or of
    /// another file that has that number now.
    pub(crate) fn held(&self, inode: &Inode) -> Option<Held<'static>> {
        let key = inode.inode_key();
        let shard = self.shard(key);
        let mut same = shard.range((key.ino, key.space, 0)..=(key.ino, key.space, usize::MAX));
        // All that are open at one time with this number are one file.
        let (_, (fd, path_only)) = same.next()?;
        Some(Held::shared(fd.clone(), *path_only))
    }

    /// Returns whether there is one; it may be another file's that has the same number now.
    pub(crate) fn has(&self, inode: &Inode) -> bool {
        let key = inode.inode_key();
        let shard = self.shard(key);
        let mut same = shard.range((key.ino, key.space, 0)..=(key.ino, key.space, usize::MAX));
        same.next().is_some()
    }

    fn shard(&self, key: InodeKey) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[key.ino as usize % SHARDS];
        // Each change of the map is one call: a panic leaves nothing half done.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The descriptor of a file that is open or held, to be found for as long as this lives.
pub(crate) struct Opened {
    fd: Arc<OwnedFd>,
    key: InodeKey,
    among: Arc<OpenFiles>,
}

impl Opened {
    /// An open file, `inode`.
    pub(crate) fn new(among: &Arc<OpenFiles>, inode: &Inode, fd: OwnedFd) -> Opened {
        Opened::add(among, inode, fd, false)
    }

    /// A file opened with `PATH`.
    pub(crate) fn held(among: &Arc<OpenFiles>, inode: &Inode, held: Held<'_>) -> Result<Opened> {
        let (fd, path_only) = held.into_owned()?;
        Ok(Opened::add(among, inode, fd, path_only))
    }

    fn add(among: &Arc<OpenFiles>, inode: &Inode, fd: OwnedFd, path_only: bool) -> Opened {
        let key = inode.inode_key();
        let opened = Opened {
            fd: Arc::new(fd),
            key,
            among: among.clone(),
        };
        let holder = (opened.fd.clone(), path_only);
        among.shard(key).insert(opened.entry(), holder);
        opened
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        as_fd(&self.fd)
    }

    fn entry(&self) -> Entry {
        let InodeKey { ino, space } = self.key;
        (ino, space, Arc::as_ptr(&self.fd) as usize)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.among.shard(self.key).remove(&self.entry());
    }
}
