//! Lookups of cached names, timed one by one: alone, and beside a listing of their directory and a
//! stream of files made and removed in it.

use std::ffi::CString;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use rcuwalk::Vfs;

use super::{Dirstorm, DirstormError};
use crate::dir::{self, Dir};
use crate::random::Random;

/// How many names are looked up, again and again: few enough to stay cached.
const NAMES: u64 = 10_000;

/// How many of the files that the stream has made are there at once.
const STREAM: u64 = 1_000;

/// Fewer changes are no stream.
const CHANGES: u64 = 100;

/// A contender, whose names are cached.
pub(super) struct Prepared {
    pub(super) name: String,
    how: How,
    /// The names that are looked up, and their inode numbers.
    names: Vec<(CString, u64)>,
}

enum How {
    Kernel(PathBuf),
    Ours(Vfs, &'static str),
}

/// The result of one turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    pub(super) quiet: Percentiles,
    pub(super) busy: Percentiles,
    /// Whole listings beside the lookups.
    pub(super) listings: u64,
    /// Files made and removed beside the lookups.
    pub(super) changes: u64,
}

/// How long lookups took, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
}

impl Prepared {
    pub(super) fn of_kernel(
        name: impl Into<String>,
        path: &Path,
        bench: &Dirstorm,
    ) -> Result<Prepared, DirstormError> {
        Self::new(name.into(), Ok(How::Kernel(path.into())), bench)
    }

    pub(super) fn of_ours(
        name: impl Into<String>,
        vfs: io::Result<Vfs>,
        path: &'static str,
        bench: &Dirstorm,
    ) -> Result<Prepared, DirstormError> {
        Self::new(name.into(), vfs.map(|vfs| How::Ours(vfs, path)), bench)
    }

    fn new(
        name: String,
        how: io::Result<How>,
        bench: &Dirstorm,
    ) -> Result<Prepared, DirstormError> {
        let prepare = || {
            let mut prepared = Prepared {
                name: name.clone(),
                how: how?,
                names: Vec::new(),
            };
            let few = NAMES.min(bench.large);
            let mut names = Vec::new();
            let dir = prepared.open()?;
            for number in 0..few {
                let name = dir::name(number * (bench.large / few));
                let name = CString::new(name).map_err(io::Error::other)?;
                let ino = dir.look_up(&name)?;
                names.push((name, ino));
            }
            drop(dir);
            prepared.names = names;
            Ok(prepared)
        };
        let what = format!("prepare {name}");
        prepare().map_err(DirstormError::failed(what))
    }

    fn open(&self) -> io::Result<Dir<'_>> {
        match &self.how {
            How::Kernel(path) => Dir::of_kernel(path),
            How::Ours(vfs, path) => Dir::of_ours(vfs, path),
        }
    }
}

