//! Parts that a peer knows by number: the last FORGET and the next LOOKUP (NODE-4).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::shuttle_support::{outcomes_are, spawn};
use rcuwalk::inode::{KnownPart, KnownTable, NodeId};

const ID: NodeId = NodeId(7);

/// The tests take notes in the standard library's atomics: noting is no step of the model.
#[derive(Default)]
struct Notes {
    made: AtomicU32,
    forgotten: AtomicU32,
}

struct Part {
    /// Which of all parts it is, from 0.
    number: u32,
    is_forgotten: AtomicU32,
    notes: Arc<Notes>,
}

impl KnownPart for Part {
    fn forgotten(&self) {
        assert_eq!(self.is_forgotten.swap(1, Relaxed), 0, "NODE-4: once");
        self.notes.forgotten.fetch_add(1, Relaxed);
    }
}

/// LOOKUP, the peer's use of the id, and FORGET. Returns the number of the part.
fn use_once(known: &KnownTable<Part>, notes: &Arc<Notes>) -> u32 {
    let there = known.get(ID).ok().and_then(|node| known.entry(node).ok());
    let entry = there.unwrap_or_else(|| {
        let part = Part {
            number: notes.made.fetch_add(1, Relaxed),
            is_forgotten: AtomicU32::new(0),
            notes: notes.clone(),
        };
        known.insert(ID, part, |_| true).expect("it is the same")
    });
    let number = entry.known().number;
    let id = entry.sent();
    let found = known.get(id).expect("NODE-4: the peer has a count");
    assert_eq!(found.number, number, "NODE-4: another part");
    assert_eq!(found.is_forgotten.load(Relaxed), 0, "NODE-4: in use");
    drop(found);
    known.forget(id, 1).expect("NODE-4: the peer's count");
    number
}

/// NODE-4: LOOKUPs and FORGETs of two threads meet: both use one part, or one after the other
/// each its own; an id that was sent stands for its part, and each part is told once.
#[test]
fn the_last_forget_meets_a_lookup() {
    outcomes_are("NODE-4", [(0, 0), (1, 1), (0, 1), (1, 0)], || {
        let known: Arc<KnownTable<Part>> = Arc::default();
        let notes: Arc<Notes> = Arc::default();
        let other = spawn({
            let (known, notes) = (known.clone(), notes.clone());
            move || use_once(&known, &notes)
        });
        let mine = use_once(&known, &notes);
        let others = other.join().unwrap();
        assert!(known.is_empty(), "NODE-4: all counts are given back");
        let made = notes.made.load(Relaxed);
        assert_eq!(notes.forgotten.load(Relaxed), made, "NODE-4: each part");
        (mine, others)
    });
}
