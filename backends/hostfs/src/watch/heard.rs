//! Collects reports, and finds new names that were gone before they were looked up.
//!
//! Where reports name no files, a second name of a cached file is known by its report alone:
//! "something was made there". The name itself tells which file it is, as soon as it is looked
//! up. That is too late if a process has removed the name by then: the file may be cached under
//! its first name, and its attributes have changed, at least its ctime. So every new name is
//! followed from its report ([`Fresh`]):
//!
//! ```text
//!   made --> looked at --> all reports queued by then are read, none about it. Known.
//!    |           |
//!    |           +--> moved: to where it is made a second time
//!    +-----------+--> removed, replaced, moved to an unwatched place: missed
//! ```
//!
//! The file of a missed name is unknown. Then it may be any file ([`Heard::missed`]).

use std::collections::{HashMap, HashSet};

use rcuwalk::InodeKey;

use super::Id;

/// A reported event.
pub(super) enum Report<'a> {
    /// A name in this directory changed, or its file did.
    In {
        dir: &'a [u8],
        name: &'a [u8],
        change: Change,
        name_is: NameIs,
        /// The file, where the report says which.
        file: Option<&'a [u8]>,
        by: By,
    },
    /// This directory's own attributes changed.
    Itself { dir: &'a [u8], by: By },
    /// This file's attributes changed, by no name.
    File { handle: &'a [u8], by: By },
    /// There will be no more reports of this directory: it is gone.
    Ended { dir: &'a [u8] },
    /// An unknown event.
    Lost,
}

/// The cached directories, by their names in reports.
#[derive(Default)]
pub(super) struct Dirs {
    /// Several where a mount shows one again.
    keys: HashMap<Id, Vec<InodeKey>>,
    /// The number of those with several.
    shown_again: usize,
}

impl Dirs {
    pub(super) fn add(&mut self, id: Id, key: InodeKey) {
        let keys = self.keys.entry(id).or_default();
        keys.push(key);
        self.shown_again += usize::from(keys.len() == 2);
    }

    /// True if that was the last of `id`.
    pub(super) fn remove(&mut self, id: &[u8], key: InodeKey) -> bool {
        let Some(keys) = self.keys.get_mut(id) else {
            return false;
        };
        if let Some(mine) = keys.iter().position(|other| *other == key) {
            keys.swap_remove(mine);
            self.shown_again -= usize::from(keys.len() == 1);
        }
        let is_last = keys.is_empty();
        if is_last {
            self.keys.remove(id);
        }
        is_last
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The name in reports of the directory with this inode number.
    #[cfg(test)]
    pub(super) fn id_of(&self, ino: u64) -> Option<&Id> {
        let mut all = self.keys.iter();
        let is_it = |keys: &Vec<InodeKey>| keys.iter().any(|key| key.ino == ino);
        all.find_map(|(id, keys)| is_it(keys).then_some(id))
    }

    fn keys(&self, id: &[u8]) -> &[InodeKey] {
        self.keys.get(id).map_or(&[][..], Vec::as_slice)
    }

    /// The threads that changed a file, where the report does not say in which directory.
    fn anywhere(&self, by: By) -> By {
        if self.shown_again > 0 { By::Others } else { by }
    }
}

/// The threads that made a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    One(u32),
    /// Several, or one that the host does not name.
    Others,
}

impl By {
    /// Who changed the directory that is found at `keys`. Found in several mounts, it was changed
    /// in one of them, and for the others the change is another's, whoever made it.
    fn at(self, keys: &[InodeKey]) -> By {
        if keys.len() > 1 { By::Others } else { self }
    }

    pub(super) fn one(self) -> Option<u32> {
        match self {
            By::One(thread) => Some(thread),
            By::Others => None,
        }
    }
}

/// Adds a change by `by`.
fn note_by(known: &mut Option<By>, by: By) {
    *known = match known {
        None => Some(by),
        Some(known) if *known == by => Some(by),
        Some(_) => Some(By::Others),
    };
}

/// What became of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NameIs {
    /// Its file has changed.
    Same,
    /// It was made; nothing had it before.
    New,
    /// It was moved or removed, or has replaced another one.
    Another,
}

/// An event of a name that is not a directory's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is new, for a file that may have another.
    Made,
    /// It has been given away, to the name that is reported as [`Arrived`](Change::Arrived)
    /// with the same number.
    Left(u32),
    /// The new name has replaced another file.
    Arrived(u32),
    Gone,
    /// Anything else, and whatever happens to a directory's name.
    Other,
}

