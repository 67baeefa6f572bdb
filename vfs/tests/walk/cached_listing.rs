//! Cached listings: what they save, and that they are right beside changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rcuwalk::{
    Budget, Context, Credentials, Entries, Error, FileSystem, Freshness, Inode, LookupFlags,
    OpenFlags, Result, SuperBlock, Vfs,
};
use rcuwalk_memfs::MemFs;
use rcuwalk_testkit::{Call, InVfs, Rng, Wrapped, Wrapper, check_listings, setting};

/// A memfs whose listings are cached, and which counts what it is asked.
struct Cached {
    inner: MemFs,
    calls: Arc<Calls>,
    freshness: Freshness,
}

#[derive(Default)]
struct Calls {
    listings: AtomicUsize,
    lookups: AtomicUsize,
    /// Changes are made and then fail.
    fails: AtomicBool,
    lists_not_all: AtomicBool,
    /// What the back end says of all directories; 0 for none.
    version: AtomicU64,
}

impl Wrapper for Cached {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.inner)
    }
    fn caches_listings(&self) -> bool {
        true
    }
    fn freshness(&self) -> Freshness {
        self.freshness
    }
    fn listing_version(&self, _: &SuperBlock, _: &Inode) -> Option<u64> {
        let version = self.calls.version.load(Relaxed);
        (version > 0 || self.freshness == Freshness::Always).then_some(version)
    }
    fn lists_all_names(&self, _: &SuperBlock, _: &Inode) -> bool {
        !self.calls.lists_not_all.load(Relaxed)
    }
    fn around<T>(&self, call: &Call<'_>, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        match call.method {
            "read_dir" => self.calls.listings.fetch_add(1, Relaxed),
            "lookup" => self.calls.lookups.fetch_add(1, Relaxed),
            _ => 0,
        };
        let answer = ask();
        let is_change = ["create", "link", "unlink", "rename"].contains(&call.method);
        match is_change && self.calls.fails.load(Relaxed) {
            true => Err(Error::NoSpace),
            false => answer,
        }
    }
}

fn mounted(budget: Budget) -> (Vfs, Context, Arc<Calls>) {
    mounted_from(MemFs::new(), budget)
}

fn mounted_from(inner: MemFs, budget: Budget) -> (Vfs, Context, Arc<Calls>) {
    mounted_as(Freshness::Always, inner, budget)
}

fn mounted_as(freshness: Freshness, inner: MemFs, budget: Budget) -> (Vfs, Context, Arc<Calls>) {
    let calls = Arc::<Calls>::default();
    let fs = Cached {
        inner,
        calls: calls.clone(),
        freshness,
    };
    let vfs = Vfs::with_budget(Wrapped::new(fs), budget).unwrap();
    let ctx = vfs.context(Credentials::root());
    (vfs, ctx, calls)
}

fn is_there(vfs: &Vfs, ctx: &Context, path: &str) -> bool {
    match vfs.stat(ctx, path, LookupFlags::empty()) {
        Ok(_) => true,
        Err(Error::NotFound) => false,
        Err(err) => panic!("{path}: {err}"),
    }
}

fn names(vfs: &Vfs, ctx: &Context, path: &str) -> Vec<String> {
    let entries = vfs.read_dir(ctx, path).unwrap();
    let text = |name: Box<[u8]>| String::from_utf8(name.into()).unwrap();
    entries.map(|entry| text(entry.unwrap().name)).collect()
}

