//! Where rows go: standard output, or a file that appears when it is whole.
//!
//! A file is written beside its place under another name, and renamed when it is complete:
//! a file under the final name is complete, and an older one stays until then. The rows of a
//! scan that ended early are kept as `FILE.partial`.
//!
//! Each thread fills a [`Batch`] of its own. Text is made there, in parallel; the lock
//! is held only to hand it on.

mod place;

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::line::{write_csv, write_csv_header, write_json};
use crate::record::Record;
pub use place::OutputState;
use place::Place;

/// The format of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated values with a header, RFC 4180.
    Csv,
    /// Apache Parquet; needs a file.
    #[cfg(feature = "parquet")]
    Parquet,
    /// An SQLite database with a table `entry`; needs a file.
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
    Parquet(Box<crate::parquet_file::ParquetWriter>),
    #[cfg(feature = "sqlite")]
    Sqlite(crate::sqlite_file::SqliteWriter),
}

/// Why rows cannot be written any more.
enum Failed {
    /// The reader of a pipe has seen enough (`| head`).
    NoReader,
    Error(String),
}

/// The rows of one thread.
#[derive(Default)]
pub(crate) struct Batch {
    text: Vec<u8>,
    rows: Vec<Record>,
    weight: usize,
}

impl Output {
    /// Opens the output: `file`, or standard output without one. It is not `source`, which
    /// is only read.
    pub(crate) fn open(
        format: Format,
        file: Option<&Path>,
        source: &Path,
        changes: bool,
    ) -> Result<Output> {
        let place = Place::of(format, file, source)?;
        let writer = Writer::create(&place, format, changes).inspect_err(|_| place.discard())?;
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
    pub(crate) fn finish(&self, complete: bool) -> (OutputState, Result<()>) {
        let mut state = self.lock();
        if let Some(writer) = state.writer.take() {
            state.failed = writer.finish(complete).err();
        }
        match state.failed.take() {
            None => self.place.settle(complete),
            Some(Failed::NoReader) => (OutputState::Unwanted, Ok(())),
            Some(Failed::Error(why)) => {
                let told = Error::output(&self.place, why);
                // A part of a text can be read; the other formats lack their ends.
                let kept = if self.format.is_text() {
                    self.place.settle(false).0
                } else {
                    self.place.discard();
                    OutputState::Nothing
                };
                (kept, Err(told))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without [`finish`](Output::finish), no file is left behind.
impl Drop for Output {
    fn drop(&mut self) {
        if self.lock().writer.take().is_some() {
            self.place.discard();
        }
    }
}

impl Writer {
    #[cfg_attr(
        not(all(feature = "parquet", feature = "sqlite")),
        allow(unused_variables, reason = "for formats that are not text")
    )]
    fn create(place: &Place, format: Format, changes: bool) -> Result<Writer> {
        let fail = |err: &dyn Display| Error::output(place, err);
        let (path, file) = match place {
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
                let regular = matches!(place, Place::File { .. });
                let kept = regular.then(|| file.try_clone()).transpose();
                let kept = kept.map_err(|err| fail(&err))?;
                Ok(Writer::Text(Box::new(file), kept))
            }
            #[cfg(feature = "parquet")]
            Format::Parquet => crate::parquet_file::ParquetWriter::new(file, changes)
                .map(|writer| Writer::Parquet(Box::new(writer)))
                .map_err(|err| fail(&err)),
            #[cfg(feature = "sqlite")]
            Format::Sqlite => crate::sqlite_file::SqliteWriter::new(path, changes)
                .map(Writer::Sqlite)
                .map_err(|err| fail(&err)),
        }
    }

    fn write(&mut self, batch: &Batch) -> Result<(), Failed> {
        match self {
            Writer::Text(writer, _) => writer.write_all(&batch.text).map_err(Failed::of),
            #[cfg(feature = "parquet")]
            // No row group without rows.
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
