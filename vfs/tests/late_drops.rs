//! RCU drops the private data of back ends in inodes late, and that runs their code: on which
//! thread, and with which locks?

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use common::{FOLLOW, REF, Tree};
use rcuwalk::{
    At, Attr, Budget, Caller, Context, Credentials, Error, FileHandle, FileType, Freshness,
    HeldDescriptor, Iget, Inode, InodeFill, InodeKey, InodeRef, Name, NewFile, OpenFlags, Result,
    SuperBlock, Vfs,
};
use rcuwalk_memfs::MemFs;
use rcuwalk_testkit::{Wrapped, Wrapper};

/// The action of a part's `Drop` code.
type OnDrop = Arc<dyn Fn() + Send + Sync>;

/// A back end all of whose names lead to files, but for `d…`, which lead to directories. With
/// each inode it keeps a part.
struct Parts {
    on_drop: OnDrop,
    /// How many parts there may be, for a host that has no more descriptors.
    most: usize,
    there_are: Arc<AtomicUsize>,
    /// How often an inode was asked for or made.
    asked: Arc<AtomicUsize>,
    /// Each part counts as a descriptor.
    counts: bool,
    in_call: Mutex<Option<OnDrop>>,
}

#[expect(dead_code, reason = "kept, and dropped")]
struct Part {
    there_are: Arc<AtomicUsize>,
    on_drop: OnDrop,
    counted: Option<HeldDescriptor>,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.there_are.fetch_sub(1, Relaxed);
        (self.on_drop)();
    }
}

impl Parts {
    fn new(on_drop: OnDrop) -> Parts {
        Parts {
            on_drop,
            most: usize::MAX,
            there_are: Arc::default(),
            asked: Arc::default(),
            counts: false,
            in_call: Mutex::default(),
        }
    }

    fn iget(&self, sb: &SuperBlock, ino: u64, kind: FileType) -> Result<InodeRef> {
        self.asked.fetch_add(1, Relaxed);
        let new = match sb.iget(InodeKey::new(ino))? {
            Iget::Cached(inode) => return Ok(inode),
            Iget::New(new) => new,
        };
        if self.there_are.load(Relaxed) >= self.most {
            return Err(Error::TooManyOpenFiles);
        }
        self.there_are.fetch_add(1, Relaxed);
        let part = Part {
            there_are: self.there_are.clone(),
            on_drop: self.on_drop.clone(),
            counted: self.counts.then(|| sb.hold_descriptor()),
        };
        Ok(new.init(InodeFill::new(Attr::new(ino, kind, 0o755)).private(part)))
    }

    /// Runs the test's code within a call.
    fn calls(&self) {
        let what = self.in_call.lock().unwrap().take();
        if let Some(what) = what {
            what();
        }
    }
}

fn number(name: Name<'_>) -> u64 {
    let start = match name.as_bytes() {
        [b'n', b'd', ..] => 5,
        [b'n', ..] => 4,
        [b'd', ..] => 3,
        _ => 2,
    };
    let digits = name.as_bytes().iter().filter(|b| b.is_ascii_digit());
    digits.fold(start, |sum, digit| sum * 16 + u64::from(*digit))
}

impl Wrapper for Parts {
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        self.iget(sb, 1, FileType::Directory)
    }
    fn freshness(&self) -> Freshness {
        match self.in_call.lock().unwrap().is_some() {
            true => Freshness::EachUse,
            false => Freshness::Always,
        }
    }
    fn lookup(&self, sb: &SuperBlock, _: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        if name.as_bytes() == b"calls" {
            self.calls();
        }
        let kind = match name.as_bytes()[0] {
            b'd' => FileType::Directory,
            b'n' => return Ok(None),
            _ => FileType::Regular,
        };
        self.iget(sb, number(name), kind).map(Some)
    }
    fn refresh(&self, _: &SuperBlock, _: &Inode) -> Result<()> {
        self.calls();
        Ok(())
    }
    fn open(&self, _: &Caller<'_>, _: &At<'_>, _: OpenFlags) -> Result<Box<dyn FileHandle>> {
        struct Open(Option<OnDrop>);
        impl FileHandle for Open {
            fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
                self.0.as_ref().inspect(|what| what());
                Ok(0)
            }
        }
        Ok(Box::new(Open(self.in_call.lock().unwrap().take())))
    }
    fn create(
        &self,
        by: &Caller<'_>,
        _: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        self.iget(by.sb, number(name), new.kind)
    }
}

