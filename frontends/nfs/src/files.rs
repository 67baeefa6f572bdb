//! Files that clients know: file handles on the wire, and the held files behind them.
//!
//! A handle (`nfs_fh3`) has 64 bytes at most. It is a [`Handle`] without its path, signed, where
//! that fits; else a digest:
//!
//! ```text
//! version (1)  length (1)  what the back end made  signature (16)
//! DIGEST  (1)  signature (16)
//! ```
//!
//! HANDLE-1 is the VFS's; the signature keeps clients from making up handles of it. A handle with a
//! wrong one is stale, as is a digest that is not in the table.
//!
//! The table holds files that were asked for last, `most` of them: [`Known`]. It spares the back
//! end a question per request, and it is the only way back to a file that its back end finds by a
//! path alone; but the root is always found, or a server that finds files by their paths would leave
//! its clients without a way to anything after a restart. It keeps no answers: attributes are the VFS's. A file that has lost the name by which
//! it is held is found again by its handle, if it still exists.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rcuwalk::{
    Credentials, Error, Handle, HandleKey, Inode, InodeId, LookupFlags, Result, Vfs, VfsPath,
};

use crate::opened::Opened;

/// The longest handle on the wire.
pub(crate) const MOST_BYTES: usize = 64;

/// The first byte of a handle that is only a digest; of others it is 1.
const DIGEST: u8 = 2;

const SHARDS: usize = 64;

/// A file that clients know.
pub(crate) struct Known {
    wire: Box<[u8]>,
    place: RwLock<Place>,
    /// Asked for since the hand last passed.
    is_used: AtomicBool,
    /// The files that are open for later requests.
    pub(crate) opened: Opened,
}

struct Place {
    path: VfsPath,
    /// It had a name when it was found.
    was_named: bool,
}

impl Place {
    fn new(path: &VfsPath) -> Place {
        Place {
            path: path.clone(),
            was_named: path.is_named(),
        }
    }
}

impl Known {
    /// The handle's bytes.
    pub(crate) fn wire(&self) -> &[u8] {
        &self.wire
    }

    /// Where it was last found.
    pub(crate) fn path(&self) -> VfsPath {
        self.place().path.clone()
    }

    fn place(&self) -> RwLockReadGuard<'_, Place> {
        self.place.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// False if it has lost the name by which it was found, or its last one.
    fn is_current(&self) -> bool {
        let place = self.place();
        match place.was_named {
            true => place.path.is_named(),
            false => place.path.inode().nlink() > 0,
        }
    }

    fn is_of(&self, inode: &Inode) -> bool {
        std::ptr::eq(self.place().path.inode(), inode)
    }

    fn key(&self) -> InodeId {
        *self.place().path.inode().key()
    }

    /// Records where it was just found.
    fn found_at(&self, path: &VfsPath) {
        let is_there = self.place().path.is_same_place(path);
        if !is_there {
            let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
            let before = std::mem::replace(&mut *place, Place::new(path));
            // Dropped unlocked: the drop may take the caches' locks.
            drop(place);
            drop(before);
        }
    }

    fn used(&self) {
        // Stored only if it changes, because many threads may use the same file.
        if !self.is_used.load(Relaxed) {
            self.is_used.store(true, Relaxed);
        }
    }
}

/// The files that clients know.
pub(crate) struct Files {
    vfs: Vfs,
    key: HandleKey,
    hash: RandomState,
    /// The root, and the bytes of its handle.
    root: VfsPath,
    root_wire: Box<[u8]>,
    by_handle: [RwLock<Shard>; SHARDS],
    by_inode: [RwLock<HashMap<InodeId, Arc<Known>>>; SHARDS],
    most: usize,
}

#[derive(Default)]
struct Shard {
    known: HashMap<Box<[u8]>, Arc<Known>>,
    /// The order in which the hand looks at them.
    order: VecDeque<Arc<Known>>,
}

impl Files {
    /// Holds `most` files, or a few more.
    ///
    /// # Errors
    /// Those of [`Vfs::encode_handle`].
    pub(crate) fn new(vfs: Vfs, key: HandleKey, most: usize) -> Result<Files> {
        let root = vfs.root();
        Ok(Files {
            root_wire: to_wire(&key, vfs.encode_handle(&root)?),
            root,
            key,
            hash: RandomState::new(),
            by_handle: std::array::from_fn(|_| RwLock::default()),
            by_inode: std::array::from_fn(|_| RwLock::default()),
            most: most.div_ceil(SHARDS),
            vfs,
        })
    }

    /// Returns the file of a place, with its handle. Asks the back end for the handle of a file
    /// that is not known.
    ///
    /// # Errors
    /// Those of [`Vfs::encode_handle`].
    pub(crate) fn of(&self, path: &VfsPath) -> Result<Arc<Known>> {
        let inode = path.inode();
        let found = self.inodes(inode.key()).get(inode.key()).cloned();
        if let Some(known) = found.filter(|known| known.is_of(inode)) {
            known.used();
            known.found_at(path);
            return Ok(known);
        }
        let wire = to_wire(&self.key, self.vfs.encode_handle(path)?);
        Ok(self.insert(wire, path))
    }

