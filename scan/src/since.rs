//! The reference of a comparison: a time, or an earlier scan.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::{Span, SpanRelativeTo};
use rcuwalk::Timestamp;

use crate::error::{Error, Result};
use crate::line::{FileState, read_csv, read_json};
use crate::record::Each;
use crate::text::Time;

/// The reference of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Since {
    /// Entries whose mtime or ctime is this or later count as changed.
    Time(Timestamp),
    /// A complete earlier scan of the same tree, in any format of [`Format`](crate::Format).
    /// It takes about 70 bytes of memory per entry.
    Scan(PathBuf),
}

impl Since {
    /// Parses a time (`2026-01-31T12:00:00Z`, `@1700000000`, `24h`, `7d`) or the path of an
    /// earlier scan. A file whose name reads as a time is given as `./7d`.
    ///
    /// # Errors
    /// [`Error::Since`] if `text` is neither.
    pub fn parse(text: &str) -> Result<Since> {
        if let Some(time) = time(text) {
            return Ok(Since::Time(time));
        }
        let path = Path::new(text);
        match path.metadata() {
            // It is read twice.
            Ok(there) if there.is_file() => Ok(Since::Scan(path.to_owned())),
            Ok(_) => Err(Error::Since(format!("{text} is not a regular file"))),
            Err(err) => Err(Error::Since(format!(
                "{text} is neither a time (2026-01-31T12:00:00Z, @1700000000, 24h, 7d) nor the \
                 file of an earlier scan ({err})"
            ))),
        }
    }
}

fn time(text: &str) -> Option<Timestamp> {
    if let Some(seconds) = text.strip_prefix('@') {
        return seconds.parse().ok().map(|Time(at)| at);
    }
    let at = text.parse::<jiff::Timestamp>().ok().or_else(|| {
        let span: Span = text.parse().ok()?;
        if span.is_negative() {
            return None;
        }
        let days = SpanRelativeTo::days_are_24_hours();
        let now = jiff::Timestamp::try_from(SystemTime::now()).ok()?;
        now.checked_sub(span.to_duration(days).ok()?).ok()
    })?;
    // Both parts are negative before 1970; file systems count the second one upwards.
    let nanoseconds = at.as_nanosecond();
    Some(Timestamp {
        sec: i64::try_from(nanoseconds.div_euclid(1_000_000_000)).ok()?,
        nsec: u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).ok()?,
    })
}

/// Hands the records of an earlier scan to `each`. It has to be a complete one.
pub(crate) fn read(path: &Path, each: &mut Each<'_>) -> Result<()> {
    let cannot = |why: &dyn std::fmt::Display| Error::earlier(path, why);
    let told = read_file(path, each).map_err(|why| cannot(&why))?;
    if told.changes {
        return Err(cannot(&"it lists changes; what is needed is a whole scan"));
    }
    if !told.complete {
        return Err(cannot(
            &"it is the partial result of a scan that ended early; what it lacks would be \
              taken for new",
        ));
    }
    Ok(())
}

/// Reads a file in the format that its first bytes tell.
fn read_file(path: &Path, each: &mut Each<'_>) -> Result<FileState, String> {
    let mut file = File::open(path).map_err(|err| err.to_string())?;
    let mut start = [0; 16];
    let length = fill(&mut file, &mut start).map_err(|err| err.to_string())?;
    let start = start.get(..length).unwrap_or_default();
    let again = || File::open(path).map_err(|err| err.to_string());
    if start.starts_with(b"PAR1") {
        return read_parquet(again()?, each);
    }
    if start.starts_with(b"SQLite format 3\0") {
        return read_sqlite(path, each);
    }
    let from = BufReader::with_capacity(1 << 20, again()?);
    if start.starts_with(b"{") {
        return read_json(from, each);
    }
    if start.starts_with(b"path,") || start.starts_with(b"change,") {
        return read_csv(from, each);
    }
    Err("it is not the output of a scan (jsonl, csv, parquet or sqlite)".to_owned())
}

#[cfg(feature = "parquet")]
fn read_parquet(file: File, each: &mut Each<'_>) -> Result<FileState, String> {
    crate::parquet_file::read(file, each).map(|(complete, changes)| FileState { complete, changes })
}

#[cfg(not(feature = "parquet"))]
fn read_parquet(_: File, _: &mut Each<'_>) -> Result<FileState, String> {
    Err("this rcuwalk was built without parquet".to_owned())
}

#[cfg(feature = "sqlite")]
fn read_sqlite(path: &Path, each: &mut Each<'_>) -> Result<FileState, String> {
    crate::sqlite_file::read(path, each).map(|(complete, changes)| FileState { complete, changes })
}

#[cfg(not(feature = "sqlite"))]
fn read_sqlite(_: &Path, _: &mut Each<'_>) -> Result<FileState, String> {
    Err("this rcuwalk was built without sqlite".to_owned())
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let length = buffer.len() as u64;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    let filled = buffer.iter_mut().zip(&bytes);
    filled.for_each(|(to, from)| *to = *from);
    Ok(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let at = |text| time(text).map(|at| Time(at).to_string());
        assert_eq!(at("@12"), Some("12.000000000".to_owned()));
        assert_eq!(at("@-0.5"), Some("-0.500000000".to_owned()));
        assert_eq!(at("1970-01-01T00:00:01Z"), Some("1.000000000".to_owned()));
        assert_eq!(
            at("1969-12-31T23:59:59.5Z"),
            Some("-0.500000000".to_owned())
        );
        let now = jiff::Timestamp::now().as_second();
        for (text, seconds) in [("24h", 86_400), ("7d", 7 * 86_400), ("1h30m", 5400)] {
            let ago = now - time(text).unwrap().sec;
            assert!((seconds..seconds + 5).contains(&ago), "{text}: {ago}");
        }
        for bad in [
            "",
            "7",
            "yesterday",
            "-7d",
            "7 days ago",
            "2026-01-01",
            "@",
            "@x",
        ] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }
}
