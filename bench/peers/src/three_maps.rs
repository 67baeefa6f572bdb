//! Three `BTreeMap`s behind one `RwLock`, as virtiofsd and fuse-backend-rs keep their
//! nodes: by node id, by what the host calls the file, and by file handle.
//!
//! A LOOKUP finds the node id by device and number, and the node by its id. Theirs has
//! a handle of up to 128 bytes to compare or to follow; here it is as long as that of
//! ext4 and XFS, which is kinder to the peer.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, RwLock};

use rcuwalk_bench::iget::{Got, InodeTable, LocksPer};

use crate::Inode;

/// A file as the host's stat(2) names it.
type HostId = (u64, u64);

/// A file as the host's name_to_handle_at(2) names it: mount, type, bytes.
type Handle = (u32, i32, [u8; 12]);

#[derive(Default)]
struct Maps {
    nodes: BTreeMap<u64, Arc<Inode>>,
    by_host_id: BTreeMap<HostId, u64>,
    by_handle: BTreeMap<Handle, u64>,
    last_node: u64,
}

#[derive(Default)]
pub(crate) struct ThreeMaps(RwLock<Maps>);

fn host_id(key: u64) -> HostId {
    (0xFD01, key)
}

fn handle(key: u64) -> Handle {
    let mut bytes = [0; 12];
    // Big-endian, so that handles are in the order of numbers, as host ids are.
    bytes[..8].copy_from_slice(&key.to_be_bytes());
    (27, 1, bytes)
}

impl Maps {
    fn find(&self, key: u64) -> Option<&Arc<Inode>> {
        let node = self.by_host_id.get(&host_id(key))?;
        self.nodes.get(node)
    }

    fn insert(&mut self, inode: Arc<Inode>, key: u64) -> Got<Arc<Inode>> {
        match self.by_host_id.entry(host_id(key)) {
            Entry::Occupied(entry) => Got::Cached(self.nodes[entry.get()].clone()),
            Entry::Vacant(entry) => {
                self.last_node += 1;
                entry.insert(self.last_node);
                self.by_handle.insert(handle(key), self.last_node);
                self.nodes.insert(self.last_node, inode.clone());
                Got::New(inode)
            }
        }
    }

    fn remove(&mut self, key: u64) -> Option<Arc<Inode>> {
        let node = self.by_host_id.remove(&host_id(key))?;
        self.by_handle.remove(&handle(key));
        self.nodes.remove(&node)
    }
}

impl InodeTable for ThreeMaps {
    type Inode = Arc<Inode>;
    const LOCKS: Option<LocksPer> = Some(LocksPer::new(1.0, 3.0));

    fn iget(&self, key: u64) -> Got<Arc<Inode>> {
        if let Some(inode) = self.0.read().unwrap().find(key) {
            return Got::Cached(inode.clone());
        }
        let inode = Inode::read(key);
        self.0.write().unwrap().insert(inode, key)
    }

    fn evict(&self, key: u64) {
        let evicted = self.0.write().unwrap().remove(key);
        drop(evicted);
    }

    fn len(&self) -> usize {
        self.0.read().unwrap().nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maps_stay_in_step() {
        let table = ThreeMaps::default();
        for key in 0..100 {
            assert!(matches!(table.iget(key), Got::New(_)));
            assert!(matches!(table.iget(key), Got::Cached(_)));
        }
        (0..50).for_each(|key| table.evict(key));
        let maps = table.0.read().unwrap();
        let sizes = [
            maps.nodes.len(),
            maps.by_host_id.len(),
            maps.by_handle.len(),
        ];
        assert_eq!(sizes, [50; 3]);
        assert_eq!(maps.find(77).unwrap().key, 77);
    }
}
