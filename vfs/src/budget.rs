//! How much may be cached (MEM-1).

use rcuwalk_sync::LookAfter;

/// What the caches of one [`Vfs`](crate::Vfs) may hold beyond what is in use.
///
/// MEM-1: cached inodes, bytes and descriptors stay within the budget plus what is
/// in use (open files, current directories, mounts, and the directories above
/// them), plus what RCU has retired and not yet freed: a bag per thread as a rule
/// ([`Domain::BATCH_OBJECTS`](rcuwalk_sync::rcu::Domain::BATCH_OBJECTS)), and what a
/// stalled reader holds up, to the cap of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Names, found and missing ones.
    pub dentries: usize,
    /// Inodes.
    pub inodes: usize,
    /// Bytes of names and inodes together; half of them each.
    pub bytes: usize,
    /// Descriptors that back ends keep with inodes; hostfs keeps one per directory.
    pub fds: usize,
}

impl Default for Budget {
    /// A million names, a million inodes, 512 MiB, and 512 descriptors: half of what
    /// a process may usually have. Give more where the limit has been raised.
    fn default() -> Self {
        Budget {
            dentries: 1 << 20,
            inodes: 1 << 20,
            bytes: 512 << 20,
            fds: 512,
        }
    }
}

/// One cache's budget.
pub(crate) struct Share {
    objects: usize,
    bytes: usize,
    object_bytes: usize,
}

impl Share {
    pub(crate) fn new(objects: usize, bytes: usize, object_bytes: usize) -> Share {
        Share {
            objects,
            bytes,
            object_bytes,
        }
    }

    /// How many objects fit, if they bring nothing beside themselves.
    fn fits(&self) -> usize {
        self.objects.min(self.bytes / self.object_bytes)
    }

    /// How many shards the list is to have: few for small budgets, where each would hold
    /// next to nothing.
    pub(crate) fn shards(&self) -> usize {
        (self.fits() / 256).clamp(1, 16)
    }

    /// What may enter one shard before somebody looks at the whole: the budget is kept to
    /// within two percent, and no closer than pays.
    pub(crate) fn look_after(&self) -> LookAfter {
        let parts = 64 * self.shards();
        LookAfter {
            objects: (self.fits() / parts).clamp(1, 32),
            weight: (self.bytes / parts).max(1),
        }
    }

    /// Whether so many objects, and bytes beside them, are too many.
    #[inline]
    pub(crate) fn is_over(&self, objects: usize, extra: usize) -> bool {
        objects > self.objects || objects * self.object_bytes + extra > self.bytes
    }

    /// Whether it is time to make room ahead of need: a sixteenth is left.
    pub(crate) fn is_nearly_over(&self, objects: usize, extra: usize) -> bool {
        let bytes = objects * self.object_bytes + extra;
        objects > self.objects - self.objects / 16 || bytes > self.bytes - self.bytes / 16
    }
}
