//! The binary formats' columns: one table for parquet and SQLite, both ways.
//!
//! Numbers are 64 bits wide; those that are unsigned on the host keep their bits. A time
//! is two columns, seconds and nanoseconds, because nanoseconds alone end in 2262.

use rcuwalk::Timestamp;

use crate::record::{Record, type_name, type_named};

/// The value of one row in one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Null,
    Int(i64),
    Text(String),
    /// Bytes that are text more often than not.
    Name(Vec<u8>),
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Int,
    /// 64 bits without a sign.
    Unsigned,
    Text,
    Name,
}

/// A column.
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) holds: Holds,
    pub(crate) nullable: bool,
    pub(crate) get: fn(&Record) -> Cell,
    /// `None` if the cell makes no sense.
    pub(crate) set: fn(&mut Record, Cell) -> Option<()>,
}

/// The columns of a file, with or without those of a change.
pub(crate) fn columns(changes: bool) -> impl Iterator<Item = &'static Column> {
    CHANGE.iter().filter(move |_| changes).chain(COLUMNS)
}

const CHANGE: &[Column] = &[
    Column {
        name: "change",
        holds: Holds::Text,
        nullable: false,
        get: |record| match &record.change {
            Some(change) => Cell::Text(change.kind.name().to_owned()),
            None => Cell::Text(String::new()),
        },
        // Such files are never read.
        set: |_, _| None,
    },
    Column {
        name: "what",
        holds: Holds::Text,
        nullable: true,
        get: |record| match &record.change {
            Some(change) if !change.what.is_empty() => Cell::Text(change.what.join(",")),
            _ => Cell::Null,
        },
        set: |_, _| None,
    },
    Column {
        name: "from",
        holds: Holds::Name,
        nullable: true,
        get: |record| match &record.change {
            Some(change) => change.from.clone().map_or(Cell::Null, Cell::Name),
            None => Cell::Null,
        },
        set: |_, _| None,
    },
];

/// A column of unsigned numbers that are a field of the attributes.
macro_rules! number {
    ($name:literal, $holds:ident, $field:ident) => {
        Column {
            name: $name,
            holds: Holds::$holds,
            nullable: false,
            get: |record| Cell::Int(u64::from(record.attr.$field).cast_signed()),
            set: |record, cell| {
                record.attr.$field = cell.int()?.cast_unsigned().try_into().ok()?;
                Some(())
            },
        }
    };
}

/// The two columns of a time.
macro_rules! time {
    ($name:literal, $field:ident, $nullable:literal, $part:ident) => {
        Column {
            name: $name,
            holds: Holds::Int,
            nullable: $nullable,
            get: |record| {
                if $nullable && record.attr.$field == Timestamp::default() {
                    return Cell::Null;
                }
                Cell::Int(i64::from(record.attr.$field.$part))
            },
            set: |record, cell| {
                if cell != Cell::Null {
                    record.attr.$field.$part = cell.int()?.try_into().ok()?;
                }
                Some(())
            },
        }
    };
}

const COLUMNS: &[Column] = &[
    Column {
        name: "path",
        holds: Holds::Name,
        nullable: false,
        get: |record| Cell::Name(record.path.clone()),
        set: |record, cell| {
            record.path = cell.name()?;
            Some(())
        },
    },
    number!("inode", Unsigned, ino),
    Column {
        name: "generation",
        holds: Holds::Int,
        nullable: true,
        get: |record| {
            record
                .generation
                .map_or(Cell::Null, |g| Cell::Int(g.into()))
        },
        set: |record, cell| {
            record.generation = match cell {
                Cell::Null => None,
                cell => Some(cell.int()?.try_into().ok()?),
            };
            Some(())
        },
    },
    Column {
        name: "type",
        holds: Holds::Text,
        nullable: false,
        get: |record| Cell::Text(type_name(record.attr.kind).to_owned()),
        set: |record, cell| {
            record.attr.kind = type_named(&String::from_utf8(cell.name()?).ok()?)?;
            Some(())
        },
    },
    number!("mode", Int, mode),
    number!("uid", Int, uid),
    number!("gid", Int, gid),
    number!("size", Unsigned, size),
    number!("blocks", Unsigned, blocks),
    time!("atime", atime, false, sec),
    time!("atime_nsec", atime, false, nsec),
    time!("mtime", mtime, false, sec),
    time!("mtime_nsec", mtime, false, nsec),
    time!("ctime", ctime, false, sec),
    time!("ctime_nsec", ctime, false, nsec),
    time!("btime", btime, true, sec),
    time!("btime_nsec", btime, true, nsec),
    number!("links", Int, nlink),
    number!("device", Unsigned, dev),
    Column {
        name: "rdev",
        holds: Holds::Unsigned,
        nullable: true,
        get: |record| {
            record
                .rdev()
                .map_or(Cell::Null, |rdev| Cell::Int(rdev.cast_signed()))
        },
        set: |record, cell| {
            if cell != Cell::Null {
                record.attr.rdev = cell.int()?.cast_unsigned();
            }
            Some(())
        },
    },
    Column {
        name: "target",
        holds: Holds::Name,
        nullable: true,
        get: |record| record.target.clone().map_or(Cell::Null, Cell::Name),
        set: |record, cell| {
            if cell != Cell::Null {
                record.target = Some(cell.name()?);
            }
            Some(())
        },
    },
    Column {
        name: "handle",
        holds: Holds::Text,
        nullable: true,
        get: |record| record.handle_text().map_or(Cell::Null, Cell::Text),
        // It is written only.
        set: |_, _| Some(()),
    },
];

impl Cell {
    fn int(&self) -> Option<i64> {
        match self {
            Cell::Int(value) => Some(*value),
            _ => None,
        }
    }

    fn name(self) -> Option<Vec<u8>> {
        match self {
            Cell::Name(name) => Some(name),
            Cell::Text(text) => Some(text.into_bytes()),
            _ => None,
        }
    }
}
