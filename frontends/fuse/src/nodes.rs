//! The kernel's nodes: their ids, and the places they stand for.
//!
//! A node is created by the first LOOKUP that finds an inode, and goes with the last FORGET. It
//! is one object, with the id, the count of the kernel's lookups, and the front end's part of the
//! inode, in a [`KnownTable`] (NODE-4).
//!
//! **The id is the inode number** wherever possible: it is easy to follow in a log, and leads
//! from an inode to its node, so that a LOOKUP searches one table. Otherwise (1 is the root's; the
//! kernel still knows a deleted file of that number; the file is in another file system than the
//! root) the node gets a drawn id, which is no inode number, and which [`Drawn`] records. The
//! kernel shows users the inode number in any case, which is the same each time that it forgets
//! the node and asks again.
//!
//! NODE-5: the kernel knows an inode by one node at a time, so that all names of a file share
//! it. Nodes are made with the inode's part of [`Drawn`] locked, after a look at both ids that the
//! inode may have.
//!
//! HANDLE-1: an id and a generation, which the kernel hands out in file handles, lead to the
//! file that they were given for, or are `ESTALE`; never to another file, and never to one
//! outside of the tree. The generation is the back end's ([`VfsPath::generation`]), which
//! distinguishes successive files of one inode number. A back end without generations gets
//! numbers from here that begin at random: then a handle is good until the kernel forgets the
//! node, and one of an earlier mount is not taken for one of this. A forgotten id is found
//! again by the node's last place ([`Remembered`]), or by the back end ([`Vfs::by_number`]); in
//! either case by a walk from the root, after which id and generation are compared.
//!
//! [`Vfs::by_number`]: rcuwalk::Vfs::by_number

mod drawn;
mod node;
#[cfg(test)]
mod tests;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use rcuwalk::inode::{Known, KnownEntry, KnownRef, KnownTable, NodeId, SweepCursor};
use rcuwalk::{Error, Inode, Result, VfsPath};

use crate::pressure::Pressure;
use crate::remembered::{Remembered, Whereabouts};
use crate::removed::HeldFile;
use drawn::Drawn;
use node::Generation;
pub(crate) use node::Node;

/// Set in drawn ids, which are no inode numbers.
const DRAWN: u64 = 1 << 63;

pub(crate) type NodeRef = KnownRef<Node>;
pub(crate) type NodeEntry<'n> = KnownEntry<'n, Node>;

/// All nodes that the kernel knows.
pub(crate) struct Nodes {
    known: KnownTable<Node>,
    drawn: Drawn,
    /// Last places of forgotten nodes.
    remembered: Remembered,
    /// For files whose back end has none.
    generations: AtomicU32,
    /// The number of the root, and its file system: only there is a file found by number.
    root: (u64, u64),
    top: VfsPath,
    pub(crate) pressure: Pressure,
}

/// Most places of forgotten nodes, however many nodes there may be.
const MOST_REMEMBERED: usize = 1 << 20;

impl Nodes {
    /// Makes a table with the root, which stays known whatever the kernel forgets.
    pub(crate) fn new(root: &VfsPath, pressure: Pressure) -> Result<Nodes> {
        let attr = root.attr();
        let chance = RandomState::new().hash_one(attr.ino) as u32;
        let nodes = Nodes {
            known: KnownTable::new(),
            drawn: Drawn::default(),
            remembered: Remembered::at_most((pressure.most() / 4).min(MOST_REMEMBERED)),
            generations: AtomicU32::new(chance),
            root: (root.number_of(attr.ino), attr.dev),
            top: root.clone(),
            pressure,
        };
        let entry = nodes.new_entry(root, Some(NodeId::ROOT))?;
        entry.sent();
        Ok(nodes)
    }

    /// Returns the entry that answers a LOOKUP of `path`, and the former place of the node if it
    /// no longer has that.
    pub(crate) fn entry(&self, path: &VfsPath) -> Result<(NodeEntry<'_>, Option<VfsPath>)> {
        let entry = match self.known_entry(path) {
            Some(entry) => entry,
            None => {
                self.pressure.has_room(self.known.len())?;
                self.new_entry(path, self.id_by_number(path.inode()))?
            }
        };
        let left = entry.known().found_at(path);
        self.pressure.are(self.known.len());
        Ok((entry, left))
    }

