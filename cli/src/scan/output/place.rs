//! The file that rows are written to: under another name until it is whole.

use std::fmt::{self, Display};
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::Format;
use crate::failure::Failure;

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
        /// Those of the file that is replaced: who could not read that should not read
        /// the new one.
        permissions: Option<Permissions>,
    },
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

impl Place {
    pub(super) fn of(format: Format, file: Option<&Path>, source: &Path) -> Result<Place, Failure> {
        // What is scanned is only read, however it is called.
        let is_source = |there: Metadata| {
            fs::metadata(source).is_ok_and(|source| is_same_file(&there, &source))
        };
        let Some(file) = file else {
            let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
            return if !format.is_text() {
                Err(Failure::error(
                    "this format is no text: say where to write it with --output FILE",
                ))
            } else if stdout.and_then(|to| to.metadata()).is_ok_and(is_source) {
                Err(Failure::error(
                    "cannot write to standard output: it is the source",
                ))
            } else {
                Ok(Place::Stdout)
            };
        };
        let fail = |err: io::Error| {
            Failure::error(format_args!("cannot write to {}: {err}", file.display()))
        };
        let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        for replaced in [&target, &with_suffix(&target, PARTIAL)] {
            if fs::metadata(replaced).is_ok_and(is_source) {
                return Err(Failure::error(format_args!(
                    "cannot write to {}: {} is the source",
                    file.display(),
                    replaced.display()
                )));
            }
        }
        match fs::metadata(file) {
            Ok(there) if there.file_type().is_block_device() => Err(fail(io::Error::other(
                "a block device, which holds other things",
            ))),
            Ok(there) if there.is_dir() => Err(fail(io::Error::from(io::ErrorKind::IsADirectory))),
            // A link stays, and what it leads to is replaced.
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
    pub(super) fn settle(&self, complete: bool) -> (Kept, Result<(), Failure>) {
        let Place::File {
            target, temporary, ..
        } = self
        else {
            return (Kept::Whole, Ok(()));
        };
        let name = if complete {
            target.clone()
        } else {
            with_suffix(target, PARTIAL)
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
