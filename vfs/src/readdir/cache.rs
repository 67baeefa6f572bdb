//! What the VFS remembers of a directory's entries: [`DirCache`].
//!
//! A listing from the start builds it, batch by batch ([`DirCache::append`]); any number of
//! listings may go on meanwhile, and one of them builds. It is *whole* once the back end has said
//! that nothing follows. From then on, as long as it is fresh,
//!
//! - a listing is a copy of its records ([`DirCache::copy`]);
//! - a name that is not in it is missing ([`DirCache::says_missing`]): no call of the back end,
//!   no dentry, no lock of the directory.
//!
//! | event                      | whole listing                              | one that is being built |
//! |----------------------------|--------------------------------------------|-------------------------|
//! | a name is made             | has the name; is no longer copied          | dropped                 |
//! | a name is removed          | marks its record as gone                   | dropped                 |
//! | a name gets another file   | is no longer copied                        | dropped                 |
//! | a change fails, or is found by a lookup | dropped                       | dropped                 |
//! | the back end invalidates the names | stale: not used                    | dropped by the next batch |
//! | the budget is exceeded     | dropped                                    | dropped                 |
//!
//! Where the back end tells of no changes, they are found by its version of the directory
//! ([`FileSystem::listing_version`]): a listing from the start asks for it, and a whole one of that
//! version is as good as a new one; one of another version is dropped. Under a time to live, it answers for missing names as long as a
//! name would be valid that was asked for then.
//!
//! A new name gets its position from the back end, and only a new listing tells which. So the
//! next one from the start asks the back end again and builds anew, and the names stay known
//! meanwhile.
//!
//! DIR-2: a name that a whole, fresh listing says is missing was missing at some moment during
//! that lookup.
//!
//! - Batches are taken and appended under the directory's lock, held shared, and a change holds it
//!   exclusively. A change drops what is being built. So all batches of a whole listing saw the
//!   directory in one state, and each change since is in the table above.
//! - A change enters a new name after the back end has made it and before the call returns. A
//!   rename enters the new name before the old one goes (DENTRY-3).
//! - The validity and the version are taken before the back end is asked for the first batch, and
//!   are compared under this cache's lock (FRESH-1).
//!
//! [`FileSystem::listing_version`]: crate::FileSystem::listing_version

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rcuwalk_sync::lock::{Rank, Ranked, RwLock};

use super::blob::{Blob, Full};
use super::listings::Listings;
use super::records::{Room, Writer};
use crate::super_block::SuperBlock;
use crate::vfs_inode::Inode;

/// The cached entries of one directory.
pub(crate) struct DirCache {
    state: RwLock<State>,
    budget: Arc<Listings>,
    /// Used since the last scan.
    used: AtomicBool,
}

#[derive(Default)]
struct State {
    whole: Option<Whole>,
    building: Option<Building>,
    /// The last listing alone exceeded the budget: the next one is only measured.
    is_too_long: bool,
    /// Bytes charged to the budget.
    charged: usize,
    is_queued: bool,
    /// Whole listings that there have been.
    built: u64,
}

impl Ranked for State {
    const RANK: Rank = Rank::Listing;
}

struct Whole {
    blob: Blob,
    /// See `fresh.rs`. A later confirmation of the version makes it grow.
    valid_until: AtomicU64,
    version: u64,
    /// The records are those that the back end would list.
    is_exact: bool,
    /// Whether it has all names that a lookup finds; `None` until the back end was asked, which was
    /// after it was listed.
    has_all: Option<bool>,
    /// Differs from that of each other listing of the directory.
    number: u64,
}

struct Building {
    /// `None` once it exceeds the budget: then the listing is only measured.
    blob: Option<Blob>,
    /// Bytes of its records.
    bytes: usize,
    valid_until: u64,
    version: u64,
    /// The position after the last batch.
    end: u64,
    /// Listings that began since the last batch: the one that builds may have stopped.
    begun_since: u32,
}

/// A batch that the back end has just listed.
pub(super) struct Batch<'b> {
    /// The position that it was asked for.
    pub(super) from: u64,
    pub(super) records: &'b [u8],
    /// The position after the last record.
    pub(super) last: u64,
    /// No entry was left out for want of room.
    pub(super) is_all: bool,
    /// From before it was asked for.
    pub(super) state: DirState,
}

/// What tells whether a listing is still right.
#[derive(Clone, Copy)]
pub(super) struct DirState {
    /// See `fresh.rs`.
    pub(super) valid_until: u64,
    /// The back end's version, if it was asked for.
    pub(super) version: Option<u64>,
}

/// So many listings begin while another one builds, before one of them builds in its place.
const PATIENCE: u32 = 2;

impl State {
    /// True if another listing is being built, and may come to its end.
    fn another_builds(&mut self, sb: &SuperBlock, batch: &Batch<'_>) -> bool {
        self.building.as_mut().is_some_and(|building| {
            building.begun_since += 1;
            building.is_of(sb, batch.state) && building.begun_since <= PATIENCE
        })
    }
}

