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
//! The directory is held shared, as for any lookup: lookups of other names in it and listings go
//! on meanwhile. One thread at a time reads in neighbours in a directory; another one that misses
//! a name there looks up that name alone, and does not wait.
//!
//! DENTRY-2: each name is added by the thread that has the right to. The name that was asked for
//! is in lookup, by this thread. A neighbour is added if it is neither cached nor in lookup, in one
//! step ([`Dcache::add_unasked`]). Changes hold the directory exclusively, so an answer of the
//! back end is not outdated before it has been added (DENTRY-3).

use std::ops::ControlFlow;

use super::refs::RefWalk;
use crate::dentry::{Dcache, DentryRef, FoundIn, NameHash, Validity};
use crate::error::Result;
use crate::name::Name;
use crate::vfs_inode::{Allowance, InodeRef};

/// Dentries on their way: enough that a bucket has arrived when its turn comes.
const ON_THE_WAY: usize = 16;

impl RefWalk<'_> {
    /// Asks the back end for `name`, which the caller has in lookup, and adds its neighbours to the
    /// cache.
    pub(super) fn ask_around(
        &self,
        at: &FoundIn<'_>,
        name: &NameHash<'_>,
        validity: Validity,
        allowance: Allowance<'_>,
    ) -> Result<Option<InodeRef>> {
        let (sb, dcache) = (at.sb, &self.request.ns.caches.dcache);
        let mut unasked = Unasked {
            allowance,
            on_the_way: Default::default(),
            next: 0,
        };
        let mut around = |neighbour: Name<'_>, inode: InodeRef| {
            if neighbour != name.name {
                let neighbour = dcache.name(neighbour);
                let dentry = dcache.d_alloc(at.dir, &neighbour, inode, validity);
                unasked.add(dentry, dcache);
            }
            match unasked.allowance.use_one() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let inode = sb
            .fs()
            .lookup_around(sb, at.dir_inode, name.name, &mut around);
        // Also after an error: what came before it has come.
        for dentry in unasked.on_the_way.into_iter().flatten() {
            dcache.add_unasked(dentry);
        }
        inode
    }
}

/// Names added to the cache without a lookup.
struct Unasked<'a> {
    allowance: Allowance<'a>,
    on_the_way: [Option<DentryRef>; ON_THE_WAY],
    next: usize,
}

impl Unasked<'_> {
    fn add(&mut self, dentry: DentryRef, dcache: &Dcache) {
        if let Some(first) = self.on_the_way[self.next].replace(dentry) {
            dcache.add_unasked(first);
        }
        // Half way: the bucket is loaded, and tells which lines are needed next.
        if let Some(half_way) = &self.on_the_way[(self.next + ON_THE_WAY / 2) % ON_THE_WAY] {
            dcache.prefetch_chain(half_way);
        }
        self.next = (self.next + 1) % ON_THE_WAY;
    }
}
