//! Support for the tests: trees in memory, and back ends that count or compute.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod beside;
pub(crate) mod inodes;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rcuwalk::{
    Attr, Budget, Context, Credentials, Error, FileType, Iget, Inode, InodeFill, InodeKey,
    InodeRef, LookupFlags, Name, Result, SuperBlock, Vfs,
};
use rcuwalk_memfs::{MemFs, directory, file, symlink};
use rcuwalk_testkit::Wrapper;

pub(crate) const FOLLOW: LookupFlags = LookupFlags::FOLLOW;
pub(crate) const REF: LookupFlags = LookupFlags::FOLLOW.union(LookupFlags::REF_WALK);

/// A file system in memory, mounted, seen by root.
pub(crate) struct Tree {
    pub(crate) fs: MemFs,
    pub(crate) vfs: Vfs,
    pub(crate) ctx: Context,
}

impl Tree {
    /// One entry per word: `dir/`, `file`, `link->target`; parents come first.
    pub(crate) fn new(entries: &str) -> Tree {
        Self::with_budget(entries, Budget::default())
    }

    pub(crate) fn with_budget(entries: &str, budget: Budget) -> Tree {
        let fs = grow(entries);
        let vfs = Vfs::with_budget(fs.clone(), budget).unwrap();
        let ctx = vfs.context(Credentials::root());
        Tree { fs, vfs, ctx }
    }

    /// `stat`, links followed: the inode number.
    pub(crate) fn ino(&self, path: &str) -> Result<u64> {
        self.vfs.stat(&self.ctx, path, FOLLOW).map(|attr| attr.ino)
    }

    /// `stat`, links followed.
    pub(crate) fn stat(&self, path: &str) -> Result<Attr> {
        self.vfs.stat(&self.ctx, path, FOLLOW)
    }

    /// True if there is such a path.
    pub(crate) fn has(&self, path: &str) -> bool {
        match self.stat(path) {
            Ok(_) => true,
            Err(Error::NotFound) => false,
            Err(err) => panic!("{path}: {err}"),
        }
    }

    /// Holds what `path` leads to.
    pub(crate) fn hold(&self, path: &str) -> rcuwalk::VfsPath {
        self.vfs.lookup(&self.ctx, path, FOLLOW).unwrap()
    }
}

/// A file system of the entries that [`Tree::new`] understands.
pub(crate) fn grow(entries: &str) -> MemFs {
    let fs = MemFs::new();
    let mut dirs = std::collections::HashMap::from([(String::new(), fs.root())]);
    for entry in entries.split_whitespace() {
        let (path, target) = entry.split_once("->").unwrap_or((entry, ""));
        let full = path.trim_end_matches('/');
        let (parent, name) = full.rsplit_once('/').unwrap_or(("", full));
        let new = match path.strip_suffix('/') {
            Some(_) => directory(0o755),
            None if !target.is_empty() => symlink(target.as_bytes()),
            None => file(0o644),
        };
        let node = fs.add(dirs[parent], name.as_bytes(), new).unwrap();
        dirs.insert(full.to_owned(), node);
    }
    fs
}

/// How many operations a stress test does.
pub(crate) fn stress_ops(debug: usize, release: usize) -> usize {
    match std::env::var("RCUWALK_STRESS_OPS") {
        Ok(ops) => ops.parse().expect("RCUWALK_STRESS_OPS is a number"),
        Err(_) if cfg!(debug_assertions) => debug,
        Err(_) => release,
    }
}

/// A small generator of numbers, another sequence for each seed and each run with
/// another `RCUWALK_SEED`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        let base: u64 = std::env::var("RCUWALK_SEED").map_or(0, |seed| seed.parse().unwrap());
        Random((seed + 1 + base * 1000).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// Counts how many of it there are.
pub(crate) struct Tracked(Arc<AtomicUsize>);

impl Tracked {
    pub(crate) fn new(alive: &Arc<AtomicUsize>) -> Tracked {
        alive.fetch_add(1, SeqCst);
        Tracked(alive.clone())
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A back end of directories in directories, each a number, and each counted.
pub(crate) struct Numbered(Arc<AtomicUsize>);

impl Numbered {
    pub(crate) fn new(alive: &Arc<AtomicUsize>) -> Numbered {
        Numbered(alive.clone())
    }

    /// The inode number that a path of numbers leads to.
    pub(crate) fn ino(path: &str) -> u64 {
        let components = path.split('/').filter(|name| !name.is_empty());
        components.fold(1, Self::below)
    }

    fn below(dir: u64, name: &str) -> u64 {
        dir * 1000 + name.parse::<u64>().unwrap()
    }

    fn iget(&self, sb: &SuperBlock, ino: u64) -> InodeRef {
        match sb.iget(InodeKey::new(ino)).unwrap() {
            Iget::Cached(inode) => inode,
            Iget::New(new) => {
                let attr = Attr::new(ino, FileType::Directory, 0o755);
                new.init(InodeFill::new(attr).private(Tracked::new(&self.0)))
            }
        }
    }
}

impl Wrapper for Numbered {
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        Ok(self.iget(sb, 1))
    }
    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let name = std::str::from_utf8(name.as_bytes()).unwrap();
        Ok(Some(self.iget(sb, Self::below(dir.attr().ino, name))))
    }
}
