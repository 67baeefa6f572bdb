//! The operations, in terms of node ids and handles, with nothing of the wire in them.
//!
//! | read             | to learn                                             |
//! |------------------|------------------------------------------------------|
//! | this file        | what they work on, and on whose behalf               |
//! | `ops/attr.rs`    | attributes, extended ones, access                    |
//! | `ops/names.rs`   | finding, making, linking, moving and removing names  |
//! | `ops/again.rs`   | finding forgotten nodes, for file handles            |
//! | `ops/files.rs`   | opening, reading and writing; directories            |
//! | `ops/room.rs`    | space that a removed file leaves a moment later      |
//!
//! Each operation turns ids into held places, checks names, and makes one call of the [`Vfs`]
//! on behalf of the caller. `wire.rs` sends the result to the kernel.

mod again;
mod attr;
mod files;
mod names;
mod room;

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::sync::{Arc, OnceLock, Weak};

use rcuwalk::inode::{NodeId, SweepCursor};
use rcuwalk::{
    Attr, Context, Credentials, Error, FileType, Inode, Listener, Name, Result, Vfs, VfsPath,
};

pub(crate) use attr::Change;
pub(crate) use files::{NewOpen, Offset};

use crate::ahead::Ahead;
use crate::back::WriteBack;
use crate::caller::Caller;
use crate::guess::Guess;
use crate::handles::Handles;
use crate::listing::OpenDir;
use crate::nodes::{NodeEntry, NodeRef, Nodes};
use crate::pressure::{NodeStatistics, Pressure};
use crate::pushed::Pushed;
use crate::removed;
use crate::shares::Shares;
use crate::through::Offer;
use room::Room;

/// A mounted tree, as the kernel knows it.
pub(crate) struct Ops {
    // Declared before the tree: the places in it are dropped first.
    handles: Handles,
    nodes: Nodes,
    /// Shares of files without a name that are kept open.
    removed: Arc<Shares>,
    /// Shares of open files, by user.
    opened: Arc<Shares>,
    /// Directories that keep entries.
    ahead: Ahead<OpenDir>,
    vfs: Vfs,
    /// The mount's device number, if it is known.
    shown_as: OnceLock<u64>,
    /// Whether passthrough is possible.
    pub(crate) offer: Offer,
    /// Whether the kernel holds written data back.
    pub(crate) back: WriteBack,
    /// Whether passthrough is worth its cost for a new file.
    guess: Guess,
    room: Room,
    /// Changes that the kernel is told of.
    pub(crate) pushed: Pushed,
    /// Open files are limited also where they hold no descriptor.
    pub(crate) limits_all_files: bool,
}

/// The answer to a LOOKUP. Dropped unsent, it takes its count back.
pub(crate) struct Found<'o> {
    pub(crate) entry: NodeEntry<'o>,
    pub(crate) generation: u32,
    pub(crate) attr_reply: AttrReply,
}

/// Attributes as sent to the kernel.
pub(crate) struct AttrReply {
    pub(crate) attr: Attr,
    /// The kernel may cache them until the timeout; otherwise it asks at each use.
    pub(crate) lasts: bool,
    pub(crate) told: Told,
}

/// The changes of which the kernel will be told: it may cache the answer for longer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub(crate) name: bool,
    pub(crate) attr: bool,
}

impl AttrReply {
    pub(crate) fn lasting(attr: Attr) -> AttrReply {
        AttrReply {
            attr,
            lasts: true,
            told: Told::default(),
        }
    }

    /// The attributes of a node: with the inode number that users see, and without set-id bits
    /// that are about to go ([`Node::hide_set_ids`](crate::nodes::Node::hide_set_ids)).
    fn of(attr: Attr, node: &NodeRef) -> AttrReply {
        let mut reply = AttrReply::lasting(shown(attr, node));
        if reply.attr.kind == FileType::Regular && reply.attr.mode & SET_IDS != 0 {
            if node.hides_set_ids() {
                reply.attr.mode &= !SET_IDS;
                reply.lasts = false;
            }
            // The kernel's own writes may clear them, and it would not notice.
            reply.lasts &= !node.is_through();
        }
        reply
    }
}

/// The set-user-id and the set-group-id bit.
pub(crate) const SET_IDS: u16 = 0o6000;