/// Another tree, to be used by `Drop` code in every way that takes a lock: also the first one
/// of the lock order.
fn other_tree() -> (Arc<Tree>, OnDrop, Arc<AtomicUsize>) {
    let other = Arc::new(Tree::new("dir/ mnt/"));
    let used = Arc::new(AtomicUsize::new(0));
    let (tree, times) = (other.clone(), used.clone());
    let use_it = move || {
        let (vfs, ctx) = (&tree.vfs, &tree.ctx);
        let time = times.fetch_add(1, Relaxed);
        let name = format!("/dir/{time}");
        vfs.create(ctx, &name, 0o644).unwrap();
        vfs.rename(ctx, &name, format!("/{time}")).unwrap();
        vfs.stat(ctx, format!("/dir/missing{time}"), REF)
            .unwrap_err();
        vfs.mount(ctx, "/mnt", MemFs::new()).unwrap();
        vfs.umount(ctx, "/mnt").unwrap();
    };
    (other, Arc::new(use_it), used)
}

fn user(vfs: &Vfs) -> Context {
    vfs.context(Credentials::root())
}

/// CALL-1: a back end that keeps more descriptors than the budget allows reclaims after its
/// call, with nothing locked: its `Drop` code uses another `Vfs`.
#[test]
fn descriptors_are_released_with_no_lock_held() {
    const FDS: usize = 16;
    let (_other, use_it, used) = other_tree();
    let parts = Parts {
        counts: true,
        ..Parts::new(use_it)
    };
    let budget = Budget::default().fds(FDS);
    let vfs = Vfs::with_budget(Wrapped::new(parts), budget).unwrap();
    let ctx = user(&vfs);
    let mut most = 0;
    for file in 0..100 {
        vfs.stat(&ctx, format!("/f{file}"), FOLLOW).unwrap();
        vfs.create(&ctx, format!("/n{file}"), 0o644).unwrap();
        most = most.max(vfs.statistics().fds);
    }
    // Above the budget: the root's is in use, and when reclaim runs, so is that of the inode
    // just found.
    assert!(most <= FDS + 2, "MEM-1: {most} descriptors");
    assert!(used.load(Relaxed) >= 100, "CALL-1: parts are dropped");
}

/// CALL-1: a back end that has run out of descriptors is called once more, after everything
/// unused has been released with nothing locked.
#[test]
fn a_back_end_out_of_descriptors_is_retried_after_all_are_released() {
    const MOST: usize = 8;
    let (_other, use_it, used) = other_tree();
    let parts = Parts {
        most: MOST,
        ..Parts::new(use_it)
    };
    let asked = parts.asked.clone();
    let vfs = Vfs::new(Wrapped::new(parts)).unwrap();
    let ctx = user(&vfs);
    for file in 0..50 {
        let (found, made) = (format!("/d{file}/f{file}"), format!("/d{file}/n{file}"));
        vfs.stat(&ctx, &found, FOLLOW).unwrap();
        vfs.open(&ctx, &found, OpenFlags::READ).unwrap();
        vfs.chmod(&ctx, &found, 0o700).unwrap_err();
        vfs.create(&ctx, &made, 0o644).unwrap();
        vfs.mkdir(&ctx, format!("/d{file}/nd{file}"), 0o755)
            .unwrap();
    }
    assert!(used.load(Relaxed) >= 50, "CALL-1: parts are dropped");
    // In use, they cannot be released.
    vfs.drop_caches();
    let hold = |file: usize| vfs.lookup(&ctx, format!("/f{file}"), FOLLOW);
    let held: Vec<_> = (1..MOST).map(|file| hold(file).unwrap()).collect();
    type Ask<'a> = &'a dyn Fn() -> Result<()>;
    let asks: [Ask<'_>; 5] = [
        &|| vfs.stat(&ctx, "/f99", FOLLOW).map(drop),
        &|| vfs.trace(&ctx, "/f99", FOLLOW).result.map(drop),
        &|| vfs.open(&ctx, "/f99", OpenFlags::READ).map(drop),
        &|| vfs.mkdir(&ctx, "/n99", 0o755).map(drop),
        &|| vfs.chmod(&ctx, "/f99", 0o700),
    ];
    for ask in asks {
        let before = asked.load(Relaxed);
        let refused = ask();
        assert_eq!(refused, Err(Error::TooManyOpenFiles));
        assert_eq!(asked.load(Relaxed) - before, 2, "CALL-1: once more");
    }
    drop(held);
    for ask in &asks[..4] {
        ask().unwrap();
    }
}

