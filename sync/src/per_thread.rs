//! One value per thread: every thread reads it, only its owner writes it.

use std::sync::OnceLock;

use crate::model::MODEL;
use crate::rcu;

/// Threads whose values are in the first chunk. The second chunk is as large, each further one
/// twice as large as the one before.
const FIRST: usize = 16;
const CHUNKS: usize = 20;

/// A `T` per thread, for counters that no two threads write.
///
/// A thread's value outlives the thread and passes to the next one that gets its
/// index, so sums over [`iter`](Self::iter) never lose anything. `T` is padded to
/// two cache lines, so that neighbours do not share one.
pub struct PerThread<T> {
    first: Box<[Padded<T>; FIRST]>,
    chunks: [OnceLock<Box<[Padded<T>]>>; CHUNKS],
}

#[repr(align(128))]
#[derive(Default)]
struct Padded<T>(T);

impl<T: Default> PerThread<T> {
    /// A value for each thread.
    pub fn new() -> Self {
        PerThread {
            first: Box::new(std::array::from_fn(|_| Padded::default())),
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// This thread's value.
    #[inline]
    pub fn get(&self) -> &T {
        self.at(rcu::thread_index())
    }

    /// The value of the thread that holds `guard`; saves looking up the thread.
    #[inline]
    pub fn get_with(&self, guard: &rcu::RcuGuard) -> &T {
        self.at(guard.thread_index())
    }

    #[inline]
    fn at(&self, index: usize) -> &T {
        match self.first.get(index) {
            Some(value) => &value.0,
            None => self.at_slow(index - FIRST),
        }
    }

    #[cold]
    fn at_slow(&self, index: usize) -> &T {
        let chunk = (index / FIRST + 1).ilog2() as usize;
        let start = FIRST * ((1 << chunk) - 1);
        let values = self.chunks[chunk]
            .get_or_init(|| (0..FIRST << chunk).map(|_| Padded::default()).collect());
        &values[index - start].0
    }

    /// Every thread's value, those of finished threads included.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        // No thread has written to the others.
        let used = if MODEL { usize::MAX } else { rcu::threads() };
        self.places().take(used)
    }

    fn places(&self) -> impl Iterator<Item = &T> {
        let others = self.chunks.iter().filter_map(OnceLock::get);
        let others = others.flat_map(|chunk| chunk.iter());
        self.first.iter().chain(others).map(|padded| &padded.0)
    }
}

impl<T: Default> Default for PerThread<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let values: PerThread<AtomicU64> = PerThread::new();
        for index in 0..500 {
            values.at(index).fetch_add(index as u64 + 1, Relaxed);
        }
        for index in 0..500 {
            assert_eq!(values.at(index).load(Relaxed), index as u64 + 1);
        }
        assert_eq!(
            values.places().map(|v| v.load(Relaxed)).sum::<u64>(),
            500 * 501 / 2
        );
    }

    #[test]
    fn what_threads_leave_is_in_the_sum() {
        let values: PerThread<AtomicU64> = PerThread::new();
        let count = || _ = values.get().fetch_add(1, Relaxed);
        // More at a time than are at hand, and than any other test has.
        let barrier = std::sync::Barrier::new(100);
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    count();
                    barrier.wait();
                });
            }
        });
        assert_eq!(values.iter().map(|v| v.load(Relaxed)).sum::<u64>(), 100);
    }
}
