//! The text formats: one JSON object per line, or CSV with a header.
//!
//! Both have the same fields under the same names. JSON leaves out what is not known;
//! CSV leaves it empty.

use std::borrow::Cow;
use std::io::{BufRead, Read, Write};

use rcuwalk::{Attr, Timestamp};
use serde::{Deserialize, Serialize};

use crate::record::{Each, Record, type_name, type_named};
use crate::text::{Escaped, Mode, Time, unescape};

/// The columns of CSV, those of a change first.
pub(crate) const CHANGE_FIELDS: [&str; 4] = ["change", "what", "from", "from_encoding"];

/// The other columns.
pub(crate) const FIELDS: [&str; 20] = [
    "path",
    "path_encoding",
    "inode",
    "generation",
    "type",
    "mode",
    "uid",
    "gid",
    "size",
    "blocks",
    "atime",
    "mtime",
    "ctime",
    "btime",
    "links",
    "device",
    "rdev",
    "target",
    "target_encoding",
    "handle",
];

/// A record as text.
#[derive(Serialize, Deserialize)]
pub(crate) struct TextRow<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) change: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    what: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_encoding: Option<Cow<'a, str>>,
    path: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_encoding: Option<Cow<'a, str>>,
    inode: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u32>,
    r#type: Cow<'a, str>,
    mode: Mode,
    uid: u32,
    gid: u32,
    size: u64,
    blocks: u64,
    atime: Time,
    mtime: Time,
    ctime: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    btime: Option<Time>,
    links: u32,
    device: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdev: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_encoding: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<Cow<'a, str>>,
}

/// Text and encoding of a name that may be missing.
type Encoded<'a> = (Option<Cow<'a, str>>, Option<Cow<'a, str>>);

fn encoded(name: Option<&[u8]>) -> Encoded<'_> {
    match name.map(Escaped::of) {
        Some(name) => (Some(name.text), name.encoding.map(Cow::Borrowed)),
        None => (None, None),
    }
}

