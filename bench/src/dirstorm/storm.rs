//! A cold storm: each thread lists each directory and looks up each name in it.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::{Budget, FileSystem, Freshness, Vfs};
use rcuwalk_ext4::Ext4;
use rcuwalk_hostfs::HostFs;

use super::place::{Place, dir_name};
use super::{Dirstorm, DirstormError};
use crate::dir::Dir;
use crate::image::kernel::{Forget, drop_caches};

/// A contender of the storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stormer {
    Kernel,
    /// Over the kernel's mount, so the kernel looks everything up as well.
    Hostfs,
    /// From the image itself.
    Image,
}

/// In each round's order; the first one is what the others are compared with.
pub(super) const STORMERS: [Stormer; 3] = [Stormer::Kernel, Stormer::Hostfs, Stormer::Image];

impl Stormer {
    pub(super) fn name(self) -> &'static str {
        match self {
            Stormer::Kernel => "kernel",
            Stormer::Hostfs => "hostfs on ext4",
            Stormer::Image => "ext4 image",
        }
    }
}

/// Whether the image's blocks are cached when the storm begins. Names and inodes never are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    Cached,
    Cold,
}

/// The result of one turn.
pub(super) struct Turn {
    pub(super) elapsed: Duration,
    /// Names that ours have asked the back end for.
    pub(super) asked: Option<u64>,
    seen: Seen,
}

/// What was looked up, in whatever order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) lookups: u64,
    /// Lookups that found another inode number than the listing had.
    others: u64,
    checksum: u64,
}

impl Seen {
    fn add(&mut self, dir: u64, name: &[u8], listed: u64, found: u64) {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(dir);
        hasher.write(name);
        hasher.write_u64(found);
        self.lookups += 1;
        self.others += u64::from(listed != found);
        self.checksum = self.checksum.wrapping_add(hasher.finish());
    }

    fn and(self, other: Seen) -> Seen {
        Seen {
            lookups: self.lookups + other.lookups,
            others: self.others + other.others,
            checksum: self.checksum.wrapping_add(other.checksum),
        }
    }
}

pub(super) fn turn(
    bench: &Dirstorm,
    stormer: Stormer,
    blocks: Blocks,
    place: &Place,
) -> Result<Turn, DirstormError> {
    let run = || {
        let (image, mount) = place.image()?;
        let forget = match blocks {
            Blocks::Cached => Forget::Inodes,
            Blocks::Cold => Forget::Everything,
        };
        drop_caches(forget, image)?;
        match stormer {
            Stormer::Kernel => {
                let (elapsed, seen) =
                    storm(bench, |dir| Dir::of_kernel(&mount.join(dir_name(dir))))?;
                Ok(Turn {
                    elapsed,
                    asked: None,
                    seen,
                })
            }
            Stormer::Hostfs => {
                let fs = HostFs::new(mount).map_err(io::Error::other)?;
                ours(bench, fs.with_freshness(Freshness::Always))
            }
            Stormer::Image => ours(bench, Ext4::open(image).map_err(io::Error::other)?),
        }
    };
    let turn = run().map_err(DirstormError::failed(format_args!(
        "storm {}",
        stormer.name()
    )));
    // The next one starts with this one's memory given back.
    rcuwalk_sync::rcu::barrier();
    turn
}

/// A storm through a VFS with room for all.
fn ours(bench: &Dirstorm, fs: impl FileSystem) -> io::Result<Turn> {
    let most = usize::MAX >> 8;
    let budget = Budget::default().dentries(most).inodes(most).bytes(most);
    let vfs = Vfs::with_budget(fs, budget.listings(1 << 30)).map_err(io::Error::other)?;
    let (elapsed, seen) = storm(bench, |dir| Dir::of_ours(&vfs, &dir_name(dir)))?;
    Ok(Turn {
        elapsed,
        asked: Some(vfs.statistics().slow_lookups),
        seen,
    })
}

/// Runs all threads, each of which opens the directories for itself.
fn storm<'v>(
    bench: &Dirstorm,
    open: impl Fn(u64) -> io::Result<Dir<'v>> + Sync,
) -> io::Result<(Duration, Seen)> {
    let barrier = Barrier::new(bench.threads);
    let work = |thread: usize| {
        barrier.wait();
        let began = Instant::now();
        let mut seen = Seen::default();
        for turn in 0..bench.dirs {
            let number = (thread as u64 + turn) % bench.dirs;
            open(number)?.list_and_look_up(|name, listed, found| {
                seen.add(number, name, listed, found);
            })?;
        }
        Ok((began, Instant::now(), seen))
    };
    let work = &work;
    let ends: io::Result<Vec<_>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..bench.threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let ends = ends?;
    let began = ends.iter().map(|end| end.0).min();
    let ended = ends.iter().map(|end| end.1).max();
    let elapsed = ended
        .zip(began)
        .map_or(Duration::ZERO, |(ended, began)| ended - began);
    let seen = ends.iter().map(|end| end.2);
    Ok((elapsed, seen.fold(Seen::default(), Seen::and)))
}

/// All contenders look up the same names, find the same inode numbers, and those that the listing
/// had; ours ask for each name once at most, and for each directory.
pub(super) fn verify(
    bench: &Dirstorm,
    stormer: Stormer,
    turn: &Turn,
    first: &mut Option<Seen>,
) -> Result<(), DirstormError> {
    let differ = |how: String| Err(DirstormError::Differ(format!("{}: {how}", stormer.name())));
    let names = bench.dirs * bench.entries;
    let (seen, due) = (turn.seen, bench.threads as u64 * names);
    if seen.lookups != due {
        return differ(format!("{} lookups, not {due}", seen.lookups));
    }
    if seen.others > 0 {
        return differ(format!(
            "{} lookups found another file than was listed",
            seen.others
        ));
    }
    if *first.get_or_insert(seen) != seen {
        return differ("the checksum is not the first one's".into());
    }
    match turn.asked {
        Some(asked) if asked > names + bench.dirs => differ(format!(
            "the back end was asked for names {asked} times, and there are {names}"
        )),
        _ => Ok(()),
    }
}
