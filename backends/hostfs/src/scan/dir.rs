//! Directories on the way: how they are reached, and few of them held open.
//!
//! A directory whose subdirectories are still to be scanned is a [`Dir`]: its name, its parent,
//! and a weak reference to its descriptor. Descriptors belong to the threads, each of which
//! holds the last few it worked in ([`Held`]). Where a descriptor was given up, the scan goes
//! down again from the nearest ancestor that has one, name by name, and holds the descriptors
//! opened on that way. So a scan that comes back up from great depth walks the whole way once
//! per `Held::most` directories, not once per directory.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rcuwalk::{Attr, Error, FileType, Result};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::host::{as_fd, err};
use crate::identity::{Stat, WANTED};
use crate::sys;

/// Which part of the tree belongs to a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) one_device: bool,
    pub(super) root_device: u64,
}

impl Shape {
    /// The part below `root` that is on its device.
    pub(super) fn of(root: &OwnedFd) -> Result<Shape> {
        let whole = Identity::of(root)?;
        Ok(Shape {
            one_device: true,
            root_device: whole.device,
        })
    }

    /// True if the scan enters a directory on `device`.
    pub(super) fn covers(&self, device: u64) -> bool {
        !self.one_device || device == self.root_device
    }
}

/// Which directory it is, and on which side of which mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    ino: u64,
    /// Mount and device: changes where a mount is crossed.
    space: u64,
}

impl Identity {
    fn of(dir: &OwnedFd) -> Result<Identity> {
        let (stat, device) = stat(as_fd(dir), c"", AtFlags::EMPTY_PATH).map_err(err)??;
        Ok(Identity {
            device,
            ino: stat.attr.ino,
            space: stat.key.space,
        })
    }
}

/// A directory that was entered.
pub(super) struct Dir {
    parent: Option<Arc<Dir>>,
    /// Empty for the root.
    name: Box<CStr>,
    identity: Identity,
    fd: Mutex<Weak<OwnedFd>>,
}

/// Why a directory cannot be entered.
pub(super) enum Closed {
    /// It is gone, or no longer a directory: not an error.
    Gone,
    /// It turned out to lie on another file system.
    OtherDevice,
    /// It cannot be read.
    Unreadable(Error),
}

impl From<Errno> for Closed {
    fn from(errno: Errno) -> Closed {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Closed::Gone,
            errno => Closed::Unreadable(err(errno)),
        }
    }
}

impl Dir {
    /// Opens `name` in `parent`; the root, if there is no parent.
    pub(super) fn enter(
        root: &OwnedFd,
        parent: Option<&Arc<Dir>>,
        name: Box<CStr>,
        shape: &Shape,
        held: &mut Held,
    ) -> Result<(Arc<Dir>, Arc<OwnedFd>), Closed> {
        let fd = match parent {
            None => open(as_fd(root), c".")?,
            Some(parent) => {
                let above = parent.descriptor(root, held)?;
                held.open(as_fd(&above), &name)?
            }
        };
        let identity = Identity::of(&fd).map_err(Closed::Unreadable)?;
        if !shape.covers(identity.device) {
            return Err(Closed::OtherDevice);
        }
        let dir = Dir {
            parent: parent.cloned(),
            name,
            identity,
            fd: Mutex::default(),
        };
        if dir.is_loop() {
            let text = "file system loop: this directory is also above itself";
            return Err(Closed::Unreadable(Error::io(io::Error::other(text))));
        }
        let fd = Arc::new(fd);
        dir.remember(&fd);
        Ok((Arc::new(dir), fd))
    }

    /// Its path from the root, without a slash at either end.
    pub(super) fn path(&self) -> Vec<u8> {
        let mut names: Vec<&[u8]> = self.upwards().map(|dir| dir.name.to_bytes()).collect();
        // The root, which has no name.
        names.pop();
        names.reverse();
        names.join(&b'/')
    }

    /// Only a mount can show a directory below itself, so only there is it looked for.
    fn is_loop(&self) -> bool {
        let mut above = self.upwards().skip(1);
        let crosses = self
            .parent
            .as_ref()
            .is_some_and(|parent| parent.identity.space != self.identity.space);
        let this = (self.identity.device, self.identity.ino);
        crosses && above.any(|dir| (dir.identity.device, dir.identity.ino) == this)
    }

    /// Itself, its parent, and so on to the root.
    fn upwards(&self) -> impl Iterator<Item = &Dir> {
        std::iter::successors(Some(self), |dir| dir.parent.as_deref())
    }

    /// Its descriptor, or a new one.
    fn descriptor(&self, root: &OwnedFd, held: &mut Held) -> Result<Arc<OwnedFd>, Closed> {
        match self.remembered() {
            Some(fd) => Ok(fd),
            None => self.descriptor_slow(root, held),
        }
    }

