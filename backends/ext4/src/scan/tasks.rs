//! Which directory a thread lists next.
//!
//! ext4 puts a directory's files near the directory, in the inode tables and on the disk. And
//! directories that were filled at the same time share both: their files alternate in the same
//! blocks of the tables. So a thread takes the newest directories that it found as a batch, in
//! the order of their inode numbers. Its reads then go up through the image, and pieces that
//! several of them share are read once.
//!
//! Directories found meanwhile wait until the batch is done. The newest are taken first, so each
//! level of the tree has at most the subdirectories of one batch in memory, and not all of its
//! own.
//!
//! Threads that get different parts of the image share no pieces. There are too few directories
//! at the top of the tree for that, and two of those may have been filled at the same time. So
//! the first thread lists small ones there by itself, before it gives away half of what is below.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rcuwalk::scan::Queue;

/// The most directories of a batch: a few times those that are filled at the same time.
const BATCH: usize = 1024;

/// The most directories that the first thread lists before it gives any away.
const TOP: usize = 64;

/// The most bytes that each of them has: some 400 names.
const SMALL: u64 = 16 << 10;

/// A directory to be listed.
pub(super) struct Task {
    pub(super) ino: u32,
    pub(super) path: Box<[u8]>,
    /// Of its blocks.
    pub(super) size: u64,
}

/// The directories of one thread.
#[derive(Default)]
pub(super) struct Tasks {
    /// The newest are last.
    mine: Vec<Task>,
    /// How many of the last ones are the current batch, in order: the lowest number is last.
    left: usize,
    /// Found since the batch began.
    found: Vec<Task>,
    /// How many more may be listed before any is given away.
    top: usize,
}

impl Tasks {
    /// Pushes the root, where this thread begins.
    pub(super) fn push_root(&mut self, root: Task) {
        self.push(root);
        self.top = TOP;
    }

    pub(super) fn push(&mut self, task: Task) {
        self.found.push(task);
    }

    /// The next directory; another thread's if there is none here. `None` when no thread has one
    /// left, or when the scan must end.
    pub(super) fn next(&mut self, queue: &Queue<Task>, stop: &AtomicBool) -> Option<Task> {
        if self.left == 0 {
            self.begin_batch();
        }
        if queue.is_wanted() {
            if !queue.is_ended() && !stop.load(Relaxed) && self.is_top() {
                self.top -= 1;
                self.left -= 1;
                return self.mine.pop();
            }
            // The queue gives away a half of `mine` alone.
            self.begin_batch();
        }
        self.top = self.top.saturating_sub(1);
        let next = queue.next(&mut self.mine, stop);
        // Tasks taken from another thread are no batch yet: then `left` was 0.
        self.left = self.left.saturating_sub(1).min(self.mine.len());
        next
    }

    /// True if the next directory is a small one at the top of the tree.
    fn is_top(&self) -> bool {
        let is_small = self.mine.last().is_some_and(|task| task.size <= SMALL);
        is_small && self.top > 0 && self.left > 0 && self.mine.len() <= TOP
    }

    fn begin_batch(&mut self) {
        self.mine.append(&mut self.found);
        self.left = self.mine.len().min(BATCH);
        let older = self.mine.len() - self.left;
        self.mine[older..].sort_unstable_by_key(|task| Reverse(task.ino));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(ino: u32, size: u64) -> Task {
        let path = Box::default();
        Task { ino, path, size }
    }

    fn push(tasks: &mut Tasks, inos: impl IntoIterator<Item = u32>) {
        for ino in inos {
            tasks.push(task(ino, SMALL));
        }
    }

    fn next(tasks: &mut Tasks, queue: &Queue<Task>) -> Option<u32> {
        let task = tasks.next(queue, &AtomicBool::new(false));
        task.map(|task| task.ino)
    }

    /// Directories come in the order of their numbers; those found meanwhile come after them.
    #[test]
    fn a_batch_goes_up_and_the_next_one_follows() {
        let (queue, mut tasks) = (Queue::new(1), Tasks::default());
        push(&mut tasks, [30, 10, 20]);
        assert_eq!(next(&mut tasks, &queue), Some(10));
        push(&mut tasks, [15, 11]);
        let rest: Vec<_> = std::iter::from_fn(|| next(&mut tasks, &queue)).collect();
        assert_eq!(rest, [20, 30, 11, 15]);
    }

    /// The newest directories are the batch, so that a wide tree is not in memory as a whole.
    #[test]
    fn what_is_beyond_a_batch_waits_for_the_newer_ones() {
        let (queue, mut tasks) = (Queue::new(1), Tasks::default());
        push(&mut tasks, 1..=BATCH as u32 + 2);
        assert_eq!(next(&mut tasks, &queue), Some(3));
        let rest: Vec<_> = std::iter::from_fn(|| next(&mut tasks, &queue)).collect();
        let batch = 4..=BATCH as u32 + 2;
        assert_eq!(rest, batch.chain([1, 2]).collect::<Vec<_>>());
    }

    /// A thread without work gets the upper half of a batch, and takes it upwards too.
    #[test]
    fn half_of_a_batch_goes_to_a_thread_that_waits() {
        let queue = Queue::new(2);
        let (mut one, mut other) = (Tasks::default(), Tasks::default());
        push(&mut one, [6, 3, 2, 5, 4, 1]);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let first = next(&mut other, &queue);
                push(&mut other, [7]);
                first
            });
            while !queue.is_wanted() {
                std::thread::yield_now();
            }
            assert_eq!(next(&mut one, &queue), Some(1));
            assert_eq!(waits.join().unwrap(), Some(4));
        });
        let rest = |tasks: &mut Tasks, count: usize| -> Vec<_> {
            (0..count).map(|_| next(tasks, &queue)).collect()
        };
        assert_eq!(rest(&mut one, 2), [2, 3].map(Some));
        assert_eq!(rest(&mut other, 3), [5, 6, 7].map(Some));
    }

    /// While another thread waits, the first one lists small directories at the top. When it comes
    /// to a large one, it gives away half of all that it has found.
    #[test]
    fn small_directories_at_the_top_are_listed_before_any_is_given_away() {
        for (size, kept) in [(SMALL, 3), (SMALL + 1, 0)] {
            let queue = Queue::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| next(&mut Tasks::default(), &queue));
                while !queue.is_wanted() {
                    std::thread::yield_now();
                }
                let mut tasks = Tasks::default();
                tasks.push_root(task(1, SMALL));
                assert_eq!(next(&mut tasks, &queue), Some(1));
                tasks.push(task(2, SMALL));
                tasks.push(task(3, size));
                assert_eq!(next(&mut tasks, &queue), Some(2));
                push(&mut tasks, 10..=13);
                assert_eq!(next(&mut tasks, &queue), Some(3));
                assert_eq!(next(&mut tasks, &queue), Some(10));
                assert_eq!(tasks.mine.len(), kept);
                queue.end();
            });
        }
    }
}
