//! The timed phases: each from the start of the first thread to the end of the last one.

use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, Stat, openat, statat, unlinkat};
use serde::Serialize;

use super::Fuse;
use super::tree::{Tree, made_by};

/// What contenders do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Directories are listed and each entry looked at, as find(1) does, just after
    /// mounting.
    ColdWalk,
    /// The same once more.
    HotWalk,
    /// Many more directories and files are walked, just after mounting.
    ManyCold,
    /// The same two seconds later: what was valid for a second is asked for again.
    ManyAgain,
    /// Each file is looked at by a name that is known beforehand, just after mounting.
    ColdNames,
    /// Empty files are made: open(2), and close(2).
    Create,
    /// They are removed.
    Unlink,
    /// The names of a long directory.
    List,
    /// A file from start to end, by 128 KiB.
    Read,
    /// The same written over.
    Write,
}

impl Work {
    /// In the order of a turn.
    pub const ALL: [Work; 10] = [
        Work::ColdWalk,
        Work::HotWalk,
        Work::ManyCold,
        Work::ManyAgain,
        Work::ColdNames,
        Work::Create,
        Work::Unlink,
        Work::List,
        Work::Read,
        Work::Write,
    ];

    pub(super) fn words(self) -> &'static str {
        match self {
            Work::ColdWalk => "cold walk",
            Work::HotWalk => "hot walk",
            Work::ManyCold => "many, cold",
            Work::ManyAgain => "many, 2 s on",
            Work::ColdNames => "cold, by name",
            Work::Create => "create",
            Work::Unlink => "unlink",
            Work::List => "list",
            Work::Read => "read",
            Work::Write => "write",
        }
    }
}

/// The duration of a phase, and a digest of its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Done {
    pub(super) time: Duration,
    /// Processor time of this process during the phase, client and daemon together.
    pub(super) cpu: Duration,
    /// What the same took just before, without a daemon.
    pub(super) direct: Option<Duration>,
    /// Entries, files, or bytes.
    pub(super) count: u64,
    /// Over all that was seen, in any order.
    pub(super) sum: u64,
}

/// Bytes per read or write.
const BLOCK: usize = 128 << 10;

/// Where something is looked at in what was read: one word of each of these.
const PAGE: usize = 4096;

/// Walks the directories, shared out among threads.
pub(super) fn walk(root: &Path, dirs: &[PathBuf], threads: usize) -> io::Result<Done> {
    share(root, dirs, threads, |dir, at| {
        let mut seen = Done::default();
        let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
        let mut names = RawDir::new(&dir, &mut buffer);
        while let Some(entry) = names.next() {
            let entry = entry?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                let stat = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                seen.count += 1;
                seen.sum = seen.sum.wrapping_add(looks(at, name.to_bytes(), &stat));
            }
        }
        Ok(seen)
    })
}

/// Looks at each file by its name, without listing.
pub(super) fn by_name(root: &Path, tree: &Tree, threads: usize) -> io::Result<Done> {
    share(root, &tree.walked, threads, |dir, at| {
        let mut seen = Done::default();
        for name in &tree.names {
            let stat = statat(&dir, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            seen.count += 1;
            seen.sum = seen.sum.wrapping_add(looks(at, name.as_bytes(), &stat));
        }
        Ok(seen)
    })
}

/// Each directory of the walk is one thread's.
fn share(
    root: &Path,
    dirs: &[PathBuf],
    threads: usize,
    visit: impl Fn(OwnedFd, usize) -> io::Result<Done> + Sync,
) -> io::Result<Done> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, flags | OFlags::PATH, Mode::empty())?;
    let next = AtomicUsize::new(0);
    together(threads, |_| {
        let mut seen = Done::default();
        loop {
            let at = next.fetch_add(1, Relaxed);
            let Some(dir) = dirs.get(at) else {
                return Ok(seen);
            };
            let dir = openat(&root, dir, flags, Mode::empty())?;
            seen.add(visit(dir, at)?);
        }
    })
}

/// Makes files, each thread in a directory of its own.
pub(super) fn create(root: &Path, size: &Fuse) -> io::Result<Done> {
    make(root, size, |dir, name| {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        openat(dir, name, flags, Mode::from_raw_mode(0o644)).map(drop)
    })
}

/// Removes them.
pub(super) fn unlink(root: &Path, size: &Fuse) -> io::Result<Done> {
    make(root, size, |dir, name| {
        unlinkat(dir, name, AtFlags::empty())
    })
}