    /// Down again from the nearest ancestor that has a descriptor.
    #[cold]
    fn descriptor_slow(&self, root: &OwnedFd, held: &mut Held) -> Result<Arc<OwnedFd>, Closed> {
        let mut below = Vec::new();
        let mut start = None;
        for dir in self.upwards() {
            start = dir.remembered();
            if start.is_some() {
                break;
            }
            below.push(dir);
        }
        let mut fd = start;
        for dir in below.into_iter().rev() {
            let opened = match &fd {
                None => open(as_fd(root), c".")?,
                Some(above) => held.open(as_fd(above), &dir.name)?,
            };
            // Moved away meanwhile, with another in its place, whose subdirectories do not
            // belong here.
            let now = Identity::of(&opened).map_err(Closed::Unreadable)?;
            if (now.device, now.ino) != (dir.identity.device, dir.identity.ino) {
                return Err(Closed::Unreadable(Error::Stale));
            }
            let opened = Arc::new(opened);
            dir.remember(&opened);
            held.hold(&opened);
            fd = Some(opened);
        }
        fd.ok_or(Closed::Gone)
    }

    fn remembered(&self) -> Option<Arc<OwnedFd>> {
        let fd = self.fd.lock().unwrap_or_else(PoisonError::into_inner);
        fd.upgrade()
    }

    fn remember(&self, fd: &Arc<OwnedFd>) {
        *self.fd.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(fd);
    }
}

/// Without recursion: a chain of a hundred thousand directories would need more stack
/// than there is.
impl Drop for Dir {
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(dir) = next {
            next = Arc::into_inner(dir).and_then(|mut dir| dir.parent.take());
        }
    }
}

/// The descriptors that one thread holds, the newest last.
pub(super) struct Held {
    fds: VecDeque<Arc<OwnedFd>>,
    most: usize,
}

impl Held {
    pub(super) fn new(most: usize) -> Held {
        Held {
            fds: VecDeque::new(),
            most,
        }
    }

    /// Holds one more, and lets the oldest go if that is one too many.
    pub(super) fn hold(&mut self, fd: &Arc<OwnedFd>) {
        // Several parts of one large directory come one after the other.
        if self.fds.back().is_some_and(|last| Arc::ptr_eq(last, fd)) {
            return;
        }
        if self.fds.len() >= self.most {
            self.fds.pop_front();
        }
        self.fds.push_back(fd.clone());
    }

    /// Opens a directory; out of descriptors, lets go of all it holds and tries again.
    fn open(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
        match open(dir, name) {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.fds.clear();
                open(dir, name)
            }
            opened => opened,
        }
    }
}

/// Opens the directory `name` in `dir`, without following a link of that name.
fn open(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(dir, name, flags, Mode::empty()))
}

/// An entry, as it was read.
pub(super) struct Found {
    pub(super) attr: Attr,
    pub(super) generation: Option<u32>,
    pub(super) target: Option<Vec<u8>>,
    /// A `struct file_handle`.
    handle: Option<Box<[u8]>>,
}

impl Found {
    /// Looks at `name` in `dir`, or at `dir` itself without a name. `None` if it is gone.
    pub(super) fn of(
        dir: BorrowedFd<'_>,
        name: &CStr,
        target: bool,
        handle: bool,
    ) -> Result<Option<Found>> {
        // A link that becomes another file between the two calls is read again; one that does
        // so all the time is left out.
        for _ in 0..4 {
            let flags = if name.is_empty() {
                AtFlags::EMPTY_PATH
            } else {
                AtFlags::SYMLINK_NOFOLLOW
            };
            let (stat, device) = match stat(dir, name, flags) {
                Err(Errno::NOENT) => return Ok(None),
                stat => stat.map_err(err)??,
            };
            let mut attr = stat.attr;
            attr.dev = device;
            let target = if target && attr.kind == FileType::Symlink {
                match retry_on_intr(|| rustix::fs::readlinkat(dir, name, Vec::new())) {
                    Ok(target) => Some(target.into_bytes()),
                    Err(Errno::NOENT | Errno::INVAL) => continue,
                    Err(errno) => return Err(err(errno)),
                }
            } else {
                None
            };
            // No handle is no error: many file systems have none.
            let handle = handle
                .then(|| sys::lasting_handle(dir, name).ok())
                .flatten();
            return Ok(Some(Found {
                attr,
                generation: handle.as_deref().and_then(generation),
                target,
                handle,
            }));
        }
        Ok(None)
    }

    pub(super) fn handle(&self) -> Option<(i32, &[u8])> {
        sys::handle_parts(self.handle.as_deref()?)
    }
}

/// The generation in a handle of type 1 with 8 bytes (`FILEID_INO32_GEN`): inode number,
/// then generation. Others keep their handles' insides to themselves.
fn generation(handle: &[u8]) -> Option<u32> {
    match sys::handle_parts(handle)? {
        (1, [_, _, _, _, a, b, c, d]) => Some(u32::from_ne_bytes([*a, *b, *c, *d])),
        _ => None,
    }
}

/// statx(2), with stat(2)'s answer: on a network file system it asks the server where stat
/// would ask it. A backup would otherwise read attributes that do not match.
fn stat(dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<Result<(Stat, u64)>, Errno> {
    let flags = flags | AtFlags::NO_AUTOMOUNT;
    let statx = retry_on_intr(|| rustix::fs::statx(dir, name, flags, WANTED))?;
    let device = rustix::fs::makedev(statx.stx_dev_major, statx.stx_dev_minor);
    Ok(Stat::from_statx(&statx).map(|stat| (stat, device)))
}
