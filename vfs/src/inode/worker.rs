//! A thread that reclaims ahead of need.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use super::cache::Inner;
use super::node::Key;

/// Calls the worker.
#[derive(Clone, Default)]
pub(super) struct Bell(Arc<BellState>);

#[derive(Default)]
struct BellState {
    /// Rung already: no other thread needs to.
    rung: AtomicBool,
    state: Mutex<Call>,
    change: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Call {
    #[default]
    Nothing,
    MakeRoom,
    Stop,
}

impl Bell {
    pub(super) fn ring(&self) {
        if !self.0.rung.load(Relaxed) && !self.0.rung.swap(true, Relaxed) {
            self.say(Call::MakeRoom);
        }
    }

    fn say(&self, call: Call) {
        let mut state = self.state();
        if *state != Call::Stop {
            *state = call;
        }
        self.0.change.notify_one();
    }

    fn wait(&self) -> Call {
        let mut state = self.state();
        while *state == Call::Nothing {
            state = self
                .0
                .change
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.0.rung.store(false, Relaxed);
        match *state {
            Call::Stop => Call::Stop,
            call => {
                *state = Call::Nothing;
                call
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, Call> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running thread. Dropping it stops it and waits for that.
pub(super) struct Worker {
    bell: Bell,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Without a thread, inserting threads reclaim alone.
    pub(super) fn start<K: Key, P: Send + Sync + 'static>(
        bell: Bell,
        cache: &Arc<Inner<K, P>>,
    ) -> Worker {
        let cache = Arc::downgrade(cache);
        let thread = std::thread::Builder::new().name("rcuwalk-prune".into());
        let calls = bell.clone();
        let thread = thread.spawn(move || make_room(&calls, &cache)).ok();
        Worker { bell, thread }
    }
}

fn make_room<K: Key, P: Send + Sync + 'static>(bell: &Bell, cache: &Weak<Inner<K, P>>) {
    while bell.wait() == Call::MakeRoom {
        let Some(cache) = cache.upgrade() else {
            return;
        };
        // A panic of `on_evict` has been reported, and its inode is gone: the next call finds
        // other inodes.
        let _ = catch_unwind(AssertUnwindSafe(|| cache.prune_ahead()));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.bell.say(Call::Stop);
        let Some(thread) = self.thread.take() else {
            return;
        };
        // The worker itself may drop the cache: in `on_evict`, say.
        if thread.thread().id() != std::thread::current().id() {
            // A panic of `on_evict`, in the cache's end there, has been reported.
            let _ = thread.join();
        }
    }
}
