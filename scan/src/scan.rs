//! A scan from its options to its end.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rcuwalk::scan::Ended;

use crate::Checksums;
use crate::changes::Comparison;
use crate::error::{Error, Result};
use crate::output::{Format, Output, OutputState};
use crate::previous::Previous;
use crate::problems::Problems;
use crate::since::Since;
use crate::source::{Order, Source};
use crate::summary::{Common, Report, Summary};
use crate::visit::{Job, ScanVisitor, Wanted};

/// Options of a scan. The default is a summary of all entries, on one file system.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The order in which entries are read.
    pub order: Order,
    /// Enter file systems mounted below the source, too. Without it their mount points are
    /// reported only.
    pub cross_file_systems: bool,
    /// Ask the host for file handles: one more system call per entry. Implied by a comparison
    /// with an earlier scan.
    pub handles: bool,
    /// The checksums of an image to verify.
    pub checksums: Checksums,
    /// The number of threads; `None` is the usual number for the source.
    pub threads: Option<usize>,
    /// Report only changes since then.
    pub since: Option<Since>,
    /// Write a row per entry.
    pub rows: Option<Rows>,
}

/// Where the rows go, and in which format.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Their format.
    pub format: Format,
    /// The file, which appears when it is complete; `None` is standard output.
    pub file: Option<PathBuf>,
}

impl Rows {
    /// Rows in `file`.
    pub fn to_file(format: Format, file: impl Into<PathBuf>) -> Rows {
        let file = Some(file.into());
        Rows { format, file }
    }
}

/// Receives progress and problems while a scan runs. All threads of the scan call it.
pub trait Progress: Sync {
    /// `count` more entries were read.
    fn entries(&self, count: u64);

    /// The entry at `path` could not be read, so entries may be missing below it. Called for
    /// the first hundred problems.
    fn problem(&self, path: &str, error: &dyn std::fmt::Display);

    /// Something about the whole source: it is cut off, or further problems are counted only.
    fn note(&self, text: &str);
}

/// A [`Progress`] that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn entries(&self, _: u64) {}
    fn problem(&self, _: &str, _: &dyn std::fmt::Display) {}
    fn note(&self, _: &str) {}
}

/// A tree that is ready to be scanned.
pub struct Scan {
    source: Source,
    path: PathBuf,
    options: Options,
}

impl std::fmt::Debug for Scan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Scan");
        shown
            .field("path", &self.path)
            .field("options", &self.options);
        shown.finish_non_exhaustive()
    }
}

/// The result of a scan.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished {
    /// The summary.
    pub report: Report,
    /// The state of the output file.
    pub output: OutputState,
    /// Why the result is not complete, if it is not.
    pub partial: Option<Partial>,
    /// The rows, or the comparison, failed at this.
    pub error: Option<Error>,
}

/// Why a result is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Partial {
    /// The scan was stopped, or the rows could not be written.
    Early,
    /// The image ends before its file system does.
    CutOff,
}

impl Scan {
    /// Opens a directory of the host, or an ext2, ext3 or ext4 image or device.
    ///
    /// # Errors
    /// [`Error::Source`].
    pub fn open(path: &Path, options: Options) -> Result<Scan> {
        Ok(Scan {
            source: Source::open(path, &options)?,
            path: path.to_owned(),
            options,
        })
    }

    /// About how many entries there are, if that is known beforehand.
    pub fn total_hint(&self) -> Option<u64> {
        self.source.total_hint()
    }

