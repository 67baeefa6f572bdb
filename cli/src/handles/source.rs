//! The tree that a database is about, and the walk over it.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use rcuwalk::scan::Queue;
use rcuwalk::{Context, Credentials, Error, FileType, Freshness, LookupFlags, Vfs, VfsPath};
use rcuwalk_ext4::Ext4;
use rcuwalk_hostfs::HostFs;

use super::database::{Row, Walked};
use super::pass::Found;
use crate::failure::{Failure, Words};

/// A directory of the host, or an ext4 image.
pub(super) struct Source {
    path: PathBuf,
    vfs: Vfs,
    is_directory: bool,
}

/// Files that a thread sends at a time.
const BATCH: usize = 256;

impl Source {
    pub(super) fn open(path: &Path) -> Result<Source, Failure> {
        let shown = path.display();
        let cannot = |err: &dyn std::fmt::Display| {
            Failure::error(format_args!("cannot use {shown} as source: {err}"))
        };
        // Commands that come later may run elsewhere.
        let path = fs::canonicalize(path).map_err(|err| cannot(&Words(&err)))?;
        let kind = fs::metadata(&path)
            .map_err(|err| cannot(&Words(&err)))?
            .file_type();
        let is_directory = kind.is_dir();
        let vfs = if is_directory {
            let fs = HostFs::new(&path).map_err(|err| Failure::error(err.to_string()))?;
            Vfs::new(fs.with_freshness(Freshness::EachUse))
        } else if kind.is_file() || kind.is_block_device() {
            Vfs::new(Ext4::open(&path).map_err(|err| Failure::error(err.to_string()))?)
        } else {
            return Err(cannot(
                &"neither a directory, nor an image, nor a block device",
            ));
        };
        Ok(Source {
            vfs: vfs.map_err(|err| cannot(&err))?,
            path,
            is_directory,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn vfs(&self) -> &Vfs {
        &self.vfs
    }

    /// The attributes of the file at a path of the database, not by its handle.
    pub(super) fn stat(&self, path: &[u8]) -> Found {
        if !self.is_directory {
            let root = self.vfs.context(Credentials::root());
            return Found::from(self.vfs.lookup(&root, path, LookupFlags::default()));
        }
        let below = OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path));
        match fs::symlink_metadata(self.path.join(below)) {
            Ok(now) => Found::There(Row::of_host(&now)),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Found::Gone,
            Err(_) => Found::Error,
        }
    }

    /// Walks the whole tree on `threads` threads, and calls `put` with each file of the source's
    /// file system. Its handle is there if `needs` says so. Ends early when `stop` is raised, or
    /// `put` fails. Returns how many files and directories could not be read; each was reported.
    pub(super) fn walk(
        &self,
        threads: usize,
        stop: &AtomicBool,
        needs: &(dyn Fn(&[u8], &Row) -> bool + Sync),
        put: &mut dyn FnMut(Walked) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let queue = Queue::new(threads);
        let problems = AtomicU64::new(0);
        let root = self.vfs.root();
        queue.give([(Box::<[u8]>::from(*b"/"), root.clone())]);
        let (to, from) = sync_channel(2 * threads);
        thread::scope(|scope| {
            for _ in 0..threads {
                let mut walker = Walker {
                    source: self,
                    root: self.vfs.context(Credentials::root()),
                    space: root.inode().inode_key().space,
                    needs,
                    problems: &problems,
                    batch: Vec::new(),
                    to: to.clone(),
                };
                let queue = &queue;
                scope.spawn(move || walker.run(queue, stop));
            }
            drop(to);
            let mut ended = Ok(());
            for file in from.iter().flatten() {
                if ended.is_ok() {
                    ended = put(file);
                    if ended.is_err() {
                        queue.end();
                    }
                }
            }
            ended
        })?;
        Ok(problems.into_inner())
    }
}

type Directory = (Box<[u8]>, VfsPath);

/// One thread of a walk.
struct Walker<'w> {
    source: &'w Source,
    root: Context,
    /// Of the file system that is walked.
    space: u64,
    needs: &'w (dyn Fn(&[u8], &Row) -> bool + Sync),
    problems: &'w AtomicU64,
    batch: Vec<Walked>,
    to: SyncSender<Vec<Walked>>,
}

impl Walker<'_> {
    fn run(&mut self, queue: &Queue<Directory>, stop: &AtomicBool) {
        let _end = queue.end_on_panic();
        let mut mine = Vec::new();
        while let Some((path, dir)) = queue.next(&mut mine, stop) {
            if *path == *b"/" {
                self.found(&path, &dir);
            }
            if let Err(err) = self.list(&path, &dir, &mut mine, stop) {
                self.problem(&path, &err);
            }
        }
        self.send();
    }

    fn list(
        &mut self,
        path: &[u8],
        dir: &VfsPath,
        mine: &mut Vec<Directory>,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let vfs = &self.source.vfs;
        let within = self.root.clone().with_cwd(dir.clone());
        for entry in vfs.read_dir(&within, dir)? {
            let name = entry?.name;
            if stop.load(Relaxed) {
                return Ok(());
            }
            let above = path.strip_suffix(b"/").unwrap_or(path);
            let path: Box<[u8]> = [above, &*name].join(&b'/').into();
            let place = match vfs.lookup(&within, &name, LookupFlags::default()) {
                Ok(place) => place,
                // It went meanwhile.
                Err(Error::NotFound) => continue,
                Err(err) => {
                    self.problem(&path, &err);
                    continue;
                }
            };
            let is_here = place.inode().inode_key().space == self.space;
            if is_here && self.found(&path, &place) && place.attr().kind == FileType::Directory {
                mine.push((path, place));
            }
        }
        Ok(())
    }

    /// Returns false if it went meanwhile.
    fn found(&mut self, path: &[u8], place: &VfsPath) -> bool {
        let row = Row::of(&place.attr());
        let handle = (self.needs)(path, &row).then(|| self.source.vfs.encode_handle(place));
        match handle.transpose() {
            Ok(handle) => self.batch.push(Walked {
                path: path.into(),
                row,
                handle,
            }),
            Err(Error::Stale | Error::NotFound) => return false,
            Err(err) => self.problem(path, &err),
        }
        if self.batch.len() >= BATCH {
            self.send();
        }
        true
    }

    fn send(&mut self) {
        // The receiver lives longer than this thread.
        let _ = self.to.send(std::mem::take(&mut self.batch));
    }

    fn problem(&self, path: &[u8], err: &Error) {
        self.problems.fetch_add(1, Relaxed);
        // Errors are ignored: with standard error closed, the exit status has to do.
        let path = String::from_utf8_lossy(path);
        let _ = writeln!(io::stderr(), "rcuwalk: {path}: {err}");
    }
}