    /// Returns the file of a handle. Asks the back end if it is not known.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such file any more, or the handle was not signed by us.
    pub(crate) fn find(&self, wire: &[u8]) -> Result<Arc<Known>> {
        let found = self.shard(wire).known.get(wire).cloned();
        match found {
            Some(known) if known.is_current() => {
                known.used();
                Ok(known)
            }
            _ => self.find_again(wire),
        }
    }

    /// Like [`find`](Self::find), and asks the back end in any case: what was held of the file is
    /// stale.
    pub(crate) fn find_again(&self, wire: &[u8]) -> Result<Arc<Known>> {
        let found = match wire.first() {
            Some(&DIGEST) => Err(Error::Stale),
            _ => self.key.verify(wire).map_err(|_| Error::Stale),
        };
        let found = found.and_then(|handle| self.vfs.open_by_handle(&handle));
        match found {
            Ok(path) => Ok(self.insert(wire.into(), &path)),
            Err(Error::Stale) if *self.root_wire == *wire => {
                Ok(self.insert(wire.into(), &self.root))
            }
            Err(Error::Stale) => self.still_held(wire),
            Err(err) => Err(err),
        }
    }

    /// The file of a handle that its back end does not find by the handle alone: where it is held,
    /// if it still is there.
    fn still_held(&self, wire: &[u8]) -> Result<Arc<Known>> {
        let held = self.shard(wire).known.get(wire).cloned();
        let held = held.filter(|known| known.is_current());
        let is_there = held.filter(|known| {
            let daemon = self.vfs.context(Credentials::root());
            let found = self.vfs.stat(&daemon, &known.path(), LookupFlags::REVAL);
            !matches!(found, Err(Error::Stale | Error::NotFound))
        });
        is_there.ok_or_else(|| {
            self.forget(wire);
            Error::Stale
        })
    }

    /// The number of files that are held.
    pub(crate) fn len(&self) -> usize {
        let shards = self.by_handle.iter();
        shards.map(|shard| read(shard).known.len()).sum()
    }

    fn insert(&self, wire: Box<[u8]>, path: &VfsPath) -> Arc<Known> {
        let shard = &self.by_handle[self.shard_of(&wire)];
        let known = {
            let mut shard = write(shard);
            match shard.known.get(&wire) {
                Some(known) => known.clone(),
                None => {
                    let known = Arc::new(Known {
                        wire: wire.clone(),
                        place: RwLock::new(Place::new(path)),
                        is_used: AtomicBool::new(true),
                        opened: Opened::default(),
                    });
                    shard.known.insert(wire, known.clone());
                    shard.order.push_back(known.clone());
                    known
                }
            }
        };
        if !known.is_of(path.inode()) {
            self.unlist(&known);
            // Of another inode.
            known.opened.close();
        }
        known.used();
        known.found_at(path);
        let key = *path.inode().key();
        let before = write(&self.by_inode[self.inodes_of(&key)]).insert(key, known.clone());
        drop(before);
        self.evict(shard);
        known
    }

    /// Takes the files off that were not asked for since the hand last passed, until there are no
    /// more than the most.
    fn evict(&self, shard: &RwLock<Shard>) {
        loop {
            let mut shard = write(shard);
            if shard.known.len() <= self.most {
                return;
            }
            let Some(known) = shard.order.pop_front() else {
                return;
            };
            if known.is_used.swap(false, Relaxed) {
                shard.order.push_back(known);
                continue;
            }
            let is_it = |there: &Arc<Known>| Arc::ptr_eq(there, &known);
            if shard.known.get(known.wire()).is_some_and(is_it) {
                shard.known.remove(known.wire());
            }
            drop(shard);
            self.unlist(&known);
        }
    }

    fn forget(&self, wire: &[u8]) {
        let mut shard = write(&self.by_handle[self.shard_of(wire)]);
        let Some(known) = shard.known.remove(wire) else {
            return;
        };
        shard.order.retain(|other| !Arc::ptr_eq(other, &known));
        drop(shard);
        self.unlist(&known);
        known.opened.close();
    }

    fn unlist(&self, known: &Arc<Known>) {
        let key = known.key();
        let mut inodes = write(&self.by_inode[self.inodes_of(&key)]);
        if inodes
            .get(&key)
            .is_some_and(|there| Arc::ptr_eq(there, known))
        {
            let gone = inodes.remove(&key);
            drop(inodes);
            drop(gone);
        }
    }

    fn shard(&self, wire: &[u8]) -> RwLockReadGuard<'_, Shard> {
        read(&self.by_handle[self.shard_of(wire)])
    }

    fn shard_of(&self, wire: &[u8]) -> usize {
        self.hash.hash_one(wire) as usize % SHARDS
    }

    fn inodes(&self, key: &InodeId) -> RwLockReadGuard<'_, HashMap<InodeId, Arc<Known>>> {
        read(&self.by_inode[self.inodes_of(key)])
    }

    fn inodes_of(&self, key: &InodeId) -> usize {
        self.hash.hash_one(key) as usize % SHARDS
    }
}

/// The bytes of a handle on the wire.
fn to_wire(key: &HandleKey, handle: Handle) -> Box<[u8]> {
    let signed = key.sign(&handle.without_path());
    if signed.len() <= MOST_BYTES {
        return signed.into();
    }
    let digest = &signed[signed.len() - HandleKey::SIGNATURE_BYTES..];
    [&[DIGEST], digest].concat().into()
}

// A panic between two changes leaves an entry in one map and not in the other: neither misleads.
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
