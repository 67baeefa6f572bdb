//! A directory that is open: listing it from the position that the kernel names.
//!
//! The kernel asks for a buffer at a time, and each time from the position after the last
//! entry that its caller took: mostly where the last answer ended, seldom in the middle of
//! it, or at the start again (rewinddir(3)), or anywhere (seekdir(3)). Positions are the
//! back end's own, which last (DIR-1); the handle keeps one listing in progress, and begins
//! another where it does not stand at the position that is asked for. So what it holds is
//! one batch of entries, however long the directory.
//!
//! # What the kernel keeps
//!
//! With `FOPEN_CACHE_DIR` the kernel keeps a listing that it has seen to the end, and shows it
//! to whoever opens the directory, as long as its mtime is the one that it had when that listing
//! began (and nothing was changed through the mount). That is worth two requests for each
//! directory that is listed again. But two changes within a tick of the host's clock have one
//! mtime: if the listing came in between, the kernel would keep it although it is old. So a
//! directory is listed for keeping only if it has been left alone for a while when it is
//! opened; and if it is changed between that and the listing, the listing waits for a tick. What
//! changes after it then has a time of its own.
//!
//! | position     | what comes next             |
//! |--------------|-----------------------------|
//! | 0            | `.`                         |
//! | [`AFTER_DOT`] | `..`                       |
//! | [`AFTER_DOTS`] | the first entry           |
//! | any other    | what is behind the entry with that [`next`](rcuwalk::DirEntry::next) |
//! | [`FAR`]      | as well: for the ones that are no position of a file, 2^63 and more  |

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use rcuwalk::{Attr, DirEntry, Error, File, FileType, ReadDir, Result};

/// High enough for no back end to count there, and below what hashes are made of but for
/// one in 2^62.
const AFTER_DOT: u64 = 1 << 62 | 1;
const AFTER_DOTS: u64 = 1 << 62 | 2;
/// Positions of files are signed.
const FAR: u64 = i64::MAX as u64;

/// An open directory.
pub(crate) struct OpenDir {
    pub(crate) file: File,
    /// The kernel may keep what it is listed.
    pub(crate) is_kept: bool,
    listing: Mutex<Option<Listing>>,
}

/// Whether the kernel may keep a listing until the directory's time of change is another: it
/// has one that no later change can have. Times of whole seconds are what file systems have
/// whose clocks tick that slowly, or slower.
fn is_at_rest(attr: &Attr, now: SystemTime) -> bool {
    attr.mtime.nsec != 0 && age(attr, now).is_some_and(|age| age > REST)
}

/// How long ago it was changed; `None` if that is to come.
fn age(attr: &Attr, now: SystemTime) -> Option<Duration> {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let changed = Duration::new(u64::try_from(attr.mtime.sec).ok()?, attr.mtime.nsec);
    now.checked_sub(changed)
}

/// Longer than a file system's clock stands still, which at 100 Hz is 10 ms.
const TICK: Duration = Duration::from_millis(20);

/// Who changes a directory now and again is not to be kept waiting for each listing.
const REST: Duration = Duration::from_millis(200);

/// A listing in progress.
struct Listing {
    /// The position that it has come to.
    at: u64,
    entries: ReadDir,
    /// What has been read and did not fit.
    pending: Option<Result<DirEntry>>,
}

/// An entry as it is handed out.
pub(crate) struct Listed<'e> {
    pub(crate) name: &'e [u8],
    pub(crate) ino: u64,
    pub(crate) kind: Option<FileType>,
    /// `.` or `..`, which count for no LOOKUP.
    pub(crate) is_dot: bool,
    /// The position after it.
    pub(crate) next: u64,
}

impl OpenDir {
    pub(crate) fn new(file: File) -> OpenDir {
        OpenDir {
            is_kept: is_at_rest(&file.attr(), SystemTime::now()),
            file,
            listing: Mutex::new(None),
        }
    }

    /// Hands entries from `position` on to `take`, until that breaks: then the entry was not
    /// taken. An error about one comes alone, as the first of an answer; with
    /// [`Error::NotFound`] it is left out, having gone meanwhile.
    pub(crate) fn list(
        &self,
        position: u64,
        mut take: impl FnMut(Listed<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        if position == 0 && self.is_kept {
            self.wait_for_a_tick();
        }
        let mut kept = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = 0_u32;
        let mut position = position;
        if position == 0 {
            // Whoever rewinds wants to see what has come since.
            *kept = None;
        }
        for (here, name, next) in [
            (0, b".".as_slice(), AFTER_DOT),
            (AFTER_DOT, b"..", AFTER_DOTS),
        ] {
            if position == here {
                let dot = Listed {
                    name,
                    ino: self.file.attr().ino,
                    kind: Some(FileType::Directory),
                    is_dot: true,
                    next,
                };
                if take(dot)?.is_break() {
                    return Ok(());
                }
                taken += 1;
                position = next;
            }
        }
        let listing = match kept.take() {
            Some(listing) if listing.at == position => listing,
            // It has come to the end of what can be named.
            _ if position == FAR => return Ok(()),
            _ => self.listing_from(position)?,
        };
        let listing = kept.insert(listing);
        loop {
            let entry = match listing.pending.take().or_else(|| listing.entries.next()) {
                Some(Ok(entry)) => entry,
                Some(Err(err)) if taken == 0 => return Err(err),
                failed @ Some(Err(_)) => {
                    listing.pending = failed;
                    return Ok(());
                }
                None => return Ok(()),
            };
            let next = entry.next.min(FAR);
            let done = take(Listed {
                name: &entry.name,
                ino: entry.ino,
                kind: entry.kind,
                is_dot: false,
                next,
            });
            match done {
                Ok(ControlFlow::Continue(())) => taken += 1,
                Err(Error::NotFound) => {}
                Err(err) if taken == 0 => return Err(err),
                Ok(ControlFlow::Break(())) | Err(_) => {
                    listing.pending = Some(Ok(entry));
                    return Ok(());
                }
            }
            listing.at = next;
        }
    }

    /// Fetches what comes next, unless all has been handed out: while the kernel is busy with
    /// the last answer, there is time for it.
    pub(crate) fn read_ahead(&self) {
        let mut kept = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listing) = kept.as_mut().filter(|listing| listing.pending.is_some()) {
            listing.entries.read_ahead();
        }
    }

    /// Until a change that comes after this has another time than one that came before.
    fn wait_for_a_tick(&self) {
        // The last one may have come since it was opened. Who cannot be asked is listed as
        // he is.
        if let Ok(attr) = self.file.stat()
            && let Some(age) = age(&attr, SystemTime::now())
            && age < TICK
        {
            thread::sleep(TICK - age);
        }
    }

    fn listing_from(&self, position: u64) -> Result<Listing> {
        let start = match position {
            AFTER_DOTS => 0,
            position => position,
        };
        Ok(Listing {
            at: position,
            entries: self.file.read_dir_from(start)?,
            pending: None,
        })
    }
}
