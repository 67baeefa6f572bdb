//! How much may be cached, and each shard's share of that (MEM-1).

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

/// One cache's budget, cut into equal shares for the shards of its list.
pub(crate) struct Share {
    shards: usize,
    objects: usize,
    bytes: usize,
    object_bytes: usize,
}

impl Share {
    pub(crate) fn new(objects: usize, bytes: usize, object_bytes: usize) -> Share {
        // Few shards for small budgets: a share of less than some hundred objects
        // would evict in one shard while others stand empty.
        let fits = objects.min(bytes / object_bytes);
        let shards = (fits / 256).clamp(1, 16);
        Share {
            shards,
            objects: objects / shards,
            bytes: bytes / shards,
            object_bytes,
        }
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    /// Whether a shard with this many objects, and bytes beside them, is too full.
    pub(crate) fn is_over(&self, objects: usize, extra: usize) -> bool {
        objects > self.objects || objects * self.object_bytes + extra > self.bytes
    }

    /// Whether all shards together, with so many objects and bytes beside them, are.
    pub(crate) fn is_over_in_all(&self, objects: usize, extra: usize) -> bool {
        self.is_over(objects.div_ceil(self.shards), extra.div_ceil(self.shards))
    }
}
