//! MEM-1, on the bytes that the allocator gave out, and those of the slab beside it.
//!
//! One test at a time: the count is of the whole process.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::FOLLOW;
use rcuwalk::inode::{self, InodeCache, Key};
use rcuwalk::{
    At, Attr, Budget, Caller, Context, Credentials, Error, FileHandle, FileType, HeldDescriptor,
    Iget, Inode, InodeFill, InodeKey, InodeRef, LookupFlags, Name, OpenFlags, RenameFlags, Result,
    SuperBlock, Vfs,
};
use rcuwalk_memfs::MemFs;
use rcuwalk_sync::{memory, rcu};
use rcuwalk_testkit::{Wrapped, Wrapper};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: passes everything on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise is the one that the system allocator wants.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// The slab's pages and large tables come from the kernel directly. Its free pages count, too.
fn taken() -> usize {
    LIVE.load(Relaxed) + memory::statistics().resident
}

/// Thousands of directories below each other: twice the budget.
const DEPTH: usize = BUDGET * 2 / 1_000;

/// Objects above the budget for a while: an insertion into a full shard scans 64, and each gets
/// a second chance, so that one of 16 shards with 1,250 each may take 20 more before the first
/// goes.
const SLACK: usize = 16 * (1_250 / 64 + 1);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Names kept, and how many are walked: 20 times as many.
const BUDGET: usize = if cfg!(debug_assertions) {
    2_000
} else {
    20_000
};
const NAMES: u64 = BUDGET as u64 * 20;

/// What a budget of names and inodes may come to, in bytes from the allocator.
///
/// - a name: 128 bytes; an inode: 192, and 16 of private part here
/// - their slabs: a thirtieth more, rounded up to a quarter for pages in part use, and
///   a quarter and half a MiB for free ones (MEM-2)
/// - a place in each hash table: 8 bytes, half empty, twice while it grows: 32
/// - what RCU has not freed yet: per thread one bag being filled and one waiting, of
///   512 KiB each at most ([`rcu::Domain::BATCH_BYTES`]), and as much again for the
///   bags' own lists
const fn bytes_of(budget: usize) -> usize {
    let each = (128 + 192 + 16) * 5 / 4 * 5 / 4 + 2 * 32;
    (budget + SLACK) * each + 4 * rcu::Domain::BATCH_BYTES + (512 << 10)
}

/// A file system whose inodes are computed, not stored: `d<n>` is a directory, `f<n>`
/// a file, and nothing else is there.
struct Computed {
    descriptors: bool,
}

/// Stands for a back end's private data in an inode.
#[expect(dead_code, reason = "kept, not used")]
struct Private(Option<HeldDescriptor>, u64);

impl Computed {
    fn iget(&self, sb: &SuperBlock, ino: u64, kind: FileType) -> InodeRef {
        match sb.iget(InodeKey::new(ino)).unwrap() {
            Iget::Cached(inode) => inode,
            Iget::New(new) => {
                let held = self.descriptors.then(|| sb.hold_descriptor());
                let attr = Attr::new(ino, kind, 0o755);
                new.init(InodeFill::new(attr).private(Private(held, ino)))
            }
        }
    }
}

impl Wrapper for Computed {
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        Ok(self.iget(sb, 1, FileType::Directory))
    }
    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let name = std::str::from_utf8(name.as_bytes()).unwrap();
        let (kind, number) = name.split_at(1);
        let kind = match kind {
            "d" => FileType::Directory,
            "f" => FileType::Regular,
            _ => return Ok(None),
        };
        let number: u64 = number.parse().unwrap_or(0) << 1 | u64::from(kind == FileType::Regular);
        // Another number for each place, as good as never the same twice.
        let ino = (dir.attr().ino ^ number << 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Ok(Some(self.iget(sb, ino.rotate_right(20), kind)))
    }
    fn open(&self, _: &Caller<'_>, at: &At<'_>, _: OpenFlags) -> Result<Box<dyn FileHandle>> {
        struct Open(u64);
        impl FileHandle for Open {
            fn read_at(&self, buf: &mut [u8], _: u64) -> Result<usize> {
                buf[..8].copy_from_slice(&self.0.to_le_bytes());
                Ok(8)
            }
        }
        Ok(Box::new(Open(at.inode.attr().ino)))
    }
}

