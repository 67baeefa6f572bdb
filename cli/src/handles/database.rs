//! The database: an embedded one (redb), one file.
//!
//! | table   | key                | value                               | so that                        |
//! |---------|--------------------|-------------------------------------|--------------------------------|
//! | `about` | a word             | bytes: the source's path            |                                |
//! | `path`  | the path           | the attributes, and the last walk   | a file is found by its path    |
//! | `handle`| inode number, path | the handle, without its path        | a pass reads the inodes in order |
//!
//! A database appears under its name when it is complete. `update` is one transaction.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::UNIX_EPOCH;

use rcuwalk::{Attr, FileType, Handle, Timestamp};
use redb::{ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use serde_json::{Value, json};

use crate::failure::Failure;

const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
const PATHS: TableDefinition<'_, &[u8], (Stored, u64)> = TableDefinition::new("path");
const HANDLES: TableDefinition<'_, (u64, &[u8]), &[u8]> = TableDefinition::new("handle");

/// Inode number and size; mtime, ctime and btime; mode, links, owner and group.
type Stored = ((u64, u64), [(i64, u32); 3], [u32; 4]);

/// What it may cache in memory.
const CACHE_BYTES: usize = 64 << 20;

/// After the name of a database that is being made.
const PARTIAL: &str = ".partial";

/// The attributes of a file, as they were recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) ino: u64,
    size: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    btime: Timestamp,
    /// With the type.
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
}

impl Row {
    pub(super) fn of(attr: &Attr) -> Row {
        Row {
            ino: attr.ino,
            size: attr.size,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
            mode: attr.kind.mode_bits() | u32::from(attr.mode),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
        }
    }

    /// Of a file of the host, as lstat(2) tells them.
    pub(super) fn of_host(told: &Metadata) -> Row {
        let at = |sec, nsec: i64| Timestamp {
            sec,
            nsec: nsec as u32,
        };
        let born = told.created().ok();
        let born = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Row {
            ino: told.ino(),
            size: told.size(),
            mtime: at(told.mtime(), told.mtime_nsec()),
            ctime: at(told.ctime(), told.ctime_nsec()),
            btime: born.map_or_else(Timestamp::default, |born| Timestamp {
                sec: born.as_secs() as i64,
                nsec: born.subsec_nanos(),
            }),
            mode: told.mode(),
            nlink: told.nlink() as u32,
            uid: told.uid(),
            gid: told.gid(),
        }
    }

    /// False if they cannot be attributes of one file, whatever happened to it.
    pub(super) fn is_one_file(&self, now: &Row) -> bool {
        let kind = |row: &Row| FileType::from_mode(row.mode);
        (self.ino, self.btime, kind(self)) == (now.ino, now.btime, kind(now))
    }

    pub(super) fn json(&self) -> Value {
        let time = |at: Timestamp| at.sec as f64 + f64::from(at.nsec) / 1e9;
        json!({
            "ino": self.ino, "size": self.size, "mode": format!("{:o}", self.mode),
            "nlink": self.nlink, "uid": self.uid, "gid": self.gid,
            "mtime": time(self.mtime), "ctime": time(self.ctime), "btime": time(self.btime),
        })
    }

    fn stored(&self) -> Stored {
        let times = [self.mtime, self.ctime, self.btime];
        (
            (self.ino, self.size),
            times.map(|at| (at.sec, at.nsec)),
            [self.mode, self.nlink, self.uid, self.gid],
        )
    }

    fn read((numbers, times, [mode, nlink, uid, gid]): Stored) -> Row {
        let [mtime, ctime, btime] = times.map(|(sec, nsec)| Timestamp { sec, nsec });
        let (ino, size) = numbers;
        Row {
            ino,
            size,
            mtime,
            ctime,
            btime,
            mode,
            nlink,
            uid,
            gid,
        }
    }
}

/// A file that a walk has found.
pub(super) struct Walked {
    pub(super) path: Box<[u8]>,
    pub(super) row: Row,
    /// If it was asked for.
    pub(super) handle: Option<Handle>,
}

/// An open database.
pub(super) struct Database {
    redb: redb::Database,
    path: PathBuf,
    /// It is being made, and is removed unless it is [kept](Self::keep).
    partial: Option<PathBuf>,
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Errors are ignored: the name says that it is of no use.
            let _ = fs::remove_file(partial);
        }
    }
}

