//! The RCU-walk: one component after the other, without a lock or a count.
//!
//! At each step the walk holds a dentry and the moment ([`Seq`]) it was read at.
//! SEQ-3: hand over hand: the child's count is sampled before its name is compared,
//! and the parent's is rechecked after the child was found. So the parent was still
//! what it was when the child was its child; whether the child is still what it was
//! is checked when it is the parent, or at the end.
//!
//! Anything that is not simple leaves [`RcuWalk::run`] for a cold neighbour.
//! Anything that may not be decided here ends in `Err(why)`, with the walk standing
//! before the component in question, so that it can go on with references. An error that can
//! be decided is an [`End`] like any other: what it follows from (flags, owner, mode, a link's
//! target) is read after the count of `at` was sampled, and the caller rechecks that count
//! before it reports the error (WALK-1).

use rcuwalk_sync::bytes::has_zero;
use rcuwalk_sync::{RcuGuard, Seq, Shared, View};

use super::component::{long_component, short_component};
use super::text::{LinkStack, Saved};
use super::{Contained, Here, LookupFlags, MAX_LINKS, Request, may_follow_link};
use crate::dentry::{Dentry, Flags, NameHash, NameWords, in_dir};
use crate::error::Error;
use crate::mount::{MountFlags, MountTable};
use crate::name::Name;
use crate::permission::Access;
use crate::stats::{Counters, Why};
use crate::vfs_inode::{Inode, LinkTarget};

/// A text of an RCU-walk: the caller's path, or a link's target.
#[derive(Clone, Copy)]
pub(super) enum Pathname<'a, 'g> {
    Path(&'a [u8]),
    Link(&'g Shared<LinkTarget>),
}

impl<'a: 'g, 'g> Pathname<'a, 'g> {
    #[inline]
    fn bytes(self) -> &'g [u8] {
        match self {
            Pathname::Path(path) => path,
            Pathname::Link(body) => body,
        }
    }
}

/// A walk in progress.
#[doc(alias = "struct nameidata")]
pub(super) struct RcuWalk<'a, 'g> {
    pub(super) request: &'g Request<'a>,
    pub(super) guard: &'g RcuGuard,
    pub(super) mounts: &'g Shared<MountTable>,
    table: View<'g, Dentry>,
    pub(super) at: Here<'g>,
    pub(super) text: Pathname<'a, 'g>,
    pub(super) pos: usize,
    pub(super) stack: LinkStack<Pathname<'a, 'g>>,
    pub(super) links: u32,
    /// The text ended in a slash, and no component has come since.
    ends_in_slash: bool,
    /// Checked if the walk may not leave its root.
    pub(super) contained: Option<Contained>,
}

/// How a walk ended, at its `at`: true if that [`is_still_true`](super::RcuFound::is_still_true).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Found,
    /// The name is missing, or is a link without a target.
    Missing,
    /// The caller may not search the directory `at`, or not follow the link `at`.
    Denied,
    /// A directory is needed, and `at` is none.
    NotADirectory,
    /// No directory has the next name.
    NameTooLong,
    /// One link more than a walk follows.
    TooManyLinks,
}

impl End {
    /// What the caller is told. Nothing is wrong with a file that was found, but it is not an
    /// answer yet.
    pub(super) fn error(self) -> Option<Error> {
        match self {
            End::Found => None,
            End::Missing => Some(Error::NotFound),
            End::Denied => Some(Error::PermissionDenied),
            End::NotADirectory => Some(Error::NotADirectory),
            End::NameTooLong => Some(Error::NameTooLong),
            End::TooManyLinks => Some(Error::TooManySymlinks),
        }
    }

    /// Counts a walk that was answered like this.
    #[inline]
    pub(super) fn count(self, counters: &Counters) {
        match self {
            End::Found => counters.hit(),
            End::Missing => counters.negative_hit(),
            _ => counters.refused(),
        }
    }
}

/// Whether a cold step ended the walk.
enum Step {
    On,
    End(End),
}

