//! Names that change all the time behind the cache: how old an answer may be.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{FOLLOW, REF, stress_ops};
use rcuwalk::{
    Credentials, Error, FileType, Freshness, Inode, InodeRef, Name, Result, SuperBlock, Vfs,
};
use rcuwalk_testkit::{Wrapped, Wrapper, iget};

const ROOT: u64 = 1;

/// One name, which stands for another file each time that `now` changes.
struct Changing {
    freshness: Freshness,
    now: Arc<AtomicU64>,
}

impl Wrapper for Changing {
    fn freshness(&self) -> Freshness {
        self.freshness
    }
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        iget(sb, ROOT, FileType::Directory)
    }
    fn lookup(&self, sb: &SuperBlock, _: &Inode, _: Name<'_>) -> Result<Option<InodeRef>> {
        iget(sb, self.now.load(SeqCst), FileType::Regular).map(Some)
    }
    fn revalidate(
        &self,
        _: &SuperBlock,
        _: &Inode,
        _: Name<'_>,
        inode: Option<&Inode>,
    ) -> Result<bool> {
        let now = self.now.load(SeqCst);
        Ok(inode.is_some_and(|inode| inode.attr().ino == now))
    }
}

/// Ends all threads with the one that has it, also if that panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Two threads ask, one changes, and another invalidates the name now and then. `begin` is
/// called before each walk, and `is_right` with its result and the number that was found.
fn ask_while_it_changes<T>(
    freshness: Freshness,
    walks: usize,
    change: impl Fn(&AtomicU64) + Sync,
    begin: impl Fn(&AtomicU64) -> T + Sync,
    check: impl Fn(T, u64) + Sync,
) {
    let now = Arc::new(AtomicU64::new(ROOT + 1));
    let fs = Changing {
        freshness,
        now: now.clone(),
    };
    let vfs = Vfs::new(Wrapped::new(fs)).unwrap();
    let ctx = vfs.context(Credentials::root());
    let (vfs, ctx, now) = (&vfs, &ctx, &*now);
    let (change, begin, check) = (&change, &begin, &check);
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            let _done = Done(done);
            let mut round = 0_u32;
            while !done.load(SeqCst) {
                change(now);
                round = round.wrapping_add(1);
                if round.is_multiple_of(16) {
                    let _ = vfs.invalidate(ctx, "/name");
                }
                thread::yield_now();
            }
        });
        let askers: Vec<_> = [FOLLOW, REF]
            .into_iter()
            .map(|flags| {
                scope.spawn(move || {
                    let _done = Done(done);
                    for walk in 0..walks / 2 {
                        // So that both ask about a change just made.
                        if walk % 3 == 0 {
                            change(now);
                        }
                        let before = begin(now);
                        match vfs.stat(ctx, "/name", flags) {
                            Ok(attr) => check(before, attr.ino),
                            // It changed eight times while one walk asked.
                            Err(Error::Stale) => {}
                            Err(err) => panic!("{err}"),
                        }
                    }
                })
            })
            .collect();
        askers.into_iter().for_each(|asker| asker.join().unwrap());
    });
}

/// FRESH-2: under `EachUse` a walk finds nothing older than its own beginning, whatever other
/// threads drop, find and invalidate meanwhile.
#[test]
fn a_name_revalidated_at_each_use_is_never_stale() {
    ask_while_it_changes(
        Freshness::EachUse,
        stress_ops(200_000, 2_000_000),
        |now| _ = now.fetch_add(1, SeqCst),
        |now| now.load(SeqCst),
        |before, seen| assert!(seen >= before, "FRESH-2: {seen}, and it was {before}"),
    );
}

/// FRESH-2: under a time to live, nothing that was replaced longer ago than that.
#[test]
fn a_name_is_outdated_for_at_most_its_ttl() {
    const TTL: Duration = Duration::from_millis(1);
    // The cache's clock ticks as the kernel's does, up to every 10 ms.
    const TICK: Duration = Duration::from_millis(12);
    let start = Instant::now();
    // When each number was replaced by the next one.
    let replaced: RwLock<Vec<Duration>> = RwLock::default();
    ask_while_it_changes(
        Freshness::Ttl(TTL),
        stress_ops(200_000, 2_000_000),
        |now| {
            let mut replaced = replaced.write().unwrap();
            now.fetch_add(1, SeqCst);
            replaced.push(start.elapsed());
        },
        |_| start.elapsed(),
        |before, seen| {
            let replaced = replaced.read().unwrap();
            let when = replaced.get((seen - ROOT - 1) as usize);
            let is_fresh = when.is_none_or(|when| *when + TTL + TICK >= before);
            assert!(
                is_fresh,
                "FRESH-2: {seen} at {before:?}, replaced at {when:?}"
            );
        },
    );
}
