//! Why a scan failed.

use std::fmt::{self, Display};
use std::path::Path;

/// Why a scan could not begin, or not end as it was asked to.
///
/// Entries that cannot be read are not errors: they are counted as problems
/// ([`Report::problems`](crate::Report::problems)) and passed to
/// [`Progress::problem`](crate::Progress::problem).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The source cannot be scanned. The text names it.
    Source(String),
    /// The time or the earlier scan to compare with is unusable. The text names it.
    Since(String),
    /// The rows cannot be written. The text names the file.
    Output(String),
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn source(path: &Path, why: impl Display) -> Error {
        Error::Source(format!("cannot scan {}: {why}", path.display()))
    }

    pub(crate) fn earlier(path: &Path, why: impl Display) -> Error {
        Error::Since(format!("{}: {why}", path.display()))
    }

    pub(crate) fn output(place: impl Display, why: impl Display) -> Error {
        Error::Output(format!("cannot write to {place}: {why}"))
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Error::Source(text) | Error::Since(text) | Error::Output(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Error {}
