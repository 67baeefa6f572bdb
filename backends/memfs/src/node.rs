//! A node: a file, directory, link or device of the tree.
//!
//! It lives for as long as a name, an inode of the VFS or an open file refers to it; then its
//! part of the file system's [`Space`] is given back.
//!
//! Locks: contents or names before attributes, parent before child.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use rcuwalk::{Attr, Error, FileType, Inode, NewFile, Result, SuperBlock, Timestamp};

use crate::data::Data;
use crate::fs::InodePrivate;
use crate::names::Names;
use crate::space::{INODE, Space};
use crate::xattrs::{self, Xattrs};

/// A file, directory, link or device of the tree.
pub(crate) struct Node {
    pub(crate) ino: u64,
    pub(crate) kind: FileType,
    body: Body,
    state: Mutex<State>,
    pub(crate) space: Arc<Space>,
}

/// What nodes have beside attributes, each kind its own.
enum Body {
    Regular(RwLock<Data>),
    Directory(Box<RwLock<Names>>),
    Symlink(Box<[u8]>),
    Special,
}

/// What changes together.
pub(crate) struct State {
    pub(crate) attr: Attr,
    pub(crate) xattrs: Option<Box<Xattrs>>,
    /// It never had a name, and may get one.
    #[doc(alias = "I_LINKABLE")]
    pub(crate) linkable: bool,
    /// It has been given a number outside: see [`MemFs::add`](crate::MemFs::add).
    pub(crate) numbered: bool,
    /// How often it is open.
    pub(crate) opens: u32,
    pub(crate) inodes: Inodes,
    /// Its part of the budget has been given back.
    gone: bool,
}

/// The inodes by which a node is in use: the newest one of each super block that has looked it up.
///
/// An older inode of the same super block has left its cache (INODE-1), and no thread holds it: the
/// VFS looks a node up only while the node has a name, and an inode stays in the cache for as long
/// as it is held and has a name. But RCU frees an inode that has left its cache much later, and
/// would keep the contents of a removed file until then. So older inodes do not count.
#[derive(Default)]
pub(crate) struct Inodes {
    newest: Vec<InodeOf>,
    made: u64,
}

/// An inode of a node: the address of its super block, and its number among the node's inodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct InodeOf {
    super_block: usize,
    number: u64,
}

impl Inodes {
    /// Adds an inode, which replaces an older one of its super block.
    pub(crate) fn add(&mut self, sb: &SuperBlock) -> InodeOf {
        self.made += 1;
        let inode = InodeOf {
            super_block: std::ptr::from_ref(sb).addr(),
            number: self.made,
        };
        let mut newest = self.newest.iter_mut();
        match newest.find(|of| of.super_block == inode.super_block) {
            Some(older) => *older = inode,
            None => {
                // Most trees have one super block.
                self.newest.reserve_exact(1);
                self.newest.push(inode);
            }
        }
        inode
    }

    /// Removes an inode that has gone, if it is still among the newest.
    pub(crate) fn remove(&mut self, gone: InodeOf) {
        self.newest.retain(|of| *of != gone);
    }

    fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }
}

/// What each name adds to the size of a directory, and what `.` and `..` do.
#[doc(alias = "BOGO_DIRENT_SIZE")]
const NAME_SIZE: u64 = 20;

/// Link targets below this length, with a NUL, lie in the inode.
#[doc(alias = "SHORT_SYMLINK_LEN")]
const SHORT_TARGET: usize = 128;

/// Nothing panics half-way through a change here, so what a poisoned lock guards is whole.
pub(crate) fn recover<T>(poisoned: PoisonError<T>) -> T {
    poisoned.into_inner()
}

/// The clock of all times here. Not the coarse one: two changes are to differ.
#[doc(alias = "current_time")]
pub(crate) fn now() -> Timestamp {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            sec: since.as_secs() as i64,
            nsec: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let part = i64::from(before.subsec_nanos() > 0);
            Timestamp {
                sec: -(before.as_secs() as i64) - part,
                nsec: (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000,
            }
        }
    }
}

impl Node {
    /// A node that pays for itself.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    #[doc(alias = "shmem_get_inode")]
    pub(crate) fn new(
        ino: u64,
        new: &NewFile<'_>,
        now: Timestamp,
        space: &Arc<Space>,
    ) -> Result<Node> {
        let xattrs = Xattrs::of(new);
        let price = INODE + xattrs.as_ref().map_or(0, |xattrs| xattrs.bytes());
        space.take_inode_bytes(price)?;
        let (mut size, mut pages) = (0, 0);
        let body = match new.kind {
            FileType::Regular => Body::Regular(RwLock::default()),
            FileType::Directory => {
                size = 2 * NAME_SIZE;
                Body::Directory(Box::default())
            }
            FileType::Symlink => {
                size = new.target.len() as u64;
                pages = target_pages(new.target);
                if let Err(full) = space.take_pages(pages) {
                    space.give_inode_bytes(price);
                    return Err(full);
                }
                Body::Symlink(new.target.into())
            }
            _ => Body::Special,
        };
        let attr = new
            .attr(ino)
            .size(size)
            .blocks(pages * 8)
            .atime(now)
            .mtime(now)
            .ctime(now)
            .btime(now);
        Ok(Node {
            ino,
            kind: new.kind,
            body,
            state: Mutex::new(State {
                attr,
                xattrs,
                linkable: false,
                numbered: false,
                opens: 0,
                inodes: Inodes::default(),
                gone: false,
            }),
            space: space.clone(),
        })
    }

