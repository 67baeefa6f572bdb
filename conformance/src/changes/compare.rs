//! When two answers are the same.
//!
//! Results, data and errnos are compared as they are; values that cannot be equal are compared
//! by their meaning:
//!
//! - **Inode numbers** through a bijection. File systems use them again: so from answer to
//!   answer it is one of numbers with their files' moments of birth, which no two files
//!   share. That those stay is compared by this as well. Listings tell numbers alone, and
//!   are compared within one tree.
//! - **Moments** by whether they have changed since both sides were last looked at, for
//!   which the kernel's clock is made to [`tick`](super::host::Clock::tick) with each
//!   operation. An explicit moment lies far from now and is compared exactly.
//! - **Sizes of directories** are the file system's own affair.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::changes::answer::{Answer, Entry, Found, Moment, Outcome, Stat};
use crate::changes::known;

/// A pair of numbers: the kernel's and rcuwalk's.
type Pair<T> = (T, T);

/// An inode number, and when it was given.
type Born = (u64, Option<Moment>);

/// The correspondence of two sides' numbers and moments, as known so far.
pub struct Comparer {
    files: Bijection<Born>,
    /// As last seen, by the kernel's file.
    moments: HashMap<Born, Pair<[Moment; 3]>>,
    pub(super) on_host: bool,
    /// When this began, in seconds.
    start: i64,
}

impl Comparer {
    /// For rcuwalk over hostfs, if it is `on_host`.
    pub fn new(on_host: bool) -> Comparer {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Comparer {
            files: Bijection::default(),
            moments: HashMap::new(),
            on_host,
            // The sequences have run already.
            start: now.map_or(0, |now| now.as_secs() as i64),
        }
    }

    /// Compares what both sides say to one step. `Err` says in words what differs.
    pub fn answers(&mut self, kernel: &Answer, ours: &Answer) -> Result<(), String> {
        self.outcomes(&kernel.outcome, &ours.outcome)?;
        for ((at, kernel), (_, ours)) in kernel.after.iter().zip(&ours.after) {
            self.outcomes(kernel, ours)
                .map_err(|what| format!("afterwards, at {at:?}: {what}"))?;
        }
        Ok(())
    }

    fn outcomes(&mut self, kernel: &Outcome, ours: &Outcome) -> Result<(), String> {
        match (kernel, ours) {
            (Outcome::Stat(kernel), Outcome::Stat(ours)) => {
                self.stats(kernel, ours)?;
                let born = |stat: &Stat| (stat.ino, stat.btime);
                self.files.bind((born(kernel), born(ours)))
            }
            (Outcome::Entries(kernel), Outcome::Entries(ours)) => entries(kernel, ours, |_| {}),
            (Outcome::Tree(kernel), Outcome::Tree(ours)) => self.trees(kernel, ours),
            (kernel, ours) if kernel == ours => Ok(()),
            (Outcome::Errno(_), _) | (_, Outcome::Errno(_)) => Err("another errno".into()),
            _ => Err("other data".into()),
        }
    }

    fn stats(&mut self, kernel: &Stat, ours: &Stat) -> Result<(), String> {
        let is_dir = kernel.kind() == libc::S_IFDIR;
        let differences = [
            ("mode", kernel.st_mode != ours.st_mode),
            ("nlink", kernel.nlink != ours.nlink),
            ("uid", kernel.uid != ours.uid),
            ("gid", kernel.gid != ours.gid),
            ("rdev", kernel.rdev != ours.rdev),
            ("size", !is_dir && kernel.size != ours.size),
            ("immutable flag", kernel.immutable != ours.immutable),
            ("append-only flag", kernel.append != ours.append),
            ("btime", kernel.btime.is_some() != ours.btime.is_some()),
        ];
        if let Some((what, _)) = differences.iter().find(|(_, differs)| *differs) {
            return Err((*what).into());
        }
        self.times(kernel, ours)
    }

    fn times(&mut self, kernel: &Stat, ours: &Stat) -> Result<(), String> {
        const NAMES: [&str; 3] = ["atime", "mtime", "ctime"];
        let now = (kernel.times, ours.times);
        let first = usize::from(!known::keeps_atime(kernel.kind(), self.on_host));
        for (name, pair) in NAMES.iter().zip(now.0.into_iter().zip(now.1)).skip(first) {
            if !(self.is_recent(pair.0) && self.is_recent(pair.1)) && pair.0 != pair.1 {
                return Err(format!("{name}: a moment that was set, and another"));
            }
        }
        let Some(before) = self.moments.insert((kernel.ino, kernel.btime), now) else {
            return Ok(());
        };
        for (index, name) in NAMES.iter().enumerate().skip(first) {
            let kernel = before.0[index] != now.0[index];
            let ours = before.1[index] != now.1[index];
            if kernel != ours {
                let has = |changed| if changed { "changed" } else { "kept" };
                return Err(format!(
                    "{name}: the kernel has {} it, rcuwalk has {} it",
                    has(kernel),
                    has(ours)
                ));
            }
        }
        Ok(())
    }

