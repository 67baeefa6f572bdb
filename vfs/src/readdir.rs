//! Listing a directory.
//!
//! DIR-1: an entry present all through a listing is returned exactly once; one that
//! comes or goes meanwhile, at most once. It rests on the back end: each entry has a
//! position that no other entry gets, and a batch goes on after the last position
//! taken. hostfs keeps it as far as the host does, see there.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use crate::attr::FileType;
use crate::context::VfsPath;
use crate::error::{Error, Result};
use crate::filesystem::{Emit, RawEntry};
use crate::vfs_inode::DEAD_DIR;

/// Entries fetched from the back end at a time.
const BATCH: usize = 1024;

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// Its name.
    pub name: Box<[u8]>,
    /// The inode number.
    pub ino: u64,
    /// The file's type, if the directory stores it.
    pub kind: Option<FileType>,
    /// The position after it: where [`File::read_dir_from`](crate::File::read_dir_from)
    /// goes on. Never 0, which is the start.
    #[doc(alias = "d_off")]
    pub next: u64,
}

/// A listing in progress. It holds the directory, and no lock between two entries.
#[derive(Debug)]
#[doc(alias = "struct dir_context")]
pub struct ReadDir {
    dir: VfsPath,
    /// Where the next batch goes on: the position after the last entry fetched.
    from: u64,
    batch: VecDeque<DirEntry>,
    /// Entries so far.
    listed: u32,
    ended: bool,
    failed: Option<Error>,
}

impl ReadDir {
    pub(crate) fn new(dir: VfsPath) -> ReadDir {
        ReadDir::from(dir, 0)
    }

    pub(crate) fn from(dir: VfsPath, from: u64) -> ReadDir {
        ReadDir {
            dir,
            from,
            batch: VecDeque::new(),
            listed: 0,
            ended: false,
            failed: None,
        }
    }

    /// Fetches entries ahead of their use, for callers that have time now and need them soon.
    /// An error is kept for its turn. May block.
    #[doc(alias = "readahead")]
    pub fn read_ahead(&mut self) {
        if !self.ended && self.batch.len() < BATCH / 2 {
            self.fetch_more();
        }
    }

    fn fetch_more(&mut self) {
        let before = self.batch.len();
        let caches = self.dir.mnt().sb.caches.clone();
        // Goes on from the position it has reached.
        self.failed = caches.retry_held(|| self.fetch()).err();
        self.ended = self.failed.is_some() || self.batch.len() == before;
    }

    /// Positions are the back end's, stored per entry and never reused, so going on
    /// from one is right whatever has happened in between (DIR-1).
    fn fetch(&mut self) -> Result<()> {
        let inode = self.dir.inode_ref();
        let sb = &self.dir.mnt().sb;
        let shared = inode.rwsem().read();
        if inode.shared().has(DEAD_DIR) {
            return Err(Error::NotFound);
        }
        let before = self.batch.len();
        let mut batch = Batch {
            entries: &mut self.batch,
            from: &mut self.from,
            room: BATCH,
        };
        let read = sb.fs().read_dir(sb, &inode, *batch.from, &mut batch);
        if sb.looks_around {
            let more = batch.entries.len() - before;
            self.listed = self.listed.saturating_add(more as u32);
            shared.set(self.listed);
        }
        read
    }
}

struct Batch<'a> {
    entries: &'a mut VecDeque<DirEntry>,
    from: &'a mut u64,
    room: usize,
}

impl Emit for Batch<'_> {
    fn entry(&mut self, entry: RawEntry<'_>) -> ControlFlow<()> {
        if self.room == 0 {
            return ControlFlow::Break(());
        }
        let RawEntry {
            name,
            ino,
            kind,
            next,
        } = entry;
        self.entries.push_back(DirEntry {
            name: name.into(),
            ino,
            kind,
            next,
        });
        *self.from = next;
        self.room -= 1;
        ControlFlow::Continue(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.batch.is_empty() && !self.ended {
            self.fetch_more();
        }
        // Entries fetched before the error come before it.
        match self.batch.pop_front() {
            Some(entry) => Some(Ok(entry)),
            None => self.failed.take().map(Err),
        }
    }
}
