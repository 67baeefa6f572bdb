//! Names for which the kernel has an answer that is valid for [`TOLD`], and no node that leads to
//! them: missing names, and former names of files.
//!
//! They are recorded for as long as that answer is valid. After lost reports they expire with the
//! names of all nodes. A name that finds no room here gets the ordinary timeouts.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rcuwalk::inode::NodeId;

use super::TOLD;

/// Most names: about 5 MiB, and half as many as [wait for notices](super::queue).
const MOST: usize = 1 << 15;

/// Requests for names of different directories mostly take different locks.
const SHARDS: usize = 16;

/// A name is recorded for one to two of these: longer than the kernel keeps the answer, which it
/// gets a little later.
const PERIOD: Duration = TOLD.saturating_add(Duration::from_secs(10));

#[derive(Debug, Default)]
pub(super) struct Given([Mutex<Shard>; SHARDS]);

#[derive(Debug, Default)]
struct Shard {
    /// Long answers are given.
    is_open: bool,
    /// Names of this period, and of the one before.
    names: [Names; 2],
    /// The start of this period.
    since: Option<Instant>,
}

#[derive(Debug, Default)]
struct Names {
    by_dir: HashMap<NodeId, HashSet<Box<[u8]>>>,
    count: usize,
}

impl Given {
    /// Records a name *before* the kernel gets its answer. False if the answer must not be a long
    /// one.
    ///
    /// FRESH-1: with the lock held. Either this comes first, and [`close`](Self::close) finds the
    /// name, or it sees that no long answers are given any more.
    pub(super) fn note(&self, dir: NodeId, name: &[u8]) -> bool {
        let mut shard = self.shard(dir);
        shard.is_open && shard.note(dir, name, Instant::now())
    }

    /// Long answers are given from now on.
    pub(super) fn open(&self) {
        self.all().for_each(|mut shard| shard.is_open = true);
    }

    /// No long answers are given from now on; calls `found` with each name that had one. They stay
    /// recorded: their notices may be dropped.
    pub(super) fn close(&self, mut found: impl FnMut(NodeId, &[u8])) {
        for mut shard in self.all() {
            shard.is_open = false;
            for (dir, names) in shard.names.iter().flat_map(|names| &names.by_dir) {
                names.iter().for_each(|name| found(*dir, name));
            }
        }
    }

    fn shard(&self, dir: NodeId) -> MutexGuard<'_, Shard> {
        // Fibonacci hashing: inode numbers of directories may be multiples of a power of two.
        let hash = dir.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        lock(&self.0[hash as usize % SHARDS])
    }

    fn all(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.0.iter().map(lock)
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    fn note(&mut self, dir: NodeId, name: &[u8], now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= PERIOD {
            self.since = Some(now);
            self.names.swap(0, 1);
            self.names[0] = Names::default();
        }
        let full = self.names[0].count + self.names[1].count >= MOST / SHARDS;
        self.names[0].note(dir, name, full)
    }
}

impl Names {
    fn note(&mut self, dir: NodeId, name: &[u8], full: bool) -> bool {
        let names = self.by_dir.get_mut(&dir);
        if names.as_ref().is_some_and(|names| names.contains(name)) {
            return true;
        }
        if full {
            return false;
        }
        match names {
            Some(names) => _ = names.insert(Box::from(name)),
            None => _ = self.by_dir.insert(dir, HashSet::from([Box::from(name)])),
        }
        self.count += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(given: &Given) -> usize {
        let mut names = 0;
        given.close(|_, _| names += 1);
        names
    }

    /// FRESH-1: a long answer is recorded, or is not given.
    #[test]
    fn a_name_is_recorded_or_gets_no_long_answer() {
        let given = Given::default();
        assert!(!given.note(NodeId(1), b"a"), "FRESH-1: not open yet");
        given.open();
        for name in [b"a", b"b", b"a"] {
            assert!(given.note(NodeId(1), name));
        }
        assert_eq!(closed(&given), 2, "FRESH-1");
        assert!(!given.note(NodeId(1), b"a"), "FRESH-1: closed");
        given.open();
        let room = (0..2 * MOST).filter(|n| given.note(NodeId(1), n.to_string().as_bytes()));
        assert_eq!(
            room.count(),
            MOST / SHARDS - 2,
            "MEM-1: with the two of before"
        );
        assert!(given.note(NodeId(1), b"0"), "it is recorded already");
        assert_eq!(closed(&given), MOST / SHARDS, "FRESH-1");
    }

    /// FRESH-1: a name is recorded for as long as its answer is valid; MEM-1: and not much longer.
    #[test]
    fn a_name_is_recorded_until_its_answer_is_not_valid_any_more() {
        let mut shard = Shard::default();
        let start = Instant::now();
        let count = |shard: &Shard| shard.names[0].count + shard.names[1].count;
        assert!(shard.note(NodeId(1), b"a", start));
        assert!(shard.note(NodeId(1), b"b", start + PERIOD - Duration::from_secs(1)));
        assert!(shard.note(NodeId(2), b"c", start + PERIOD + TOLD));
        assert_eq!(count(&shard), 3, "FRESH-1");
        assert!(shard.note(NodeId(2), b"d", start + 3 * PERIOD));
        assert_eq!(count(&shard), 2, "MEM-1");
    }
}
