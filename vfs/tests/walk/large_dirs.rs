//! Directories with very many names, of a back end that computes them.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rcuwalk::{
    Budget, Caller, Context, Credentials, Emit, Entries, Error, FileType, Inode, InodeRef,
    LookupFlags, Name, NewFile, OpenFlags, RawEntry, Result, SuperBlock, Vfs,
};
use rcuwalk_testkit::{StopOnDrop, Wrapped, Wrapper, iget, setting};

/// A root with the files `0000000` and so on, and those that have been made.
struct Large {
    count: u64,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    made: Mutex<BTreeSet<u64>>,
    /// How often each name was asked for.
    asked: Vec<AtomicU8>,
    listings: AtomicU64,
}

impl Large {
    fn number(&self, name: Name<'_>) -> Option<u64> {
        let text = str::from_utf8(name.as_bytes()).ok()?;
        let number = text.parse().ok()?;
        let is_there = number < self.count || self.state.made.lock().unwrap().contains(&number);
        (is_there && text.len() == 7).then_some(number)
    }
}

impl Wrapper for Large {
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        iget(sb, 1, FileType::Directory)
    }
    fn caches_listings(&self) -> bool {
        true
    }
    fn lists_all_names(&self, _: &SuperBlock, _: &Inode) -> bool {
        true
    }
    fn lookup(&self, sb: &SuperBlock, _: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let number = self.number(name);
        if let Some(asked) = number.and_then(|number| self.state.asked.get(number as usize)) {
            asked.fetch_add(1, Relaxed);
            // The other threads come meanwhile.
            thread::yield_now();
        }
        let inode = number.map(|number| iget(sb, number + 2, FileType::Regular));
        inode.transpose()
    }
    fn read_dir(&self, _: &SuperBlock, _: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        self.state.listings.fetch_add(1, Relaxed);
        let made = self.state.made.lock().unwrap().clone();
        let made = made.range(from.max(self.count)..).copied();
        let mut name = *b"0000000";
        for number in (from..self.count).chain(made) {
            let mut rest = number;
            for digit in name.iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
            let entry = RawEntry {
                name: &name,
                ino: number + 2,
                kind: Some(FileType::Regular),
                next: number + 1,
            };
            if emit.entry(entry) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
    fn create(
        &self,
        by: &Caller<'_>,
        _: &Inode,
        name: Name<'_>,
        _: &NewFile<'_>,
    ) -> Result<InodeRef> {
        let text = str::from_utf8(name.as_bytes()).ok();
        let number = text.and_then(|text| text.parse().ok());
        let number: u64 = number.ok_or(Error::Invalid)?;
        self.state.made.lock().unwrap().insert(number);
        iget(by.sb, number + 2, FileType::Regular)
    }
}

fn mounted(count: u64, budget: Budget) -> (Vfs, Context, Arc<State>) {
    let state = Arc::new(State {
        asked: (0..count.min(10_000)).map(|_| AtomicU8::new(0)).collect(),
        ..State::default()
    });
    let fs = Large {
        count,
        state: state.clone(),
    };
    let vfs = Vfs::with_budget(Wrapped::new(fs), budget).unwrap();
    let ctx = vfs.context(Credentials::root());
    (vfs, ctx, state)
}

/// Lists the root, and returns how many entries there are, each of which comes once, in order.
fn list(vfs: &Vfs, ctx: &Context, mut after_each: impl FnMut()) -> u64 {
    let dir = vfs.open(ctx, "/", OpenFlags::READ).unwrap();
    let (mut buf, mut position, mut count) = (vec![0; 32 << 10], 0, 0);
    loop {
        let used = dir.fill(position, &mut buf).unwrap();
        if used == 0 {
            return count;
        }
        for entry in Entries::new(&buf[..used]) {
            assert!(entry.next > position, "DIR-1: {position}");
            position = entry.next;
            count += 1;
        }
        after_each();
    }
}

const LONG: u64 = 600_000;

/// A create of another name waits for no listing: one that is under way holds no lock between two
/// batches.
#[test]
fn a_create_does_not_wait_for_a_listing_under_way() {
    let (vfs, ctx, state) = mounted(LONG, Budget::default());
    let mut listing = vfs.read_dir(&ctx, "/").unwrap();
    let listed = listing.by_ref().take(10_000).count() as u64;
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        let (vfs, ctx) = (&vfs, &ctx);
        scope.spawn(move || {
            vfs.create(ctx, "0700000", 0o644).unwrap();
            done.send(()).unwrap();
        });
        let created = is_done.recv_timeout(Duration::from_secs(60));
        let before_the_end = state.listings.load(Relaxed);
        // Whatever came of it: the thread must end.
        let rest = listing.inspect(|entry| assert!(entry.is_ok())).count() as u64;
        assert_eq!(created, Ok(()), "the create waits for the listing");
        assert!(state.listings.load(Relaxed) > before_the_end + 100);
        assert_eq!(listed + rest, LONG + 1, "DIR-1");
    });
}