impl Ops {
    pub(crate) fn new(vfs: Vfs, pressure: Pressure) -> Result<Ops> {
        Ok(Ops {
            handles: Handles::default(),
            nodes: Nodes::new(&vfs.root(), pressure)?,
            removed: removed::shares(),
            opened: Shares::of_open(),
            ahead: Ahead::new(),
            vfs,
            shown_as: OnceLock::new(),
            offer: Offer::default(),
            back: WriteBack::default(),
            guess: Guess::default(),
            room: Room::default(),
            pushed: Pushed::default(),
            limits_all_files: false,
        })
    }

    /// The number of nodes that the kernel knows, including the root.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of nodes that the kernel holds, and counters of the work that keeps
    /// it low.
    pub(crate) fn node_statistics(&self) -> NodeStatistics {
        self.pressure().statistics(self.nodes())
    }

    /// For the worker that limits the number of nodes.
    pub(crate) fn pressure(&self) -> &Pressure {
        &self.nodes.pressure
    }

    /// As [`Nodes::unused`].
    pub(crate) fn unused_nodes(
        &self,
        cursor: &mut SweepCursor,
        step: usize,
        most: usize,
        found: &mut Vec<NodeId>,
    ) -> usize {
        self.nodes.unused(cursor, step, most, found)
    }

    /// Ends the threads that send notices.
    pub(crate) fn end_notices(&self) {
        self.pressure().end();
        self.pushed.end();
    }

    /// Ends the session, with all nodes and open files of the kernel.
    pub(crate) fn end(&self) {
        self.end_notices();
        self.handles.release_all();
        self.nodes.forget_all();
        if let Some(device) = self.shown_as.get() {
            // Another file system may get that number next.
            self.vfs.shown(*device, false);
        }
    }

    /// The kernel shows the tree as a file system with this device number.
    pub(crate) fn shown_as(&self, device: u64) {
        if self.shown_as.set(device).is_ok() {
            self.vfs.shown(device, true);
        }
    }

    /// The number of open files and directories.
    pub(crate) fn open(&self) -> usize {
        self.handles.len()
    }

    /// Statistics of the caches behind it.
    pub(crate) fn vfs_statistics(&self) -> rcuwalk::Statistics {
        self.vfs.statistics()
    }

    /// FORGET.
    pub(crate) fn forget(&self, id: NodeId, lookups: u64) {
        self.nodes.forget(id, lookups);
    }

    /// Takes back one LOOKUP whose answer the kernel has not received, though it was counted.
    pub(crate) fn take_back(&self, id: NodeId) {
        self.nodes.take_back(id);
    }

    fn place(&self, id: NodeId) -> Result<VfsPath> {
        Ok(self.nodes.get(id)?.place())
    }

    /// Waits a little if there are too many nodes. Called with nothing locked, before more are
    /// handed out.
    fn slow_down(&self) {
        self.pressure().slow_down(self.nodes());
    }

    /// As [`slow_down`](Self::slow_down), before something is made that takes a node.
    ///
    /// # Errors
    /// There may be no more nodes.
    fn make_room(&self) -> Result<()> {
        self.slow_down();
        self.pressure().has_room(self.nodes())
    }

    /// Calls `ask` on behalf of `who`, at `place`. If it is refused, calls it once more with
    /// all credentials of `who`: a refusal has changed nothing.
    fn ask<T>(
        &self,
        who: Caller,
        place: VfsPath,
        umask: u32,
        ask: impl Fn(&Context) -> Result<T>,
    ) -> Result<T> {
        let ctx = Context::within(place, who.credentials());
        // Only the part of the umask that applies to permission bits.
        let ctx = ctx.with_umask((umask & 0o777) as u16);
        match self.room.ask(|| ask(&ctx)) {
            Err(refused @ (Error::PermissionDenied | Error::NotPermitted)) => match who.in_full() {
                Some(full) => {
                    let ctx = ctx.with_credentials(full);
                    self.room.ask(|| ask(&ctx))
                }
                None => Err(refused),
            },
            done => done,
        }
    }