impl Whole {
    fn is_fresh(&self, sb: &SuperBlock, dir: &Inode) -> bool {
        sb.is_listing_fresh(dir, self.valid_until.load(Relaxed))
    }

    /// True if the directory still has the version of this listing, which is then valid as long as one
    /// that began now.
    fn is_confirmed(&self, now: DirState) -> bool {
        let is_still = now.version == Some(self.version);
        if is_still {
            // It guards nothing: any of the times stored here is right.
            self.valid_until.fetch_max(now.valid_until, Relaxed);
        }
        is_still
    }
}

impl Building {
    /// True if a batch that was asked for in that state of the directory is of this listing.
    fn is_of(&self, sb: &SuperBlock, state: DirState) -> bool {
        match sb.lists_by_version() {
            true => state.version == Some(self.version),
            false => state.valid_until == self.valid_until,
        }
    }
}

impl DirCache {
    pub(crate) fn new(budget: Arc<Listings>) -> DirCache {
        DirCache {
            state: RwLock::new(State::default()),
            budget,
            used: AtomicBool::new(false),
        }
    }

    /// Copies the entries after `from` to `writer`, as many as fit. `now` is the directory's state, if
    /// the caller has asked for it. False if the back end must be asked.
    pub(super) fn copy<R: Room>(
        &self,
        (sb, dir): (&SuperBlock, &Inode),
        from: u64,
        now: Option<DirState>,
        writer: &mut Writer<R>,
    ) -> bool {
        let state = self.state.read();
        let Some(whole) = state.whole.as_ref() else {
            return false;
        };
        let is_right = match now {
            Some(now) => whole.is_confirmed(now),
            // Without word of changes, a listing from the start has to ask.
            None if from == 0 && sb.lists_by_version() => false,
            None => whole.is_fresh(sb, dir),
        };
        let is_answer = whole.is_exact && is_right && whole.blob.copy(from, writer);
        if is_answer {
            self.use_it();
        }
        is_answer
    }

    /// True if there is certainly no such name in the directory (DIR-2).
    pub(crate) fn says_missing(&self, sb: &SuperBlock, dir: &Inode, name: &[u8]) -> bool {
        let (has, has_all, number) = {
            let state = self.state.read();
            let Some(whole) = state.whole.as_ref() else {
                return false;
            };
            if !whole.is_fresh(sb, dir) {
                return false;
            }
            (whole.blob.has_indexed(name), whole.has_all, whole.number)
        };
        // The answer is of the moment when the lock was held.
        match (has, has_all) {
            (_, Some(false)) => false,
            (Some(has), Some(true)) => {
                self.use_it();
                !has
            }
            _ => self.says_missing_slow((sb, dir), number, name),
        }
    }

    /// Asks whether a listing has all names, and makes the index, once.
    #[cold]
    fn says_missing_slow(
        &self,
        (sb, dir): (&SuperBlock, &Inode),
        number: u64,
        name: &[u8],
    ) -> bool {
        let has_all = sb.fs().lists_all_names(sb, dir);
        let mut state = self.state.write();
        let Some(whole) = state.whole.as_mut().filter(|at| at.number == number) else {
            return false;
        };
        whole.has_all = Some(has_all);
        if !has_all || !whole.is_fresh(sb, dir) {
            return false;
        }
        let has = whole.blob.has(name);
        self.charge(&mut state);
        drop(state);
        self.budget.make_room();
        self.use_it();
        !has
    }

    /// Drops listings of other versions: one that begins now goes on from none of them, as they may lack
    /// names that it should have (DIR-1).
    pub(super) fn keep_version(&self, now: DirState) {
        let mut state = self.state.write();
        if state.whole.as_ref().is_some_and(|at| !at.is_confirmed(now)) {
            state.whole = None;
        }
        let building = state.building.as_ref();
        if building.is_some_and(|at| now.version != Some(at.version)) {
            state.building = None;
        }
        self.charge(&mut state);
    }

    /// True if a batch from that position may go on a listing that is being built, or be copied.
    pub(super) fn is_used_at(&self, from: u64) -> bool {
        let state = self.state.read();
        let builds = state.building.as_ref().is_some_and(|at| at.end == from);
        builds || state.whole.as_ref().is_some_and(|whole| whole.is_exact)
    }

