//! The contenders on one tree, and their answers.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, Permissions};
use std::hint::black_box;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rcuwalk::{
    Access as Mode, Budget, Context, FileType, Freshness, LookupFlags, NewFile, Statistics, Vfs,
};
use rcuwalk_hostfs::{HostFs, process_credentials};
use rcuwalk_memfs::{MemFs, NodeId};
use rustix::process::{Resource, getrlimit};
use tempfile::TempDir;

use super::{AccessError, Walks};
use crate::kernel::{InTree, KernelTree, scratch_dir};
use crate::measure::Lap;
use crate::paths::PathList;
use crate::tree::{Entry, Kind, TreeSpec};

/// The kernel and ours, each with the same tree.
pub(super) struct Contest {
    /// Relative to the roots of the trees.
    pub(super) paths: Vec<CString>,
    pub(super) kernel: KernelTree,
    pub(super) ours: [Ours; 2],
    // Last: removed after all that looks into it is gone.
    _scratch: Scratch,
}

/// One of ours: a back end under the VFS.
pub struct Ours {
    pub(super) name: &'static str,
    vfs: Vfs,
    ctx: Context,
    /// From the inode numbers of its tree to those of the kernel's, if they differ.
    host_ino: Option<HashMap<u64, u64>>,
}

/// Where a path leads: the kernel's inode number, or the errno.
type Answer = Result<u64, i32>;

impl Contest {
    pub(super) fn new(
        paths: &PathList,
        tree: &TreeSpec,
        stop: &AtomicBool,
    ) -> Result<Self, AccessError> {
        let scratch = Scratch::new(tree).map_err(AccessError::io("build the tree"))?;
        AccessError::stopped_by(stop)?;
        let root = scratch.dir.path();
        Ok(Self {
            paths: paths.relative(),
            kernel: KernelTree::open(root).map_err(AccessError::io("open the tree"))?,
            ours: [Ours::memfs(tree, root)?, Ours::hostfs(root)?],
            _scratch: scratch,
        })
    }

    pub(super) fn names(&self) -> [&'static str; 3] {
        ["kernel", self.ours[0].name, self.ours[1].name]
    }

    /// Compares every answer with the kernel's.
    pub(super) fn verify(&self, here: &InTree, stop: &AtomicBool) -> Result<(), AccessError> {
        for path in &self.paths {
            AccessError::stopped_by(stop)?;
            let kernel = self.kernel.answer(path).map(|(_dev, ino)| ino);
            let exists = here.access(path);
            for ours in &self.ours {
                let pairs = [
                    (kernel, ours.answer(path)),
                    (exists.map(|()| 0), ours.access(path).map(|()| 0)),
                ];
                if let Some((theirs, our)) = pairs.iter().find(|(theirs, our)| theirs != our) {
                    return Err(AccessError::Different {
                        contender: ours.name,
                        path: path.to_bytes().to_owned(),
                        kernel: in_words(*theirs),
                        ours: in_words(*our),
                    });
                }
            }
        }
        Ok(())
    }

    /// How many paths exist, and how many are missing; the rest end otherwise.
    pub(super) fn found_and_missing(&self) -> (usize, usize) {
        let missing = Err(rustix::io::Errno::NOENT.raw_os_error());
        let answers: Vec<_> = self
            .paths
            .iter()
            .map(|path| self.ours[0].access(path))
            .collect();
        (
            answers.iter().filter(|answer| answer.is_ok()).count(),
            answers.iter().filter(|answer| **answer == missing).count(),
        )
    }

    pub(super) fn statistics(&self) -> Vec<Statistics> {
        self.ours.iter().map(|ours| ours.vfs.statistics()).collect()
    }

    pub(super) fn walks_since(&self, before: &[Statistics]) -> Vec<Walks> {
        let walks = self.ours.iter().zip(before);
        walks
            .map(|(ours, before)| Walks::between(ours.name, before, &ours.vfs.statistics()))
            .collect()
    }
}

impl Ours {
    /// The tree in memory.
    fn memfs(tree: &TreeSpec, root: &Path) -> Result<Self, AccessError> {
        let fs = MemFs::new();
        let mut nodes = HashMap::from([(&b""[..], fs.root())]);
        let mut host_ino = HashMap::new();
        let mut record = |node: NodeId, path: &[u8]| -> Result<(), AccessError> {
            let meta = fs::symlink_metadata(root.join(OsStr::from_bytes(path)))
                .map_err(AccessError::io("look at the tree just built"))?;
            host_ino.insert(fs.ino(node), meta.ino());
            Ok(())
        };
        record(fs.root(), b"")?;
        for entry in tree.entries() {
            let added = fs.add(nodes[entry.parent()], entry.name(), new_file(entry));
            let node = added.map_err(|source| AccessError::Vfs {
                contender: "memfs",
                source,
            })?;
            nodes.insert(&entry.path, node);
            record(node, &entry.path)?;
        }
        Self::new(
            "memfs",
            Vfs::with_budget(fs.clone(), budget()),
            Some(host_ino),
        )
    }

