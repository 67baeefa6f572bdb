//! The numbers, as a table for people and as JSON for programs.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::ImageWalk;
use super::digest::Digest;
use super::eighth::Eighth;
use super::turn::{Blocks, CONTENDERS, Contender, Method, Turn};
use crate::measure::Summary;
use crate::report::{Table, decimals, grouped, other_programs, percent};
use crate::walktrees::Shape;

/// The result of the benchmark.
pub type Report = crate::report::Report<Details>;

/// What `bench walktrees --image` measured.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// Names below the root; each walk saw all of them.
    pub entries: u64,
    /// One per contender; first those with blocks cached and checksums verified.
    pub rows: Vec<Row>,
    /// Trees.
    pub trees: u64,
    /// Directories in each.
    pub dirs: u64,
    /// Files in each of those.
    pub files: u64,
    /// Bytes of the image, holes included.
    pub image_bytes: u64,
    /// How long making it took; none if it was there.
    pub made_s: Option<f64>,
    /// Bytes that the VFS's caches may take.
    pub cache_bytes: usize,
    /// Bytes that they may take in the rows with a cache of an eighth.
    pub eighth_cache_bytes: usize,
    /// What a walk of the kernel with room charged to its control group; none without a group.
    pub kernel_charged_bytes: Option<u64>,
    /// The control group's limit in the rows with a cache of an eighth.
    pub kernel_limit_bytes: Option<u64>,
    /// Why there is no kernel with a cache of an eighth.
    pub kernel_not_limited: Option<String>,
    /// Rounds that the medians are of; without cached blocks there is one.
    pub rounds: usize,
    /// Over path, inode, type, permissions, owner, group, size, time and links of every
    /// entry, in hexadecimal.
    pub checksum: String,
    /// Cores that other programs and the kernel's threads kept busy meanwhile, on average.
    pub other_programs: f64,
}

/// One contender: medians of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `kernel`, `vfs` or `scan`.
    pub contender: &'static str,
    /// `tree` or `inode`: the order that inodes are read in.
    pub order: &'static str,
    /// Whether the image's checksums were verified.
    pub checksums: bool,
    /// `cached` or `cold`.
    pub blocks: &'static str,
    /// `all`: the cache has room; `eighth`: for an eighth of what those with room took.
    pub cache: &'static str,
    /// 1: nothing was cached at the start; more: what the lap before left in the cache.
    pub lap: usize,
    /// How many threads at once.
    pub threads: u64,
    /// From the start of the first thread to the end of the last one.
    pub seconds: f64,
    /// How far the rounds lie apart, as a part of the median.
    pub spread: f64,
    /// Of all threads together.
    pub entries_per_s: f64,
    /// Processor time of the process outside of the kernel.
    pub user_s: f64,
    /// And in it; its own threads are not counted here.
    pub sys_s: f64,
    /// `all` or `eighth`: the kernel's cache in the row that this one is compared with. It is the
    /// kernel's row with the same cache and lap; where no control group can be made, that of the
    /// kernel with room.
    pub kernel_cache: &'static str,
    /// How many times faster than that: the median of the rounds' ratios.
    pub ratio_to_kernel: f64,
    /// The most memory of the process in any round, in MiB.
    pub peak_rss_mb: f64,
    /// What resident memory grew by with every entry cached, per entry; the most of any
    /// round. Only of `vfs` where the cache has room.
    pub bytes_per_entry: Option<f64>,
    /// What the kernel's caches of names and inodes grew by, in MiB.
    pub kernel_cache_mb: f64,
}

impl Report {
    pub(super) fn new(
        bench: &ImageWalk,
        image: &Path,
        made_s: Option<f64>,
        seen: Digest,
        cached: &[Vec<Turn>],
        cold: &[Vec<Turn>],
        eighth: &Eighth,
    ) -> Self {
        let Shape { trees, dirs, files } = bench.shape;
        let mut rows = rows(bench, cached, Blocks::Cached);
        rows.extend(self::rows(bench, cold, Blocks::Cold));
        rows.extend(laps(bench, &cached[0], eighth));
        let kernel = eighth.kernel.as_ref();
        Self::verified(
            "walktrees",
            Details {
                entries: seen.entries,
                rows,
                trees,
                dirs,
                files,
                image_bytes: image.metadata().map_or(0, |image| image.len()),
                made_s: made_s.map(|seconds| decimals(seconds, 6)),
                cache_bytes: bench.cache_bytes,
                eighth_cache_bytes: eighth.cache_bytes,
                kernel_charged_bytes: kernel.ok().map(|kernel| kernel.charged_bytes),
                kernel_limit_bytes: kernel.ok().map(|kernel| kernel.limit_bytes),
                kernel_not_limited: kernel.err().cloned(),
                rounds: bench.rounds,
                checksum: format!("{:016x}", seen.checksum),
                other_programs: other_programs(
                    (cached.iter().flatten()).map(|turn| (turn.total, turn.others)),
                ),
            },
        )
    }
}

fn total(turns: &[Turn]) -> Summary {
    let seconds = turns.iter().map(|turn| turn.total.as_secs_f64());
    Summary::new("", seconds.collect())
}

fn rows(bench: &ImageWalk, turns: &[Vec<Turn>], blocks: Blocks) -> Vec<Row> {
    let measured = CONTENDERS.iter().zip(turns);
    let measured = measured.filter(|(_, turns)| !turns.is_empty());
    let rows = measured.map(|(contender, of)| row(bench, contender, of, &total(&turns[0]), blocks));
    rows.collect()
}

