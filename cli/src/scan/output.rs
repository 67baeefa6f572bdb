//! Where rows go: standard output, or a file that appears when it is whole.
//!
//! A file is written beside its place under another name, and renamed when all of it is
//! there: whoever finds it finds a complete one, and an older one stays until then. What
//! a scan that ended early has written is kept as `FILE.partial`.
//!
//! Each thread fills a [`Batch`] of its own. Text is made there, in parallel; the lock
//! is held only to hand it on.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::ValueEnum;

use super::line::{write_csv, write_csv_header, write_json};
use super::record::Record;
use crate::failure::Failure;

/// What rows look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
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

impl Format {
    fn is_text(self) -> bool {
        matches!(self, Format::Jsonl | Format::Csv)
    }
}

/// A batch goes to the writer when it has as many bytes of text,
const TEXT: usize = 128 * 1024;
/// rows,
const ROWS: usize = 32 * 1024;
/// or bytes in rows.
const WEIGHT: usize = 16 << 20;

/// Rows on their way.
pub(crate) struct Output {
    format: Format,
    changes: bool,
    place: Place,
    state: Mutex<State>,
}

struct State {
    /// `None` once it failed.
    writer: Option<Writer>,
    failed: Option<Failed>,
}

enum Writer {
    Text(Box<dyn Write + Send>, Option<File>),
    #[cfg(feature = "parquet")]
    Parquet(Box<super::parquet_file::ParquetWriter>),
    #[cfg(feature = "sqlite")]
    Sqlite(super::sqlite_file::SqliteWriter),
}

/// Why rows cannot be written any more.
enum Failed {
    /// The reader of a pipe has seen enough (`| head`).
    NoReader,
    Error(String),
}

/// Where the rows are written.
enum Place {
    Stdout,
    /// A device or a pipe: nothing to rename.
    Direct(PathBuf),
    File {
        target: PathBuf,
        temporary: PathBuf,
        /// Those of the file that is replaced: who could not read that should not read
        /// the new one.
        permissions: Option<Permissions>,
    },
}

/// The rows of one thread.
#[derive(Default)]
pub(crate) struct Batch {
    text: Vec<u8>,
    rows: Vec<Record>,
    weight: usize,
}

/// What became of the output.
pub(crate) enum Kept {
    /// It is complete, or standard output.
    Whole,
    /// In this file.
    Partial(PathBuf),
    /// Nobody reads any further: there is nothing left to do.
    Unwanted,
    Nothing,
}

impl Output {
    /// Opens the output: `file`, or standard output without one.
    pub(crate) fn open(
        format: Format,
        file: Option<&Path>,
        changes: bool,
    ) -> Result<Output, Failure> {
        let place = Place::of(format, file)?;
        let writer = place
            .create(format, changes)
            .inspect_err(|_| place.discard())?;
        let output = Output {
            format,
            changes,
            place,
            state: Mutex::new(State {
                writer: Some(writer),
                failed: None,
            }),
        };
        if format == Format::Csv {
            let mut batch = Batch::default();
            write_csv_header(&mut batch.text, output.changes);
            // If that fails, it is said in the end.
            let _ = output.flush(&mut batch);
        }
        Ok(output)
    }

    /// Adds a row. `Err` once rows cannot be written any more; [`finish`](Self::finish)
    /// says why.
    pub(crate) fn add(&self, batch: &mut Batch, record: &Record) -> Result<(), ()> {
        match self.format {
            Format::Jsonl => write_json(&mut batch.text, record),
            Format::Csv => write_csv(&mut batch.text, record),
            #[cfg(any(feature = "parquet", feature = "sqlite"))]
            _ => {
                batch.weight += record.weight();
                batch.rows.push(record.clone());
            }
        }
        let full = batch.text.len() >= TEXT || batch.rows.len() >= ROWS || batch.weight >= WEIGHT;
        if full { self.flush(batch) } else { Ok(()) }
    }

    /// Hands a batch on.
    pub(crate) fn flush(&self, batch: &mut Batch) -> Result<(), ()> {
        let mut state = self.lock();
        let Some(writer) = &mut state.writer else {
            return Err(());
        };
        let done = writer.write(batch);
        batch.text.clear();
        batch.rows.clear();
        batch.weight = 0;
        done.map_err(|failed| {
            state.failed = Some(failed);
            state.writer = None;
        })
    }

