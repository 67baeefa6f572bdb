//! An earlier scan in memory, small enough for tens of millions of entries.
//!
//! Each entry is 64 bytes, whatever its path: the path as a hash of 128 bits, the inode number,
//! and a hash of 32 bits for each attribute that is compared. Besides, 5 bytes for the order of
//! inode numbers and for its fate. The hashes are keyed anew in each run, so that the paths of
//! a malicious tree cannot collide. The old paths are read from the file a second time, and
//! only if an entry was removed or renamed.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use rcuwalk::FileType;

use crate::error::{Error, Result};
use crate::record::Record;
use crate::since;

/// The attributes that are compared, in the order of [`Entry::fields`].
const FIELDS: [&str; 7] = ["mode", "owner", "size", "mtime", "ctime", "links", "target"];

/// The last of them, of a device.
const RDEV: &str = "rdev";

/// Where `ctime` is among them.
const CTIME: usize = 4;

/// An entry of the earlier scan.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    path: u128,
    ino: u64,
    /// 0: not known.
    btime: u32,
    generation: u32,
    fields: [u32; FIELDS.len()],
    /// Its place in the list of devices, 0 for the root's.
    device: u16,
    kind: FileType,
    has_generation: bool,
}

const _: () = assert!(size_of::<Entry>() == 64, "as the documentation says");

/// What became of an entry of the earlier scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fate {
    /// Its path was not seen, so far.
    Unseen,
    /// It has its path still.
    Same,
    /// Its path is another object's.
    Replaced,
    /// It has another path.
    Renamed,
}

/// The earlier scan.
pub(crate) struct Previous {
    file: PathBuf,
    keys: Keys,
    /// By path.
    entries: Vec<Entry>,
    /// Numbers of entries, by inode number.
    by_ino: Vec<u32>,
    fates: Vec<AtomicU8>,
}

/// How records become entries.
struct Keys {
    paths: [RandomState; 2],
    values: RandomState,
    /// Device numbers and their short ones; the root's is 0 in both scans, because the
    /// host may number its devices differently after it was started again.
    devices: HashMap<u64, u16>,
}

impl Previous {
    /// Reads the earlier scan; `device` is the one of the root now.
    pub(crate) fn load(file: &Path, device: u64, stop: &AtomicBool) -> Result<Previous> {
        let mut keys = Keys {
            paths: [RandomState::new(), RandomState::new()],
            values: RandomState::new(),
            devices: HashMap::new(),
        };
        let mut entries = Vec::new();
        let mut root = None;
        since::read(file, &mut |record| {
            if record.is_root() {
                root = Some(record.attr.dev);
            }
            let short = keys.number_device(record.attr.dev);
            entries.push(keys.entry(&record, short));
            go_on(stop)
        })?;
        // The root came last, and only now is it known which device was its.
        let was_root = root.map_or(0, |root| keys.number_device(root));
        for entry in &mut entries {
            if entry.device == was_root {
                entry.device = 0;
            }
        }
        if let Some(root) = root {
            keys.devices.remove(&root);
        }
        keys.devices.insert(device, 0);
        entries.sort_unstable_by_key(|entry| entry.path);
        entries.dedup_by_key(|entry| entry.path);
        let count = u32::try_from(entries.len())
            .map_err(|_| Error::earlier(file, format_args!("more than {} entries", u32::MAX)))?;
        let mut by_ino: Vec<u32> = (0..count).collect();
        by_ino.sort_unstable_by_key(|i| entries.get(*i as usize).map(|entry| entry.ino));
        let fates = entries.iter().map(|_| AtomicU8::new(0)).collect();
        Ok(Previous {
            file: file.to_owned(),
            keys,
            entries,
            by_ino,
            fates,
        })
    }

    /// As above for an entry of today.
    pub(crate) fn entry(&self, record: &Record) -> Entry {
        // A device that was not there has none of the old entries.
        let device = self.keys.devices.get(&record.attr.dev);
        self.keys.entry(record, device.copied().unwrap_or(u16::MAX))
    }

    /// The number of the entry that had this path.
    pub(crate) fn at_path(&self, entry: &Entry) -> Option<usize> {
        let found = self.entries.binary_search_by_key(&entry.path, |e| e.path);
        found.ok()
    }

