//! Scanning a directory of the host: every entry below it once, on several threads.
//!
//! | read             | to learn                                                    |
//! |------------------|-------------------------------------------------------------|
//! | this file        | the options, and the guarantees of a scan                   |
//! | `scan/worker.rs` | one thread: a directory listed, its entries read            |
//! | `scan/dir.rs`    | directories: how they are reached, and few held open        |
//!
//! The rule that holds it together: **the host is only ever asked about one name in one open
//! directory, and links are not followed.** Paths are reported, never opened, so they may be
//! longer than `PATH_MAX`, and a directory that is replaced by a link while the scan runs leads
//! nowhere.
//!
//! # What it promises on a tree that changes meanwhile
//!
//! An entry that exists throughout comes once. One that is made, removed or moved while the
//! scan runs comes or does not; that is no error. Attributes are those at the moment of the
//! entry's statx(2).
//!
//! # Threads, not io_uring
//!
//! statx(2) has no asynchronous form in the kernel: io_uring hands each one to a worker
//! thread of its own, which costs more than calling it from ours.

mod dir;
mod worker;

use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use rcuwalk::scan::{Ended, Queue, ScanEntry, Visitor};
use rustix::fd::OwnedFd;

use crate::RootError;
use crate::host::{as_fd, open_dir, open_root};
use dir::{Found, Held, Shape};
use worker::{Shared, Task, Worker};

/// The order in which the entries of a directory are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// As the directory lists them.
    #[default]
    Listed,
    /// By inode number, which is roughly where they are on the disk: fewer seeks on
    /// disks that turn. A directory's names are collected first, a million at a time.
    Inode,
}

/// A directory of the host, to be scanned.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::sync::atomic::AtomicBool;
///
/// use rcuwalk::scan::{ScanEntry, Visitor};
/// use rcuwalk_hostfs::HostScan;
///
/// #[derive(Default)]
/// struct Count(u64);
///
/// impl Visitor for Count {
///     fn entry(&mut self, _: &ScanEntry<'_>) -> ControlFlow<()> {
///         self.0 += 1;
///         ControlFlow::Continue(())
///     }
///     fn problem(&mut self, path: &[u8], error: &dyn std::error::Error) -> ControlFlow<()> {
///         eprintln!("{}: {error}", path.escape_ascii());
///         ControlFlow::Continue(())
///     }
/// }
///
/// // Two visitors are two threads.
/// let counts = vec![Count::default(), Count::default()];
/// let (counts, _) = HostScan::new("src")?.run(&AtomicBool::new(false), counts);
/// assert!(counts.iter().map(|count| count.0).sum::<u64>() > 1);
/// # Ok::<(), rcuwalk_hostfs::RootError>(())
/// ```
#[derive(Debug)]
pub struct HostScan {
    root: OwnedFd,
    shape: Shape,
    order: Order,
    targets: bool,
    handles: bool,
    descriptors: usize,
}

impl HostScan {
    /// The directory at `path`, which may lead there through symbolic links.
    ///
    /// # Errors
    /// [`RootError`] if there is no directory, or none that this process may list.
    pub fn new(path: impl AsRef<Path>) -> Result<HostScan, RootError> {
        let path = path.as_ref();
        let opened = open_root(path).and_then(|pin| {
            let root = open_dir(as_fd(&pin))?;
            let shape = Shape::of(&root)?;
            Ok((root, shape))
        });
        let (root, shape) = opened.map_err(|source| RootError {
            path: path.to_owned(),
            source,
        })?;
        Ok(HostScan {
            root,
            shape,
            order: Order::default(),
            targets: true,
            handles: false,
            descriptors: 512,
        })
    }

    /// How many visitors, and with them threads, suit this machine.
    ///
    /// A thread per processor keeps all of them busy where everything is cached; on a
    /// disk that is waited for, more of them keep more requests under way.
    pub fn usual_threads() -> usize {
        thread::available_parallelism().map_or(4, |cpus| (cpus.get() * 2).min(64))
    }

