//! The kernel as a contender: access(2) on a materialised tree.
//!
//! The benchmark that kernel patches are judged by asks access(2) for absolute
//! paths. Ours are asked relative to the root of the tree, so that kernel and
//! rcuwalk resolve the same bytes without chroot(2). faccessat(2) on the root's
//! descriptor could do that as well, but would pay for the descriptor on every
//! call; a current directory costs the kernel what its root would. As that belongs
//! to the process, the thread that measures first takes one of its own:
//! [`KernelTree::enter`].
//!
//! Each choice was measured (ext4, 101 rounds, as a ratio to the call used here): rustix's
//! access and libc's are alike (1.00), faccessat is slower (1.06), absolute paths after
//! chroot(2) are slightly slower (1.01 to 1.02). So the kernel gets its best.
//!
//! **Where the tree is built matters.** tmpfs and ramfs keep no negative dentries: each
//! missing name is looked up anew, at twice the cost. A tree there would measure
//! the kernel's slow path against our fast one; [`scratch_dir`] avoids it.

use std::ffi::{CStr, CString};
use std::hint::black_box;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{env, io, thread};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::thread::UnshareFlags;
use tempfile::TempDir;

use crate::measure::Lap;

/// Makes a temporary directory where the kernel can answer as fast as it can.
///
/// That is the first of $TMPDIR (or /tmp), /var/tmp and the current directory whose
/// file system [caches missing names](KernelTree::caches_missing_names); if none
/// does, the first that can be written to.
pub fn scratch_dir() -> io::Result<TempDir> {
    let places = [
        env::temp_dir(),
        PathBuf::from("/var/tmp"),
        PathBuf::from("."),
    ];
    let mut first = None;
    for place in places {
        let made = tempfile::tempdir_in(place);
        if let Ok(dir) = &made
            && KernelTree::open(dir.path())?.caches_missing_names()?
        {
            return made;
        }
        if !matches!(first, Some(Ok(_))) {
            first = Some(made);
        }
    }
    first.expect("there is more than one place to try")
}

/// A materialised tree, asked through the kernel.
#[derive(Debug)]
pub struct KernelTree {
    root: OwnedFd,
}