    /// The kernel's own tree, which no process changes during the run.
    fn hostfs(root: &Path) -> Result<Self, AccessError> {
        let fs = HostFs::new(root).map_err(|err| AccessError::Vfs {
            contender: "hostfs",
            source: err.into(),
        })?;
        let fs = fs.with_freshness(Freshness::Always);
        Self::new("hostfs", Vfs::with_budget(fs, budget()), None)
    }

    fn new(
        name: &'static str,
        vfs: rcuwalk::Result<Vfs>,
        host_ino: Option<HashMap<u64, u64>>,
    ) -> Result<Self, AccessError> {
        let vfs = vfs.map_err(|source| AccessError::Vfs {
            contender: name,
            source,
        })?;
        // The current directory is the root, as the kernel's thread has it.
        let ctx = vfs.context(process_credentials());
        Ok(Self {
            name,
            vfs,
            ctx,
            host_ino,
        })
    }

    fn answer(&self, path: &CStr) -> Answer {
        let found = self
            .vfs
            .stat(&self.ctx, path.to_bytes(), LookupFlags::FOLLOW);
        let ino = found.map_err(|err| err.errno())?.ino;
        Ok(match &self.host_ino {
            Some(host_ino) => host_ino[&ino],
            None => ino,
        })
    }

    fn access(&self, path: &CString) -> Result<(), i32> {
        // A path of another type than the timed loop's: that one then has an instance of
        // `access` to itself, which is inlined, as in a program with one such loop.
        let path = path.as_bytes().to_vec();
        let asked = self
            .vfs
            .access(&self.ctx, path, Mode::empty(), LookupFlags::FOLLOW);
        asked.map_err(|err| err.errno())
    }

    /// Asks for all paths, timed.
    pub(super) fn lap(&self, paths: &[CString]) -> Lap {
        let start = Instant::now();
        black_box(self.access_all(black_box(paths)));
        Lap {
            ops: paths.len() as u64,
            time: start.elapsed(),
        }
    }

    /// The counterpart of [`InTree::access_all`].
    fn access_all(&self, paths: &[CString]) -> usize {
        let exists = |path: &&CString| {
            let path = path.as_bytes();
            self.vfs
                .access(&self.ctx, path, Mode::empty(), LookupFlags::FOLLOW)
                .is_ok()
        };
        paths.iter().filter(exists).count()
    }
}

/// Large enough that nothing is evicted that was looked up once; of descriptors, some are
/// left for the rest of the program.
fn budget() -> Budget {
    const OTHERS: u64 = 256;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let fds = limit.saturating_sub(OTHERS).max(limit / 2);
    Budget::default().fds(usize::try_from(fds).unwrap_or(usize::MAX))
}

fn new_file(entry: &Entry) -> NewFile<'_> {
    let (kind, target) = match &entry.kind {
        Kind::Dir => (FileType::Directory, &b""[..]),
        Kind::File => (FileType::Regular, &b""[..]),
        Kind::Symlink(target) => (FileType::Symlink, &target[..]),
    };
    let (uid, gid) = owner(entry);
    NewFile::new(kind, (entry.mode & 0o7777) as u16)
        .uid(uid)
        .gid(gid)
        .target(target)
}

/// Whose the entry is in the materialised tree: only root gives files away.
fn owner(entry: &Entry) -> (u32, u32) {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        (entry.uid, entry.gid)
    } else {
        (uid.as_raw(), rustix::process::getegid().as_raw())
    }
}

fn in_words(answer: Answer) -> String {
    match answer {
        Ok(0) => "that it exists".into(),
        Ok(ino) => format!("inode {ino}"),
        Err(errno) => io::Error::from_raw_os_error(errno).to_string(),
    }
}

/// The temporary directory, and how to be rid of it.
struct Scratch {
    dir: TempDir,
    /// Directories that may not let their owner remove what is in them.
    closed: Vec<PathBuf>,
}

impl Scratch {
    fn new(tree: &TreeSpec) -> io::Result<Self> {
        let dir = scratch_dir()?;
        let dirs = tree
            .entries()
            .iter()
            .filter(|entry| entry.kind == Kind::Dir);
        let closed = dirs.filter(|entry| entry.mode & 0o700 != 0o700);
        let closed = closed.map(|entry| dir.path().join(OsStr::from_bytes(&entry.path)));
        let scratch = Self {
            closed: closed.collect(),
            dir,
        };
        tree.materialise(scratch.dir.path())?;
        // As any root is: a search permission of its own would cost each walk extra.
        fs::set_permissions(scratch.dir.path(), Permissions::from_mode(0o755))?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Upper directories come first, so each can be reached when it is its turn.
        for dir in &self.closed {
            // One that was not made yet, or is gone: nothing is left to be opened.
            let _ = fs::set_permissions(dir, Permissions::from_mode(0o700));
        }
    }
}
