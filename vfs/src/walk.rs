//! Path resolution: a name in, a `(mount, dentry)` pair out.
//!
//! [`filename_lookup`] tries three walks, each slower and surer than the one before:
//! [`RcuWalk`] (stores nothing to shared memory), [`RefWalk`] (counted references),
//! and [`RefWalk`] with every cached name revalidated.
//!
//! | read                | to learn                                              |
//! |---------------------|-------------------------------------------------------|
//! | this file           | the three attempts, and what a walk starts from       |
//! | `walk/component.rs` | how a path is cut                                     |
//! | `walk/text.rs`      | what is left to walk, links within links included     |
//! | `walk/refs.rs`      | the walk with references: read this one first         |
//! | `walk/rcu.rs`       | the same without, and with rechecks instead           |
//! | `walk/unlazy.rs`    | from the second to the first, mid-path                |
//!
//! WALK-1: an RCU-walk takes only decisions that a REF-walk could have taken at
//! that moment. Every `read_retry` below is there to keep it. Of errors it decides
//! one, that a cached name stands for nothing; all others it leaves to the REF-walk.
//!
//! WALK-2: an RCU-walk hit stores nothing to shared memory. (One exception: a
//! dentry that the shrinker has marked as next to go is unmarked by its next use.)
//!
//! WALK-3: `..`, symlinks, renames and mounts never lead out of a contained root.

mod component;
mod rcu;
mod refs;
mod text;
mod unlazy;

use rcuwalk_sync::rcu as sync_rcu;
use rcuwalk_sync::{RcuGuard, Seq, Shared};

pub(crate) use rcu::RcuFound;
pub(crate) use refs::{Parent, RefWalk};

use crate::context::{Context, VfsPath};
use crate::dentry::Dentry;
use crate::error::{Error, Result};
use crate::mount::Mount;
use crate::name::PATH_MAX;
use crate::namespace::Namespace;
use crate::stats::Why;
use rcu::RcuWalk;

/// Symbolic links that one walk follows at most.
#[doc(alias = "MAXSYMLINKS")]
pub(crate) const MAX_LINKS: u32 = 40;

bitflags::bitflags! {
    /// How a path is to be resolved.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct LookupFlags: u32 {
        /// Follow a symbolic link in the last component: stat, not lstat.
        #[doc(alias("LOOKUP_FOLLOW", "AT_SYMLINK_FOLLOW"))]
        const FOLLOW = 1;
        /// The result must be a directory.
        #[doc(alias("LOOKUP_DIRECTORY", "O_DIRECTORY"))]
        const DIRECTORY = 2;
        /// An empty path means the start itself.
        #[doc(alias("LOOKUP_EMPTY", "AT_EMPTY_PATH"))]
        const EMPTY_PATH = 4;
        /// Answer from the cache or say [`Error::WouldBlock`].
        #[doc(alias("LOOKUP_CACHED", "RESOLVE_CACHED"))]
        const CACHED = 8;
        /// Take references from the start: what a walk does when the RCU-walk cannot
        /// go on. For tests and for comparing the two.
        const REF_WALK = 16;
        /// Ask the back end about every cached name on the way.
        #[doc(alias = "LOOKUP_REVAL")]
        const REVAL = 32;
    }
}

/// A question to the walk: where from, which path, how.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) ns: &'a Namespace,
    pub(crate) ctx: &'a Context,
    pub(crate) path: &'a [u8],
    pub(crate) flags: LookupFlags,
}

/// How an RCU-walk ended.
enum RcuOutcome<'a, R> {
    /// Resolved, and the caller's answer taken under RCU.
    Done(Result<R>),
    /// Stopped at a step it may not decide; go on from here with references.
    Unlazied(RefWalk<'a>),
    /// Something moved underneath; start again from the top.
    Restart,
}

