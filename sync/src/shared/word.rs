//! The bits of a [`Shared`]'s word: count, marks, lock.
//!
//! | bits  | meaning                                                          |
//! |-------|------------------------------------------------------------------|
//! | 0–31  | the references, those of containers included                     |
//! | 32    | dead                                                             |
//! | 33–34 | locked; threads wait for a mark                                  |
//! | 35–37 | on a hash table; on an LRU list; passed over by the shrinker     |
//! | 38    | threads may wait for the lock                                    |
//! | 40–47 | the owner's flags                                                |
//! | 48–63 | the number of the LRU list                                       |
//!
//! [`Shared`]: super::Shared

pub(super) const COUNT: u64 = u32::MAX as u64;
/// No more references than this, with as many again as a margin for threads that
/// are past the check.
pub(super) const MOST: u64 = COUNT / 2;
pub(super) const DEAD: u64 = 1 << 32;
pub(super) const LOCKED: u64 = 1 << 33;
/// Threads wait for a mark to go.
pub(super) const WAITERS: u64 = 1 << 34;
/// Threads may wait for the lock.
pub(super) const LOCK_WAITERS: u64 = 1 << 38;

/// A mark in the word of a [`Shared`](super::Shared), for the object's owner to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag(u64);

impl Flag {
    #[inline]
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// The flag number `n`, below 8.
    pub const fn new(n: u32) -> Flag {
        assert!(n < 8);
        Flag(1 << (40 + n))
    }

    /// None.
    pub const NONE: Flag = Flag(0);

    /// On the chain of a hash table.
    pub(crate) const HASHED: Flag = Flag(1 << 35);
    /// On an LRU list.
    pub(crate) const LISTED: Flag = Flag(1 << 36);
    pub(super) const LIST_NUMBER: u64 = 0xffff << 48;
    /// Passed over once by the shrinker, and not used since. An object that starts with it gets
    /// a second chance only after a use.
    pub const AGED: Flag = Flag(1 << 37);
}

/// Several flags at once, where an object is born.
impl std::ops::BitOr for Flag {
    type Output = Flag;
    fn bitor(self, other: Flag) -> Flag {
        Flag(self.0 | other.0)
    }
}

/// An object's word at one moment.
#[derive(Clone, Copy)]
pub struct Snapshot(u64);

impl Snapshot {
    pub(super) fn of(word: u64) -> Snapshot {
        Snapshot(word)
    }

    /// Whether it had references beside those of its containers.
    pub fn is_used(self) -> bool {
        users(self.0) > 0
    }

    /// Whether it had been killed.
    pub fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    /// Whether `flag` was set.
    pub fn has(self, flag: Flag) -> bool {
        self.0 & flag.0 != 0
    }

    /// Whether it was on a hash table.
    pub fn is_hashed(self) -> bool {
        self.has(Flag::HASHED)
    }
}

/// The references beside those of the object's containers.
#[inline]
pub(super) fn users(word: u64) -> u64 {
    let own = u64::from(word & Flag::HASHED.0 != 0) + u64::from(word & Flag::LISTED.0 != 0);
    (word & COUNT).saturating_sub(own)
}

/// Whether a reference is the last one that matters: there is no other, or no user but its
/// holder has the object, which is on a hash table, and has `flag`.
#[inline]
pub(super) fn is_last(word: u64, flag: Flag) -> bool {
    word & COUNT == 1 || word & flag.0 != 0 && word & Flag::HASHED.0 != 0 && users(word) == 1
}

/// Whether the last user of an object, if it is one that belongs to lists, hands its reference
/// to a list (LRU-1).
#[inline]
pub(super) fn leaves_for_list(word: u64) -> bool {
    word & (DEAD | Flag::HASHED.0 | Flag::LISTED.0) == Flag::HASHED.0 && word & COUNT == 2
}