/// All reports, each once.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) dirs: HashMap<InodeKey, Names>,
    /// By handle.
    pub(super) files: HashMap<Box<[u8]>, Option<By>>,
    /// Directories with no more reports to come.
    pub(super) ended: HashSet<InodeKey>,
    /// Anything may have happened.
    pub(super) lost: bool,
    /// A report was not ignored.
    pub(super) any: bool,
    /// Attributes of any file may have changed that has one name now, or is cached with
    /// one.
    pub(super) missed: bool,
}

#[derive(Default)]
pub(super) struct Names {
    pub(super) changed: bool,
    /// Names to look up.
    pub(super) made: HashSet<Box<[u8]>>,
    /// Names that were made, moved or removed.
    pub(super) names: HashMap<Box<[u8]>, (NameIs, Option<By>)>,
    /// The threads that changed the directory's attributes.
    pub(super) by: Option<By>,
    /// The directory's name in reports.
    pub(super) id: Id,
}

impl Heard {
    /// Takes note of a report, unless it is about a change that one of our own threads has made
    /// through the VFS. `follows` says in which directories new names are looked up.
    pub(super) fn note(
        &mut self,
        report: &Report<'_>,
        known: &Dirs,
        fresh: &mut Fresh,
        is_own: impl Fn(u32) -> bool,
        follows: impl Fn(InodeKey) -> bool,
    ) {
        let is_own = |by: By| by.one().is_some_and(&is_own);
        match *report {
            Report::In {
                dir,
                name,
                change,
                name_is,
                file,
                by,
            } => {
                let keys = known.keys(dir);
                let by = by.at(keys);
                if is_own(by) && !keys.iter().any(|key| follows(*key)) {
                    return;
                }
                self.any = true;
                self.note_file(file, by);
                let is_new = matches!(change, Change::Made | Change::Arrived(_));
                let mut followed = false;
                for key in keys {
                    let names = self.dir(*key, dir);
                    names.changed = true;
                    if name_is != NameIs::Same {
                        names.note_name(name, name_is, by);
                    }
                    if follows(*key) {
                        followed = true;
                        if is_new && !names.made.contains(name) {
                            names.made.insert(Box::from(name));
                        }
                    }
                }
                if followed {
                    self.missed |= fresh.note(dir, name, change);
                }
            }
            Report::Itself { dir, by } => {
                let keys = known.keys(dir);
                let by = by.at(keys);
                if is_own(by) {
                    return;
                }
                self.any = true;
                for key in keys {
                    note_by(&mut self.dir(*key, dir).by, by);
                }
            }
            Report::File { handle, by } => {
                let by = known.anywhere(by);
                if !is_own(by) {
                    self.any = true;
                    self.note_file(Some(handle), by);
                }
            }
            Report::Ended { dir } => self.ended.extend(known.keys(dir)),
            Report::Lost => self.lost = true,
        }
    }

    fn dir(&mut self, key: InodeKey, id: &[u8]) -> &mut Names {
        let names = self.dirs.entry(key).or_default();
        if names.id.is_empty() {
            names.id = Box::from(id);
        }
        names
    }

    fn note_file(&mut self, handle: Option<&[u8]>, by: By) {
        let Some(handle) = handle else { return };
        match self.files.get_mut(handle) {
            Some(known) => note_by(known, by),
            None => _ = self.files.insert(Box::from(handle), Some(by)),
        }
    }
}

impl Names {
    fn note_name(&mut self, name: &[u8], name_is: NameIs, by: By) {
        // The directory's times change with it.
        note_by(&mut self.by, by);
        match self.names.get_mut(name) {
            Some((known, known_by)) => {
                // A name that was made twice was removed in between.
                *known = NameIs::Another;
                note_by(known_by, by);
            }
            None => _ = self.names.insert(Box::from(name), (name_is, Some(by))),
        }
    }
}

