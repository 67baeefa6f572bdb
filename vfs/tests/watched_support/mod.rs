//! A back end that other processes change, and that gets reports of it: names in a map.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use rcuwalk::{
    Attr, Caller, Context, Credentials, Error, FileType, Freshness, Iget, Inode, InodeFill,
    InodeKey, InodeRef, LookupFlags, Name, NewFile, Rename, Result, SuperBlock, Vfs,
};
use rcuwalk_testkit::{Wrapped, Wrapper};

pub(crate) const ROOT: u64 = 1;
/// A number that no inode has.
pub(crate) const NONE: u64 = 0;
/// A directory by this number is not watched.
pub(crate) const UNWATCHED: u64 = 99;

/// The file that the VFS creates.
pub(crate) const CREATED: u64 = 7;

type Names = BTreeMap<(u64, Box<[u8]>), Attr>;

/// The state shared by the back end and the threads that change it. Its locks are the standard
/// library's: each is one step of a model.
#[derive(Default)]
pub(crate) struct Host {
    names: Mutex<Names>,
    sb: Mutex<Weak<SuperBlock>>,
    /// How often the back end was asked for a name, or for a place.
    pub(crate) asked: AtomicUsize,
    /// A directory in which removals and renames do not return.
    stuck_in: Mutex<u64>,
    /// How many there are.
    stuck: AtomicUsize,
}

impl Host {
    /// Makes a name refer to another file, behind the back of the caches.
    pub(crate) fn set(&self, dir: u64, name: &str, to: Option<Attr>) {
        let key = (dir, Box::from(name.as_bytes()));
        let mut names = self.names.lock().unwrap();
        match to {
            Some(attr) => names.insert(key, attr),
            None => names.remove(&key),
        };
    }

    /// Removals and renames in the directory do not return, until this is called with `NONE`.
    pub(crate) fn stick(&self, dir: u64) {
        *self.stuck_in.lock().unwrap() = dir;
    }

    /// Waits until that many calls are stuck.
    pub(crate) fn wait_for_stuck(&self, calls: usize) {
        while self.stuck.load(Relaxed) < calls {
            std::thread::yield_now();
        }
    }

    fn change_in(&self, dir: u64) {
        if *self.stuck_in.lock().unwrap() != dir {
            return;
        }
        self.stuck.fetch_add(1, Relaxed);
        while *self.stuck_in.lock().unwrap() == dir {
            std::thread::yield_now();
        }
        self.stuck.fetch_sub(1, Relaxed);
    }

    /// Whether there is such a name.
    pub(crate) fn has(&self, dir: u64, name: &str) -> bool {
        let key = (dir, Box::from(name.as_bytes()));
        self.names.lock().unwrap().contains_key(&key)
    }

    fn get(&self, dir: &Inode, name: Name<'_>) -> Option<Attr> {
        self.asked.fetch_add(1, Relaxed);
        let key = (dir.attr().ino, Box::from(name.as_bytes()));
        self.names.lock().unwrap().get(&key).copied()
    }

    pub(crate) fn sb(&self) -> Arc<SuperBlock> {
        self.sb.lock().unwrap().upgrade().expect("it is mounted")
    }

    /// A watcher's reaction to a report of a change in a directory.
    pub(crate) fn report(&self, dir: u64) {
        let sb = self.sb();
        if let Some(dir) = sb.ilookup(InodeKey::new(dir)).unwrap() {
            sb.invalidate_names(&dir);
        }
    }
}

/// Attributes of a file with one name.
pub(crate) fn file(ino: u64) -> Attr {
    Attr::new(ino, FileType::Regular, 0o644).nlink(1)
}

/// Attributes of a directory.
pub(crate) fn dir(ino: u64) -> Attr {
    Attr::new(ino, FileType::Directory, 0o755).nlink(2)
}

struct Told(Arc<Host>);

