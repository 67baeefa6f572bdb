//! `rcuwalk scan --format`: each format, read back by other means, is the tree.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::common::{names, rcuwalk, run, run_well};
use serde_json::Value;
use tempfile::TempDir;

/// The compared fields of an entry.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    ino: u64,
    kind: String,
    mode: u64,
    owner: (u64, u64),
    size: u64,
    blocks: u64,
    mtime: (i64, i64),
    links: u64,
    device: u64,
    target: Option<Vec<u8>>,
}

type Rows = BTreeMap<Vec<u8>, Row>;

/// Names that a format could stumble over.
fn odd_tree() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &[u8]| root.path().join(OsStr::from_bytes(name));
    let long = [b'l'; 255];
    let names: [&[u8]; 14] = [
        b"plain",
        b"new\nline",
        b"carriage\r",
        b"quote\"s 'and' commas,",
        b" spaces ",
        b"caf\xe9 \\x41 \\",
        b"back\\slash",
        b"tab\tand\x01control",
        "ünï¢ödé \u{1F980}".as_bytes(),
        b"\xff\xfe",
        b"-",
        b"\xed\xa0\x80surrogate",
        b"null",
        &long,
    ];
    for (i, name) in names.iter().enumerate() {
        fs::write(at(name), vec![b'x'; i * 700]).unwrap();
    }
    fs::set_permissions(at(b"plain"), Permissions::from_mode(0o4751)).unwrap();
    fs::create_dir(at(b"d\xff")).unwrap();
    fs::write(at(b"d\xff/inside"), "").unwrap();
    fs::hard_link(at(b"plain"), at(b"d\xff/link")).unwrap();
    symlink(OsStr::from_bytes(b"to \xfe\\"), at(b"symlink")).unwrap();
    symlink("d,\"x\"", at(b"other symlink")).unwrap();
    let old = filetime(-1, 500_000_000);
    rustix::fs::utimensat(
        rustix::fs::CWD,
        at(b"null"),
        &old,
        rustix::fs::AtFlags::empty(),
    )
    .unwrap();
    root
}

fn filetime(tv_sec: i64, tv_nsec: i64) -> rustix::fs::Timestamps {
    let time = rustix::fs::Timespec { tv_sec, tv_nsec };
    rustix::fs::Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// The tree as std tells it.
fn expected(root: &Path) -> Rows {
    let mut rows = Rows::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let attr = fs::symlink_metadata(&path).unwrap();
        let kind = match attr.file_type() {
            t if t.is_dir() => "directory",
            t if t.is_symlink() => "symlink",
            _ => "file",
        };
        let relative = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
        let relative = if relative.is_empty() { b"." } else { relative };
        let target = attr.is_symlink().then(|| fs::read_link(&path).unwrap());
        let row = Row {
            ino: attr.ino(),
            kind: kind.to_owned(),
            mode: u64::from(attr.mode() & 0o7777),
            owner: (attr.uid().into(), attr.gid().into()),
            size: attr.size(),
            blocks: attr.blocks(),
            mtime: (attr.mtime(), attr.mtime_nsec()),
            links: attr.nlink(),
            device: attr.dev(),
            target: target.map(|target| target.as_os_str().as_bytes().to_vec()),
        };
        rows.insert(relative.to_vec(), row);
        if attr.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    rows
}

/// Scans into a file of its own directory.
fn scanned(root: &TempDir, format: &str) -> (TempDir, std::path::PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("scan");
    let mut command = rcuwalk(["scan", "--format", format, "--output"]);
    run_well(command.arg(&file).arg(root.path()));
    assert_eq!(names(place.path()), ["scan"], "nothing else is left");
    (place, file)
}

/// A name as the text formats have it.
fn decoded(text: &str, encoding: &str) -> Vec<u8> {
    if encoding.is_empty() {
        return text.as_bytes().to_vec();
    }
    assert_eq!(encoding, "escaped");
    let mut name = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        name.extend_from_slice(before.as_bytes());
        if let Some(after) = after.strip_prefix('\\') {
            name.push(b'\\');
            rest = after;
        } else {
            name.push(u8::from_str_radix(&after[1..3], 16).unwrap());
            rest = &after[3..];
        }
    }
    name.extend_from_slice(rest.as_bytes());
    name
}

/// Seconds and nanoseconds of a decimal, as stat has them.
fn moment(text: &str) -> (i64, i64) {
    let (whole, fraction) = text.split_once('.').unwrap();
    assert_eq!(fraction.len(), 9, "{text}");
    let (sec, nsec): (i64, i64) = (whole.parse().unwrap(), fraction.parse().unwrap());
    if text.starts_with('-') && nsec > 0 {
        (sec - 1, 1_000_000_000 - nsec)
    } else {
        (sec, nsec)
    }
}