/// New names that may be gone before they are looked up, or be another file's by then.
#[derive(Default)]
pub(super) struct Fresh {
    names: HashMap<Id, HashMap<Box<[u8]>, Turn>>,
    /// Given away, and not yet reported where they have gone.
    moving: HashSet<u32>,
    turn: Turn,
}

/// Counts the times that reports were read.
type Turn = u64;

impl Fresh {
    /// True if a new name is not to be seen any more.
    fn note(&mut self, dir: &[u8], name: &[u8], change: Change) -> bool {
        match change {
            Change::Other => false,
            Change::Gone => self.take(dir, name),
            Change::Left(number) => {
                if self.take(dir, name) {
                    self.moving.insert(number);
                }
                false
            }
            Change::Made | Change::Arrived(_) => {
                if let Change::Arrived(number) = change {
                    self.moving.remove(&number);
                }
                let in_dir = self.names.entry(Box::from(dir)).or_default();
                in_dir.insert(Box::from(name), self.turn).is_some()
            }
        }
    }

    fn take(&mut self, dir: &[u8], name: &[u8]) -> bool {
        let names = self.names.get_mut(dir);
        names.is_some_and(|names| names.remove(name).is_some())
    }

    /// Reports have been read, and the new names among them are looked up next. `all`: no more
    /// of them were queued. Then names looked up before are settled. True if a new name has
    /// gone to an unwatched directory.
    pub(super) fn end_turn(&mut self, all: bool) -> bool {
        let turn = self.turn;
        self.turn += 1;
        if all {
            self.names.retain(|_, names| {
                names.retain(|_, made| *made == turn);
                !names.is_empty()
            });
        }
        let gone = !self.moving.is_empty();
        self.moving.clear();
        gone
    }

