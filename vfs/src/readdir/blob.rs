//! The entries of a directory as one thing: records in chunks, and an index of the names.
//!
//! ```text
//!   chunks:  | "a" | "b" | (gone) | … |   | "k" | … |       records as `fill` writes them,
//!                    ^                      ^               in the back end's order
//!   index:   hash -> chunk, offset ---------+
//! ```
//!
//! A listing is a copy of whole runs of records. An entry takes its record (20 bytes and the name,
//! rounded up to 8) and, once a name has been asked for, five to ten bytes of the index: 40 bytes
//! beside the name at most. An entry that goes leaves its record, so that a listing can go on
//! from its position (DIR-1).

use std::hash::BuildHasher;

use hashbrown::hash_table::HashTable;

use super::chunk::Chunk;
use super::records::{self, GONE, Room, Writer};
use crate::filesystem::RawEntry;

/// An index has 16 bits for the chunk.
const CHUNKS: usize = 1 << 16;

/// Below this many bytes of removed entries, they are left alone.
const FEW: usize = 4096;

#[derive(Default)]
pub(super) struct Blob {
    chunks: Vec<Chunk>,
    /// Bytes that the chunks have allocated.
    bytes: usize,
    /// Bytes of removed entries.
    gone: usize,
    used: usize,
    /// The position of the last record.
    last: u64,
    order: Order,
    /// The last record is out of order: tmpfs counts down, and ends with the greatest position.
    last_is_out: bool,
    index: Option<Index>,
}

/// The order of the positions, which the search for one relies on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    /// At most one position so far.
    #[default]
    Open,
    Up,
    Down,
    None,
}

struct Index {
    table: HashTable<u32>,
    /// Seeded, and another one in each directory: a client that chooses names cannot choose
    /// chains.
    hasher: hashbrown::DefaultHashBuilder,
}

/// The blob is full, or more trouble than it is worth.
#[derive(Debug)]
pub(super) struct Full;

impl Blob {
    /// Adds records to the end.
    pub(super) fn append(&mut self, mut added: &[u8]) -> Result<(), Full> {
        loop {
            added = &added[self.append_run(added)..];
            let Some((entry, length)) = records::first(added) else {
                return Ok(());
            };
            let next = entry.next;
            match (self.order, self.used, next > self.last) {
                (Order::Open, 0, _) => {}
                _ if self.last_is_out || next == self.last => self.order = Order::None,
                (Order::Open | Order::Up, _, true) => self.order = Order::Up,
                (Order::Open | Order::Down, _, false) => self.order = Order::Down,
                _ => self.last_is_out = true,
            }
            self.last = next;
            let at = self.push(&added[..length])?;
            if let Some(index) = &mut self.index {
                index.insert(&self.chunks, at);
            }
            added = &added[length..];
        }
    }

    /// Adds the records that go on in order and fit in the last chunk, all at once. Returns
    /// their bytes.
    fn append_run(&mut self, added: &[u8]) -> usize {
        let is_up = self.order == Order::Up;
        let is_ordered = is_up || self.order == Order::Down;
        let Some(chunk) = self.chunks.last_mut() else {
            return 0;
        };
        if !is_ordered || self.last_is_out || self.index.is_some() {
            return 0;
        }
        let mut last = self.last;
        let before = chunk.bytes();
        let run = records::run(added, chunk.room(), |next| {
            let goes_on = if is_up { next > last } else { next < last };
            if goes_on {
                last = next;
            }
            goes_on
        });
        if !chunk.push(&added[..run]) {
            return 0;
        }
        self.bytes += chunk.bytes() - before;
        self.last = last;
        self.used += run;
        run
    }

    /// Adds an entry whose position is not known. The blob cannot be listed from then on.
    pub(super) fn add(&mut self, name: &[u8], ino: u64) -> Result<(), Full> {
        let mut record = Vec::new();
        let mut writer = Writer::new(records::Growing::new(&mut record, usize::MAX));
        let entry = RawEntry {
            name,
            ino,
            kind: None,
            next: self.last,
        };
        let _ = crate::filesystem::Emit::entry(&mut writer, entry);
        self.append(&record)
    }

