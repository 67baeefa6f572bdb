//! Names that are made while the back end fails, or while another process moves them.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use rcuwalk::{
    At, Caller, Credentials, Error, FileHandle, FileSystem, Freshness, Inode, InodeRef,
    LookupFlags, Name, NewFile, OpenFlags, Rename, Result, SuperBlock, Vfs,
};
use rcuwalk_memfs::{MemFs, directory, file};
use rcuwalk_testkit::{Wrapped, Wrapper};

/// Makes what it is asked for, and then reports an error: the answer was lost.
struct Lost(MemFs, Freshness);
impl Wrapper for Lost {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.0)
    }
    fn freshness(&self) -> Freshness {
        self.1
    }
    fn create(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        self.0.create(by, dir, name, new)?;
        Err(Error::NoSpace)
    }
    fn link(&self, by: &Caller<'_>, at: &At<'_>, dir: &Inode, name: Name<'_>) -> Result<()> {
        self.0.link(by, at, dir, name)?;
        Err(Error::NoSpace)
    }
    fn create_open(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
        _: OpenFlags,
    ) -> Result<(InodeRef, Box<dyn FileHandle>)> {
        self.0.create(by, dir, name, new)?;
        Err(Error::NoSpace)
    }
}

/// EDGE-1: the back end's error is reported, and not that the name exists: this call has made it.
#[test]
fn a_half_made_name_is_not_reported_as_existing() {
    for fresh in [
        Freshness::Always,
        Freshness::Ttl(Duration::from_secs(9)),
        Freshness::EachUse,
    ] {
        let fs = MemFs::new();
        fs.add(fs.root(), b"f", file(0o644)).unwrap();
        let vfs = Vfs::new(Wrapped::new(Lost(fs, fresh))).unwrap();
        let ctx = vfs.context(Credentials::root());
        vfs.stat(&ctx, "/f", LookupFlags::empty()).unwrap();
        let how = OpenFlags::WRITE | OpenFlags::CREATE;
        let open = |path, how: OpenFlags| vfs.open(&ctx, path, how.mode(0o644)).map(drop);
        for (what, failed) in [
            ("mkdir", vfs.mkdir(&ctx, "/d", 0o755).map(drop)),
            ("link", vfs.link(&ctx, "/f", "/g").map(drop)),
            ("open", open("/h", how)),
            ("open exclusively", open("/i", how | OpenFlags::EXCL)),
        ] {
            assert_eq!(failed, Err(Error::NoSpace), "EDGE-1: {fresh:?}: {what}");
        }
    }
}

#[derive(Default)]
struct State {
    made: Mutex<Option<InodeRef>>,
    vfs: Mutex<Weak<Vfs>>,
    in_rename: AtomicBool,
    go: AtomicBool,
    moved: AtomicBool,
}

/// While it makes `/a/d`, another process moves that to `/b/x`, where a walk finds it; and a
/// rename between two other directories is under way.
struct Moving(MemFs, Arc<State>);
impl Wrapper for Moving {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.0)
    }
    fn freshness(&self) -> Freshness {
        Freshness::Ttl(Duration::from_secs(3600))
    }
    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let moved = self.1.moved.load(SeqCst);
        match name.as_bytes() {
            b"x" if moved => Ok(self.1.made.lock().unwrap().clone()),
            b"d" if moved => Ok(None),
            _ => self.0.lookup(sb, dir, name),
        }
    }
    fn rename(&self, by: &Caller<'_>, how: &Rename<'_>) -> Result<()> {
        self.1.in_rename.store(true, SeqCst);
        while !self.1.go.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        self.0.rename(by, how)
    }
    fn create(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        let made = self.0.create(by, dir, name, new)?;
        if name.as_bytes() == b"d" {
            *self.1.made.lock().unwrap() = Some(made.clone());
            self.1.moved.store(true, SeqCst);
            let vfs = self.1.vfs.lock().unwrap().upgrade().unwrap();
            let of_walk = vfs.clone();
            thread::spawn(move || {
                let ctx = of_walk.context(Credentials::root());
                of_walk.lookup(&ctx, "/b/x", LookupFlags::empty()).unwrap();
            })
            .join()
            .unwrap();
            thread::spawn(move || {
                let ctx = vfs.context(Credentials::root());
                vfs.rename(&ctx, "/c/f", "/e/f").unwrap();
            });
            while !self.1.in_rename.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(made)
    }
}

/// DENTRY-5: a directory has one dentry, also the one that mkdir returns.
#[test]
fn what_mkdir_returns_is_the_one_dentry_of_the_directory() {
    let fs = MemFs::new();
    for name in [&b"a"[..], b"b", b"c", b"e"] {
        let dir = fs.add(fs.root(), name, directory(0o755)).unwrap();
        if name == b"c" {
            fs.add(dir, b"f", file(0o644)).unwrap();
        }
    }
    let state = Arc::new(State::default());
    let vfs = Arc::new(Vfs::new(Wrapped::new(Moving(fs, state.clone()))).unwrap());
    *state.vfs.lock().unwrap() = Arc::downgrade(&vfs);
    let ctx = vfs.context(Credentials::root());
    let made = vfs.mkdir(&ctx, "/a/d", 0o755).unwrap();
    state.go.store(true, SeqCst);
    let found = vfs.lookup(&ctx, "/b/x", LookupFlags::empty()).unwrap();
    assert!(made.is_same_place(&found), "DENTRY-5");
    // As a FUSE client does below the node that MKDIR has told it.
    let within = ctx.clone().with_cwd(made.clone());
    vfs.create(&within, "f", 0o644).unwrap();
    vfs.unlink(&ctx, "/b/x/f").unwrap();
    let gone = vfs.stat(&within, "f", LookupFlags::empty());
    // The other way round: a name made by the one path is missing by the other.
    let missing = vfs.stat(&within, "g", LookupFlags::empty());
    assert!(
        matches!(missing, Err(Error::NotFound)),
        "DENTRY-5: {missing:?}"
    );
    vfs.create(&ctx, "/b/x/g", 0o644).unwrap();
    let there = vfs.stat(&within, "g", LookupFlags::empty());
    state.made.lock().unwrap().take();
    assert!(matches!(gone, Err(Error::NotFound)), "DENTRY-5: {gone:?}");
    assert!(there.is_ok(), "DENTRY-5: {there:?}");
}
