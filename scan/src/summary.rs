//! The summary of a scan.
//!
//! Each thread has a [`Summary`]; in the end they become one. Only two things grow with
//! the tree: a number per directory, and the inode number of each file with several
//! names, whose bytes count once.

mod show;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use rcuwalk::scan::ScanEntry;
use rcuwalk::{FileType, Timestamp};

use crate::record::{Kind, Record, type_name};

pub use show::Report;

/// So many are in each list.
const TOP: usize = 10;

/// A directory's entries may come in parts, on several threads. A part of this size is a
/// candidate for the list, even if others look larger at the moment.
const LARGE: u64 = 512;

/// The state that the threads' summaries share.
pub(crate) struct Common {
    hasher: RandomState,
    /// Files with several names that were counted, in parts that are locked for
    /// themselves.
    counted: [Mutex<HashSet<(u64, u64)>>; 16],
}

impl Common {
    pub(crate) fn new() -> Common {
        Common {
            hasher: RandomState::new(),
            counted: Default::default(),
        }
    }

    /// True the first time.
    fn is_first_name(&self, device: u64, ino: u64) -> bool {
        let place = usize::try_from(ino % self.counted.len() as u64).unwrap_or(0);
        let Some(counted) = self.counted.get(place) else {
            return true;
        };
        let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.insert((device, ino))
    }
}

/// The summary of one thread, or of all of them.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) entries: u64,
    /// By the name of the type.
    pub(crate) types: BTreeMap<&'static str, u64>,
    /// By the name of the kind.
    pub(crate) changes: BTreeMap<&'static str, u64>,
    pub(crate) apparent: u64,
    pub(crate) allocated: u64,
    oldest: Option<(Timestamp, Vec<u8>)>,
    newest: Option<(Timestamp, Vec<u8>)>,
    files: Top,
    /// Of the directories that are not in `large`.
    directories: Top,
    /// Those that were found to be large, in the order of that.
    large: Vec<(u64, Vec<u8>, (u64, u64))>,
    /// Direct entries of each directory, by the hash of its path.
    sizes: HashMap<u64, u64>,
    /// The directory that entries came from last, and how many in a row.
    run: (Vec<u8>, u64),
}

/// The largest ones by number: the number, the path, and what tells two of them apart.
#[derive(Debug, Default)]
struct Top {
    items: Vec<(u64, Vec<u8>, (u64, u64))>,
}

impl Top {
    fn offer(&mut self, size: u64, path: &[u8], id: (u64, u64), most: usize) {
        if self.items.len() >= most && self.items.last().is_some_and(|(least, ..)| size <= *least) {
            return;
        }
        self.items.push((size, path.to_vec(), id));
        self.tidy(most);
    }

    /// Largest first, each once.
    fn tidy(&mut self, most: usize) {
        self.items
            .sort_unstable_by(|a, b| (Reverse(a.0), &a.1).cmp(&(Reverse(b.0), &b.1)));
        let mut seen = HashSet::new();
        self.items.retain(|(.., id)| seen.insert(*id));
        self.items.truncate(most);
    }
}

impl Summary {
    /// Counts an entry. `path` is the whole of it.
    pub(crate) fn add(&mut self, entry: &ScanEntry<'_>, path: &[u8], common: &Common) {
        if !entry.name.is_empty() {
            self.count_in(entry.dir, common);
        }
        let attr = entry.attr;
        self.entries += 1;
        *self.types.entry(type_name(attr.kind)).or_insert(0) += 1;
        let id = (attr.dev, attr.ino);
        let several = attr.nlink > 1 && attr.kind != FileType::Directory;
        if !several || common.is_first_name(attr.dev, attr.ino) {
            self.apparent = self.apparent.saturating_add(attr.size);
            self.allocated = self
                .allocated
                .saturating_add(attr.blocks.saturating_mul(512));
        }
        if attr.kind == FileType::Regular {
            self.files.offer(attr.size, path, id, TOP);
        }
        let moment = attr.mtime;
        if self
            .oldest
            .as_ref()
            .is_none_or(|(oldest, _)| moment < *oldest)
        {
            self.oldest = Some((moment, path.to_vec()));
        }
        if self
            .newest
            .as_ref()
            .is_none_or(|(newest, _)| moment > *newest)
        {
            self.newest = Some((moment, path.to_vec()));
        }
    }

    /// Counts a change.
    pub(crate) fn add_change(&mut self, kind: Kind, record: &Record) {
        *self.changes.entry(kind.name()).or_insert(0) += 1;
        if matches!(kind, Kind::New | Kind::Changed) && record.attr.kind == FileType::Regular {
            self.apparent = self.apparent.saturating_add(record.attr.size);
        }
    }

