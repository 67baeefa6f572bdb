//! `rcuwalk scan`: every entry of a tree once, in parallel.
//!
//! The scan itself is the crate `rcuwalk-scan`. This file has the options, the progress bar,
//! and the messages.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use rcuwalk_scan::{
    Checksums, Error, Finished, Format, Options, Order, OutputState, Partial, Progress, Rows, Scan,
    Since,
};

use crate::failure::{Failure, print, without_numbers};
use crate::limits::raise_descriptor_limit;
use crate::signals::Stop;

/// Read every entry of a tree once, in parallel
///
/// SOURCE is a directory of the host, or an ext2, ext3 or ext4 image or device, which is
/// only read, and should not be mounted for writing meanwhile: take a snapshot. Symbolic
/// links are not followed, other file systems are not entered. Prints a summary, or a row
/// per entry with --format.
///
/// A file written with --output appears when it is complete; until then, an older one of that
/// name stays. If a scan ends early, its results so far are kept as FILE.partial.
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
    format: Option<FormatArg>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    /// One JSON object per line
    Jsonl,
    /// Comma-separated values with a header, RFC 4180
    Csv,
    /// Apache Parquet; needs --output
    #[cfg(feature = "parquet")]
    Parquet,
    /// An SQLite database with a table `entry`; needs --output
    #[cfg(feature = "sqlite")]
    Sqlite,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OrderArg {
    /// As the directories list them
    #[default]
    Tree,
    /// By inode number: within each directory of the host; of an image, all inode tables
    /// first, names after
    Inode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ChecksumsArg {
    /// All, as the kernel does
    #[default]
    Always,
    /// One in sixteen
    Sample,
    /// None
    Never,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let to_stdout = args.format.is_some() && args.output.is_none();
    if args.json && to_stdout {
        return Err(Failure::error(
            "--json is for the summary, which comes only if the rows go elsewhere: --output FILE",
        ));
    }
    if to_stdout && !args.format.is_some_and(FormatArg::is_text) {
        return Err(Failure::error(
            "this format is no text: say where to write it with --output FILE",
        ));
    }
    let stop = Stop::on_signals()
        .map_err(|err| Failure::error(format_args!("cannot catch signals: {err}")))?;
    raise_descriptor_limit();
    let scan = Scan::open(&args.source, args.options()?)?;
    let bar = progress_bar(scan.total_hint(), args.quiet);
    let done = scan.run(stop.flag(), &ProgressLine(&bar));
    bar.finish_and_clear();
    // A signal may be the reason why the earlier scan was not read to its end.
    if done.is_err() {
        stop.check()?;
    }
    let done = done?;
    match &done.output {
        OutputState::Unwanted => return Ok(()),
        OutputState::Partial(file) => {
            let (why, file) = (why_partial(&done), file.display());
            eprintln!("rcuwalk: {why}; what there is of it is in {file}");
        }
        _ if done.partial.is_some() => {
            eprintln!("rcuwalk: {}; this is a part of it", why_partial(&done));
        }
        _ => {}
    }
    if !to_stdout {
        print(&if args.json {
            done.report.json()
        } else {
            done.report.text()
        })?;
    }
    stop.check()?;
    match (done.error, done.report.problems) {
        (Some(error), _) => Err(error.into()),
        (None, 0) if done.report.complete => Ok(()),
        (None, 0) => Err(Failure::Errors(Vec::new())),
        (None, 1) => Err(Failure::error("one thing could not be read")),
        (None, count) => Err(Failure::error(format_args!("{count} could not be read"))),
    }
}

fn why_partial(done: &Finished) -> &'static str {
    match done.partial {
        Some(Partial::CutOff) => "the image is cut off",
        _ => "the scan ended early",
    }
}

impl Args {
    fn options(&self) -> Result<Options, Failure> {
        let since = self.changed_since.as_deref().map(Since::parse);
        let mut options = Options::default();
        options.order = match self.order {
            OrderArg::Tree => Order::Tree,
            OrderArg::Inode => Order::Inode,
        };
        options.cross_file_systems = self.cross_file_systems;
        options.handles = self.handles;
        options.checksums = match self.checksums {
            ChecksumsArg::Always => Checksums::Always,
            ChecksumsArg::Sample => Checksums::Sample,
            ChecksumsArg::Never => Checksums::Never,
        };
        options.threads = self.threads.map(usize::from);
        options.since = since.transpose()?;
        options.rows = self.format.map(|format| Rows {
            format: format.into(),
            file: self.output.clone(),
        });
        Ok(options)
    }
}

impl FormatArg {
    fn is_text(self) -> bool {
        matches!(self, FormatArg::Jsonl | FormatArg::Csv)
    }
}

impl From<FormatArg> for Format {
    fn from(arg: FormatArg) -> Format {
        match arg {
            FormatArg::Jsonl => Format::Jsonl,
            FormatArg::Csv => Format::Csv,
            #[cfg(feature = "parquet")]
            FormatArg::Parquet => Format::Parquet,
            #[cfg(feature = "sqlite")]
            FormatArg::Sqlite => Format::Sqlite,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Since(_) => Failure::error(format_args!("--changed-since: {error}")),
            error => Failure::error(error),
        }
    }
}

/// Prints problems above the progress bar.
struct ProgressLine<'b>(&'b ProgressBar);

impl Progress for ProgressLine<'_> {
    fn entries(&self, count: u64) {
        self.0.inc(count);
    }

    fn problem(&self, path: &str, error: &dyn Display) {
        self.note(&format!("{path}: {}", without_numbers(&error.to_string())));
    }

    fn note(&self, text: &str) {
        // Errors are ignored: with standard error closed, the exit status has to do.
        self.0
            .suspend(|| drop(writeln!(io::stderr(), "rcuwalk: {text}")));
    }
}

/// A progress bar with the number of entries and their rate, shown only on a terminal.
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
