//! What an entrant must be able to do: [`InodeTable`].

use std::sync::Arc;

use super::course::{Course, Filled};
use super::memory::{self, InodeBytes};
use super::mix::{Keys, Mix};

/// A table of inodes by number, as a file server keeps it.
///
/// An inode has its key and a private part of 8 bytes, [`part_of`] the key; it is
/// handed out by counted reference.
pub trait InodeTable: Send + Sync {
    /// A counted reference to an inode.
    type Inode: Contents;

    /// Lock acquisitions, found by reading its source.
    const LOCKS: Option<LocksPer> = None;

    /// The inode of this key with a new reference; read in if it was not there.
    fn iget(&self, key: u64) -> Got<Self::Inode>;

    /// Removes the inode of this key, the oldest. Called after each insertion into a
    /// full table; a cache with a budget of its own has nothing to do here.
    fn evict(&self, key: u64);

    /// How many inodes it has.
    fn len(&self) -> usize;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its own counters, if it has any.
    fn counters(&self) -> Option<Counters> {
        None
    }

    /// The bytes that its own allocator has given out, if it has one: those of this
    /// whole process.
    fn allocated(&self) -> Option<u64> {
        None
    }
}

/// An inode, or a reference to one.
pub trait Contents {
    /// The key and the private part.
    fn contents(&self) -> (u64, u64);
}

impl<I: Contents> Contents for Arc<I> {
    #[inline]
    fn contents(&self) -> (u64, u64) {
        (**self).contents()
    }
}

/// What [`InodeTable::iget`] found.
#[derive(Debug)]
pub enum Got<I> {
    /// The inode was there.
    Cached(I),
    /// It was read in.
    New(I),
}

/// A table's own counters, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lookups that found the inode.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Locks taken, for whatever.
    pub locks: u64,
}

/// How many locks an operation takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocksPer {
    /// One that hits.
    pub hit: f64,
    /// One that misses, inserts, and evicts another inode.
    pub miss: f64,
}

impl LocksPer {
    /// Counts by an operation that hits, and by one that misses.
    pub const fn new(hit: f64, miss: f64) -> LocksPer {
        LocksPer { hit, miss }
    }
}

/// What reading in the inode of this key gives.
#[inline]
pub fn part_of(key: u64) -> u64 {
    key.rotate_left(32) ^ 0x5DEE_CE66_D569_4C1B
}

/// A contender: a name, and how to make the table.
pub struct Entrant {
    pub(super) name: &'static str,
    start: Box<dyn Fn(Keys) -> Box<dyn Course>>,
    memory: Box<dyn Fn(u64) -> std::io::Result<InodeBytes>>,
    hits_only: bool,
}

impl Entrant {
    /// `make` makes an empty table. Its argument is how many inodes it may keep.
    pub fn new<T: InodeTable + 'static>(
        name: &'static str,
        make: impl Fn(u64) -> T + Clone + 'static,
    ) -> Entrant {
        let make_too = make.clone();
        Entrant {
            name,
            start: Box::new(move |keys| Box::new(Filled::new(make(keys.budget()), keys))),
            memory: Box::new(move |inodes| memory::bytes_per_inode(inodes, &make_too)),
            hits_only: false,
        }
    }

    /// The same, which takes part only where all keys hit.
    pub(super) fn hits_only(self) -> Entrant {
        Entrant {
            hits_only: true,
            ..self
        }
    }

    /// Whether it takes part under this load.
    pub fn takes_part(&self, mix: Mix) -> bool {
        mix == Mix::Hit || !self.hits_only
    }

    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn course(&self, keys: Keys) -> Box<dyn Course> {
        (self.start)(keys)
    }

    /// Returns the bytes that each of `inodes` inodes takes. Right only in a process that has
    /// just started: otherwise memory freed before would be used again.
    ///
    /// # Errors
    ///
    /// If the kernel does not say how large the process is.
    pub fn bytes_per_inode(&self, inodes: u64) -> std::io::Result<InodeBytes> {
        (self.memory)(inodes)
    }
}
