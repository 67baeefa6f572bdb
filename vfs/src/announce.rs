//! Changes that a back end hears of, passed on to the front end of its tree.
//!
//! A front end whose clients have caches of their own can tell them to keep an answer until it
//! is invalidated, if it hears of each change that makes the answer wrong. So it
//! [listens](crate::Vfs::listen), and a back end that is told of changes from outside
//! ([`Freshness::Watched`](crate::Freshness::Watched)) announces them.
//!
//! FRESH-1 for a client: the back end announces a change *after* the caches of the
//! [`Vfs`](crate::Vfs) are up to date. So an answer that is made after the announcement knows of
//! the change. An answer that was made before may still be under way: the front end lets its
//! client discard that one.

use std::sync::Weak;

use rcuwalk_sync::rcu;

use crate::context::VfsPath;
use crate::dentry::Flags;
use crate::filesystem::Freshness;
use crate::fresh::is_watched_held;
use crate::super_block::SuperBlock;
use crate::vfs::Vfs;
use crate::vfs_inode::Inode;

/// A change that a back end announces.
///
/// `by` is the number of the thread that made the change, as gettid(2) gives it, where the back
/// end knows it: a front end need not tell its client of the client's own changes. It is `None`
/// for several threads.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Announcement<'c> {
    /// A name in `dir` was made, moved or removed.
    Name {
        /// The directory.
        dir: &'c Inode,
        /// The name.
        name: &'c [u8],
        /// It was made, and nothing else happened: no file had it just before. So what a client knows
        /// by it is that it is missing, or the new file.
        is_new: bool,
        /// The thread that did it.
        by: Option<u32>,
    },
    /// The attributes of a file changed, and possibly its contents.
    Attributes {
        /// The file.
        inode: &'c Inode,
        /// The thread that did it.
        by: Option<u32>,
    },
    /// Changes may have been missed: any answer may be wrong.
    Everything,
}

/// Hears of the changes of a tree.
pub trait Listener: Send + Sync {
    /// Called on a thread of the back end, which holds no lock. Later changes wait for its
    /// return: so it neither blocks nor uses the tree.
    fn hear(&self, change: &Announcement<'_>);

    /// True if this thread, by its number as gettid(2) gives it, changes the tree on behalf of the
    /// clients, through the [`Vfs`](crate::Vfs) and in no other way. The caches and the clients know
    /// such a change when it is done, so the back end can ignore its report. A change that has
    /// *failed* may be known to neither: the back end answers for the first, the listener for the
    /// second. Neither blocks nor uses the tree.
    fn is_own(&self, thread: u32) -> bool {
        let _ = thread;
        false
    }
}

impl SuperBlock {
    /// Passes a change on to the listener, if there is one. For a back end's own thread, with
    /// no lock held, after the caches are up to date.
    pub fn announce(&self, change: &Announcement<'_>) {
        if let Some(listener) = self.listener.get().and_then(Weak::upgrade) {
            listener.hear(change);
        }
    }

    /// True if the thread changes the tree through the [`Vfs`](crate::Vfs) alone
    /// ([`Listener::is_own`]).
    pub fn is_own(&self, thread: u32) -> bool {
        let listener = self.listener.get().and_then(Weak::upgrade);
        listener.is_some_and(|listener| listener.is_own(thread))
    }

    /// True if each change of this inode is announced to a listener: of its attributes, and of
    /// the names in it if it is a directory.
    fn announces(&self, inode: &Inode) -> bool {
        self.freshness == Freshness::Watched
            && self.listener.get().is_some()
            && self.is_hearing()
            && self.about().announces(inode)
    }
}

impl Vfs {
    /// Has the back end of the root announce changes to `listener` from now on. False if it
    /// announces none, or has a listener already.
    pub fn listen(&self, listener: Weak<dyn Listener>) -> bool {
        let root = self.root();
        let sb = &root.mnt().sb;
        let hears = sb.freshness == Freshness::Watched && sb.about().announces(root.inode());
        hears && sb.listener.set(listener).is_ok()
    }
}

impl VfsPath {
    /// True if each change of the name and of the file's attributes is announced to a listener
    /// ([`Vfs::listen`]), from the last answer of the back end on. Takes no lock.
    pub fn is_announced(&self) -> bool {
        let sb = &self.mnt().sb;
        if !sb.announces(self.inode()) || !is_watched_held(self.inode_held()) {
            return false;
        }
        let guard = rcu::read_lock();
        let dentry = self.dentry();
        if dentry
            .flags()
            .intersects(Flags::INVALIDATED | Flags::UNHASHED)
        {
            return false;
        }
        let dir = dentry.parent(&guard).and_then(|dir| dir.inode(&guard));
        dir.is_none_or(|dir| dir.names_version() != 0 && sb.announces(dir))
    }

    /// True if each name that comes into this directory is announced to a listener
    /// ([`Vfs::listen`]). Takes no lock.
    pub fn announces_names(&self) -> bool {
        self.inode().names_version() != 0 && self.mnt().sb.announces(self.inode())
    }
}
