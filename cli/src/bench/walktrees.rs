//! `rcuwalk bench walktrees`: trees larger than the cache, with three ways of locking.

use clap::value_parser;
use rcuwalk_bench::walktrees::{Shape, WalkTrees};

use super::{How, progress_bar};
use crate::failure::Failure;
use crate::signals::Stop;

/// Stat every file of trees larger than the cache: three ways to lock the inode cache
///
/// The workload of the kernel patch that looks up inodes under RCU. Each thread walks a
/// tree of its own; nothing it asks for is cached, but for the directories on the way.
/// `stock` locks one lock to look and again to insert, `patch` to insert only, `ours`
/// one per bucket. With --threads N, so many threads share the trees.
#[derive(clap::Args, Default)]
pub(super) struct Args {
    #[command(flatten)]
    synthetic: Synthetic,
}

/// What the computed trees look like.
#[derive(clap::Args, Default)]
struct Synthetic {
    /// How many trees [default: 20, or as many as --threads if that is more]
    #[arg(long, value_name = "T", value_parser = value_parser!(u64).range(1..))]
    trees: Option<u64>,
    /// How many directories in each tree [default: 50]
    #[arg(long, value_name = "D", value_parser = value_parser!(u64).range(1..))]
    dirs: Option<u64>,
    /// How many files in each directory [default: 1000]
    #[arg(long, value_name = "F", value_parser = value_parser!(u64).range(1..))]
    files: Option<u64>,
}

impl Synthetic {
    fn shape(&self, threads: Option<u64>) -> Shape {
        let usual = WalkTrees::SHAPE;
        let trees = usual.trees.max(threads.unwrap_or(0));
        Shape {
            trees: self.trees.unwrap_or(trees),
            dirs: self.dirs.unwrap_or(usual.dirs),
            files: self.files.unwrap_or(usual.files),
        }
    }
}

pub(super) fn run(args: &Args, how: &How, stop: &Stop) -> Result<String, Failure> {
    let threads = how.threads.map(u64::from);
    let mut walktrees = WalkTrees::of(args.synthetic.shape(threads));
    walktrees.threads = threads.unwrap_or(walktrees.threads);
    walktrees.inodes = how.inodes.unwrap_or(walktrees.inodes);
    walktrees.rounds = how.rounds_or(WalkTrees::ROUNDS);

    let bar = progress_bar("walktrees");
    let report = walktrees.run(stop.flag(), &mut |at| {
        bar.set_length(at.total);
        bar.set_position(at.done);
    });
    bar.finish_and_clear();
    // A signal that came while the last round ended still means: no table.
    stop.check()?;
    let report = report.map_err(|err| Failure::error(format_args!("walktrees: {err}")))?;
    how.form(&report)
}