    /// Only looks at the directory's path when it is another one.
    fn count_in(&mut self, dir: &[u8], common: &Common) {
        if self.run.1 > 0 && self.run.0 == dir {
            self.run.1 += 1;
            return;
        }
        self.end_run(common);
        self.run.0.clear();
        self.run.0.extend_from_slice(dir);
        self.run.1 = 1;
    }

    fn end_run(&mut self, common: &Common) {
        let (dir, count) = std::mem::take(&mut self.run);
        if count == 0 {
            return;
        }
        let hash = common.hasher.hash_one(&dir);
        let size = self.sizes.entry(hash).or_insert(0);
        *size += count;
        if *size < LARGE {
            self.directories.offer(*size, &dir, (hash, 0), TOP);
        } else if *size - count < LARGE {
            self.large.push((*size, dir.clone(), (hash, 0)));
        }
        self.run = (dir, 0);
    }

    /// Adds another thread's summary.
    pub(crate) fn merge(&mut self, mut other: Summary, common: &Common) {
        other.end_run(common);
        self.entries += other.entries;
        for (name, count) in other.types {
            *self.types.entry(name).or_insert(0) += count;
        }
        for (name, count) in other.changes {
            *self.changes.entry(name).or_insert(0) += count;
        }
        self.apparent = self.apparent.saturating_add(other.apparent);
        self.allocated = self.allocated.saturating_add(other.allocated);
        // By path where the moments are equal, so that it does not depend on threads.
        self.oldest = [self.oldest.take(), other.oldest]
            .into_iter()
            .flatten()
            .min();
        let newest = [self.newest.take(), other.newest].into_iter().flatten();
        self.newest = newest.min_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        self.files.items.append(&mut other.files.items);
        self.files.tidy(TOP);
        for (hash, count) in other.sizes {
            *self.sizes.entry(hash).or_insert(0) += count;
        }
        self.directories.items.append(&mut other.directories.items);
        self.large.append(&mut other.large);
    }

    /// Ranks the directories. Called when all threads are merged.
    pub(crate) fn settle(&mut self) {
        self.directories.items.append(&mut self.large);
        for (size, _, (hash, _)) in &mut self.directories.items {
            *size = self.sizes.get(hash).copied().unwrap_or(*size);
        }
        self.directories.tidy(TOP);
    }

    /// The largest directories by direct entries.
    fn largest_directories(&self) -> Vec<(u64, Vec<u8>)> {
        let items = self.directories.items.iter();
        items.map(|(size, path, _)| (*size, path.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcuwalk::Attr;

    fn add(summary: &mut Summary, dir: &str, attr: &Attr, common: &Common) {
        let entry = ScanEntry {
            dir: dir.as_bytes(),
            name: b"x",
            attr,
            generation: None,
            target: None,
            handle: None,
        };
        summary.add(&entry, format!("{dir}/x").as_bytes(), common);
    }

    #[test]
    fn a_directory_in_parts_counts_as_one() {
        let common = Common::new();
        let file = Attr::new(1, FileType::Regular, 0);
        let mut whole = Summary::default();
        let mut part = Summary::default();
        for i in 0..2000 {
            add(
                &mut whole,
                if i % 700 == 3 { "small" } else { "large" },
                &file,
                &common,
            );
            add(&mut part, "large", &file, &common);
        }
        for i in 0..40 {
            add(&mut part, &format!("d{i}"), &file, &common);
            add(&mut part, &format!("d{i}"), &file, &common);
        }
        let mut all = Summary::default();
        all.merge(whole, &common);
        all.merge(part, &common);
        all.settle();
        let largest = all.largest_directories();
        assert_eq!(largest[0], (3997, b"large".to_vec()));
        assert_eq!(largest[1], (3, b"small".to_vec()));
        assert_eq!(largest.len(), TOP);
    }

    #[test]
    fn bytes_of_a_file_with_two_names_count_once() {
        let common = Common::new();
        let linked = Attr::new(5, FileType::Regular, 0)
            .nlink(2)
            .size(100)
            .blocks(8);
        let mut summary = Summary::default();
        add(&mut summary, "a", &linked, &common);
        add(&mut summary, "b", &linked, &common);
        assert_eq!(
            (summary.entries, summary.apparent, summary.allocated),
            (2, 100, 4096)
        );
        assert_eq!(summary.files.items.len(), 1);
    }
}
