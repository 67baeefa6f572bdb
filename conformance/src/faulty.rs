//! A back end that fails, is slow, or lets others run, at a call of choice.
//!
//! [`FaultyFs`] wraps any back end. Every call that can fail has a number, from 1 on, in
//! the order they come; [`Faults`] says which of them is to go wrong, and how. What the
//! caller gets is the error and nothing else: the back end was not asked, or has done it
//! all the same.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rcuwalk::{FileSystem, Result};
use rcuwalk_testkit::{Call, Wrapped, Wrapper};

/// What happens at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this errno.
    Fail(i32),
    /// It does what it is to do, and its answer is lost: the caller gets this errno.
    FailAfter(i32),
    /// The call is delayed by this time.
    Delay(Duration),
    /// Other threads run before it.
    Yield,
}

/// Which calls go wrong. Clones are handles to the same.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    calls: AtomicU64,
    plan: Mutex<Plan>,
}

#[derive(Default)]
struct Plan {
    /// The number of a call, and what happens at it.
    one: Option<(u64, Fault)>,
    /// What happens at every call.
    each: Option<Fault>,
    /// The name of the call that the fault has met.
    met: Option<&'static str>,
}

impl Faults {
    /// None so far.
    pub fn new() -> Faults {
        Faults::default()
    }

    /// From now on, counting from 1 again, the call with this number meets `fault`.
    pub fn at_call(&self, number: u64, fault: Fault) {
        self.state.calls.store(0, Relaxed);
        *self.plan() = Plan {
            one: Some((number, fault)),
            ..Plan::default()
        };
    }

    /// From now on each call meets `fault`.
    pub fn at_each_call(&self, fault: Fault) {
        *self.plan() = Plan {
            each: Some(fault),
            ..Plan::default()
        };
    }

    /// Nothing goes wrong any more, and calls are counted from 1 again.
    pub fn none(&self) {
        self.state.calls.store(0, Relaxed);
        *self.plan() = Plan::default();
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.state.calls.load(Relaxed)
    }

    /// Which call the fault has met, if its turn has come.
    pub fn met(&self) -> Option<&'static str> {
        self.plan().met
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.state
            .plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, name: &'static str, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        let number = self.state.calls.fetch_add(1, Relaxed) + 1;
        let fault = {
            let mut plan = self.plan();
            let one = plan.one.filter(|(at, _)| *at == number);
            if one.is_some() {
                plan.met = Some(name);
            }
            one.map(|(_, fault)| fault).or(plan.each)
        };
        match fault {
            None => ask(),
            Some(Fault::Fail(errno)) => Err(error(errno)),
            Some(Fault::FailAfter(errno)) => {
                drop(ask());
                Err(error(errno))
            }
            Some(Fault::Delay(time)) => {
                std::thread::sleep(time);
                ask()
            }
            Some(Fault::Yield) => {
                std::thread::yield_now();
                ask()
            }
        }
    }
}

fn error(errno: i32) -> rcuwalk::Error {
    std::io::Error::from_raw_os_error(errno).into()
}

/// A back end with [`Faults`].
pub struct FaultyFs<F> {
    fs: F,
    faults: Faults,
}

impl<F: FileSystem> FaultyFs<F> {
    /// `fs`, as it is while there are no faults.
    pub fn new(fs: F, faults: &Faults) -> Wrapped<FaultyFs<F>> {
        Wrapped::new(FaultyFs {
            fs,
            faults: faults.clone(),
        })
    }
}

impl<F: FileSystem> Wrapper for FaultyFs<F> {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.fs)
    }

    fn around<T>(&self, call: &Call<'_>, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        self.faults.call(call.method, ask)
    }
}
