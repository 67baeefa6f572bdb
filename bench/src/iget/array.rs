//! What the machine allows: counted references out of an array.
//!
//! No table of inodes can be faster than this: there is nothing to hash, to compare, or to
//! keep from being freed meanwhile. It cannot serve anybody either, as inode numbers have
//! gaps and an array evicts nothing. So it takes part where all hit, to say how much of an
//! operation is the memory's.

use std::sync::OnceLock;

use rcuwalk_sync::Ref;

use super::table::{Contents, Entrant, Got, InodeTable, LocksPer, part_of};

/// Inodes by number: the same counted objects as ours, a cache line each.
struct Array(Vec<OnceLock<Ref<(u64, u64)>>>);

/// As an entrant.
pub(super) fn entrant() -> Entrant {
    let empty = |inodes| Array((0..inodes).map(|_| OnceLock::new()).collect());
    Entrant::new("array", empty).hits_only()
}

impl Contents for Ref<(u64, u64)> {
    #[inline]
    fn contents(&self) -> (u64, u64) {
        ***self
    }
}

impl InodeTable for Array {
    type Inode = Ref<(u64, u64)>;
    const LOCKS: Option<LocksPer> = Some(LocksPer::new(0.0, 0.0));

    #[inline]
    fn iget(&self, key: u64) -> Got<Self::Inode> {
        let slot = &self.0[key as usize];
        match slot.get() {
            Some(inode) => Got::Cached(inode.clone()),
            None => {
                let new = slot.get_or_init(|| Ref::new((key, part_of(key))));
                Got::New(new.clone())
            }
        }
    }

    /// Nothing is new where all hit.
    fn evict(&self, _key: u64) {}

    fn len(&self) -> usize {
        self.0.iter().filter(|slot| slot.get().is_some()).count()
    }
}