/// A second listing, and lookups of missing names in a directory that has been listed, ask the
/// back end nothing and add no names to the cache.
#[test]
fn what_is_known_is_not_asked_for() {
    let (vfs, ctx, calls) = mounted(Budget::default());
    vfs.mkdir(&ctx, "/d", 0o755).unwrap();
    for n in 0..5_000 {
        vfs.create(&ctx, format!("/d/{n}"), 0o644).unwrap();
    }
    let first = names(&vfs, &ctx, "/d");
    assert_eq!(first.len(), 5_000);
    let before = (calls.listings.load(Relaxed), calls.lookups.load(Relaxed));
    let dentries = vfs.statistics().dentries.0;
    assert_eq!(names(&vfs, &ctx, "/d"), first);
    let dir = vfs.open(&ctx, "/d", OpenFlags::READ).unwrap();
    let (mut buf, mut position, mut filled) = (vec![0; 3_000], 0, Vec::new());
    loop {
        let used = dir.fill(position, &mut buf).unwrap();
        if used == 0 {
            break;
        }
        for entry in Entries::new(&buf[..used]) {
            filled.push(String::from_utf8(entry.name.to_vec()).unwrap());
            position = entry.next;
        }
    }
    assert_eq!(filled, first);
    for n in 0..5_000 {
        assert!(!is_there(&vfs, &ctx, &format!("/d/missing{n}")));
        assert!(is_there(&vfs, &ctx, &format!("/d/{n}")));
    }
    let after = (calls.listings.load(Relaxed), calls.lookups.load(Relaxed));
    assert_eq!(after, before, "nothing was asked");
    assert_eq!(vfs.statistics().dentries.0, dentries, "no name was added");
    assert_eq!(vfs.statistics().missing_by_listing, 5_000);
    // Removed names are missing by the listing as well, and it stays exact.
    vfs.unlink(&ctx, "/d/17").unwrap();
    let listings = calls.listings.load(Relaxed);
    let rest = names(&vfs, &ctx, "/d");
    assert_eq!(rest.len(), 4_999);
    assert!(!rest.contains(&"17".to_owned()));
    assert_eq!(calls.listings.load(Relaxed), listings);
}

/// DIR-2: where a lookup finds more than is listed, a listing does not answer for missing names.
#[test]
fn a_back_end_that_lists_not_all_is_asked() {
    let (vfs, ctx, calls) = mounted(Budget::default());
    calls.lists_not_all.store(true, Relaxed);
    vfs.create(&ctx, "/file", 0o644).unwrap();
    assert_eq!(names(&vfs, &ctx, "/").len(), 1);
    assert!(!is_there(&vfs, &ctx, "/missing"));
    assert_eq!(vfs.statistics().missing_by_listing, 0, "DIR-2");
    assert!(calls.lookups.load(Relaxed) > 0, "DIR-2");
}

/// DIR-2: a change that was made and reported as failed is seen.
#[test]
fn a_change_that_fails_drops_the_listing() {
    let (vfs, ctx, calls) = mounted(Budget::default());
    vfs.create(&ctx, "/old", 0o644).unwrap();
    assert_eq!(names(&vfs, &ctx, "/"), ["old"]);
    assert!(!is_there(&vfs, &ctx, "/new"));
    calls.fails.store(true, Relaxed);
    assert!(vfs.create(&ctx, "/new", 0o644).is_err());
    calls.fails.store(false, Relaxed);
    assert!(is_there(&vfs, &ctx, "/new"), "DIR-2");
    assert_eq!(names(&vfs, &ctx, "/").len(), 2);
    calls.fails.store(true, Relaxed);
    assert!(vfs.rename(&ctx, "/new", "/newer").is_err());
    calls.fails.store(false, Relaxed);
    assert!(is_there(&vfs, &ctx, "/newer"), "DIR-2");
    assert!(!is_there(&vfs, &ctx, "/new"), "DIR-2");
}

/// DIR-1 and DIR-2: creates, unlinks, links and renames of all kinds, beside listings that stop
/// and go on, and lookups of any name, for caches from large to none, and for memfs as it is.
#[test]
fn a_cached_listing_is_exact_beside_changes() {
    let budgets = [
        Budget::default(),
        Budget::default().dentries(20).inodes(20),
        Budget::default().dentries(20).inodes(20).listings(2_000),
        Budget::default().listings(0),
    ];
    let steps = setting("RCUWALK_LISTING_STEPS", 6_000) as usize;
    let mut answered = 0;
    for (number, budget) in budgets.into_iter().enumerate() {
        let (vfs, _, _) = mounted(budget);
        check_listings(&InVfs::new(&vfs), &mut Rng::new(number as u64), steps);
        let statistics = vfs.statistics();
        answered += statistics
            .missing_by_listing
            .min(statistics.listed_from_cache);
    }
    assert!(answered > 20, "the cache took part: {answered}");
    let memfs = Vfs::new(MemFs::new()).unwrap();
    check_listings(&InVfs::new(&memfs), &mut Rng::new(4), steps);
}