impl Database {
    /// A new one for the tree at `source`, in place of an older one.
    pub(super) fn create(path: &Path, source: &Path) -> Result<Database, Failure> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(PARTIAL);
        let partial = PathBuf::from(partial);
        let cannot = |err: &dyn std::fmt::Display| {
            Failure::error(format_args!("cannot write {}: {err}", partial.display()))
        };
        match fs::remove_file(&partial) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => return Err(cannot(&err)),
            _ => {}
        }
        let mut builder = redb::Database::builder();
        let redb = builder.set_cache_size(CACHE_BYTES).create(&partial);
        let database = Database {
            redb: redb.map_err(|err| cannot(&err))?,
            path: path.to_owned(),
            partial: Some(partial),
        };
        let writing = database
            .redb
            .begin_write()
            .map_err(|err| database.broken(&err))?;
        let put = || -> Result<(), redb::Error> {
            let mut about = writing.open_table(ABOUT)?;
            about.insert("source", source.as_os_str().as_bytes())?;
            Ok(())
        };
        put().map_err(|err| database.broken(&err))?;
        writing.commit().map_err(|err| database.broken(&err))?;
        Ok(database)
    }

    pub(super) fn open(path: &Path) -> Result<Database, Failure> {
        let mut builder = redb::Database::builder();
        let redb = builder.set_cache_size(CACHE_BYTES).open(path);
        let redb = redb.map_err(|err| {
            Failure::error(format_args!(
                "cannot open {} as a database of handles: {err}",
                path.display()
            ))
        })?;
        Ok(Database {
            redb,
            path: path.to_owned(),
            partial: None,
        })
    }

    /// It is complete: gives it its name.
    pub(super) fn keep(mut self) -> Result<(), Failure> {
        if let Some(partial) = &self.partial {
            fs::rename(partial, &self.path).map_err(|err| {
                Failure::error(format_args!("cannot make {}: {err}", self.path.display()))
            })?;
        }
        self.partial = None;
        Ok(())
    }

    /// The tree that it is about.
    pub(super) fn source(&self) -> Result<PathBuf, Failure> {
        let ask = || -> Result<Option<PathBuf>, redb::Error> {
            let about = self.redb.begin_read()?.open_table(ABOUT)?;
            let source = about.get("source")?;
            Ok(source.map(|source| PathBuf::from(OsStr::from_bytes(source.value()))))
        };
        let source = ask().map_err(|err| self.broken(&err))?;
        source.ok_or_else(|| self.broken(&"it does not say of which tree it is"))
    }

    /// As it is now, whatever is written meanwhile.
    pub(super) fn read(&self) -> Result<Reading<'_>, Failure> {
        let open = || -> Result<Reading<'_>, redb::Error> {
            let reading = self.redb.begin_read()?;
            Ok(Reading {
                database: self,
                paths: reading.open_table(PATHS)?,
                handles: reading.open_table(HANDLES)?,
            })
        };
        open().map_err(|err| self.broken(&err))
    }

    /// Begins a change, which is lost unless it is [done](Writing::done).
    pub(super) fn write(&self) -> Result<Writing<'_>, Failure> {
        let begin = || -> Result<Writing<'_>, redb::Error> {
            let transaction = self.redb.begin_write()?;
            let last = {
                let about = transaction.open_table(ABOUT)?;
                let last = about.get("walk")?;
                last.and_then(|last| last.value().try_into().ok().map(u64::from_le_bytes))
            };
            // Both tables exist from now on.
            transaction.open_table(PATHS)?;
            transaction.open_table(HANDLES)?;
            Ok(Writing {
                database: self,
                transaction,
                walk: last.unwrap_or(0) + 1,
                added: 0,
                renewed: 0,
            })
        };
        begin().map_err(|err| self.broken(&err))
    }

    fn broken(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::error(format_args!("{}: {why}", self.path.display()))
    }
}

/// Runs a command. redb panics where the file `path` holds what it cannot have written: that is an
/// error of the file here, and a panic of any other code stays one.
pub(super) fn unless_damaged(
    path: &Path,
    run: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    static DAMAGED: AtomicBool = AtomicBool::new(false);
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let at = info.location().map_or("", |at| at.file());
        if at.contains("/redb-") {
            DAMAGED.store(true, Relaxed);
        } else if !DAMAGED.load(Relaxed) {
            usual(info);
        }
    }));
    // Nothing of the command is used after a panic.
    let ended = panic::catch_unwind(AssertUnwindSafe(run));
    ended.unwrap_or_else(|panic| match DAMAGED.load(Relaxed) {
        true => Err(Failure::error(format_args!(
            "{} is damaged; make it anew: rcuwalk handles index",
            path.display()
        ))),
        false => panic::resume_unwind(panic),
    })
}

/// Receives a file: its path, attributes and handle. An error ends the reading.
type Each<'a> = dyn FnMut(&[u8], Row, Handle) -> Result<(), Failure> + 'a;

/// What the database holds at one moment.
pub(super) struct Reading<'d> {
    database: &'d Database,
    paths: redb::ReadOnlyTable<&'static [u8], (Stored, u64)>,
    handles: redb::ReadOnlyTable<(u64, &'static [u8]), &'static [u8]>,
}

