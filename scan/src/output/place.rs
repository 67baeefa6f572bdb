//! The file that rows are written to: under another name until it is whole.

use std::fmt::{self, Display};
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::Format;
use crate::error::{Error, Result};

/// After the name of a file that holds a part.
const PARTIAL: &str = ".partial";

/// Where the rows are written.
pub(super) enum Place {
    Stdout,
    /// A device or a pipe: nothing to rename.
    Direct(PathBuf),
    File {
        target: PathBuf,
        temporary: PathBuf,
        /// Those of the file that is replaced, so that the new one has no more readers.
        permissions: Option<Permissions>,
    },
}

/// The state of the output after a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputState {
    /// It is complete, or went to standard output, or there was no output.
    Whole,
    /// A part is in this file.
    Partial(PathBuf),
    /// The reader of the pipe has gone (`| head`): there is nothing left to do.
    Unwanted,
    /// The output failed, and no file is left.
    Nothing,
}

impl Place {
    pub(super) fn of(format: Format, file: Option<&Path>, source: &Path) -> Result<Place> {
        // The source is only read, under whichever name.
        let is_source = |there: Metadata| {
            fs::metadata(source).is_ok_and(|source| is_same_file(&there, &source))
        };
        let Some(file) = file else {
            let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
            return if !format.is_text() {
                Err(Error::Output(
                    "this format is not text: it needs an output file".to_owned(),
                ))
            } else if stdout.and_then(|to| to.metadata()).is_ok_and(is_source) {
                Err(Error::output("standard output", "it is the source"))
            } else {
                Ok(Place::Stdout)
            };
        };
        let fail = |err: io::Error| Error::output(file.display(), err);
        let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        for replaced in [&target, &with_suffix(&target, PARTIAL)] {
            if fs::metadata(replaced).is_ok_and(is_source) {
                let why = format_args!("{} is the source", replaced.display());
                return Err(Error::output(file.display(), why));
            }
        }
        match fs::metadata(file) {
            Ok(there) if there.file_type().is_block_device() => Err(fail(io::Error::other(
                "a block device, which holds other things",
            ))),
            Ok(there) if there.is_dir() => Err(fail(io::Error::from(io::ErrorKind::IsADirectory))),
            // A link stays, and its target is replaced.
            Ok(there) if there.is_file() => Ok(Place::beside(target, Some(there.permissions()))),
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

    /// Gives a finished file its name.
    pub(super) fn settle(&self, complete: bool) -> (OutputState, Result<()>) {
        let Place::File {
            target, temporary, ..
        } = self
        else {
            return (OutputState::Whole, Ok(()));
        };
        let name = if complete {
            target.clone()
        } else {
            with_suffix(target, PARTIAL)
        };
        match fs::rename(temporary, &name) {
            Ok(()) if complete => (OutputState::Whole, Ok(())),
            Ok(()) => (OutputState::Partial(name), Ok(())),
            Err(err) => {
                self.discard();
                (
                    OutputState::Nothing,
                    Err(Error::output(name.display(), err)),
                )
            }
        }
    }

    pub(super) fn discard(&self) {
        if let Place::File { temporary, .. } = self {
            // There is nothing to be done about one that cannot be removed.
            let _ = fs::remove_file(temporary);
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Stdout => f.write_str("standard output"),
            Place::Direct(path) | Place::File { target: path, .. } => path.display().fmt(f),
        }
    }
}

/// True if both are one file, or one device by two names.
fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    let device = one.file_type().is_block_device() && other.file_type().is_block_device();
    (one.dev(), one.ino()) == (other.dev(), other.ino()) || device && one.rdev() == other.rdev()
}

/// `FILE` with something after it, in the same directory.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
