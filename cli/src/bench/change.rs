//! `rcuwalk bench change`: names made, renamed and removed, beside tmpfs.

use rcuwalk_bench::change::{Change, ChangeError};

use super::{Options, with_bar};
use crate::failure::Failure;
use crate::signals::Stop;

/// Make, rename and remove files: memfs through ours against tmpfs
///
/// Each thread works in a directory of its own, with empty files, by name. Then a path is
/// walked beside a storm of renames, elsewhere and in the file's own directory: how long
/// do walks take at most?
#[derive(clap::Args, Default)]
pub(super) struct Args {}

pub(super) fn run(_args: &Args, options: &Options, stop: &Stop) -> Result<String, Failure> {
    if options.inodes.is_some() {
        return Err(Failure::error(
            "change: there are no --inodes; they are for iget and walktrees",
        ));
    }
    measure(options, stop)?.map_err(|err| Failure::error(format_args!("change: {err}")))
}

/// As one of all benchmarks: on a machine without a tmpfs the others go on.
pub(super) fn run_where_possible(
    options: &Options,
    stop: &Stop,
) -> Result<Option<String>, Failure> {
    match measure(options, stop)? {
        Err(err @ ChangeError::NoTmpfs(_)) => {
            eprintln!("rcuwalk: note: change is left out: {err}");
            Ok(None)
        }
        report => report
            .map(Some)
            .map_err(|err| Failure::error(format_args!("change: {err}"))),
    }
}

fn measure(options: &Options, stop: &Stop) -> Result<Result<String, ChangeError>, Failure> {
    let mut change = Change::new();
    change.rounds = options.rounds_or(Change::ROUNDS);
    if let Some(threads) = options.threads {
        change.threads = Change::threads_up_to(threads.into());
    }
    let report = with_bar("change", stop, |progress| change.run(stop.flag(), progress))?;
    match report {
        Ok(report) => options.form(&report).map(Ok),
        Err(err) => Ok(Err(err)),
    }
}
