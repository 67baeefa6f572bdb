//! `rcuwalk bench walktrees`: trees larger than the cache, with three ways of locking.

use std::path::PathBuf;

use clap::value_parser;
use rcuwalk_bench::image::ImageWalk;
use rcuwalk_bench::walktrees::{Shape, WalkTrees};

use super::{Options, with_bar};
use crate::failure::Failure;
use crate::signals::Stop;

/// Stat every file of trees larger than the cache: three ways to lock the inode cache
///
/// The workload of the kernel patch that looks up inodes under RCU. Each thread walks a tree of
/// its own; only the directories on the way are cached. `stock` locks one lock to look and
/// again to insert, `patch` to insert only, `ours` one per bucket. With --threads N, N threads
/// share the trees.
///
/// With --image, an ext4 image is walked, made with mkfs.ext4 and filled through the kernel: by
/// the kernel on a loop mount, by rcuwalk through its VFS, and by rcuwalk's scan; and in three
/// laps with a cache for an eighth of the entries, through the VFS and by the kernel in a control
/// group of limited memory. That needs root, and has the kernel drop the caches of the whole
/// machine.
#[derive(clap::Args, Default)]
pub(super) struct Args {
    #[command(flatten)]
    synthetic: Synthetic,
    /// Walk an ext4 image: the kernel, our VFS, and our scan
    #[arg(long)]
    image: bool,
    /// Reuse the image FILE, or make it and leave it there
    #[arg(long, value_name = "FILE", requires = "image")]
    keep: Option<PathBuf>,
    /// How many MiB the VFS's caches may take, with --image
    #[arg(long, value_name = "MIB", requires = "image", default_value_t = 4096,
          value_parser = value_parser!(u64).range(1..=1 << 24))]
    cache: u64,
    /// Do not measure without cached blocks, with --image
    #[arg(long, requires = "image")]
    no_cold: bool,
}

/// The shape of the computed trees.
#[derive(clap::Args, Default)]
struct Synthetic {
    /// How many trees [default: 20, or as many as --threads if that is more]
    #[arg(long, value_name = "T", value_parser = value_parser!(u64).range(1..))]
    trees: Option<u64>,
    /// How many directories in each tree [default: 50; in an image: 100]
    #[arg(long, value_name = "D", value_parser = value_parser!(u64).range(1..))]
    dirs: Option<u64>,
    /// How many files in each directory [default: 1000]
    #[arg(long, value_name = "F", value_parser = value_parser!(u64).range(1..))]
    files: Option<u64>,
}

impl Synthetic {
    fn shape(&self, threads: Option<u64>, usual: Shape) -> Shape {
        let trees = usual.trees.max(threads.unwrap_or(0));
        Shape {
            trees: self.trees.unwrap_or(trees),
            dirs: self.dirs.unwrap_or(usual.dirs),
            files: self.files.unwrap_or(usual.files),
        }
    }
}

pub(super) fn run(args: &Args, options: &Options, stop: &Stop) -> Result<String, Failure> {
    let threads = options.threads.map(u64::from);
    if args.image {
        return run_image(args, options, stop, threads);
    }
    let mut walktrees = WalkTrees::of(args.synthetic.shape(threads, WalkTrees::SHAPE));
    walktrees.threads = threads.unwrap_or(walktrees.threads);
    walktrees.inodes = options.inodes.unwrap_or(walktrees.inodes);
    walktrees.rounds = options.rounds_or(WalkTrees::ROUNDS);

    let report = with_bar("walktrees", stop, |progress| {
        walktrees.run(stop.flag(), progress)
    })?;
    let report = report.map_err(|err| Failure::error(format_args!("walktrees: {err}")))?;
    options.form(&report)
}

fn run_image(
    args: &Args,
    options: &Options,
    stop: &Stop,
    threads: Option<u64>,
) -> Result<String, Failure> {
    let mut walk = ImageWalk::of(args.synthetic.shape(threads, ImageWalk::SHAPE));
    walk.threads = threads.unwrap_or(walk.threads);
    walk.cache_bytes = (args.cache as usize) << 20;
    walk.keep = args.keep.clone();
    walk.rounds = options.rounds_or(ImageWalk::ROUNDS);
    walk.cold = !args.no_cold;
    if options.inodes.is_some() {
        return Err(Failure::error(
            "walktrees --image: there are no --inodes; --cache says how many MiB are cached",
        ));
    }

    let report = with_bar("walktrees --image", stop, |progress| {
        walk.run(stop.flag(), progress)
    })?;
    let report = report.map_err(|err| Failure::error(format_args!("walktrees: {err}")))?;
    options.form(&report)
}