    fn push(&mut self, record: &[u8]) -> Result<u32, Full> {
        let fits = |chunk: &Chunk| chunk.room() >= record.len();
        if !self.chunks.last().is_some_and(fits) {
            if self.chunks.len() == CHUNKS {
                return Err(Full);
            }
            let is_first = self.chunks.is_empty();
            let chunk = Chunk::new(is_first);
            self.bytes += chunk.bytes();
            self.chunks.push(chunk);
        }
        let number = self.chunks.len() - 1;
        let chunk = &mut self.chunks[number];
        let (at, before) = (chunk.len(), chunk.bytes());
        if !chunk.push(record) {
            return Err(Full);
        }
        self.bytes += chunk.bytes() - before;
        self.used += record.len();
        Ok((number << 16 | at) as u32)
    }

    /// True if the name is there. Makes the index.
    pub(super) fn has(&mut self, name: &[u8]) -> bool {
        self.make_index();
        self.has_indexed(name) == Some(true)
    }

    /// True if the name is there; `None` without an index.
    pub(super) fn has_indexed(&self, name: &[u8]) -> Option<bool> {
        let index = self.index.as_ref()?;
        let found = index.table.find(index.hash(name), |&at| {
            name_at(&self.chunks, at).is_some_and(|found| found == name)
        });
        Some(found.is_some())
    }

    /// Removes a name. False if it is not there.
    pub(super) fn remove(&mut self, name: &[u8]) -> Result<bool, Full> {
        self.make_index();
        let Some(index) = &mut self.index else {
            return Ok(false);
        };
        let chunks = &self.chunks;
        let is = |at: &u32| name_at(chunks, *at).is_some_and(|found| found == name);
        let Ok(found) = index.table.find_entry(index.hasher.hash_one(name), is) else {
            return Ok(false);
        };
        let (at, _) = found.remove();
        let record = &mut self.chunks[at as usize >> 16][at as usize & 0xFFFF..];
        self.gone += records::mark_gone(record);
        match self.gone > FEW && self.gone > self.used / 2 {
            true => Err(Full),
            false => Ok(true),
        }
    }

    fn make_index(&mut self) {
        if self.index.is_some() {
            return;
        }
        let mut index = Index {
            table: HashTable::new(),
            hasher: Default::default(),
        };
        let mut count = 0;
        for chunk in &self.chunks {
            count += records::Entries::new(chunk).count();
        }
        let hasher = index.hasher.clone();
        index.table.reserve(count, |&at| {
            hasher.hash_one(name_at(&self.chunks, at).unwrap_or_default())
        });
        for (number, chunk) in self.chunks.iter().enumerate() {
            let mut at = 0;
            while let Some((entry, length)) = records::first(&chunk[at..]) {
                if chunk[at + records::TYPE] != GONE {
                    let hash = index.hash(entry.name);
                    let chunks = &self.chunks;
                    let hasher = &index.hasher;
                    index
                        .table
                        .insert_unique(hash, (number << 16 | at) as u32, |&at| {
                            hasher.hash_one(name_at(chunks, at).unwrap_or_default())
                        });
                }
                at += length;
            }
        }
        self.index = Some(index);
    }

    /// Copies the records after `from` to `writer`, as many as fit. False if the position is not
    /// known here.
    pub(super) fn copy<R: Room>(&self, from: u64, writer: &mut Writer<R>) -> bool {
        let Some((mut chunk, mut at)) = self.after(from) else {
            return false;
        };
        while let Some(records) = self.chunks.get(chunk) {
            if !writer.copy(&records[at..]) {
                return true;
            }
            (chunk, at) = (chunk + 1, 0);
        }
        true
    }

