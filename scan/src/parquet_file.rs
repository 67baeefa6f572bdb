//! Parquet: columns as `columns.rs` has them, a row group per batch.

use std::fs::File;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::reader::ColumnReader;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::Result;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};

use crate::columns::{Cell, Column, Holds, columns};
use crate::record::{Each, Record};

/// The keys of the file's metadata.
const COMPLETE: &str = "rcuwalk.complete";
const CHANGES: &str = "rcuwalk.changes";

/// A file that is being written.
pub(crate) struct ParquetWriter {
    file: SerializedFileWriter<File>,
    changes: bool,
}

impl ParquetWriter {
    pub(crate) fn new(file: File, changes: bool) -> Result<ParquetWriter> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("rcuwalk ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let file = SerializedFileWriter::new(file, schema(changes)?, Arc::new(properties))?;
        Ok(ParquetWriter { file, changes })
    }

    /// Writes a row group.
    pub(crate) fn write(&mut self, records: &[Record]) -> Result<()> {
        let mut group = self.file.next_row_group()?;
        for column in columns(self.changes) {
            let Some(mut writer) = group.next_column()? else {
                break;
            };
            let cells = records.iter().map(column.get);
            let mut levels = Vec::new();
            match column.holds {
                Holds::Int | Holds::Unsigned => {
                    let mut values = Vec::with_capacity(records.len());
                    for cell in cells {
                        levels.push(i16::from(cell != Cell::Null));
                        if let Cell::Int(value) = cell {
                            values.push(value);
                        }
                    }
                    let levels = column.nullable.then_some(&*levels);
                    let typed = writer.typed::<Int64Type>();
                    typed.write_batch(&values, levels, None)?;
                }
                Holds::Text | Holds::Name => {
                    let mut values: Vec<ByteArray> = Vec::with_capacity(records.len());
                    for cell in cells {
                        levels.push(i16::from(cell != Cell::Null));
                        match cell {
                            Cell::Text(text) => values.push(text.into_bytes().into()),
                            Cell::Name(name) => values.push(name.into()),
                            Cell::Int(_) | Cell::Null => {}
                        }
                    }
                    let levels = column.nullable.then_some(&*levels);
                    let typed = writer.typed::<ByteArrayType>();
                    typed.write_batch(&values, levels, None)?;
                }
            }
            writer.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// Writes what makes it a file that others can read.
    pub(crate) fn finish(mut self, complete: bool) -> Result<()> {
        for (key, value) in [(COMPLETE, complete), (CHANGES, self.changes)] {
            let pair = KeyValue::new(key.to_owned(), Some(value.to_string()));
            self.file.append_key_value_metadata(pair);
        }
        let file = self.file.into_inner()?;
        file.sync_all()?;
        Ok(())
    }
}

fn schema(changes: bool) -> Result<TypePtr> {
    let fields: Result<Vec<_>> = columns(changes).map(field).collect();
    let schema = Type::group_type_builder("scan").with_fields(fields?);
    Ok(Arc::new(schema.build()?))
}

fn field(column: &Column) -> Result<TypePtr> {
    let (physical, logical) = match column.holds {
        Holds::Int => (Physical::INT64, None),
        Holds::Unsigned => (Physical::INT64, Some(LogicalType::integer(64, false))),
        Holds::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        // Without a logical type: readers of a STRING may refuse what is not UTF-8.
        Holds::Name => (Physical::BYTE_ARRAY, None),
    };
    let repetition = if column.nullable {
        Repetition::OPTIONAL
    } else {
        Repetition::REQUIRED
    };
    let field = Type::primitive_type_builder(column.name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical);
    Ok(Arc::new(field.build()?))
}

/// Reads a file's records; whether it is complete, and whether it is one of changes.
pub(crate) fn read(file: File, each: &mut Each<'_>) -> std::result::Result<(bool, bool), String> {
    // The crate panics on some damaged files. That is no reason to end like a bug of ours,
    // nor to print like one. Nothing that was read before is used then.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let read = panic::catch_unwind(AssertUnwindSafe(|| read_groups(file, each)));
    panic::set_hook(hook);
    read.unwrap_or_else(|_| Err("the file is damaged".to_owned()))
}

fn read_groups(file: File, each: &mut Each<'_>) -> std::result::Result<(bool, bool), String> {
    let text = |err: parquet::errors::ParquetError| err.to_string();
    let reader = SerializedFileReader::new(file).map_err(text)?;
    let pairs = reader.metadata().file_metadata().key_value_metadata();
    let said = |key: &str| {
        let mut pairs = pairs.into_iter().flatten();
        let pair = pairs.find(|pair| pair.key == key);
        pair.and_then(|pair| pair.value.as_deref()) == Some("true")
    };
    let (complete, changes) = (said(COMPLETE), said(CHANGES));
    if changes {
        return Ok((complete, changes));
    }
    let mut place = Vec::new();
    let schema = reader.metadata().file_metadata().schema_descr();
    for column in columns(false) {
        let mut named = schema.columns().iter();
        let at = named.position(|field| field.name() == column.name);
        place.push((
            column,
            at.ok_or(format!("there is no column {}", column.name))?,
        ));
    }
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(text)?;
        let rows = usize::try_from(group.metadata().num_rows()).map_err(|err| err.to_string())?;
        // The length that a file claims is not allocated; its contents are.
        let mut records: Vec<Record> = Vec::new();
        for (i, (column, at)) in place.iter().enumerate() {
            let cells = Cells::of(group.get_column_reader(*at).map_err(text)?, rows)?;
            let mut count = 0;
            for (row, cell) in cells.enumerate() {
                if i == 0 {
                    records.push(Record::blank());
                }
                let record = records.get_mut(row).ok_or("columns of different length")?;
                (column.set)(record, cell)
                    .ok_or_else(|| format!("column {}: no such value", column.name))?;
                count += 1;
            }
            if count != records.len() {
                return Err("columns of different length".to_owned());
            }
        }
        records.into_iter().try_for_each(&mut *each)?;
    }
    Ok((complete, changes))
}

/// The cells of one column of a row group.
struct Cells {
    /// 0 for each row without a value; empty if all have one.
    levels: Vec<i16>,
    values: std::vec::IntoIter<Cell>,
    row: usize,
}

impl Cells {
    fn of(reader: ColumnReader, rows: usize) -> std::result::Result<Cells, String> {
        let mut levels = Vec::new();
        let (got, values) = match reader {
            ColumnReader::Int64ColumnReader(mut reader) => {
                let mut values = Vec::new();
                let got = reader.read_records(rows, Some(&mut levels), None, &mut values);
                (got, values.into_iter().map(Cell::Int).collect::<Vec<_>>())
            }
            ColumnReader::ByteArrayColumnReader(mut reader) => {
                let mut values = Vec::new();
                let got = reader.read_records(rows, Some(&mut levels), None, &mut values);
                let names = values.into_iter();
                let names = names.map(|name: ByteArray| Cell::Name(name.data().to_vec()));
                (got, names.collect())
            }
            _ => return Err("a column of another type".to_owned()),
        };
        got.map_err(|err| err.to_string())?;
        Ok(Cells {
            levels,
            values: values.into_iter(),
            row: 0,
        })
    }
}

impl Iterator for Cells {
    type Item = Cell;

    fn next(&mut self) -> Option<Cell> {
        if self.levels.is_empty() {
            return self.values.next();
        }
        let level = *self.levels.get(self.row)?;
        self.row += 1;
        if level == 0 {
            Some(Cell::Null)
        } else {
            self.values.next()
        }
    }
}
