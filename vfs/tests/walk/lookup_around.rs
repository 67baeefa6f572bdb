//! Names that are looked up together with one, after a listing.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcuwalk::{
    Attr, Budget, Credentials, Emit, Error, FileType, Inode, InodeRef, LookupFlags, Name, RawEntry,
    Result, SuperBlock, Vfs,
};
use rcuwalk_testkit::{Wrapped, Wrapper, iget};

/// One directory of numbered files, in blocks of so many.
struct Blocks {
    files: u64,
    block: u64,
    calls: Arc<Calls>,
}

/// How long a call waits for another one that does not come.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Calls {
    alone: AtomicU64,
    around: AtomicU64,
    /// The name that was asked for cannot be read.
    fail: AtomicBool,
    /// A lookup of neighbours says that it has begun, and waits here before it goes on.
    meets: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Blocks {
    fn number(&self, name: Name<'_>) -> Option<u64> {
        let text = std::str::from_utf8(name.as_bytes()).ok()?;
        let number = text.strip_prefix("file-with-a-long-name-")?.parse().ok()?;
        (number < self.files).then_some(number)
    }

    fn name(number: u64) -> String {
        format!("file-with-a-long-name-{number}")
    }

    fn iget(sb: &SuperBlock, number: u64) -> Result<InodeRef> {
        iget(sb, number + 10, FileType::Regular)
    }
}

