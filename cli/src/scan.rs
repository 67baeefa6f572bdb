//! `rcuwalk scan`: every entry of a tree once, in parallel.
//!
//! | read                | to learn                                                  |
//! |---------------------|-----------------------------------------------------------|
//! | this file           | the options, and how a scan runs and ends                 |
//! | `scan/source.rs`    | what can be scanned, and by which engine                  |
//! | `scan/job.rs`       | what a thread does with an entry                          |
//! | `scan/summary.rs`   | the page that is shown without `--format`                 |
//! | `scan/record.rs`    | a row; `line.rs`, `columns.rs`: its fields in each format |
//! | `scan/output.rs`    | files that appear when they are whole                     |
//! | `scan/since.rs`     | `--changed-since`: times, and reading earlier scans       |
//! | `scan/changes.rs`   | comparing with one; `previous.rs`: what that takes        |
//! | `scan/problems.rs`  | what could not be read                                    |
//!
//! The rule that holds it together: what is called complete is complete. A result that
//! lacks something because the scan ended early is marked, and never compared with.

mod changes;
#[cfg(any(feature = "parquet", feature = "sqlite"))]
mod columns;
mod job;
mod line;
mod output;
#[cfg(feature = "parquet")]
mod parquet_file;
mod previous;
mod problems;
mod record;
mod since;
mod source;
#[cfg(feature = "sqlite")]
mod sqlite_file;
mod summary;
mod text;

use std::fmt;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::value_parser;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use rcuwalk::scan::Ended;

use crate::failure::{Failure, print};
use crate::limits::raise_descriptor_limit;
use crate::signals::Stop;
use changes::Comparison;
use job::{Job, Visit, Wanted};
use output::{Format, Kept, Output};
use previous::Previous;
use problems::Problems;
use since::Since;
use source::{ChecksumsArg, How, OrderArg, Source};
use summary::{Common, Report, Summary};

/// Read every entry of a tree once, in parallel
///
/// SOURCE is a directory of the host, or an ext2, ext3 or ext4 image or device, which is
/// only read, and should not be mounted for writing meanwhile: take a snapshot. Symbolic
/// links are not followed, other file systems are not entered. Prints a summary, or a row
/// per entry with --format.
///
/// A file that is written to with --output appears when it is complete; until then, an older
/// one of that name stays. Of a scan that ended early, what there is is kept as FILE.partial.
#[derive(clap::Args)]
#[command(after_help = "\
CHANGED SINCE:
  T is 2026-01-31T12:00:00Z, @SECONDS since 1970, or a time ago: 24h, 7d, 1h30m. Entries are
  reported whose mtime or ctime is T or later. What was removed or renamed is not seen so.

  PREVIOUS_SCAN is a file that an earlier `rcuwalk scan --format … --output` of the same tree
  wrote, in any format. New, changed, renamed and removed entries are reported. It is held in
  memory, about 70 bytes per entry. A partial one is refused.

EXIT STATUS:
  0 if everything was read, 1 if something could not be read or written, 2 for wrong usage,
  128 + N if signal N ended the scan.

Columns, encodings and what is called a change: docs/scan.md.")]
pub(crate) struct Args {
    /// The tree
    source: PathBuf,
    /// Print a row per entry
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    /// Write the rows to FILE, and print the summary
    #[arg(short, long, value_name = "FILE", requires = "format")]
    output: Option<PathBuf>,
    /// Print the summary as one JSON document
    #[arg(long)]
    json: bool,
    /// Report only what changed since a time or an earlier scan
    #[arg(long, value_name = "T|PREVIOUS_SCAN")]
    changed_since: Option<String>,
    /// In which order entries are read
    #[arg(long, value_enum, value_name = "ORDER", default_value_t)]
    order: OrderArg,
    /// Stay on SOURCE's file system, as is usual; a mount point itself is reported
    #[arg(short = 'x', long, overrides_with = "cross_file_systems")]
    one_file_system: bool,
    /// Scan what is mounted below SOURCE, too
    #[arg(long)]
    cross_file_systems: bool,
    /// Ask for file handles, too: one more system call per entry. Where they tell the inode's
    /// generation, that is reported
    #[arg(long)]
    handles: bool,
    /// Which checksums of an image are verified
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    checksums: ChecksumsArg,
    /// Scan with N threads [default: two per core; of an image, one]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// No progress on standard error
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.json && args.format.is_some() && args.output.is_none() {
        return Err(Failure::error(
            "--json is for the summary, which comes only if the rows go elsewhere: --output FILE",
        ));
    }
    let stop = Stop::on_signals()
        .map_err(|err| Failure::error(format_args!("cannot catch signals: {err}")))?;
    raise_descriptor_limit();
    let since = args.changed_since.as_deref().map(Since::parse);
    let since = since.transpose()?;
    let source = Source::open(&args.source, &args.how(since.as_ref()))?;
    let job = args.job(&source, since, &stop);
    // A signal is why an earlier scan was not read to its end.
    stop.check()?;
    let job = job?;

