//! Ours as entrants: one cache, with the locking schemes as its knobs.

use rcuwalk::inode::{IgetOf, InodeCache, InodeRefOf, Key};

use super::table::{Entrant, Got, NodeTable, part_of};

/// An inode number, as it is: the cache mixes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ino(u64);

impl Key for Ino {
    #[inline]
    fn hash(&self) -> u64 {
        self.0
    }
}

/// Our cache under test.
pub struct OursTable(InodeCache<Ino, u64>);

impl OursTable {
    /// An empty cache that keeps at most so many inodes.
    pub fn new(inodes: u64) -> OursTable {
        // Bytes are no limit here.
        OursTable(InodeCache::new(inodes as usize, usize::MAX >> 8, |_| 0))
    }
}

/// Ours, once per locking scheme.
pub fn schemes() -> Vec<Entrant> {
    vec![Entrant::new("ours", OursTable::new)]
}

impl NodeTable for OursTable {
    type Inode = InodeRefOf<Ino, u64>;

    #[inline]
    fn iget(&self, key: u64) -> Got<Self::Inode> {
        match self.0.iget(Ino(key)) {
            IgetOf::Cached(inode) => Got::Cached(inode),
            IgetOf::New(new) => Got::New(new.init(part_of(key))),
        }
    }

    #[inline]
    fn contents(inode: &Self::Inode) -> (u64, u64) {
        (inode.key().0, ***inode)
    }

    /// The budget sees to it.
    #[inline]
    fn evict(&self, _oldest: u64) {}

    fn len(&self) -> usize {
        self.0.size().0
    }
}
