//! Limits how many open directories keep entries that have been read ahead of the kernel's
//! requests.
//!
//! An open directory keeps up to a batch of entries, some 100 KiB. It may stay open for ever, and
//! be one of thousands. So [`MOST`] of them keep entries, and the directory that was listed least
//! recently loses its own: its listing goes on from the position that the kernel asks for, with
//! entries that are read again.
//!
//! Directories are divided among shards, each with its own lock, and a READDIR takes one only
//! if its directory begins to keep entries or has lost them. Otherwise it only stores the time
//! in the directory itself.
//!
//! A directory is locked before its shard. In the other direction, the code only tries to lock
//! a directory: one that is being listed does not lose its entries.

use std::array;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

const SHARDS: usize = 16;
/// In each shard.
const EACH: usize = 8;
/// Directories that keep entries, in all.
#[cfg(test)]
const MOST: usize = SHARDS * EACH;

/// The part of a directory that [`Ahead`] uses. The values guard nothing: relaxed accesses are
/// enough.
#[derive(Debug)]
pub(crate) struct Mark {
    shard: usize,
    /// It is in the list of its shard.
    is_kept: AtomicBool,
    /// The time of its last listing.
    listed: AtomicU64,
}

/// Something that keeps entries.
pub(crate) trait Keeps {
    fn mark(&self) -> &Mark;

    /// Gives them up, and calls `then` with the same lock held; false if they are in use.
    fn give_up(&self, then: impl FnOnce()) -> bool;
}

/// All directories that keep entries.
pub(crate) struct Ahead<D> {
    began: Instant,
    shards: [Mutex<Vec<Weak<D>>>; SHARDS],
}

impl Mark {
    pub(crate) fn new() -> Mark {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        Mark {
            shard: LAST.fetch_add(1, Relaxed) % SHARDS,
            is_kept: AtomicBool::new(false),
            listed: AtomicU64::new(0),
        }
    }
}

impl<D: Keeps> Ahead<D> {
    pub(crate) fn new() -> Ahead<D> {
        Ahead {
            began: Instant::now(),
            shards: array::from_fn(|_| Mutex::default()),
        }
    }

    /// Records that `dir` has just been listed, and keeps the entries that were read and not
    /// yet requested.
    pub(crate) fn listed(&self, dir: &Arc<D>) {
        let now = self.began.elapsed().as_nanos();
        self.listed_at(u64::try_from(now).unwrap_or(u64::MAX), dir);
    }

    fn listed_at(&self, now: u64, dir: &Arc<D>) {
        let mark = dir.mark();
        mark.listed.store(now, Relaxed);
        if !mark.is_kept.load(Relaxed) && !mark.is_kept.swap(true, Relaxed) {
            self.keep(dir);
        }
    }

    #[cold]
    fn keep(&self, dir: &Arc<D>) {
        let shard = &self.shards[dir.mark().shard];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        // Closed ones among them.
        let mut dirs: Vec<Arc<D>> = shard.iter().filter_map(Weak::upgrade).collect();
        dirs.push(dir.clone());
        dirs.sort_by_key(|dir| dir.mark().listed.load(Relaxed));
        let mut surplus = dirs.len().saturating_sub(EACH);
        dirs.retain(|one| {
            let goes = surplus > 0 && one.give_up(|| one.mark().is_kept.store(false, Relaxed));
            surplus -= usize::from(goes);
            !goes
        });
        *shard = dirs.iter().map(Arc::downgrade).collect();
        // The last reference of a directory that is being closed may be here: do not drop it
        // under the lock.
        drop(shard);
        drop(dirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir {
        mark: Mark,
        entries: Mutex<bool>,
    }

    impl Keeps for Dir {
        fn mark(&self) -> &Mark {
            &self.mark
        }

        fn give_up(&self, then: impl FnOnce()) -> bool {
            let Ok(mut entries) = self.entries.try_lock() else {
                return false;
            };
            *entries = false;
            then();
            true
        }
    }

    impl Dir {
        fn new() -> Arc<Dir> {
            Arc::new(Dir {
                mark: Mark {
                    shard: 0,
                    ..Mark::new()
                },
                entries: Mutex::new(true),
            })
        }

        fn keeps(&self) -> bool {
            *self.entries.lock().unwrap()
        }
    }

    /// MEM-1: of the directories of a shard, the one that was listed least recently loses its
    /// entries, unless it is being listed.
    #[test]
    fn the_directory_that_was_listed_least_recently_loses_its_entries() {
        let ahead = Ahead::new();
        let dirs: Vec<_> = (0..EACH).map(|_| Dir::new()).collect();
        for (now, dir) in (1..).zip(&dirs) {
            ahead.listed_at(now, dir);
        }
        assert!(dirs.iter().all(|dir| dir.keeps()));
        ahead.listed_at(100, &dirs[0]);
        let more = [Dir::new(), Dir::new()];
        {
            let _listing = dirs[1].entries.lock().unwrap();
            ahead.listed_at(101, &more[0]);
        }
        let kept: Vec<bool> = dirs.iter().map(|dir| dir.keeps()).collect();
        assert!(
            kept[0] && kept[1] && !kept[2] && kept[3..].iter().all(|kept| *kept),
            "MEM-1"
        );
        // Once a directory is closed, another one may keep entries; one that is listed again
        // keeps them again.
        let mut dirs = dirs;
        let lost = dirs.remove(2);
        dirs.pop();
        *lost.entries.lock().unwrap() = true;
        ahead.listed_at(102, &lost);
        assert!(dirs.iter().all(|dir| dir.keeps()) && lost.keeps());
        ahead.listed_at(103, &more[1]);
        assert!(!dirs[1].keeps(), "MEM-1: the least recent by now");
        assert_eq!(dirs.iter().filter(|dir| !dir.keeps()).count(), 1);
    }

    #[test]
    fn directories_are_divided_evenly() {
        let ahead = Ahead::new();
        let dirs: Vec<_> = (0..2 * MOST)
            .map(|_| {
                Arc::new(Dir {
                    mark: Mark::new(),
                    entries: Mutex::new(true),
                })
            })
            .collect();
        dirs.iter().for_each(|dir| ahead.listed(dir));
        let kept = dirs.iter().filter(|dir| dir.keeps()).count();
        assert!(kept <= MOST, "MEM-1: {kept}");
    }
}
