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
//! before the component in question, so that it can go on with references.

use rcuwalk_sync::{RcuGuard, Seq, Shared, View, clock};

use super::component::{Component, ends_in_nul, long_component, short_component};
use super::text::{LinkStack, Saved};
use super::{Here, LookupFlags, MAX_LINKS, Request};
use crate::context::VfsPath;
use crate::dentry::{Dentry, Flags, NameHash, NameWords, in_dir};
use crate::inode::{Inode, LinkBody};
use crate::mount::MountTable;
use crate::name::Name;
use crate::permission::Access;
use crate::stats::Why;

/// A text of an RCU-walk: the caller's path, or a link's target.
#[derive(Clone, Copy)]
pub(super) enum Text<'a, 'g> {
    Path(&'a [u8]),
    Link(&'g Shared<LinkBody>),
}

impl<'a: 'g, 'g> Text<'a, 'g> {
    #[inline]
    fn bytes(self) -> &'g [u8] {
        match self {
            Text::Path(path) => path,
            Text::Link(body) => body,
        }
    }
}

/// A walk in progress.
#[doc(alias = "struct nameidata")]
pub(super) struct RcuWalk<'a, 'g> {
    pub(super) request: Request<'a>,
    pub(super) guard: &'g RcuGuard,
    mounts: &'g Shared<MountTable>,
    table: View<'g, Dentry>,
    pub(super) at: Here<'g>,
    pub(super) text: Text<'a, 'g>,
    pub(super) pos: usize,
    pub(super) stack: LinkStack<Text<'a, 'g>>,
    pub(super) links: u32,
}

/// Where a walk ended.
pub(crate) struct RcuFound<'g> {
    at: Here<'g>,
    guard: &'g RcuGuard,
    mounts: &'g Shared<MountTable>,
    request: Request<'g>,
    negative: bool,
}

/// What a step came to.
enum Step {
    /// On to the next component.
    On,
    /// The name stands for nothing, and that is certain.
    Missing,
}

