//! Listing a directory: as entries ([`ReadDir`]), or as records in the caller's buffer
//! ([`File::fill`](crate::File::fill)).
//!
//! DIR-1: an entry present all through a listing is returned exactly once; one that
//! comes or goes meanwhile, at most once. It rests on the back end: each entry has a
//! position that no other entry gets, and a batch goes on after the last position
//! taken. hostfs keeps it as far as the host does, see there.

mod blob;
mod cache;
mod chunk;
mod listings;
mod records;

pub(crate) use cache::DirCache;
use cache::{Batch, DirState};
pub(crate) use listings::Listings;
pub use records::Entries;
use records::{Growing, Room, Slice, Writer};

use crate::attr::FileType;
use crate::context::VfsPath;
use crate::error::{Error, Result};
use crate::filesystem::RawEntry;
use crate::super_block::SuperBlock;
use crate::vfs_inode::{DEAD_DIR, InodeRef};

/// Bytes of records fetched from the back end at a time: a thousand entries with short names.
const BATCH: usize = 32 * 1024;

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
///
/// As an iterator it allocates memory for each name. [`peek`](Self::peek) and
/// [`advance`](Self::advance) lend the entries instead.
#[derive(Debug)]
#[doc(alias = "struct dir_context")]
pub struct ReadDir {
    dir: VfsPath,
    /// Where the next batch goes on: the position after the last entry fetched.
    from: u64,
    /// Records that have been fetched.
    batch: Vec<u8>,
    /// Where in `batch` the next one begins.
    at: usize,
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
            batch: Vec::new(),
            at: 0,
            listed: 0,
            ended: false,
            failed: None,
        }
    }

    /// The next entry, which stays the next one until [`advance`](Self::advance); `None` at the
    /// end. May block.
    ///
    /// # Errors
    /// What the back end reports, once, after the entries that it handed over before. The listing
    /// has ended then.
    pub fn peek(&mut self) -> Result<Option<RawEntry<'_>>> {
        if self.at == self.batch.len() {
            if !self.ended {
                self.fetch_more();
            }
            // Entries fetched before the error come before it.
            if self.at == self.batch.len() {
                return self.failed.take().map_or(Ok(None), Err);
            }
        }
        Ok(records::first(&self.batch[self.at..]).map(|(entry, _)| entry))
    }

    /// Goes past the entry that [`peek`](Self::peek) has returned.
    pub fn advance(&mut self) {
        if let Some((_, length)) = records::first(&self.batch[self.at..]) {
            self.at += length;
        }
    }

    /// Fetches entries ahead of their use, for callers that have time now and need them soon.
    /// An error is kept for its turn. May block.
    #[doc(alias = "readahead")]
    pub fn read_ahead(&mut self) {
        if !self.ended && self.batch.len() - self.at < BATCH / 2 {
            self.fetch_more();
        }
    }

    fn fetch_more(&mut self) {
        self.batch.drain(..self.at);
        self.at = 0;
        let before = self.batch.len();
        let caches = self.dir.mnt().sb.caches.clone();
        // Goes on from the position it has reached.
        self.failed = caches.retry_held(|| self.fetch()).err();
        self.ended = self.failed.is_some() || self.batch.len() == before;
        if self.ended {
            self.batch.shrink_to_fit();
        }
    }

    /// Positions are the back end's, stored per entry and never reused, so going on
    /// from one is right whatever has happened in between (DIR-1).
    fn fetch(&mut self) -> Result<()> {
        let mut writer = Writer::new(Growing::new(&mut self.batch, BATCH));
        let read = read(&self.dir, self.from, &mut writer, |listed, more| {
            *listed = self.listed.saturating_add(more);
        });
        self.listed = self.listed.saturating_add(writer.count);
        self.from = writer.last.unwrap_or(self.from);
        read.and_then(|()| writer.finish().map(drop))
    }
}

