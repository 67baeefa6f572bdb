//! The kernel's nodes: their ids, and the places they stand for.
//!
//! A node is created by the first LOOKUP that finds an inode, and freed by the last FORGET. It
//! is the front end's part of that inode, in an [`InodeCache`] that keeps nothing unused, and
//! the [`NodeTable`] counts the kernel's lookups (NODE-1). All names of a file share one node,
//! since the cache is keyed by the inode's identity.
//!
//! **The id is the inode number** wherever possible, which is easy to follow in a log.
//! Otherwise (1 is the root's; the kernel still knows a deleted file of that number; the file
//! is in another file system than the root) the node gets a drawn id, which is no inode number.
//! The kernel shows users the inode number in any case, which is the same each time that it
//! forgets the node and asks again.
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

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rcuwalk::inode::{
    Entry, Iget, InodeCache, InodeRef, Key, NodeId, NodeTable, Numbered, SweepCursor, Unwaited,
};
use rcuwalk::{Attr, Error, FileType, Inode, InodeId, OpenFlags, Result, VfsPath};

use crate::handles::OpenFile;
use crate::listing::Kept;
use crate::pressure::Pressure;
use crate::remembered::{Remembered, Whereabouts};
use crate::removed::HeldFile;
use crate::through::Ways;
use crate::weak_list::WeakList;

/// Set in drawn ids, which are no inode numbers.
const DRAWN: u64 = 1 << 63;

/// The front end's part of an inode.
pub(crate) struct Node {
    /// The last place where it was found, and the one before.
    place: RwLock<Places>,
    id: AtomicU64,
    /// The inode number that the kernel shows (NODE-3).
    pub(crate) ino: u64,
    /// Held while a thread makes an entry, which may change the id.
    numbering: Mutex<()>,
    /// Distinguishes successive files with the same id (HANDLE-1).
    pub(crate) generation: u32,
    /// The generation is the back end's, and the same after each LOOKUP.
    lasts: bool,
    /// Looked up since the hand last passed.
    is_used: AtomicBool,
    open: Mutex<Opens>,
    /// How an open file is read and written.
    pub(crate) ways: Ways,
    /// For a directory: the listing that the kernel keeps.
    pub(crate) kept: Kept,
}

/// The open files of a node.
#[derive(Default)]
struct Opens {
    /// The open files, for requests about a file without a name.
    files: WeakList<OpenFile>,
    /// Set-id bits are hidden until the last file that is open for writing is closed.
    hides_set_ids: bool,
}

/// Names of an inode.
struct Places {
    /// May have been removed or renamed. `None` once the kernel has forgotten the node.
    last: Option<VfsPath>,
    /// For a file with several names: the previous one, in case the last one is removed.
    before: Option<VfsPath>,
    /// The file itself, if its last name has been removed (HOLD-1).
    held: Option<Box<HeldFile>>,
}

impl Opens {
    fn is_for_writing(&self) -> bool {
        let mut files = self.files.iter();
        files.any(|open| open.file.flags().contains(OpenFlags::WRITE))
    }
}

impl Places {
    /// A name that still exists, if one of them is known to.
    fn best(&self) -> &VfsPath {
        let before = self.before.as_ref().filter(|before| before.is_named());
        match before {
            Some(before) if !self.last().is_named() => before,
            _ => self.last(),
        }
    }

    fn last(&self) -> &VfsPath {
        let last = self.last.as_ref();
        last.expect("NODE-1: whoever has a node has it before the last reference goes")
    }
}

pub(crate) type NodeRef = InodeRef<InodeId, Node>;
pub(crate) type NodeEntry<'n> = Entry<'n, InodeId, Node>;

impl Numbered for Node {
    fn node_id(&self) -> NodeId {
        NodeId(self.id.load(Relaxed))
    }
}

impl Node {
    /// Returns the place of the node.
    pub(crate) fn place(&self) -> VfsPath {
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        place.best().clone()
    }

    /// Returns the cached attributes, if they are valid.
    pub(crate) fn valid_attr(&self) -> Option<Attr> {
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        let place = place.best();
        place.is_fresh().then(|| place.attr())
    }

    /// True if the back end announces each change of its attributes, and its best name's.
    pub(crate) fn is_announced(&self) -> bool {
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        place.best().is_announced()
    }

    /// Records that the node is open as `file`.
    pub(crate) fn opened(&self, file: &Arc<OpenFile>) {
        self.opens().files.add(file);
    }

    /// Returns one of its open files.
    pub(crate) fn open_file(&self) -> Option<Arc<OpenFile>> {
        self.opens().files.iter().next()
    }

    /// Hides set-id bits from the kernel while the file is open for writing: a caller without
    /// the right to keep them is about to write. The write clears them on the host, where the
    /// kernel does not see it, and until then they have no effect: a file that is open for
    /// writing is not executed. If the caller does not write after all, the file still has them
    /// when it is closed. Does nothing to a file that is not open for writing.
    pub(crate) fn hide_set_ids(&self) {
        let mut open = self.opens();
        open.hides_set_ids = open.is_for_writing();
    }