impl<'a: 'g, 'g> RcuWalk<'a, 'g> {
    #[inline]
    pub(super) fn start(request: Request<'a>, guard: &'g RcuGuard) -> RcuWalk<'a, 'g> {
        let absolute = request.path.first() == Some(&b'/');
        let start = if absolute {
            request.ctx.root()
        } else {
            request.ctx.cwd()
        };
        RcuWalk {
            request,
            guard,
            mounts: request.ns.mounts(guard),
            table: request.ns.caches.dcache.table().view(guard),
            at: Here::at(start),
            text: Text::Path(request.path),
            pos: 0,
            stack: LinkStack::new(),
            links: 0,
        }
    }

    /// Walks to the end.
    #[doc(alias("link_path_walk", "walk_component", "lookup_fast", "step_into"))]
    #[inline]
    pub(super) fn run(&mut self) -> Result<RcuFound<'g>, Why> {
        let keys = self.request.ns.caches.dcache.keys();
        // What changes with every component stays in registers; the walk itself is
        // brought up to date before anything cold looks at it.
        let mut at = self.at;
        let mut text = self.text.bytes();
        let mut pos = self.pos;
        let mut must_be_dir = self.request.flags.contains(LookupFlags::DIRECTORY);
        loop {
            while pos < text.len() && text[pos] == b'/' {
                pos += 1;
            }
            if pos == text.len() {
                must_be_dir |= text.last() == Some(&b'/');
                match self.stack.pop() {
                    Some(saved) => {
                        self.text = saved.text;
                        text = saved.text.bytes();
                        pos = saved.pos;
                        continue;
                    }
                    None => break,
                }
            }
            must_be_dir = self.request.flags.contains(LookupFlags::DIRECTORY);

            if !at.seq.has(Flags::LOOKUP.bits(), Flags::SEARCHABLE.bits()) {
                (self.at, self.pos) = (at, pos);
                self.may_lookup()?;
            }
            let short = short_component(text, pos);
            let step = match short {
                Some(name) if !name.is_dot() && !name.is_dot_dot() => {
                    if ends_in_nul(text, name.end) {
                        (self.at, self.pos) = (at, pos);
                        return Err(Why::Error);
                    }
                    let words = NameWords::short(name.low, name.high);
                    let hash = in_dir(keys.hash_short(name.low, name.high), at.dentry.address());
                    let mut seq = at.seq;
                    let child = self.table.find(hash, |dentry| {
                        seq = dentry.seq.sample();
                        dentry.is_at(at.dentry.address(), &words)
                    });
                    let Some(child) = child else {
                        (self.at, self.pos) = (at, pos);
                        return Err(Why::NotCached);
                    };
                    // SEQ-3: the parent was still this directory when it had this child.
                    if at.has_changed() {
                        (self.at, self.pos) = (at, pos);
                        return Err(Why::Moved);
                    }
                    if seq.has(Flags::STEP.bits(), Flags::PLAIN.bits()) {
                        at = Here {
                            mnt: at.mnt,
                            dentry: child,
                            seq,
                        };
                        pos = name.end;
                        continue;
                    }
                    (self.at, self.pos) = (at, pos);
                    self.step_into_slow(child, seq, name.end)?
                }
                _ => {
                    (self.at, self.pos) = (at, pos);
                    self.odd_component(short)?
                }
            };
            (at, pos, text) = (self.at, self.pos, self.text.bytes());
            if let Step::Missing = step {
                return Ok(self.found(at, true));
            }
        }
        (self.at, self.pos) = (at, pos);
        if must_be_dir && !Flags::of(at.seq).contains(Flags::DIR) {
            return Err(Why::Error);
        }
        if Flags::of(at.seq).contains(Flags::ROOT | Flags::REVALIDATE) {
            self.check_fresh(at.dentry)?;
        }
        Ok(self.found(at, false))
    }

    #[inline]
    fn found(&self, at: Here<'g>, negative: bool) -> RcuFound<'g> {
        let RcuWalk {
            guard,
            mounts,
            request,
            ..
        } = *self;
        RcuFound {
            at,
            guard,
            mounts,
            request,
            negative,
        }
    }

    /// Not a directory that everyone may search: one that this caller may?
    #[cold]
    fn may_lookup(&self) -> Result<(), Why> {
        let flags = Flags::of(self.at.seq);
        if !self.at.seq.is_even() {
            return Err(Why::Moved);
        }
        let Some(inode) = self.at.inode(self.guard) else {
            return Err(Why::Moved);
        };
        if !flags.contains(Flags::DIR) || self.at.has_changed() {
            return Err(Why::Error);
        }
        self.request
            .ctx
            .credentials()
            .may(inode, Access::EXEC)
            .map_err(|_| Why::Error)
    }

    /// `.`, `..`, and names of 16 bytes and more.
    #[cold]
    fn odd_component(&mut self, short: Option<Component>) -> Result<Step, Why> {
        let text = self.text.bytes();
        if let Some(dots) = short {
            if ends_in_nul(text, dots.end) {
                return Err(Why::Error);
            }
            if dots.is_dot_dot() {
                self.follow_dotdot()?;
            }
            self.pos = dots.end;
            return Ok(Step::On);
        }
        let end = long_component(text, self.pos);
        let name = Name::new(&text[self.pos..end]).map_err(|_| Why::Error)?;
        if ends_in_nul(text, end) {
            return Err(Why::Error);
        }
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
        if seq.has((Flags::STEP - Flags::LONG).bits(), Flags::PLAIN.bits()) {
            (self.at.dentry, self.at.seq, self.pos) = (child, seq, end);
            return Ok(Step::On);
        }
        self.step_into_slow(child, seq, end)
    }

    /// A child that is no plain file or directory: missing, a link, a mount point, or
    /// to be asked for its freshness.
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
        if flags.contains(Flags::LONG) && end - self.pos <= 16 {
            // The words of a long name end in its hash, and that happened to be zero.
            return Err(Why::NotCached);
        }
        if flags.contains(Flags::REVALIDATE) {
            self.check_fresh(child)?;
        }
        if flags.is_negative() {
            // What is not walked any more may hold a NUL, and that comes first.
            let is_all = end == self.text.bytes().len() && self.stack.is_empty();
            if !is_all && self.request.path.contains(&0) {
                return Err(Why::Error);
            }
            // The caller rechecks the count; the walk itself stays with the parent.
            self.at = to;
            return Ok(Step::Missing);
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
        (self.at, self.pos) = (to, end);
        Ok(Step::On)
    }

    /// The link's target becomes the text; what is left of this one is put aside.
    #[cold]
    fn pick_link(&mut self, link: Here<'g>, end: usize) -> Result<Step, Why> {
        let inode = link.inode(self.guard).ok_or(Why::Moved)?;
        let body = inode
            .link_body()
            .load(self.guard)
            .ok_or(Why::LinkNotCached)?;
        if link.has_changed() {
            return Err(Why::Moved);
        }
        if self.links == MAX_LINKS || body.is_empty() {
            return Err(Why::Error);
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
        (self.text, self.pos) = (Text::Link(body), 0);
        Ok(Step::On)
    }

    #[cold]
    #[doc(alias("follow_dotdot_rcu", "choose_mountpoint_rcu"))]
    fn follow_dotdot(&mut self) -> Result<(), Why> {
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
        if !at.seq.is_even() {
            return Err(Why::Moved);
        }
        self.at = at;
        Ok(())
    }

    #[cold]
    fn check_fresh(&self, dentry: &Dentry) -> Result<(), Why> {
        if dentry.valid_until() <= clock::millis() {
            Err(Why::Revalidate)
        } else {
            Ok(())
        }
    }
}

impl<'g> RcuFound<'g> {
    /// True if the name is known to stand for nothing.
    #[inline]
    pub(crate) fn is_negative(&self) -> bool {
        self.negative
    }

    /// The inode, to be read before [`is_still_true`](Self::is_still_true).
    #[inline]
    pub(crate) fn inode(&self) -> Option<&'g Shared<Inode>> {
        self.at.inode(self.guard)
    }

    /// True if, up to now, the path has led to where the walk ended.
    #[inline]
    pub(crate) fn is_still_true(&self) -> bool {
        let still = self.at.seq.is_even()
            && !self.at.has_changed()
            && self.request.ns.mounts_are(self.mounts);
        if still {
            self.at.dentry.mark_used();
        }
        still
    }

    /// Counted references to the place, if it is still true.
    #[doc(alias = "complete_walk")]
    pub(crate) fn try_get(&self) -> Option<VfsPath> {
        let path = VfsPath::try_get(self.at.mnt, self.at.dentry)?;
        self.is_still_true().then_some(path)
    }
}
