//! The names in a directory, by name and in the order they came.
//!
//! ```text
//!   table: hash, index --+
//!                        v
//!   slots: | 1 "a" | 2 (gone) | 3 "c" | 7 "d" |     by position, which only grows
//! ```
//!
//! Each name has a position of its own that is never given to another, so that a
//! listing can go on from any of them (DIR-1). A name that goes leaves a gap; when more
//! than half are gaps, the rest move together and keep their positions.

use std::hash::BuildHasher;
use std::sync::{Arc, Weak};

use hashbrown::hash_table::{Entry, HashTable};
use rcuwalk::{Error, FileType, Name, Result};

use crate::node::Node;

/// The names in a directory.
#[derive(Default)]
pub(crate) struct Names {
    table: HashTable<Place>,
    slots: Vec<Slot>,
    last_position: u64,
    /// Seeded, and another one in each directory: a client that chooses names cannot choose
    /// chains.
    hasher: hashbrown::DefaultHashBuilder,
    /// Set when the directory is removed: it takes no new names.
    pub(crate) removed: bool,
    /// The directory that this one is in, or was in when it was removed; none above the root.
    #[doc(alias = "d_parent")]
    pub(crate) above: Weak<Node>,
}

/// Where a name's slot is. With the hash at hand, the table grows without a look at names.
struct Place {
    hash: u32,
    slot: u32,
}

struct Slot {
    position: u64,
    name: Box<[u8]>,
    /// None in a gap.
    node: Option<Arc<Node>>,
    /// The node's number and type: a listing needs no look at the node.
    shown: Shown,
}

/// An inode number, and the four bits of a type.
#[derive(Clone, Copy)]
struct Shown(u64);

impl Shown {
    fn of(node: &Node) -> Shown {
        // Numbers are counted up, and do not reach 60 bits.
        Shown(node.ino << 4 | u64::from(node.kind.mode_bits() >> 12))
    }

    fn ino(self) -> u64 {
        self.0 >> 4
    }

    fn kind(self) -> Option<FileType> {
        FileType::from_mode((self.0 as u32 & 0xF) << 12)
    }
}

/// An entry of a directory, with its position.
pub(crate) struct Listed<'n> {
    pub(crate) position: u64,
    pub(crate) name: &'n [u8],
    pub(crate) ino: u64,
    pub(crate) kind: Option<FileType>,
}

/// Below this number of slots, gaps are left alone.
const FEW: usize = 16;

impl Names {
    pub(crate) fn get(&self, name: Name<'_>) -> Option<&Arc<Node>> {
        let name = name.as_bytes();
        let hash = self.hash(name);
        let place = self.table.find(wide(hash), self.is(hash, name))?;
        self.slots[place.slot as usize].node.as_ref()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The name of a directory, which has one at most. Looks at one name after the other.
    pub(crate) fn name_of(&self, dir: &Arc<Node>) -> Option<&[u8]> {
        let mut slots = self.slots.iter();
        let is_it = |slot: &&Slot| {
            slot.node
                .as_ref()
                .is_some_and(|node| Arc::ptr_eq(node, dir))
        };
        slots.find(is_it).map(|slot| &*slot.name)
    }

    /// Adds a name.
    ///
    /// # Errors
    /// [`Error::Exists`], and [`Error::NoSpace`] beyond 2^32 names.
    pub(crate) fn insert(&mut self, name: Name<'_>, node: Arc<Node>) -> Result<()> {
        let name = name.as_bytes();
        let hash = self.hash(name);
        let slot = u32::try_from(self.slots.len()).map_err(|_| Error::NoSpace)?;
        let slots = &self.slots;
        let is = |at: &Place| at.hash == hash && *slots[at.slot as usize].name == *name;
        match self.table.entry(wide(hash), is, |at| wide(at.hash)) {
            Entry::Occupied(_) => return Err(Error::Exists),
            Entry::Vacant(vacant) => vacant.insert(Place { hash, slot }),
        };
        self.last_position += 1;
        self.slots.push(Slot {
            position: self.last_position,
            name: name.into(),
            shown: Shown::of(&node),
            node: Some(node),
        });
        Ok(())
    }

    /// Has a name stand for another node, at the position it has. The old node, or the
    /// new one back if there is no such name.
    pub(crate) fn replace(
        &mut self,
        name: Name<'_>,
        node: Arc<Node>,
    ) -> Result<Arc<Node>, Arc<Node>> {
        let name = name.as_bytes();
        let hash = self.hash(name);
        let slot = self.table.find(wide(hash), self.is(hash, name));
        let slot = slot.map(|place| place.slot as usize);
        match slot.map(|slot| &mut self.slots[slot]) {
            Some(Slot {
                node: Some(old),
                shown,
                ..
            }) => {
                *shown = Shown::of(&node);
                Ok(std::mem::replace(old, node))
            }
            _ => Err(node),
        }
    }

    pub(crate) fn remove(&mut self, name: Name<'_>) -> Option<Arc<Node>> {
        let name = name.as_bytes();
        let hash = self.hash(name);
        let slots = &self.slots;
        let is = |at: &Place| at.hash == hash && *slots[at.slot as usize].name == *name;
        let (place, _) = self.table.find_entry(wide(hash), is).ok()?.remove();
        let slot = &mut self.slots[place.slot as usize];
        slot.name = Box::default();
        let node = slot.node.take();
        while self.slots.pop_if(|last| last.node.is_none()).is_some() {}
        if self.slots.len() > FEW + 2 * self.table.len() {
            self.close_gaps();
        }
        node
    }

    /// The entries after a position.
    pub(crate) fn after(&self, from: u64) -> impl Iterator<Item = Listed<'_>> {
        let first = self.slots.partition_point(|slot| slot.position <= from);
        let there = self.slots[first..]
            .iter()
            .filter(|slot| slot.node.is_some());
        there.map(|slot| Listed {
            position: slot.position,
            name: &slot.name,
            ino: slot.shown.ino(),
            kind: slot.shown.kind(),
        })
    }

