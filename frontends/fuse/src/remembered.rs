//! Last places of forgotten nodes, for file handles.
//!
//! A handle of this mount (from name_to_handle_at(2), or given to a client by knfsd) holds a
//! node id and the node's generation, and outlives the kernel's inode. To open it, the kernel
//! sends LOOKUP of `.` in a node id that it has forgotten.
//!
//! HANDLE-1 here: an entry is only a hint where to look. The node for the file that is there
//! now must get the same id and the same generation, or the answer is `ESTALE`.
//!
//! FORGET stores the number of the directory and the name, which are at hand, so it makes no
//! call of the back end and cannot block. The oldest entries go when there are too many. The
//! back end may still find a file without an entry by its number, see `nodes.rs`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rcuwalk::inode::NodeId;

const SHARDS: usize = 16;

/// The place of a node when the kernel forgot it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Whereabouts {
    /// The inode number of the node, as users see it.
    pub(crate) ino: u64,
    pub(crate) generation: u32,
    /// The number of the directory that it was in.
    pub(crate) dir: u64,
    pub(crate) name: Box<[u8]>,
}

/// The nodes that were forgotten last.
pub(crate) struct Remembered {
    shards: [Mutex<Shard>; SHARDS],
    most: usize,
}

#[derive(Default)]
struct Shard {
    known: HashMap<u64, (u64, Whereabouts)>,
    /// Ids in order of arrival, each with its turn; the same id may have come again since.
    order: VecDeque<(u64, u64)>,
    next_turn: u64,
}

impl Remembered {
    /// Remembers `most` nodes, or a few more, at about 150 bytes each.
    pub(crate) fn at_most(most: usize) -> Remembered {
        Remembered {
            shards: Default::default(),
            most: most.div_ceil(SHARDS),
        }
    }

    /// Remembers the place of the node `id`. The oldest entry goes if there are too many.
    pub(crate) fn insert(&self, id: NodeId, whereabouts: Whereabouts) {
        let mut shard = self.shard(id);
        let turn = shard.next_turn;
        shard.next_turn += 1;
        shard.order.push_back((turn, id.0));
        let before = shard.known.insert(id.0, (turn, whereabouts));
        let oldest = match shard.order.len() > self.most {
            true => shard.order.pop_front(),
            false => None,
        };
        if let Some((turn, id)) = oldest
            && shard.known.get(&id).is_some_and(|(last, _)| *last == turn)
        {
            shard.known.remove(&id);
        }
        drop(shard);
        drop(before);
    }

    /// Returns the place of the node `id` when it was last forgotten.
    pub(crate) fn find(&self, id: NodeId) -> Option<Whereabouts> {
        let shard = self.shard(id);
        shard.known.get(&id.0).map(|(_, known)| known.clone())
    }

    fn shard(&self, id: NodeId) -> MutexGuard<'_, Shard> {
        // A panic between two changes leaves an entry without a turn, or a turn without an entry:
        // neither misleads.
        let shard = &self.shards[id.0 as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str) -> Whereabouts {
        Whereabouts {
            ino: 7,
            generation: 1,
            dir: 2,
            name: name.as_bytes().into(),
        }
    }

    /// MEM-1: the oldest go, also if one node comes again and again.
    #[test]
    fn the_oldest_handles_go() {
        // All in one shard.
        let id = |n: u64| NodeId(n * SHARDS as u64);
        let remembered = Remembered::at_most(3 * SHARDS);
        (1..=4).for_each(|n| remembered.insert(id(n), at("first")));
        assert_eq!(remembered.find(id(1)), None, "the oldest");
        assert!((2..=4).all(|n| remembered.find(id(n)) == Some(at("first"))));
        for _ in 0..100 {
            remembered.insert(id(9), at("again"));
        }
        assert_eq!(remembered.find(id(9)), Some(at("again")));
        let shard = remembered.shard(id(9));
        assert_eq!((shard.known.len(), shard.order.len()), (1, 3), "MEM-1");
    }

    /// HANDLE-1: an entry holds the last place of an id.
    #[test]
    fn the_last_name_of_a_node_counts() {
        let remembered = Remembered::at_most(1000);
        remembered.insert(NodeId(5), at("old"));
        remembered.insert(NodeId(5), at("new"));
        assert_eq!(remembered.find(NodeId(5)), Some(at("new")), "HANDLE-1");
    }
}