fn budget(dentries: usize, inodes: usize) -> Budget {
    Budget::default()
        .dentries(dentries)
        .inodes(inodes)
        .bytes(1 << 30)
        .fds(usize::MAX)
}

/// A computed tree, and the memory allocated before it was made.
struct Walked {
    vfs: Vfs,
    ctx: Context,
    before: usize,
    most: usize,
}

impl Walked {
    fn new(budget: Budget, descriptors: bool) -> Walked {
        rcu::barrier();
        let before = taken();
        let vfs = Vfs::with_budget(Wrapped::new(Computed { descriptors }), budget).unwrap();
        let ctx = vfs.context(Credentials::user(1, 1));
        Walked {
            vfs,
            ctx,
            before,
            most: 0,
        }
    }

    fn stat(&mut self, path: &str) -> Result<Attr> {
        let answer = self.vfs.stat(&self.ctx, path, FOLLOW);
        // Signed in effect: memory kept by an earlier test's thread may go meanwhile.
        self.most = self.most.max(taken().saturating_sub(self.before));
        answer
    }

    fn assert_within(&self, bytes: usize) {
        assert!(
            self.most <= bytes,
            "MEM-1: {} of {bytes} bytes at the most; now {:?}",
            self.most,
            self.vfs.statistics()
        );
    }
}

/// MEM-1: a wide tree 20 times larger than the budget is walked within the budget.
#[test]
fn a_wide_tree_stays_within_the_budget() {
    let _one = ONE_AT_A_TIME.lock();
    let mut tree = Walked::new(budget(BUDGET, BUDGET), false);
    for n in 0..NAMES {
        tree.stat(&format!("/d{}/f{n}", n / 10_000)).unwrap();
    }
    tree.assert_within(bytes_of(BUDGET));
    let stats = tree.vfs.statistics();
    assert!(stats.dentries.0 <= BUDGET + SLACK, "MEM-1: {stats:?}");
    assert!(stats.inodes.0 <= BUDGET + SLACK, "MEM-1: {stats:?}");
    assert!(stats.dentries.0 >= BUDGET / 2, "and uses it: {stats:?}");
}

/// MEM-1: a deep tree 20 times larger than the budget is walked within the budget.
#[test]
fn a_deep_tree_stays_within_the_budget() {
    let _one = ONE_AT_A_TIME.lock();
    let mut tree = Walked::new(budget(BUDGET, BUDGET), false);
    for n in 0..NAMES / 1_000 {
        tree.stat(&format!("/d{n}{}", "/d".repeat(1_000))).unwrap();
    }
    // In use besides: the thousand directories above the one walked to.
    tree.assert_within(bytes_of(BUDGET + 1_000));
}

/// MEM-1: a chain of directories deeper than the budget is completely in use while a context is
/// in its end; once the context has left it is not.
#[test]
fn the_directories_above_one_in_use_are_in_use() {
    let _one = ONE_AT_A_TIME.lock();
    let mut tree = Walked::new(budget(BUDGET, BUDGET), false);
    let below = "d/".repeat(1_000);
    for _ in 0..DEPTH {
        let end = tree.vfs.lookup(&tree.ctx, &below, FOLLOW).unwrap();
        tree.ctx = tree.ctx.clone().with_cwd(end);
    }
    let (deep, _) = tree.vfs.statistics().dentries;
    assert!(deep >= 2 * BUDGET, "MEM-1: in use: {deep}");
    let up = "../".repeat(1_000);
    for _ in 0..DEPTH {
        let above = tree.vfs.lookup(&tree.ctx, &up, FOLLOW).unwrap();
        tree.ctx = tree.ctx.clone().with_cwd(above);
    }
    let root = tree.vfs.root().attr();
    assert_eq!(tree.ctx.cwd().attr(), root, "all the way up");
    for n in 0..NAMES / 4 {
        tree.stat(&format!("f{n}")).unwrap();
    }
    tree.most = 0;
    tree.stat("f0").unwrap();
    tree.assert_within(bytes_of(BUDGET));
}

