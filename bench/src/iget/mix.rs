//! Which keys are asked for, in which order.
//!
//! Hot keys are there from the start, and drawn at random. Streamed keys are asked
//! for once each, in ascending order, as a scan meets inode numbers; for each new one
//! the oldest goes. So the oldest is known without a list: it is the number as far
//! back as the stream is long. Peers that need such a list thus get it for nothing.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use crate::random::Random;

/// Operations between two looks at the clock.
pub(super) const CHUNK: u64 = 64;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mix {
    /// Random inodes, all of them cached.
    Hit,
    /// Nine of ten are random cached inodes, one is new. Half of the inodes are those
    /// nine's; the stream flows through the other half.
    Mixed,
    /// All are new, as in a backup's scan.
    Stream,
}

impl Mix {
    /// All loads.
    pub const ALL: [Mix; 3] = [Mix::Hit, Mix::Mixed, Mix::Stream];

    /// Returns the keys of this load over `cached` inodes, for up to `lanes` threads.
    pub(super) fn keys(self, inodes: u64, lanes: usize) -> Keys {
        let hot = match self {
            Mix::Hit => inodes,
            Mix::Mixed => inodes / 2,
            Mix::Stream => 0,
        };
        Keys {
            mix: self,
            inodes,
            hot,
            lane_length: (inodes - hot) / lanes as u64,
            lanes,
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mix::Hit => "hit",
            Mix::Mixed => "mixed",
            Mix::Stream => "stream",
        })
    }
}

/// The keys of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    pub(super) mix: Mix,
    inodes: u64,
    hot: u64,
    /// How many streamed keys of a lane are cached.
    lane_length: u64,
    lanes: usize,
}

impl Keys {
    /// How many inodes may be cached.
    pub(super) fn budget(&self) -> u64 {
        match self.mix {
            // Nothing may be evicted, and the shards of a budget do not fill evenly.
            Mix::Hit => 2 * self.inodes,
            _ => self.inodes,
        }
    }

    /// What a table is filled with.
    pub(super) fn at_start(self) -> impl Iterator<Item = u64> {
        let streamed = (0..self.lanes as u64)
            .flat_map(move |lane| (0..self.lane_length).map(move |n| lane_key(lane, n)));
        // The hot ones are used again, so that a cache that notices knows them.
        streamed.chain(0..self.hot).chain(0..self.hot)
    }

    pub(super) fn hot(&self, random: &mut Random) -> u64 {
        random.below(self.hot)
    }

    /// The streams of keys. One lane is one thread's at a time, and each thread has
    /// at least one, so that no two threads ask for the same new inode.
    pub(super) fn lanes(&self) -> Vec<Lane> {
        (0..self.lanes)
            .map(|_| Lane {
                next: AtomicU64::new(self.lane_length),
            })
            .collect()
    }

    /// The streamed key with this number, and the one that is the oldest then.
    #[inline]
    pub(super) fn streamed(&self, lane: usize, number: u64) -> (u64, u64) {
        let lane = lane as u64;
        (
            lane_key(lane, number),
            lane_key(lane, number - self.lane_length),
        )
    }
}

/// Hot keys are below all of these.
fn lane_key(lane: u64, number: u64) -> u64 {
    (lane + 1) << 40 | number
}

/// Where a stream of keys has got to, kept from run to run.
pub(super) struct Lane {
    next: AtomicU64,
}

impl Lane {
    pub(super) fn next(&self) -> u64 {
        self.next.load(Relaxed)
    }

    pub(super) fn set_next(&self, next: u64) {
        self.next.store(next, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_load_starts_with_as_many_inodes_as_are_to_be_cached() {
        for (mix, hot) in [(Mix::Hit, 1000), (Mix::Mixed, 500), (Mix::Stream, 0)] {
            let keys = mix.keys(1000, 4);
            let start: HashSet<_> = keys.at_start().collect();
            assert_eq!(start.len(), 1000, "{mix}");
            assert!((0..hot).all(|key| start.contains(&key)));
            assert!(keys.budget() >= 1000);
        }
    }

    #[test]
    fn the_oldest_streamed_key_goes_for_each_new_one() {
        let keys = Mix::Stream.keys(100, 2);
        let mut cached: HashSet<_> = keys.at_start().collect();
        let first = keys.lanes()[1].next();
        for number in first..first + 1000 {
            let (new, oldest) = keys.streamed(1, number);
            assert!(cached.insert(new), "never seen before");
            assert!(cached.remove(&oldest), "still there");
        }
        assert_eq!(cached.len(), 100);
    }
}
