//! `rcuwalk handles`: a database of file handles, by which files are opened without a walk.
//!
//! | read                  | to learn                                            |
//! |-----------------------|-----------------------------------------------------|
//! | this file             | the subcommands, and what they print                |
//! | `handles/database.rs` | what is stored, and in which order                  |
//! | `handles/source.rs`   | the tree, and the walk that fills the database      |
//! | `handles/pass.rs`     | every file asked for its attributes, on many threads |

mod database;
mod pass;
mod source;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Subcommand, ValueEnum, value_parser};
use rcuwalk::{Credentials, Error, LookupFlags};
use serde_json::{Value, json};

use crate::failure::{Failure, print};
use crate::limits::raise_descriptor_limit;
use crate::signals::Stop;
use database::{Database, Row};
use pass::{Found, Pass, Tally};
use source::Source;

/// Keep file handles in a database, and open files by them
///
/// A handle finds its file without a walk, wherever it was moved, and is stale once the file is
/// gone, whatever has its name or its inode number then. Opening files of a directory by handle
/// needs CAP_DAC_READ_SEARCH; without it they are found at the paths that the database has.
#[derive(Subcommand)]
#[command(after_help = "\
EXIT STATUS:
  0 if everything was found as the command asks, 1 if something was not, 2 for wrong usage,
  128 + N if signal N ended it.

What is stored, and what a handle promises: docs/handles.md.")]
pub(crate) enum Command {
    /// Walk SOURCE, and write the path, attributes and handle of every file to a new database
    ///
    /// SOURCE is a directory, or an ext2, ext3 or ext4 image. Other file systems below it are not
    /// entered.
    Index {
        /// The tree
        source: PathBuf,
        #[command(flatten)]
        with: With,
    },
    /// Open files by their handles, and print what is known of them, a JSON object for each
    Get {
        /// From the source, as `dir/file` or `/dir/file`
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        #[command(flatten)]
        with: With,
    },
    /// Ask for the attributes of every file, and count those that changed or are gone
    Stat {
        /// Every file of the database
        #[arg(long, required = true)]
        all: bool,
        /// How files are opened
        #[arg(long, value_enum, value_name = "HOW", default_value_t)]
        by: By,
        #[command(flatten)]
        with: With,
    },
    /// Open every file by its handle, and say which are gone, and which are elsewhere
    Verify {
        #[command(flatten)]
        with: With,
    },
    /// Walk the source again: add what is new, remove what is gone, renew what changed
    Update {
        #[command(flatten)]
        with: With,
    },
}

#[derive(clap::Args)]
pub(crate) struct With {
    /// The database
    #[arg(long, value_name = "FILE")]
    db: PathBuf,
    /// Work with N threads [default: two per core]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Print the summary as one JSON document
    #[arg(long)]
    json: bool,
}

/// How `stat` opens files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// By handle, in the order of inode numbers
    #[default]
    Handle,
    /// By path, for comparison: lstat(2) of a directory's files, a walk in an image
    Path,
}

pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    let stop = Stop::on_signals()
        .map_err(|err| Failure::error(format_args!("cannot catch signals: {err}")))?;
    raise_descriptor_limit();
    database::unless_damaged(command.database(), || match command {
        Command::Index { source, with } => index(source, with, &stop),
        Command::Get { paths, with } => get(paths, with),
        Command::Stat { by, with, .. } => stat(*by, with, &stop),
        Command::Verify { with } => verify(with, &stop),
        Command::Update { with } => update(with, &stop),
    })
}

impl Command {
    fn database(&self) -> &Path {
        match self {
            Command::Index { with, .. }
            | Command::Get { with, .. }
            | Command::Stat { with, .. }
            | Command::Verify { with }
            | Command::Update { with } => &with.db,
        }
    }
}

impl With {
    fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or(2 * cores, usize::from)
    }

    fn open(&self) -> Result<(Database, Source), Failure> {
        let database = Database::open(&self.db)?;
        let source = Source::open(&database.source()?)?;
        Ok((database, source))
    }

    fn print(&self, text: &str, json: &Value) -> Result<(), Failure> {
        match self.json {
            true => print(&format!("{json}\n")),
            false => print(&format!("{text}\n")),
        }
    }
}

fn index(path: &Path, with: &With, stop: &Stop) -> Result<(), Failure> {
    let begin = Instant::now();
    let source = Source::open(path)?;
    let database = Database::create(&with.db, source.path())?;
    let mut writing = database.write()?;
    let problems = source.walk(with.threads(), stop.flag(), &|_, _| true, &mut |file| {
        writing.put(&file)
    })?;
    stop.check()?;
    let entries = writing.done()?;
    database.keep()?;
    let seconds = begin.elapsed().as_secs_f64();
    with.print(
        &format!("{entries} files in {seconds:.2} s"),
        &json!({"entries": entries, "problems": problems, "seconds": seconds}),
    )?;
    could_not(problems, "be read")
}

