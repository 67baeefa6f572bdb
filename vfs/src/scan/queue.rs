//! Work sharing: threads that have work give to those that have none.
//!
//! A thread keeps its tasks to itself and does the newest first, which keeps the tree's depth,
//! not its width, in memory. Only when other threads wait does it give away the older half of
//! them: the ones nearest to the root, with the most below. A waiting thread takes its share of
//! them at once, neighbours in their order. So the lock here is rarely taken, and no thread
//! searches for tasks.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a thread without work looks whether it should stop.
const LOOK: Duration = Duration::from_millis(20);

/// Tasks that were given away, and the threads that wait for some.
///
/// Each of the threads calls [`next`](Self::next) until no thread has a task left, with a list
/// of its own tasks in between.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    more: Condvar,
    /// How many threads wait beyond the number of tasks: a hint for threads that could give.
    hungry: AtomicUsize,
    /// The phase is `Ended`, for threads that do not take the lock.
    ended: AtomicBool,
    threads: usize,
}

struct State<T> {
    tasks: Vec<T>,
    waiting: usize,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// All tasks are done.
    Done,
    /// Ended before that.
    Ended,
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl<T> Queue<T> {
    /// A queue for this number of threads.
    pub fn new(threads: usize) -> Queue<T> {
        let state = State {
            tasks: Vec::new(),
            waiting: 0,
            phase: Phase::Running,
        };
        Queue {
            state: Mutex::new(state),
            more: Condvar::new(),
            hungry: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            threads,
        }
    }

    /// True if a thread waits for work.
    pub fn is_wanted(&self) -> bool {
        self.hungry.load(Relaxed) > 0
    }

    /// Gives tasks to waiting threads.
    pub fn give(&self, tasks: impl IntoIterator<Item = T>) {
        let mut state = self.lock();
        state.tasks.extend(tasks);
        self.note(&state);
        drop(state);
        self.more.notify_all();
    }

    /// The next task of a thread whose own ones are `mine`: the newest of those, or another
    /// thread's. `None` when no thread has a task left, or when the scan must end.
    pub fn next(&self, mine: &mut Vec<T>, stop: &AtomicBool) -> Option<T> {
        if self.is_wanted() && mine.len() > 1 {
            let newer = mine.split_off(mine.len().div_ceil(2));
            self.give(mem::replace(mine, newer));
        }
        match mine.pop() {
            Some(task) if !self.is_ended() && !stop.load(Relaxed) => Some(task),
            _ => self.take(mine, stop),
        }
    }

    /// Moves this thread's share of the given tasks to `mine`, and returns the newest of them;
    /// `None` when no thread has a task left, or when the scan must end.
    fn take(&self, mine: &mut Vec<T>, stop: &AtomicBool) -> Option<T> {
        let mut state = self.lock();
        state.waiting += 1;
        loop {
            if stop.load(Relaxed) && state.phase == Phase::Running {
                self.end_locked(&mut state);
            }
            // Whoever could make more tasks waits here too.
            if state.phase == Phase::Running
                && state.tasks.is_empty()
                && state.waiting == self.threads
            {
                state.phase = Phase::Done;
            }
            if state.phase != Phase::Running {
                drop(state);
                self.more.notify_all();
                return None;
            }
            if !state.tasks.is_empty() {
                let share = state.tasks.len().div_ceil(state.waiting);
                let older = state.tasks.len() - share;
                mine.extend(state.tasks.drain(older..));
                state.waiting -= 1;
                self.note(&state);
                return mine.pop();
            }
            self.note(&state);
            let waited = self.more.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the scan for all threads.
    pub fn end(&self) {
        self.end_locked(&mut self.lock());
        self.more.notify_all();
    }

    /// True if the scan ended before all was done.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    fn end_locked(&self, state: &mut State<T>) {
        state.phase = Phase::Ended;
        state.tasks.clear();
        // Relaxed: it publishes nothing; a thread that sees it just stops.
        self.ended.store(true, Relaxed);
    }

    fn note(&self, state: &State<T>) {
        let hungry = state.waiting.saturating_sub(state.tasks.len());
        self.hungry.store(hungry, Relaxed);
    }

    /// A visitor's panic is no reason to leave the other threads waiting: the state is
    /// whole at any moment that the lock is free.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that panics ends the scan: it would be waited for otherwise.
#[must_use]
#[derive(Debug)]
pub struct EndOnPanic<'q, T>(&'q Queue<T>);

impl<T> Queue<T> {
    /// To be held by each of the threads while it works.
    pub fn end_on_panic(&self) -> EndOnPanic<'_, T> {
        EndOnPanic(self)
    }
}

impl<T> Drop for EndOnPanic<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    /// A task makes two smaller ones; all threads together do each once, and end.
    #[test]
    fn all_is_done_once_by_whoever_is_there() {
        for threads in [1, 2, 7] {
            let (queue, stop, done) = (
                Queue::new(threads),
                AtomicBool::new(false),
                AtomicU64::new(0),
            );
            thread::scope(|scope| {
                for number in 0..threads {
                    let (queue, stop, done) = (&queue, &stop, &done);
                    scope.spawn(move || {
                        let mut mine = Vec::new();
                        mine.extend((number == 0).then_some(12));
                        while let Some(depth) = queue.next(&mut mine, stop) {
                            done.fetch_add(1, Relaxed);
                            if depth > 0 {
                                mine.extend([depth - 1; 2]);
                            }
                        }
                    });
                }
            });
            assert_eq!(done.into_inner(), (1 << 13) - 1);
            assert!(!queue.is_ended());
        }
    }

    /// A waiting thread takes all that was given if no other thread waits, and half if one does.
    #[test]
    fn a_waiting_thread_takes_its_share() {
        let (queue, stop) = (Queue::new(2), AtomicBool::new(false));
        queue.give([1, 2, 3, 4]);
        let mut mine = Vec::new();
        assert_eq!(queue.next(&mut mine, &stop), Some(4));
        assert_eq!(mine, [1, 2, 3]);
        queue.give([5, 6, 7, 8]);
        queue.lock().waiting = 1;
        mine.clear();
        assert_eq!(queue.next(&mut mine, &stop), Some(8));
        assert_eq!(mine, [7]);
    }

    /// No thread waits for one that panicked, or after the scan was stopped.
    #[test]
    fn a_panic_and_a_stop_end_it_for_all() {
        let (queue, stop) = (Queue::<()>::new(2), AtomicBool::new(false));
        thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _ends = queue.end_on_panic();
                panic!("as planned");
            });
            assert_eq!(queue.next(&mut vec![], &stop), None);
            assert!(panics.join().is_err());
        });
        let queue = Queue::new(2);
        stop.store(true, Relaxed);
        assert_eq!(queue.next(&mut vec![()], &stop), None);
        assert!(queue.is_ended());
    }
}
