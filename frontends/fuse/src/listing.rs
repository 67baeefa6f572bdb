//! An open directory: lists it from the position that the kernel gives.
//!
//! The kernel asks for one buffer at a time, each time from the position after the last entry
//! that its caller took: mostly the end of the last answer, seldom the middle of it, the start
//! again (rewinddir(3)), or any other (seekdir(3)). Positions are the back end's own, and stay
//! valid (DIR-1); the handle keeps one listing in progress, and begins another if the kernel
//! asks for a different position. So it holds one batch of entries, however long the directory,
//! and none while many other directories are listed ([`Ahead`](crate::ahead::Ahead)).
//!
//! # What the kernel keeps
//!
//! With `FOPEN_CACHE_DIR` the kernel keeps a listing that it has seen to the end, and shows it
//! to the next callers that open the directory this way, as long as its mtime is the one that
//! it had when a listing began (and nothing was changed through the mount). That saves two
//! requests for each directory that is listed again. An mtime alone is not enough, so there are
//! rules ([`Kept`]):
//!
//! - Two changes within a tick of the host's clock have one mtime. So a directory is opened for
//!   keeping only if it has been left alone for a while; and if it is changed between that and
//!   the listing, the listing waits for a tick. A change after that has a time of its own.
//!   (That goes by one clock: a server of a network file system, whose clock is behind ours,
//!   may hide a change within its own tick.)
//! - An mtime can be put back, as rsync(1) and tar(1) do, a ctime cannot. So a listing that was
//!   kept under another ctime is dropped at the next open: without `FOPEN_KEEP_CACHE`.
//! - The kernel records the mtime anew for each caller that begins a listing while none is whole,
//!   also when an older answer is still on its way to another caller. So one caller at a time has
//!   it open for keeping.
//! - Keeping takes memory, and a third more time for the listing itself. A long directory is
//!   mostly listed once: it is kept when it is opened again.
//!
//! A process that keeps a directory open all along and rewinds it goes by the mtime alone,
//! until the directory is opened again.
//!
//! | position     | next entry                  |
//! |--------------|-----------------------------|
//! | 0            | `.`                         |
//! | [`AFTER_DOT`] | `..`                       |
//! | [`AFTER_DOTS`] | the first entry           |
//! | any other    | the one after the entry with that [`next`](rcuwalk::DirEntry::next) |
//! | [`FAR`]      | as well: it stands for positions that no file has, 2^63 and more     |

use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, SystemTime};

use rcuwalk::{Attr, Error, File, FileType, ReadDir, Result, Timestamp};

use crate::ahead::{Keeps, Mark};
use crate::nodes::NodeRef;
use crate::ops::shown;
use crate::shares::Share;

/// Too high for a back end that counts entries, and equal to a hash only once in 2^62.
const AFTER_DOT: u64 = 1 << 62 | 1;
const AFTER_DOTS: u64 = 1 << 62 | 2;
/// The highest position: positions of files are signed.
const FAR: u64 = i64::MAX as u64;

/// An open directory.
pub(crate) struct OpenDir {
    pub(crate) file: File,
    node: NodeRef,
    /// The kernel may keep the listing through this handle, and through no other one.
    is_kept: bool,
    /// Kept entries, dropped if too many other directories keep some.
    listing: Mutex<Option<Listing>>,
    ahead: Mark,
    /// Counted for the user who opened the directory.
    _share: Share,
}

impl Keeps for OpenDir {
    fn mark(&self) -> &Mark {
        &self.ahead
    }

    fn give_up(&self, then: impl FnOnce()) -> bool {
        let mut kept = match self.listing.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        *kept = None;
        then();
        true
    }
}

/// The state of the listing that the kernel keeps of a directory.
#[derive(Default)]
pub(crate) struct Kept(Mutex<State>);

