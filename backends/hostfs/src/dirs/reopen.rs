//! A directory whose descriptor has been given back is found again.
//!
//! **By its handle** where this process may (`CAP_DAC_READ_SEARCH` in the first user
//! namespace): one call, wherever the directory is by now. As a descriptor would, that follows
//! a directory that has been moved out of the root. The handle was the kernel's answer about a
//! directory that had been reached from the root, so no client can make it lead elsewhere
//! (WALK-3).
//!
//! **By name** else: up to the first directory above that has a descriptor (the root has), and
//! down again, one name at a time, each compared with the expected one. The names are those by
//! which the VFS has found the directories, and to which it has moved them. A directory that
//! another process has moved on the host is not there: [`Error::Stale`], until it is looked up
//! at its new place.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rcuwalk::{Error, Name, Result, SuperBlock};
use rustix::fd::{BorrowedFd, OwnedFd};

use super::{Above, Dir, Handle, Pin, lasting_handle};
use crate::host::{self, as_fd};
use crate::sys;

impl Dir {
    /// Its descriptor: the one that is kept, or a new one.
    ///
    /// # Errors
    /// [`Error::Stale`] if it is not to be found, or something else is there.
    pub(crate) fn pin(self: &Arc<Dir>, sb: &SuperBlock) -> Result<Pin> {
        match self.at_hand() {
            Some(pin) => Ok(pin),
            None => self.reopen(sb),
        }
    }

    #[cold]
    fn reopen(self: &Arc<Dir>, sb: &SuperBlock) -> Result<Pin> {
        if let Some(pin) = self.by_handle(sb)? {
            return Ok(pin);
        }
        let _still = self.among.going();
        let mut way = Vec::new();
        let mut dir = self.clone();
        let mut pin = loop {
            // Without a parent: it was found above one that is above it now.
            let Above { dir: above, name } = dir.above().ok_or(Error::Stale)?;
            way.push((dir, name));
            match above.at_hand() {
                Some(pin) => break pin,
                None => dir = above,
            }
        };
        while let Some((dir, name)) = way.pop() {
            pin = dir.by_name(sb, &pin, &name)?;
        }
        Ok(pin)
    }

    /// `None` if it cannot be had so.
    fn by_handle(self: &Arc<Dir>, sb: &SuperBlock) -> Result<Option<Pin>> {
        if !self.mount.opens_handles {
            return Ok(None);
        }
        let handle = match &self.slot().handle {
            Handle::Is(handle) => handle.clone(),
            _ => return Ok(None),
        };
        let counted = self.among.hold_descriptor(sb);
        let within = self.mount.within.fd();
        let opened = self
            .among
            .open(|| sys::open_by_handle(within, &handle).map_err(host::err));
        let fd = match opened {
            Ok(fd) => fd,
            Err(Error::TooManyOpenFiles) => return Err(Error::TooManyOpenFiles),
            // It is gone; or this process may not any more. The name decides, with the
            // handle to compare.
            Err(_) => return Ok(None),
        };
        if !self.is(&host::stat_fd(as_fd(&fd))?) {
            return Err(Error::Stale);
        }
        self.among.by_handle.fetch_add(1, Relaxed);
        Ok(Some(self.keep(Pin::counted(fd, counted))))
    }

    fn by_name(self: &Arc<Dir>, sb: &SuperBlock, above: &Pin, name: &[u8]) -> Result<Pin> {
        let name = Name::new(name)?;
        let counted = self.among.hold_descriptor(sb);
        let opened = self.among.open(|| host::pin_at(above.fd(), name));
        let fd: OwnedFd = opened.map_err(|err| match err {
            Error::NotFound | Error::NotADirectory => Error::Stale,
            err => err,
        })?;
        self.compare(as_fd(&fd))?;
        self.among.by_name.fetch_add(1, Relaxed);
        Ok(self.keep(Pin::counted(fd, counted)))
    }

    /// Returns whether the opened directory is this one.
    pub(super) fn compare(&self, fd: BorrowedFd<'_>) -> Result<()> {
        if !self.is(&host::stat_fd(fd)?) {
            return Err(Error::Stale);
        }
        let slot = self.slot();
        let Handle::Is(known) = &slot.handle else {
            return Ok(());
        };
        match lasting_handle(fd) {
            Some(handle) if handle != *known => {
                // The two differ in nothing else, so a lookup of this one would find the old
                // inode by the number.
                self.replaced.store(true, Relaxed);
                Err(Error::Stale)
            }
            _ => Ok(()),
        }
    }
}
