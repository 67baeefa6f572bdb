//! One contender's turn: its caches are dropped, then the walk is timed.

use std::io;
use std::time::{Duration, Instant};

use super::digest::Digest;
use super::kernel::{self, Forget};
use super::{ImageWalk, Place, ours};
use crate::usage::{CpuTime, machine_busy, peak_memory, reset_peak_memory};

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
    Contender::new("kernel", Method::Kernel, true),
    Contender::new("vfs", Method::Vfs, true),
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
        reset_peak_memory();
        let kernel_before = kernel::reclaimable_bytes();
        let (busy, cpu, start) = (machine_busy(), CpuTime::now(), Instant::now());
        let mut total = Duration::ZERO;
        let seen = match contender.method {
            Method::Kernel => kernel::walk(place.mount.path(), bench.threads, place.stop)?,
            // Cached objects are freed after the clock has stopped.
            Method::Vfs => ours::through_vfs(place.image, contender, bench, place.stop, || {
                total = start.elapsed();
            })?,
            _ => ours::scan(place.image, contender, bench, place.stop)?,
        };
        if total.is_zero() {
            total = start.elapsed();
        }
        let cpu = CpuTime::now().since(cpu);
        let others = machine_busy().saturating_sub(busy + cpu.user + cpu.sys);
        let turn = Turn {
            seen,
            total,
            cpu,
            others,
            peak_memory: peak_memory(),
            kernel_memory: kernel::reclaimable_bytes().saturating_sub(kernel_before),
        };
        // The next one starts with this one's memory given back.
        rcuwalk_sync::rcu::barrier();
        Ok(turn)
    }
}