/// MEM-1: an entry takes 40 bytes beside its name at most, with the index of names.
#[test]
fn an_entry_takes_forty_bytes_and_its_name() {
    for (count, length) in [(20_000, 4), (20_000, 12), (15_000, 30), (29_000, 11)] {
        let (vfs, ctx, _) = mounted(Budget::default());
        for n in 0..count {
            let name = format!("/{n:0>length$}");
            vfs.create(&ctx, name, 0o644).unwrap();
        }
        let name = if length == 4 { 5 } else { length };
        assert_eq!(names(&vfs, &ctx, "/").len(), count);
        let without = vfs.statistics().listings.1 / count;
        assert!(without <= 27 + name, "MEM-1: {without} without an index");
        assert!(!is_there(&vfs, &ctx, "/missing"));
        let (dirs, bytes) = vfs.statistics().listings;
        assert_eq!(dirs, 1);
        let each = bytes / count - name;
        assert!(each <= 40, "MEM-1: {each} bytes beside {name}");
    }
}

/// MEM-1: cached listings stay within their budget, those of directories that are gone go, and a
/// directory that is too long is listed all the same.
#[test]
fn listings_stay_within_their_budget() {
    let limit = 100_000;
    let (vfs, ctx, calls) = mounted(Budget::default().listings(limit));
    for dir in 0..50 {
        vfs.mkdir(&ctx, format!("/{dir}"), 0o755).unwrap();
        for n in 0..200 {
            vfs.create(&ctx, format!("/{dir}/{n}"), 0o644).unwrap();
        }
    }
    vfs.mkdir(&ctx, "/long", 0o755).unwrap();
    for n in 0..10_000 {
        vfs.create(&ctx, format!("/long/{n}"), 0o644).unwrap();
    }
    for _ in 0..3 {
        for dir in 0..50 {
            assert_eq!(names(&vfs, &ctx, &format!("/{dir}")).len(), 200);
            let (dirs, bytes) = vfs.statistics().listings;
            assert!(bytes <= limit, "MEM-1: {bytes}");
            assert!(dir < 10 || dirs > 5, "some are kept: {dirs}");
        }
        assert_eq!(names(&vfs, &ctx, "/long").len(), 10_000);
        assert!(vfs.statistics().listings.1 <= limit, "MEM-1");
    }
    // The last ones are kept, and the most used one is.
    let before = calls.listings.load(Relaxed);
    assert_eq!(names(&vfs, &ctx, "/49").len(), 200);
    assert_eq!(calls.listings.load(Relaxed), before);
    // Names that are made make it longer, and nobody lists it again.
    assert!(!is_there(&vfs, &ctx, "/49/missing"));
    for n in 200..8000 {
        vfs.create(&ctx, format!("/49/{n}"), 0o644).unwrap();
        let (_, bytes) = vfs.statistics().listings;
        assert!(bytes <= limit, "MEM-1: {bytes} after {n} names");
    }
    assert!(is_there(&vfs, &ctx, "/49/7999"));
    vfs.drop_caches();
    assert_eq!(vfs.statistics().listings, (0, 0), "MEM-1");
}