/// A create gets its turn among listings that follow each other without a pause.
#[test]
fn a_create_is_not_starved_by_listings() {
    // None is cached: each batch asks the back end, with the directory held shared.
    let (vfs, ctx, _) = mounted(20_000, Budget::default().listings(0));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    assert!(list(&vfs, &ctx, || ()) >= 20_000, "DIR-1");
                }
            });
        }
        // They go on until it is through, however long that takes.
        let _stop = StopOnDrop(&done);
        for n in 0..30 {
            vfs.create(&ctx, format!("{:07}", 700_000 + n), 0o644)
                .unwrap();
        }
    });
    assert_eq!(list(&vfs, &ctx, || ()), 20_030, "DIR-1");
}

/// DENTRY-2: threads that list a directory and look up the same names, all at once and with nothing
/// cached, ask the back end for each name once.
#[test]
fn a_storm_asks_for_each_name_once() {
    let (vfs, ctx, state) = mounted(5_000, Budget::default());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for entry in vfs.read_dir(&ctx, "/").unwrap() {
                    let entry = entry.unwrap();
                    let attr = vfs.stat(&ctx, &*entry.name, LookupFlags::empty());
                    assert_eq!(attr.unwrap().ino, entry.ino);
                }
            });
        }
    });
    for (name, asked) in state.asked.iter().take(5_000).enumerate() {
        assert_eq!(asked.load(Relaxed), 1, "DENTRY-2: {name}");
    }
}

/// MEM-1: a directory with millions of names (`RCUWALK_DIR_ENTRIES`) stays within the budget of
/// listings while it is listed, again and again; where there is room for it, an entry takes 40 bytes
/// beside its name at most.
#[test]
fn millions_of_names_stay_within_the_budget() {
    let count = setting("RCUWALK_DIR_ENTRIES", 300_000);
    // A third of what its records take.
    let limit = 10 * count as usize;
    let (vfs, ctx, _) = mounted(count, Budget::default().listings(limit));
    for _ in 0..2 {
        let listed = list(&vfs, &ctx, || {
            let (_, bytes) = vfs.statistics().listings;
            assert!(bytes <= limit, "MEM-1: {bytes} of {limit}");
        });
        assert_eq!(listed, count, "DIR-1");
    }

    let (vfs, ctx, state) = mounted(count, Budget::default().listings(100 * count as usize));
    assert_eq!(list(&vfs, &ctx, || ()), count, "DIR-1");
    let missing = vfs.stat(&ctx, "/missing", LookupFlags::empty());
    assert!(matches!(missing, Err(Error::NotFound)));
    assert_eq!(vfs.statistics().missing_by_listing, 1, "DIR-2");
    let before = state.listings.load(Relaxed);
    assert_eq!(list(&vfs, &ctx, || ()), count, "DIR-1");
    assert_eq!(state.listings.load(Relaxed), before, "it is cached");
    let (_, bytes) = vfs.statistics().listings;
    let each = bytes as f64 / count as f64 - 7.0;
    assert!(each <= 40.0, "MEM-1: {each:.1} bytes beside the name");
}