    /// Shows set-id bits again: the file has just been given its mode.
    pub(crate) fn show_set_ids(&self) {
        self.opens().hides_set_ids = false;
    }

    /// True if set-id bits are hidden now.
    pub(crate) fn hides_set_ids(&self) -> bool {
        let mut open = self.opens();
        open.hides_set_ids = open.hides_set_ids && open.is_for_writing();
        open.hides_set_ids
    }

    fn opens(&self) -> MutexGuard<'_, Opens> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the node as used: the hand skips it once more.
    fn used(&self) {
        // Stored only if it changes, because many threads may use the same node.
        if !self.is_used.load(Relaxed) {
            self.is_used.store(true, Relaxed);
        }
    }

    /// One of its names has been removed. Unless it has another one, the node keeps `held`
    /// until the kernel forgets it.
    fn has_lost_a_name(&self, held: HeldFile) {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        let is_known = place.last.is_some();
        let is_kept = is_known && place.held.is_none() && !place.best().is_named();
        // Dropped unlocked: closing it may take the caches' locks.
        let _gone = match is_kept {
            true => {
                place.held = Some(Box::new(held));
                None
            }
            false => Some(held),
        };
        drop(place);
    }

    /// Returns the place by which a handle finds the node once the kernel has forgotten it;
    /// `None` if it has no name.
    fn whereabouts(&self) -> Option<Whereabouts> {
        let places = self.place.read().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have handled the FORGET of the last count already.
        places.last.as_ref()?;
        let place = places.best().clone();
        // Dropped below without the lock: the drop may take the caches' locks.
        drop(places);
        let (dir, name) = place.number_above()?;
        Some(Whereabouts {
            ino: self.ino,
            generation: self.generation,
            dir,
            name,
        })
    }

    fn stands_for(&self, inode: &Inode) -> bool {
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        std::ptr::eq(place.last().inode(), inode)
    }

    /// Drops its names as soon as the kernel has forgotten it, rather than when RCU frees it.
    fn let_go(&self) {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        let names = (place.last.take(), place.before.take(), place.held.take());
        drop(place);
        drop(names);
    }

    /// Records the name by which it was just found: the one most likely to still exist.
    fn found_at(&self, path: &VfsPath) {
        let is_known = {
            let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
            place.last().is_same_place(path)
        };
        if !is_known {
            let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
            let attr = path.attr();
            let mut before = place.last.replace(path.clone());
            let is_worth_it = attr.nlink > 1 && attr.kind != FileType::Directory;
            if is_worth_it && before.as_ref().is_some_and(VfsPath::is_named) {
                std::mem::swap(&mut place.before, &mut before);
            }
            // Dropped unlocked: the drop may take the caches' locks.
            drop(place);
            drop(before);
        }
    }
}

/// All nodes that the kernel knows.
pub(crate) struct Nodes {
    cache: InodeCache<InodeId, Node>,
    known: NodeTable<InodeId, Node>,
    /// Last places of forgotten nodes.
    remembered: Remembered,
    /// For files whose back end has none.
    generations: AtomicU32,
    /// The number of the root, and its file system: only there is a file found by number.
    root: (u64, u64),
    pub(crate) pressure: Pressure,
}

impl Nodes {
    /// Makes a table with the root, which stays known whatever the kernel forgets.
    pub(crate) fn new(root: &VfsPath, pressure: Pressure) -> Result<Nodes> {
        let attr = root.attr();
        let chance = RandomState::new().hash_one(attr.ino) as u32;
        let nodes = Nodes {
            // Keeps no unused inodes, whatever the budget: a node is freed with its last
            // reference. With a small budget each new node would scan old ones to no effect.
            cache: InodeCache::builder()
                .inodes(usize::MAX)
                .bytes(usize::MAX)
                .on_last_put(|node: &rcuwalk::inode::Node<InodeId, Node>| node.let_go())
                .build(),
            known: NodeTable::new(),
            remembered: Remembered::at_most(pressure.most() / 4),
            generations: AtomicU32::new(chance),
            root: (root.number_of(attr.ino), attr.dev),
            pressure,
        };
        let node = nodes.node(root, |_| NodeId::ROOT.0)?;
        let entry = nodes.known.try_entry(node);
        entry.map_err(Error::from)?.sent();
        Ok(nodes)
    }

    /// Returns the entry that answers a LOOKUP of `path`.
    pub(crate) fn entry(&self, path: &VfsPath) -> Result<NodeEntry<'_>> {
        let is_of_root = path.attr().dev == self.root.1;
        let wanted = |ino| match ino {
            2..DRAWN if is_of_root => ino,
            _ => self.draw(),
        };
        let node = self.node(path, wanted)?;
        node.found_at(path);
        let entry = self.numbered_entry(node)?;
        self.pressure.are(self.known.len());
        Ok(entry)
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
        let node = self.node(path, |_| id.0)?;
        let is_it = generation.is_none_or(|known| known == node.generation);
        if node.node_id() != id || !is_it || !node.lasts {
            return Err(Error::Stale);
        }
        node.found_at(path);
        let entry = self.numbered_entry(node)?;
        self.pressure.are(self.known.len());
        match entry.id() == id {
            true => Ok(entry),
            // The kernel has looked up another file of this number meanwhile.
            false => Err(Error::Stale),
        }
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

