//! One contender's turn: its caches are dropped, then the walk is timed.

use std::io;
use std::time::{Duration, Instant};

use super::digest::Digest;
use super::kernel::{self, Forget};
use super::{ImageWalk, Place, ours};
use crate::usage::{CpuTime, machine_busy, peak_memory, reset_peak_memory, resident_memory};

/// A contender, and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) method: Method,
    /// Whether checksums of the image are verified. The kernel always does.
    pub(super) checksums: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Kernel,
    Vfs,
    /// In the order of the names, and in that of the inode tables.
    ScanByTree,
    ScanByInode,
}

impl Contender {
    pub(super) const KERNEL: Contender = Contender::new("kernel", Method::Kernel, true);
    pub(super) const VFS: Contender = Contender::new("vfs", Method::Vfs, true);
    pub(super) const SCAN: Contender = Contender::new("scan", Method::ScanByTree, true);

    const fn new(name: &'static str, method: Method, checksums: bool) -> Self {
        Self {
            name,
            method,
            checksums,
        }
    }
}

/// In each round's order; the first one is what the others are compared with.
pub(super) const CONTENDERS: [Contender; 6] = [
    Contender::KERNEL,
    Contender::VFS,
    Contender::SCAN,
    Contender::new("scan", Method::ScanByInode, true),
    Contender::new("vfs", Method::Vfs, false),
    Contender::new("scan", Method::ScanByTree, false),
];

/// Whether the image's blocks are cached when the walk begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    Cached,
    Cold,
}

/// The result of one turn.
pub(super) struct Turn {
    pub(super) seen: Digest,
    pub(super) total: Duration,
    pub(super) cpu: CpuTime,
    /// Processor time of all other programs meanwhile, the kernel's threads included.
    pub(super) others: Duration,
    /// Of the process, in bytes.
    pub(super) peak_memory: u64,
    /// What the process's resident memory grew by, in bytes, caches still full.
    pub(super) grown: u64,
    /// What the kernel's caches grew by, in bytes.
    pub(super) kernel_memory: u64,
}

impl Turn {
    pub(super) fn run(
        bench: &ImageWalk,
        contender: Contender,
        blocks: Blocks,
        place: &Place<'_>,
    ) -> io::Result<Turn> {
        kernel::drop_caches(
            match blocks {
                Blocks::Cached => Forget::Inodes,
                Blocks::Cold => Forget::Everything,
            },
            place.image,
        )?;
        let start = Start::now();
        let turn = match contender.method {
            Method::Kernel => Self::of_kernel(bench, place)?,
            Method::Vfs => {
                let mut turns = Self::laps(bench, contender, bench.cache_bytes, 1, place)?;
                turns.remove(0)
            }
            _ => start.turn(ours::scan(place.image, contender, bench, place.stop)?),
        };
        // The next one starts with this one's memory given back.
        rcuwalk_sync::rcu::barrier();
        Ok(turn)
    }

    /// Walks through the kernel, with what its caches hold.
    pub(super) fn of_kernel(bench: &ImageWalk, place: &Place<'_>) -> io::Result<Turn> {
        let start = Start::now();
        let seen = kernel::walk(place.mount.path(), bench.threads, place.stop)?;
        Ok(start.turn(seen))
    }

    /// Walks `laps` times through the VFS, whose caches are empty before the first lap.
    pub(super) fn laps(
        bench: &ImageWalk,
        contender: Contender,
        cache_bytes: usize,
        laps: usize,
        place: &Place<'_>,
    ) -> io::Result<Vec<Turn>> {
        let mut turns = Vec::with_capacity(laps);
        let mut start = Start::now();
        let lap_done = |seen| {
            // Cached objects are freed after the last lap's clock has stopped.
            turns.push(start.turn(seen));
            start = Start::now();
        };
        let (image, threads) = (place.image, bench.threads);
        ours::through_vfs(
            image,
            contender,
            threads,
            cache_bytes,
            laps,
            place.stop,
            lap_done,
        )?;
        rcuwalk_sync::rcu::barrier();
        Ok(turns)
    }
}

/// The clocks and counters when a turn begins.
struct Start {
    kernel_memory: u64,
    resident: u64,
    busy: Duration,
    cpu: CpuTime,
    start: Instant,
}

impl Start {
    fn now() -> Start {
        reset_peak_memory();
        Start {
            kernel_memory: kernel::reclaimable_bytes(),
            resident: resident_memory(),
            busy: machine_busy(),
            cpu: CpuTime::now(),
            start: Instant::now(),
        }
    }

    fn turn(&self, seen: Digest) -> Turn {
        let total = self.start.elapsed();
        let cpu = CpuTime::now().since(self.cpu);
        Turn {
            seen,
            total,
            cpu,
            others: machine_busy().saturating_sub(self.busy + cpu.user + cpu.sys),
            peak_memory: peak_memory(),
            grown: resident_memory().saturating_sub(self.resident),
            kernel_memory: kernel::reclaimable_bytes().saturating_sub(self.kernel_memory),
        }
    }
}
