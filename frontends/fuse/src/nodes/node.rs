//! A node: the front end's part of an inode.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use rcuwalk::inode::KnownPart;
use rcuwalk::{Attr, FileType, Inode, InodeId, OpenFlags, VfsPath};

use crate::handles::OpenFile;
use crate::listing::Kept;
use crate::remembered::Whereabouts;
use crate::removed::HeldFile;
use crate::through::Ways;
use crate::weak_list::WeakList;

/// The front end's part of an inode. With its id and count it fills two cache lines; what few
/// nodes need is in memory of its own.
pub(crate) struct Node {
    place: RwLock<Places>,
    /// The inode number that the kernel shows (NODE-3).
    pub(crate) ino: u64,
    /// Distinguishes successive files with the same id (HANDLE-1).
    pub(crate) generation: u32,
    /// The generation is the back end's, and the same after each LOOKUP.
    pub(super) lasts: bool,
    /// Looked up since the hand last passed.
    is_used: AtomicBool,
    /// Made when the node is first opened.
    opened: OnceLock<Box<Opened>>,
}

// MEM-1: id, count and the links of tables take 48 bytes more.
const _: () = assert!(size_of::<Node>() <= 2 * 64 - 48);

/// What a node has once it has been opened.
#[derive(Default)]
struct Opened {
    open: Mutex<Opens>,
    /// How an open file is read and written.
    ways: Ways,
    /// For a directory: the listing that the kernel keeps.
    kept: Kept,
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
    /// The place where it was last found: may have been removed or renamed. `None` once the last
    /// reference to the node is gone.
    last: Option<VfsPath>,
    more: Option<Box<More>>,
}

/// What few nodes have beside their name.
#[derive(Default)]
struct More {
    /// For a file with several names: the previous one, in case the last one is removed.
    before: Option<VfsPath>,
    /// The file itself, if its last name has been removed (HOLD-1).
    held: Option<HeldFile>,
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
        let before = self.more.as_ref().and_then(|more| more.before.as_ref());
        match before.filter(|before| before.is_named()) {
            Some(before) if !self.last().is_named() => before,
            _ => self.last(),
        }
    }

    fn last(&self) -> &VfsPath {
        let last = self.last.as_ref();
        last.expect("NODE-4: whoever has a node has it before the last reference goes")
    }
}

/// See [`Node::generation`].
#[derive(Clone, Copy)]
pub(super) struct Generation {
    pub(super) number: u32,
    pub(super) lasts: bool,
}

impl KnownPart for Node {
    /// Drops its names at once, rather than when RCU frees it.
    fn forgotten(&self) {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        let names = (place.last.take(), place.more.take());
        drop(place);
        drop(names);
    }
}

