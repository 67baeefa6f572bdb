//! Parts that a peer knows by number, in objects of their own (NODE-4).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use crate::common::Random;
use rcuwalk::inode::{KnownEntry, KnownPart, KnownTable, NodeId, Stale, SweepCursor};
use rcuwalk_sync::rcu;

/// Counts the parts of a test.
#[derive(Default)]
struct Notes {
    made: AtomicU64,
    forgotten: AtomicU64,
}

struct Part {
    number: u64,
    /// How often it was told that it is forgotten.
    told: AtomicU64,
    notes: Arc<Notes>,
}

impl Part {
    fn new(number: u64, notes: &Arc<Notes>) -> Part {
        notes.made.fetch_add(1, SeqCst);
        Part {
            number,
            told: AtomicU64::new(0),
            notes: notes.clone(),
        }
    }
}

impl KnownPart for Part {
    fn forgotten(&self) {
        assert_eq!(self.told.fetch_add(1, SeqCst), 0, "NODE-4: once");
        self.notes.forgotten.fetch_add(1, SeqCst);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        assert_eq!(self.told.load(SeqCst), 1, "NODE-4: before it is freed");
    }
}

type Known = KnownTable<Part>;

/// A LOOKUP of the inode `number`, which the peer knows by that number.
fn lookup<'k>(known: &'k Known, number: u64, notes: &Arc<Notes>) -> KnownEntry<'k, Part> {
    if let Ok(there) = known.get(NodeId(number))
        && let Ok(entry) = known.entry(there)
    {
        return entry;
    }
    let part = Part::new(number, notes);
    let same = |part: &Part| part.number == number;
    known.insert(NodeId(number), part, same).unwrap()
}

/// NODE-4: an id stands for its part for as long as the peer has LOOKUPs of it, and is stale
/// before and after; the part is told at once, although readers may still look at it.
#[test]
fn an_id_lives_from_the_first_lookup_to_the_last_forget() {
    let (known, notes) = (Known::new(), Arc::new(Notes::default()));
    let id = NodeId(7);
    assert_eq!(known.get(id).err(), Some(Stale), "NODE-4: not told yet");
    assert_eq!(known.forget(id, 1), Err(Stale), "NODE-4");
    for count in 1..=5 {
        assert_eq!(lookup(&known, 7, &notes).sent(), id);
        assert_eq!((known.lookups(id), known.len()), (count, 1), "NODE-4");
    }
    assert_eq!(notes.made.load(SeqCst), 1, "NODE-4: one object");
    assert_eq!(known.forget(id, 0), Ok(()), "NODE-4");
    assert_eq!(known.forget(id, 2), Ok(()), "NODE-4");
    let held = known.get(id).unwrap();
    assert_eq!(known.lookups(id), 3, "NODE-4");
    assert_eq!(known.forget(id, u64::MAX), Ok(()), "NODE-4: all it had");
    assert_eq!(known.get(id).err(), Some(Stale), "NODE-4");
    assert_eq!(known.entry(held.clone()).err(), Some(Stale), "NODE-4");
    assert!(known.is_empty(), "NODE-4");
    assert_eq!(notes.forgotten.load(SeqCst), 0, "NODE-4: in use");
    thread::scope(|scope| {
        let _reader = rcu::read_lock();
        scope.spawn(|| drop(held)).join().unwrap();
        assert_eq!(notes.forgotten.load(SeqCst), 1, "NODE-4");
    });
    assert_eq!(lookup(&known, 7, &notes).sent(), id, "NODE-4: again");
    assert_eq!(notes.made.load(SeqCst), 2, "NODE-4: a new object");
    known.forget(id, 1).unwrap();
}

/// NODE-4: an entry gives its count back unless it was sent.
#[test]
fn an_entry_that_was_not_sent_takes_its_lookup_back() {
    let (known, notes) = (Known::new(), Arc::new(Notes::default()));
    drop(lookup(&known, 1, &notes));
    assert!(known.is_empty(), "NODE-4");
    assert_eq!(notes.forgotten.load(SeqCst), 1, "NODE-4");
    let first = lookup(&known, 1, &notes);
    let id = lookup(&known, 1, &notes).sent();
    drop(first);
    assert_eq!(known.lookups(id), 1, "NODE-4: one of two");
    known.forget(id, 1).unwrap();
    assert!(known.is_empty(), "NODE-4");
}

