//! The kernel's walk: getdents64 and a stat per entry, from several threads.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::digest::{Digest, DirHash, Facts};

/// Bytes of entries asked for at a time.
const BUFFER: usize = 32 << 10;

/// What the kernel is told to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forget {
    /// Dentries and inodes.
    Inodes,
    /// Those, and all file contents and blocks.
    Everything,
}

/// Has the kernel forget, all of the machine; of the file system that `image` is on
/// everything, as what has not been written cannot be forgotten. Returns when it has freed
/// the memory.
pub(crate) fn drop_caches(what: Forget, image: &Path) -> io::Result<()> {
    let what = match what {
        Forget::Inodes => "2",
        Forget::Everything => "3",
    };
    rustix::fs::syncfs(fs::File::open(image)?)?;
    fs::write("/proc/sys/vm/drop_caches", what)?;
    wait_until_freed();
    Ok(())
}

/// Waits until what the kernel could give back no longer shrinks, but at most 5 s: it frees
/// dentries and inodes after a grace period, in the processor time of whoever runs then.
fn wait_until_freed() {
    let end = Instant::now() + Duration::from_secs(5);
    let (mut last, mut unchanged) = (reclaimable_bytes(), 0);
    while unchanged < 5 && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
        let now = reclaimable_bytes();
        unchanged = if now < last { 0 } else { unchanged + 1 };
        last = now;
    }
}

/// Bytes that the kernel could give back of its own objects: nearly all of them are
/// dentries and inodes.
pub(super) fn reclaimable_bytes() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mut lines = info.lines();
    let kib = lines.find_map(|line| line.strip_prefix("SReclaimable:"));
    let kib = kib.and_then(|kib| kib.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Walks what is below `root`. Directories of the root are shared out among `threads`.
pub(super) fn walk(root: &Path, threads: u64, stop: &AtomicBool) -> io::Result<Digest> {
    let mut seen = Digest::default();
    let mut below = Vec::new();
    let mut walk = Walk::new(stop);
    let fd = patiently(|| rustix::fs::openat(CWD, root, DIRECTORY, Mode::empty()))?;
    walk.list(&fd, DirHash::ROOT, &mut seen, &mut below)?;

    let queue = Mutex::new(VecDeque::from(below));
    let next = || queue.lock().expect("no panic").pop_front();
    thread::scope(|scope| {
        let work = || {
            let mut seen = Digest::default();
            let mut walk = Walk::new(stop);
            while let Some((name, hash)) = next() {
                let dir = patiently(|| rustix::fs::openat(&fd, &*name, DIRECTORY, Mode::empty()))?;
                walk.tree(&dir, hash, &mut seen)?;
            }
            Ok(seen)
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_fold(seen, |all, thread| {
            let seen: io::Result<Digest> = thread.join().expect("no panic");
            Ok(all.and(seen?))
        })
    })
}

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Repeats `call` for a while where it has no memory.
fn patiently<R>(mut call: impl FnMut() -> rustix::io::Result<R>) -> rustix::io::Result<R> {
    let mut patience = Patience::default();
    loop {
        match call() {
            Err(Errno::NOMEM) if patience.lasts() => {}
            done => return done,
        }
    }
}

/// How often a call had no memory. A [control group](super::group) has some again when a grace
/// period of the kernel has ended.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    /// At least a minute.
    const TRIES: u32 = 60_000;

    /// Waits a moment, unless the call has been tried often enough.
    fn lasts(&mut self) -> bool {
        thread::sleep(Duration::from_millis(1));
        self.0 += 1;
        self.0 < Self::TRIES
    }
}

/// A directory to go to: its name, and the hash of its path.
type Below = (Box<[u8]>, DirHash);

/// One thread's walk.
struct Walk<'a> {
    stop: &'a AtomicBool,
    buffer: Vec<u8>,
}

impl<'a> Walk<'a> {
    fn new(stop: &'a AtomicBool) -> Self {
        Self {
            stop,
            buffer: Vec::with_capacity(BUFFER),
        }
    }

    fn tree(&mut self, dir: &OwnedFd, hash: DirHash, seen: &mut Digest) -> io::Result<()> {
        let mut below = Vec::new();
        self.list(dir, hash, seen, &mut below)?;
        for (name, hash) in below {
            let dir = patiently(|| rustix::fs::openat(dir, &*name, DIRECTORY, Mode::empty()))?;
            self.tree(&dir, hash, seen)?;
        }
        Ok(())
    }

    /// One directory; `below` gets the directories in it.
    fn list(
        &mut self,
        dir: &OwnedFd,
        hash: DirHash,
        seen: &mut Digest,
        below: &mut Vec<Below>,
    ) -> io::Result<()> {
        if self.stop.load(Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut entries = RawDir::new(dir, self.buffer.spare_capacity_mut());
        let mut patience = Patience::default();
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Err(Errno::NOMEM) if patience.lasts() => continue,
                entry => entry?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = patiently(|| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW))?;
            let facts = Facts {
                ino: stat.st_ino,
                mode: stat.st_mode,
                uid: stat.st_uid,
                gid: stat.st_gid,
                links: stat.st_nlink as u32,
                size: stat.st_size as u64,
                mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
            };
            seen.add(hash, name.to_bytes(), &facts);
            if stat.st_mode & 0o170_000 == 0o040_000 {
                below.push((name.to_bytes().into(), hash.child(name.to_bytes())));
            }
        }
        Ok(())
    }
}