impl KernelTree {
    /// Opens the directory that the tree was materialised in.
    pub fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
        Ok(Self { root })
    }

    /// Whether the tree's file system remembers that a name is missing.
    ///
    /// False for tmpfs and ramfs, on which the kernel is no fair contender for paths
    /// that do not exist. A report should then say so.
    pub fn caches_missing_names(&self) -> io::Result<bool> {
        const TMPFS_MAGIC: u32 = 0x0102_1994;
        const RAMFS_MAGIC: u32 = 0x8584_58f6;
        // Only 32 bits are the magic number; f_type is wider on most machines.
        let magic = rustix::fs::fstatfs(&self.root)?.f_type as u32;
        Ok(magic != TMPFS_MAGIC && magic != RAMFS_MAGIC)
    }

    /// What the kernel finds at `path`, which is relative to the root and whose
    /// links are followed: device and inode number, or the errno.
    pub fn answer(&self, path: &CStr) -> Result<(u64, u64), i32> {
        match rustix::fs::statat(&self.root, path, AtFlags::empty()) {
            Ok(stat) => Ok((stat.st_dev, stat.st_ino)),
            Err(errno) => Err(errno.raw_os_error()),
        }
    }

    /// Makes the root the current directory of the calling thread, and of no other.
    ///
    /// There is no way back, so the thread should be one made for measuring; see
    /// [`on_own_thread`](Self::on_own_thread). Threads that it starts share its
    /// current directory.
    pub fn enter(&self) -> io::Result<InTree> {
        // SAFETY: only `UnshareFlags::FILES` can break Rust's rules, as descriptors
        // could then be closed that another thread holds. FS is the current
        // directory, root and umask, on which no memory safety rests.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS)? };
        rustix::process::fchdir(&self.root)?;
        Ok(InTree {
            this_thread: PhantomData,
        })
    }

    /// Runs `work` on a new thread that has [entered](Self::enter) the tree, and
    /// waits for it.
    pub fn on_own_thread<R: Send>(&self, work: impl FnOnce(&InTree) -> R + Send) -> io::Result<R> {
        thread::scope(|scope| {
            let work = || Ok(work(&self.enter()?));
            let thread = thread::Builder::new().spawn_scoped(scope, work)?;
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Proof that this thread's current directory is the root of the tree.
#[derive(Debug)]
pub struct InTree {
    /// Not `Send`: on another thread it would prove nothing.
    this_thread: PhantomData<*const ()>,
}

impl InTree {
    /// Asks access(2) whether each path exists; returns how many do.
    pub fn access_all(&self, paths: &[CString]) -> usize {
        let exists = |path: &&CString| rustix::fs::access(path.as_c_str(), Access::EXISTS).is_ok();
        paths.iter().filter(exists).count()
    }

    /// What access(2) says about one path: that it exists, or the errno.
    pub fn access(&self, path: &CStr) -> Result<(), i32> {
        rustix::fs::access(path, Access::EXISTS).map_err(rustix::io::Errno::raw_os_error)
    }

    /// [`access_all`](Self::access_all), timed: one lap of the kernel's contender.
    pub fn lap(&self, paths: &[CString]) -> Lap {
        let start = Instant::now();
        black_box(self.access_all(black_box(paths)));
        Lap {
            ops: paths.len() as u64,
            time: start.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::paths::PathList;
    use crate::tree::TreeSpec;

    fn builtin() -> (tempfile::TempDir, KernelTree, Vec<CString>) {
        let dir = tempfile::tempdir().unwrap();
        TreeSpec::builtin().materialise(dir.path()).unwrap();
        let tree = KernelTree::open(dir.path()).unwrap();
        (dir, tree, PathList::builtin().relative())
    }

    #[test]
    fn of_the_205_builtin_paths_118_are_missing_and_all_others_found() {
        let (_dir, tree, paths) = builtin();
        let answers: Vec<_> = paths.iter().map(|path| tree.answer(path)).collect();
        let missing = |answer: &&Result<_, _>| **answer == Err(Errno::NOENT.raw_os_error());
        assert_eq!(paths.len(), 205);
        assert_eq!(answers.iter().filter(missing).count(), 118);
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 87);
    }

    #[test]
    fn access_and_answer_agree_on_what_exists() {
        let (_dir, tree, paths) = builtin();
        let found = tree.on_own_thread(|here| here.access_all(&paths)).unwrap();
        assert_eq!(found, 87);
    }

    #[test]
    fn a_link_is_answered_with_what_it_leads_to() {
        let (_dir, tree, _) = builtin();
        assert_eq!(tree.answer(c"lib/.."), tree.answer(c"usr"));
        assert_eq!(
            tree.answer(c"bin/g++"),
            tree.answer(c"usr/bin/x86_64-linux-gnu-g++-12")
        );
        assert_ne!(tree.answer(c"bin/g++"), tree.answer(c"usr/bin/nm"));
    }

    #[test]
    fn entering_the_tree_moves_no_other_thread() {
        let (dir, tree, _) = builtin();
        let before = std::env::current_dir().unwrap();
        let inside = tree
            .on_own_thread(|_| std::env::current_dir().unwrap())
            .unwrap();
        assert_eq!(inside, dir.path().canonicalize().unwrap());
        assert_eq!(std::env::current_dir().unwrap(), before);
    }

    #[test]
    fn a_lap_counts_one_operation_per_path() {
        let (_dir, tree, paths) = builtin();
        let lap = tree.on_own_thread(|here| here.lap(&paths)).unwrap();
        assert_eq!(lap.ops, 205);
        assert!(!lap.time.is_zero());
    }

    #[test]
    fn tmpfs_is_known_not_to_cache_missing_names() {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        if !mounts.contains(" /dev/shm tmpfs ") {
            return; // Some sandboxes have none.
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let tree = KernelTree::open(dir.path()).unwrap();
        assert!(!tree.caches_missing_names().unwrap());
    }

    #[test]
    fn a_scratch_directory_is_new_writable_and_gone_when_dropped() {
        let dir = scratch_dir().unwrap();
        TreeSpec::builtin().materialise(dir.path()).unwrap();
        let path = dir.path().to_owned();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_tree_that_is_not_there_cannot_be_opened() {
        let err = KernelTree::open(Path::new("/nowhere/at/all")).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::NotFound);
    }
}