    /// The answer to a request that has made `path`.
    fn made(&self, path: &VfsPath) -> Result<Found<'_>> {
        let (entry, left) = self.nodes.entry(path)?;
        if let Some(left) = left {
            self.has_left(&left, path);
        }
        // FRESH-1: pairs with the fence in `Handler::hear`. Either that finds the node, or this
        // answer has the attributes as of the change.
        fence(SeqCst);
        let mut attr_reply = AttrReply::of(self.attr_at(entry.known(), path), entry.known());
        attr_reply.told.name = path.is_announced();
        Ok(Found {
            generation: entry.known().generation,
            attr_reply,
            entry,
        })
    }

    /// The answer to a LOOKUP that has found `path`.
    fn found(&self, path: &VfsPath) -> Result<Found<'_>> {
        let mut found = self.made(path)?;
        // The kernel alone knows the attributes of a file that it writes by itself.
        let told = &mut found.attr_reply.told;
        told.attr = told.name && !found.entry.known().is_through();
        Ok(found)
    }

    /// True if the kernel will be told when this name comes into the directory `id`, where it is
    /// missing.
    pub(crate) fn tells_of_name(&self, id: NodeId, name: &[u8]) -> bool {
        self.pushed.is_prompt()
            && self.place(id).is_ok_and(|dir| dir.announces_names())
            && self.pushed.keeps_missing(id, name)
    }

    /// A node was found at `path`, and no longer leads to its former place, which the kernel may
    /// still know.
    fn has_left(&self, left: &VfsPath, path: &VfsPath) {
        let former = self.name_in(left);
        if let Some((dir, name)) = &former
            && former != self.name_in(path)
        {
            self.pushed.former(*dir, name);
        }
    }

    /// The names by which the kernel may know a node. Asks no back end.
    pub(crate) fn names_of(&self, id: NodeId) -> Vec<(NodeId, Box<[u8]>)> {
        let places = self.nodes.peek(id).map(|node| node.places());
        let names = places.into_iter().flatten();
        names.filter_map(|place| self.name_in(&place)).collect()
    }

    /// The name of a place, in a directory that the kernel knows.
    fn name_in(&self, place: &VfsPath) -> Option<(NodeId, Box<[u8]>)> {
        let (dir, name) = place.dir_and_name()?;
        Some((self.nodes.known(&dir)?, name))
    }

    /// Passes on the result of a change of names. Their directories have other attributes then. If it
    /// has failed, the kernel takes the names for unchanged, which they may not be.
    fn changed_names<T>(&self, names: &[(NodeId, &[u8])], done: Result<T>) -> Result<T> {
        for (dir, name) in names {
            match &done {
                Ok(_) => self.pushed.changed(*dir),
                Err(err) => self.pushed.failed(*dir, name, err),
            }
        }
        done
    }

    /// Has the back end announce changes.
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) -> bool {
        self.vfs.listen(listener)
    }

    /// Returns the node id of an inode, if the kernel knows it.
    pub(crate) fn known(&self, inode: &Inode) -> Option<NodeId> {
        self.nodes.known(inode)
    }

    /// True if the kernel knows that node.
    pub(crate) fn knows(&self, id: NodeId) -> bool {
        self.nodes.peek(id).is_some()
    }

    /// The ids of all nodes.
    pub(crate) fn node_ids(&self) -> Vec<NodeId> {
        self.nodes.ids()
    }
}

/// Calls `ask` with the place of a node. If another thread removes or changes that name just
/// then, the node may have another one, or keep the file open (HOLD-1): the kernel itself asks
/// again only once.
fn at_place<T>(node: &NodeRef, ask: impl Fn(&VfsPath) -> Result<T>) -> Result<T> {
    for _ in 0..TRIES {
        match ask(&node.place()) {
            Err(Error::Stale) => {}
            done => return done,
        }
    }
    ask(&node.place())
}

/// Most changes of a name that one request sits out.
const TRIES: usize = 8;

/// A context for data that the kernel may have in any case; the kernel itself checks which
/// users see it.
fn as_daemon(place: VfsPath) -> Context {
    Context::within(place, Credentials::root())
}

/// Checks that `bytes` is one component.
fn name(bytes: &[u8]) -> Result<&[u8]> {
    Ok(Name::new(bytes)?.as_bytes())
}

/// Attributes with the inode number that users see.
pub(crate) fn shown(attr: Attr, node: &NodeRef) -> Attr {
    attr.ino(node.ino)
}
