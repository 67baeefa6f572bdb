//! `rcuwalk bench readdir`: one large directory, listed again and again.

use std::path::PathBuf;

use clap::value_parser;
use rcuwalk_bench::readdir::Readdir;

use super::{Options, with_bar};
use crate::failure::Failure;
use crate::signals::Stop;

/// List one large directory: ours against getdents64(2) on tmpfs, ext4 and xfs
///
/// Makes the directory on a tmpfs, and as root on loop mounts of ext4 and xfs, in TMPDIR; then
/// all contenders list it in turn: the kernel, memfs, and hostfs and the ext4 image with a cache
/// of listings and without.
#[derive(clap::Args, Default)]
pub(super) struct Args {
    /// How many entries the directory has [default: 923327]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1 << 26))]
    entries: Option<u64>,
    /// List DIR, and make none: the kernel against hostfs
    #[arg(long, value_name = "DIR", conflicts_with = "entries")]
    target: Option<PathBuf>,
}

pub(super) fn run(args: &Args, options: &Options, stop: &Stop) -> Result<String, Failure> {
    if options.inodes.is_some() {
        return Err(Failure::error(
            "readdir: there are no --inodes; they are for iget and walktrees",
        ));
    }
    let mut readdir = Readdir::new();
    readdir.entries = args.entries.unwrap_or(Readdir::ENTRIES);
    readdir.target.clone_from(&args.target);
    readdir.rounds = options.rounds_or(Readdir::ROUNDS);
    if let Some(threads) = options.threads {
        readdir.threads = match threads {
            1 => vec![1],
            most => vec![1, most.into()],
        };
    }
    let report = with_bar("readdir", stop, |progress| {
        readdir.run(stop.flag(), progress)
    })?;
    let report = report.map_err(|err| Failure::error(format_args!("readdir: {err}")))?;
    options.form(&report)
}
