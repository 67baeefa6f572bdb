//! Races and errors that were once there, each provoked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::{FOLLOW, REF, Tree, grow};
use rcuwalk::inode::{Iget, InodeCache, Key};
use rcuwalk::{Credentials, Error, FileType, Inode, InodeRef, Name, Result, SuperBlock, Vfs};
use rcuwalk_memfs::{MemFs, file, symlink};
use rcuwalk_testkit::{Wrapped, Wrapper};

#[derive(Clone, PartialEq, Eq)]
struct Ino(u64);

impl Key for Ino {
    fn hash(&self) -> u64 {
        self.0
    }
}

fn cache() -> InodeCache<Ino, u64> {
    InodeCache::builder().bytes(1 << 30).build()
}

fn iget(cache: &InodeCache<Ino, u64>, ino: u64) -> rcuwalk::inode::InodeRef<Ino, u64> {
    match cache.iget(Ino(ino)).unwrap() {
        Iget::Cached(inode) => inode,
        Iget::New(new) => new.init(ino),
    }
}

/// INODE-1: an inode that is cached is found, whatever the table is doing.
#[test]
fn a_growing_table_hides_nothing() {
    for _ in 0..5 {
        let cache = cache();
        let held: Vec<_> = (0..500).map(|ino| iget(&cache, ino)).collect();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                (1000..40_000).for_each(|ino| drop(iget(&cache, ino)));
                done.store(true, SeqCst);
            });
            while !done.load(SeqCst) {
                for ino in 0..500 {
                    assert!(
                        cache.ilookup(&Ino(ino)).unwrap().is_some(),
                        "INODE-1: {ino} is held"
                    );
                }
            }
        });
        drop(held);
    }
}

/// MEM-1: a list that grows while it is about to be emptied.
#[test]
fn dropping_beside_adding_counts_right() {
    let cache = cache();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let dropper = scope.spawn(|| {
            while !done.load(SeqCst) {
                cache.drop_unused();
            }
        });
        for ino in 0..300_000 {
            drop(iget(&cache, ino));
            if dropper.is_finished() {
                break;
            }
        }
        done.store(true, SeqCst);
    });
}

/// WALK-1: a NUL in a link's target is what both walks say it is.
#[test]
fn a_nul_in_a_link_is_invalid_in_both_walks() {
    let fs = MemFs::new();
    for (name, target) in [("file", "x\0"), ("dot", ".\0"), ("up", "x/..\0")] {
        fs.add(fs.root(), name.as_bytes(), symlink(target.as_bytes()))
            .unwrap();
    }
    fs.add(fs.root(), b"x", file(0o644)).unwrap();
    let vfs = Vfs::new(fs).unwrap();
    let ctx = vfs.context(Credentials::root());
    vfs.stat(&ctx, "/x", FOLLOW).unwrap();
    for path in ["/file", "/dot", "/up"] {
        let [by_ref, again, by_rcu] = [REF, FOLLOW, FOLLOW].map(|flags| {
            vfs.stat(&ctx, path, flags)
                .map(|attr| attr.ino)
                .map_err(|err| err.errno())
        });
        assert_eq!((by_ref, by_ref), (again, by_rcu), "WALK-1: {path}");
    }
}

/// EDGE-1: link(2) says EEXIST before EXDEV.
#[test]
fn a_link_to_another_mount_over_something() {
    let tree = Tree::new("mnt/ file other");
    tree.vfs.mount(&tree.ctx, "/mnt", grow("there")).unwrap();
    let link = |new: &str| tree.vfs.link(&tree.ctx, "/file", new).unwrap_err().errno();
    assert_eq!(link("/mnt/new"), Error::CrossDevice.errno());
    assert_eq!(link("/mnt/there"), Error::Exists.errno(), "EDGE-1");
    assert_eq!(link("/mnt/new/"), Error::NotFound.errno(), "EDGE-1");
    assert_eq!(link("/mnt/."), Error::Exists.errno(), "EDGE-1");
}

/// One name, `x`, that stands for whichever file the test says.
struct Switch {
    ino: Arc<AtomicU64>,
    /// Called between the answer and its arrival.
    late: Box<dyn Fn() + Send + Sync>,
}

impl Wrapper for Switch {
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        rcuwalk_testkit::iget(sb, 1, FileType::Directory)
    }
    fn lookup(&self, sb: &SuperBlock, _: &Inode, _: Name<'_>) -> Result<Option<InodeRef>> {
        let ino = self.ino.load(SeqCst);
        (self.late)();
        rcuwalk_testkit::iget(sb, ino, FileType::Regular).map(Some)
    }
}

/// DENTRY-2: an invalidation while the answer is on its way covers that answer, too: after
/// `invalidate` has returned, no walk gets an older answer.
#[test]
fn an_invalidation_beside_a_lookup_is_kept() {
    // Without a cached name, and with a stale one that is being revalidated.
    for cached in [false, true] {
        let ino = Arc::new(AtomicU64::new(10));
        let waits = Arc::new(AtomicBool::new(false));
        let (asked, was_asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel::<()>();
        let answers = std::sync::Mutex::new(answers);
        let late = {
            let waits = waits.clone();
            move || {
                if waits.swap(false, SeqCst) {
                    asked.send(()).unwrap();
                    answers.lock().unwrap().recv().unwrap();
                }
            }
        };
        let fs = Switch {
            ino: ino.clone(),
            late: Box::new(late),
        };
        let vfs = Vfs::new(Wrapped::new(fs)).unwrap();
        let ctx = vfs.context(Credentials::root());
        if cached {
            assert_eq!(vfs.stat(&ctx, "/x", FOLLOW).unwrap().ino, 10);
            vfs.invalidate(&ctx, "/x").unwrap();
        }
        waits.store(true, SeqCst);
        thread::scope(|scope| {
            let slow = scope.spawn(|| vfs.stat(&ctx, "/x", FOLLOW).unwrap().ino);
            was_asked.recv().unwrap();
            ino.store(20, SeqCst);
            let invalidation = scope.spawn(|| vfs.invalidate(&ctx, "/x").unwrap());
            thread::sleep(Duration::from_millis(50));
            answer.send(()).unwrap();
            assert_eq!(slow.join().unwrap(), 10);
            invalidation.join().unwrap();
        });
        assert_eq!(
            vfs.stat(&ctx, "/x", FOLLOW).unwrap().ino,
            20,
            "cached: {cached}"
        );
    }
}
