//! Cached directories: which one each is, and a descriptor of it for as long as there is
//! room.
//!
//! | read              | to learn                                             |
//! |-------------------|------------------------------------------------------|
//! | this file         | the state of a directory, and the holder of its descriptor |
//! | `dirs/queue.rs`   | which descriptors are closed when there are too many |
//! | `dirs/reopen.rs`  | how a directory is found again: by handle, or by name |
//!
//! **A directory's descriptor is a cache entry, not a part of its identity.** Those of the
//! directories used last are kept, as many as the budget has room for (MEM-1). The others
//! are opened again when they are needed:
//!
//! ```text
//!            Kept(descriptor) ---- queue: not used lately ----> Away
//!                 ^                                               |
//!                 |        1. by its file handle, if privileged   |
//!                 +------- 2. parent + name, and so on upwards ---+
//!                             to a directory that is Kept
//! ```
//!
//! **HOST-1: a directory that is opened again is the one that it was, or [`Error::Stale`];
//! never another.** Mount, device, inode number, type and time of birth are compared, and the
//! file handle where there is one (see [`Handle`]). A host file system without times of birth
//! and without handles leaves number and type to decide.
//!
//! The root is always kept. So is a removed directory that is in use: no path leads to it any
//! more.
//!
//! [`Error::Stale`]: rcuwalk::Error::Stale
//!
//! A record outlives its inode as long as a directory below has one, since that one may be
//! reopened through it. The VFS evicts names from below, so these are few. Records point up,
//! and never in a circle: [`Dir::found_at`].

mod queue;
mod reopen;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};
use std::time::Instant;

use rcuwalk::{FileType, HeldDescriptor, InodeKey, SuperBlock, Timestamp};
use rustix::fd::{BorrowedFd, OwnedFd};

use crate::host::{self, as_fd};
use crate::identity::{Stat, host_mount, may_be_one_birth};
use crate::sys;

pub use queue::DescriptorCounts;
pub(crate) use queue::Dirs;

/// A directory that is cached, or above one that is.
pub(crate) struct Dir {
    key: InodeKey,
    born: Timestamp,
    /// The host's mount that it is in.
    mount: Arc<HostMount>,
    among: Arc<Dirs>,
    /// Always kept, and nowhere below.
    is_root: bool,
    /// Since the queue has last looked.
    used: AtomicBool,
    /// Another directory has got its number and time of birth.
    replaced: AtomicBool,
    /// Until when it is known to have no default ACL.
    no_default_acl: Mutex<Option<Instant>>,
    slot: RwLock<Slot>,
}

/// The mutable part of a directory's record.
struct Slot {
    fd: Fd,
    /// Its turn in the queue; 0 if it is not in the queue.
    turn: u64,
    handle: Handle,
    above: Option<Above>,
}

enum Fd {
    Kept(Arc<OpenDir>),
    /// Another thread may still be using it.
    Away(Weak<OpenDir>),
}

/// Its file handle, asked for when its descriptor is given back: so it costs nothing
/// before.
enum Handle {
    NotAsked,
    /// The file system has none, or none that lasts: a FUSE server may call a file
    /// something else each time it is asked.
    None,
    /// As good as the descriptor: it has the number that tells apart two files of one inode
    /// number.
    Is(Box<[u8]>),
}

/// Where a directory was found last.
#[derive(Clone)]
struct Above {
    dir: Arc<Dir>,
    name: Arc<[u8]>,
}

/// An `O_PATH` descriptor, counted for as long as it is open.
#[derive(Debug)]
pub(crate) struct OpenDir {
    fd: OwnedFd,
    #[expect(dead_code, reason = "counts for as long as it lives")]
    counted: Option<Counted>,
}

struct Counted(#[expect(dead_code, reason = "counts for as long as it lives")] HeldDescriptor);

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("counted")
    }
}

/// The descriptor of a directory, for the time of a call: it stays open until then.
#[derive(Clone, Debug)]
pub(crate) struct Pin(Arc<OpenDir>);

impl Pin {
    /// One that counts against no budget.
    pub(crate) fn uncounted(fd: OwnedFd) -> Pin {
        Pin(Arc::new(OpenDir { fd, counted: None }))
    }

    pub(crate) fn counted(fd: OwnedFd, counted: HeldDescriptor) -> Pin {
        let counted = Some(Counted(counted));
        Pin(Arc::new(OpenDir { fd, counted }))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        as_fd(&self.0.fd)
    }
}