    /// Takes all nodes out: for the directory's end.
    pub(crate) fn take_nodes(&mut self) -> impl Iterator<Item = Arc<Node>> {
        self.table.clear();
        std::mem::take(&mut self.slots)
            .into_iter()
            .filter_map(|slot| slot.node)
    }

    /// As many steps as names went since the last time, at least.
    #[cold]
    fn close_gaps(&mut self) {
        self.slots.retain(|slot| slot.node.is_some());
        self.slots.shrink_to(2 * self.slots.len() + FEW);
        self.table.clear();
        self.table
            .shrink_to(2 * self.slots.len(), |at| wide(at.hash));
        for (slot, at) in self.slots.iter().enumerate() {
            let hash = self.hasher.hash_one(&*at.name) as u32;
            let slot = slot as u32; // Fewer than there were.
            self.table
                .insert_unique(wide(hash), Place { hash, slot }, |at| wide(at.hash));
        }
    }

    fn hash(&self, name: &[u8]) -> u32 {
        self.hasher.hash_one(name) as u32
    }

    fn is<'a>(&'a self, hash: u32, name: &'a [u8]) -> impl Fn(&Place) -> bool + 'a {
        move |at| at.hash == hash && *self.slots[at.slot as usize].name == *name
    }
}

/// For the table, which wants high bits as well as low ones.
fn wide(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Space;
    use std::collections::BTreeMap;

    fn node(ino: u64) -> Arc<Node> {
        let space = Arc::new(Space::new(0, 0));
        let now = rcuwalk::Timestamp::default();
        Arc::new(Node::new(ino, &crate::file(0), now, &space).unwrap())
    }

    /// The same as a map from names to nodes, and one from positions that only grow.
    #[test]
    fn names_are_a_map_in_order_of_their_coming() {
        let mut names = Names::default();
        let mut model = BTreeMap::new();
        let mut order: BTreeMap<u64, u64> = BTreeMap::new();
        let mut seed = 7_u64;
        for op in 1..20_000 {
            seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            // Grows, shrinks to nothing, grows.
            let growing = op / 3000 % 2 == 0;
            let which = (seed >> 33) % 800;
            let text = format!("a name that is number {which}");
            let name = Name::new(text.as_bytes()).unwrap();
            match (seed >> 20) % 8 {
                0 => {
                    let replaced = names.replace(name, node(op)).ok().map(|old| old.ino);
                    let was = model.get(&which).copied();
                    assert_eq!(replaced, was.map(|(ino, _)| ino));
                    if let Some((_, position)) = was {
                        model.insert(which, (op, position));
                    }
                }
                n if (n < 5) == growing => {
                    let added = names.insert(name, node(op)).is_ok();
                    assert_eq!(added, !model.contains_key(&which));
                    if added {
                        let position = names.last_position;
                        model.insert(which, (op, position));
                        order.insert(position, which);
                    }
                }
                _ => {
                    let gone = names.remove(name).map(|node| node.ino);
                    let was = model.remove(&which);
                    assert_eq!(gone, was.map(|(ino, _)| ino));
                    if let Some((_, position)) = was {
                        order.remove(&position);
                    }
                }
            }
            let got = names.get(name).map(|node| node.ino);
            assert_eq!(got, model.get(&which).map(|(ino, _)| *ino));
            assert_eq!(names.is_empty(), model.is_empty());
            let few = FEW + 2 * model.len();
            assert!(names.slots.len() <= few, "gaps are closed");
            if op % 100 == 0 {
                let from = (seed >> 40) % (names.last_position + 2);
                let after = names.after(from);
                let after: Vec<_> = after.map(|at| (at.position, at.ino)).collect();
                let expected = order.range(from + 1..);
                let expected: Vec<_> = expected.map(|(at, which)| (*at, model[which].0)).collect();
                assert_eq!(after, expected, "DIR-1");
            }
        }
    }
}