/// NODE-4: while the peer knows one part by an id, no other gets it; and the part that did not
/// get it is told at once.
#[test]
fn an_id_that_is_taken_is_not_given_to_another() {
    let (known, notes) = (Known::new(), Arc::new(Notes::default()));
    let id = lookup(&known, 7, &notes).sent();
    let other = known.insert(id, Part::new(8, &notes), |part| part.number == 8);
    assert!(other.is_err(), "NODE-4");
    assert_eq!(notes.forgotten.load(SeqCst), 1, "NODE-4: the other one");
    let same = known.insert(id, Part::new(7, &notes), |part| part.number == 7);
    assert_eq!(same.unwrap().sent(), id);
    assert_eq!((known.lookups(id), known.len()), (2, 1), "NODE-4");
    assert_eq!(notes.forgotten.load(SeqCst), 2, "NODE-4: it is known");
    known.forget(id, 2).unwrap();
    let other = known.insert(id, Part::new(8, &notes), |_| false);
    assert_eq!(other.unwrap().sent(), id, "NODE-4: free again");
    assert_eq!(known.get(id).unwrap().number, 8, "NODE-4");
    known.forget(id, 1).unwrap();
}

/// NODE-4: LOOKUP and FORGET that meet at the last count, over and over: an id that was sent
/// stands for its part until it is given back, and in the end nothing is left.
#[test]
fn forget_meets_lookup_at_the_last_count() {
    const THREADS: u64 = 4;
    let (known, notes) = (Known::new(), Arc::new(Notes::default()));
    let rounds = crate::common::stress_ops(3_000, 30_000);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (known, notes) = (&known, &notes);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..rounds {
                    let number = random.below(2) as u64;
                    let entry = lookup(known, number, notes);
                    if random.below(8) == 0 {
                        continue;
                    }
                    let mine = entry.known().clone();
                    let id = entry.sent();
                    let found = known.get(id).expect("NODE-4: we have a count");
                    assert!(std::ptr::eq(&**found, &**mine), "NODE-4: another");
                    assert_eq!(mine.told.load(SeqCst), 0, "NODE-4: in use");
                    drop((found, mine));
                    known.forget(id, 1).expect("NODE-4: our count");
                }
            });
        }
    });
    assert!(known.is_empty(), "NODE-4: every count is zero");
    let made = notes.made.load(SeqCst);
    assert_eq!(notes.forgotten.load(SeqCst), made, "NODE-4: each one once");
}

/// NODE-4: an id that the peer has is found, whatever the table is doing.
#[test]
fn a_growing_table_hides_no_id() {
    let (known, notes) = (Known::new(), Arc::new(Notes::default()));
    (0..200).for_each(|n| _ = lookup(&known, n, &notes).sent());
    thread::scope(|scope| {
        let grower = scope.spawn(|| {
            for _ in 0..3 {
                (1000..5000).for_each(|n| _ = lookup(&known, n, &notes).sent());
                (1000..5000).for_each(|n| known.forget(NodeId(n), 1).unwrap());
            }
        });
        while !grower.is_finished() {
            for n in 0..200 {
                let found = known.get(NodeId(n)).expect("NODE-4: the peer has it");
                assert_eq!(found.number, n, "NODE-4");
            }
        }
    });
    assert_eq!(known.len(), 200, "NODE-4");
    (0..200).for_each(|n| known.forget(NodeId(n), 1).unwrap());
}

/// NODE-4: a sweep visits all known ids.
#[test]
fn a_sweep_goes_round_the_table() {
    let (known, notes) = (Known::new(), Arc::new(Notes::default()));
    (0..1000).for_each(|n| _ = lookup(&known, n, &notes).sent());
    let (mut cursor, mut found) = (SweepCursor::default(), Vec::new());
    let even = |part: &rcuwalk::inode::Known<Part>| part.number.is_multiple_of(2);
    while known.sweep(&mut cursor, 100, &mut found, even) == 0 || found.len() < 500 {}
    let all: HashSet<NodeId> = found.drain(..).collect();
    assert!(all.iter().all(|id| id.0.is_multiple_of(2)));
    assert!(all.len() >= 450, "{} in about one round", all.len());
    (0..1000).for_each(|n| known.forget(NodeId(n), 1).unwrap());
    known.sweep(&mut cursor, 100_000, &mut found, |_| true);
    assert_eq!((found.len(), known.len()), (0, 0), "NODE-4: all given back");
}
