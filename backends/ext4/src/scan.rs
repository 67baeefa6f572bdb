//! Scanning a whole image: every entry once, on several threads, without a cache of
//! names and inodes in between.
//!
//! | read            | to learn                                                      |
//! |-----------------|---------------------------------------------------------------|
//! | this file       | what can be asked for; threads, from the root to the end      |
//! | `scan/worker.rs`| one directory: its names, joined with their inodes            |
//! | `scan/tasks.rs` | which directory a thread lists next                           |
//! | `scan/inodes.rs`| an inode, from the table or the image                         |
//! | `scan/table.rs` | all inodes of the image, read in one go ([`Order::Inode`])    |
//!
//! Names come from the directories, from the root down, so each has its path. Inodes come
//! either from where they are, as names lead to them (neighbours in a directory are
//! neighbours in the inode table as a rule), or from a table that was read before.
//!
//! **Each directory is visited once**, whatever a damaged image says: a second name for a
//! directory is reported as a problem, and the scan goes on. So the scan ends.

mod inodes;
mod table;
mod tasks;
mod worker;

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rcuwalk::scan::{Ended, Queue, ScanEntry, Visitor};

use crate::ext4::Ext4;
use crate::fs::ROOT;
use crate::volume::Volume;
use inodes::{Inodes, Met};
use table::Table;
use tasks::Task;
use worker::Worker;

/// Where inodes are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// Where the names lead: entries come from the start. A piece of the inode tables that
    /// several directories share is read from the source up to five times before it is kept, so
    /// a source without a cache of its own is better read by [`Order::Inode`].
    #[default]
    Tree,
    /// In the order of the inode tables, all of them before the first entry comes: a disk
    /// reads them in one go. Takes 64 bytes for each inode, those that are free among the
    /// others included.
    Inode,
}

/// A scan of an image: see [`Ext4::scan`].
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use std::sync::atomic::AtomicBool;
///
/// use rcuwalk::scan::{ScanEntry, Visitor};
/// use rcuwalk_ext4::Ext4;
///
/// #[derive(Default)]
/// struct Bytes(u64);
///
/// impl Visitor for Bytes {
///     fn entry(&mut self, entry: &ScanEntry<'_>) -> ControlFlow<()> {
///         self.0 += entry.attr.blocks * 512;
///         ControlFlow::Continue(())
///     }
///     fn problem(&mut self, path: &[u8], error: &dyn std::error::Error) -> ControlFlow<()> {
///         eprintln!("{}: {error}", path.escape_ascii());
///         ControlFlow::Continue(())
///     }
/// }
///
/// let image = Ext4::open("backup.img")?;
/// // Two visitors are two threads.
/// let (visitors, _) = image.scan().run(&AtomicBool::new(false), vec![Bytes(0), Bytes(0)]);
/// println!("{} bytes", visitors.iter().map(|visitor| visitor.0).sum::<u64>());
/// # Ok::<(), rcuwalk_ext4::Error>(())
/// ```
#[must_use]
pub struct ImageScan<'e> {
    volume: &'e Volume,
    order: Order,
    targets: bool,
}

impl fmt::Debug for ImageScan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageScan")
            .field("order", &self.order)
            .field("targets", &self.targets)
            .finish_non_exhaustive()
    }
}

impl Ext4 {
    /// A scan of the whole image, to be run.
    pub fn scan(&self) -> ImageScan<'_> {
        ImageScan {
            volume: &self.volume,
            order: Order::default(),
            targets: true,
        }
    }
}

impl ImageScan<'_> {
    /// Where inodes are read.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Whether the targets of symbolic links are read, as is usual.
    pub fn targets(mut self, wanted: bool) -> Self {
        self.targets = wanted;
        self
    }

    /// How many inodes are in use, by the super block's count: a hint of how many entries
    /// there will be.
    pub fn inodes_used(&self) -> u64 {
        let super_block = self.volume.super_block();
        let free = super_block.free_inodes_count();
        u64::from(super_block.inodes_count().saturating_sub(free))
    }

    /// How many visitors, and with them threads, suit this machine: one per processor.
    pub fn usual_threads() -> usize {
        thread::available_parallelism().map_or(4, |cpus| cpus.get().min(64))
    }

    /// Scans with a thread for each of `visitors`, the root first. Returns them when all
    /// is done, or soon after `stop` is raised.
    ///
    /// What cannot be read is told as a problem; then entries may be missing below that
    /// path.
    pub fn run<V: Visitor>(&self, stop: &AtomicBool, visitors: Vec<V>) -> (Vec<V>, Ended) {
        if visitors.is_empty() {
            // Without a visitor nothing is scanned, and the result must not look complete.
            return (visitors, Ended::Early);
        }
        let shared = Shared {
            volume: self.volume,
            targets: self.targets,
            stop,
            queue: Queue::new(visitors.len()),
            visited: Visited::default(),
        };
        let table = match self.order {
            Order::Tree => None,
            Order::Inode => Some(Table::read(self.volume, visitors.len(), stop)),
        };
        let met = Met::new();
        let mut workers: Vec<_> = visitors
            .into_iter()
            .map(|visitor| {
                let inodes = Inodes::new(self.volume, table.as_ref(), &met);
                Worker::new(&shared, inodes, visitor)
            })
            .collect();
        if let Some(first) = workers.first_mut() {
            first.begin();
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
        let ended = match shared.queue.is_ended() || stop.load(Relaxed) {
            true => Ended::Early,
            false => Ended::Complete,
        };
        (visitors, ended)
    }
}

/// What all threads of a scan have.
struct Shared<'s> {
    volume: &'s Volume,
    targets: bool,
    stop: &'s AtomicBool,
    queue: Queue<Task>,
    visited: Visited,
}

/// The directories that have been visited. Not a bit for each inode there could be: how
/// many those are is for the image to say.
#[derive(Default)]
struct Visited([Mutex<HashSet<u32>>; 16]);

impl Visited {
    /// True for the first caller only.
    fn first(&self, ino: u32) -> bool {
        let shard = &self.0[ino as usize % self.0.len()];
        let mut inodes = shard.lock().unwrap_or_else(PoisonError::into_inner);
        inodes.insert(ino)
    }
}

#[cfg(test)]
mod tests;
