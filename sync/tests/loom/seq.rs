//! SEQ-1: several words, read as of one moment.
//!
//! `a_rename_is_never_seen_half_done` fails when any one of these is weakened: the
//! Acquire of `sample`, the fence in `read_retry` and its comparison, the fence in
//! `write`, the Release at the section's end, the refusal of odd counts.
//! `writers_of_a_seqlock_take_turns` fails when the lock goes before the section ends.

use crate::loom_support::{all_outcomes, outcomes, spawn};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{SeqCount, SeqLock};

/// A name and a place that change together, and the count's payload with them.
struct Pair {
    seq: SeqCount,
    name: AtomicU32,
    place: AtomicU32,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            seq: SeqCount::new(1),
            name: AtomicU32::new(1),
            place: AtomicU32::new(1),
        }
    }

    fn rename(&self, to: u32) {
        let mut section = self.seq.write();
        self.name.store(to, Relaxed);
        self.place.store(to, Relaxed);
        section.set_payload(to);
    }

    fn snapshot(&self) -> Option<(u32, u32, u32)> {
        let seq = self.seq.read_begin()?;
        let (name, place) = (self.name.load(Relaxed), self.place.load(Relaxed));
        (!self.seq.read_retry(seq)).then_some((seq.payload(), name, place))
    }
}

/// SEQ-1: a reader that is told not to retry has seen one moment, payload included.
#[test]
fn a_rename_is_never_seen_half_done() {
    let seen = all_outcomes(|| {
        let pair = Arc::new(Pair::new());
        let reader = spawn({
            let pair = pair.clone();
            move || pair.snapshot()
        });
        pair.rename(2);
        pair.rename(3);
        reader.join().unwrap()
    });
    let moments = [1, 2, 3].map(|n| Some((n, n, n)));
    assert_eq!(seen, [None].into_iter().chain(moments).collect(), "SEQ-1");
}

/// SEQ-3: the child is sampled before the parent is rechecked: a walk that passes
/// both saw the child while it was the parent's.
#[test]
fn a_step_down_is_one_moment() {
    let seen = all_outcomes(|| {
        let pairs = Arc::new([Pair::new(), Pair::new()]);
        let reader = spawn({
            let pairs = pairs.clone();
            move || {
                let parent = pairs[0].seq.read_begin()?;
                let name = pairs[0].name.load(Relaxed);
                let child = pairs[1].seq.read_begin()?;
                if pairs[0].seq.read_retry(parent) {
                    return None;
                }
                let below = pairs[1].name.load(Relaxed);
                (!pairs[1].seq.read_retry(child)).then_some((name, below))
            }
        });
        pairs[0].rename(2);
        pairs[1].rename(2);
        reader.join().unwrap()
    });
    // (1, 2) would be a child of after the change below a parent of before it.
    let expected = [None, Some((1, 1)), Some((2, 1)), Some((2, 2))];
    assert_eq!(seen, expected.into(), "SEQ-3");
}

/// SEQ-1: two writers take turns, and a reader sees neither half done.
#[test]
fn writers_of_a_seqlock_take_turns() {
    let seen = outcomes(|| {
        let shared = Arc::new((
            SeqLock::new(Rank::Namespace),
            AtomicU32::new(0),
            AtomicU32::new(0),
        ));
        let add = |(lock, a, b): &(SeqLock, AtomicU32, AtomicU32)| {
            let _section = lock.write();
            a.store(a.load(Relaxed) + 1, Relaxed);
            b.store(b.load(Relaxed) + 1, Relaxed);
        };
        let other = spawn({
            let shared = shared.clone();
            move || add(&shared)
        });
        let reader = spawn({
            let shared = shared.clone();
            move || {
                let (lock, a, b) = &*shared;
                let seq = lock.read_begin()?;
                let seen = (a.load(Relaxed), b.load(Relaxed));
                (!lock.read_retry(seq)).then_some(seen)
            }
        });
        add(&shared);
        other.join().unwrap();
        let (_, a, b) = &*shared;
        assert_eq!(
            (a.load(Relaxed), b.load(Relaxed)),
            (2, 2),
            "SEQ-1: both came through"
        );
        reader.join().unwrap()
    });
    let expected = [None, Some((0, 0)), Some((1, 1)), Some((2, 2))];
    assert_eq!(seen, expected.into(), "SEQ-1");
}
