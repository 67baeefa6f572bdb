//! The summary as people and as programs read it.

use std::fmt::{self, Write};
use std::time::Duration;

use rcuwalk::Timestamp;
use serde_json::{Map, Value, json};

use super::Summary;
use crate::record::{Kind, ROOT};
use crate::text::{Escaped, Time, date};

/// The summary of a scan: counts, sizes, the largest files and directories, or the changes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The source, as it was given.
    pub source: Vec<u8>,
    /// Everything that could be read was read and written.
    pub complete: bool,
    /// The number of entries that could not be read.
    pub problems: u64,
    /// How long the scan took.
    pub took: Duration,
    /// In a comparison, the number of earlier entries that may still exist, unread because of
    /// problems.
    pub unknown: Option<u64>,
    pub(crate) summary: Summary,
}

impl Report {
    /// The rate; 0 if it took no time.
    fn rate(&self) -> f64 {
        let seconds = self.took.as_secs_f64();
        if seconds > 0.0 {
            self.summary.entries as f64 / seconds
        } else {
            0.0
        }
    }

    /// The number of entries read.
    pub fn entries(&self) -> u64 {
        self.summary.entries
    }

    /// The summary as one JSON document with a newline.
    pub fn json(&self) -> String {
        let rate = self.rate().round();
        let directories = self.summary.largest_directories();
        let mut document = Map::new();
        let mut put = |name: &str, value: Value| document.insert(name.to_owned(), value);
        let source = Escaped::of(&self.source);
        put("source", json!(source.text));
        if let Some(encoding) = source.encoding {
            put("source_encoding", json!(encoding));
        }
        put("complete", json!(self.complete));
        put("entries", json!(self.summary.entries));
        put("problems", json!(self.problems));
        put("seconds", json!(self.took.as_secs_f64()));
        put("entries_per_s", json!(rate));
        if let Some(unknown) = self.unknown {
            let counts: Map<_, _> = Kind::ALL
                .iter()
                .map(|kind| (kind.name().to_owned(), json!(self.count(*kind))))
                .collect();
            put("changes", Value::Object(counts));
            put("unknown", json!(unknown));
            put("bytes_new_or_changed", json!(self.summary.apparent));
            return Value::Object(document).to_string() + "\n";
        }
        put("types", json!(self.summary.types));
        put(
            "bytes",
            json!({"apparent": self.summary.apparent, "allocated": self.summary.allocated}),
        );
        let directories = directories.into_iter();
        put(
            "largest_directories",
            directories
                .map(|(size, path)| named(&path, "entries", json!(size)))
                .collect(),
        );
        let files = self.summary.files.items.iter();
        put(
            "largest_files",
            files
                .map(|(size, path, _)| named(path, "size", json!(size)))
                .collect(),
        );
        let moment = |found: &Option<(Timestamp, Vec<u8>)>| match found {
            Some((at, path)) => named(path, "mtime", json!(Time(*at).to_string())),
            None => Value::Null,
        };
        put("oldest", moment(&self.summary.oldest));
        put("newest", moment(&self.summary.newest));
        Value::Object(document).to_string() + "\n"
    }

    fn count(&self, kind: Kind) -> u64 {
        self.summary.changes.get(kind.name()).copied().unwrap_or(0)
    }

    /// The summary as a page of text.
    pub fn text(&self) -> String {
        let directories = self.summary.largest_directories();
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut page, &directories);
        page
    }

    fn write(&self, to: &mut String, directories: &[(u64, Vec<u8>)]) -> fmt::Result {
        let summary = &self.summary;
        let partial = if self.complete { "" } else { " (partial)" };
        writeln!(to, "{}{partial}", shown(&self.source))?;
        writeln!(
            to,
            "  {} entries in {:.2} s, {} entries/s",
            grouped(summary.entries),
            self.took.as_secs_f64(),
            grouped(self.rate().round() as u64)
        )?;
        if self.problems > 0 {
            writeln!(to, "  {} could not be read", grouped(self.problems))?;
        }
        if let Some(unknown) = self.unknown {
            writeln!(to)?;
            for kind in Kind::ALL {
                writeln!(
                    to,
                    "  {:<20} {:>15}",
                    kind.name(),
                    grouped(self.count(kind))
                )?;
            }
            if unknown > 0 {
                writeln!(to, "  {:<20} {:>15}", "unknown", grouped(unknown))?;
            }
            let bytes = bytes(summary.apparent);
            return writeln!(to, "\n  in files new or changed: {bytes}");
        }
        writeln!(to)?;
        for (name, count) in &summary.types {
            writeln!(to, "  {name:<20} {:>15}", grouped(*count))?;
        }
        writeln!(to, "\n  apparent size        {}", bytes(summary.apparent))?;
        writeln!(to, "  allocated            {}", bytes(summary.allocated))?;
        for (what, found) in [("oldest", &summary.oldest), ("newest", &summary.newest)] {
            if let Some((at, path)) = found {
                writeln!(to, "  {what} mtime         {}  {}", date(*at), shown(path))?;
            }
        }
        if !directories.is_empty() {
            writeln!(to, "\n  largest directories, by direct entries")?;
            for (size, path) in directories {
                writeln!(to, "  {:>15}  {}", grouped(*size), shown(path))?;
            }
        }
        if !summary.files.items.is_empty() {
            writeln!(to, "\n  largest files")?;
            for (size, path, _) in &summary.files.items {
                writeln!(to, "  {:>15}  {}", human(*size), shown(path))?;
            }
        }
        Ok(())
    }
}

fn named(path: &[u8], what: &str, value: Value) -> Value {
    let escaped = Escaped::of(if path.is_empty() { ROOT } else { path });
    let mut object = Map::new();
    object.insert("path".to_owned(), json!(escaped.text));
    if let Some(encoding) = escaped.encoding {
        object.insert("path_encoding".to_owned(), json!(encoding));
    }
    object.insert(what.to_owned(), value);
    Value::Object(object)
}

/// A path for a terminal.
fn shown(path: &[u8]) -> String {
    let path = if path.is_empty() { ROOT } else { path };
    let text = Escaped::of(path).text;
    if text.chars().any(char::is_control) {
        path.escape_ascii().to_string()
    } else {
        text.into_owned()
    }
}

fn bytes(count: u64) -> String {
    format!("{} ({} bytes)", human(count), grouped(count))
}

/// `1.4 GiB`.
fn human(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64;
    let mut unit = "B";
    for larger in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    format!("{value:.1} {unit}")
}

/// `1,234,567`.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(u64::MAX), "16.0 EiB");
    }
}