fn text_row(field: &dyn Fn(&str) -> String) -> (Vec<u8>, Row) {
    let number = |name: &str| field(name).parse::<u64>().unwrap();
    let kind = field("type");
    let target = decoded(&field("target"), &field("target_encoding"));
    let row = Row {
        ino: number("inode"),
        mode: u64::from_str_radix(&field("mode"), 8).unwrap(),
        owner: (number("uid"), number("gid")),
        size: number("size"),
        blocks: number("blocks"),
        mtime: moment(&field("mtime")),
        links: number("links"),
        device: number("device"),
        target: (kind == "symlink").then_some(target),
        kind,
    };
    (decoded(&field("path"), &field("path_encoding")), row)
}

#[test]
fn jsonl_is_the_tree() {
    let root = odd_tree();
    let (_place, file) = scanned(&root, "jsonl");
    let text = fs::read_to_string(file).unwrap();
    let rows: Vec<_> = text
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            text_row(&|name| match &line[name] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            })
        })
        .collect();
    assert_eq!(rows.last().unwrap().0, b".", "the root comes last");
    assert_eq!(rows.into_iter().collect::<Rows>(), expected(root.path()));
}

#[test]
fn csv_is_the_tree() {
    let root = odd_tree();
    let (_place, file) = scanned(&root, "csv");
    let mut reader = csv::Reader::from_path(file).unwrap();
    let header = reader.headers().unwrap().clone();
    let rows: Rows = reader
        .records()
        .map(|record| {
            let record = record.unwrap();
            text_row(&|name| {
                let at = header.iter().position(|field| field == name).unwrap();
                record[at].to_owned()
            })
        })
        .collect();
    assert_eq!(rows, expected(root.path()));
}

#[cfg(feature = "sqlite")]
#[test]
fn sqlite_is_the_tree() {
    use rusqlite::types::ValueRef;
    let root = odd_tree();
    let (_place, file) = scanned(&root, "sqlite");
    let database = rusqlite::Connection::open(file).unwrap();
    let whole: (bool, bool) = database
        .query_row("SELECT complete, changes FROM scan", (), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(whole, (true, false));
    let mut select = database.prepare("SELECT * FROM entry").unwrap();
    let rows = select.query_map((), |row| {
        let number = |name: &str| row.get::<_, i64>(name).map(i64::cast_unsigned);
        let name = |name: &str| match row.get_ref(name).unwrap() {
            ValueRef::Null => None,
            ValueRef::Text(text) => {
                assert!(std::str::from_utf8(text).is_ok());
                Some(text.to_vec())
            }
            ValueRef::Blob(bytes) => {
                assert!(std::str::from_utf8(bytes).is_err(), "text is text");
                Some(bytes.to_vec())
            }
            other => panic!("{other:?}"),
        };
        let entry = Row {
            ino: number("inode")?,
            kind: row.get("type")?,
            mode: number("mode")?,
            owner: (number("uid")?, number("gid")?),
            size: number("size")?,
            blocks: number("blocks")?,
            mtime: (row.get("mtime")?, row.get("mtime_nsec")?),
            links: number("links")?,
            device: number("device")?,
            target: name("target"),
        };
        Ok((name("path").unwrap(), entry))
    });
    let rows: Rows = rows.unwrap().map(Result::unwrap).collect();
    assert_eq!(rows, expected(root.path()));
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_is_the_tree() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    let root = odd_tree();
    let (_place, file) = scanned(&root, "parquet");
    let reader = SerializedFileReader::new(fs::File::open(file).unwrap()).unwrap();
    let rows: Rows = reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| {
            let row = row.unwrap();
            let field = |name: &str| {
                let mut fields = row.get_column_iter();
                fields.find(|(field, _)| *field == name).unwrap().1.clone()
            };
            let number = |name: &str| match field(name) {
                Field::Long(value) => value.cast_unsigned(),
                Field::ULong(value) => value,
                other => panic!("{name}: {other}"),
            };
            let name = |name: &str| match field(name) {
                Field::Null => None,
                Field::Bytes(bytes) => Some(bytes.data().to_vec()),
                other => panic!("{name}: {other}"),
            };
            let Field::Str(kind) = field("type") else {
                panic!("a type is text");
            };
            let entry = Row {
                ino: number("inode"),
                kind,
                mode: number("mode"),
                owner: (number("uid"), number("gid")),
                size: number("size"),
                blocks: number("blocks"),
                mtime: (
                    number("mtime").cast_signed(),
                    number("mtime_nsec").cast_signed(),
                ),
                links: number("links"),
                device: number("device"),
                target: name("target"),
            };
            (name("path").unwrap(), entry)
        })
        .collect();
    assert_eq!(rows, expected(root.path()));
}

/// A scan compares with its own rows, in each format.
#[test]
fn each_format_reads_itself() {
    let root = odd_tree();
    for format in ["jsonl", "csv", "parquet", "sqlite"] {
        if cfg!(not(feature = "parquet")) && format == "parquet"
            || cfg!(not(feature = "sqlite")) && format == "sqlite"
        {
            continue;
        }
        let (_place, file) = scanned(&root, format);
        let mut command = rcuwalk(["scan", "--format", "jsonl", "--changed-since"]);
        let ended = run(command.arg(&file).arg(root.path()));
        assert_eq!(
            (ended.code, &*ended.out, &*ended.err),
            (Some(0), "", ""),
            "{format}"
        );
    }
}
