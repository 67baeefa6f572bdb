//! SQLite: a table `entry` with the columns of `columns.rs`, and a table `scan` that
//! says what the file is.

use std::path::Path;

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, OpenFlags, Result, ToSql, params_from_iter};

use crate::columns::{Cell, Holds, columns};
use crate::record::{Each, Record};

/// A file that is being written.
pub(crate) struct SqliteWriter {
    connection: Connection,
    insert: String,
    changes: bool,
}

impl SqliteWriter {
    /// Makes a database of the empty file at `path`.
    pub(crate) fn new(path: &Path, changes: bool) -> Result<SqliteWriter> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        // The file gets its name when all of it is there: nothing is ever rolled back.
        connection.execute_batch(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;",
        )?;
        let names: Vec<_> = columns(changes)
            .map(|column| {
                let affinity = match column.holds {
                    Holds::Int | Holds::Unsigned => "INTEGER",
                    Holds::Text => "TEXT",
                    // None: text stays text and bytes stay bytes.
                    Holds::Name => "",
                };
                let null = if column.nullable { "" } else { "NOT NULL" };
                format!("\"{}\" {affinity} {null}", column.name)
            })
            .collect();
        connection.execute_batch(&format!(
            "CREATE TABLE scan (version TEXT, complete INTEGER, changes INTEGER);
             CREATE TABLE entry ({});
             BEGIN",
            names.join(", ")
        ))?;
        let places = vec!["?"; names.len()];
        Ok(SqliteWriter {
            connection,
            insert: format!("INSERT INTO entry VALUES ({})", places.join(", ")),
            changes,
        })
    }

    pub(crate) fn write(&mut self, records: &[Record]) -> Result<()> {
        let mut insert = self.connection.prepare(&self.insert)?;
        for record in records {
            let cells = columns(self.changes).map(|column| (column.get)(record));
            insert.execute(params_from_iter(cells))?;
        }
        Ok(())
    }

    pub(crate) fn finish(self, complete: bool) -> Result<()> {
        self.connection.execute(
            "INSERT INTO scan VALUES (?, ?, ?)",
            (env!("CARGO_PKG_VERSION"), complete, self.changes),
        )?;
        self.connection.execute_batch("COMMIT")?;
        self.connection.close().map_err(|(_, err)| err)
    }
}

impl ToSql for Cell {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(match self {
            Cell::Null => ToSqlOutput::Owned(Value::Null),
            Cell::Int(value) => ToSqlOutput::Owned(Value::Integer(*value)),
            Cell::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Cell::Name(name) => ToSqlOutput::Borrowed(match std::str::from_utf8(name) {
                Ok(_) => ValueRef::Text(name),
                Err(_) => ValueRef::Blob(name),
            }),
        })
    }
}

/// Reads a file's records; whether it is complete, and whether it is one of changes.
pub(crate) fn read(path: &Path, each: &mut Each<'_>) -> std::result::Result<(bool, bool), String> {
    let text = |err: rusqlite::Error| err.to_string();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(text)?;
    let said = connection.query_row("SELECT complete, changes FROM scan", (), |row| {
        Ok((row.get(0)?, row.get(1)?))
    });
    let (complete, changes) = match said {
        Ok(said) => said,
        // The table's last row is missing.
        Err(rusqlite::Error::QueryReturnedNoRows) => (false, false),
        Err(err) => return Err(text(err)),
    };
    if changes {
        return Ok((complete, changes));
    }
    let columns: Vec<_> = columns(false).collect();
    let names: Vec<_> = columns
        .iter()
        .map(|column| format!("\"{}\"", column.name))
        .collect();
    let select = format!("SELECT {} FROM entry", names.join(", "));
    let mut select = connection.prepare(&select).map_err(text)?;
    let mut rows = select.query(()).map_err(text)?;
    while let Some(row) = rows.next().map_err(text)? {
        let mut record = Record::blank();
        for (i, column) in columns.iter().enumerate() {
            let cell = match row.get_ref(i).map_err(text)? {
                ValueRef::Null => Cell::Null,
                ValueRef::Integer(value) => Cell::Int(value),
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Cell::Name(bytes.to_vec()),
                ValueRef::Real(_) => return Err(format!("column {}: a fraction", column.name)),
            };
            (column.set)(&mut record, cell)
                .ok_or_else(|| format!("column {}: no such value", column.name))?;
        }
        each(record)?;
    }
    Ok((complete, changes))
}