impl TextRow<'_> {
    pub(crate) fn of(record: &Record) -> TextRow<'_> {
        let change = record.change.as_ref();
        let (from, from_encoding) = encoded(change.and_then(|change| change.from.as_deref()));
        let (target, target_encoding) = encoded(record.target.as_deref());
        let path = Escaped::of(&record.path);
        let attr = &record.attr;
        TextRow {
            change: change.map(|change| Cow::Borrowed(change.kind.name())),
            what: change.map(|change| change.what.clone()),
            from,
            from_encoding,
            path: path.text,
            path_encoding: path.encoding.map(Cow::Borrowed),
            inode: attr.ino,
            generation: record.generation,
            r#type: Cow::Borrowed(type_name(attr.kind)),
            mode: Mode(attr.mode),
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            blocks: attr.blocks,
            atime: Time(attr.atime),
            mtime: Time(attr.mtime),
            ctime: Time(attr.ctime),
            btime: record.btime().map(Time),
            links: attr.nlink,
            device: attr.dev,
            rdev: record.rdev(),
            target,
            target_encoding,
            handle: record.handle_text().map(Cow::Owned),
        }
    }

    /// The record of the line, without the handle, which is written only.
    fn into_record(self) -> Option<Record> {
        let Time(atime) = self.atime;
        let Time(mtime) = self.mtime;
        let Time(ctime) = self.ctime;
        let target = match &self.target {
            Some(target) => Some(unescape(target, self.target_encoding.as_deref())?),
            None => None,
        };
        Some(Record {
            change: None,
            path: unescape(&self.path, self.path_encoding.as_deref())?,
            attr: Attr::new(self.inode, type_named(&self.r#type)?, self.mode.0)
                .dev(self.device)
                .nlink(self.links)
                .uid(self.uid)
                .gid(self.gid)
                .rdev(self.rdev.unwrap_or(0))
                .size(self.size)
                .blocks(self.blocks)
                .atime(atime)
                .mtime(mtime)
                .ctime(ctime)
                .btime(self.btime.map_or(Timestamp::default(), |Time(btime)| btime)),
            generation: self.generation,
            target,
            handle: None,
        })
    }
}

/// Appends `record` as a line of JSON.
pub(crate) fn write_json(to: &mut Vec<u8>, record: &Record) {
    // Neither a map with odd keys nor a writer that fails.
    serde_json::to_writer(&mut *to, &TextRow::of(record)).expect("a line of text");
    to.push(b'\n');
}

/// Appends the header of a CSV file.
pub(crate) fn write_csv_header(to: &mut Vec<u8>, changes: bool) {
    let names = CHANGE_FIELDS.iter().filter(|_| changes).chain(&FIELDS);
    for (i, name) in names.enumerate() {
        if i > 0 {
            to.push(b',');
        }
        to.extend_from_slice(name.as_bytes());
    }
    to.extend_from_slice(b"\r\n");
}

/// Appends `record` as a line of CSV (RFC 4180).
pub(crate) fn write_csv(to: &mut Vec<u8>, record: &Record) {
    let line = TextRow::of(record);
    if line.change.is_some() {
        csv_text(to, line.change.as_deref());
        csv_text(to, line.what.map(|what| what.join(",")).as_deref());
        csv_text(to, line.from.as_deref());
        csv_text(to, line.from_encoding.as_deref());
    }
    csv_text(to, Some(&line.path));
    csv_text(to, line.path_encoding.as_deref());
    csv_plain(to, Some(line.inode));
    csv_plain(to, line.generation);
    csv_text(to, Some(&line.r#type));
    csv_plain(to, Some(line.mode));
    csv_plain(to, Some(line.uid));
    csv_plain(to, Some(line.gid));
    csv_plain(to, Some(line.size));
    csv_plain(to, Some(line.blocks));
    csv_plain(to, Some(line.atime));
    csv_plain(to, Some(line.mtime));
    csv_plain(to, Some(line.ctime));
    csv_plain(to, line.btime);
    csv_plain(to, Some(line.links));
    csv_plain(to, Some(line.device));
    csv_plain(to, line.rdev);
    csv_text(to, line.target.as_deref());
    csv_text(to, line.target_encoding.as_deref());
    csv_plain(to, line.handle);
    // In place of the last comma.
    to.pop();
    to.extend_from_slice(b"\r\n");
}

fn csv_plain(to: &mut Vec<u8>, value: Option<impl std::fmt::Display>) {
    if let Some(value) = value {
        // Writing to a vector does not fail.
        let _ = write!(to, "{value}");
    }
    to.push(b',');
}

fn csv_text(to: &mut Vec<u8>, text: Option<&str>) {
    let text = text.unwrap_or_default();
    let quoted =
        text.contains([',', '"', '\n', '\r']) || text.starts_with(' ') || text.ends_with(' ');
    if quoted {
        to.push(b'"');
        to.extend_from_slice(text.replace('"', "\"\"").as_bytes());
        to.push(b'"');
    } else {
        to.extend_from_slice(text.as_bytes());
    }
    to.push(b',');
}

/// How an earlier scan ended, and what its file lists.
pub(crate) struct FileState {
    /// The root was the last of them.
    pub(crate) complete: bool,
    pub(crate) changes: bool,
}

/// Hands each line's record to `each`.
pub(crate) fn read_json(mut from: impl BufRead, each: &mut Each<'_>) -> Result<FileState, String> {
    let mut text = FileState {
        complete: false,
        changes: false,
    };
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        // A path may be long, but a file of another kind must not be read into memory as one
        // line.
        let mut limited = (&mut from).take(MAX_LINE);
        let length = limited.read_until(b'\n', &mut bytes);
        if length.map_err(|err| err.to_string())? == 0 {
            break;
        }
        let whole = bytes.ends_with(b"\n");
        let line: TextRow<'_> = match serde_json::from_slice(&bytes) {
            Ok(line) => line,
            // Cut off in the middle: for the caller to complain about.
            Err(_) if !whole && number > 1 => {
                text.complete = false;
                break;
            }
            Err(err) => return Err(format!("line {number}: {err}")),
        };
        text.take(line, each)
            .map_err(|why| format!("line {number}: {why}"))?;
    }
    Ok(text)
}

/// As long as a line may get: paths are not limited, but not endless either.
const MAX_LINE: u64 = 64 << 20;

/// Hands each row's record to `each`.
pub(crate) fn read_csv(from: impl Read, each: &mut Each<'_>) -> Result<FileState, String> {
    let mut text = FileState {
        complete: false,
        changes: false,
    };
    let mut reader = csv::Reader::from_reader(from);
    let header = reader.headers().map_err(|err| err.to_string())?;
    text.changes = header.iter().any(|name| name == "change");
    let mut rows = reader.deserialize::<TextRow<'_>>().peekable();
    while let Some(row) = rows.next() {
        match row {
            Ok(line) => text.take(line, each)?,
            // Cut off in the middle.
            Err(_) if rows.peek().is_none() => {
                text.complete = false;
                break;
            }
            Err(err) => return Err(err.to_string()),
        }
    }
    Ok(text)
}

impl FileState {
    fn take(&mut self, line: TextRow<'_>, each: &mut Each<'_>) -> Result<(), String> {
        self.changes |= line.change.is_some();
        let record = line.into_record().ok_or("an unknown encoding or type")?;
        self.complete = record.is_root();
        each(record)
    }
}
