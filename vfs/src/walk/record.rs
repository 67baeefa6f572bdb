//! Notes of a walk for [`Vfs::trace`](crate::Vfs::trace).
//!
//! The RCU-walk has no time to take notes. It is asked only how far it comes ([`reach`]); then
//! a REF-walk goes the same way and notes each step in a [`Record`], and [`Position`] brings
//! the two together. An untraced walk has a [`Recorder`] that does nothing.

use std::cell::RefCell;
use std::cmp::Reverse;

use rcuwalk_sync::rcu as sync_rcu;

use super::rcu::RcuWalk;
use super::{Contained, LookupFlags, RcuFound, RefWalk, Request};
use crate::mount::MountRef;
use crate::stats::Why;
use crate::trace::{Origin, TraceStep, Walk};
use crate::vfs_inode::Inode;

/// How far a walk is. Ordered as a walk goes: into links, out of them, along a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) links: u32,
    /// Texts put aside. They only become fewer until the next link is followed.
    pub(super) depth: Reverse<usize>,
    pub(super) pos: usize,
}

impl Position {
    /// Nothing comes before it.
    const START: Position = Position {
        links: 0,
        depth: Reverse(usize::MAX),
        pos: 0,
    };
}

/// How far the RCU-walk came.
pub(crate) enum Reach {
    /// It answered.
    All,
    /// Not even tried, as the flags ask for references.
    NotTried,
    /// The walk with references goes on here; or starts again, at the start.
    Until(Until, Why),
}

/// Where an RCU-walk ended.
pub(crate) struct Until(Position);

/// Tries the RCU-walk. Asks no back end and leaves no trace but in the statistics.
pub(crate) fn reach(request: &Request<'_>, contained: Option<Contained>) -> Reach {
    if request
        .flags
        .intersects(LookupFlags::REF_WALK | LookupFlags::REVAL)
    {
        return Reach::NotTried;
    }
    let guard = sync_rcu::read_lock();
    let counters = request.ns.caches.counters.get_with(&guard);
    let mut walk = RcuWalk::start(request, &guard, contained);
    let why = match walk.run() {
        Ok(end) if RcuFound(&walk).is_still_true() => {
            end.count(counters);
            return Reach::All;
        }
        Ok(_) => Why::Dying,
        Err(why) => why,
    };
    let at = Position {
        links: walk.links,
        depth: Reverse(walk.stack.depth()),
        pos: walk.pos,
    };
    let unlazied = walk.try_to_unlazy();
    // References are given back outside the guard: the last one may free (RCU-2).
    drop(guard);
    match unlazied {
        Some(_) if why != Why::Dying => Reach::Until(Until(at), why),
        _ => Reach::Until(Until(Position::START), why),
    }
}

/// The steps of one REF-walk.
pub(crate) struct Record {
    /// Steps before this one were the RCU-walk's; all of them, without one.
    rcu_until: Option<Position>,
    notes: RefCell<Notes>,
}

#[derive(Default)]
struct Notes {
    steps: Vec<TraceStep>,
    /// How deep in links the text at each depth of the stack is.
    levels: Vec<usize>,
    /// A link has been followed; this is the level of its target.
    entered: Option<usize>,
}

impl Record {
    pub(crate) fn new(reach: &Reach) -> Record {
        let rcu_until = match reach {
            Reach::All => None,
            Reach::NotTried => Some(Position::START),
            Reach::Until(until, _) => Some(until.0),
        };
        Record {
            rcu_until,
            notes: RefCell::default(),
        }
    }

    pub(crate) fn into_steps(self) -> Vec<TraceStep> {
        self.notes.into_inner().steps
    }
}

/// Takes a walk's notes, if it is traced.
#[derive(Clone, Copy, Default)]
pub(crate) struct Recorder<'a>(Option<&'a Record>);

impl<'a> Recorder<'a> {
    pub(crate) fn of(record: &'a Record) -> Recorder<'a> {
        Recorder(Some(record))
    }

    /// The walk stands before this component.
    pub(super) fn component(self, name: &[u8], at: Position) {
        let Some(record) = self.0 else { return };
        let mut notes = record.notes.borrow_mut();
        let Reverse(depth) = at.depth;
        // A link's target takes the place of its text if nothing was left of that.
        let entered = notes.entered.take();
        let level = entered.or(notes.levels.get(depth).copied()).unwrap_or(0);
        notes.levels.truncate(depth);
        notes.levels.push(level);
        let by_rcu = record.rcu_until.is_none_or(|until| at < until);
        notes.steps.push(TraceStep {
            name: name.into(),
            level,
            walk: if by_rcu { Walk::Rcu } else { Walk::Ref },
            how: None,
            attr: None,
            key: None,
            link: None,
            mount: None,
        });
    }

    /// Where the component's dentry came from. The last word counts.
    pub(super) fn how(self, how: Origin) {
        self.last_step(|step| step.how = Some(how));
    }

    /// The file that the component refers to; `mount` is the file system crossed into.
    pub(super) fn found(self, inode: &Inode, mount: Option<&str>) {
        self.last_step(|step| {
            step.attr = Some(inode.attr());
            step.key = Some(inode.inode_key());
            step.mount = mount.map(Box::from);
        });
    }

    /// The component is a link, and is followed.
    pub(super) fn link(self, target: &[u8]) {
        self.last_step(|step| step.link = Some(target.into()));
        if let Some(record) = self.0 {
            let mut notes = record.notes.borrow_mut();
            notes.entered = notes.steps.last().map(|link| link.level + 1);
        }
    }

    fn last_step(self, change: impl FnOnce(&mut TraceStep)) {
        if let Some(record) = self.0 {
            record.notes.borrow_mut().steps.last_mut().map(change);
        }
    }
}

impl<'a> RefWalk<'a> {
    /// The same walk, with its steps noted.
    pub(crate) fn recorded(mut self, record: Recorder<'a>) -> RefWalk<'a> {
        self.record = record;
        if self.request.path.first() == Some(&b'/') {
            self.record_root();
        }
        self
    }

    pub(super) fn position(&self) -> Position {
        Position {
            links: self.links,
            depth: Reverse(self.stack.depth()),
            pos: self.pos,
        }
    }

    /// Notes a text's start at the root.
    pub(super) fn record_root(&self) {
        self.record.component(b"/", self.position());
        self.record_held(self.at.mnt());
    }

    /// Notes that the walk is where it is without having looked a name up.
    pub(super) fn record_held(&self, from: &MountRef) {
        self.record.how(Origin::Held);
        self.record
            .found(self.at.inode(), crossed(from, self.at.mnt()));
    }
}

/// The file system that a step led into, if it left its mount.
pub(super) fn crossed<'m>(from: &MountRef, to: &'m MountRef) -> Option<&'m str> {
    (!from.is(to)).then(|| to.sb.about().name())
}