/// DIR-2: a name that others have made is not missing again once a change has met it, also when the
/// dentry has left the cache and no report has come yet.
#[test]
fn a_name_that_a_change_has_met_stays() {
    for has_index in [false, true] {
        let fs = MemFs::new();
        let behind = fs.clone();
        let (vfs, ctx, _) = mounted_from(fs, Budget::default().dentries(10).inodes(10));
        for n in 0..50 {
            vfs.create(&ctx, format!("/{n}"), 0o644).unwrap();
        }
        let list = || {
            assert!(names(&vfs, &ctx, "/").len() >= 50);
            assert!(!has_index || !is_there(&vfs, &ctx, "/missing"));
        };
        let evict = || (10..50).all(|n| is_there(&vfs, &ctx, &format!("/{n}")));
        list();
        let make = |name: &str| {
            let new = rcuwalk_memfs::file(0o644);
            behind.add(behind.root(), name.as_bytes(), new).unwrap();
        };
        make("met");
        let taken = vfs.mkdir(&ctx, "/met", 0o755);
        assert!(matches!(taken, Err(Error::Exists)), "{taken:?}");
        assert!(evict());
        assert!(is_there(&vfs, &ctx, "/met"), "DIR-2: {has_index}");

        list();
        make("replaced");
        vfs.rename(&ctx, "/0", "/replaced").unwrap();
        assert!(evict());
        assert!(is_there(&vfs, &ctx, "/replaced"), "DIR-2: {has_index}");
        assert!(!is_there(&vfs, &ctx, "/0"), "DIR-2: {has_index}");
    }
}

/// DIR-2: beside listings, evictions and other changes, a name that has been made is found until
/// it is removed, and not after that.
#[test]
fn a_name_is_there_from_its_making_to_its_end() {
    let budget = Budget::default().dentries(10).inodes(10).listings(50_000);
    let (vfs, ctx, _) = mounted(budget);
    vfs.mkdir(&ctx, "/d", 0o755).unwrap();
    for n in 0..300 {
        vfs.create(&ctx, format!("/d/stays{n}"), 0o644).unwrap();
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    let all = names(&vfs, &ctx, "/d");
                    let stay = all.iter().filter(|name| name.starts_with("stays"));
                    assert_eq!(stay.count(), 300, "DIR-1");
                }
            });
        }
        let changers: Vec<_> = (0..2)
            .map(|thread| {
                let (vfs, ctx) = (&vfs, &ctx);
                scope.spawn(move || {
                    for round in 0..300 {
                        let path = format!("/d/{thread}-{}", round % 7);
                        let other = format!("/d/{thread}+{}", round % 5);
                        assert!(!is_there(vfs, ctx, &path), "DIR-2: {path} is not there");
                        vfs.create(ctx, &path, 0o644).unwrap();
                        // Pushes it out of the small cache of names.
                        for n in 0..20 {
                            assert!(is_there(vfs, ctx, &format!("/d/stays{n}")), "DIR-2");
                        }
                        assert!(is_there(vfs, ctx, &path), "DIR-2: {path} is there");
                        vfs.rename(ctx, &path, &other).unwrap();
                        assert!(!is_there(vfs, ctx, &path), "DIR-2: {path} has moved");
                        assert!(is_there(vfs, ctx, &other), "DIR-2: {other} is there");
                        vfs.unlink(ctx, &other).unwrap();
                        assert!(!is_there(vfs, ctx, &other), "DIR-2: {other} is gone");
                    }
                })
            })
            .collect();
        let ends: Vec<_> = changers.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Relaxed);
        assert!(ends.into_iter().all(|end| end.is_ok()), "DIR-2");
    });
    assert!(
        vfs.statistics().missing_by_listing > 0,
        "the cache took part"
    );
}

/// How often the back end is asked to list.
fn listings(calls: &Calls, list: impl FnOnce() -> usize, expected: usize) -> usize {
    let before = calls.listings.load(Relaxed);
    assert_eq!(list(), expected);
    calls.listings.load(Relaxed) - before
}

