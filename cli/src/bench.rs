//! `rcuwalk bench`: the workloads; the kernel and the peers against ours.

mod change;
mod dirstorm;
mod fuse;
mod iget;
mod readdir;
mod walktrees;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::{Subcommand, value_parser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rcuwalk_bench::access::{Access, AccessError, Progress};
use rcuwalk_bench::paths::PathList;
use serde::Serialize;

use crate::failure::{Failure, print};
use crate::limits::raise_descriptor_limit;
use crate::signals::Stop;

/// Measure rcuwalk against the kernel, and against the tables of others
///
/// Contenders get the same work, take turns in one run, and are compared by the medians of the
/// rounds. Without a BENCHMARK, all of them run, which takes two to three minutes; except for
/// dirstorm, fuse and readdir, which mount something.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,
    #[command(flatten)]
    options: Options,
}

/// Options of all benchmarks.
#[derive(clap::Args)]
struct Options {
    /// Print one JSON document, and nothing else, on standard output
    #[arg(long, global = true)]
    json: bool,
    /// Measure with one thread and with up to N [default: the number of cores; iget: 20];
    /// walktrees: with N [default: one per tree];
    /// dirstorm, fuse: walk with N [default: 20]
    #[arg(long, global = true, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// How many rounds to take the median of [default: 25; change: 15; dirstorm: 5; fuse: 7;
    /// iget: 7; readdir: 9; walktrees: 5]
    #[arg(long, global = true, value_name = "N",
          value_parser = value_parser!(u32).range(1..=100_000))]
    rounds: Option<u32>,
    /// How many inodes are cached [default: iget: 1000000; walktrees: a quarter of the
    /// trees]
    #[arg(long, global = true, value_name = "N", value_parser = value_parser!(u64).range(1..=1 << 30))]
    inodes: Option<u64>,
}

impl Options {
    /// A report in the form that was asked for.
    fn form<R: ToString + Serialize>(&self, report: &R) -> Result<String, Failure> {
        if self.json {
            serde_json::to_string(report).map_err(Failure::error)
        } else {
            Ok(report.to_string())
        }
    }

    fn rounds_or(&self, usual: usize) -> usize {
        self.rounds.map_or(usual, |rounds| rounds as usize)
    }
}

#[derive(Subcommand)]
#[command(
    subcommand_value_name = "BENCHMARK",
    subcommand_help_heading = "Benchmarks"
)]
enum Benchmark {
    Access(AccessArgs),
    Change(change::Args),
    Dirstorm(dirstorm::Args),
    Fuse(fuse::Args),
    Iget(iget::Args),
    Readdir(readdir::Args),
    Walktrees(walktrees::Args),
}

/// Does this path exist? access(2) against ours, everything cached
///
/// By default: the 205 paths that a g++ compile and link asks for, 118 of which do
/// not exist, on the tree they belong to. Other paths are asked of a copy of as much
/// of this machine's tree as they meet, with empty files.
#[derive(clap::Args, Default)]
#[command(override_usage = "rcuwalk bench access [OPTIONS] \
                      [--wide | --paths <FILE> | --trace -- <COMMAND>...]")]