    /// Returns the entry that answers a LOOKUP of `.` in the forgotten node `id`, if `path`
    /// leads to its file now.
    ///
    /// # Errors
    /// [`Error::Stale`] if it is another file, or known by another id.
    pub(crate) fn entry_again(
        &self,
        path: &VfsPath,
        id: NodeId,
        generation: Option<u32>,
    ) -> Result<NodeEntry<'_>> {
        let entry = match self.known_entry(path) {
            Some(entry) => entry,
            None => {
                self.pressure.has_room(self.known.len())?;
                self.new_entry(path, Some(id))?
            }
        };
        let node = entry.known();
        let is_it = generation.is_none_or(|known| known == node.generation);
        // It has another id if the kernel has looked up another file of this number meanwhile.
        if entry.id() != id || !is_it || !node.lasts {
            return Err(Error::Stale);
        }
        drop(node.found_at(path));
        self.pressure.are(self.known.len());
        Ok(entry)
    }

    /// Counts one more LOOKUP of `node`.
    ///
    /// # Errors
    /// [`Error::Stale`] if it has just been forgotten.
    pub(crate) fn entry_of(&self, node: NodeRef) -> Result<NodeEntry<'_>> {
        node.used();
        Ok(self.known.entry(node)?)
    }

    /// Returns the id that an inode has if no other file has it: its number, if it is one of the
    /// root's file system.
    fn id_by_number(&self, inode: &Inode) -> Option<NodeId> {
        if u64::from(inode.key().sb) != self.root.1 {
            return None;
        }
        match self.top.number_of_inode(inode) {
            ino if ino == self.root.0 => Some(NodeId::ROOT),
            ino @ 2..DRAWN => Some(NodeId(ino)),
            _ => None,
        }
    }

    /// Counts one more LOOKUP of the inode of `path`, if the kernel knows it.
    fn known_entry(&self, path: &VfsPath) -> Option<NodeEntry<'_>> {
        let node = self.find(path.inode())?;
        self.entry_of(node).ok()
    }

    /// Returns the node of an inode, if the kernel knows it.
    fn find(&self, inode: &Inode) -> Option<NodeRef> {
        self.known_as(inode, self.id_by_number(inode))
            .or_else(|| self.known_as(inode, self.drawn.find(inode.key())))
    }

    fn known_as(&self, inode: &Inode, id: Option<NodeId>) -> Option<NodeRef> {
        self.peek(id?).filter(|node| node.stands_for(inode))
    }

    /// Makes a node for the inode of `path`, with the id that is `wanted` if the kernel knows no
    /// other file by it, and a drawn one otherwise; or finds the one that another thread has made.
    fn new_entry(&self, path: &VfsPath, wanted: Option<NodeId>) -> Result<NodeEntry<'_>> {
        let inode = path.inode();
        let (key, ino) = (*inode.key(), path.number_of(inode.inode_key().ino));
        // Before the lock: this may ask the back end.
        let generation = self.generation(path);
        let by_number = self.id_by_number(inode);
        let mut drawn = self.drawn.lock(&key);
        let others = [by_number, drawn.get(&key)];
        let another = others.into_iter().find_map(|id| self.known_as(inode, id));
        if let Some(entry) = another.and_then(|node| self.entry_of(node).ok()) {
            return Ok(entry);
        }
        if let Some(id) = wanted {
            let node = Node::new(path, ino, generation);
            if let Ok(entry) = self.known.insert(id, node, |node| node.stands_for(inode)) {
                if wanted != by_number {
                    drawn.insert(key, id, |id| self.peek(id).is_some());
                }
                return Ok(entry);
            }
        }
        // Two inodes have one identity: one of them is outdated.
        let is_known = |id| self.peek(id).is_some_and(|node| node.has_the_key_of(inode));
        if !path.inode_ref().is_hashed() && others.into_iter().flatten().any(is_known) {
            return Err(Error::Stale);
        }
        let id = NodeId(DRAWN | self.known.new_id().0);
        let node = Node::new(path, ino, generation);
        let entry = self.known.insert(id, node, |_| false);
        // No other node has it, unless the kernel was given it in a handle.
        let entry = entry.map_err(|_| Error::Stale)?;
        drawn.insert(key, id, |id| self.peek(id).is_some());
        Ok(entry)
    }

    /// Returns the last place of a forgotten node.
    pub(crate) fn remembered(&self, id: NodeId) -> Option<Whereabouts> {
        self.remembered.find(id)
    }

    /// Returns the place of the directory with the inode number `ino`, if the kernel knows it.
    pub(crate) fn known_directory(&self, ino: u64) -> Option<VfsPath> {
        let id = match ino == self.root.0 {
            true => NodeId::ROOT,
            false => NodeId(ino),
        };
        let node = self.peek(id).filter(|node| node.ino == ino)?;
        Some(node.place())
    }

    /// Returns the node `id`, and marks it as used.
    ///
    /// # Errors
    /// [`Error::Stale`] if the kernel has forgotten it.
    pub(crate) fn get(&self, id: NodeId) -> Result<NodeRef> {
        let node = self.known.get(id)?;
        node.used();
        Ok(node)
    }

    /// Like `get`, but does not count as a use.
    pub(crate) fn peek(&self, id: NodeId) -> Option<NodeRef> {
        self.known.get(id).ok()
    }

    /// Returns the node id of the inode of `path`, if the kernel knows it.
    pub(crate) fn id_of(&self, path: &VfsPath) -> Option<NodeId> {
        let node = self.find(path.inode())?;
        Some(node.id())
    }

    /// Returns the node id of an inode, if the kernel knows it. Does not wait for a back end.
    pub(crate) fn known(&self, inode: &Inode) -> Option<NodeId> {
        // An inode that is outdated has told of a change of the same file.
        let another = || {
            let ids = [self.id_by_number(inode), self.drawn.find(inode.key())];
            let mut nodes = ids.into_iter().flatten().filter_map(|id| self.peek(id));
            nodes.find(|node| node.has_the_key_of(inode))
        };
        Some(self.find(inode).or_else(another)?.id())
    }

    /// The ids of all nodes, the root among them.
    pub(crate) fn ids(&self) -> Vec<NodeId> {
        self.known.ids()
    }

    /// A name of the file `held` has been removed: if the kernel knows its node, the file stays
    /// open.
    pub(crate) fn has_lost_a_name(&self, held: HeldFile) {
        // HOLD-1: pairs with the fence in `is_still_named`.
        fence(SeqCst);
        let path = held.file.path();
        if let Some(node) = self.find(path.inode()) {
            node.has_lost_a_name(held);
        }
    }

    /// True if the name by which a node has just become known is still there. Otherwise another
    /// thread may have removed it without seeing the node.
    pub(crate) fn is_still_named(&self, path: &VfsPath) -> bool {
        // HOLD-1: pairs with the fence in `has_lost_a_name`.
        fence(SeqCst);
        path.is_named()
    }

    /// Collects nodes that have not been looked up since `hand` last passed: of the next `step`
    /// ones on its way round, `most` at most, and never the root.
    pub(crate) fn unused(
        &self,
        cursor: &mut SweepCursor,
        step: usize,
        most: usize,
        found: &mut Vec<NodeId>,
    ) -> usize {
        let mut left = most;
        self.known.sweep(cursor, step, found, |node| {
            let is_root = node.id() == NodeId::ROOT;
            let takes = left > 0 && !is_root && !node.was_used();
            left -= usize::from(takes);
            takes
        })
    }

    /// FORGET. Ignores the root, and counts that the kernel did not have.
    pub(crate) fn forget(&self, id: NodeId, lookups: u64) {
        self.pressure.counts.forgets.fetch_add(1, Relaxed);
        if id == NodeId::ROOT {
            return;
        }
        let Some(node) = self.peek(id) else { return };
        // Before the count goes: a LOOKUP of `.` that no longer finds the id finds this entry.
        // It sees the entry through the lock of the table of places, which it takes after it
        // has read that the id is absent; and the store that ends the count comes after this
        // thread has released that lock. If the kernel keeps some counts, it does not ask until
        // the next FORGET, which is remembered again.
        if node.lasts
            && let Some(whereabouts) = node.whereabouts()
        {
            self.remembered.insert(id, whereabouts);
        }
        self.give_back(&node, lookups);
    }

    fn give_back(&self, node: &NodeRef, lookups: u64) {
        let _ = self.known.give_back(node, lookups);
        if !self.drawn.is_empty() {
            let key = node.key();
            let mut drawn = self.drawn.lock(&key);
            if drawn.get(&key) == Some(node.id()) && self.peek(node.id()).is_none() {
                drawn.remove(&key);
            }
        }
    }

    /// Takes back one count that the kernel has not been told of.
    pub(crate) fn take_back(&self, id: NodeId) {
        if id != NodeId::ROOT
            && let Some(node) = self.peek(id)
        {
            self.give_back(&node, 1);
        }
    }

    /// Forgets all nodes but the root, whatever their counts. No thread hands out more
    /// meanwhile.
    pub(crate) fn forget_all(&self) {
        let (mut cursor, mut found) = (SweepCursor::default(), Vec::new());
        // The table may be mostly empty, but not emptier than that.
        let mut in_vain = 0;
        while self.known.len() > 1 && in_vain < 1024 {
            let is_other = |node: &Known<Node>| node.id() != NodeId::ROOT;
            self.known.sweep(&mut cursor, 1 << 16, &mut found, is_other);
            in_vain = if found.is_empty() { in_vain + 1 } else { 0 };
            for id in found.drain(..) {
                if let Some(node) = self.peek(id) {
                    self.give_back(&node, u64::MAX);
                }
            }
        }
    }

    /// The number of nodes, including the root.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the back end's generation, if it has any, or a new one. An error is no reason to
    /// fail a LOOKUP: it only makes the file's handles stale sooner.
    fn generation(&self, path: &VfsPath) -> Generation {
        let is_of_root = path.attr().dev == self.root.1;
        let lasting = is_of_root.then(|| path.generation().ok().flatten());
        match lasting.flatten() {
            Some(number) => Generation {
                number,
                lasts: true,
            },
            None => Generation {
                number: self.generations.fetch_add(1, Relaxed),
                lasts: false,
            },
        }
    }
}