    /// The node behind an inode of the VFS.
    pub(crate) fn of(inode: &Inode) -> Result<&Arc<Node>> {
        let private = inode.private::<InodePrivate>().ok_or(Error::Invalid)?;
        Ok(&private.node)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(recover)
    }

    /// True if it has an access ACL.
    pub(crate) fn has_acl(&self) -> bool {
        let state = self.state();
        let xattrs = state.xattrs.as_ref();
        xattrs.is_some_and(|xattrs| xattrs.get(xattrs::ACCESS).is_some())
    }

    /// Changes attributes, and has the inode of the VFS show them.
    pub(crate) fn change(&self, inode: Option<&Inode>, change: impl FnOnce(&mut Attr)) -> Attr {
        // Published under the lock: of two changes, the later one is seen last.
        let mut state = self.state();
        change(&mut state.attr);
        if let Some(inode) = inode {
            inode.set_attr(&state.attr);
        }
        state.attr
    }

    pub(crate) fn names(&self) -> Result<RwLockReadGuard<'_, Names>> {
        match &self.body {
            Body::Directory(names) => Ok(names.read().unwrap_or_else(recover)),
            _ => Err(Error::NotADirectory),
        }
    }

    pub(crate) fn names_mut(&self) -> Result<RwLockWriteGuard<'_, Names>> {
        match &self.body {
            Body::Directory(names) => Ok(names.write().unwrap_or_else(recover)),
            _ => Err(Error::NotADirectory),
        }
    }

    pub(crate) fn data(&self) -> Result<RwLockReadGuard<'_, Data>> {
        match &self.body {
            Body::Regular(data) => Ok(data.read().unwrap_or_else(recover)),
            _ => Err(Error::Invalid),
        }
    }

    pub(crate) fn data_mut(&self) -> Result<RwLockWriteGuard<'_, Data>> {
        match &self.body {
            Body::Regular(data) => Ok(data.write().unwrap_or_else(recover)),
            _ => Err(Error::Invalid),
        }
    }

    /// Changes the node's uses. After the last one, its part of the budget goes back; the node
    /// itself goes later, when the VFS frees the inode.
    pub(crate) fn users(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let used = state.attr.nlink > 0 || state.opens > 0 || !state.inodes.is_empty();
        drop(state);
        if !used {
            self.give_back();
        }
    }

    #[doc(alias = "shmem_evict_inode")]
    fn give_back(&self) {
        if let Ok(mut data) = self.data_mut() {
            data.truncate(&self.space, 0);
        }
        let mut state = self.state();
        if !std::mem::replace(&mut state.gone, true) {
            self.space.give_pages(self.target().map_or(0, target_pages));
            let xattrs = state.xattrs.take();
            let xattrs = xattrs.map_or(0, |xattrs| xattrs.bytes());
            self.space.give_inode_bytes(INODE + xattrs);
        }
    }

    pub(crate) fn target(&self) -> Result<&[u8]> {
        match &self.body {
            Body::Symlink(target) => Ok(target),
            _ => Err(Error::Invalid),
        }
    }
}

/// A name came (+1) or went (-1).
pub(crate) fn count_name(dir: &mut Attr, by: i64) {
    dir.size = dir.size.saturating_add_signed(by * NAME_SIZE as i64);
}

fn target_pages(target: &[u8]) -> u64 {
    u64::from(target.len() >= SHORT_TARGET)
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Body::Directory(names) = &mut self.body {
            drop_below(names.get_mut().unwrap_or_else(recover));
        }
        // One that still has names goes with all of them.
        let more = match self.kind {
            FileType::Directory => 0,
            _ => u64::from(self.state().attr.nlink.saturating_sub(1)),
        };
        self.space.give_inode_bytes(more * INODE);
        self.give_back();
    }
}

/// Drops a tree, however deep, without a call per level.
fn drop_below(names: &mut Names) {
    let mut left: Vec<Arc<Node>> = names.take_nodes().collect();
    while let Some(node) = left.pop() {
        if let Some(mut node) = Arc::into_inner(node)
            && let Body::Directory(names) = &mut node.body
        {
            left.extend(names.get_mut().unwrap_or_else(recover).take_nodes());
        }
    }
}