    let begun = Instant::now();
    let threads = args
        .threads
        .map_or_else(|| source.usual_threads(), usize::from);
    let visits = (0..threads).map(|_| Visit::new(&job)).collect();
    let (visits, mut ended) = source.run(stop.flag(), visits);
    let mut what = "the scan ended early";
    // Afterwards: it may also have shrunk meanwhile.
    if let Some(missing) = source.missing() {
        let source = args.source.display();
        job.problems
            .add_general(format_args!("{source}: {missing}"));
        ended = Ended::Early;
        what = "the image is cut off";
    }
    let mut result = job.end(visits, ended, &stop);
    job.bar.finish_and_clear();
    let kept = match &job.output {
        Some(output) => {
            let (kept, written) = output.finish(result.complete);
            result.complete &= written.is_ok();
            result.failure = written.err().or(result.failure);
            kept
        }
        None => Kept::Whole,
    };
    if let Kept::Unwanted = kept {
        return Ok(());
    }
    if let Kept::Partial(file) = &kept {
        let file = file.display();
        eprintln!("rcuwalk: {what}; what there is of it is in {file}");
    } else if !result.complete {
        eprintln!("rcuwalk: {what}; this is a part of it");
    }
    if args.format.is_none() || args.output.is_some() {
        let report = Report {
            source: args.source.as_os_str().as_bytes().to_vec(),
            complete: result.complete,
            problems: job.problems.count(),
            took: begun.elapsed(),
            unknown: result.unknown,
            summary: result.summary,
        };
        print(&if args.json {
            report.json()
        } else {
            report.text()
        })?;
    }
    stop.check()?;
    match (result.failure, job.problems.count()) {
        (Some(failure), _) => Err(failure),
        (None, 0) if result.complete => Ok(()),
        (None, 0) => Err(Failure::Errors(Vec::new())),
        (None, 1) => Err(Failure::error("one thing could not be read")),
        (None, count) => Err(Failure::error(format_args!("{count} could not be read"))),
    }
}

impl Args {
    fn how(&self, since: Option<&Since>) -> How {
        How {
            order: self.order,
            one_file_system: !self.cross_file_systems,
            // Comparing asks for them anyway: where there are no times of birth, only a
            // generation tells a renamed file from a new one of the same inode number.
            handles: self.handles || matches!(since, Some(Since::Scan(_))),
            targets: self.format.is_some() || since.is_some(),
            checksums: self.checksums,
        }
    }

    /// What is to be done with the entries. An output file is made only when all else
    /// that was asked for is there.
    fn job(&self, source: &Source, since: Option<Since>, stop: &Stop) -> Result<Job, Failure> {
        let wanted = match since {
            None => Wanted::All,
            Some(Since::Time(moment)) => Wanted::Since(moment),
            Some(Since::Scan(file)) => {
                let previous = Previous::load(&file, source.device(), stop.flag())?;
                Wanted::Changed(Box::new(Comparison::with(previous)))
            }
        };
        let changes = self.changed_since.is_some();
        let output = self
            .format
            .map(|format| Output::open(format, self.output.as_deref(), &self.source, changes));
        Ok(Job {
            output: output.transpose()?,
            wanted,
            problems: Problems::default(),
            common: Common::new(),
            bar: progress_bar(source.total_hint(), self.quiet),
            root: Mutex::default(),
        })
    }
}

/// How a scan went, but for the output.
struct Scanned {
    summary: Summary,
    complete: bool,
    /// With `--changed-since`.
    unknown: Option<u64>,
    failure: Option<Failure>,
}

impl Job {
    /// Writes what comes after the entries, the root or what was renamed and removed, and
    /// makes one summary of all.
    fn end<'j>(&'j self, mut visits: Vec<Visit<'j>>, ended: Ended, stop: &Stop) -> Scanned {
        let mut complete = ended == Ended::Complete;
        let mut failure = None;
        let mut unknown = matches!(self.wanted, Wanted::Since(_)).then_some(0);
        let mut last = Visit::new(self);
        let mut add = |record| complete &= last.late_row(record).is_continue();
        match &self.wanted {
            Wanted::All if ended == Ended::Complete => {
                let mut root = self.root.lock().unwrap_or_else(PoisonError::into_inner);
                root.take().into_iter().for_each(&mut add);
            }
            Wanted::Changed(comparison) => {
                // Of a part, nothing can be said to be gone.
                unknown = Some(0);
                if ended == Ended::Complete {
                    match comparison.finish(&self.problems, stop.flag(), &mut add) {
                        Ok(count) => unknown = Some(count),
                        Err(err) => failure = Some(err),
                    }
                }
            }
            Wanted::All | Wanted::Since(_) => {}
        }
        complete &= failure.is_none();
        // The root is the last row of a text: after those that wait in the threads.
        visits.push(last);
        let mut summary = Summary::default();
        for mut visit in visits {
            if let Some(output) = &self.output {
                complete &= output.flush(&mut visit.batch).is_ok();
            }
            summary.merge(visit.summary, &self.common);
        }
        Scanned {
            summary,
            complete,
            unknown,
            failure,
        }
    }
}

/// Entries and their rate, for eyes only.
fn progress_bar(total: Option<u64>, quiet: bool) -> ProgressBar {
    if quiet || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = match total {
        Some(_) => "{bar:40} {percent}% {human_pos} entries, {rate}/s, {eta} left",
        None => "{spinner} {human_pos} entries, {rate}/s, {elapsed}",
    };
    let style = ProgressStyle::with_template(template).expect("a constant template");
    // Without the decimals that `per_sec` has.
    let style = style.with_key("rate", |state: &ProgressState, to: &mut dyn fmt::Write| {
        let _ = write!(to, "{}", HumanCount(state.per_sec() as u64));
    });
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr()).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