impl Told {
    fn iget(&self, sb: &SuperBlock, attr: Attr) -> InodeRef {
        match sb.iget(InodeKey::new(attr.ino)).expect("none is created") {
            Iget::Cached(inode) => {
                inode.set_attr(&attr);
                inode
            }
            Iget::New(new) if attr.ino == UNWATCHED => new.init(InodeFill::new(attr)),
            Iget::New(new) => new.init(InodeFill::new(attr).watched()),
        }
    }
}

impl Wrapper for Told {
    fn freshness(&self) -> Freshness {
        Freshness::Watched
    }
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        Ok(self.iget(sb, dir(ROOT)))
    }
    fn mounted(&self, sb: &Arc<SuperBlock>) -> Result<()> {
        *self.0.sb.lock().unwrap() = Arc::downgrade(sb);
        Ok(())
    }
    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let found = self.0.get(dir, name);
        Ok(found.map(|attr| self.iget(sb, attr)))
    }
    fn revalidate(
        &self,
        _: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        inode: Option<&Inode>,
    ) -> Result<bool> {
        let now = self.0.get(dir, name);
        Ok(match (now, inode) {
            (Some(now), Some(inode)) if now.ino == inode.attr().ino => {
                inode.set_attr(&now);
                true
            }
            (now, inode) => now.is_none() && inode.is_none(),
        })
    }
    fn refresh(&self, _: &SuperBlock, _: &Inode) -> Result<()> {
        self.0.asked.fetch_add(1, Relaxed);
        Ok(())
    }
    fn create(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        _: &NewFile<'_>,
    ) -> Result<InodeRef> {
        let key = (dir.attr().ino, Box::from(name.as_bytes()));
        let mut names = self.0.names.lock().unwrap();
        if names.contains_key(&key) {
            return Err(Error::Exists);
        }
        names.insert(key, file(CREATED));
        drop(names);
        Ok(self.iget(by.sb, file(CREATED)))
    }
    fn rename(&self, _: &Caller<'_>, how: &Rename<'_>) -> Result<()> {
        let key = |(dir, name): (&Inode, Name<'_>)| (dir.attr().ino, Box::from(name.as_bytes()));
        // Before locking: reading attributes is a step of a model.
        let (from, to) = (key(how.from), key(how.to));
        self.0.change_in(from.0);
        let mut names = self.0.names.lock().unwrap();
        let attr = names.remove(&from).ok_or(Error::NotFound)?;
        names.insert(to, attr);
        Ok(())
    }
    fn rmdir(&self, _: &Caller<'_>, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        let key = (dir.attr().ino, Box::from(name.as_bytes()));
        self.0.change_in(key.0);
        // Before locking, as above.
        let victim = inode.attr();
        let is_it = |attr: &Attr| attr.ino == victim.ino;
        let mut names = self.0.names.lock().unwrap();
        if !names.get(&key).is_some_and(is_it) {
            return Err(Error::Stale);
        }
        names.remove(&key);
        drop(names);
        inode.set_attr(&victim.nlink(0));
        Ok(())
    }
}

/// The back end, mounted.
#[derive(Clone)]
pub(crate) struct Tree {
    pub(crate) host: Arc<Host>,
    pub(crate) vfs: Vfs,
    pub(crate) ctx: Context,
}

impl Tree {
    pub(crate) fn new(names: &[(u64, &str, Attr)]) -> Tree {
        let host = Arc::new(Host::default());
        for (dir, name, attr) in names {
            host.set(*dir, name, Some(*attr));
        }
        let vfs = Vfs::new(Wrapped::new(Told(host.clone()))).unwrap();
        let ctx = vfs.context(Credentials::root());
        Tree { host, vfs, ctx }
    }

    /// The inode that a path leads to.
    pub(crate) fn ino(&self, path: &str) -> u64 {
        match self.vfs.stat(&self.ctx, path, LookupFlags::FOLLOW) {
            Ok(attr) => attr.ino,
            Err(Error::NotFound) => NONE,
            Err(err) => panic!("{path}: {err}"),
        }
    }

    /// How often the back end is asked meanwhile.
    pub(crate) fn asked(&self, what: impl FnOnce()) -> usize {
        let before = self.host.asked.load(Relaxed);
        what();
        self.host.asked.load(Relaxed) - before
    }
}
