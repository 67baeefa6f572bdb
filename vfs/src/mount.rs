//! Mounts: which tree continues where.
//!
//! The table of mounts is immutable. A mount or unmount, under the namespace lock,
//! publishes a new one by RCU; a walk takes the table as it is when it starts, and
//! an RCU-walk starts again if it is another one when it ends. Mounts change
//! rarely, walks cross them often.
//!
//! A mount is counted in several replicas, each on a cache line of its own, so that
//! threads that take and give back paths do not all write one counter. A thread
//! uses the replica of its index; unmounting has to kill them all.

mod flags;

use std::collections::HashMap;
use std::sync::Arc;

use rcuwalk_sync::atomic::AtomicU32;
use rcuwalk_sync::{Ref, Shared, rcu};

pub use flags::MountFlags;
pub(crate) use flags::Writing;

use crate::dentry::DentryRef;
use crate::error::{Error, Result};
use crate::super_block::SuperBlock;

const REPLICAS: usize = 8;

/// One counted handle of a mount.
#[doc(alias("struct vfsmount", "struct mount"))]
pub(crate) struct Mount {
    info: Arc<MountInfo>,
    /// The changes under way through it, see [`Writing`].
    #[doc(alias = "mnt_writers")]
    writers: AtomicU32,
}

impl std::ops::Deref for Mount {
    type Target = MountInfo;
    fn deref(&self) -> &MountInfo {
        &self.info
    }
}

/// A counted reference to a mount.
pub(crate) type MountRef = Ref<Mount>;

/// A mount: its file system, root and flags.
pub(crate) struct MountInfo {
    id: u64,
    pub(crate) sb: Arc<SuperBlock>,
    pub(crate) root: DentryRef,
    /// Where it is mounted; `None` for the root of the namespace.
    pub(crate) point: Option<Point>,
    flags: flags::FlagWord,
}

/// A place that something is mounted on.
pub(crate) struct Point {
    pub(crate) entry: Arc<MountEntry>,
    pub(crate) dentry: DentryRef,
}

impl MountInfo {
    /// True if both are the same mount, whichever replica they came from.
    #[inline]
    pub(crate) fn is(&self, other: &MountInfo) -> bool {
        self.id == other.id
    }

    fn key(&self) -> Option<(u64, usize)> {
        let point = self.point.as_ref()?;
        Some((point.entry.info.id, point.dentry.address()))
    }
}

/// A mount in the table.
pub(crate) struct MountEntry {
    info: Arc<MountInfo>,
    replicas: [MountRef; REPLICAS],
    /// The replicas that these replaced: dead, but there may be references to them.
    before: Option<Arc<MountEntry>>,
}

impl MountEntry {
    pub(crate) fn new(
        id: u64,
        sb: Arc<SuperBlock>,
        root: DentryRef,
        point: Option<Point>,
        flags: MountFlags,
    ) -> MountEntry {
        Self::of(Arc::new(MountInfo {
            id,
            sb,
            root,
            point,
            flags: flags::FlagWord::new(flags),
        }))
    }

    fn of(info: Arc<MountInfo>) -> MountEntry {
        let replicas = std::array::from_fn(|_| {
            Ref::new(Mount {
                info: info.clone(),
                writers: AtomicU32::new(0),
            })
        });
        MountEntry {
            info,
            replicas,
            before: None,
        }
    }

    pub(crate) fn info(&self) -> &MountInfo {
        &self.info
    }

    /// This thread's replica.
    pub(crate) fn mount(&self) -> &Shared<Mount> {
        &self.replicas[rcu::thread_index() % REPLICAS]
    }

    /// Kills all replicas if the mount is unused.
    fn kill(self: &Arc<Self>) -> Kill {
        if !self.is_idle() {
            return Kill::InUse;
        }
        if self.replicas.iter().all(|mount| mount.kill_if_count_is(1)) {
            return Kill::Killed;
        }
        // A walker came between the two, and a killed replica cannot be revived. The rest is
        // killed as well, so that the references that are out can only become fewer, and fresh
        // replicas take their place; walkers that meet a dead replica wait for the namespace
        // lock and look again.
        for mount in &self.replicas {
            while !mount.is_dead() {
                mount.kill_if_count_is(mount.count());
            }
        }
        Kill::Renew(MountEntry {
            before: Some(self.clone()),
            ..Self::of(self.info.clone())
        })
    }

    /// True if no reference is out, of the replicas before these neither.
    fn is_idle(&self) -> bool {
        self.replicas.iter().all(|mount| mount.count() == 1)
            && self.before.as_ref().is_none_or(|before| before.is_idle())
    }
}

/// How [`MountEntry::kill`] ended.
enum Kill {
    Killed,
    /// It is in use, and nothing has been done to it.
    InUse,
    /// It came into use meanwhile; this one must take its place.
    Renew(MountEntry),
}

/// All mounts but the root one, by where they are mounted.
#[derive(Default)]
pub(crate) struct MountTable {
    by_point: HashMap<(u64, usize), Arc<MountEntry>>,
}

impl MountTable {
    /// Returns the mount on this dentry of this mount.
    #[doc(alias("lookup_mnt", "__lookup_mnt"))]
    pub(crate) fn lookup(&self, mount: &MountInfo, dentry: usize) -> Option<&Arc<MountEntry>> {
        self.by_point.get(&(mount.id, dentry))
    }

    /// This table with one mount more.
    #[doc(alias = "attach_mnt")]
    pub(crate) fn with(&self, entry: MountEntry) -> MountTable {
        let mut by_point = self.by_point.clone();
        if let Some(key) = entry.info.key() {
            by_point.insert(key, Arc::new(entry));
        }
        MountTable { by_point }
    }

    /// Returns this table without the mount `info`, if that is unused, and whether any mount is
    /// left on its dentry.
    ///
    /// # Errors
    /// [`Error::Busy`] with the table to publish instead: the mount may need fresh
    /// replicas. [`Error::Invalid`] if it is not in the table.
    #[doc(alias("do_umount", "propagate_mount_busy"))]
    pub(crate) fn without(&self, info: &MountInfo) -> Result<MountTable, (Error, MountTable)> {
        let mut by_point = self.by_point.clone();
        // Another one may be mounted there by now.
        let is_there = |key: &_| by_point.get(key).is_some_and(|entry| entry.info.is(info));
        let Some(key) = info.key().filter(is_there) else {
            return Err((Error::Invalid, MountTable { by_point }));
        };
        let has_children = by_point.keys().any(|(parent, _)| *parent == info.id);
        if has_children {
            return Err((Error::Busy, MountTable { by_point }));
        }
        match by_point[&key].kill() {
            Kill::Killed => {
                by_point.remove(&key);
                Ok(MountTable { by_point })
            }
            Kill::InUse => Err((Error::Busy, MountTable { by_point })),
            Kill::Renew(entry) => {
                by_point.insert(key, Arc::new(entry));
                Err((Error::Busy, MountTable { by_point }))
            }
        }
    }

    /// True if anything is mounted on this dentry, in any mount.
    pub(crate) fn is_mountpoint(&self, dentry: usize) -> bool {
        self.by_point.keys().any(|(_, point)| *point == dentry)
    }
}
