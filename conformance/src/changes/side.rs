//! The interface of both sides: a step, a check afterwards, a whole tree.
//!
//! A whole tree is read with the same operations that sequences consist of, so there is one
//! translation of each, and a false listing is found by following it.

use rustix::fs::OFlags;

use crate::changes::answer::{Answer, Found, Said};
use crate::changes::op::{At, Bits, Bytes, Op, SLOTS, Step};
use crate::changes::users::Who;

/// The slot that reading a tree keeps for itself.
const OWN_SLOT: usize = SLOTS;

/// How much of each end of a file is compared.
const PART: usize = 24 << 10;

/// Something that operations are made in.
pub trait Side {
    /// Does it, and tells what came of it. There are [`SLOTS`] + 1 slots.
    fn run(&mut self, who: Who, op: &Op) -> Said;
}

/// What `side` says to `step`.
pub fn answer(side: &mut impl Side, step: &Step) -> Answer {
    let said = match step.op {
        Op::Tree => Said::Tree(tree(side)),
        _ => side.run(step.who, &step.op),
    };
    let seen = if step.watch {
        let look = |at: At| {
            let stat = side.run(Who::Root, &Op::Stat { at: at.clone() });
            (at, stat)
        };
        step.op.names().into_iter().map(look).collect()
    } else {
        Vec::new()
    };
    Answer { said, seen }
}

/// The whole state: the tree from its root, the current directory, the open files.
fn tree(side: &mut impl Side) -> Vec<Found> {
    let mut found = Vec::new();
    below(side, "/", &mut found);
    let mut look = |place: At, inside: fn(&mut _, usize, &Said) -> Said| {
        let stat = side.run(Who::Root, &Op::Stat { at: place.clone() });
        let inside = match place {
            At::Handle(slot) if stat.errno() == 0 => inside(side, slot, &stat),
            _ => Said::Done,
        };
        found.push(Found {
            place,
            stat,
            inside,
            xattrs: Vec::new(),
        });
    };
    look(At::Path(".".into()), contents);
    for slot in 0..SLOTS {
        look(At::Handle(slot), contents);
    }
    found
}

fn below(side: &mut impl Side, path: &str, found: &mut Vec<Found>) {
    let place = At::NoFollow(path.to_string());
    let stat = side.run(Who::Root, &Op::Stat { at: place.clone() });
    let kind = match &stat {
        Said::Stat(stat) => stat.kind(),
        _ => 0,
    };
    let inside = match kind {
        libc::S_IFDIR => opened(side, path, OFlags::DIRECTORY, |side| {
            side.run(
                Who::Root,
                &Op::List {
                    at: At::Handle(OWN_SLOT),
                },
            )
        }),
        libc::S_IFREG => opened(side, path, OFlags::empty(), |side| {
            contents(side, OWN_SLOT, &stat)
        }),
        libc::S_IFLNK => side.run(Who::Root, &Op::ReadLink { at: place.clone() }),
        _ => Said::Done,
    };
    let xattrs = xattrs(side, &place);
    let names: Vec<String> = match &inside {
        Said::Entries(entries) => entries.iter().map(|entry| entry.name.clone()).collect(),
        _ => Vec::new(),
    };
    found.push(Found {
        place,
        stat,
        inside,
        xattrs,
    });
    for name in names {
        let child = format!("{}/{name}", path.trim_end_matches('/'));
        below(side, &child, found);
    }
}

/// What `look` says while `path` is open in [`OWN_SLOT`].
fn opened<S: Side>(
    side: &mut S,
    path: &str,
    flags: OFlags,
    look: impl FnOnce(&mut S) -> Said,
) -> Said {
    let open = Op::Open {
        slot: OWN_SLOT,
        path: path.into(),
        // Looking must not be what changes the times that are compared.
        flags: flags | OFlags::NOFOLLOW | OFlags::NOATIME,
        mode: Bits(0),
    };
    match side.run(Who::Root, &open) {
        Said::Done => {
            let said = look(side);
            side.run(Who::Root, &Op::Close { slot: OWN_SLOT });
            said
        }
        refused => refused,
    }
}

/// Both ends of a file. A handle that cannot be read returns its error.
fn contents(side: &mut impl Side, slot: usize, stat: &Said) -> Said {
    let (size, kind) = match stat {
        Said::Stat(stat) => (stat.size, stat.kind()),
        _ => return Said::Done,
    };
    if kind != libc::S_IFREG {
        return Said::Done;
    }
    let mut read = |at: i64| {
        let op = Op::Read {
            slot,
            at,
            len: PART,
        };
        side.run(Who::Root, &op)
    };
    let first = read(0);
    let rest = size.saturating_sub(PART as u64);
    if rest == 0 {
        return first;
    }
    match (first, read((size - rest.min(PART as u64)) as i64)) {
        (Said::Data(Bytes(first)), Said::Data(Bytes(last))) => {
            Said::Data(Bytes([first, last].concat()))
        }
        (_, refused) => refused,
    }
}

fn xattrs(side: &mut impl Side, place: &At) -> Vec<(String, Said)> {
    let names = match side.run(Who::Root, &Op::ListXattr { at: place.clone() }) {
        Said::Names(names) => names,
        refused => return vec![("(list)".into(), refused)],
    };
    let value = |name: String| {
        let op = Op::GetXattr {
            at: place.clone(),
            name: name.clone(),
        };
        (name, side.run(Who::Root, &op))
    };
    names.into_iter().map(value).collect()
}
