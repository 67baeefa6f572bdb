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
//! | `walk/parent.rs`    | all of a path but its last component                  |
//! | `walk/around.rs`    | names that are looked up together with one            |
//! | `walk/rcu.rs`       | the same without, and with rechecks instead           |
//! | `walk/found.rs`     | where it ended, and whether that is still true        |
//! | `walk/unlazy.rs`    | from the second to the first, mid-path                |
//! | `walk/record.rs`    | what a walk tells `Vfs::trace`                        |
//!
//! WALK-1: an RCU-walk takes only decisions that a REF-walk could have taken at that moment.
//! Every `read_retry` below is there to keep it. It decides errors as well, those that follow
//! from what is cached: a missing name, a directory that the caller may not search, a file where
//! a directory must be, a name that is too long, too many links.
//!
//! WALK-2: an RCU-walk hit stores nothing to shared memory. (One exception: a
//! dentry that the shrinker has marked as next to go is unmarked by its next use.)
//!
//! WALK-3: `..`, symlinks, renames and mounts never lead out of a contained root. A REF-walk
//! checks at its start, after each `..` and at its end that it stands below the root; an
//! RCU-walk checks after each `..` that nothing was renamed since it started, and at its end
//! that, or that it stands below the root.

mod around;
mod component;
mod found;
mod parent;
mod rcu;
mod record;
mod refs;
mod text;
mod unlazy;

use rcuwalk_sync::bytes::has_zero;
use rcuwalk_sync::rcu as sync_rcu;
use rcuwalk_sync::{RcuGuard, Seq, Shared};

pub(crate) use found::RcuFound;
pub(crate) use parent::{LastType, Parent, path_parentat};
pub(crate) use record::{Reach, Record, Recorder, reach};
pub(crate) use refs::RefWalk;

use crate::context::{Context, VfsPath};
use crate::dentry::{Dcache, Dentry};
use crate::error::{Error, Result};
use crate::mount::Mount;
use crate::name::PATH_MAX;
use crate::namespace::Namespace;
use crate::permission::Credentials;
use crate::stats::Why;
use crate::vfs_inode::{Inode, Protection};
use rcu::{End, RcuWalk};

/// Symbolic links that one walk follows at most.
#[doc(alias = "MAXSYMLINKS")]
pub(crate) const MAX_LINKS: u32 = 40;

bitflags::bitflags! {
    /// How to resolve a path.
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
        /// Take references from the start, as a walk does when the RCU-walk cannot go on. To
        /// compare the two, and for short paths to files that are seldom cached.
        const REF_WALK = 16;
        /// Ask the back end about every cached name on the way.
        #[doc(alias = "LOOKUP_REVAL")]
        const REVAL = 32;
        /// [`Vfs::access`](crate::Vfs::access) goes by effective ids and capabilities,
        /// as all other calls do.
        #[doc(alias("AT_EACCESS", "eaccess(3)"))]
        const EACCESS = 64;
    }
}

/// A question to the walk: where from, which path, how.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) ns: &'a Namespace,
    pub(crate) ctx: &'a Context,
    /// Where a relative path starts: the context's current directory, as a rule.
    pub(crate) start: &'a VfsPath,
    pub(crate) path: &'a [u8],
    pub(crate) flags: LookupFlags,
    /// Symbolic links followed already, on the way to the start.
    pub(crate) links: u32,
    /// The path leads to the directory of a last component: a link at its end is in the middle
    /// of the whole path.
    pub(crate) is_head: bool,
    /// The walk is the whole operation. Otherwise its caller is, and is attempted
    /// [again](crate::retry) if this fails.
    pub(crate) is_all: bool,
}

/// How an RCU-walk that could not finish goes on.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one at a time, and a box would be an allocation per slow walk"
)]
enum Unfinished<'a> {
    /// It stopped at a step it may not decide; go on from here with references.
    Unlazied(RefWalk<'a>),
    /// Something moved underneath; start again from the top.
    Restart,
}

/// Resolves a path and answers with what `under_rcu` or `by_reference` makes of it.
///
/// Both are called for existing files only. `under_rcu` returns `None` if it cannot answer
/// without a reference, or finds that the file has changed.
#[doc(alias = "path_lookupat")]
#[inline]
pub(crate) fn filename_lookup<R>(
    request: &Request<'_>,
    under_rcu: impl FnOnce(&RcuFound<'_, '_, '_>) -> Option<R>,
    by_reference: impl Fn(VfsPath) -> Result<R>,
) -> Result<R> {
    check_path(request)?;
    resolve(request, under_rcu, |path, _links| by_reference(path))
}

/// Resolves a path that has been checked. `by_reference` is also told how many symbolic links
/// were followed.
#[inline(always)]
fn resolve<R>(
    request: &Request<'_>,
    under_rcu: impl FnOnce(&RcuFound<'_, '_, '_>) -> Option<R>,
    by_reference: impl Fn(VfsPath, u32) -> Result<R>,
) -> Result<R> {
    // Before anything else is read: WALK-3 needs that nothing moved since.
    let contained = Contained::of(request)?;
    let skip_rcu = LookupFlags::REF_WALK.union(LookupFlags::REVAL);
    if request.flags.intersects(skip_rcu) {
        return lookup_slow_path(request, Unfinished::Restart, &by_reference);
    }
    let unfinished = {
        let guard = sync_rcu::read_lock();
        let counters = request.ns.caches.counters.get_with(&guard);
        let mut walk = RcuWalk::start(request, &guard, contained);
        let why = match walk.run() {
            Ok(End::Found) => match under_rcu(&RcuFound(&walk)) {
                Some(answer) => {
                    counters.hit();
                    return Ok(answer);
                }
                None => RcuFound(&walk).why_not(),
            },
            Ok(end) => match end.error() {
                Some(err) if RcuFound(&walk).is_still_true() => {
                    end.count(counters);
                    return Err(err);
                }
                _ => RcuFound(&walk).why_not(),
            },
            Err(why) => why,
        };
        give_up(request, walk, why)
    };
    lookup_slow_path(request, unfinished, &by_reference)
}

/// Counts why an RCU-walk is given up, and takes references to its state if that is still
/// valid.
#[cold]
fn give_up<'a>(request: &Request<'a>, walk: RcuWalk<'a, '_>, why: Why) -> Unfinished<'a> {
    let counters = request.ns.caches.counters.get();
    // A walk that came to its end stands behind its last component, not before it.
    let resumable = !matches!(why, Why::Dying | Why::Moved | Why::MountsChanged);
    match resumable.then(|| walk.try_to_unlazy()).flatten() {
        Some(refs) => {
            counters.unlazied(why);
            Unfinished::Unlazied(refs)
        }
        None => {
            counters.restart(why);
            Unfinished::Restart
        }
    }
}