/// MEM-1: missing names count like the others.
#[test]
fn missing_names_stay_within_the_budget() {
    let _one = ONE_AT_A_TIME.lock();
    let mut tree = Walked::new(budget(BUDGET, BUDGET), false);
    for n in 0..NAMES {
        let path = format!("/d{}/missing-{n}-of-some-length", n % 10);
        assert!(matches!(tree.stat(&path), Err(Error::NotFound)));
    }
    // A long name has its bytes apart: an object of 128 bytes and the bytes.
    tree.assert_within(bytes_of(BUDGET) + BUDGET * (128 + 64) * 5 / 4);
    let (dentries, _) = tree.vfs.statistics().dentries;
    assert!(dentries <= BUDGET + SLACK, "MEM-1: {dentries}");
}

/// MEM-1: each byte of a long name counts, whatever becomes of the name, and is given back.
#[test]
fn long_names_count_exactly() {
    const LONG: usize = 128 + 64 + 8 + 255;
    let _one = ONE_AT_A_TIME.lock();
    let vfs = Vfs::with_budget(MemFs::new(), budget(BUDGET, BUDGET)).unwrap();
    let ctx = vfs.context(Credentials::root());
    let bytes = || vfs.statistics().dentries.1;
    let long = |n: u32| format!("/{n:0>255}");
    for n in 0..10 {
        drop(vfs.create(&ctx, long(n), 0o600).unwrap());
    }
    assert_eq!(bytes(), 10 * LONG, "MEM-1: the names");
    // The old name stays as a missing one.
    vfs.rename(&ctx, long(0), "/short").unwrap();
    assert_eq!(bytes(), 10 * LONG + 128, "MEM-1: moved");
    let (root, exchange) = (vfs.root(), RenameFlags::EXCHANGE);
    vfs.renameat2(&ctx, (&root, long(1)), (&root, "/short"), exchange)
        .unwrap();
    vfs.rename(&ctx, "/short", long(2)).unwrap();
    vfs.unlink(&ctx, long(3)).unwrap();
    assert_eq!(bytes(), 10 * LONG + 128, "MEM-1: and again");
    vfs.drop_caches();
    let left = vfs.statistics().dentries;
    assert_eq!(left, (0, 0), "MEM-1: none is left");
}

/// MEM-1: a budget of fewer inodes than names is kept to as well: an unused cached name does
/// not keep its inode in use.
#[test]
fn fewer_inodes_than_names_are_possible() {
    let _one = ONE_AT_A_TIME.lock();
    let mut tree = Walked::new(budget(BUDGET, BUDGET / 10), false);
    let mut most = 0;
    for n in 0..NAMES / 4 {
        tree.stat(&format!("/f{n}")).unwrap();
        most = most.max(tree.vfs.statistics().inodes.0);
    }
    assert!(most <= BUDGET / 10 + SLACK, "MEM-1: {most} inodes");
}

/// MEM-1: second chances end when nothing else can go: names that are all used again before
/// each scan stay within the budget as well.
#[test]
fn no_use_is_too_much_for_the_budget() {
    const BUDGET: usize = 1_000;
    let _one = ONE_AT_A_TIME.lock();
    let tree = Walked::new(budget(BUDGET, 2 * BUDGET), false);
    let stat = |n: usize, flags| tree.vfs.stat(&tree.ctx, format!("/f{n}"), flags);
    for new in 0..BUDGET + 300 {
        stat(new, FOLLOW).unwrap();
        if new >= BUDGET {
            (0..=new).for_each(|n| _ = stat(n, FOLLOW | LookupFlags::CACHED));
        }
        let dentries = tree.vfs.statistics().dentries.0;
        let most = BUDGET + BUDGET / 50 + 2;
        assert!(dentries <= most, "MEM-1: {new}: {dentries}");
    }
    let dentries = tree.vfs.statistics().dentries.0;
    assert!(dentries >= BUDGET * 9 / 10, "and uses it: {dentries}");
}