/// CALL-1: an unmount drops the names and inodes below with nothing locked: not the mount table
/// either, so that `Drop` code may mount and unmount.
#[test]
fn an_unmount_drops_parts_with_no_lock_held() {
    let (_other, use_it, used) = other_tree();
    let tree = Tree::new("mnt/ second/");
    for round in 1..20 {
        let parts = Parts::new(use_it.clone());
        let there_are = parts.there_are.clone();
        tree.vfs
            .mount(&tree.ctx, "/mnt", Wrapped::new(parts))
            .unwrap();
        for file in 0..10 {
            tree.stat(&format!("/mnt/f{file}")).unwrap();
        }
        // On their way before the unmount begins, and not yet freed.
        tree.vfs.drop_caches();
        for file in 10..20 {
            tree.stat(&format!("/mnt/f{file}")).unwrap();
        }
        tree.vfs.umount(&tree.ctx, "/mnt").unwrap();
        assert_eq!(there_are.load(Relaxed), 0, "CALL-1: it is over");
        // The root's, too.
        assert_eq!(used.load(Relaxed), round * 21);
    }
}

/// CALL-1: within a call, a back end does not use a `Vfs`: not another one either, and not even
/// for cached files. Debug builds panic at once, whatever the caches hold.
#[cfg(debug_assertions)]
#[test]
fn a_back_end_that_uses_a_vfs_in_a_call_is_refused() {
    let other = Arc::new(Tree::new("dir/ dir/file"));
    let open = other.vfs.open(&other.ctx, "/dir/file", OpenFlags::READ);
    let open = open.unwrap();
    let cached = other.clone();
    let uses: [OnDrop; 3] = [
        Arc::new(move || _ = cached.stat("/dir/file")),
        Arc::new(move || _ = open.read_at(&mut [0], 0)),
        Arc::new(move || _ = other.vfs.mkdir(&other.ctx, "/new", 0o755)),
    ];
    for what in uses {
        let refused = |ask: &dyn Fn(&Vfs, &Context)| {
            let parts = Parts::new(Arc::new(|| ()));
            *parts.in_call.lock().unwrap() = Some(what.clone());
            let vfs = Vfs::new(Wrapped::new(parts)).unwrap();
            let ctx = user(&vfs);
            let panicked = catch_unwind(AssertUnwindSafe(|| ask(&vfs, &ctx)));
            let panicked = panicked.expect_err("CALL-1: refused");
            let message = panicked.downcast_ref::<&str>().unwrap();
            assert!(message.contains("CALL-1"), "{message}");
            // The call is over, and its locks are released.
            vfs.stat(&ctx, "/f1", FOLLOW).unwrap();
        };
        // A lookup has its directory locked; attributes and contents are asked for without.
        refused(&|vfs, ctx| _ = vfs.stat(ctx, "/calls", REF));
        refused(&|vfs, ctx| _ = vfs.stat(ctx, "/", REF));
        refused(&|vfs, ctx| {
            let file = vfs.open(ctx, "f2", OpenFlags::READ).unwrap();
            _ = file.read_at(&mut [0], 0);
        });
    }
}

/// LRU-1: the last reference to a place may go when a thread's locals do, before or after this
/// library's own.
#[test]
fn a_thread_that_ends_puts_what_its_locals_hold() {
    use std::cell::RefCell;
    thread_local! {
        static FIRST: RefCell<Option<rcuwalk::VfsPath>> = const { RefCell::new(None) };
        static LATER: RefCell<Option<rcuwalk::VfsPath>> = const { RefCell::new(None) };
    }
    let vfs = Arc::new(Vfs::new(MemFs::new()).unwrap());
    let root = vfs.context(Credentials::root());
    for name in ["/a", "/b"] {
        vfs.create(&root, name, 0o644).unwrap();
    }
    let thread = std::thread::spawn({
        let vfs = vfs.clone();
        move || {
            // Registered before this thread has used the library: it is dropped after the
            // library's own locals.
            FIRST.with(|place| assert!(place.borrow().is_none()));
            let ctx = vfs.context(Credentials::root());
            let place = |name| vfs.lookup(&ctx, name, FOLLOW).unwrap();
            FIRST.set(Some(place("/a")));
            LATER.set(Some(place("/b")));
        }
    });
    thread.join().unwrap();
    let before = vfs.statistics().dentries.0;
    vfs.drop_caches();
    let after = vfs.statistics().dentries.0;
    assert_eq!((before, after), (2, 0), "LRU-1: nobody uses them any more");
}