impl<'a: 'g, 'g> RcuWalk<'a, 'g> {
    #[inline(always)]
    pub(super) fn start(
        request: &'g Request<'a>,
        guard: &'g RcuGuard,
        contained: Option<Contained>,
    ) -> RcuWalk<'a, 'g> {
        let absolute = request.path.first() == Some(&b'/');
        let start = if absolute {
            request.ctx.root()
        } else {
            request.start
        };
        RcuWalk {
            request,
            guard,
            contained,
            mounts: request.ns.mounts(guard),
            table: request.ns.caches.dcache.table().view(guard),
            at: Here::at(start),
            text: Pathname::Path(request.path),
            pos: 0,
            stack: LinkStack::new(),
            links: request.links,
            ends_in_slash: false,
        }
    }

    /// Walks to the end.
    #[doc(alias("link_path_walk", "walk_component", "lookup_fast", "step_into"))]
    #[inline(always)]
    pub(super) fn run(&mut self) -> Result<End, Why> {
        let keys = self.request.ns.caches.dcache.keys();
        // The state that changes with every component stays in registers; the walk itself is
        // brought up to date before cold code reads it.
        let mut at = self.at;
        let mut text = self.text.bytes();
        let mut pos = 0;
        if let Step::End(end) = self.search()? {
            return Ok(end);
        }
        let root: &Shared<Dentry> = self.request.ctx.root().dentry();
        'components: loop {
            let step = 'cold: {
                if pos >= text.len() {
                    (self.at, self.pos) = (at, text.len());
                    if at.seq.has(Flags::END.bits(), Flags::DIR.bits()) && self.stack.is_empty() {
                        return Ok(End::Found);
                    }
                    break 'cold self.end_of_text();
                }
                let Some(name) = short_component(text, pos) else {
                    (self.at, self.pos) = (at, pos);
                    break 'cold self.long_name();
                };
                // Behind the slash; past the end if there is none.
                let next = name.end + 1;
                if name.end == pos {
                    pos = next;
                    continue 'components;
                }
                if name.starts_with_dot() && (name.is_dot() || name.is_dot_dot()) {
                    // A contained walk has more to check (WALK-3).
                    if name.is_dot_dot()
                        && self.contained.is_none()
                        && !std::ptr::eq(at.dentry, root)
                        && !Flags::of(at.seq).contains(Flags::ROOT)
                        && let Some(parent) = at.dentry.parent(self.guard)
                    {
                        let seq = parent.seq.sample();
                        // SEQ-3, upwards: it was still the parent then.
                        if !at.has_changed() && seq.has(Flags::WALK.bits(), Flags::WALK_ON.bits()) {
                            (at.dentry, at.seq, pos) = (parent, seq, next);
                            continue 'components;
                        }
                    }
                    (self.at, self.pos) = (at, pos);
                    break 'cold self.dots(name.is_dot_dot(), name.end);
                }
                let parent = at.dentry.address();
                let words = NameWords::from_words(name.words);
                let hash = in_dir(keys.hash_words(name.words), parent);
                let mut seq = at.seq;
                let child = self.table.find_at_once(hash, |dentry| {
                    seq = dentry.seq.sample();
                    dentry.is_at(parent, &words)
                });
                let Some(child) = child else {
                    (self.at, self.pos) = (at, pos);
                    break 'cold self.look_again(hash, words, name.end);
                };
                // SEQ-3: the parent was still this directory when it had this child.
                if at.has_changed() {
                    (self.at, self.pos) = (at, pos);
                    return Err(Why::Moved);
                }
                if seq.has(Flags::WALK.bits(), Flags::WALK_ON.bits()) {
                    (at.dentry, at.seq, pos) = (child, seq, next);
                    continue 'components;
                }
                if seq.has(Flags::STEP.bits(), 0) {
                    // Negative: the rest of the path does not matter.
                    (self.at.mnt, self.at.dentry, self.at.seq) = (at.mnt, child, seq);
                    return Ok(End::Missing);
                }
                if name.end == text.len()
                    && seq.has(Flags::STEP.bits(), Flags::PLAIN.bits())
                    && self.stack.is_empty()
                    && !self.request.flags.contains(LookupFlags::DIRECTORY)
                {
                    // The last one, and anything will do.
                    (self.at.mnt, self.at.dentry, self.at.seq) = (at.mnt, child, seq);
                    return Ok(End::Found);
                }
                (self.at, self.pos) = (at, pos);
                self.step_into_slow(child, seq, name.end)
            };
            if let Step::End(end) = step? {
                return Ok(end);
            }
            (at, pos, text) = (self.at, self.pos, self.text.bytes());
        }
    }

    /// The end of a link's target, or of all.
    #[cold]
    fn end_of_text(&mut self) -> Result<Step, Why> {
        self.ends_in_slash |= self.text.bytes().last() == Some(&b'/');
        if let Some(saved) = self.stack.pop() {
            (self.text, self.pos) = (saved.text, saved.pos);
            if !is_slashes(&self.text.bytes()[self.pos..]) {
                self.ends_in_slash = false;
                return self.search();
            }
            return Ok(Step::On);
        }
        let flags = Flags::of(self.at.seq);
        let must_be_dir = self.ends_in_slash || self.request.flags.contains(LookupFlags::DIRECTORY);
        if flags.contains(Flags::REVALIDATE) {
            self.check_place()?;
        }
        Ok(Step::End(
            match must_be_dir && !flags.contains(Flags::DIR) {
                true => End::NotADirectory,
                false => End::Found,
            },
        ))
    }

    /// True if no name comes after `pos` in the current text, nor in those put aside.
    fn is_at_last(&self, pos: usize) -> bool {
        is_slashes(&self.text.bytes()[pos..])
            && self
                .stack
                .all(|saved| is_slashes(&saved.text.bytes()[saved.pos..]))
    }

    /// Checks search permission for the directory of the next component; with the mark
    /// "everyone may search" there is no check.
    #[inline(always)]
    fn search(&self) -> Result<Step, Why> {
        if self
            .at
            .seq
            .has(Flags::LOOKUP.bits(), Flags::SEARCHABLE.bits())
        {
            return Ok(Step::On);
        }
        self.may_lookup()
    }

    /// Not a directory that everyone may search: one that this caller may? If only slashes
    /// follow, it is not searched, and need not be.
    #[cold]
    fn may_lookup(&self) -> Result<Step, Why> {
        let flags = Flags::of(self.at.seq);
        if !self.at.seq.is_even() {
            return Err(Why::Moved);
        }
        let Some(inode) = self.at.inode(self.guard) else {
            return Err(Why::Moved);
        };
        if flags.contains(Flags::REVALIDATE) {
            self.check_place()?;
        }
        let who = self.request.ctx.credentials();
        let refused = match flags.contains(Flags::DIR) {
            false => Some(End::NotADirectory),
            true => match who.may(inode, Access::EXEC) {
                Ok(()) => None,
                Err(Error::PermissionDenied) => Some(End::Denied),
                Err(_) => return Err(Why::AclNotCached),
            },
        };
        if self.at.has_changed() {
            return Err(Why::Moved);
        }
        Ok(match refused {
            Some(end) if !self.is_at_last(self.pos) => Step::End(end),
            _ => Step::On,
        })
    }

    /// Not found at once: missing, or moved to another chain just now.
    #[cold]
    fn look_again(&mut self, hash: u64, words: NameWords, end: usize) -> Result<Step, Why> {
        let parent = self.at.dentry.address();
        let mut seq = self.at.seq;
        let child = self.table.find(hash, |dentry| {
            seq = dentry.seq.sample();
            dentry.is_at(parent, &words)
        });
        let child = child.ok_or(Why::NotCached)?;
        if self.at.has_changed() {
            return Err(Why::Moved);
        }
        self.step_into_slow(child, seq, end)
    }

    /// `.` and `..`.
    #[cold]
    fn dots(&mut self, two: bool, end: usize) -> Result<Step, Why> {
        let to = if two { self.follow_dotdot()? } else { self.at };
        self.go_on(to, end)
    }

    /// A name of more than 24 bytes.
    #[cold]
    fn long_name(&mut self) -> Result<Step, Why> {
        let text = self.text.bytes();
        let end = long_component(text, self.pos);
        let Ok(name) = Name::new(&text[self.pos..end]) else {
            return Ok(Step::End(End::NameTooLong));
        };
        let name = NameHash::new(name, self.request.ns.caches.dcache.keys());
        let parent = self.at.dentry.address();
        let mut seq = self.at.seq;
        let child = self.table.find(name.in_dir(parent), |dentry| {
            seq = dentry.seq.sample();
            dentry.is_named(parent, &name, self.guard)
        });
        let child = child.ok_or(Why::NotCached)?;
        if self.at.has_changed() {
            return Err(Why::Moved);
        }
        self.step_into_slow(child, seq, end)
    }

    /// Goes to a place that has been checked; a further component needs search permission
    /// there.
    fn go_on(&mut self, to: Here<'g>, end: usize) -> Result<Step, Why> {
        let (was, at) = (self.pos, self.at);
        (self.at, self.pos) = (to, end);
        let last = end == self.text.bytes().len() && self.stack.is_empty();
        if last {
            return Ok(Step::On);
        }
        let searched = self.search();
        if searched.is_err() {
            // Before the component in question: a REF-walk goes on from there.
            (self.at, self.pos) = (at, was);
        }
        searched
    }

    /// A child that is no plain file or directory: missing, a link, a mount point, or one that
    /// must be checked for freshness.
    #[cold]
    #[doc(alias("step_into_slowpath", "handle_mounts", "__follow_mount_rcu"))]
    fn step_into_slow(
        &mut self,
        child: &'g Shared<Dentry>,
        seq: Seq,
        end: usize,
    ) -> Result<Step, Why> {
        let mut to = Here {
            mnt: self.at.mnt,
            dentry: child,
            seq,
        };
        let mut flags = Flags::of(seq);
        if !seq.is_even() || flags.contains(Flags::UNHASHED) {
            return Err(Why::Moved);
        }
        if flags.contains(Flags::LONG) && end - self.pos <= NameWords::FITS {
            // The words of a long name end in its hash, and that happened to be the same.
            return Err(Why::NotCached);
        }
        if flags.contains(Flags::INVALIDATED) {
            return Err(Why::Revalidate);
        }
        if flags.contains(Flags::REVALIDATE) {
            self.check_name(child)?;
        }
        if flags.is_negative() {
            self.at = to;
            return Ok(Step::End(End::Missing));
        }
        while flags.contains(Flags::MOUNTPOINT) {
            let Some(entry) = self.mounts.lookup(to.mnt, to.dentry.address()) else {
                break;
            };
            if to.has_changed() {
                return Err(Why::Moved);
            }
            let root: &Shared<Dentry> = &entry.info().root;
            to = Here {
                mnt: entry.mount(),
                dentry: root,
                seq: root.seq.sample(),
            };
            flags = Flags::of(to.seq);
        }
        if flags.contains(Flags::LINK) {
            let last = end == self.text.bytes().len() && self.stack.is_empty();
            if !last || self.request.flags.contains(LookupFlags::FOLLOW) {
                return self.pick_link(to, end);
            }
        }
        self.go_on(to, end)
    }

    /// As the REF-walk's.
    #[inline]
    fn may_follow_link(&self, link: &Inode, end: usize) -> Result<bool, Why> {
        let protects = self.at.mnt.flags().contains(MountFlags::PROTECTED_LINKS);
        if !protects || self.request.is_head || !self.is_at_last(end) {
            return Ok(true);
        }
        let dir = self.at.inode(self.guard).ok_or(Why::Moved)?;
        let may = may_follow_link(self.request.ctx.credentials(), dir.protection(), link);
        // WALK-1: of the directory that the link is in.
        match self.at.has_changed() {
            true => Err(Why::Moved),
            false => Ok(may),
        }
    }

    /// Makes the link's target the text to walk, and pushes the rest of the current text.
    #[cold]
    fn pick_link(&mut self, link: Here<'g>, end: usize) -> Result<Step, Why> {
        let inode = link.inode(self.guard).ok_or(Why::Moved)?;
        let refused = |end| Ok(Step::End(end));
        if self.links == MAX_LINKS {
            self.at = link;
            return refused(End::TooManyLinks);
        }
        if !self.may_follow_link(inode, end)? {
            self.at = link;
            return refused(End::Denied);
        }
        let body = inode
            .link_target()
            .load(self.guard)
            .ok_or(Why::LinkNotCached)?;
        if link.has_changed() {
            return Err(Why::Moved);
        }
        if body.is_empty() {
            self.at = link;
            return refused(End::Missing);
        }
        // With a NUL inside, padding could make two names equal.
        if has_zero(body) {
            return Err(Why::LinkNotCached);
        }
        self.links += 1;
        if end < self.text.bytes().len() {
            self.stack.push(Saved {
                text: self.text,
                pos: end,
            });
        }
        if body.first() == Some(&b'/') {
            self.at = Here::at(self.request.ctx.root());
        }
        (self.text, self.pos) = (Pathname::Link(body), 0);
        self.search()
    }

    #[cold]
    #[doc(alias("follow_dotdot_rcu", "choose_mountpoint_rcu"))]
    fn follow_dotdot(&self) -> Result<Here<'g>, Why> {
        let mut at = self.at;
        // From the root of a mount on to where that is mounted, unless it is where
        // this walk's own root is (WALK-3).
        loop {
            if at.is(self.request.ctx.root()) {
                break;
            }
            if std::ptr::eq(at.dentry, &*at.mnt.root) {
                let Some(point) = &at.mnt.point else { break };
                let dentry: &Shared<Dentry> = &point.dentry;
                at = Here {
                    mnt: point.entry.mount(),
                    dentry,
                    seq: dentry.seq.sample(),
                };
                continue;
            }
            let parent = at.dentry.parent(self.guard).ok_or(Why::Moved)?;
            let seq = parent.seq.sample();
            // SEQ-3, upwards: it was still the parent when we read the parent's count.
            if at.has_changed() {
                return Err(Why::Moved);
            }
            at = Here {
                mnt: at.mnt,
                dentry: parent,
                seq,
            };
            break;
        }
        // Something may be mounted on top of where we came out.
        while Flags::of(at.seq).contains(Flags::MOUNTPOINT) {
            let Some(entry) = self.mounts.lookup(at.mnt, at.dentry.address()) else {
                break;
            };
            let root: &Shared<Dentry> = &entry.info().root;
            at = Here {
                mnt: entry.mount(),
                dentry: root,
                seq: root.seq.sample(),
            };
        }
        // WALK-3: the directory that the walk came from may have been moved out of the root.
        // The count is read after the parent: a rename that this `..` has seen is counted.
        let dcache = &self.request.ns.caches.dcache;
        let may_be_outside = self.contained.is_some_and(|walk| walk.has_renamed(dcache));
        if !at.seq.is_even() || may_be_outside {
            return Err(Why::Moved);
        }
        Ok(at)
    }

    /// The place where the walk stands, however it came there.
    #[cold]
    fn check_place(&self) -> Result<(), Why> {
        let Here { mnt, dentry, .. } = self.at;
        match mnt.sb.is_place_fresh(dentry, self.guard) {
            true => Ok(()),
            false => Err(Why::Revalidate),
        }
    }

    /// A name in the directory where the walk stands.
    #[cold]
    fn check_name(&self, child: &Dentry) -> Result<(), Why> {
        match self.at.mnt.sb.is_name_fresh(child, self.guard) {
            true => Ok(()),
            false => Err(Why::Revalidate),
        }
    }
}

fn is_slashes(text: &[u8]) -> bool {
    text.iter().all(|byte| *byte == b'/')
}