/// A mount of the host, busy for as long as something in it is cached.
pub(crate) struct HostMount {
    id: u64,
    /// A directory in it; open for reading where `opens_handles`, for open_by_handle_at(2)
    /// takes no other.
    within: Pin,
    /// This process may, and the file system can.
    opens_handles: bool,
}

impl HostMount {
    /// The mount that `top` is in. Whether handles can be opened is tried, once.
    fn of(top: &Pin, id: u64, among: &Dirs, sb: &SuperBlock) -> HostMount {
        let within = readable_if_handles_open(top);
        let within = within.map(|fd| Pin::counted(fd, among.hold_descriptor(sb)));
        HostMount {
            id,
            opens_handles: within.is_some(),
            within: within.unwrap_or_else(|| top.clone()),
        }
    }
}

fn readable_if_handles_open(top: &Pin) -> Option<OwnedFd> {
    let handle = lasting_handle(top.fd())?;
    let readable = host::open_dir(top.fd()).ok()?;
    sys::open_by_handle(as_fd(&readable), &handle).ok()?;
    Some(readable)
}

fn lasting_handle(fd: BorrowedFd<'_>) -> Option<Box<[u8]>> {
    const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;
    match host::held::statfs(fd) {
        Ok(told) if told.kind != FUSE_SUPER_MAGIC => sys::lasting_handle(fd, c"").ok(),
        _ => None,
    }
}

impl Dir {
    /// The root, which `pin` holds for good.
    pub(crate) fn root(among: &Arc<Dirs>, sb: &SuperBlock, pin: &Pin, stat: &Stat) -> Arc<Dir> {
        let mount = HostMount::of(pin, host_mount(stat.key), among, sb);
        Arc::new(Dir::new(among, pin, stat, None, Arc::new(mount)))
    }

    /// The directory found as `name` in `dir`, held by `pin`.
    pub(crate) fn below(
        dir: &Arc<Dir>,
        name: &[u8],
        sb: &SuperBlock,
        pin: &Pin,
        stat: &Stat,
    ) -> Arc<Dir> {
        let mount = match host_mount(stat.key) {
            id if id == dir.mount.id => dir.mount.clone(),
            id => Arc::new(HostMount::of(pin, id, &dir.among, sb)),
        };
        let above = Above {
            dir: dir.clone(),
            name: name.into(),
        };
        let new = Arc::new(Dir::new(&dir.among, pin, stat, Some(above), mount));
        let mut slot = new.slot_mut();
        slot.turn = new.among.enqueue(&new);
        drop(slot);
        new
    }

    fn new(
        among: &Arc<Dirs>,
        pin: &Pin,
        stat: &Stat,
        above: Option<Above>,
        mount: Arc<HostMount>,
    ) -> Dir {
        Dir {
            key: stat.key,
            born: stat.attr.btime,
            mount,
            among: among.clone(),
            is_root: above.is_none(),
            used: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            no_default_acl: Mutex::new(None),
            slot: RwLock::new(Slot {
                fd: Fd::Kept(pin.0.clone()),
                turn: 0,
                handle: Handle::NotAsked,
                above,
            }),
        }
    }

