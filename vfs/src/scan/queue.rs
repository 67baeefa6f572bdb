//! Who does what: threads that have work give to those that have none.
//!
//! A thread keeps its tasks to itself and does the newest first, which keeps the tree's
//! depth, not its width, in memory. Only when others wait does it give away the older
//! half of them: the ones nearest to the root, with the most below. So the lock here is
//! taken seldom, and no task is looked for in vain.

use std::mem;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a thread without work looks whether it should stop.
const LOOK: Duration = Duration::from_millis(20);

/// Tasks that were given away, and the threads that wait for some.
///
/// Each of the threads calls [`next`](Self::next) until there is nothing left to do for
/// anybody, with a list of its own tasks in between.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    more: Condvar,
    /// How many wait beyond the tasks there are: a hint for who could give.
    hungry: AtomicUsize,
    /// The phase is `Ended`, for those who do not take the lock.
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

impl<T> Queue<T> {
    /// For so many threads.
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

    /// True if somebody waits for work.
    pub fn is_wanted(&self) -> bool {
        self.hungry.load(Relaxed) > 0
    }

    /// Gives tasks to whoever waits.
    pub fn give(&self, tasks: impl IntoIterator<Item = T>) {
        let mut state = self.lock();
        state.tasks.extend(tasks);
        self.note(&state);
        drop(state);
        self.more.notify_all();
    }

    /// The next task of a thread whose own ones are `mine`: the newest of those, or one
    /// of others. `None` when there is nothing left to do for anybody, or when the scan
    /// is to end.
    pub fn next(&self, mine: &mut Vec<T>, stop: &AtomicBool) -> Option<T> {
        if self.is_wanted() && mine.len() > 1 {
            let newer = mine.split_off(mine.len().div_ceil(2));
            self.give(mem::replace(mine, newer));
        }
        if self.is_ended() {
            return None;
        }
        mine.pop().or_else(|| self.take(stop))
    }

    /// A task of others; `None` when there is nothing left to do for anybody, or when
    /// the scan is to end.
    pub fn take(&self, stop: &AtomicBool) -> Option<T> {
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
            if let Some(task) = state.tasks.pop() {
                state.waiting -= 1;
                self.note(&state);
                return Some(task);
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
        // Relaxed: it publishes nothing, whoever sees it just stops.
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