fn update(with: &With, stop: &Stop) -> Result<(), Failure> {
    let begin = Instant::now();
    let (database, source) = with.open()?;
    let before = database.read()?;
    let mut writing = database.write()?;
    // A file whose attributes are all the same has the same handle.
    let is_new = |path: &[u8], row: &Row| !before.row(path).is_ok_and(|known| known == Some(*row));
    let problems = source.walk(with.threads(), stop.flag(), &is_new, &mut |file| {
        writing.put(&file)
    })?;
    stop.check()?;
    // What could not be read may still be there.
    let removed = match problems {
        0 => writing.remove_unseen()?,
        _ => 0,
    };
    let (added, renewed) = (writing.added, writing.renewed);
    let entries = writing.done()?;
    let seconds = begin.elapsed().as_secs_f64();
    with.print(
        &format!(
            "{entries} files in {seconds:.2} s: {added} new, {renewed} changed, {removed} gone"
        ),
        &json!({
            "entries": entries, "added": added, "renewed": renewed, "removed": removed,
            "problems": problems, "seconds": seconds,
        }),
    )?;
    could_not(problems, "be read; nothing was removed from the database")
}

fn get(paths: &[PathBuf], with: &With) -> Result<(), Failure> {
    let (database, source) = with.open()?;
    let reading = database.read()?;
    let mut failed = Vec::new();
    for path in paths {
        let path = database::absolute(path);
        let shown = String::from_utf8_lossy(&path);
        let Some((row, handle)) = reading.get(&path)? else {
            failed.push(format!("{shown}: not in the database"));
            continue;
        };
        let found = source.vfs().open_by_handle(&handle);
        let now = found.as_ref().ok().map(|place| Row::of(&place.attr()));
        let root = source.vfs().context(Credentials::root());
        let place = found.as_ref().ok();
        let is_at = place.and_then(|place| source.vfs().path_of(&root, place).ok());
        print(&format!(
            "{}\n",
            json!({
                "path": shown,
                "handle": database::hex(&handle.clone().without_path().to_bytes()),
                "state": pass::state(&row, now.as_ref()),
                "is_at": is_at.map(|path| String::from_utf8_lossy(&path).into_owned()),
                "recorded": row.json(),
                "now": now.map(|now| now.json()),
            })
        ))?;
        if let Err(err) = found {
            failed.push(match err {
                Error::Stale => format!("{shown}: the file of this handle is gone"),
                err => format!("{shown}: {err}"),
            });
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Errors(failed)),
    }
}

fn stat(by: By, with: &With, stop: &Stop) -> Result<(), Failure> {
    let begin = Instant::now();
    let (database, source) = with.open()?;
    let source = &source;
    let pass = Pass {
        threads: with.threads(),
        stop: stop.flag(),
    };
    let tally = match by {
        By::Handle => pass.run(&database, true, |_, handle, _| {
            Found::from(source.vfs().open_by_handle(handle))
        })?,
        By::Path => pass.run(&database, false, |path, _, _| source.stat(path))?,
    };
    stop.check()?;
    summary(&tally, by, begin, with)?;
    could_not(tally.errors, "be asked for its attributes")
}

fn verify(with: &With, stop: &Stop) -> Result<(), Failure> {
    let begin = Instant::now();
    let (database, source) = with.open()?;
    let vfs = source.vfs();
    let root = vfs.context(Credentials::root());
    let pass = Pass {
        threads: with.threads(),
        stop: stop.flag(),
    };
    let tally = pass.run(&database, true, |path, handle, row| {
        let shown = String::from_utf8_lossy(path);
        let place = match vfs.open_by_handle(handle) {
            Ok(place) => place,
            Err(err) => {
                if let Error::Stale = err {
                    let _ = print(&format!("gone: {shown}\n"));
                }
                return Found::from(Err(err));
            }
        };
        let now = Row::of(&place.attr());
        if !row.is_one_file(&now) {
            return Found::Another;
        }
        // A name may stand for another file by now; a file with several names has this one, too.
        let there = vfs.lookup(&root, path, LookupFlags::default());
        if !there.is_ok_and(|there| there.attr().ino == now.ino) {
            let _ = match vfs.path_of(&root, &place) {
                Ok(now) => print(&format!(
                    "moved: {shown} -> {}\n",
                    String::from_utf8_lossy(&now)
                )),
                Err(_) => print(&format!("moved: {shown}\n")),
            };
        }
        Found::There(now)
    })?;
    stop.check()?;
    summary(&tally, By::Handle, begin, with)?;
    match tally.another {
        0 => could_not(tally.errors + tally.stale, "be found by handle"),
        another => Err(Failure::error(format_args!(
            "{another} handles led to another file; rebuild the database: rcuwalk handles index"
        ))),
    }
}

fn summary(tally: &Tally, by: By, begin: Instant, with: &With) -> Result<(), Failure> {
    let seconds = begin.elapsed().as_secs_f64();
    let rate = tally.all() as f64 / seconds;
    let by = match by {
        By::Handle => "handle",
        By::Path => "path",
    };
    with.print(
        &format!(
            "{} files by {by} in {seconds:.2} s ({rate:.0} per second): {} as recorded, \
             {} changed, {} gone",
            tally.all(),
            tally.same,
            tally.changed,
            tally.stale
        ),
        &json!({
            "entries": tally.all(), "by": by, "seconds": seconds, "per_second": rate,
            "same": tally.same, "changed": tally.changed, "stale": tally.stale,
            "another": tally.another, "errors": tally.errors,
        }),
    )
}

fn could_not(count: u64, what: &str) -> Result<(), Failure> {
    match count {
        0 => Ok(()),
        1 => Err(Failure::error(format_args!("one file could not {what}"))),
        count => Err(Failure::error(format_args!(
            "{count} files could not {what}"
        ))),
    }
}
