//! The ranks that each thread holds, in debug builds.

use std::cell::RefCell;

use super::Rank;

crate::model::local! {
    static RANKS: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
}

/// `None` for a thread that ends and whose list is gone: another of its locals may be dropped
/// after that, and lock.
fn with_held<R>(look: impl FnOnce(&mut Vec<Rank>) -> R) -> Option<R> {
    RANKS.try_with(|held| look(&mut held.borrow_mut())).ok()
}

pub(super) fn check(next: Rank, same_rank_is_ordered: bool) {
    with_held(|held| {
        if let Some(last) = held.iter().max() {
            assert!(
                *last < next || (same_rank_is_ordered && *last == next),
                "LOCK-1: {next:?} wanted while holding {held:?}"
            );
        }
    });
}

pub(super) fn push(next: Rank) {
    with_held(|held| held.push(next));
}

pub(super) fn is_held(rank: Rank) -> Option<bool> {
    with_held(|held| held.contains(&rank))
}

pub(super) fn pop(rank: Rank) {
    with_held(|held| {
        let at = held
            .iter()
            .rposition(|r| *r == rank)
            .expect("a held lock is in the list");
        held.remove(at);
    });
}