    /// Counts one more LOOKUP of `node`, by its id or, if another file has that id now, by a
    /// new one.
    pub(crate) fn numbered_entry(&self, node: NodeRef) -> Result<NodeEntry<'_>> {
        node.used();
        let _one = node
            .numbering
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            match self.known.try_entry(node.clone()) {
                Ok(entry) => return Ok(entry),
                // The node itself is not known, or it would be by this id: so the kernel does
                // not know the old id.
                Err(_) => node.id.store(self.draw(), Relaxed),
            }
        }
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
        let node = self.cache.ilookup(path.inode().key()).ok().flatten()?;
        Some(node.node_id())
    }

    /// Returns the node id of an inode, if the kernel knows it. Does not wait for a thread that
    /// makes a node of it.
    pub(crate) fn known(&self, inode: &Inode) -> Option<NodeId> {
        let key = inode.key();
        let found = self
            .cache
            .ilookup5_nowait_rcu(key.hash(), |node| node.key() == key);
        match found.ok()?? {
            Unwaited::Inode(node) => Some(node.node_id()),
            Unwaited::New(_) => None,
        }
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
        let inode = held.file.path().inode_ref();
        if let Ok(Some(node)) = self.cache.ilookup(inode.key())
            && node.stands_for(&inode)
        {
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
            let is_root = node.node_id() == NodeId::ROOT;
            let takes = left > 0 && !is_root && !node.is_used.swap(false, Relaxed);
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
        // Before the count goes: a LOOKUP of `.` that no longer finds the id finds this entry.
        // It sees the entry through the lock of the table of places, which it takes after it
        // has read that the id is absent; and the store that removes the id comes after this
        // thread has released that lock. If the kernel keeps some counts, it does not ask until
        // the next FORGET, which is remembered again.
        if let Some(node) = self.peek(id)
            && node.lasts
            && let Some(whereabouts) = node.whereabouts()
        {
            self.remembered.insert(id, whereabouts);
        }
        let _ = self.known.forget(id, lookups);
    }

    /// Takes back one count that the kernel has not been told of.
    pub(crate) fn take_back(&self, id: NodeId) {
        if id != NodeId::ROOT {
            let _ = self.known.forget(id, 1);
        }
    }

    /// Forgets all nodes but the root, whatever their counts. No thread hands out more
    /// meanwhile.
    pub(crate) fn forget_all(&self) {
        let (mut cursor, mut found) = (SweepCursor::default(), Vec::new());
        // The table may be mostly empty, but not emptier than that.
        let mut in_vain = 0;
        while self.known.len() > 1 && in_vain < 1024 {
            let is_other = |node: &Node| node.node_id() != NodeId::ROOT;
            self.known.sweep(&mut cursor, 1 << 16, &mut found, is_other);
            in_vain = if found.is_empty() { in_vain + 1 } else { 0 };
            for id in found.drain(..) {
                let _ = self.known.forget(id, u64::MAX);
            }
        }
    }

    /// The number of nodes, including the root.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the back end's generation, if it has any. An error is no reason to fail a
    /// LOOKUP: it only makes the file's handles stale sooner.
    fn generation(&self, path: &VfsPath) -> Option<u32> {
        let is_of_root = path.attr().dev == self.root.1;
        is_of_root.then(|| path.generation().ok().flatten())?
    }

    fn new_generation(&self) -> u32 {
        self.generations.fetch_add(1, Relaxed)
    }

    fn draw(&self) -> u64 {
        DRAWN | self.known.new_id().0
    }

    /// Returns the node of the inode at `path`; a new one gets the id that `id` makes of its
    /// number.
    fn node(&self, path: &VfsPath, id: impl Fn(u64) -> u64) -> Result<NodeRef> {
        let inode = path.inode();
        loop {
            let node = match self.cache.iget(*inode.key())? {
                Iget::Cached(node) => node,
                Iget::New(new) => {
                    let ino = path.number_of(inode.inode_key().ino);
                    let generation = self.generation(path);
                    let node = new.init(Node {
                        place: RwLock::new(Places {
                            last: Some(path.clone()),
                            before: None,
                            held: None,
                        }),
                        id: AtomicU64::new(id(ino)),
                        ino,
                        numbering: Mutex::new(()),
                        generation: generation.unwrap_or_else(|| self.new_generation()),
                        lasts: generation.is_some(),
                        is_used: AtomicBool::new(true),
                        open: Mutex::default(),
                        ways: Ways::default(),
                        kept: Kept::default(),
                    });
                    node.dont_cache();
                    node
                }
            };
            if node.stands_for(inode) {
                return Ok(node);
            }
            // Two inodes have one identity: one of them is outdated.
            if !path.inode_ref().is_hashed() {
                return Err(Error::Stale);
            }
            self.cache.unhash(&node);
        }
    }
}
