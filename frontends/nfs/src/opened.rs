//! Files that stay open between requests: the protocol has no "open".
//!
//! They are open for the daemon; each request is checked for its own caller before it uses one. The
//! ones that were not used for [`IDLE`] are closed, and the oldest go if there are too many.
//!
//! NFS-2: the host reports data that it could not write once for each descriptor, and all clients share
//! one. So fsync(2) of a file runs for one request at a time, and what follows from a failure (another
//! verifier) happens before the next one begins ([`Opened::sync`]): a request whose own fsync(2) has
//! succeeded because another one was told of the failure finds it counted.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rcuwalk::{Context, Error, File, OpenFlags, Result, Vfs};
use rustix::io::Errno;

use crate::files::Known;

/// A removed file keeps its space, and a program cannot be executed, while they are open for
/// writing.
const IDLE: Duration = Duration::from_secs(2);
/// The same for files with data that its client has not committed: clients do so sooner.
const UNSAFE: Duration = Duration::from_secs(60);

/// What a file is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    Reading,
    Writing,
}

/// The open files of one file.
#[derive(Default)]
pub(crate) struct Opened {
    slots: [Mutex<Option<Arc<OpenFile>>>; 2],
    /// One fsync(2) at a time.
    syncing: Mutex<()>,
    /// How many have begun. Taken alone, or inside of `syncing`, and never for long.
    begun: Mutex<u64>,
    /// How many have failed. Changed by the owner of `syncing`.
    failures: AtomicU64,
}

/// A file that is open for the daemon.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    since_look: AtomicBool,
    /// A client has written to it, and not asked for safety since.
    is_unsafe: AtomicBool,
    /// The last fsync(2) by this descriptor that has succeeded, by its number among all of the file.
    synced: AtomicU64,
}

impl OpenFile {
    /// Data was written that the host may still lose. The host tells of that by this descriptor, which
    /// therefore stays open for longer.
    pub(crate) fn is_written(&self) {
        self.is_unsafe.store(true, Relaxed);
    }

    /// It is about to be safe.
    pub(crate) fn is_safe(&self) {
        self.is_unsafe.store(false, Relaxed);
    }
}

impl Opened {
    fn slot(&self, what: For) -> MutexGuard<'_, Option<Arc<OpenFile>>> {
        self.slots[what as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn begun(&self) -> MutexGuard<'_, u64> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many fsync(2) of this file have failed: to be asked before data is written.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Returns when all that was written to the file is on disk. If that fails, `failed` is run before
    /// another request is told anything.
    ///
    /// # Errors
    /// Those of the back end, and an I/O error if another request was told of a failure since there were
    /// `since` of them; `None` if the verifier tells of those.
    pub(crate) fn sync(
        &self,
        open: &OpenFile,
        data_only: bool,
        since: Option<u64>,
        failed: impl FnOnce(),
    ) -> Result<()> {
        let arrived = *self.begun();
        let _syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        // One that counted itself after this request did look has begun after this request's data was
        // written: the lock of `begun` orders them. If it has succeeded, the data is on disk.
        // Relaxed, for all that the owner of `syncing` changes.
        if open.synced.load(Relaxed) <= arrived {
            let number = {
                let mut begun = self.begun();
                *begun += 1;
                *begun
            };
            if let Err(err) = open.file.sync(data_only) {
                self.failures.fetch_add(1, Relaxed);
                failed();
                return Err(err);
            }
            if !data_only {
                open.synced.store(number, Relaxed);
            }
        }
        match since.is_none_or(|since| since == self.failures()) {
            true => Ok(()),
            false => Err(io::Error::from(Errno::IO).into()),
        }
    }

    /// Closes them, once the requests that use them are done.
    pub(crate) fn close(&self) {
        for what in [For::Reading, For::Writing] {
            let gone = self.slot(what).take();
            drop(gone);
        }
    }

    fn close_if(&self, what: For, file: &Arc<OpenFile>) {
        let mut slot = self.slot(what);
        if slot.as_ref().is_some_and(|there| Arc::ptr_eq(there, file)) {
            let gone = slot.take();
            drop(slot);
            drop(gone);
        }
    }
}

/// All files that are open.
pub(crate) struct OpenFiles {
    vfs: Vfs,
    daemon: Context,
    most: usize,
    queue: Mutex<VecDeque<Entry>>,
}

struct Entry {
    known: Arc<Known>,
    what: For,
    file: Arc<OpenFile>,
    since: Instant,
}

impl OpenFiles {
    pub(crate) fn new(vfs: Vfs, daemon: Context, most: usize) -> OpenFiles {
        OpenFiles {
            vfs,
            daemon,
            most,
            queue: Mutex::default(),
        }
    }

    /// The file, open for the daemon. The caller checks what its client may do.
    ///
    /// # Errors
    /// Those of [`Vfs::open`].
    pub(crate) fn get(&self, known: &Arc<Known>, what: For) -> Result<Arc<OpenFile>> {
        if let Some(open) = known.opened.slot(what).as_ref() {
            open.since_look.store(true, Relaxed);
            return Ok(open.clone());
        }
        let flags = match what {
            For::Reading => OpenFlags::READ,
            For::Writing => OpenFlags::WRITE,
        };
        let path = known.path();
        let opened = match self.vfs.open(&self.daemon, &path, flags) {
            Err(Error::TooManyOpenFiles) => {
                self.close_all();
                self.vfs.open(&self.daemon, &path, flags)?
            }
            opened => opened?,
        };
        let file = Arc::new(OpenFile {
            file: opened,
            since_look: AtomicBool::new(true),
            is_unsafe: AtomicBool::new(false),
            synced: AtomicU64::new(0),
        });
        let before = known.opened.slot(what).replace(file.clone());
        drop(before);
        self.queue().push_back(Entry {
            known: known.clone(),
            what,
            file: file.clone(),
            since: Instant::now(),
        });
        self.limit();
        Ok(file)
    }

    /// The number of open files.
    pub(crate) fn len(&self) -> usize {
        self.queue().len()
    }

    fn limit(&self) {
        loop {
            let mut queue = self.queue();
            if queue.len() <= self.most {
                return;
            }
            let oldest = queue.pop_front();
            drop(queue);
            if let Some(entry) = oldest {
                entry.known.opened.close_if(entry.what, &entry.file);
            }
        }
    }

    /// Closes those that were not used since the last look, at least [`IDLE`] ago. To be called
    /// about once a second.
    pub(crate) fn sweep(&self, now: Instant) {
        self.close_which(|entry| {
            if entry.file.since_look.swap(false, Relaxed) {
                entry.since = now;
            }
            let time = match entry.file.is_unsafe.load(Relaxed) {
                true => UNSAFE,
                false => IDLE,
            };
            now.saturating_duration_since(entry.since) >= time
        });
    }

    pub(crate) fn close_all(&self) {
        self.close_which(|_| true);
    }

    fn close_which(&self, mut goes: impl FnMut(&mut Entry) -> bool) {
        let mut going = Vec::new();
        let mut queue = self.queue();
        for mut entry in std::mem::take(&mut *queue) {
            match goes(&mut entry) {
                true => going.push(entry),
                false => queue.push_back(entry),
            }
        }
        drop(queue);
        for entry in going {
            entry.known.opened.close_if(entry.what, &entry.file);
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
