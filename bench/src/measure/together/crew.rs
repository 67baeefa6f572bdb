//! Threads that start together, and end together when one of them cannot go on.

use std::any::Any;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{MeasureError, Together};

impl Together {
    /// What `drive` returns on each thread, in their order.
    ///
    /// Each is pinned to a core and prepared; when all are, they are let go at the
    /// same moment, which `drive` is told.
    pub(super) fn on_all<W, R: Send>(
        &self,
        prepare: impl Fn(usize) -> io::Result<W> + Sync,
        drive: impl Fn(&mut W, Instant) -> Result<R, Ended> + Sync,
    ) -> Result<Vec<R>, MeasureError> {
        assert!(self.threads > 0, "no threads, no rate");
        let cores = allowed_cores()?;
        let gate = Gate::new(self.threads);

        let thread = |number: usize| {
            let ready = panic::catch_unwind(AssertUnwindSafe(|| {
                pin_to(cores[number % cores.len()])?;
                prepare(number)
            }));
            if !matches!(ready, Ok(Ok(_))) {
                gate.close();
            }
            let start = gate.wait();
            let mut work = match ready {
                Ok(ready) => ready.map_err(Ended::Failed)?,
                Err(panic) => return Err(Ended::Panicked(panic)),
            };
            drive(&mut work, start.ok_or(Ended::Stopped)?)
        };
        let ended: Vec<_> = thread::scope(|scope| {
            let thread = &thread;
            let threads: Vec<_> = (0..self.threads)
                .map(|number| {
                    let started =
                        thread::Builder::new().spawn_scoped(scope, move || thread(number));
                    started.map_err(|err| {
                        gate.close();
                        Ended::Failed(self.not_started(number, &err))
                    })
                })
                .collect();
            let join = |started: Result<thread::ScopedJoinHandle<'_, _>, _>| {
                let ended = started?.join();
                ended.unwrap_or_else(|panic| Err(Ended::Panicked(panic)))
            };
            threads.into_iter().map(join).collect()
        });
        all_results(ended)
    }

    fn not_started(&self, number: usize, err: &io::Error) -> io::Error {
        let which = format!("cannot start thread {} of {}", number + 1, self.threads);
        io::Error::new(err.kind(), format!("{which}: {err}; try fewer"))
    }
}

/// Where threads wait until all are there, or until one of them never will be.
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

struct GateState {
    missing: usize,
    closed: bool,
    opened: Option<Instant>,
}

impl Gate {
    fn new(threads: usize) -> Gate {
        let state = GateState {
            missing: threads,
            closed: false,
            opened: None,
        };
        Gate {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Waits for the others, and says when the last one came. `None` if one of them
    /// failed.
    fn wait(&self) -> Option<Instant> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.missing -= 1;
        if state.missing == 0 {
            state.opened = Some(Instant::now());
        }
        self.changed.notify_all();
        let waiting = |state: &mut GateState| state.missing > 0 && !state.closed;
        let state = self.changed.wait_while(state, waiting);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        state.opened.filter(|_| !state.closed)
    }

    /// Sends everybody home.
    fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        self.changed.notify_all();
    }
}

/// Why a thread has no result.
pub(super) enum Ended {
    /// By the stop flag, or because another thread failed.
    Stopped,
    Failed(io::Error),
    Panicked(Box<dyn Any + Send>),
}

/// The results of all threads, or the weightiest reason why there are none.
fn all_results<R>(ended: Vec<Result<R, Ended>>) -> Result<Vec<R>, MeasureError> {
    let mut all = Vec::with_capacity(ended.len());
    let mut failed = None;
    let mut stopped = false;
    for ended in ended {
        match ended {
            Ok(result) => all.push(result),
            Err(Ended::Stopped) => stopped = true,
            Err(Ended::Failed(err)) => failed = Some(err),
            Err(Ended::Panicked(panic)) => panic::resume_unwind(panic),
        }
    }
    match failed {
        Some(err) => Err(MeasureError::Io(err)),
        None if stopped => Err(MeasureError::Stopped),
        None => Ok(all),
    }
}

/// The cores that we may run on; a container may allow us only some.
pub(super) fn allowed_cores() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .collect())
}

fn pin_to(core: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(core);
    Ok(sched_setaffinity(None, &only)?)
}