fn make(
    root: &Path,
    size: &Fuse,
    each: impl Fn(&OwnedFd, &str) -> rustix::io::Result<()> + Sync,
) -> io::Result<Done> {
    let count = size.made / size.makers;
    let names: Vec<String> = (0..count).map(|n| format!("made-{n:05}")).collect();
    let dirs: Result<Vec<OwnedFd>, _> = (0..size.makers)
        .map(|maker| open_dir(&root.join(made_by(maker))))
        .collect();
    let dirs = dirs?;
    together(size.makers, |maker| {
        for name in &names {
            each(&dirs[maker], name)?;
        }
        Ok(Done {
            count: count as u64,
            ..Done::default()
        })
    })
}

/// Lists the names of the long directory.
pub(super) fn list(root: &Path) -> io::Result<Done> {
    together(1, |_| {
        let dir = open_dir(&root.join("listed"))?;
        let mut seen = Done::default();
        let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
        let mut names = RawDir::new(&dir, &mut buffer);
        while let Some(entry) = names.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                seen.count += 1;
                seen.sum = seen.sum.wrapping_add(hash(0, name));
            }
        }
        Ok(seen)
    })
}

/// Reads the file from start to end.
pub(super) fn read(root: &Path) -> io::Result<Done> {
    let mut buffer = vec![0; BLOCK];
    together_once(|| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(CWD, root.join("data"), flags, Mode::empty())?;
        let mut seen = Done::default();
        loop {
            let read = rustix::io::read(&file, &mut buffer)?;
            if read == 0 {
                return Ok(seen);
            }
            for page in buffer[..read].chunks(PAGE) {
                let word = page
                    .first_chunk()
                    .map_or(0, |word| u64::from_le_bytes(*word));
                seen.sum = seen.sum.wrapping_mul(31).wrapping_add(word);
            }
            seen.count += read as u64;
        }
    })
}

/// Writes over it: each page begins with a number of its own, made of `what`.
pub(super) fn write(root: &Path, size: &Fuse, what: u64) -> io::Result<Done> {
    let mut buffer = vec![0xa5; BLOCK];
    // In all of a word, or it would be lost in the sum of as many.
    let what = mix(what);
    together_once(|| {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(CWD, root.join("data"), flags, Mode::empty())?;
        let mut seen = Done::default();
        for block in 0..(size.mib << 20) / BLOCK as u64 {
            for (at, page) in buffer.chunks_mut(PAGE).enumerate() {
                let word = what ^ (block << 16 | at as u64);
                page[..8].copy_from_slice(&word.to_le_bytes());
                seen.sum = seen.sum.wrapping_mul(31).wrapping_add(word);
            }
            let mut from = 0;
            while from < BLOCK {
                from += rustix::io::write(&file, &buffer[from..])?;
            }
            seen.count += BLOCK as u64;
        }
        Ok(seen)
    })
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

/// So many threads do `one` at once, each given its number.
fn together(threads: usize, one: impl Fn(usize) -> io::Result<Done> + Sync) -> io::Result<Done> {
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        let run = |thread| {
            let (start, one) = (&start, &one);
            move || {
                start.wait();
                let began = Instant::now();
                (began, one(thread))
            }
        };
        let handles: Vec<_> = (0..threads).map(|n| scope.spawn(run(n))).collect();
        let mut all = Done::default();
        // The workers' own clocks: the thread that waits for them may be the last to run.
        let mut first: Option<Instant> = None;
        for handle in handles {
            let panicked = |_| io::Error::other("a thread panicked");
            let (began, done) = handle.join().map_err(panicked)?;
            all.add(done?);
            first = Some(first.map_or(began, |first| first.min(began)));
        }
        all.time = first.map_or(Duration::ZERO, |first| first.elapsed());
        Ok(all)
    })
}

fn together_once(one: impl FnOnce() -> io::Result<Done>) -> io::Result<Done> {
    let began = Instant::now();
    let done = one()?;
    Ok(Done {
        time: began.elapsed(),
        ..done
    })
}

impl Done {
    fn add(&mut self, other: Done) {
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// An entry of the walk, and its stat(2) without the fields that may differ: times of access,
/// and numbers of devices and inodes.
#[expect(clippy::unnecessary_cast, reason = "narrower on other machines")]
fn looks(dir: usize, name: &[u8], stat: &Stat) -> u64 {
    let mut sum = hash(dir as u64, name);
    for part in [
        stat.st_size as u64,
        u64::from(stat.st_mode),
        stat.st_nlink as u64,
        u64::from(stat.st_uid),
        stat.st_mtime as u64,
        stat.st_mtime_nsec as u64,
    ] {
        sum = mix(sum ^ part);
    }
    sum
}

/// FNV-1a: the names are short, and no adversary chooses them.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    let start = mix(start ^ 0xcbf2_9ce4_8422_2325);
    bytes.iter().fold(start, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ word >> 29
}