impl Wrapper for Blocks {
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        iget(sb, 1, FileType::Directory)
    }

    fn lookup(&self, sb: &SuperBlock, _: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        self.calls.alone.fetch_add(1, Relaxed);
        if self.calls.fail.load(Relaxed) {
            return Err(Error::NotSupported);
        }
        self.number(name).map(|n| Self::iget(sb, n)).transpose()
    }

    fn looks_around(&self) -> bool {
        true
    }

    fn lookup_around(
        &self,
        sb: &SuperBlock,
        _: &Inode,
        name: Name<'_>,
        around: &mut dyn FnMut(Name<'_>, InodeRef) -> ControlFlow<()>,
    ) -> Result<Option<InodeRef>> {
        self.calls.around.fetch_add(1, Relaxed);
        if let Some((begun, goes_on)) = self.calls.meets.lock().unwrap().take() {
            begun.send(()).unwrap();
            goes_on
                .recv_timeout(PATIENCE)
                .expect("others do not wait for this call");
        }
        let Some(number) = self.number(name) else {
            return Ok(None);
        };
        let first = number - number % self.block;
        for other in first..self.files.min(first + self.block) {
            let text = Self::name(other);
            let inode = Self::iget(sb, other)?;
            if around(Name::new(text.as_bytes())?, inode).is_break() {
                break;
            }
        }
        match self.calls.fail.load(Relaxed) {
            true => Err(Error::NotSupported),
            false => Self::iget(sb, number).map(Some),
        }
    }

    fn read_dir(&self, _: &SuperBlock, _: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        for number in from..self.files {
            let name = Self::name(number);
            let entry = RawEntry {
                name: name.as_bytes(),
                ino: number + 10,
                kind: Some(FileType::Regular),
                next: number + 1,
            };
            if emit.entry(entry).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn mounted(files: u64, block: u64, budget: Budget) -> (Vfs, Arc<Calls>) {
    let calls = Arc::new(Calls::default());
    let fs = Blocks {
        files,
        block,
        calls: calls.clone(),
    };
    (Vfs::with_budget(Wrapped::new(fs), budget).unwrap(), calls)
}

fn stat(vfs: &Vfs, number: u64) -> Result<Attr> {
    let ctx = vfs.context(Credentials::root());
    vfs.stat(&ctx, Blocks::name(number), LookupFlags::default())
}

/// DENTRY-2: after a listing the first miss of a block brings in the rest of it, and
/// all others are hits.
#[test]
fn a_listing_makes_one_lookup_do_for_a_block() {
    let (vfs, calls) = mounted(1000, 100, Budget::default());
    let ctx = vfs.context(Credentials::root());
    assert_eq!(vfs.read_dir(&ctx, "/").unwrap().count(), 1000);
    for number in 0..1000 {
        assert_eq!(stat(&vfs, number).unwrap().ino, number + 10);
    }
    assert_eq!(calls.around.load(Relaxed), 10);
    assert_eq!(calls.alone.load(Relaxed), 0);
    assert_eq!(vfs.statistics().dentries.0, 1000, "no name twice");
    assert!(matches!(stat(&vfs, 1000), Err(Error::NotFound)));
    assert!(matches!(stat(&vfs, 1000), Err(Error::NotFound)));
    assert_eq!(vfs.statistics().dentries.0, 1001, "the missing name, too");
}

/// LOCK-1: while a thread reads in the neighbours of a name, other threads look up missing and cached
/// names of the directory, also one of those neighbours, and list it. DENTRY-2: each name is
/// cached once.
#[test]
fn no_other_name_waits_for_a_lookup_of_neighbours() {
    let (vfs, calls) = mounted(1000, 100, Budget::default());
    let ctx = vfs.context(Credentials::root());
    stat(&vfs, 999).unwrap();
    assert_eq!(vfs.read_dir(&ctx, "/").unwrap().count(), 1000);
    let ((begun, has_begun), (go_on, goes_on)) = (channel(), channel());
    *calls.meets.lock().unwrap() = Some((begun, goes_on));
    std::thread::scope(|scope| {
        let around = scope.spawn(|| stat(&vfs, 0).unwrap().ino);
        has_begun
            .recv_timeout(PATIENCE)
            .expect("a listing came before");
        let alone = calls.alone.load(Relaxed);
        for number in [7, 500, 999] {
            assert_eq!(stat(&vfs, number).unwrap().ino, number + 10);
        }
        assert!(matches!(stat(&vfs, 1000), Err(Error::NotFound)));
        assert_eq!(calls.alone.load(Relaxed) - alone, 3, "7, 500 and 1000");
        assert_eq!(vfs.read_dir(&ctx, "/").unwrap().count(), 1000);
        go_on.send(()).unwrap();
        assert_eq!(around.join().unwrap(), 10);
    });
    assert_eq!(calls.around.load(Relaxed), 1, "one at a time");
    // The block of a hundred, and the three others.
    assert_eq!(vfs.statistics().dentries.0, 103, "DENTRY-2");
    stat(&vfs, 100).unwrap();
    assert_eq!(calls.around.load(Relaxed), 2, "the next one may");
}

/// MEM-1: without a listing nothing is read in unasked, and after one no more than it
/// returned.
#[test]
fn nothing_is_read_in_that_was_not_listed() {
    let (vfs, calls) = mounted(100_000, 1000, Budget::default());
    for number in (0..100_000).step_by(1000) {
        stat(&vfs, number).unwrap();
    }
    assert_eq!(vfs.statistics().dentries.0, 100);
    assert_eq!(calls.around.load(Relaxed), 0);

    let ctx = vfs.context(Credentials::root());
    let listed = vfs.read_dir(&ctx, "/").unwrap().take(500).count();
    assert_eq!(listed, 500);
    for number in (1..100_000).step_by(1000) {
        stat(&vfs, number).unwrap();
    }
    // A batch of the listing, in units.
    let (names, _) = vfs.statistics().dentries;
    assert!((600..=100 + 100 + 1024 + 64).contains(&names), "{names}");
}

/// MEM-1: blocks of few names use up the listing's allowance as well.
#[test]
fn small_blocks_are_not_for_nothing() {
    let (vfs, calls) = mounted(6400, 10, Budget::default());
    let ctx = vfs.context(Credentials::root());
    assert_eq!(vfs.read_dir(&ctx, "/").unwrap().count(), 6400);
    for number in 0..6400 {
        vfs.drop_caches();
        stat(&vfs, number).unwrap();
    }
    let around = calls.around.load(Relaxed);
    assert!((320..=1280).contains(&around), "{around} for 640 blocks");
}

/// An error on the way does not return the allowance used up before it.
#[test]
fn what_came_before_an_error_counts() {
    let (vfs, calls) = mounted(6400, 1000, Budget::default());
    let ctx = vfs.context(Credentials::root());
    assert_eq!(vfs.read_dir(&ctx, "/").unwrap().count(), 6400);
    calls.fail.store(true, Relaxed);
    for _ in 0..100 {
        assert!(matches!(stat(&vfs, 0), Err(Error::NotSupported)));
        vfs.drop_caches();
    }
    let around = calls.around.load(Relaxed);
    assert!((6..=8).contains(&around), "{around} for 6.4 blocks");
}

/// MEM-1: names that come in unasked do not keep more inodes than the budget has, where
/// it has room for many more names.
#[test]
fn names_give_way_to_the_budget_of_inodes() {
    let budget = Budget::default().dentries(100_000).inodes(500);
    let (vfs, _) = mounted(20_000, 250, budget);
    let ctx = vfs.context(Credentials::root());
    let mut most = 0;
    for (index, entry) in vfs.read_dir(&ctx, "/").unwrap().enumerate() {
        let name = entry.unwrap().name;
        vfs.stat(&ctx, &*name, LookupFlags::default()).unwrap();
        if index % 100 == 0 {
            most = most.max(vfs.statistics().inodes.0);
        }
    }
    assert!(most <= 500 + 500 + 64, "{most} inodes");
}

/// MEM-1: the budget holds while blocks come in, and INODE-1: every caller gets the same inode,
/// whichever way it came.
#[test]
fn threads_that_list_and_look_up_agree_within_the_budget() {
    let budget = Budget::default().dentries(500).inodes(500);
    let (vfs, _) = mounted(5000, 64, budget);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let vfs = &vfs;
            scope.spawn(move || {
                let ctx = vfs.context(Credentials::root());
                for round in 0..5 {
                    for entry in vfs.read_dir(&ctx, "/").unwrap() {
                        let entry = entry.unwrap();
                        let attr = vfs.stat(&ctx, &*entry.name, LookupFlags::default());
                        assert_eq!(attr.unwrap().ino, entry.ino);
                    }
                    let odd = (thread * 1000 + round * 77) % 5000;
                    let a = vfs.lookup(&ctx, Blocks::name(odd), LookupFlags::default());
                    let b = vfs.lookup(&ctx, Blocks::name(odd), LookupFlags::default());
                    assert!(a.unwrap().is_same_place(&b.unwrap()), "DENTRY-2");
                }
            });
        }
    });
    let statistics = vfs.statistics();
    assert!(statistics.dentries.0 <= 700, "{statistics:?}");
    assert!(statistics.inodes.0 <= 700, "{statistics:?}");
}