/// MEM-1: where few names are unused among many that were used again, as many go as come.
#[test]
fn the_few_that_are_unused_are_not_too_few() {
    const BUDGET: usize = 20_000;
    let _one = ONE_AT_A_TIME.lock();
    let mut tree = Walked::new(budget(BUDGET, 2 * BUDGET), false);
    let stat = |tree: &mut Walked, n: usize| _ = tree.stat(&format!("/f{n}")).unwrap();
    // Each is scanned once, and next to go.
    (0..2 * BUDGET).for_each(|n| stat(&mut tree, n));
    for n in (BUDGET..2 * BUDGET).filter(|n| n % 32 != 0) {
        stat(&mut tree, n);
    }
    for n in 2 * BUDGET..2 * BUDGET + 3_000 {
        stat(&mut tree, n);
        let dentries = tree.vfs.statistics().dentries.0;
        let most = BUDGET + BUDGET / 50 + 2;
        assert!(dentries <= most, "MEM-1: {n}: {dentries}");
    }
}

/// MEM-1: the budget in bytes is kept to when it is the smaller one.
#[test]
fn the_budget_of_bytes_holds() {
    let _one = ONE_AT_A_TIME.lock();
    const BYTES: usize = 4 << 20;
    let bytes = budget(1 << 20, 1 << 20).bytes(BYTES);
    let mut tree = Walked::new(bytes, false);
    for n in 0..NAMES {
        tree.stat(&format!("/d{}/f{n}", n / 10_000)).unwrap();
    }
    let stats = tree.vfs.statistics();
    let dentries = BYTES / 2 + SLACK * 128;
    assert!(stats.dentries.1 <= dentries, "MEM-1: {stats:?}");
    let inodes = BYTES / 2 + SLACK * 128;
    assert!(stats.inodes.1 <= inodes, "MEM-1: {stats:?}");
    let used = stats.dentries.1 + stats.inodes.1;
    // The half for inodes is used up: 160 bytes each here, and more for directories. A name beside
    // each takes 128, so nine tenths are the most.
    assert!(used >= BYTES * 7 / 8, "MEM-1: used up: {stats:?}");
    tree.assert_within(BYTES * 5 / 4 + 4 * rcu::Domain::BATCH_BYTES + (1 << 20));
}

/// MEM-1: LRU-1: the number of objects that reclaim scans is bounded by the number it frees, with
/// none, half, and nearly all of a full cache in use; with names or inodes as the tighter limit.
#[test]
fn reclaim_looks_at_what_can_go() {
    let _one = ONE_AT_A_TIME.lock();
    const BUDGET: usize = 2_000;
    for held in [0, BUDGET / 2, BUDGET - 100, 2 * BUDGET] {
        for (dentries, inodes) in [
            (BUDGET, BUDGET),
            (10 * BUDGET, BUDGET),
            (BUDGET, 10 * BUDGET),
        ] {
            let tree = Walked::new(budget(dentries, inodes), false);
            let (vfs, ctx) = (&tree.vfs, &tree.ctx);
            let names = |n: usize| vfs.lookup(ctx, format!("/d0/f{n}"), FOLLOW).unwrap();
            let places: Vec<_> = (0..held).map(names).collect();
            let before = vfs.statistics();
            for n in 0..8_000 {
                vfs.stat(ctx, format!("/d1/f{n}"), FOLLOW).unwrap();
            }
            let after = vfs.statistics();
            let scanned = after.scanned - before.scanned;
            let freed = after.dentries_evicted - before.dentries_evicted;
            // A scan passes over each object once and frees it the next time. An object in use
            // leaves the list at the first scan.
            let bound = 2 * freed + 2 * BUDGET as u64 + held as u64;
            assert!(
                scanned <= bound,
                "MEM-1: {scanned} for {freed}, {held} held"
            );
            let most = dentries.min(inodes).max(held);
            let cached = after.dentries.0.min(after.inodes.0);
            assert!(
                cached <= most + most / 50 + 40,
                "MEM-1: {after:?}, {held} held"
            );
            assert!(freed as usize >= 8_000 - most, "MEM-1: {freed}");
            drop(places);
            // The places were dropped: they are evicted like the other names.
            for n in 0..3 * BUDGET {
                vfs.stat(ctx, format!("/d2/f{n}"), FOLLOW).unwrap();
            }
            let most = dentries.min(inodes);
            let after = vfs.statistics();
            let cached = after.dentries.0.min(after.inodes.0);
            assert!(cached <= most + most / 50 + 40, "LRU-1: {after:?}");
        }
    }
}

