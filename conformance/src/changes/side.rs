//! The interface of both sides: a step, a check afterwards, a whole tree.
//!
//! A whole tree is read with the same operations that sequences consist of, so there is one
//! translation of each, and a false listing is found by following it.

use rustix::fs::OFlags;

use crate::changes::answer::{Answer, Found, Outcome};
use crate::changes::op::{At, Bits, Bytes, Op, SLOTS, Step};
use crate::changes::users::User;

/// The slot that reading a tree keeps for itself.
const OWN_SLOT: usize = SLOTS;

/// How much of each end of a file is compared.
const PART: usize = 24 << 10;

/// Something that operations are made in.
pub trait Side {
    /// Does it, and tells what came of it. There are [`SLOTS`] + 1 slots.
    fn run(&mut self, user: User, op: &Op) -> Outcome;
}

/// What `side` says to `step`.
pub fn answer(side: &mut impl Side, step: &Step) -> Answer {
    let outcome = match step.op {
        Op::Tree => Outcome::Tree(tree(side)),
        _ => side.run(step.user, &step.op),
    };
    let after = if step.watch {
        let look = |at: At| {
            let stat = side.run(User::Root, &Op::Stat { at: at.clone() });
            (at, stat)
        };
        step.op.names().into_iter().map(look).collect()
    } else {
        Vec::new()
    };
    Answer { outcome, after }
}

/// The whole state: the tree from its root, the current directory, the open files.
fn tree(side: &mut impl Side) -> Vec<Found> {
    let mut found = Vec::new();
    below(side, "/", &mut found);
    let mut look = |place: At, inside: fn(&mut _, usize, &Outcome) -> Outcome| {
        let stat = side.run(User::Root, &Op::Stat { at: place.clone() });
        let inside = match place {
            At::Handle(slot) if stat.errno() == 0 => inside(side, slot, &stat),
            _ => Outcome::Done,
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
    let stat = side.run(User::Root, &Op::Stat { at: place.clone() });
    let kind = match &stat {
        Outcome::Stat(stat) => stat.kind(),
        _ => 0,
    };
    let inside = match kind {
        libc::S_IFDIR => opened(side, path, OFlags::DIRECTORY, |side| {
            side.run(
                User::Root,
                &Op::List {
                    at: At::Handle(OWN_SLOT),
                },
            )
        }),
        libc::S_IFREG => opened(side, path, OFlags::empty(), |side| {
            contents(side, OWN_SLOT, &stat)
        }),
        libc::S_IFLNK => side.run(User::Root, &Op::ReadLink { at: place.clone() }),
        _ => Outcome::Done,
    };
    let xattrs = xattrs(side, &place);
    let names: Vec<String> = match &inside {
        Outcome::Entries(entries) => entries.iter().map(|entry| entry.name.clone()).collect(),
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
    look: impl FnOnce(&mut S) -> Outcome,
) -> Outcome {
    let open = Op::Open {
        slot: OWN_SLOT,
        path: path.into(),
        // Looking must not be what changes the times that are compared.
        flags: flags | OFlags::NOFOLLOW | OFlags::NOATIME,
        mode: Bits(0),
    };
    match side.run(User::Root, &open) {
        Outcome::Done => {
            let outcome = look(side);
            side.run(User::Root, &Op::Close { slot: OWN_SLOT });
            outcome
        }
        refused => refused,
    }
}

/// Both ends of a file. A handle that cannot be read returns its error.
fn contents(side: &mut impl Side, slot: usize, stat: &Outcome) -> Outcome {
    let (size, kind) = match stat {
        Outcome::Stat(stat) => (stat.size, stat.kind()),
        _ => return Outcome::Done,
    };
    if kind != libc::S_IFREG {
        return Outcome::Done;
    }
    let mut read = |at: i64| {
        let op = Op::Read {
            slot,
            at,
            len: PART,
        };
        side.run(User::Root, &op)
    };
    let first = read(0);
    let rest = size.saturating_sub(PART as u64);
    if rest == 0 {
        return first;
    }
    match (first, read((size - rest.min(PART as u64)) as i64)) {
        (Outcome::Data(Bytes(first)), Outcome::Data(Bytes(last))) => {
            Outcome::Data(Bytes([first, last].concat()))
        }
        (_, refused) => refused,
    }
}

fn xattrs(side: &mut impl Side, place: &At) -> Vec<(String, Outcome)> {
    let names = match side.run(User::Root, &Op::ListXattr { at: place.clone() }) {
        Outcome::Names(names) => names,
        refused => return vec![("(list)".into(), refused)],
    };
    let value = |name: String| {
        let op = Op::GetXattr {
            at: place.clone(),
            name: name.clone(),
        };
        (name, side.run(User::Root, &op))
    };
    names.into_iter().map(value).collect()
}