/// The rows with a cache of an eighth: the kernel's, if there are any, and then ours.
fn laps(bench: &ImageWalk, with_room: &[Turn], eighth: &Eighth) -> Vec<Row> {
    let lap = |contender, (turns, lap): (&Vec<Turn>, usize)| {
        let (kernel, kernel_cache) = match &eighth.kernel {
            Ok(kernel) => (&*kernel.laps[lap - 1], "eighth"),
            Err(_) => (with_room, "all"),
        };
        Row {
            cache: "eighth",
            lap,
            kernel_cache,
            bytes_per_entry: None,
            ..row(bench, &contender, turns, &total(kernel), Blocks::Cached)
        }
    };
    let kernel = eighth.kernel.iter().flat_map(|kernel| &kernel.laps);
    let kernel = kernel.zip(1..).map(|turns| lap(Contender::KERNEL, turns));
    let vfs = eighth.vfs.iter().zip(1..);
    kernel
        .chain(vfs.map(|turns| lap(Contender::VFS, turns)))
        .collect()
}

fn row(
    bench: &ImageWalk,
    contender: &Contender,
    turns: &[Turn],
    kernel: &Summary,
    blocks: Blocks,
) -> Row {
    let median = |of: &dyn Fn(&Turn) -> f64| {
        Summary::new(contender.name, turns.iter().map(of).collect()).median()
    };
    let most = |of: &dyn Fn(&Turn) -> u64| {
        let most = turns.iter().map(of).max().unwrap_or(0);
        (most as f64 / f64::from(1 << 20)).round()
    };
    let total = total(turns);
    let entries = turns[0].seen.entries as f64;
    let most_grown = turns.iter().map(|turn| turn.grown).max().unwrap_or(0) as f64;
    Row {
        contender: contender.name,
        order: match contender.method {
            Method::ScanByInode => "inode",
            _ => "tree",
        },
        checksums: contender.checksums,
        blocks: match blocks {
            Blocks::Cached => "cached",
            Blocks::Cold => "cold",
        },
        cache: "all",
        lap: 1,
        threads: match contender.method {
            Method::Kernel | Method::Vfs => bench.threads,
            Method::ScanByTree | Method::ScanByInode => bench.scan_threads,
        },
        seconds: decimals(total.median(), 6),
        spread: decimals(total.spread(), 6),
        entries_per_s: (entries / total.median()).round(),
        user_s: decimals(median(&|turn| turn.cpu.user.as_secs_f64()), 6),
        sys_s: decimals(median(&|turn| turn.cpu.sys.as_secs_f64()), 6),
        kernel_cache: "all",
        ratio_to_kernel: decimals(kernel.ratio_to(&total), 6),
        peak_rss_mb: most(&|turn| turn.peak_memory),
        bytes_per_entry: (contender.method == Method::Vfs)
            .then(|| decimals(most_grown / entries, 1)),
        kernel_cache_mb: most(&|turn| turn.kernel_memory),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "walktrees: an ext4 image of {} trees of {} directories of {} files: {} entries\n\
             everybody saw the same: checksum {} over path, inode, type, mode, owner, size, \
             time, links\n{}\n",
            grouped(self.trees),
            grouped(self.dirs),
            grouped(self.files),
            grouped(self.entries),
            self.checksum,
            self.machine
        )?;
        let mut table = Table::new(
            6,
            "contender | order | blocks | checksums | cache | lap | threads | total | spread | entries/s | user | system | kernel = | memory | bytes/entry",
        );
        for row in &self.rows {
            table.row([
                row.contender.to_owned(),
                row.order.to_owned(),
                row.blocks.to_owned(),
                if row.checksums { "verified" } else { "not" }.to_owned(),
                row.cache.to_owned(),
                row.lap.to_string(),
                row.threads.to_string(),
                format!("{:.3} s", row.seconds),
                percent(row.spread),
                grouped(row.entries_per_s as u64),
                format!("{:.2} s", row.user_s),
                format!("{:.2} s", row.sys_s),
                format!("{:.1} x", row.ratio_to_kernel),
                // Where names and inodes are.
                match row.contender {
                    "kernel" => format!("{} MiB", row.kernel_cache_mb),
                    _ => format!("{} MiB", row.peak_rss_mb),
                },
                row.bytes_per_entry
                    .map_or_else(String::new, |bytes| format!("{bytes:.0}")),
            ]);
        }
        table.fmt(f)?;
        writeln!(
            f,
            "\nMedians of {} rounds with cached blocks. No inode is cached when a walk begins; \
             vfs instantiates\nname and inode of every entry (and keeps them, within {} MiB), \
             scan neither. Memory: of the\nprocess; for the kernel, what its caches of names \
             and inodes grew by.\nWith a cache of an eighth, vfs has {} MiB, an eighth of what its \
             walk with room took;",
            self.rounds,
            grouped(self.cache_bytes as u64 >> 20),
            grouped(self.eighth_cache_bytes as u64 >> 20)
        )?;
        match (self.kernel_limit_bytes, self.kernel_charged_bytes) {
            (Some(limit), Some(charged)) => writeln!(
                f,
                "the kernel it is compared with has {} MiB, in a control group that a walk with \
                 room charged {} MiB.",
                grouped(limit >> 20),
                grouped(charged >> 20)
            ),
            _ => writeln!(
                f,
                "the kernel it is compared with has room, as there is no control group: {}",
                self.kernel_not_limited.as_deref().unwrap_or_default()
            ),
        }
    }
}