#[cold]
fn lookup_slow_path<R>(
    request: &Request<'_>,
    started: Unfinished<'_>,
    answer: &dyn Fn(VfsPath, u32) -> Result<R>,
) -> Result<R> {
    if request.flags.contains(LookupFlags::CACHED) {
        return Err(Error::WouldBlock);
    }
    request.ns.caches.counters.get().ref_walk();
    let walk = match started {
        Unfinished::Unlazied(walk) => walk,
        Unfinished::Restart => RefWalk::start(*request, request.flags.contains(LookupFlags::REVAL)),
    };
    let mut started = Some(walk);
    let mut attempt = |reval: LookupFlags| {
        let new = || RefWalk::start(*request, reval.contains(LookupFlags::REVAL));
        let walk = started.take().unwrap_or_else(new);
        walk_to_the_end(request, walk, answer)
    };
    match request.is_all {
        true => {
            let is_contained = request.ctx.is_contained();
            let caches = &request.ns.caches;
            caches.retry(request.flags, is_contained, attempt)
        }
        false => attempt(request.flags),
    }
}

fn walk_to_the_end<R>(
    request: &Request<'_>,
    walk: RefWalk<'_>,
    answer: &dyn Fn(VfsPath, u32) -> Result<R>,
) -> Result<R> {
    let revalidates = walk.revalidates();
    let answered = walk.lookup().and_then(|(path, links)| answer(path, links));
    if revalidates && matches!(answered, Err(Error::Stale)) {
        // The file is gone; or the start is stale, and then its name is revalidated when a walk
        // next comes by it.
        request
            .ns
            .caches
            .dcache
            .d_invalidate(request.start.dentry());
    }
    answered
}

#[inline]
pub(crate) fn check_path(request: &Request<'_>) -> Result<()> {
    match request.path.len() {
        0 if !request.flags.contains(LookupFlags::EMPTY_PATH) => Err(Error::NotFound),
        PATH_MAX.. => Err(Error::NameTooLong),
        // A C caller's path would end there; here it is a mistake or an attack.
        _ if has_zero(request.path) => Err(Error::Invalid),
        _ => Ok(()),
    }
}

/// The data that an RCU-walk checks so as not to leave its root (WALK-3).
#[derive(Clone, Copy)]
pub(crate) struct Contained {
    /// The count of renames when the walk started; `None` if one was under way.
    renames: Option<Seq>,
}

impl Contained {
    /// `None` for a walk with nothing above its root.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a context of another `Vfs`: its dentries are in other caches.
    #[inline(always)]
    pub(crate) fn of(request: &Request<'_>) -> Result<Option<Contained>> {
        match request.ctx.is_plain_in(request.ns.home()) {
            true => Ok(None),
            false => Self::of_slow(request).map(Some),
        }
    }

    #[cold]
    fn of_slow(request: &Request<'_>) -> Result<Contained> {
        match request.ctx.is_of(request.ns.home()) {
            true => Ok(Contained {
                renames: request.ns.caches.dcache.renames(),
            }),
            false => Err(Error::Invalid),
        }
    }

    /// True if something was renamed since the walk started, or was being renamed then.
    fn has_renamed(&self, dcache: &Dcache) -> bool {
        self.renames.is_none_or(|begin| dcache.has_renamed(begin))
    }
}

/// Whether a link in the last place may lead on: not from a directory that everyone may
/// write to and that is sticky, unless it is the caller's own or the directory's owner's.
fn may_follow_link(who: &Credentials, dir: Protection, link: &Inode) -> bool {
    let owner = link.protection().uid;
    who.uid == owner || !dir.is_sticky_for_all() || dir.uid == owner
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

    /// True if the dentry has changed since the walk came here.
    #[inline]
    fn has_changed(&self) -> bool {
        self.dentry.seq.read_retry(self.seq)
    }

    #[inline]
    fn is(&self, path: &VfsPath) -> bool {
        std::ptr::eq(self.dentry, &**path.dentry()) && self.mnt.is(path.mnt())
    }

    fn inode(&self, guard: &'g RcuGuard) -> Option<&'g Shared<crate::vfs_inode::Inode>> {
        self.dentry.inode(guard)
    }
}
