//! An inode's life, drawn once: [`Life`].
//!
//! INODE-4: life moves along the drawn arrows; Freeing is final.
//!
//! All of it is one atomic word, the one that counts the references: a flag each for
//! New and Creating, the dead mark for Freeing, the shrinker's mark, and the count
//! itself, which tells what is in use from what only the cache still has. So no two of
//! them can disagree, and of a reference and a death that race one wins.

use rcuwalk_sync::{Flag, Shared};

/// Where an inode is in its life.
///
/// ```text
///            insert_inode_locked
///   Creating -------------+       iput (the last)
///      |                  | init        +-------> Unused --------+
///      |                  v             |  iget   |   ^          |
///      |     init         +------------>Live <----+   | the shrinker
///      |   New ---------> +             |  ^          | passes over it
///      |    |                           |  | iget     |          |
///      |    |                           |  +-----> Referenced    |
///      |    |                           | iput after a use |     |
///      | dropped without init           |                  |     | prune, evict_inodes,
///      v    v                           v unhash, or iput  v     v drop_unused
///   Freeing <---------------------------+ of one that is <-+-----+
///      |                                  not to be cached
///      v
///   gone: off the table; memory freed by RCU
/// ```
///
/// | state      | in the word                         | a lookup that meets it           |
/// |------------|-------------------------------------|----------------------------------|
/// | New        | NEW                                 | waits, then looks again          |
/// | Creating   | NEW and CREATING                    | gets [`Stale`](super::Stale)     |
/// | Live       | more references than the cache's    | takes one more                   |
/// | Referenced | the cache's references only         | takes one                        |
/// | Unused     | the same, and the shrinker's mark   | takes one, and clears the mark   |
/// | Freeing    | the dead mark                       | waits until it is gone, looks again |
#[doc(alias(
    "i_state",
    "I_NEW",
    "I_CREATING",
    "I_REFERENCED",
    "I_FREEING",
    "I_WILL_FREE"
))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its reader fills it in.
    New,
    /// Its creator has reserved its key.
    Creating,
    /// In use.
    Live,
    /// Not in use, but it has been since the shrinker last looked.
    Referenced,
    /// Not in use: the next to go.
    Unused,
    /// On its way out.
    Freeing,
}

/// Set while the holder of the [`NewInode`](super::NewInodeOf) fills the inode in.
#[doc(alias = "I_NEW")]
pub(super) const NEW: Flag = Flag::new(0);

/// Set beside NEW while the inode's creator has it.
#[doc(alias = "I_CREATING")]
pub(super) const CREATING: Flag = Flag::new(2);

/// Set on an inode that is to go with its last reference.
#[doc(alias = "I_DONTCACHE")]
pub(super) const DONT_CACHE: Flag = Flag::new(3);

/// References to an inode that only the cache has: the hash table's and the list's.
pub(super) const CACHED: u32 = 2;

impl Life {
    /// The arrows of the picture, and no others.
    pub const fn may_become(self, next: Life) -> bool {
        use Life::*;
        matches!(
            (self, next),
            (New | Creating, Live | Freeing)
                | (Live, Referenced | Unused | Freeing)
                | (Referenced, Live | Unused | Freeing)
                | (Unused, Live | Freeing)
        )
    }

    /// Where this object is, at this moment.
    pub(super) fn of<T>(object: &Shared<T>) -> Life {
        let word = object.snapshot();
        if word.is_dead() {
            Life::Freeing
        } else if word.has(NEW) {
            match word.has(CREATING) {
                true => Life::Creating,
                false => Life::New,
            }
        } else if word.count() > CACHED {
            Life::Live
        } else if word.has(Flag::AGED) {
            Life::Unused
        } else {
            Life::Referenced
        }
    }
}
