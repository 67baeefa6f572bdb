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

/// The smallest block group: a quarter of the largest possible one.
const GROUP: u64 = 32 << 20;

/// Makes an image of these trees at `path`. The caller has
/// [mounts of his own](super::mount::own_mounts).
///
/// # Errors
///
/// The host's error, or that `path` exists; `Interrupted` once `stop` is raised. The unfinished
/// image is then removed.
pub(super) fn make(path: &Path, shape: Shape, stop: &AtomicBool) -> io::Result<()> {
    let inodes = shape.inodes().unwrap_or(u64::MAX >> 16);
    // A twentieth more: the number of inodes in each block group is fixed.
    let most = inodes + inodes / 20 + 10_000;
    // A group's bitmap of inodes is one block. mkfs.ext4 makes smaller groups where there
    // are to be that many inodes, but not as small as one likes.
    let groups = most.div_ceil(8 * 4096);
    let bytes = (most * (INODE + NAME) + REST).max(groups * GROUP);
    has_room(path, inodes * INODE)?;
    // Never over an existing file: another process may be making it.
    let file = File::create_new(path).map_err(|err| match err.kind() {
        io::ErrorKind::AlreadyExists => io::Error::new(
            err.kind(),
            format!(
                "{} is there: another run makes it, or was killed; remove it then",
                path.display()
            ),
        ),
        _ => err,
    })?;
    let made = file.set_len(bytes).and_then(|()| {
        make_in(path, most, shape, stop)?;
        file.sync_all()
    });
    if made.is_err() {
        let _ = fs::remove_file(path);
    }
    made
}

fn make_in(path: &Path, inodes: u64, shape: Shape, stop: &AtomicBool) -> io::Result<()> {
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1", "-N"]);
    run(mkfs.arg(inodes.to_string()).arg(path))?;

    let mount = LoopMount::new(path, "noatime,noinit_itable")?;
    fill(mount.path(), shape, stop)
}

/// The kernel fills holes of a loop device's file only at writeback, and no caller hears that
/// there was no space: the image is then damaged, if the kernel does not hang. So the space
/// that is certain to be needed is allocated first.
fn has_room(path: &Path, needed: u64) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let room = rustix::fs::statvfs(dir.unwrap_or(Path::new(".")))?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    if free >= needed {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::StorageFull,
        format!(
            "at least {} MiB are needed there, and {} are free: --keep FILE and TMPDIR choose \
             another place",
            needed.div_ceil(1 << 20),
            free >> 20
        ),
    ))
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