    /// Returns whether to poll for reports even if none is queued.
    pub(super) fn is_waiting(&self) -> bool {
        !self.names.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRS: [&[u8]; 2] = [b"a", b"b"];

    /// Returns whether a name is missed, if these reports are read in these turns.
    fn missed(turns: &[&[(usize, &str, Change)]]) -> bool {
        let mut known = Dirs::default();
        for (dir, ino) in DIRS.iter().zip(1..) {
            known.add(Box::from(*dir), InodeKey::new(ino));
        }
        let mut fresh = Fresh::default();
        let mut missed = false;
        for turn in turns {
            let mut heard = Heard::default();
            for (dir, name, change) in *turn {
                let report = Report::In {
                    dir: DIRS.get(*dir).unwrap_or(&&b"elsewhere"[..]),
                    name: name.as_bytes(),
                    change: *change,
                    name_is: NameIs::Another,
                    file: None,
                    by: By::Others,
                };
                heard.note(&report, &known, &mut fresh, |_| false, |_| true);
            }
            missed |= heard.missed | fresh.end_turn(true);
        }
        while fresh.is_waiting() {
            missed |= fresh.end_turn(true);
        }
        missed
    }

    /// FRESH-1: a new name is looked up, or it is known that it was not.
    #[test]
    fn a_new_name_is_followed_until_it_is_looked_at() {
        use Change::*;
        assert!(!missed(&[&[(0, "x", Made)]]));
        assert!(!missed(&[&[(0, "x", Made), (0, "x", Other)]]));
        assert!(!missed(&[&[(0, "x", Made)], &[], &[(0, "x", Gone)]]));
        assert!(!missed(&[&[(0, "x", Gone), (0, "x", Made)]]));
        assert!(missed(&[&[(0, "x", Made), (0, "x", Gone)]]), "removed");
        assert!(missed(&[&[(0, "x", Made)], &[(0, "x", Gone)]]), "just then");
        assert!(missed(&[&[(0, "x", Made), (0, "x", Made)]]), "made twice");
        assert!(!missed(&[&[(0, "x", Made), (0, "y", Gone)]]));
        assert!(!missed(&[&[(0, "x", Made), (1, "x", Gone)]]));
        assert!(!missed(&[&[(2, "x", Made), (2, "x", Gone)]]), "not watched");
    }

    /// FRESH-1: a change of a file at one place is another's for its other place.
    #[test]
    fn a_change_of_a_file_that_is_shown_again_is_anothers() {
        let mut known = Dirs::default();
        let by = |known: &Dirs| {
            let mut heard = Heard::default();
            let report = Report::File {
                handle: b"file",
                by: By::One(7),
            };
            let is_own = |thread| thread == 8;
            heard.note(&report, known, &mut Fresh::default(), is_own, |_| false);
            heard.files[&b"file"[..]]
        };
        known.add(Box::from(DIRS[0]), InodeKey::new(1));
        known.add(Box::from(DIRS[1]), InodeKey::new(2));
        assert_eq!(by(&known), Some(By::One(7)));
        known.add(Box::from(DIRS[0]), InodeKey::new(3));
        assert_eq!(by(&known), Some(By::Others), "FRESH-1");
        assert!(!known.remove(DIRS[0], InodeKey::new(1)));
        assert_eq!(by(&known), Some(By::One(7)));
        assert!(known.remove(DIRS[0], InodeKey::new(3)));
        assert!(!known.remove(DIRS[0], InodeKey::new(3)));
        assert_eq!(known.len(), 1);
    }

    /// A change through the VFS is known; but not at another place of its directory.
    #[test]
    fn own_changes_are_ignored_unless_they_show_elsewhere() {
        let mut known = Dirs::default();
        known.add(Box::from(DIRS[0]), InodeKey::new(1));
        let noted = |known: &Dirs, by: u32, follows: bool| {
            let mut heard = Heard::default();
            let (dir, by) = (DIRS[0], By::One(by));
            let named = Report::In {
                dir,
                name: b"x",
                change: Change::Made,
                name_is: NameIs::New,
                file: Some(b"file"),
                by,
            };
            let handle = &b"file"[..];
            for report in [
                named,
                Report::Itself { dir, by },
                Report::File { handle, by },
            ] {
                let is_own = |thread| thread == 7;
                heard.note(&report, known, &mut Fresh::default(), is_own, |_| follows);
            }
            (heard.dirs.len(), heard.files.len())
        };
        assert_eq!(noted(&known, 7, false), (0, 0));
        assert_eq!(noted(&known, 8, false), (1, 1), "FRESH-1: another's");
        assert_eq!(
            noted(&known, 7, true),
            (1, 1),
            "FRESH-1: new names are followed"
        );
        known.add(Box::from(DIRS[0]), InodeKey::new(2));
        assert_eq!(noted(&known, 7, false), (2, 1), "FRESH-1: shown again");
    }

    /// FRESH-1: a name that is moved on is looked up at its last path.
    #[test]
    fn a_new_name_is_followed_to_another_place() {
        use Change::*;
        let moved = [(0, "x", Made), (0, "x", Left(7)), (1, "y", Arrived(7))];
        assert!(!missed(&[&moved]));
        assert!(!missed(&[&moved[..1], &moved[1..]]));
        assert!(missed(&[&moved[..2]]), "to where nobody watches");
        assert!(missed(&[&moved, &[(1, "y", Gone)]]), "removed there");
        assert!(missed(&[&moved, &[(1, "y", Arrived(8))]]), "replaced there");
        assert!(!missed(&[&moved[1..]]), "it was not new");
        assert!(!missed(&[&[(0, "x", Left(7))]]), "it was not new");
    }

    /// FRESH-1: as long as more reports are queued, a name that has been looked up may yet turn
    /// out to have been another's.
    #[test]
    fn what_is_queued_may_still_take_a_new_name_away() {
        let mut fresh = Fresh::default();
        assert!(!fresh.note(b"a", b"x", Change::Made));
        fresh.end_turn(false);
        fresh.end_turn(false);
        assert!(fresh.note(b"a", b"x", Change::Gone));
        fresh.note(b"a", b"x", Change::Made);
        fresh.end_turn(false);
        fresh.end_turn(true);
        assert!(!fresh.is_waiting());
        assert!(!fresh.note(b"a", b"x", Change::Gone));
    }
}