/// MEM-1: a directory that is too long is cached once it is short enough, and one that is changed is
/// not too long because its old listing is still there.
#[test]
fn a_directory_is_too_long_while_it_is() {
    let limit = 100_000;
    let (vfs, ctx, calls) = mounted(Budget::default().listings(limit));
    let list = || names(&vfs, &ctx, "/").len();
    let bytes = || vfs.statistics().listings.1;
    for n in 0..8_000 {
        vfs.create(&ctx, format!("/{n:05}"), 0o644).unwrap();
    }
    for _ in 0..3 {
        assert!(listings(&calls, list, 8_000) > 0);
        assert!(bytes() <= limit, "MEM-1");
    }
    // Each record has 32 bytes: now 64,000 of them.
    for n in 2_000..8_000 {
        vfs.unlink(&ctx, format!("/{n:05}")).unwrap();
    }
    assert!(listings(&calls, list, 2_000) > 0, "measured");
    assert!(listings(&calls, list, 2_000) > 0, "built");
    assert_eq!(listings(&calls, list, 2_000), 0, "cached");
    for n in 0..10 {
        // The old listing has all names but not this one's position, and the new one replaces it.
        vfs.create(&ctx, format!("/new{n}"), 0o644).unwrap();
        let count = 2_001 + n;
        assert!(listings(&calls, list, count) > 0, "built");
        assert_eq!(listings(&calls, list, count), 0, "cached");
        assert!(bytes() <= limit, "MEM-1");
    }
}

/// FRESH-1: where nothing is told of changes, a listing from the start is confirmed by the directory's
/// version. Under a time to live it answers for missing names, as a name would that was asked for then.
#[test]
fn a_version_tells_whether_a_listing_is_right() {
    let hour = Freshness::Ttl(Duration::from_secs(3600));
    for freshness in [hour, Freshness::EachUse] {
        let fs = MemFs::new();
        let behind = fs.clone();
        let (vfs, ctx, calls) = mounted_as(freshness, fs, Budget::default());
        let make = |name: &str| {
            let new = rcuwalk_memfs::file(0o644);
            behind.add(behind.root(), name.as_bytes(), new).unwrap();
        };
        for n in 0..3_000 {
            make(&format!("a name of thirty bytes and {n:04}"));
        }
        let list = || names(&vfs, &ctx, "/").len();
        for _ in 0..2 {
            assert!(listings(&calls, list, 3_000) > 0, "there is no version");
            assert_eq!(vfs.statistics().listings, (0, 0));
        }
        calls.version.store(1, Relaxed);
        assert!(listings(&calls, list, 3_000) > 0);
        for _ in 0..3 {
            assert_eq!(listings(&calls, list, 3_000), 0, "{freshness:?}");
        }
        let lookups = calls.lookups.load(Relaxed);
        assert!(!is_there(&vfs, &ctx, "/missing"));
        let has_asked = calls.lookups.load(Relaxed) > lookups;
        assert_eq!(has_asked, freshness == Freshness::EachUse);
        // A change shows in the next listing, and one that is under way goes on from its position.
        let mut under_way = vfs.read_dir(&ctx, "/").unwrap();
        under_way.next().unwrap().unwrap();
        make("new");
        calls.version.store(2, Relaxed);
        assert!((2_999..=3_000).contains(&under_way.count()), "DIR-1");
        assert!(listings(&calls, list, 3_001) > 0, "FRESH-1");
        assert!(is_there(&vfs, &ctx, "/new"), "FRESH-1");
        assert_eq!(listings(&calls, list, 3_001), 0);
        // A change while it is being built: it is not kept.
        make("newer");
        calls.version.store(3, Relaxed);
        let mut under_way = vfs.read_dir(&ctx, "/").unwrap();
        under_way.next().unwrap().unwrap();
        make("newest");
        calls.version.store(4, Relaxed);
        assert!((3_001..=3_002).contains(&under_way.count()), "DIR-1");
        assert!(listings(&calls, list, 3_003) > 0, "FRESH-1");
        assert_eq!(listings(&calls, list, 3_003), 0);
    }
}

/// A listing that could never be used is not built: in a directory that is not watched.
#[test]
fn a_listing_that_is_never_fresh_is_not_kept() {
    let (vfs, ctx, calls) = mounted_as(Freshness::Watched, MemFs::new(), Budget::default());
    calls.version.store(1, Relaxed);
    vfs.create(&ctx, "/file", 0o644).unwrap();
    for _ in 0..3 {
        assert_eq!(names(&vfs, &ctx, "/").len(), 1);
        assert_eq!(vfs.statistics().listings, (0, 0));
    }
}