    /// Ends the output, and puts the file in its place, or beside it if it is partial.
    pub(crate) fn finish(&self, complete: bool) -> (Kept, Result<(), Failure>) {
        let mut state = self.lock();
        if let Some(writer) = state.writer.take() {
            state.failed = writer.finish(complete).err();
        }
        match state.failed.take() {
            None => self.place.settle(complete),
            Some(Failed::NoReader) => (Kept::Unwanted, Ok(())),
            Some(Failed::Error(why)) => {
                let told = Failure::error(format_args!("cannot write to {}: {why}", self.place));
                // Of a text, what is there can be read; the others lack their ends.
                let kept = if self.format.is_text() {
                    self.place.settle(false).0
                } else {
                    self.place.discard();
                    Kept::Nothing
                };
                (kept, Err(told))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// If nobody ended it, nothing is left behind.
impl Drop for Output {
    fn drop(&mut self) {
        if self.lock().writer.take().is_some() {
            self.place.discard();
        }
    }
}

impl Writer {
    fn write(&mut self, batch: &Batch) -> Result<(), Failed> {
        match self {
            Writer::Text(writer, _) => writer.write_all(&batch.text).map_err(Failed::of),
            #[cfg(feature = "parquet")]
            // A row group without rows helps nobody.
            Writer::Parquet(_) if batch.rows.is_empty() => Ok(()),
            #[cfg(feature = "parquet")]
            Writer::Parquet(writer) => writer.write(&batch.rows).map_err(Failed::error),
            #[cfg(feature = "sqlite")]
            Writer::Sqlite(writer) => writer.write(&batch.rows).map_err(Failed::error),
        }
    }

    #[cfg_attr(
        not(all(feature = "parquet", feature = "sqlite")),
        allow(unused_variables, reason = "for formats that are not text")
    )]
    fn finish(self, complete: bool) -> Result<(), Failed> {
        match self {
            Writer::Text(mut writer, file) => {
                writer.flush().map_err(Failed::of)?;
                match file {
                    Some(file) => file.sync_all().map_err(Failed::of),
                    None => Ok(()),
                }
            }
            #[cfg(feature = "parquet")]
            Writer::Parquet(writer) => writer.finish(complete).map_err(Failed::error),
            #[cfg(feature = "sqlite")]
            Writer::Sqlite(writer) => writer.finish(complete).map_err(Failed::error),
        }
    }
}

impl Failed {
    fn of(err: io::Error) -> Failed {
        match err.kind() {
            io::ErrorKind::BrokenPipe => Failed::NoReader,
            _ => Failed::error(err),
        }
    }

    fn error(err: impl Display) -> Failed {
        Failed::Error(err.to_string())
    }
}

impl Place {
    fn of(format: Format, file: Option<&Path>) -> Result<Place, Failure> {
        let Some(file) = file else {
            return if format.is_text() {
                Ok(Place::Stdout)
            } else {
                Err(Failure::error(
                    "this format is no text: say where to write it with --output FILE",
                ))
            };
        };
        let fail = |err: io::Error| {
            Failure::error(format_args!("cannot write to {}: {err}", file.display()))
        };
        match fs::metadata(file) {
            Ok(there) if there.is_dir() => Err(fail(io::Error::from(io::ErrorKind::IsADirectory))),
            Ok(there) if there.is_file() => {
                // A link stays, and what it leads to is replaced.
                let target = fs::canonicalize(file).map_err(fail)?;
                Ok(Place::beside(target, Some(there.permissions())))
            }
            Ok(_) if format.is_text() => Ok(Place::Direct(file.to_owned())),
            Ok(_) => Err(fail(io::Error::other("this format needs a regular file"))),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                Ok(Place::beside(file.to_owned(), None))
            }
            Err(err) => Err(fail(err)),
        }
    }

    fn beside(target: PathBuf, permissions: Option<Permissions>) -> Place {
        let temporary = with_suffix(&target, &format!(".{}.tmp", std::process::id()));
        Place::File {
            target,
            temporary,
            permissions,
        }
    }

    #[cfg_attr(
        not(all(feature = "parquet", feature = "sqlite")),
        allow(unused_variables, reason = "for formats that are not text")
    )]
    fn create(&self, format: Format, changes: bool) -> Result<Writer, Failure> {
        let fail =
            |err: &dyn Display| Failure::error(format_args!("cannot write to {self}: {err}"));
        let (path, file) = match self {
            Place::Stdout => return Ok(Writer::Text(Box::new(io::stdout()), None)),
            Place::Direct(path) => (path, OpenOptions::new().write(true).open(path)),
            Place::File {
                temporary,
                permissions,
                ..
            } => {
                let mut new = OpenOptions::new();
                let file = new.write(true).create_new(true).open(temporary);
                let file = file.and_then(|file| {
                    // Nothing is in it yet that could be read meanwhile.
                    let like = permissions.clone();
                    like.map_or(Ok(()), |like| file.set_permissions(like))?;
                    Ok(file)
                });
                (temporary, file)
            }
        };
        let file = file.map_err(|err| fail(&err))?;
        match format {
            Format::Jsonl | Format::Csv => {
                let regular = matches!(self, Place::File { .. });
                let kept = regular.then(|| file.try_clone()).transpose();
                let kept = kept.map_err(|err| fail(&err))?;
                Ok(Writer::Text(Box::new(file), kept))
            }
            #[cfg(feature = "parquet")]
            Format::Parquet => super::parquet_file::ParquetWriter::new(file, changes)
                .map(|writer| Writer::Parquet(Box::new(writer)))
                .map_err(|err| fail(&err)),
            #[cfg(feature = "sqlite")]
            Format::Sqlite => super::sqlite_file::SqliteWriter::new(path, changes)
                .map(Writer::Sqlite)
                .map_err(|err| fail(&err)),
        }
    }

    /// Gives a finished file its name.
    fn settle(&self, complete: bool) -> (Kept, Result<(), Failure>) {
        let Place::File {
            target, temporary, ..
        } = self
        else {
            return (Kept::Whole, Ok(()));
        };
        let name = if complete {
            target.clone()
        } else {
            with_suffix(target, ".partial")
        };
        match fs::rename(temporary, &name) {
            Ok(()) if complete => (Kept::Whole, Ok(())),
            Ok(()) => (Kept::Partial(name), Ok(())),
            Err(err) => {
                self.discard();
                let told = format!("cannot write to {}: {err}", name.display());
                (Kept::Nothing, Err(Failure::error(told)))
            }
        }
    }

    fn discard(&self) {
        if let Place::File { temporary, .. } = self {
            // There is nothing to be done about one that cannot be removed.
            let _ = fs::remove_file(temporary);
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Stdout => f.write_str("standard output"),
            Place::Direct(path) | Place::File { target: path, .. } => path.display().fmt(f),
        }
    }
}

/// `FILE` with something after it, in the same directory.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