struct AccessArgs {
    /// Take the paths from FILE: absolute, one per line, `#` starts a comment
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    paths: Option<PathBuf>,
    /// Ask for 45,000 computed paths, the same on every machine, in 5,000 directories
    #[arg(long, conflicts_with_all = ["paths", "trace"])]
    wide: bool,
    /// Take the paths that COMMAND asks for, by running it under strace
    #[arg(long, requires = "command")]
    trace: bool,
    /// The command to trace, and its arguments
    #[arg(last = true, value_name = "COMMAND", requires = "trace")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let stop = Stop::on_signals()
        .map_err(|err| Failure::error(format_args!("cannot catch signals: {err}")))?;
    raise_descriptor_limit();
    let options = &args.options;
    let text = match &args.benchmark {
        Some(Benchmark::Access(_)) if options.inodes.is_some() => {
            return Err(Failure::error(
                "access: there are no --inodes; they are for iget and walktrees",
            ));
        }
        Some(Benchmark::Change(change)) => change::run(change, options, &stop)?,
        Some(Benchmark::Dirstorm(dirstorm)) => dirstorm::run(dirstorm, options, &stop)?,
        Some(Benchmark::Fuse(fuse)) => fuse::run(fuse, options, &stop)?,
        Some(Benchmark::Access(access)) => run_access(access, options, &stop)?,
        Some(Benchmark::Iget(iget)) => iget::run(iget, options, &stop)?,
        Some(Benchmark::Readdir(readdir)) => readdir::run(readdir, options, &stop)?,
        Some(Benchmark::Walktrees(walktrees)) => walktrees::run(walktrees, options, &stop)?,
        None => {
            // --inodes is for those that have it.
            let mut all = vec![run_access(&AccessArgs::default(), options, &stop)?];
            all.extend(change::run_where_possible(options, &stop)?);
            all.push(iget::run(&iget::Args::default(), options, &stop)?);
            all.push(walktrees::run(&walktrees::Args::default(), options, &stop)?);
            // One benchmark is its document; all of them are a list.
            if options.json {
                format!("[{}]", all.join(","))
            } else {
                all.join("\n")
            }
        }
    };
    print(&(text.trim_end().to_owned() + "\n"))
}

fn run_access(args: &AccessArgs, options: &Options, stop: &Stop) -> Result<String, Failure> {
    let mut access = match paths(args, stop)? {
        None if args.wide => Access::wide(),
        Some(paths) => Access::of_host(paths).map_err(|err| {
            Failure::error(format_args!(
                "cannot copy the tree that the paths meet: {err}"
            ))
        })?,
        None => Access::builtin(),
    };
    access.rounds = options.rounds_or(Access::ROUNDS);
    if let Some(threads) = options.threads {
        access.threads = threads.into();
    }
    stop.check()?;

    let report = with_bar("access", stop, |progress| access.run(stop.flag(), progress))?;
    let report = report.map_err(|err| match err {
        AccessError::Io { .. } => Failure::error(format_args!(
            "access: {err}; set TMPDIR to a directory with room for it"
        )),
        err => Failure::error(format_args!("access: {err}")),
    })?;
    options.form(&report)
}

/// Reads the paths that the user names; `None` stands for the built-in ones.
fn paths(args: &AccessArgs, stop: &Stop) -> Result<Option<PathList>, Failure> {
    if let Some(file) = &args.paths {
        let list = PathList::from_file(file).map_err(|err| {
            Failure::error(format_args!(
                "{err}; --paths takes a file of absolute paths, one per line"
            ))
        })?;
        return Ok(Some(list));
    }
    if !args.trace {
        return Ok(None);
    }
    let traced = PathList::from_trace(&args.command);
    // Ctrl-C also ended the traced command; a shorter trace is no error then.
    stop.check()?;
    let trace = traced.map_err(|err| Failure::error(format_args!("--trace: {err}")))?;
    let name = args.command[0].display();
    if !trace.status.success() {
        eprintln!("rcuwalk: note: {name} ended with {}", trace.status);
    }
    eprintln!(
        "rcuwalk: {name} asked for {} paths; left out: {} of /proc, /dev and /sys, \
         {} relative ones of unknown start",
        trace.list.len(),
        trace.special_dropped,
        trace.relative_dropped
    );
    Ok(Some(trace.list))
}

/// Runs a benchmark, and draws how far it is.
fn with_bar<T>(
    name: &'static str,
    stop: &Stop,
    run: impl FnOnce(&mut (dyn FnMut(Progress) + Send)) -> T,
) -> Result<T, Failure> {
    let bar = progress_bar(name);
    let report = run(&mut |at| {
        bar.set_length(at.total);
        bar.set_position(at.done);
    });
    bar.finish_and_clear();
    // A signal that came while the last round ended still means: no table.
    stop.check()?;
    Ok(report)
}

/// A progress bar, shown only on a terminal. It is drawn between rounds, so that it disturbs no
/// measurement.
fn progress_bar(name: &'static str) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} done, {eta} left")
        .expect("a constant template");
    ProgressBar::with_draw_target(None, target)
        .with_style(style)
        .with_message(name)
}
