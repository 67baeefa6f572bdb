//! Looking up a name together with its neighbours.
//!
//! A program that lists a directory goes on, as a rule, to look up each of its names: `ls -l`,
//! a backup. To find one, a back end like ext4 reads a block that holds a hundred others, and
//! their inodes lie next to each other as well. So the first name that is missed after a
//! listing brings the rest of its block into the cache, and the next lookups are hits.
//!
//! These names come unasked, so there is a limit: between two listings a directory gets no more
//! of them than the listing returned ([`Listed`](crate::vfs_inode::Listed)). Random names are
//! looked up one by one.
//!
//! DENTRY-2 holds: the directory is held exclusively, so none of its names is being
//! looked up by anyone else.

use std::ops::ControlFlow;

use super::refs::RefWalk;
use crate::dentry::{Dcache, DentryRef, FoundIn, NameHash};
use crate::error::{Error, Result};
use crate::trace::Origin;
use crate::vfs_inode::{DEAD_DIR, InodeRef};

/// Dentries on their way: enough that a bucket has arrived when its turn comes.
const ON_THE_WAY: usize = 16;

impl RefWalk<'_> {
    /// Looks `name` up with its neighbours; `None` if that is not to be done here.
    pub(super) fn lookup_around(
        &self,
        dir: &InodeRef,
        name: &NameHash<'_>,
    ) -> Result<Option<DentryRef>> {
        let sb = &self.at.mnt().sb;
        if !sb.looks_around || dir.rwsem().read().names() == 0 {
            return Ok(None);
        }
        let caches = &self.request.ns.caches;
        let dcache = &caches.dcache;
        let parent = self.at.dentry();
        let exclusive = dir.rwsem().write();
        let left = exclusive.names();
        if left == 0 {
            // Used up while this one waited.
            return Ok(None);
        }
        if let Some(dentry) = dcache.d_lookup(parent, name) {
            // Another thread was first; the normal lookup checks whether the name is valid.
            dcache.put(dentry);
            return Ok(None);
        }
        if dir.shared().has(DEAD_DIR) {
            return Err(Error::NotFound);
        }
        let so_many = caches.counters.get().slow_lookup();
        self.record.how(Origin::LookedUp);
        let validity = sb.validity(Some(dir));
        let mut unasked = Unasked {
            left,
            on_the_way: Default::default(),
            next: 0,
        };
        let inode = sb
            .fs()
            .lookup_around(sb, dir, name.name, &mut |name, inode| {
                let dentry = dcache.d_alloc(parent, &dcache.name(name), inode, validity);
                unasked.add(dentry, dcache)
            });
        for dentry in unasked.on_the_way.into_iter().flatten() {
            dcache.add_unasked(dentry);
        }
        // Also after an error: what came before it has come.
        exclusive.leave(unasked.left, so_many);
        let at = FoundIn::only(sb, (parent, dir));
        let dentry = inode.map(|inode| match dcache.d_lookup(parent, name) {
            Some(dentry) => Some(dentry),
            // If a directory cannot move here now, the normal lookup handles it.
            None => dcache.d_splice(&at, name, inode, validity).ok(),
        });
        drop(exclusive);
        caches.make_room();
        dentry
    }
}

/// Names added to the cache without a lookup.
struct Unasked {
    /// How many more are allowed.
    left: u32,
    on_the_way: [Option<DentryRef>; ON_THE_WAY],
    next: usize,
}

impl Unasked {
    fn add(&mut self, dentry: DentryRef, dcache: &Dcache) -> ControlFlow<()> {
        if let Some(first) = self.on_the_way[self.next].replace(dentry) {
            dcache.add_unasked(first);
        }
        // Half way: the bucket is loaded, and tells which lines are needed next.
        if let Some(half_way) = &self.on_the_way[(self.next + ON_THE_WAY / 2) % ON_THE_WAY] {
            dcache.prefetch_chain(half_way);
        }
        self.next = (self.next + 1) % ON_THE_WAY;
        self.left = self.left.saturating_sub(1);
        match self.left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}
