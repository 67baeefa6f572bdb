//! The tree that is served, and what all requests share.
//!
//! NFS-1: what a reply says of a file before and after a change differs by that change alone, as far
//! as clients of this server make changes: changes of one file take turns ([`Turns`]). A client that
//! knows the attributes before may so go on with what it has cached. If another process of the host
//! comes between, its change counts as the client's own until the file is changed again.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rcuwalk::{Attr, Context, Credentials, Error, Inode, OpenFlags, Result, Vfs, VfsPath};

use crate::attr::Shown;
use crate::files::Files;
use crate::mount::Mounts;
use crate::opened::OpenFiles;
use crate::options::Options;

/// The tree that is served.
pub(crate) struct Export {
    // Declared before the tree: the files in it are dropped first.
    pub(crate) opened: OpenFiles,
    pub(crate) files: Files,
    pub(crate) mounts: Mounts,
    pub(crate) turns: Turns,
    pub(crate) root: VfsPath,
    /// The daemon itself.
    pub(crate) daemon: Context,
    pub(crate) options: Options,
    verifier: AtomicU64,
    fsid: u64,
    pub(crate) vfs: Vfs,
}

impl Export {
    /// # Errors
    /// Those of the back end; [`rcuwalk::Error::NotSupported`] if it has no file handles.
    pub(crate) fn new(vfs: Vfs, options: Options) -> Result<Export> {
        let root = vfs.root();
        let daemon = vfs.context(Credentials::root());
        let handle = vfs.encode_handle(&root)?.without_path();
        let files = Files::new(vfs.clone(), options.key.clone(), options.max_files)?;
        Ok(Export {
            opened: OpenFiles::new(vfs.clone(), daemon.clone(), options.max_open),
            files,
            mounts: Mounts::default(),
            turns: Turns::default(),
            root,
            daemon,
            // Drawn by the system, and no other one than before by chance.
            verifier: AtomicU64::new(RandomState::new().hash_one(std::process::id())),
            fsid: fsid(&handle.to_bytes()),
            options,
            vfs,
        })
    }

    /// Tells clients whether data that they have written without asking for safety may be lost
    /// (NFS-2).
    #[doc(alias = "writeverf3")]
    pub(crate) fn verifier(&self) -> [u8; 8] {
        self.verifier.load(Relaxed).to_be_bytes()
    }

    /// Data may be lost: clients send it again.
    pub(crate) fn renew_verifier(&self) {
        // Relaxed: the lock of the file's fsync(2) orders it before the next COMMIT of the file.
        self.verifier.fetch_add(1, Relaxed);
    }

    /// Attributes as clients see them.
    pub(crate) fn shown(&self, path: &VfsPath, attr: Attr) -> Shown {
        Shown {
            attr,
            fileid: path.number_of(attr.ino),
            fsid: self.fsid,
        }
    }

    /// Returns when the names in a directory are on disk (NFS-2).
    pub(crate) fn sync_dir(&self, dir: &VfsPath) -> Result<()> {
        if !self.options.sync {
            return Ok(());
        }
        let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
        let sync = |dir: &VfsPath| self.vfs.open(&self.daemon, dir, flags)?.sync(false);
        match sync(dir) {
            Err(Error::TooManyOpenFiles) => {
                self.opened.close_all();
                sync(dir)
            }
            // The host has moved it meanwhile, or removed it: then no names are left to be lost.
            Err(Error::Stale) => {
                let known = self.files.of(dir)?;
                match self.files.find_again(known.wire()) {
                    Ok(known) => sync(&known.path()),
                    Err(Error::Stale) => Ok(()),
                    Err(err) => Err(err),
                }
            }
            // As the host says of file systems that have nothing to do for it.
            Err(Error::Invalid | Error::NotSupported) => Ok(()),
            synced => synced,
        }
    }

    /// To be called about once a second.
    pub(crate) fn tick(&self, now: Instant) {
        self.opened.sweep(now);
    }
}

/// A number that the export keeps over restarts: FNV-1a of its root's handle.
fn fsid(handle: &[u8]) -> u64 {
    handle.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Changes of one file take turns (NFS-1).
#[doc(alias = "fh_fill_pre_attrs")]
pub(crate) struct Turns {
    locks: [Mutex<()>; 256],
    hash: RandomState,
}

/// The turns of one file, or of two.
pub(crate) struct Turn<'t> {
    _first: MutexGuard<'t, ()>,
    _second: Option<MutexGuard<'t, ()>>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            locks: std::array::from_fn(|_| Mutex::default()),
            hash: RandomState::new(),
        }
    }
}

impl Turns {
    pub(crate) fn of(&self, inode: &Inode) -> Turn<'_> {
        Turn {
            _first: self.lock(self.index(inode)),
            _second: None,
        }
    }

    pub(crate) fn of_two(&self, a: &Inode, b: &Inode) -> Turn<'_> {
        let (a, b) = (self.index(a), self.index(b));
        // In one order for all threads.
        Turn {
            _first: self.lock(a.min(b)),
            _second: (a != b).then(|| self.lock(a.max(b))),
        }
    }

    fn index(&self, inode: &Inode) -> usize {
        self.hash.hash_one(inode.key()) as usize % self.locks.len()
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, ()> {
        self.locks[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