/// MEM-1: dropping the names of a deep tree is one pass over the cache: each directory goes with
/// the last name in it.
#[test]
fn a_deep_tree_is_dropped_in_one_pass() {
    let _one = ONE_AT_A_TIME.lock();
    const WIDE: u64 = 2_000;
    let tree = Walked::new(budget(1 << 20, 1 << 20), false);
    let (vfs, ctx) = (&tree.vfs, &tree.vfs.context(Credentials::root()));
    let deep = Wrapped::new(Computed { descriptors: false });
    vfs.mount(ctx, "/d0", deep).unwrap();
    vfs.stat(ctx, format!("/d0{}", "/d1".repeat(500)), FOLLOW)
        .unwrap();
    for n in 0..WIDE {
        vfs.stat(ctx, format!("/f{n}"), FOLLOW).unwrap();
    }
    let before = vfs.statistics();
    vfs.umount(ctx, "/d0").unwrap();
    let after = vfs.statistics();
    assert_eq!(after.dentries.0, before.dentries.0 - 500, "{after:?}");
    let scanned = after.scanned - before.scanned;
    assert!(scanned < 3 * WIDE, "MEM-1: {scanned} for {WIDE} and 500");
    vfs.drop_caches();
    let left = vfs.statistics();
    assert_eq!(
        (left.dentries, left.inodes.0),
        ((0, 0), 1),
        "MEM-1: the root"
    );
}

/// MEM-1: inodes that were asked for by key do not go with their last names. Where there are too
/// many of them, as many names go as inodes, and not all.
#[test]
fn as_many_names_go_as_inodes() {
    let _one = ONE_AT_A_TIME.lock();
    const INODES: usize = 1_000;
    let tree = Walked::new(budget(100 * INODES, INODES), false);
    let (vfs, ctx) = (&tree.vfs, &tree.ctx);
    for n in 0..10 * INODES {
        let path = format!("/d0/f{n}");
        vfs.stat(ctx, &path, FOLLOW).unwrap();
        // The back end is asked again, and finds the inode by its key.
        vfs.invalidate(ctx, &path).unwrap();
        vfs.stat(ctx, &path, FOLLOW).unwrap();
        let stats = vfs.statistics();
        let most = INODES + INODES / 50 + 40;
        assert!(stats.inodes.0 <= most, "MEM-1: {stats:?}");
        assert!(stats.dentries.0 >= n.min(INODES / 2), "{n}: {stats:?}");
    }
}

/// MEM-1: held objects survive any walks meanwhile.
#[test]
fn what_is_in_use_survives() {
    let _one = ONE_AT_A_TIME.lock();
    let mut tree = Walked::new(budget(1_000, 1_000), false);
    let held = tree.vfs.lookup(&tree.ctx, "/d1/d2/d3", FOLLOW).unwrap();
    let open = tree.vfs.open(&tree.ctx, "/d4/f5", OpenFlags::READ).unwrap();
    let inside = tree.vfs.lookup(&tree.ctx, "/d6/d7", FOLLOW).unwrap();
    let inside = tree.ctx.clone().with_cwd(inside);
    for n in 0..20_000 {
        tree.stat(&format!("/d{}/f{n}", 10 + n / 100)).unwrap();
    }
    tree.vfs.drop_caches();
    // Each is found without asking, with the same attributes.
    let cached = FOLLOW | LookupFlags::CACHED;
    for (path, was) in [("/d1/d2/d3", held.attr()), ("/d4/f5", open.attr())] {
        let now = tree.vfs.lookup(&tree.ctx, path, cached).unwrap();
        assert_eq!(now.attr(), was, "MEM-1: {path}");
    }
    assert!(
        tree.vfs
            .lookup(&tree.ctx, "/d1/d2/d3", cached)
            .unwrap()
            .is_same_place(&held),
        "MEM-1: the same name"
    );
    let up = tree.vfs.stat(&inside, "..", cached).unwrap();
    assert_eq!(up.ino, tree.stat("/d6").unwrap().ino, "MEM-1: `..`");
    let mut bytes = [0; 8];
    open.read_at(&mut bytes, 0).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), open.attr().ino);
}

