//! The node tables that `rcuwalk bench iget` compares with ours, and the daemon that
//! `rcuwalk bench fuse` does.
//!
//! | read                 | node table                                                |
//! |----------------------|-----------------------------------------------------------|
//! | `std_maps.rs`        | most daemons': a `HashMap` behind one lock                |
//! | `three_maps.rs`      | virtiofsd's and fuse-backend-rs's: three `BTreeMap`s      |
//! | `concurrent_maps.rs` | dashmap, papaya and scc, as a first attempt would use them |
//! | `hash.rs`            | the hash function that all of them can be given           |
//! | `plain_fuse.rs`      | a FUSE daemon with a `Mutex<HashMap>`                     |
//!
//! Each table is used as its documentation shows, with its own hasher (unless asked otherwise)
//! and its own size to start with; a lookup that misses inserts under the lock that insertion needs, and
//! looks again there. An inode is an `Arc` of the same key and private part as ours.
//! The oldest inode is known to them for nothing, where a daemon would keep a list.

#[cfg(feature = "concurrent-maps")]
mod concurrent_maps;
mod hash;
mod plain_fuse;
mod std_maps;
mod three_maps;

use std::hash::RandomState;
use std::sync::Arc;

use rcuwalk_bench::iget::{Contents, Entrant, part_of};

use hash::{Folding, Hashes};
pub use plain_fuse::PlainFuse;

/// All of them, each with its default hasher: for the hash tables, std's SipHash.
pub fn all() -> Vec<Entrant> {
    hashing_with::<RandomState>()
}

/// All of them, with the hash that our cache uses: fast, and no secret.
pub fn all_with_fast_hash() -> Vec<Entrant> {
    hashing_with::<Folding>()
}

fn hashing_with<S: Hashes>() -> Vec<Entrant> {
    let std_ones = [
        Entrant::new("mutex-hashmap", |_| std_maps::MutexTable::<S>::default()),
        Entrant::new("rwlock-hashmap", |_| std_maps::RwLockTable::<S>::default()),
        Entrant::new("btreemap", |_| three_maps::ThreeMaps::default()),
    ];
    #[cfg(not(feature = "concurrent-maps"))]
    let others = [];
    #[cfg(feature = "concurrent-maps")]
    let others = [
        Entrant::new("dashmap", |_| concurrent_maps::DashTable::<S>::default()),
        Entrant::new("papaya", |_| concurrent_maps::PapayaTable::<S>::default()),
        Entrant::new("scc-hashmap", |_| concurrent_maps::SccTable::<S>::default()),
        Entrant::new("scc-hashindex", |_| {
            concurrent_maps::SccIndex::<S>::default()
        }),
    ];
    std_ones.into_iter().chain(others).collect()
}

/// As much as ours: the key, and a private part of 8 bytes.
#[derive(Debug)]
pub(crate) struct Inode {
    key: u64,
    part: u64,
}

impl Inode {
    /// Reads it in.
    pub(crate) fn read(key: u64) -> Arc<Inode> {
        let part = part_of(key);
        Arc::new(Inode { key, part })
    }
}

impl Contents for Inode {
    #[inline]
    fn contents(&self) -> (u64, u64) {
        (self.key, self.part)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use rcuwalk_bench::iget::{Entrant, Iget, Mix};

    #[test]
    fn all_of_them_give_what_they_should() {
        for peers in [super::all(), super::all_with_fast_hash()] {
            let names: Vec<_> = peers.iter().map(Entrant::name).collect();
            let iget = Iget {
                inodes: 10_000,
                threads: vec![1, 3],
                rounds: 1,
                entrants: peers,
                ..Iget::new(Vec::new())
            };
            let report = iget.run(&AtomicBool::new(false), &mut |_| {}).unwrap();
            let row = |mix: Mix, contender: &str| {
                let mut rows = report.rows.iter();
                rows.find(|row| (row.mix, row.contender) == (mix, contender))
                    .unwrap()
            };
            for peer in names {
                assert_eq!(row(Mix::Hit, peer).hit_share, 1.0);
                assert_eq!(row(Mix::Stream, peer).hit_share, 0.0);
            }
            assert_eq!(row(Mix::Stream, "btreemap").locks_per_op, Some(3.0));
        }
    }
}
