//! What changed since an earlier scan.
//!
//! ```text
//!   path was there?  same object?            told
//!   yes              yes, nothing differs    -
//!   yes              yes                     changed: in which respects
//!   yes              no                      new, "replaced"     } unless the object had
//!   no               -                       new                 } another path: see below
//! ```
//!
//! An object that had another path is reported at the end of the scan: only then is it known
//! whether the old path is gone (renamed) or still the object's (a new hard link). Old paths
//! that are left then were removed.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use crate::error::Result;
use crate::previous::{Entry, Fate, Previous};
use crate::problems::Problems;
use crate::record::{Change, Kind, Record};

/// The comparison of a scan with an earlier one.
pub(crate) struct Comparison {
    previous: Previous,
    /// Entries whose object had another path.
    moved: Mutex<Vec<Moved>>,
}

struct Moved {
    record: Record,
    entry: Entry,
    /// Its path was another object's.
    replaced: bool,
}

/// The result of comparing one entry with the earlier scan.
pub(crate) enum Compared {
    Unchanged,
    Changed(Change),
    /// Known when the scan is complete.
    Undecided,
}

impl Comparison {
    pub(crate) fn with(previous: Previous) -> Comparison {
        Comparison {
            previous,
            moved: Mutex::default(),
        }
    }

    /// Compares an entry of today.
    pub(crate) fn compare(&self, record: &Record) -> Compared {
        let entry = self.previous.entry(record);
        let number = self.previous.at_path(&entry);
        let old = number.and_then(|number| Some((number, self.previous.get(number)?)));
        let replaced = match old {
            Some((number, old)) if old.may_be(&entry) => {
                self.previous.set_fate(number, Fate::Same);
                let what = old.differences(&entry);
                return if what.is_empty() {
                    Compared::Unchanged
                } else {
                    Compared::Changed(Change {
                        kind: Kind::Changed,
                        what,
                        from: None,
                    })
                };
            }
            Some((number, _)) => {
                self.previous.set_fate(number, Fate::Replaced);
                true
            }
            None => false,
        };
        if self.previous.of_object(&entry).next().is_none() {
            return Compared::Changed(new(replaced, None));
        }
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        moved.push(Moved {
            record: record.clone(),
            entry,
            replaced,
        });
        Compared::Undecided
    }

    /// Hands on what could not be told before: renamed, linked, removed. Returns how
    /// many old entries were neither seen nor are known to be gone, because of `problems`.
    pub(crate) fn finish(
        &self,
        problems: &Problems,
        stop: &AtomicBool,
        mut each: impl FnMut(Record),
    ) -> Result<u64> {
        let mut moved = {
            let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *moved)
        };
        // Which name of several is the renamed one should not depend on threads.
        moved.sort_unstable_by(|a, b| a.record.path.cmp(&b.record.path));
        let previous = &self.previous;
        let mut renamed = HashMap::new();
        for Moved {
            mut record,
            entry,
            replaced,
        } in moved
        {
            let free =
                |number: &usize| matches!(previous.fate(*number), Fate::Unseen | Fate::Replaced);
            match previous.of_object(&entry).find(free) {
                Some(number) => {
                    previous.set_fate(number, Fate::Renamed);
                    let old = previous.get(number);
                    let mut what = old.map_or(Vec::new(), |old| old.differences_but_ctime(&entry));
                    if replaced {
                        what.push("replaced");
                    }
                    record.change = Some(Change {
                        kind: Kind::Renamed,
                        what,
                        from: None,
                    });
                    renamed.insert(number, record);
                }
                None => {
                    record.change = Some(new(replaced, Some("link")));
                    each(record);
                }
            }
        }
        let mut unknown = 0;
        if previous.has_gone() {
            previous.read_again(stop, &mut |number, mut old| match previous.fate(number) {
                Fate::Renamed => {
                    if let Some(mut record) = renamed.remove(&number) {
                        if let Some(change) = &mut record.change {
                            change.from = Some(old.path);
                        }
                        each(record);
                    }
                }
                Fate::Unseen if problems.cover(&old.path) => unknown += 1,
                Fate::Unseen => {
                    old.change = Some(Change {
                        kind: Kind::Removed,
                        what: Vec::new(),
                        from: None,
                    });
                    each(old);
                }
                Fate::Same | Fate::Replaced => {}
            })?;
        }
        Ok(unknown)
    }
}

fn new(replaced: bool, how: Option<&'static str>) -> Change {
    Change {
        kind: Kind::New,
        what: replaced
            .then_some("replaced")
            .into_iter()
            .chain(how)
            .collect(),
        from: None,
    }
}