/// Lookups alone, then beside the two others.
pub(super) fn turn(
    bench: &Dirstorm,
    contender: &Prepared,
    stop: &AtomicBool,
) -> Result<Turn, DirstormError> {
    let failed = |err| DirstormError::failed(format_args!("ask {}", contender.name))(err);
    let dir = contender.open().map_err(failed)?;
    let is_enough = |done: usize| done >= bench.lookups || stop.load(Relaxed);
    let quiet = look_up(&dir, contender, is_enough)?;

    let expected = Listed::expected(bench.large);
    let (done, listings, changes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (busy, listed, changed) = thread::scope(|scope| {
        let lister = scope.spawn(|| {
            let _done = Raise(&done);
            list(contender, &expected, &done, &listings)
        });
        let changer = scope.spawn(|| {
            let _done = Raise(&done);
            change(contender, &done, &changes).map_err(failed)
        });
        let busy = look_up(&dir, contender, |lookups| {
            let all_took_part = listings.load(Relaxed) > 0 && changes.load(Relaxed) >= CHANGES;
            is_enough(lookups) && (all_took_part || stop.load(Relaxed)) || done.load(Relaxed)
        });
        done.store(true, Relaxed);
        let joined = (lister.join(), changer.join());
        let unwind = |panic| std::panic::resume_unwind(panic);
        (
            busy,
            joined.0.unwrap_or_else(unwind),
            joined.1.unwrap_or_else(unwind),
        )
    });
    listed?;
    changed?;
    Ok(Turn {
        quiet,
        busy: busy?,
        listings: listings.into_inner(),
        changes: changes.into_inner(),
    })
}

/// Raises a flag at the end of a thread, also of one that fails.
struct Raise<'f>(&'f AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Looks up random names until there are enough of them.
fn look_up(
    dir: &Dir<'_>,
    contender: &Prepared,
    is_enough: impl Fn(usize) -> bool,
) -> Result<Percentiles, DirstormError> {
    let mut random = Random::new(7);
    let mut samples = Vec::new();
    while !is_enough(samples.len()) {
        for _ in 0..64 {
            let (name, ino) = &contender.names[random.below(contender.names.len() as u64) as usize];
            let began = Instant::now();
            let found = dir.look_up(name);
            let took = began.elapsed().as_nanos();
            let found = found.map_err(DirstormError::failed(format_args!(
                "look up {} in {}",
                name.to_string_lossy(),
                contender.name
            )))?;
            if found != *ino {
                return Err(DirstormError::Differ(format!(
                    "{}: {} is inode {found}, and was {ino}",
                    contender.name,
                    name.to_string_lossy()
                )));
            }
            samples.push(u32::try_from(took).unwrap_or(u32::MAX));
        }
    }
    Ok(Percentiles::of(&mut samples))
}

impl Percentiles {
    fn of(samples: &mut [u32]) -> Percentiles {
        samples.sort_unstable();
        let at = |part: usize| {
            let at = samples.len() * part / 100;
            samples.get(at).map_or(0.0, |ns| f64::from(*ns))
        };
        Percentiles {
            p50: at(50),
            p99: at(99),
        }
    }
}

/// What a listing had of the names that stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Listed {
    entries: u64,
    names: u64,
}

impl Listed {
    fn expected(entries: u64) -> Listed {
        let mut listed = Listed::default();
        for number in 0..entries {
            listed.add(dir::name(number).as_bytes());
        }
        listed
    }

    fn add(&mut self, name: &[u8]) {
        let mut hasher = DefaultHasher::new();
        hasher.write(name);
        self.entries += 1;
        self.names = self.names.wrapping_add(hasher.finish());
    }
}

/// Lists the directory until `done` is raised, and checks each whole listing (DIR-1).
fn list(
    contender: &Prepared,
    expected: &Listed,
    done: &AtomicBool,
    listings: &AtomicU64,
) -> Result<(), DirstormError> {
    let failed = |err| DirstormError::failed(format_args!("list {}", contender.name))(err);
    let dir = contender.open().map_err(failed)?;
    while !done.load(Relaxed) {
        let mut listed = Listed::default();
        dir.list(|name, _| {
            if name.starts_with(b"f") {
                listed.add(name);
            }
        })
        .map_err(failed)?;
        if listed != *expected {
            return Err(DirstormError::Differ(format!(
                "{} lists {} of the {} names that stay, or others",
                contender.name, listed.entries, expected.entries
            )));
        }
        listings.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Makes and removes files until `done` is raised, and removes the rest.
fn change(contender: &Prepared, done: &AtomicBool, changes: &AtomicU64) -> io::Result<()> {
    let dir = contender.open()?;
    let name = |number: u64| format!("c{number:07}");
    let (mut made, mut removed) = (0, 0);
    while !done.load(Relaxed) {
        dir.create(&name(made))?;
        made += 1;
        changes.fetch_add(1, Relaxed);
        if made - removed > STREAM {
            dir.unlink(&name(removed))?;
            removed += 1;
            changes.fetch_add(1, Relaxed);
        }
    }
    (removed..made).try_for_each(|number| dir.unlink(&name(number)))
}
