//! Watching a walk: [`Vfs::trace`].
//!
//! Each component becomes a [`TraceStep`]: its inode, where the answer came from, and which of
//! the walks decided it. The steps are noted by `walk/record.rs`.

use crate::attr::Attr;
use crate::context::{Context, Start, VfsPath};
use crate::error::{Error, Result};
use crate::stats::Why;
use crate::vfs::Vfs;
use crate::vfs_inode::InodeKey;
use crate::walk::{Contained, LookupFlags, Reach, Record, Recorder, RefWalk, check_path, reach};

/// How a path was resolved.
#[derive(Debug)]
#[non_exhaustive]
pub struct Trace {
    /// The components in the order in which they were met, those of followed links
    /// included. On an error, the last one is where it happened.
    pub steps: Vec<TraceStep>,
    /// The result of [`Vfs::lookup`].
    pub result: Result<VfsPath>,
    /// Why the RCU-walk did not go all the way; `None` if it did or was not tried.
    pub stopped: Option<Why>,
}

/// One component of a path, or of a link on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceStep {
    /// The component; `/` for the root, where a text starts there.
    pub name: Box<[u8]>,
    /// How many links deep: 0 in the path itself, 1 in the target of a link there.
    pub level: usize,
    /// Which walk took the step.
    pub walk: Walk,
    /// Where the answer came from; `None` if the walk failed before asking.
    pub how: Option<Origin>,
    /// Its inode; `None` if there is none, or if the walk failed before.
    pub attr: Option<Attr>,
    /// Identifies the inode within its file system.
    pub key: Option<InodeKey>,
    /// The target, if it is a link that was followed.
    pub link: Option<Box<[u8]>>,
    /// The name of the file system, if the step led into another mount.
    pub mount: Option<Box<str>>,
}

/// One of the walks that resolve paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// The one that takes no lock and no reference.
    Rcu,
    /// The one that may ask the back end.
    Ref,
}

/// Where the answer about a name came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No name was looked up: the start, `.` or `..`.
    Held,
    /// It was in the cache, and valid.
    Cached,
    /// It was in the cache, and the back end confirmed it.
    Revalidated,
    /// The back end was asked.
    LookedUp,
}

impl Vfs {
    /// Resolves `path` as [`lookup`](Self::lookup) does, and tells how.
    ///
    /// For people who want to understand a path, not for programs in a hurry: this walks the
    /// path twice, first as always, then once more with references to see each step. A change
    /// between the two may show as a step that neither walk alone would have taken.
    ///
    /// ```
    /// # let vfs = rcuwalk::Vfs::new(rcuwalk_memfs::MemFs::new())?;
    /// use rcuwalk::{Origin, LookupFlags, Walk};
    ///
    /// let ctx = vfs.context(rcuwalk::Credentials::root());
    /// let cold = vfs.trace(&ctx, "/missing", LookupFlags::FOLLOW);
    /// let warm = vfs.trace(&ctx, "/missing", LookupFlags::FOLLOW);
    /// assert_eq!((cold.steps[1].walk, cold.steps[1].how), (Walk::Ref, Some(Origin::LookedUp)));
    /// assert_eq!((warm.steps[1].walk, warm.steps[1].how), (Walk::Rcu, Some(Origin::Cached)));
    /// # Ok::<(), rcuwalk::Error>(())
    /// ```
    pub fn trace(&self, ctx: &Context, path: impl AsRef<[u8]>, flags: LookupFlags) -> Trace {
        let request = self.request(ctx, Start::of(ctx, path.as_ref()), flags);
        let failed = |err, stopped| Trace {
            steps: Vec::new(),
            result: Err(err),
            stopped,
        };
        let contained = match check_path(&request).and_then(|()| Contained::of(&request)) {
            Ok(contained) => contained,
            Err(err) => return failed(err, None),
        };
        let reach = reach(&request, contained);
        let stopped = match &reach {
            Reach::Until(_, why) => Some(*why),
            Reach::All | Reach::NotTried => None,
        };
        if !matches!(reach, Reach::All) {
            if flags.contains(LookupFlags::CACHED) {
                return failed(Error::WouldBlock, stopped);
            }
            self.ns().caches.counters.get().ref_walk();
        }
        // Of the last attempt.
        let mut steps = Vec::new();
        let mut reach = Some(reach);
        let is_contained = ctx.is_contained();
        let result = self.ns().caches.retry(flags, is_contained, |reval| {
            let record = Record::new(&reach.take().unwrap_or(Reach::NotTried));
            let walked = RefWalk::start(request, reval.contains(LookupFlags::REVAL))
                .recorded(Recorder::of(&record))
                .lookup();
            steps = record.into_steps();
            walked.map(|(path, _links)| path)
        });
        Trace {
            steps,
            result,
            stopped,
        }
    }
}
