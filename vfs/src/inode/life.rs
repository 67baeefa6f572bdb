//! An inode's life, drawn once: [`Life`].
//!
//! INODE-4: life moves along the drawn arrows; Freeing is final.
//!
//! All of it is one atomic word, the one that counts the references: a flag each for New and
//! Creating, the dead mark for Freeing, the shrinker's mark, and the count itself, which
//! distinguishes inodes in use from those that only the cache holds. So no two of them can
//! disagree, and when a reference and a death race, one wins.

use rcuwalk_sync::{Flag, Shared};

/// Where an inode is in its life.
///
/// ```text
///    iget           insert_inode
///     |                  |
///     v       init       v
///    New ---> Live <--- Creating
///     |      ^   |       |
///     |  iget|   |iput   |
///     |      |   v       |
///     |   Referenced --> Unused       the shrinker has passed over it
///     |      |   |          |
///     v      v   v          v
///     +--->  Freeing  <-----+         from New and Creating: dropped without `init`;
///               |                     from Live: unhash, or the last iput of one that
///               v                     is not to be cached; from the others: prune,
///     off the table, freed by RCU     evict_inodes, drop_unused
/// ```
///
/// | state      | in the word                         | a lookup that meets it           |
/// |------------|-------------------------------------|----------------------------------|
/// | New        | NEW                                 | waits, then looks again          |
/// | Creating   | NEW and CREATING                    | gets [`Stale`](super::Stale)     |
/// | Live       | references beside the cache's       | takes one more                   |
/// | Referenced | the cache's references only         | takes one                        |
/// | Unused     | the same, and the shrinker's mark   | takes one, and clears the mark   |
/// | Freeing    | the dead mark, or off the table     | waits until it is gone, looks again |
#[doc(alias(
    "i_state",
    "I_NEW",
    "I_CREATING",
    "I_REFERENCED",
    "I_FREEING",
    "I_WILL_FREE"
))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// Set while the holder of the [`NewInode`](super::NewInode) fills the inode in.
#[doc(alias = "I_NEW")]
pub(super) const NEW: Flag = Flag::new(0);

/// Set beside NEW while the inode's creator has it.
#[doc(alias = "I_CREATING")]
pub(super) const CREATING: Flag = Flag::new(2);