    /// Where the record after that position begins.
    fn after(&self, from: u64) -> Option<(usize, usize)> {
        if from == 0 {
            return Some((0, 0));
        }
        let first = |chunk: &Chunk| records::first(chunk).map_or(0, |(entry, _)| entry.next);
        let ordered = match (&self.chunks[..], self.last_is_out) {
            _ if self.order == Order::None => return None,
            (chunks, true) if from == self.last => return Some((chunks.len(), 0)),
            ([chunks @ .., last], true) if first(last) == self.last => chunks,
            (chunks, _) => chunks,
        };
        let behind = match self.order {
            Order::Down => ordered.partition_point(|chunk| first(chunk) >= from),
            _ => ordered.partition_point(|chunk| first(chunk) <= from),
        };
        let number = behind.checked_sub(1)?;
        let (chunk, mut at) = (&self.chunks[number], 0);
        while let Some((entry, length)) = records::first(&chunk[at..]) {
            at += length;
            if entry.next == from {
                return Some((number, at));
            }
        }
        None
    }

    /// Bytes that it has allocated.
    pub(super) fn bytes(&self) -> usize {
        let index = self
            .index
            .as_ref()
            .map_or(0, |index| index.table.allocation_size());
        self.bytes + index + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// No more records come from the back end.
    pub(super) fn complete(&mut self) {
        if let [.., last] = &mut self.chunks[..] {
            let before = last.bytes();
            last.shrink();
            self.bytes -= before - last.bytes();
        }
        self.chunks.shrink_to_fit();
    }
}

impl Index {
    fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    fn insert(&mut self, chunks: &[Chunk], at: u32) {
        let hash_of = |&at: &u32| {
            self.hasher
                .hash_one(name_at(chunks, at).unwrap_or_default())
        };
        self.table.insert_unique(hash_of(&at), at, hash_of);
    }
}

fn name_at(chunks: &[Chunk], at: u32) -> Option<&[u8]> {
    let records = chunks.get(at as usize >> 16)?.get(at as usize & 0xFFFF..)?;
    records::first(records).map(|(entry, _)| entry.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(positions: impl IntoIterator<Item = u64>) -> Blob {
        let mut blob = Blob::default();
        for position in positions {
            let mut record = Vec::new();
            let mut writer = Writer::new(records::Growing::new(&mut record, usize::MAX));
            let entry = RawEntry {
                name: b"name",
                ino: position,
                kind: None,
                next: position,
            };
            let _ = crate::filesystem::Emit::entry(&mut writer, entry);
            blob.append(&record).unwrap();
        }
        blob
    }

    /// The positions of the entries after `from`, or `None`.
    fn after(blob: &Blob, from: u64) -> Option<Vec<u64>> {
        let (chunk, at) = blob.after(from)?;
        let mut rest = Vec::new();
        for (number, records) in blob.chunks.iter().enumerate().skip(chunk) {
            let begin = if number == chunk { at } else { 0 };
            rest.extend(records::Entries::new(&records[begin..]).map(|entry| entry.next));
        }
        Some(rest)
    }

    /// DIR-1: a listing goes on from each position, in whichever order a back end counts; also
    /// where its last position is out of that order, alone in its chunk or not.
    #[test]
    fn a_listing_goes_on_from_each_position() {
        let most = Chunk::ROOM as u64 / 24;
        for count in [1, 2, 3, 10, most - 1, most, most + 1, 2 * most] {
            let down = || (1..=count).rev().map(|n| 2 * n);
            let up = || (1..=count).map(|n| 2 * n);
            let orders: [Vec<u64>; 4] = [
                up().collect(),
                down().collect(),
                down().chain([1 << 40]).collect(),
                up().chain([1]).collect(),
            ];
            for positions in orders {
                let blob = blob(positions.iter().copied());
                for (at, from) in positions
                    .iter()
                    .enumerate()
                    .step_by(1 + count as usize / 50)
                {
                    let rest = after(&blob, *from).expect("DIR-1: a known position");
                    assert_eq!(rest, positions[at + 1..], "DIR-1: {count}, after {from}");
                }
                let last = *positions.last().unwrap();
                assert_eq!(after(&blob, last), Some(Vec::new()), "DIR-1: {count}");
                assert_eq!(after(&blob, 3), None, "DIR-1: nobody's position");
            }
        }
        // Two that are out of order: the back end is asked.
        assert_eq!(after(&blob([9, 8, 20, 30]), 9), None);
        assert_eq!(after(&blob([9, 8, 20, 7]), 9), None);
    }
}
