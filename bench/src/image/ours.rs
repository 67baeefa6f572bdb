//! Ours: through the VFS, and as a scan. Both open the image anew: nothing is cached.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rcuwalk::scan::{ScanEntry, Visitor};
use rcuwalk::{Budget, Context, Credentials, FileType, LookupFlags, Vfs};
use rcuwalk_ext4::{Checksums, Ext4, Order};

use super::ImageWalk;
use super::digest::{Digest, DirHash, Facts};
use super::turn::{Contender, Method};

fn open(image: &Path, contender: Contender) -> io::Result<Ext4> {
    let checksums = match contender.checksums {
        true => Checksums::Always,
        false => Checksums::Never,
    };
    let image = Ext4::options().checksums(checksums).open(image);
    image.map_err(io::Error::other)
}

/// # Errors
///
/// The reason why this is not an image that we can read.
pub(super) fn is_image(path: &Path) -> io::Result<()> {
    open(path, Contender::SCAN).map(drop)
}

/// Lists every directory and stats every entry, as `find -ls` does, `laps` times. `walked` is
/// called after each lap, while its entries are still cached.
pub(super) fn through_vfs(
    image: &Path,
    contender: Contender,
    threads: u64,
    cache_bytes: usize,
    laps: usize,
    stop: &AtomicBool,
    mut walked: impl FnMut(Digest),
) -> io::Result<()> {
    // Bytes alone decide when there is too much.
    let budget = Budget::default()
        .dentries(usize::MAX >> 8)
        .inodes(usize::MAX >> 8)
        .bytes(cache_bytes);
    let fs = open(image, contender)?;
    let vfs = Vfs::with_budget(fs, budget).map_err(io::Error::other)?;
    for _ in 0..laps {
        walked(walk(&vfs, threads, stop).map_err(io::Error::other)?);
    }
    Ok(())
}

/// Directories of the root are shared out among `threads`.
fn walk(vfs: &Vfs, threads: u64, stop: &AtomicBool) -> rcuwalk::Result<Digest> {
    let mut seen = Digest::default();
    let mut below = Vec::new();
    let root = Dir {
        here: vfs.context(Credentials::root()),
        hash: DirHash::ROOT,
    };
    root.list(vfs, &mut seen, &mut below)?;

    let queue = Mutex::new(below);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || {
        let mut seen = Digest::default();
        let mut stack = Vec::new();
        while let Some(tree) = next() {
            stack.push(tree);
            while let Some(dir) = stack.pop()
                && !stop.load(Relaxed)
            {
                dir.list(vfs, &mut seen, &mut stack)?;
            }
        }
        Ok(seen)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_fold(seen, |all, thread| {
            let seen: rcuwalk::Result<Digest> = thread.join().expect("no panic");
            Ok(all.and(seen?))
        })
    })
}

/// A directory, entered.
struct Dir {
    here: Context,
    hash: DirHash,
}

impl Dir {
    fn list(&self, vfs: &Vfs, seen: &mut Digest, below: &mut Vec<Dir>) -> rcuwalk::Result<()> {
        for entry in vfs.read_dir(&self.here, ".")? {
            let name = entry?.name;
            let attr = vfs.stat(&self.here, &*name, LookupFlags::default())?;
            seen.add(self.hash, &name, &Facts::from(&attr));
            if attr.kind == FileType::Directory {
                let dir = vfs.lookup(&self.here, &*name, LookupFlags::default())?;
                below.push(Dir {
                    here: self.here.clone().with_cwd(dir),
                    hash: self.hash.child(&name),
                });
            }
        }
        Ok(())
    }
}

/// Scans the image; a problem is an error.
pub(super) fn scan(
    image: &Path,
    contender: Contender,
    bench: &ImageWalk,
    stop: &AtomicBool,
) -> io::Result<Digest> {
    let image = open(image, contender)?;
    let order = match contender.method {
        Method::ScanByInode => Order::Inode,
        _ => Order::Tree,
    };
    let visitors = (0..bench.scan_threads).map(|_| Adding::default()).collect();
    let (visitors, _) = image.scan().order(order).run(stop, visitors);
    visitors
        .into_iter()
        .try_fold(Digest::default(), |all, one| match one.problem {
            None => Ok(all.and(one.seen)),
            Some(problem) => Err(io::Error::other(problem)),
        })
}

/// Adds up what one thread of a scan sees.
#[derive(Default)]
struct Adding {
    seen: Digest,
    /// The directory of the last entry, and its hash.
    dir: Vec<u8>,
    hash: Option<DirHash>,
    problem: Option<String>,
}

impl Visitor for Adding {
    fn entry(&mut self, entry: &ScanEntry<'_>) -> ControlFlow<()> {
        if entry.name.is_empty() {
            // The root, which walks do not list.
            return ControlFlow::Continue(());
        }
        let hash = match self.hash {
            Some(hash) if self.dir == entry.dir => hash,
            _ => {
                self.dir.clear();
                self.dir.extend_from_slice(entry.dir);
                *self.hash.insert(DirHash::of(entry.dir))
            }
        };
        self.seen.add(hash, entry.name, &Facts::from(entry.attr));
        ControlFlow::Continue(())
    }

    fn problem(&mut self, path: &[u8], error: &dyn std::error::Error) -> ControlFlow<()> {
        self.problem = Some(format!("{}: {error}", path.escape_ascii()));
        ControlFlow::Break(())
    }
}
