//! Open files and directories, by the handles that the kernel holds.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use rcuwalk::{Error, File, Result};

use crate::listing::OpenDir;
use crate::shares::Share;
use crate::through::Way;

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// How its contents are read and written, once that is settled.
    pub(crate) way: OnceLock<Arc<Way>>,
    /// The thread that has just made the file, if this open made it.
    pub(crate) made_by: Option<u32>,
    /// Counted for the user who opened the file, if it holds a descriptor.
    pub(crate) _share: Option<Share>,
}

/// An open file or directory.
#[derive(Clone)]
pub(crate) enum Opened {
    File(Arc<OpenFile>),
    Dir(Arc<OpenDir>),
}

/// A table of handles. A number is never used twice, so a handle that is released twice, or
/// made up, refers to no other open file.
#[derive(Default)]
pub(crate) struct Handles {
    shards: [RwLock<HashMap<u64, Opened>>; Handles::SHARDS],
    last: AtomicU64,
}

impl Handles {
    /// So that threads seldom meet.
    const SHARDS: usize = 16;

    pub(crate) fn add(&self, opened: Opened) -> u64 {
        let handle = self.last.fetch_add(1, Relaxed) + 1;
        let mut shard = self
            .shard(handle)
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        shard.insert(handle, opened);
        handle
    }

    /// # Errors
    /// [`Error::BadDescriptor`] if it is not an open file.
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OpenFile>> {
        match self.get(handle)? {
            Opened::File(file) => Ok(file),
            Opened::Dir(_) => Err(Error::BadDescriptor),
        }
    }

    /// # Errors
    /// [`Error::BadDescriptor`] if it is not an open directory.
    pub(crate) fn dir(&self, handle: u64) -> Result<Arc<OpenDir>> {
        match self.get(handle)? {
            Opened::Dir(dir) => Ok(dir),
            Opened::File(_) => Err(Error::BadDescriptor),
        }
    }

    /// Removes the handle. Dropping the result closes it, which may call the back end.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] if it is not open, or not any more.
    pub(crate) fn release(&self, handle: u64) -> Result<Opened> {
        let shard = self.shard(handle);
        let gone = {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            shard.remove(&handle)
        };
        gone.ok_or(Error::BadDescriptor)
    }

    /// Releases all remaining handles, once the kernel can no longer release them.
    pub(crate) fn release_all(&self) {
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            let gone = mem::take(&mut *shard);
            // Unlocked: closing may call the back end.
            drop(shard);
            drop(gone);
        }
    }

    /// The number of handles.
    pub(crate) fn len(&self) -> usize {
        let shards = self.shards.iter();
        let lens = shards.map(|shard| shard.read().unwrap_or_else(PoisonError::into_inner).len());
        lens.sum()
    }

    fn get(&self, handle: u64) -> Result<Opened> {
        let shard = self
            .shard(handle)
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        shard.get(&handle).cloned().ok_or(Error::BadDescriptor)
    }

    fn shard(&self, handle: u64) -> &RwLock<HashMap<u64, Opened>> {
        &self.shards[handle as usize % Handles::SHARDS]
    }
}