/// MEM-1: descriptors kept with inodes stay within the budget, but for a step of 32
/// and those in use.
#[test]
fn descriptors_stay_within_the_budget() {
    let _one = ONE_AT_A_TIME.lock();
    const FDS: usize = 500;
    let fds = budget(1 << 20, 1 << 20).fds(FDS);
    let mut tree = Walked::new(fds, true);
    let mut most = 0;
    for n in 0..20_000 {
        tree.stat(&format!("/d{}/f{n}", n / 100)).unwrap();
        most = most.max(tree.vfs.statistics().fds);
    }
    assert!(most <= FDS + 32, "MEM-1: {most} descriptors");
    let held: Vec<_> = (0..600)
        .map(|n| {
            tree.vfs
                .lookup(&tree.ctx, format!("/f{n}"), FOLLOW)
                .unwrap()
        })
        .collect();
    for n in 0..5_000 {
        tree.stat(&format!("/d/f{n}")).unwrap();
        let fds = tree.vfs.statistics().fds;
        assert!(fds <= held.len() + FDS, "MEM-1: {fds} with 600 in use");
    }
    drop((held, tree));
    rcu::barrier();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number(u64);

impl Key for Number {
    fn hash(&self) -> u64 {
        self.0
    }
}

/// MEM-1: the data that hangs on an inode counts while it waits for readers, too.
#[test]
fn heavy_inodes_that_have_left_do_not_pile_up() {
    const WEIGHT: usize = 32 << 10;
    const BYTES: usize = 1 << 20;
    let _one = ONE_AT_A_TIME.lock();
    rcu::barrier();
    let before = taken();
    let cache = InodeCache::<Number, Vec<u8>>::builder()
        .inodes(BYTES / WEIGHT)
        .bytes(BYTES)
        .weight(|inode| inode.get().map_or(0, Vec::len))
        .build();
    let mut most = 0;
    for ino in 0..3_000 {
        let Ok(inode::Iget::New(new)) = cache.iget(Number(ino)) else {
            panic!("{ino} is new");
        };
        let inode = new.init(vec![1; WEIGHT]);
        if ino % 2 == 0 {
            inode.dont_cache();
        }
        drop(inode);
        most = most.max(taken().saturating_sub(before));
    }
    drop(cache);
    rcu::barrier();
    let room = 2 * BYTES + 64 * WEIGHT + 4 * rcu::Domain::BATCH_BYTES + (1 << 20);
    assert!(most <= room, "MEM-1: {most} bytes, of {room}");
}

/// MEM-1: all of it is given back with the tree.
#[test]
fn nothing_stays_behind() {
    let _one = ONE_AT_A_TIME.lock();
    let mut left = Vec::new();
    for _ in 0..3 {
        let mut tree = Walked::new(budget(BUDGET, BUDGET), true);
        for n in 0..NAMES / 10 {
            tree.stat(&format!("/d{}/f{n}", n / 1_000)).unwrap();
        }
        let before = tree.before;
        drop(tree);
        rcu::barrier();
        left.push(taken().saturating_sub(before));
    }
    // Slots and pages kept for the next objects, free pages (MEM-2), and counters of
    // threads.
    assert!(left[2] <= 1 << 20, "MEM-1: {left:?} bytes left");
}