    /// Scans the tree. Returns soon after `stop` is set, with a partial result. Blocks on the
    /// host's I/O.
    ///
    /// # Errors
    /// [`Error::Since`] if the earlier scan cannot be read, [`Error::Output`] if the output
    /// cannot be opened. Later errors are in [`Finished::error`].
    pub fn run(&self, stop: &AtomicBool, progress: &dyn Progress) -> Result<Finished> {
        let job = self.job(stop, progress)?;
        let begun = Instant::now();
        let threads = self.options.threads;
        let threads = threads.unwrap_or_else(|| self.source.usual_threads());
        let visits = (0..threads.max(1))
            .map(|_| ScanVisitor::new(&job))
            .collect();
        let (visits, mut ended) = self.source.run(stop, visits);
        let mut partial = Partial::Early;
        // Checked afterwards: the image may also have shrunk during the scan.
        if let Some(missing) = self.source.missing() {
            let text = format!("{}: {missing}", self.path.display());
            job.problems.add_general(&text, progress);
            ended = Ended::Early;
            partial = Partial::CutOff;
        }
        let mut end = job.end(visits, ended, stop);
        let output = match &job.output {
            Some(output) => {
                let (output, written) = output.finish(end.complete);
                end.complete &= written.is_ok();
                end.error = written.err().or(end.error);
                output
            }
            None => OutputState::Whole,
        };
        let complete = end.complete;
        Ok(Finished {
            report: self.report(end.summary, complete, end.unknown, &job, begun.elapsed()),
            output,
            partial: (!complete).then_some(partial),
            error: end.error,
        })
    }

    /// Prepares the shared state. The output file is made last, when everything else exists.
    fn job<'s>(&'s self, stop: &AtomicBool, progress: &'s dyn Progress) -> Result<Job<'s>> {
        let options = &self.options;
        let wanted = match &options.since {
            None => Wanted::All,
            Some(Since::Time(moment)) => Wanted::Since(*moment),
            Some(Since::Scan(file)) => {
                let previous = Previous::load(file, self.source.device(), stop)?;
                Wanted::Changed(Box::new(Comparison::with(previous)))
            }
        };
        let changes = options.since.is_some();
        let output = options.rows.as_ref().map(|rows| {
            let file = rows.file.as_deref();
            Output::open(rows.format, file, &self.path, changes)
        });
        Ok(Job {
            output: output.transpose()?,
            wanted,
            problems: Problems::default(),
            common: Common::new(),
            progress,
            root: Mutex::default(),
        })
    }

    fn report(
        &self,
        mut summary: Summary,
        complete: bool,
        unknown: Option<u64>,
        job: &Job<'_>,
        took: Duration,
    ) -> Report {
        summary.settle();
        Report {
            source: self.path.as_os_str().as_bytes().to_vec(),
            complete,
            problems: job.problems.count(),
            took,
            unknown,
            summary,
        }
    }
}

/// The end of a scan, before the output is closed.
struct End {
    summary: Summary,
    complete: bool,
    /// With [`Options::since`].
    unknown: Option<u64>,
    error: Option<Error>,
}

impl Job<'_> {
    /// Writes the rows that come after the scan: the root, or renamed and removed entries.
    /// Merges the threads' summaries.
    fn end<'j>(&'j self, mut visits: Vec<ScanVisitor<'j>>, ended: Ended, stop: &AtomicBool) -> End {
        let mut complete = ended == Ended::Complete;
        let mut error = None;
        let mut unknown = matches!(self.wanted, Wanted::Since(_)).then_some(0);
        let mut last = ScanVisitor::new(self);
        let mut add = |record| complete &= last.late_row(record).is_continue();
        match &self.wanted {
            Wanted::All if ended == Ended::Complete => {
                let mut root = self.root.lock().unwrap_or_else(PoisonError::into_inner);
                root.take().into_iter().for_each(&mut add);
            }
            Wanted::Changed(comparison) => {
                // After a partial scan, no entry is known to be gone.
                unknown = Some(0);
                if ended == Ended::Complete {
                    match comparison.finish(&self.problems, stop, &mut add) {
                        Ok(count) => unknown = Some(count),
                        Err(err) => error = Some(err),
                    }
                }
            }
            Wanted::All | Wanted::Since(_) => {}
        }
        complete &= error.is_none();
        // The root is the last row of a text, so its visit is flushed after the others.
        visits.push(last);
        let mut summary = Summary::default();
        for mut visit in visits {
            if let Some(output) = &self.output {
                complete &= output.flush(&mut visit.batch).is_ok();
            }
            summary.merge(visit.summary, &self.common);
        }
        End {
            summary,
            complete,
            unknown,
            error,
        }
    }
}