impl Node {
    pub(super) fn new(path: &VfsPath, ino: u64, generation: Generation) -> Node {
        Node {
            place: RwLock::new(Places {
                last: Some(path.clone()),
                more: None,
            }),
            ino,
            generation: generation.number,
            lasts: generation.lasts,
            is_used: AtomicBool::new(true),
            opened: OnceLock::new(),
        }
    }

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
        self.or_opened().opens().files.add(file);
    }

    /// Returns one of its open files.
    pub(crate) fn open_file(&self) -> Option<Arc<OpenFile>> {
        self.opened.get()?.opens().files.iter().next()
    }

    /// How its open files are read and written.
    pub(crate) fn ways(&self) -> &Ways {
        &self.or_opened().ways
    }

    /// True if contents may change without a request.
    pub(crate) fn is_through(&self) -> bool {
        let opened = self.opened.get();
        opened.is_some_and(|opened| opened.ways.are_through())
    }

    /// For a directory: the listing that the kernel keeps.
    pub(crate) fn kept(&self) -> &Kept {
        &self.or_opened().kept
    }

    fn or_opened(&self) -> &Opened {
        self.opened.get_or_init(Box::default)
    }

    /// Hides set-id bits from the kernel while the file is open for writing: a caller without
    /// the right to keep them is about to write. The write clears them on the host, where the
    /// kernel does not see it, and until then they have no effect: a file that is open for
    /// writing is not executed. If the caller does not write after all, the file still has them
    /// when it is closed. Does nothing to a file that is not open for writing.
    pub(crate) fn hide_set_ids(&self) {
        if let Some(opened) = self.opened.get() {
            let mut open = opened.opens();
            open.hides_set_ids = open.is_for_writing();
        }
    }

    /// Shows set-id bits again: the file has just been given its mode.
    pub(crate) fn show_set_ids(&self) {
        if let Some(opened) = self.opened.get() {
            opened.opens().hides_set_ids = false;
        }
    }

    /// True if set-id bits are hidden now.
    pub(crate) fn hides_set_ids(&self) -> bool {
        let Some(opened) = self.opened.get() else {
            return false;
        };
        let mut open = opened.opens();
        open.hides_set_ids = open.hides_set_ids && open.is_for_writing();
        open.hides_set_ids
    }

    /// True if it was used since the last call.
    pub(super) fn was_used(&self) -> bool {
        self.is_used.swap(false, Relaxed)
    }

    /// Marks the node as used: the hand skips it once more.
    pub(super) fn used(&self) {
        // Stored only if it changes, because many threads may use the same node.
        if !self.is_used.load(Relaxed) {
            self.is_used.store(true, Relaxed);
        }
    }

    /// One of its names has been removed. Unless it has another one, the node keeps `held`
    /// until the kernel forgets it.
    pub(super) fn has_lost_a_name(&self, held: HeldFile) {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        let is_held = place.more.as_ref().is_some_and(|more| more.held.is_some());
        let is_kept = !is_held && !place.best().is_named();
        // Dropped unlocked: closing it may take the caches' locks.
        let _gone = match is_kept {
            true => place.more.get_or_insert_default().held.replace(held),
            false => Some(held),
        };
        drop(place);
    }

    /// Returns the place by which a handle finds the node once the kernel has forgotten it;
    /// `None` if it has no name.
    pub(super) fn whereabouts(&self) -> Option<Whereabouts> {
        let (dir, name) = self.place().number_above()?;
        Some(Whereabouts {
            ino: self.ino,
            generation: self.generation,
            dir,
            name,
        })
    }

    pub(super) fn stands_for(&self, inode: &Inode) -> bool {
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        std::ptr::eq(place.last().inode(), inode)
    }

    pub(super) fn has_the_key_of(&self, inode: &Inode) -> bool {
        self.key() == *inode.key()
    }

    pub(super) fn key(&self) -> InodeId {
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        *place.last().inode().key()
    }

    /// Records the name by which it was just found: the one most likely to still exist. Returns
    /// the one that the node no longer has for it.
    pub(super) fn found_at(&self, path: &VfsPath) -> Option<VfsPath> {
        let is_known = {
            let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
            place.last().is_same_place(path)
        };
        if is_known {
            return None;
        }
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        let attr = path.attr();
        let mut before = place.last.replace(path.clone());
        let is_worth_it = attr.nlink > 1 && attr.kind != FileType::Directory;
        if is_worth_it && before.as_ref().is_some_and(VfsPath::is_named) {
            let more = place.more.get_or_insert_default();
            std::mem::swap(&mut more.before, &mut before);
        }
        // Dropped by the caller, unlocked: the drop may take the caches' locks.
        before
    }

    /// Returns the names by which the kernel may know the node: the last, and of a file with
    /// several the one before.
    pub(crate) fn places(&self) -> impl Iterator<Item = VfsPath> + use<> {
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        let before = place.more.as_ref().and_then(|more| more.before.clone());
        let last = place.last.clone();
        last.into_iter().chain(before)
    }
}

impl Opened {
    fn opens(&self) -> MutexGuard<'_, Opens> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