/// Fills the caller's buffer with the records of the entries after `from`.
pub(crate) fn fill(dir: &VfsPath, from: u64, buf: &mut [u8]) -> Result<usize> {
    let mut writer = Writer::new(Slice::new(buf));
    read(dir, from, &mut writer, |listed, more| {
        let before = if from == 0 { 0 } else { *listed };
        *listed = before.saturating_add(more);
    })?;
    let (is_full, used) = (writer.is_full, writer.finish()?.used);
    match is_full && used == 0 {
        true => Err(Error::Invalid),
        false => Ok(used),
    }
}

/// Hands the entries after `from` to `writer`. `count` is given the number of names that the
/// listing has returned so far and those that it returns now.
fn read<R: Room>(
    dir: &VfsPath,
    from: u64,
    writer: &mut Writer<R>,
    count: impl FnOnce(&mut u32, u32),
) -> Result<()> {
    let inode = dir.inode_ref();
    let sb = &dir.mnt().sb;
    // Shared: lookups and other listings go on meanwhile, and a change waits for one batch.
    let shared = inode.rwsem().read();
    if inode.shared().has(DEAD_DIR) {
        return Err(Error::NotFound);
    }
    let read = match sb.caches_listings {
        true => read_cached((sb, &inode), from, writer),
        false => sb.fs().read_dir(sb, &inode, from, writer),
    };
    if sb.looks_around {
        let mut listed = shared.names();
        count(&mut listed, writer.count);
        shared.set(listed);
    }
    drop(shared);
    sb.caches.listings.make_room();
    read
}

/// As the back end, with the directory's cached listing where it can answer. The caller holds the
/// directory shared.
fn read_cached<R: Room>(
    (sb, inode): (&SuperBlock, &InodeRef),
    from: u64,
    writer: &mut Writer<R>,
) -> Result<()> {
    let cache = inode.listing();
    let copied = |is_copied: bool| {
        if is_copied {
            sb.caches.counters.get().listed_from_cache();
        }
        is_copied
    };
    if cache.is_some_and(|cache| copied(cache.copy((sb, inode), from, None, writer))) {
        return Ok(());
    }
    // Both are taken before asking: the answer may be older than its arrival (FRESH-1).
    let state = DirState {
        valid_until: sb.validity(Some(inode)).until,
        version: version(sb, inode, from),
    };
    if sb.lists_by_version()
        && let Some(cache) = cache
    {
        if copied(cache.copy((sb, inode), from, Some(state), writer)) {
            return Ok(());
        }
        if from == 0 {
            cache.keep_version(state);
        }
    }
    sb.fs().read_dir(sb, inode, from, writer)?;
    if from == 0 && state.version.is_none() {
        return Ok(());
    }
    let records = writer.written();
    inode.or_listing(&sb.caches.listings).append(
        sb,
        &Batch {
            from,
            records,
            last: writer.last.unwrap_or(from),
            is_all: !writer.is_full && !writer.is_bad,
            state,
        },
    );
    Ok(())
}

/// The directory's version, if a listing that begins now is worth keeping, or one that goes on must
/// be confirmed.
fn version(sb: &SuperBlock, inode: &InodeRef, from: u64) -> Option<u64> {
    let is_wanted = match sb.lists_by_version() {
        true => from == 0 || inode.listing().is_some_and(|cache| cache.is_used_at(from)),
        // Never fresh in a directory that is not watched.
        false => from == 0 && sb.is_listing_fresh(inode, sb.validity(Some(inode)).until),
    };
    is_wanted
        .then(|| sb.fs().listing_version(sb, inode))
        .flatten()
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        let entry = match self.peek() {
            Ok(entry) => entry?,
            Err(err) => return Some(Err(err)),
        };
        let entry = DirEntry {
            name: entry.name.into(),
            ino: entry.ino,
            kind: entry.kind,
            next: entry.next,
        };
        self.advance();
        Some(Ok(entry))
    }
}
