//! Making the image: mkfs.ext4, and trees of empty files written through the kernel.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use rustix::fs::{CWD, Mode, OFlags};

use super::mount::{LoopMount, run};
use crate::walktrees::Shape;

/// An inode of mkfs.ext4's default size.
const INODE: u64 = 256;
/// What a name takes in its directory, and then some: blocks are three quarters full.
const NAME: u64 = 48;
/// Journal, bitmaps, and what mkfs.ext4 keeps for root.
const REST: u64 = 512 << 20;

/// Makes an image of these trees at `path`. The caller has
/// [mounts of his own](super::mount::own_mounts).
///
/// # Errors
///
/// What the host said; `Interrupted` once `stop` is raised. What is at `path` is of no
/// use then.
pub(super) fn make(path: &Path, shape: Shape, stop: &AtomicBool) -> io::Result<()> {
    let inodes = shape.inodes().unwrap_or(u64::MAX >> 16);
    // A twentieth more: each block group has so many and no more.
    let most = inodes + inodes / 20 + 10_000;
    let bytes = most * (INODE + NAME) + REST;
    File::create(path)?.set_len(bytes)?;
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1", "-N"]);
    run(mkfs.arg(most.to_string()).arg(path))?;

    let mount = LoopMount::new(path, "noatime,noinit_itable")?;
    fill(mount.path(), shape, stop)?;
    drop(mount);
    File::open(path)?.sync_all()
}

/// Two threads per core's worth of creation: the kernel locks the directory.
fn fill(root: &Path, shape: Shape, stop: &AtomicBool) -> io::Result<()> {
    let next = AtomicU64::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let work = || {
            loop {
                let tree = next.fetch_add(1, Relaxed);
                if tree >= shape.trees {
                    return Ok(());
                }
                fill_tree(&root.join(format!("t{tree}")), shape, stop)?;
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no panic"))
    })
}

fn fill_tree(tree: &Path, shape: Shape, stop: &AtomicBool) -> io::Result<()> {
    fs::create_dir(tree)?;
    for dir in 0..shape.dirs {
        let dir = tree.join(format!("d{dir}"));
        fs::create_dir(&dir)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir: OwnedFd = rustix::fs::openat(CWD, &dir, flags, Mode::empty())?;
        for file in 0..shape.files {
            if stop.load(Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(&dir, format!("f{file}"), flags, Mode::from(0o644))?;
        }
    }
    Ok(())
}