/// Set on an inode that goes with its last reference.
#[doc(alias = "I_DONTCACHE")]
pub(super) const DONT_CACHE: Flag = Flag::new(3);

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
        if word.is_dead() || !word.is_hashed() {
            Life::Freeing
        } else if word.has(NEW) {
            match word.has(CREATING) {
                true => Life::Creating,
                false => Life::New,
            }
        } else if word.is_used() {
            Life::Live
        } else if word.has(Flag::AGED) {
            Life::Unused
        } else {
            Life::Referenced
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Arc, Mutex};

    use rcuwalk_sync::rcu;

    use super::Life::{self, *};
    use crate::inode::{Iget, InodeCache, Key, Unwaited};

    const ALL: [Life; 6] = [New, Creating, Live, Referenced, Unused, Freeing];

    #[derive(Clone, PartialEq, Eq)]
    struct Ino(u64);

    impl Key for Ino {
        fn hash(&self) -> u64 {
            self.0
        }
    }

    type Cache = InodeCache<Ino, ()>;

    /// Where the inode on the table is, without counting on it.
    fn life(cache: &Cache, ino: u64) -> Life {
        let guard = rcu::read_lock();
        let hash = crate::inode::node::spread(ino);
        let found = cache
            .inner
            .table
            .find(hash, &guard, |node| node.key().0 == ino);
        Life::of(found.expect("hashed"))
    }

    fn get(cache: &Cache, ino: u64) -> crate::inode::InodeRef<Ino, ()> {
        match cache.iget(Ino(ino)).unwrap() {
            Iget::Cached(inode) => inode,
            Iget::New(new) => new.init(()),
        }
    }

    /// INODE-4: inodes take each arrow of the picture, and no others, and no arrow leads away
    /// from Freeing.
    #[test]
    fn the_arrows_are_those_of_the_picture() {
        let seen = Arc::new(Mutex::new(HashSet::new()));
        let arrow = |from, to| _ = seen.lock().unwrap().insert((from, to));
        // The hook sees the inode as Freeing; before, it was in the state `from`.
        let from = Arc::new(Mutex::new(New));
        let cache: Arc<Cache> = Arc::new_cyclic(|weak: &std::sync::Weak<Cache>| {
            let (weak, seen, from) = (weak.clone(), seen.clone(), from.clone());
            InodeCache::builder()
                .inodes(4)
                .on_evict(move |node: &crate::inode::Node<Ino, ()>| {
                    if let Some(cache) = weak.upgrade() {
                        let to = life(&cache, node.key().0);
                        seen.lock().unwrap().insert((*from.lock().unwrap(), to));
                    }
                })
                .build()
        });

        for (ino, first) in [(1, New), (2, Creating)] {
            for fails in [true, false] {
                let new = match first {
                    New => match cache.iget(Ino(ino)).unwrap() {
                        Iget::New(new) => new,
                        Iget::Cached(_) => panic!("nobody has it"),
                    },
                    _ => cache.insert_inode(Ino(ino)).unwrap(),
                };
                assert_eq!(life(&cache, ino), first, "INODE-4");
                let watched = match cache.ilookup5_nowait(ino, |node| node.key().0 == ino) {
                    Ok(Some(Unwaited::New(pending))) => Some(pending),
                    Ok(_) => panic!("INODE-2: it is New"),
                    Err(_) => None,
                };
                if fails {
                    drop(new);
                    // A creator's cannot be watched from outside; its `Drop` is the same.
                    let after = watched.map_or(Freeing, |pending| pending.life());
                    arrow(first, after);
                } else {
                    drop(watched);
                    let inode = new.init(());
                    arrow(first, life(&cache, ino));
                    drop(inode);
                    arrow(Live, life(&cache, ino));
                }
            }
        }
        // Those have been looked for; this one has not.
        drop(get(&cache, 6));
        arrow(Live, life(&cache, 6));
        drop((get(&cache, 1), get(&cache, 2)));
        assert_eq!(life(&cache, 1), Referenced, "INODE-4");
        arrow(Live, Referenced);
        let held = get(&cache, 1);
        arrow(Referenced, life(&cache, 1));
        drop(held);

        // The shrinker passes over an inode that was used, and takes it the next time.
        let filler: Vec<_> = (10..20).map(|ino| get(&cache, ino)).collect();
        *from.lock().unwrap() = Unused;
        drop(get(&cache, 3));
        drop(get(&cache, 3));
        assert_eq!(life(&cache, 3), Referenced, "INODE-4: just used");
        cache.prune(20);
        arrow(Referenced, life(&cache, 3));
        let held = get(&cache, 3);
        arrow(Unused, life(&cache, 3));
        drop(held);
        cache.prune(20);
        cache.prune(20);
        assert!(cache.ilookup(&Ino(3)).unwrap().is_none(), "MEM-1: pruned");
        drop(filler);
        cache.drop_unused();

        *from.lock().unwrap() = Referenced;
        drop((get(&cache, 4), get(&cache, 4)));
        drop(get(&cache, 4));
        assert_eq!(life(&cache, 4), Referenced, "INODE-4");
        assert_eq!(cache.drop_unused(), 1);

        *from.lock().unwrap() = Live;
        let last = get(&cache, 5);
        last.dont_cache();
        drop(last);
        assert!(cache.ilookup(&Ino(5)).unwrap().is_none(), "INODE-4");

        let drawn: HashSet<_> = ALL
            .iter()
            .flat_map(|from| ALL.map(|to| (*from, to)))
            .filter(|(from, to)| from.may_become(*to))
            .collect();
        assert_eq!(*seen.lock().unwrap(), drawn, "INODE-4");
        assert!(ALL.iter().all(|next| !Freeing.may_become(*next)), "INODE-4");
    }
}