impl Reading<'_> {
    /// The attributes of the file at `path`.
    pub(super) fn row(&self, path: &[u8]) -> Result<Option<Row>, Failure> {
        let row = self
            .paths
            .get(path)
            .map_err(|err| self.database.broken(&err))?;
        Ok(row.map(|row| Row::read(row.value().0)))
    }

    pub(super) fn get(&self, path: &[u8]) -> Result<Option<(Row, Handle)>, Failure> {
        let Some(row) = self.row(path)? else {
            return Ok(None);
        };
        let bytes = self.handles.get((row.ino, path));
        let bytes = bytes.map_err(|err| self.database.broken(&err))?;
        let bytes = bytes.ok_or_else(|| self.database.broken(&"a path without a handle"))?;
        Ok(Some((row, self.handle(bytes.value(), path)?)))
    }

    /// Calls `each` with every file, by inode number or by path, until it returns an error.
    pub(super) fn for_each(&self, by_handle: bool, each: &mut Each<'_>) -> Result<(), Failure> {
        let broken = |err: redb::StorageError| self.database.broken(&err);
        if by_handle {
            for file in self.handles.iter().map_err(broken)? {
                let (key, bytes) = file.map_err(broken)?;
                let (_, path) = key.value();
                let row = self.row(path)?;
                let row = row.ok_or_else(|| self.database.broken(&"a handle without a path"))?;
                each(path, row, self.handle(bytes.value(), path)?)?;
            }
            return Ok(());
        }
        for file in self.paths.iter().map_err(broken)? {
            let (path, _) = file.map_err(broken)?;
            if let Some((row, handle)) = self.get(path.value())? {
                each(path.value(), row, handle)?;
            }
        }
        Ok(())
    }

    fn handle(&self, bytes: &[u8], path: &[u8]) -> Result<Handle, Failure> {
        let handle = Handle::from_bytes(bytes).and_then(|handle| handle.with_path(path));
        handle.map_err(|_| self.database.broken(&"it holds a handle that is none"))
    }
}

/// A change of the database.
pub(super) struct Writing<'d> {
    database: &'d Database,
    transaction: redb::WriteTransaction,
    /// The number of the walk that this one is.
    walk: u64,
    pub(super) added: u64,
    pub(super) renewed: u64,
}

impl Writing<'_> {
    /// Records a file, or only that it is still there if it has no handle.
    pub(super) fn put(&mut self, file: &Walked) -> Result<(), Failure> {
        let path = &*file.path;
        let mut put = || -> Result<(), redb::Error> {
            let mut paths = self.transaction.open_table(PATHS)?;
            let stored = (file.row.stored(), self.walk);
            let old = paths.insert(path, stored)?.map(|old| old.value().0);
            let Some(handle) = &file.handle else {
                return Ok(());
            };
            let mut handles = self.transaction.open_table(HANDLES)?;
            match old {
                Some(old) => {
                    handles.remove((Row::read(old).ino, path))?;
                    self.renewed += 1;
                }
                None => self.added += 1,
            }
            let handle = handle.clone().without_path().to_bytes();
            handles.insert((file.row.ino, path), &*handle)?;
            Ok(())
        };
        put().map_err(|err| self.database.broken(&err))
    }

    /// Removes the files that this walk has not seen, and returns how many.
    pub(super) fn remove_unseen(&mut self) -> Result<u64, Failure> {
        let remove = || -> Result<u64, redb::Error> {
            let mut paths = self.transaction.open_table(PATHS)?;
            let mut handles = self.transaction.open_table(HANDLES)?;
            let mut removed = 0;
            for gone in paths.extract_if(|_, (_, walk)| walk != self.walk)? {
                let (path, row) = gone?;
                handles.remove((Row::read(row.value().0).ino, path.value()))?;
                removed += 1;
            }
            Ok(removed)
        };
        remove().map_err(|err| self.database.broken(&err))
    }

    /// Makes the change last, and returns how many files there are.
    pub(super) fn done(self) -> Result<u64, Failure> {
        let broken = |err: redb::Error| self.database.broken(&err);
        let count = || -> Result<u64, redb::Error> {
            let mut about = self.transaction.open_table(ABOUT)?;
            about.insert("walk", self.walk.to_le_bytes().as_slice())?;
            Ok(self.transaction.open_table(PATHS)?.len()?)
        };
        let entries = count().map_err(broken)?;
        let done = self.transaction.commit();
        done.map_err(|err| self.database.broken(&err))?;
        Ok(entries)
    }
}

/// A path as the database has it: from the source, with a slash in front.
pub(super) fn absolute(path: &Path) -> Vec<u8> {
    let names = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
    let mut absolute = Vec::new();
    for name in names.filter(|name| !name.is_empty() && *name != b".") {
        absolute.push(b'/');
        absolute.extend(name);
    }
    if absolute.is_empty() {
        absolute.push(b'/');
    }
    absolute
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
