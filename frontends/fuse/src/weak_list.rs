//! A list of things that others own, which may be gone at any time.

use std::sync::{Arc, Weak};

/// The shortest list that is searched for things that are gone.
const WORTH_CLEANING: usize = 2;

/// A list of things that others own.
pub(crate) struct WeakList<T> {
    all: Vec<Weak<T>>,
    /// The length at which those that are gone are removed.
    clean_at: usize,
}

impl<T> Default for WeakList<T> {
    fn default() -> Self {
        WeakList {
            all: Vec::new(),
            clean_at: WORTH_CLEANING,
        }
    }
}

impl<T> WeakList<T> {
    /// Adds `one`, and returns how many others were looked at for that.
    ///
    /// Removes those that are gone only when the list is twice as long as it was after the last
    /// time. So adding costs the same on average, however long the list is.
    pub(crate) fn add(&mut self, one: &Arc<T>) -> usize {
        let mut looked_at = 0;
        if self.all.len() >= self.clean_at {
            looked_at = self.all.len();
            self.all.retain(|one| one.strong_count() > 0);
            self.clean_at = WORTH_CLEANING.max(2 * self.all.len());
        }
        self.all.push(Arc::downgrade(one));
        looked_at
    }

    /// Those that are still there, in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Arc<T>> {
        self.all.iter().filter_map(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time under the lock of a list does not grow with the square of its length.
    #[test]
    fn a_list_is_searched_when_its_length_has_doubled() {
        const ALL: usize = 10_000;
        let mut list = WeakList::default();
        let kept: Vec<Arc<usize>> = (0..ALL).map(Arc::new).collect();
        let looked_at: usize = kept.iter().map(|one| list.add(one)).sum();
        assert!(looked_at < 2 * ALL, "{looked_at}");
        assert!(list.iter().eq(kept.iter().cloned()), "all are there");
        drop(kept);
        assert_eq!(list.iter().count(), 0);
        let looked_at: usize = (0..ALL).map(|one| list.add(&Arc::new(one))).sum();
        assert!(looked_at < 4 * ALL, "{looked_at}");
        assert!(list.all.len() <= WORTH_CLEANING, "those are gone");
    }
}