#[derive(Default)]
struct State {
    /// A caller has it open for keeping.
    is_taken: bool,
    /// The ctime when it was last opened for keeping.
    ctime: Option<Timestamp>,
    /// The ctime when it last could have been kept.
    seen: Option<Timestamp>,
}

/// The answer to OPENDIR about kept listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keeping {
    /// The kernel may keep the listing by this handle, and show a kept one (`FOPEN_CACHE_DIR`).
    pub(crate) lists: bool,
    /// The kernel's kept listing is still valid (`FOPEN_KEEP_CACHE`).
    pub(crate) holds: bool,
}

impl Kept {
    /// Decides for a directory with these attributes, which is opened now.
    fn open(&self, attr: &Attr, now: SystemTime) -> Keeping {
        let mut state = self.state();
        let holds = state.ctime == Some(attr.ctime);
        if state.is_taken || !is_at_rest(attr, now) {
            return Keeping {
                lists: false,
                holds,
            };
        }
        let seen = state.seen.replace(attr.ctime);
        let lists = attr.size <= SHORT || seen == Some(attr.ctime);
        if lists {
            (state.is_taken, state.ctime) = (true, Some(attr.ctime));
        }
        Keeping { lists, holds }
    }

    /// The caller that had it open for keeping has closed it.
    fn closed(&self) {
        self.state().is_taken = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenDir {
    fn drop(&mut self) {
        if self.is_kept {
            self.node.kept().closed();
        }
    }
}

/// True if the kernel may keep a listing until the directory's mtime changes: no later change
/// can have the same mtime. Whole seconds do not count: they come from file systems whose
/// clocks tick that slowly, or slower.
fn is_at_rest(attr: &Attr, now: SystemTime) -> bool {
    attr.mtime.nsec != 0 && age(attr, now).is_some_and(|age| age > REST)
}

/// Time since the last change; `None` if the mtime is in the future.
fn age(attr: &Attr, now: SystemTime) -> Option<Duration> {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let changed = Duration::new(u64::try_from(attr.mtime.sec).ok()?, attr.mtime.nsec);
    now.checked_sub(changed)
}

/// Longer than one tick of a file system's clock, which at 100 Hz is 10 ms.
const TICK: Duration = Duration::from_millis(20);

/// How long a directory must have been unchanged to be kept: a process that changes it now and
/// again should not wait at each listing.
const REST: Duration = Duration::from_millis(200);

/// Size of a directory with some thousand entries, depending on the file system.
const SHORT: u64 = 256 << 10;

/// A listing in progress.
struct Listing {
    /// Its current position.
    at: u64,
    entries: ReadDir,
    /// An error that came behind entries: the next answer begins with it.
    failed: Option<Error>,
    /// The last answer was full.
    goes_on: bool,
}

/// An entry as it is handed out.
pub(crate) struct Listed<'e> {
    pub(crate) name: &'e [u8],
    pub(crate) ino: u64,
    pub(crate) kind: Option<FileType>,
    /// `.` or `..`, which are not looked up.
    pub(crate) is_dot: bool,
    /// The position after it.
    pub(crate) next: u64,
}

impl OpenDir {
    /// Returns the attributes of the directory itself, as the kernel gets them.
    pub(crate) fn attr(&self) -> Attr {
        shown(self.file.attr(), &self.node)
    }

    /// Makes the state of a directory that has just been opened, with the answer to OPENDIR.
    pub(crate) fn new(file: File, node: NodeRef, share: Share) -> (OpenDir, Keeping) {
        let keeping = node.kept().open(&file.attr(), SystemTime::now());
        let dir = OpenDir {
            file,
            node,
            is_kept: keeping.lists,
            listing: Mutex::new(None),
            ahead: Mark::new(),
            _share: share,
        };
        (dir, keeping)
    }