    /// A descriptor of its mount that open_by_handle_at(2) takes, if this process may open handles
    /// there.
    pub(crate) fn opens_handles(&self) -> Option<BorrowedFd<'_>> {
        self.mount.opens_handles.then(|| self.mount.within.fd())
    }

    /// The descriptor, if there is one.
    fn at_hand(&self) -> Option<Pin> {
        // Mostly a load: a store only once after each look of the queue.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
        match &self.slot().fd {
            Fd::Kept(fd) => Some(Pin(fd.clone())),
            Fd::Away(fd) => fd.upgrade().map(Pin),
        }
    }

    /// It is, or has been moved to, `name` in `above`.
    pub(crate) fn found_at(self: &Arc<Dir>, above: &Arc<Dir>, name: &[u8]) {
        let is_there = |slot: &Slot| {
            let known = slot.above.as_ref();
            known.is_some_and(|known| Arc::ptr_eq(&known.dir, above) && *known.name == *name)
        };
        if self.is_root || is_there(&self.slot()) {
            return;
        }
        let _alone = self.among.moving();
        self.moved_to(above, name);
    }

    /// Like the above, for a caller that holds [`Dirs::moving`].
    pub(crate) fn moved_to(self: &Arc<Dir>, above: &Arc<Dir>, name: &[u8]) {
        if self.is_root || Arc::ptr_eq(self, above) {
            return;
        }
        // A directory that was below this one, and is above it now, has been moved on the host;
        // a lookup at its new path will find it.
        let mut next = Some(above.clone());
        while let Some(dir) = next {
            next = dir.above().map(|above| above.dir);
            if next.as_ref().is_some_and(|next| Arc::ptr_eq(next, self)) {
                let before = dir.slot_mut().above.take();
                drop(before);
                next = None;
            }
        }
        let above = Above {
            dir: above.clone(),
            name: name.into(),
        };
        let before = self.slot_mut().above.replace(above);
        drop(before);
    }

    /// It has been removed, and may be in use: only `pin` leads to it.
    pub(crate) fn removed(&self, pin: &Pin) {
        if !self.is_root {
            self.put(Fd::Kept(pin.0.clone()));
        }
    }

    /// It is no longer in use.
    pub(crate) fn give_up(&self) {
        if !self.is_root {
            self.put(Fd::Away(Weak::new()));
        }
    }

    /// Out of the queue, with this.
    fn put(&self, fd: Fd) {
        let mut slot = self.slot_mut();
        let turn = std::mem::take(&mut slot.turn);
        let before = std::mem::replace(&mut slot.fd, fd);
        drop(slot);
        self.among.leave(turn);
        drop(before);
    }

    /// Called by the queue when it is its turn. True if the descriptor has been given back;
    /// with a `chance` only if it was not used since the last time.
    fn give_back(self: &Arc<Dir>, turn: u64, chance: bool) -> bool {
        let mut slot = self.slot_mut();
        if slot.turn != turn {
            return false;
        }
        if chance && self.used.swap(false, Relaxed) {
            slot.turn = self.among.enqueue(self);
            return false;
        }
        slot.turn = 0;
        let Fd::Kept(fd) = std::mem::replace(&mut slot.fd, Fd::Away(Weak::new())) else {
            return false;
        };
        if let Handle::NotAsked = slot.handle {
            slot.handle = lasting_handle(as_fd(&fd.fd)).map_or(Handle::None, Handle::Is);
        }
        let weak = Arc::downgrade(&fd);
        drop(fd);
        // Unused entries would keep their memory.
        if weak.strong_count() > 0 {
            slot.fd = Fd::Away(weak);
        }
        true
    }

    /// Keeps the opened descriptor, unless another thread was faster.
    fn keep(self: &Arc<Dir>, pin: Pin) -> Pin {
        let mut slot = self.slot_mut();
        let there = match &slot.fd {
            Fd::Kept(fd) => Some(fd.clone()),
            Fd::Away(fd) => fd.upgrade(),
        };
        if let Some(fd) = there {
            return Pin(fd);
        }
        slot.fd = Fd::Kept(pin.0.clone());
        slot.turn = self.among.enqueue(self);
        pin
    }

    /// True if `stat` can be this directory.
    fn is(&self, stat: &Stat) -> bool {
        stat.key == self.key
            && stat.attr.kind == FileType::Directory
            && may_be_one_birth(self.born, stat.attr.btime)
    }

    /// Another directory has got its number and time of birth: the inode does not belong to the
    /// directory found under its number.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Relaxed)
    }

    fn above(&self) -> Option<Above> {
        self.slot().above.clone()
    }

    /// Until when it is known to have no default ACL; see [`default_acl`](crate::xattr::default_acl).
    pub(crate) fn no_default_acl(&self) -> MutexGuard<'_, Option<Instant>> {
        // A time stays one, whatever panics.
        self.no_default_acl
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self) -> RwLockReadGuard<'_, Slot> {
        // Nothing panics halfway through a change.
        self.slot.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot_mut(&self) -> RwLockWriteGuard<'_, Slot> {
        self.slot.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Approximate memory of a record beside the inode, with its descriptor, name and handle.
pub(crate) const BYTES: usize = size_of::<Dir>() + size_of::<OpenDir>() + 96;

impl Drop for Dir {
    fn drop(&mut self) {
        let slot = self.slot.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.among.leave(slot.turn);
        // Without recursion: a chain of a hundred thousand directories would need more stack
        // than there is.
        let mut next = slot.above.take();
        while let Some(Above { dir, .. }) = next {
            next = Arc::into_inner(dir).and_then(|mut dir| {
                let slot = dir.slot.get_mut().unwrap_or_else(PoisonError::into_inner);
                slot.above.take()
            });
        }
    }
}

impl std::fmt::Debug for Dir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dir").field("key", &self.key).finish()
    }
}
