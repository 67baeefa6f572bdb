//! Ours as entrants: one cache, with the locking schemes as its knobs.

use rcuwalk::inode::{Iget, InodeCache, InodeRef, Key, Scheme};

use super::table::{Contents, Counters, Entrant, Got, InodeTable, part_of};

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
    /// Returns an empty cache with a budget of this number of inodes.
    pub fn new(inodes: u64) -> OursTable {
        OursTable::with_scheme(inodes, Scheme::OURS)
    }

    /// The same, locked like this.
    fn with_scheme(inodes: u64, scheme: Scheme) -> OursTable {
        // The budget is in inodes; bytes are to be no limit.
        let cache = InodeCache::builder()
            .inodes(inodes as usize)
            .bytes(usize::MAX >> 1)
            .scheme(scheme);
        OursTable(cache.build())
    }
}

/// Ours, once per locking scheme: a lock per bucket and lookups without; one lock and
/// lookups without, as after the kernel's patch; one lock for both, as before it.
pub fn schemes() -> Vec<Entrant> {
    let schemes = [
        ("ours", Scheme::OURS),
        ("patch", Scheme::PATCH),
        ("stock", Scheme::STOCK),
    ];
    let entrant =
        |(name, scheme)| Entrant::new(name, move |inodes| OursTable::with_scheme(inodes, scheme));
    schemes.map(entrant).into()
}

impl Contents for InodeRef<Ino, u64> {
    #[inline]
    fn contents(&self) -> (u64, u64) {
        (self.key().0, ***self)
    }
}

impl InodeTable for OursTable {
    type Inode = InodeRef<Ino, u64>;

    #[inline]
    fn iget(&self, key: u64) -> Got<Self::Inode> {
        match self.0.iget(Ino(key)).expect("nobody creates inodes here") {
            Iget::Cached(inode) => Got::Cached(inode),
            Iget::New(new) => Got::New(new.init(part_of(key))),
        }
    }

    /// The budget sees to it.
    #[inline]
    fn evict(&self, _oldest: u64) {}

    fn len(&self) -> usize {
        self.0.statistics().inodes
    }

    fn allocated(&self) -> Option<u64> {
        let all = rcuwalk_sync::memory::statistics();
        Some((all.objects + all.heads) as u64)
    }

    fn counters(&self) -> Option<Counters> {
        let own = self.0.statistics();
        Some(Counters {
            hits: own.hits + own.second_hits,
            misses: own.inserted,
            locks: own.lookup_locks + own.insert_locks + own.evict_locks,
        })
    }
}