    /// Passes entries from `position` on to `take`, until that breaks: then it did not take the
    /// entry. An error about an entry comes alone, as the first of an answer; an entry with
    /// [`Error::NotFound`] is left out, because it has been removed meanwhile.
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
            // A rewind must show entries that have been added since.
            *kept = None;
        }
        for (here, name, next) in [
            (0, b".".as_slice(), AFTER_DOT),
            (AFTER_DOT, b"..", AFTER_DOTS),
        ] {
            if position == here {
                let dot = Listed {
                    name,
                    ino: self.node.ino,
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
            // The end of the positions that can be named.
            _ if position == FAR => return Ok(()),
            _ => self.listing_from(position)?,
        };
        let listing = kept.insert(listing);
        listing.goes_on = false;
        loop {
            let entry = match listing
                .failed
                .take()
                .map_or_else(|| listing.entries.peek(), Err)
            {
                Ok(Some(entry)) => entry,
                Ok(None) => return Ok(()),
                Err(err) if taken == 0 => return Err(err),
                Err(err) => {
                    listing.failed = Some(err);
                    return Ok(());
                }
            };
            let next = entry.next.min(FAR);
            let done = take(Listed {
                name: entry.name,
                ino: self.file.path().number_of(entry.ino),
                kind: entry.kind,
                is_dot: false,
                next,
            });
            match done {
                Ok(ControlFlow::Continue(())) => taken += 1,
                Err(Error::NotFound) => {}
                Err(err) if taken == 0 => return Err(err),
                // The entry is the first one of the next answer.
                Ok(ControlFlow::Break(())) | Err(_) => {
                    listing.goes_on = true;
                    return Ok(());
                }
            }
            listing.entries.advance();
            listing.at = next;
        }
    }

    /// Reads the next entries, unless the listing is complete: while the kernel is busy with
    /// the last answer, there is time for it.
    pub(crate) fn read_ahead(&self) {
        let mut kept = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listing) = kept.as_mut().filter(|listing| listing.goes_on) {
            listing.entries.read_ahead();
        }
    }

    /// Waits until a later change is sure to get another mtime than the last one.
    fn wait_for_a_tick(&self) {
        // The last change may have come after the open. If the stat fails, the directory is
        // listed without the wait.
        if let Ok(attr) = self.file.stat() {
            let age = age(&attr, SystemTime::now()).unwrap_or_default();
            thread::sleep(TICK.saturating_sub(age));
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
            failed: None,
            goes_on: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_keeps_at_a_time_and_another_ctime_drops_what_is_kept() {
        let time = |sec| Timestamp { sec, nsec: 1 };
        let attr = |mtime, ctime| {
            Attr::new(2, FileType::Directory, 0o755)
                .mtime(time(mtime))
                .ctime(time(ctime))
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let keeping = |lists, holds| Keeping { lists, holds };
        let kept = Kept::default();
        assert_eq!(kept.open(&attr(5, 5), now), keeping(true, false));
        assert_eq!(kept.open(&attr(5, 5), now), keeping(false, true), "taken");
        kept.closed();
        assert_eq!(kept.open(&attr(5, 5), now), keeping(true, true));
        assert_eq!(
            kept.open(&attr(5, 7), now),
            keeping(false, false),
            "put back"
        );
        kept.closed();
        assert_eq!(kept.open(&attr(5, 7), now), keeping(true, false));
        kept.closed();
        for mtime in [1000, 1001] {
            assert_eq!(
                kept.open(&attr(mtime, 7), now),
                keeping(false, true),
                "not at rest"
            );
        }
        let long = attr(5, 8).size(SHORT + 1);
        assert_eq!(kept.open(&long, now), keeping(false, false), "listed once");
        assert_eq!(kept.open(&long, now), keeping(true, false), "and again");
        kept.closed();
        assert_eq!(kept.open(&long, now), keeping(true, true));
        kept.closed();
        let whole = attr(5, 7).mtime(Timestamp { sec: 5, nsec: 0 });
        assert_eq!(
            kept.open(&whole, now),
            keeping(false, false),
            "whole seconds"
        );
    }
}
