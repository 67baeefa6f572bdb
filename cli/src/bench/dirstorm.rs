//! `rcuwalk bench dirstorm`: many threads list a few large directories and look up every name.

use clap::value_parser;
use rcuwalk_bench::dirstorm::Dirstorm;

use super::{Options, with_bar};
use crate::failure::Failure;
use crate::signals::Stop;

/// List a few large directories with many threads at once: ours against the kernel
///
/// On an ext4 image in TMPDIR, with nothing cached, each of 20 threads (or --threads) lists each
/// directory and looks up every name in it: the kernel on a loop mount, hostfs on that mount, and ours from the
/// image. Then lookups of cached names in a directory of 600,000 files are timed one by one,
/// alone, and beside a listing of it and files made and removed in it. The storm needs root and
/// mkfs.ext4; it drops the kernel's caches many times. Without root, the lookups run on a tmpfs.
#[derive(clap::Args, Default)]
pub(super) struct Args {
    /// How many directories [default: 4]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1 << 10))]
    dirs: Option<u64>,
    /// How many files each of them has [default: 100000]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1 << 22))]
    entries: Option<u64>,
    /// How many files the directory has in which lookups run beside changes [default: 600000]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1 << 22))]
    large: Option<u64>,
}

pub(super) fn run(args: &Args, options: &Options, stop: &Stop) -> Result<String, Failure> {
    if options.inodes.is_some() {
        return Err(Failure::error(
            "dirstorm: there are no --inodes; they are for iget and walktrees",
        ));
    }
    let mut dirstorm = Dirstorm::new();
    dirstorm.dirs = args.dirs.unwrap_or(Dirstorm::DIRS);
    dirstorm.entries = args.entries.unwrap_or(Dirstorm::ENTRIES);
    dirstorm.large = args.large.unwrap_or(Dirstorm::LARGE);
    dirstorm.threads = options.threads.map_or(Dirstorm::THREADS, usize::from);
    dirstorm.rounds = options.rounds_or(Dirstorm::ROUNDS);
    let report = with_bar("dirstorm", stop, |progress| {
        dirstorm.run(stop.flag(), progress)
    })?;
    let report = report.map_err(|err| Failure::error(format_args!("dirstorm: {err}")))?;
    options.form(&report)
}