    /// Sets whether to stay on the root's file system (`find -xdev`), which is the default. A
    /// mount point is then reported as an entry, and nothing below it.
    #[must_use]
    pub fn one_file_system(mut self, stay: bool) -> HostScan {
        self.shape.one_device = stay;
        self
    }

    /// Sets the order in which a directory's entries are read.
    #[must_use]
    pub fn order(mut self, order: Order) -> HostScan {
        self.order = order;
        self
    }

    /// Sets whether to read the targets of symbolic links, which is the default: one call for
    /// each.
    #[must_use]
    pub fn targets(mut self, wanted: bool) -> HostScan {
        self.targets = wanted;
        self
    }

    /// Sets whether to read file handles: one call for each entry. File systems without handles
    /// give `None`.
    ///
    /// Handles of the kind that ext4 and f2fs give hold the inode's generation, which is
    /// delivered too. It is not read in another way: `FS_IOC_GETVERSION` needs each file
    /// to be opened, which is forbidden for many and has effects for some.
    #[must_use]
    pub fn handles(mut self, wanted: bool) -> HostScan {
        self.handles = wanted;
        self
    }

    /// How many descriptors may be held, about; 512 is usual. With fewer than the tree
    /// needs, directories are opened again when the scan comes back to them.
    #[must_use]
    pub fn descriptors(mut self, most: usize) -> HostScan {
        self.descriptors = most;
        self
    }

    /// The number of the device that the root is on, as `ScanEntry::attr.dev` has it.
    pub fn device(&self) -> u64 {
        self.shape.root_device
    }

    /// Scans with a thread for each of `visitors`, the root first. Returns them when all
    /// is done, or soon after `stop` is raised.
    pub fn run<V: Visitor>(&self, stop: &AtomicBool, visitors: Vec<V>) -> (Vec<V>, Ended) {
        let threads = visitors.len();
        let shared = Shared {
            root: &self.root,
            shape: self.shape,
            order: self.order,
            targets: self.targets,
            handles: self.handles,
            stop,
            queue: Queue::new(threads),
        };
        // Two are open besides: the one that is listed and the one that is on its way.
        let most = (self.descriptors / threads.max(1)).saturating_sub(2).max(2);
        let mut workers: Vec<_> = visitors
            .into_iter()
            .map(|visitor| Worker::new(&shared, visitor, Held::new(most)))
            .collect();
        if let Some(first) = workers.first_mut() {
            self.begin(first, &shared);
        }
        let visitors = thread::scope(|scope| {
            let running: Vec<_> = workers
                .into_iter()
                .map(|worker| scope.spawn(move || worker.work()))
                .collect();
            let joined = running.into_iter().map(|thread| thread.join());
            joined
                .map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let ended = if shared.queue.is_ended() || stop.load(Relaxed) {
            Ended::Early
        } else {
            Ended::Complete
        };
        (visitors, ended)
    }

    /// Delivers the root, and puts it where the threads will find it.
    fn begin<V: Visitor>(&self, first: &mut Worker<'_, '_, V>, shared: &Shared<'_>) {
        let found = Found::of(as_fd(&self.root), c"", shared.targets, shared.handles);
        let told = match &found {
            Ok(Some(found)) => first.visitor.entry(&ScanEntry {
                dir: b"",
                name: b"",
                attr: &found.attr,
                generation: found.generation,
                target: None,
                handle: found.handle(),
            }),
            // An open directory is there; a root that was removed has no entries.
            Ok(None) => return,
            Err(err) => first.visitor.problem(b"", err),
        };
        if told.is_break() {
            return shared.queue.end();
        }
        let root = Task::root(<Box<CStr>>::from(c""));
        shared.queue.give([root]);
    }
}

#[cfg(test)]
mod tests;