    /// True for what a clock has said while this ran. Explicit moments are years away.
    fn is_recent(&self, (sec, _): Moment) -> bool {
        (self.start - 7 * 24 * 3600..=self.start + 3600).contains(&sec)
    }

    fn trees(&mut self, kernel: &[Found], ours: &[Found]) -> Result<(), String> {
        let places = |found: &[Found]| -> Vec<String> {
            found
                .iter()
                .map(|found| format!("{:?}", found.place))
                .collect()
        };
        if places(kernel) != places(ours) {
            return Err("the names in the tree".into());
        }
        let mut strict: Bijection<u64> = Bijection::default();
        for (kernel, ours) in kernel.iter().zip(ours) {
            let at = |what: String| format!("in the tree, at {:?}: {what}", kernel.place);
            if let (Outcome::Stat(kernel), Outcome::Stat(ours)) = (&kernel.stat, &ours.stat) {
                strict.bind((kernel.ino, ours.ino)).map_err(at)?;
            }
            self.outcomes(&kernel.stat, &ours.stat).map_err(at)?;
            match (&kernel.inside, &ours.inside) {
                (Outcome::Entries(kernel), Outcome::Entries(ours)) => {
                    let mut bound = Ok(());
                    entries(kernel, ours, |pair| {
                        if bound.is_ok() {
                            bound = strict.bind(pair);
                        }
                    })
                    .and(bound)
                    .map_err(at)?;
                }
                (kernel, ours) => self
                    .outcomes(kernel, ours)
                    .map_err(|what| at(format!("inside: {what}")))?,
            }
            if kernel.xattrs != ours.xattrs {
                return Err(at("extended attributes".into()));
            }
        }
        Ok(())
    }
}

fn entries(
    kernel: &[Entry],
    ours: &[Entry],
    mut pair: impl FnMut(Pair<u64>),
) -> Result<(), String> {
    let same =
        |(kernel, ours): (&Entry, &Entry)| (&kernel.name, kernel.kind) == (&ours.name, ours.kind);
    if kernel.len() != ours.len() || !kernel.iter().zip(ours).all(same) {
        return Err("the entries".into());
    }
    for (kernel, ours) in kernel.iter().zip(ours) {
        pair((kernel.ino, ours.ino));
    }
    Ok(())
}

/// Which of our inode numbers stands for which of the kernel's.
#[derive(Default)]
struct Bijection<T> {
    ours: HashMap<T, T>,
    kernels: HashMap<T, T>,
}

impl<T: Copy + Debug + Eq + Hash> Bijection<T> {
    fn bind(&mut self, (kernel, ours): Pair<T>) -> Result<(), String> {
        let known = *self.ours.get(&kernel).unwrap_or(&ours);
        let back = *self.kernels.get(&ours).unwrap_or(&kernel);
        if (known, back) == (ours, kernel) {
            self.ours.insert(kernel, ours);
            self.kernels.insert(ours, kernel);
            Ok(())
        } else {
            Err(format!(
                "inode numbers: {kernel:?} is {ours:?}, but {kernel:?} was {known:?} and \
                 {ours:?} was {back:?}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(ino: u64, btime: Moment, ctime: Moment) -> Outcome {
        Outcome::Stat(Stat {
            ino,
            st_mode: libc::S_IFREG | 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            times: [(5, 0), (5, 0), ctime],
            btime: Some(btime),
            immutable: false,
            append: false,
        })
    }

    /// EDGE-1: a file that becomes another one, or younger, on one side alone is a difference.
    #[test]
    fn a_file_stays_itself_on_both_sides() {
        let (old, new) = ((5, 1), (5, 2));
        let mut comparer = Comparer::new(false);
        comparer.start = 5;
        let mut same = |kernel, ours| comparer.outcomes(&kernel, &ours).is_ok();
        assert!(same(stat(7, old, old), stat(17, old, old)));
        assert!(same(stat(7, old, new), stat(17, old, new)), "a change");
        assert!(!same(stat(7, old, new), stat(18, old, new)), "EDGE-1");
        assert!(!same(stat(7, old, new), stat(17, new, new)), "EDGE-1");
        assert!(!same(stat(8, old, new), stat(17, old, new)), "EDGE-1");
        assert!(same(stat(7, new, new), stat(17, new, new)), "used again");
    }
}