    /// Adds a batch, if it goes on where the one before ended. The caller holds the directory
    /// shared, since before it asked the back end.
    pub(super) fn append(self: &Arc<Self>, sb: &SuperBlock, batch: &Batch<'_>) {
        let mut state = self.state.write();
        if batch.from == 0 {
            if state.another_builds(sb, batch) {
                return;
            }
            let is_too_long = state.is_too_long;
            state.building = batch.state.version.map(|version| Building {
                blob: (!is_too_long).then(Blob::default),
                bytes: 0,
                valid_until: batch.state.valid_until,
                version,
                end: 0,
                begun_since: 0,
            });
        }
        let Some(building) = state.building.as_mut().filter(|at| at.end == batch.from) else {
            return;
        };
        let is_at_end = batch.records.is_empty() && batch.is_all;
        building.begun_since = 0;
        building.end = batch.last;
        building.bytes += batch.records.len();
        let blob = building.blob.as_mut();
        let is_added = blob.is_none_or(|blob| blob.append(batch.records).is_ok());
        if !is_added || !building.is_of(sb, batch.state) {
            state.building = None;
        } else if is_at_end && let Some(built) = state.building.take() {
            state.built += 1;
            state.is_too_long = built.bytes > self.budget.limit();
            // One that was too long leaves the one before, which has its own validity.
            if let Some(mut blob) = built.blob {
                blob.complete();
                state.whole = Some(Whole {
                    blob,
                    valid_until: AtomicU64::new(built.valid_until),
                    version: built.version,
                    is_exact: true,
                    has_all: None,
                    number: state.built,
                });
            }
        }
        self.charge(&mut state);
        self.fit(&mut state);
        if state.charged > 0 && !state.is_queued {
            state.is_queued = true;
            drop(state);
            self.budget.enqueue(self);
        }
    }

    /// Has one directory take no more than the budget of all: the old listing goes for the new one,
    /// and one that does not fit alone is no longer built.
    fn fit(&self, state: &mut State) {
        if state.charged > self.budget.limit() && state.building.is_some() {
            state.whole = None;
            self.charge(state);
        }
        if state.charged > self.budget.limit() {
            state.is_too_long = true;
            state.whole = None;
            if let Some(building) = &mut state.building {
                building.blob = None;
            }
            self.charge(state);
        }
    }

    /// A name has been made. The caller holds the directory exclusively, here and below.
    pub(crate) fn added(&self, name: &[u8], ino: u64) {
        self.change(|whole| {
            whole.is_exact = false;
            match whole.blob.has_indexed(name) {
                Some(true) => Ok(()),
                _ => whole.blob.add(name, ino),
            }
        });
    }

    /// A name has been removed.
    pub(crate) fn removed(&self, name: &[u8]) {
        // A listing that does not have it is wrong.
        self.change(|whole| match whole.blob.remove(name) {
            Ok(true) => Ok(()),
            Ok(false) | Err(Full) => Err(Full),
        });
    }

    /// A name refers to another file.
    pub(crate) fn replaced(&self) {
        self.change(|whole| {
            whole.is_exact = false;
            Ok(())
        });
    }

    /// A lookup has found the name: a listing that says otherwise is dropped, and one that is
    /// being built, which may have passed the name's position before it was made.
    pub(crate) fn found(&self, name: &[u8]) {
        let is_known = |state: &State| {
            let whole = state.whole.as_ref();
            let has = whole.map_or(Some(true), |whole| whole.blob.has_indexed(name));
            has == Some(true) && state.building.is_none()
        };
        if is_known(&self.state.read()) {
            return;
        }
        self.change(|whole| match whole.blob.has(name) {
            true => Ok(()),
            false => Err(Full),
        });
    }

    fn change(&self, change: impl FnOnce(&mut Whole) -> Result<(), Full>) {
        let mut state = self.state.write();
        if state.charged == 0 {
            return;
        }
        state.building = None;
        if let Some(whole) = state.whole.as_mut()
            && change(whole).is_err()
        {
            state.whole = None;
        }
        self.charge(&mut state);
        // MEM-1: names that are made add to it, and the next listing may never come.
        if self.budget.is_exceeded() {
            self.forget_locked(&mut state);
        }
    }

    /// Drops all.
    pub(crate) fn forget(&self) {
        self.forget_locked(&mut self.state.write());
    }

    fn forget_locked(&self, state: &mut State) {
        (state.whole, state.building) = (None, None);
        self.charge(state);
    }

    /// For the thread that evicts, which has taken it out of the queue: true if it was used and
    /// goes to the end of the queue. It is dropped otherwise.
    pub(super) fn keeps_second_chance(&self) -> bool {
        let mut state = self.state.write();
        if state.charged > 0 && self.used.swap(false, Relaxed) {
            return true;
        }
        state.is_queued = false;
        self.forget_locked(&mut state);
        false
    }

    fn charge(&self, state: &mut State) {
        let whole = state.whole.as_ref().map_or(0, |whole| whole.blob.bytes());
        let blob = state.building.as_ref().and_then(|at| at.blob.as_ref());
        let building = blob.map_or(0, Blob::bytes);
        let has_any = state.whole.is_some() || blob.is_some();
        let now = whole + building + usize::from(has_any);
        let before = std::mem::replace(&mut state.charged, now);
        if before != now {
            self.budget.charge(before, now);
        }
    }

    fn use_it(&self) {
        // Nearly never stored: other threads read this line.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }
}

impl Drop for DirCache {
    fn drop(&mut self) {
        let charged = self.state.get_mut().charged;
        self.budget.charge(charged, 0);
    }
}
