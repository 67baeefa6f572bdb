//! `rcuwalk bench fuse`: a directory directly, through our daemon, and through a plain one.

use std::path::PathBuf;

use rcuwalk_bench::fuse::Fuse;
use rcuwalk_bench_peers::PlainFuse;

use super::{Options, with_bar};
use crate::failure::Failure;
use crate::signals::Stop;

/// Mount a directory: ours against a plain daemon, and against the directory itself
///
/// A tree is made, on /dev/shm or among temporary files. In each round each contender walks
/// it with 20 threads (or --threads), just after it was mounted and once more, walks 200,000
/// files twice with two seconds in between, makes and removes 20,000 files with 8 threads, lists 200,000 entries, and reads and writes 256 MiB,
/// four times. `mutex-hashmap` is the plain daemon: fuser with a table of paths behind one lock.
/// Needs /dev/fuse, and root or fusermount3. As root it has the kernel offer io_uring meanwhile
/// (fuse.enable_uring), and puts that back.
#[derive(clap::Args, Default)]
pub(super) struct Args {
    /// Make the tree in DIR
    #[arg(long, value_name = "DIR")]
    within: Option<PathBuf>,
    /// So many times less of everything, for a quick look
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    less: u32,
}

pub(super) fn run(args: &Args, options: &Options, stop: &Stop) -> Result<String, Failure> {
    if options.inodes.is_some() {
        return Err(Failure::error(
            "fuse: there are no --inodes; they are for iget and walktrees",
        ));
    }
    let mut fuse = Fuse::new();
    fuse.rounds = options.rounds_or(Fuse::ROUNDS);
    if let Some(threads) = options.threads {
        fuse.walkers = threads.into();
    }
    fuse.within = args.within.clone();
    let less = args.less as usize;
    fuse.dirs = (fuse.dirs / less).max(1);
    fuse.many = (fuse.many / less).max(1);
    fuse.made = (fuse.made / less).max(fuse.makers);
    fuse.listed = (fuse.listed / less).max(1);
    fuse.mib = (fuse.mib / u64::from(args.less)).max(1);

    let report = with_bar("fuse", stop, |progress| {
        fuse.run(&PlainFuse, stop.flag(), progress)
    })?;
    let report = report.map_err(|err| Failure::error(format_args!("fuse: {err}")))?;
    options.form(&report)
}