    /// The numbers of the entries that were this object, under whichever path.
    pub(crate) fn of_object<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = usize> + 'a {
        let ino = |i: &u32| self.entries.get(*i as usize).map_or(0, |entry| entry.ino);
        let start = self.by_ino.partition_point(|i| ino(i) < entry.ino);
        let same = self.by_ino.get(start..).unwrap_or_default().iter();
        same.take_while(move |i| ino(i) == entry.ino)
            .map(|i| *i as usize)
            .filter(|i| self.get(*i).is_some_and(|old| old.is_surely(entry)))
    }

    pub(crate) fn get(&self, number: usize) -> Option<&Entry> {
        self.entries.get(number)
    }

    pub(crate) fn fate(&self, number: usize) -> Fate {
        // Relaxed: each stored fate holds by itself, and they are all read after the threads
        // were joined.
        match self.fates.get(number).map_or(0, |fate| fate.load(Relaxed)) {
            1 => Fate::Same,
            2 => Fate::Replaced,
            3 => Fate::Renamed,
            _ => Fate::Unseen,
        }
    }

    pub(crate) fn set_fate(&self, number: usize, fate: Fate) {
        if let Some(place) = self.fates.get(number) {
            place.store(fate as u8, Relaxed);
        }
    }

    /// True if an old path is still to be told.
    pub(crate) fn has_gone(&self) -> bool {
        let mut fates = (0..self.entries.len()).map(|i| self.fate(i));
        fates.any(|fate| matches!(fate, Fate::Unseen | Fate::Renamed))
    }

    /// Reads the file again: each record with the number of its entry.
    pub(crate) fn read_again(
        &self,
        stop: &AtomicBool,
        each: &mut dyn FnMut(usize, Record),
    ) -> Result<()> {
        since::read(&self.file, &mut |record| {
            if let Some(number) = self.at_path(&self.entry(&record)) {
                each(number, record);
            }
            go_on(stop)
        })
    }
}

fn go_on(stop: &AtomicBool) -> Result<(), String> {
    if stop.load(Relaxed) {
        Err("interrupted".to_owned())
    } else {
        Ok(())
    }
}

impl Entry {
    /// True if nothing speaks against the two being one object, of one path.
    pub(crate) fn may_be(&self, other: &Entry) -> bool {
        let generations =
            !self.has_generation || !other.has_generation || self.generation == other.generation;
        let births = self.btime == 0 || other.btime == 0 || self.btime == other.btime;
        self.ino == other.ino && self.kind == other.kind && generations && births
    }

    /// True if they are one object, whatever the paths: an inode number alone does not
    /// say that, since numbers are used again.
    fn is_surely(&self, other: &Entry) -> bool {
        let generation = self.has_generation && other.has_generation;
        let birth = self.btime != 0 && other.btime != 0;
        self.may_be(other) && self.device == other.device && (generation || birth)
    }

    /// In which respects `now` is different.
    pub(crate) fn differences(&self, now: &Entry) -> Vec<&'static str> {
        let pairs = self.fields.iter().zip(&now.fields);
        let names = FIELDS.iter().zip(pairs);
        names
            .filter(|(_, (old, new))| old != new)
            .map(|(name, _)| match self.kind {
                FileType::BlockDevice | FileType::CharDevice if *name == "target" => RDEV,
                _ => name,
            })
            .collect()
    }

    /// As above for another path: a rename alone sets ctime on most file systems.
    pub(crate) fn differences_but_ctime(&self, now: &Entry) -> Vec<&'static str> {
        let mut differences = self.differences(now);
        differences.retain(|name| Some(name) != FIELDS.get(CTIME).as_ref().copied());
        differences
    }
}

impl Keys {
    fn number_device(&mut self, device: u64) -> u16 {
        // Beyond sixty thousand devices, those that follow count as one.
        let next = u16::try_from(self.devices.len() + 1).unwrap_or(u16::MAX - 1);
        let next = next.min(u16::MAX - 1);
        *self.devices.entry(device).or_insert(next)
    }

    fn entry(&self, record: &Record, device: u16) -> Entry {
        let attr = &record.attr;
        let [first, second] = &self.paths;
        let path = u128::from(first.hash_one(&record.path)) << 64
            | u128::from(second.hash_one(&record.path));
        Entry {
            path,
            ino: attr.ino,
            // Never 0, which is for unknown.
            btime: record.btime().map_or(0, |btime| self.short(btime).max(1)),
            generation: record.generation.unwrap_or(0),
            fields: [
                self.short(attr.mode),
                self.short((attr.uid, attr.gid)),
                self.short(attr.size),
                self.short(attr.mtime),
                self.short(attr.ctime),
                self.short(attr.nlink),
                self.short((&record.target, record.rdev())),
            ],
            device,
            kind: attr.kind,
            has_generation: record.generation.is_some(),
        }
    }

    /// A hash of 32 bits: one change in four thousand million is not seen by it, and
    /// then there is still ctime, which changes with each of the others.
    fn short(&self, value: impl Hash) -> u32 {
        (self.values.hash_one(value) >> 32) as u32
    }
}