/// Resolves a path and answers with what `under_rcu` or `by_reference` makes of it.
///
/// Both are asked about what exists only. `under_rcu` says `None` if it cannot answer without a reference, or finds that
/// what it read has changed.
#[doc(alias = "path_lookupat")]
#[inline]
pub(crate) fn filename_lookup<R>(
    request: Request<'_>,
    under_rcu: impl FnOnce(&RcuFound<'_>) -> Option<R>,
    by_reference: impl Fn(VfsPath) -> Result<R>,
) -> Result<R> {
    check_path(request)?;
    let mut walk = None;
    if !request
        .flags
        .intersects(LookupFlags::REF_WALK | LookupFlags::REVAL)
    {
        match rcu_lookup(request, under_rcu) {
            RcuOutcome::Done(answer) => return answer,
            RcuOutcome::Unlazied(started) => walk = Some(started),
            RcuOutcome::Restart => {}
        }
    }
    lookup_slow_path(request, walk, &by_reference)
}

#[inline]
fn rcu_lookup<'a, R>(
    request: Request<'a>,
    answer: impl FnOnce(&RcuFound<'_>) -> Option<R>,
) -> RcuOutcome<'a, R> {
    let guard = sync_rcu::read_lock();
    let counters = request.ns.caches.counters.get_with(&guard);
    let mut walk = RcuWalk::start(request, &guard);
    let why = match walk.run() {
        Ok(found) if found.is_negative() => {
            if found.is_still_true() {
                counters.negative_hit();
                return RcuOutcome::Done(Err(Error::NotFound));
            }
            Why::Dying
        }
        Ok(found) => {
            if let Some(answer) = answer(&found) {
                counters.hit();
                return RcuOutcome::Done(Ok(answer));
            }
            Why::Dying
        }
        Err(why) => why,
    };
    give_up(request, walk, why)
}

#[cold]
fn give_up<'a, R>(request: Request<'a>, walk: RcuWalk<'a, '_>, why: Why) -> RcuOutcome<'a, R> {
    let counters = request.ns.caches.counters.get();
    match walk.try_to_unlazy() {
        Some(refs) if why != Why::Dying => {
            counters.unlazied(why);
            RcuOutcome::Unlazied(refs)
        }
        _ => {
            counters.restart(why);
            RcuOutcome::Restart
        }
    }
}

#[cold]
fn lookup_slow_path<R>(
    request: Request<'_>,
    started: Option<RefWalk<'_>>,
    answer: &dyn Fn(VfsPath) -> Result<R>,
) -> Result<R> {
    if request.flags.contains(LookupFlags::CACHED) {
        return Err(Error::WouldBlock);
    }
    request.ns.caches.counters.get().ref_walk();
    let reval = request.flags.contains(LookupFlags::REVAL);
    let walk = started.unwrap_or_else(|| RefWalk::start(request, reval));
    let answered = match walk.lookup().and_then(answer) {
        // What was cached is gone from the back end: once more, asking about every
        // name on the way. If that is stale again, so is the truth.
        Err(Error::Stale) if !reval => RefWalk::start(request, true).lookup().and_then(answer),
        answered => answered,
    };
    answered.map_err(|err| nul_first(request, err))
}

/// A NUL in a path goes before whatever else is wrong with it. A walk that reaches
/// its end has met every byte; one that fails has not.
#[cold]
fn nul_first(request: Request<'_>, err: Error) -> Error {
    if request.path.contains(&0) {
        Error::Invalid
    } else {
        err
    }
}

/// Resolves all but the last component, for an operation on that.
#[doc(alias = "path_parentat")]
pub(crate) fn filename_parentat(request: Request<'_>) -> Result<Parent> {
    check_path(request)?;
    request.ns.caches.counters.get().ref_walk();
    let found = match RefWalk::start(request, false).parent() {
        Err(Error::Stale) => RefWalk::start(request, true).parent(),
        found => found,
    };
    match found {
        // The last component is not walked.
        Ok(parent) if parent.last.contains(&0) => Err(Error::Invalid),
        found => found.map_err(|err| nul_first(request, err)),
    }
}

#[inline]
fn check_path(request: Request<'_>) -> Result<()> {
    match request.path.len() {
        0 if !request.flags.contains(LookupFlags::EMPTY_PATH) => Err(Error::NotFound),
        PATH_MAX.. => Err(Error::NameTooLong),
        _ => Ok(()),
    }
}

/// Where a walk under RCU stands: a place, and the moment it was read.
#[derive(Clone, Copy)]
struct Here<'g> {
    mnt: &'g Shared<Mount>,
    dentry: &'g Shared<Dentry>,
    seq: Seq,
}

impl<'g> Here<'g> {
    /// At a place that the caller has a reference to.
    #[inline]
    fn at(path: &'g VfsPath) -> Here<'g> {
        let dentry: &Shared<Dentry> = path.dentry();
        Here {
            mnt: path.mnt(),
            dentry,
            seq: dentry.seq.sample(),
        }
    }

    /// True if the dentry is not what it was when the walk came here.
    #[inline]
    fn has_changed(&self) -> bool {
        self.dentry.seq.read_retry(self.seq)
    }

    #[inline]
    fn is(&self, path: &VfsPath) -> bool {
        std::ptr::eq(self.dentry, &**path.dentry()) && self.mnt.is(path.mnt())
    }

    fn inode(&self, guard: &'g RcuGuard) -> Option<&'g Shared<crate::inode::Inode>> {
        self.dentry.inode(guard)
    }
}
