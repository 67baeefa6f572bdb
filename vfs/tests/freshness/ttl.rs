//! Under `Freshness::Ttl`: how often the back end is asked about a held path, and a name that
//! goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use rcuwalk::{
    Caller, Credentials, FileType, Freshness, Inode, InodeRef, LookupFlags, Name, Result,
    SuperBlock, Vfs,
};
use rcuwalk_testkit::{Wrapped, Wrapper, iget};

const TTL: Duration = Duration::from_millis(300);

/// A root with a directory `d`, in which every name is a file.
struct Counting(Arc<AtomicUsize>);

impl Wrapper for Counting {
    fn freshness(&self) -> Freshness {
        Freshness::Ttl(TTL)
    }
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        iget(sb, 1, FileType::Directory)
    }
    fn lookup(&self, sb: &SuperBlock, dir: &Inode, _: Name<'_>) -> Result<Option<InodeRef>> {
        let (ino, kind) = match dir.attr().ino {
            1 => (2, FileType::Directory),
            dir => (dir + 1, FileType::Regular),
        };
        iget(sb, ino, kind).map(Some)
    }
    fn refresh(&self, _: &SuperBlock, _: &Inode) -> Result<()> {
        self.0.fetch_add(1, Relaxed);
        Ok(())
    }
    fn revalidate(
        &self,
        _: &SuperBlock,
        _: &Inode,
        _: Name<'_>,
        _: Option<&Inode>,
    ) -> Result<bool> {
        self.0.fetch_add(1, Relaxed);
        Ok(true)
    }
    fn unlink(&self, _: &Caller<'_>, _: &Inode, _: Name<'_>, _: &Inode) -> Result<()> {
        Ok(())
    }
}

/// FRESH-1: the back end is asked for a current directory once in its time to live, and not at
/// each use; and once more when that is over.
#[test]
fn a_place_that_is_kept_is_asked_for_once_in_its_time() {
    let asked = Arc::new(AtomicUsize::new(0));
    let vfs = Vfs::new(Wrapped::new(Counting(asked.clone()))).unwrap();
    let root = vfs.context(Credentials::root());
    let dir = vfs.lookup(&root, "d", LookupFlags::default()).unwrap();
    let ctx = vfs.context(Credentials::root()).with_cwd(dir);
    // One is spent on a time that ends while it looks; more, on a machine that stands still.
    for round in 0..3 {
        sleep(TTL);
        let before = asked.load(Relaxed);
        let start = std::time::Instant::now();
        for _ in 0..1000 {
            vfs.stat(&ctx, "f", LookupFlags::default()).unwrap();
        }
        let asked = asked.load(Relaxed) - before;
        let most = 1 + start.elapsed().as_millis() / (TTL.as_millis() - 16) + 1;
        assert!(asked > 0, "FRESH-1: round {round}: its time was over");
        assert!(asked as u128 <= most, "FRESH-1: asked {asked} times");
    }
}

/// FRESH-1: a held path knows by itself whether it is valid.
#[test]
fn a_place_is_fresh_for_its_time() {
    let vfs = Vfs::new(Wrapped::new(Counting(Arc::default()))).unwrap();
    let ctx = vfs.context(Credentials::root());
    let file = vfs.lookup(&ctx, "d/f", LookupFlags::default()).unwrap();
    let start = std::time::Instant::now();
    // On a machine that stands still, its time may be over.
    assert!(file.is_fresh() || start.elapsed() > TTL / 2, "FRESH-1");
    sleep(TTL);
    assert!(!file.is_fresh(), "FRESH-1: its time is over");
    vfs.stat(&ctx, "d/f", LookupFlags::default()).unwrap();
    vfs.invalidate(&ctx, "d/f").unwrap();
    assert!(!file.is_fresh(), "FRESH-1: it is invalidated");
}

/// FRESH-1: a name that goes is asked for when its time is over; before, the back end that
/// removes it is enough.
#[test]
fn what_goes_is_not_asked_for_twice() {
    let asked = Arc::new(AtomicUsize::new(0));
    let vfs = Vfs::new(Wrapped::new(Counting(asked.clone()))).unwrap();
    let root = vfs.context(Credentials::root());
    for round in 0..100 {
        let dir = vfs.lookup(&root, "d", LookupFlags::default()).unwrap();
        let ctx = vfs.context(Credentials::root()).with_cwd(dir);
        let start = std::time::Instant::now();
        // A missing name is cached, so each round takes new ones.
        let (one, other) = (format!("a{round}"), format!("b{round}"));
        vfs.stat(&ctx, &one, LookupFlags::default()).unwrap();
        let before = asked.load(Relaxed);
        vfs.unlink(&ctx, &one).unwrap();
        let fresh = asked.load(Relaxed) - before;

        vfs.stat(&ctx, &other, LookupFlags::default()).unwrap();
        sleep(TTL);
        let before = asked.load(Relaxed);
        vfs.unlink(&ctx, &other).unwrap();
        assert!(asked.load(Relaxed) > before, "FRESH-1: its time was over");
        if fresh == 0 {
            return;
        }
        // On a machine that stands still, its time may have been over.
        assert!(start.elapsed() > TTL + TTL / 2, "FRESH-1: round {round}");
    }
}
