//! Ctrl-C: the first one asks, the second one does not.
//!
//! The first SIGINT, SIGTERM or SIGHUP raises a flag that long work polls; the command then
//! returns in the usual way, so that temporary directories are removed. If that takes too long,
//! a second signal ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;

/// The state of the signals caught.
pub(crate) struct Stop {
    raised: Arc<AtomicBool>,
    /// The number of the last signal; 0 for none.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// From now on, signals are noted here.
    pub(crate) fn on_signals() -> io::Result<Stop> {
        Stop::on(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// As [`Stop::on_signals`], for these.
    pub(crate) fn on(signals: &[i32]) -> io::Result<Stop> {
        let stop = Stop {
            raised: Arc::default(),
            signal: Arc::default(),
        };
        for &number in signals {
            // In this order, as hooks run: only the second signal finds the flag raised.
            flag::register_conditional_shutdown(number, 128 + number, stop.raised.clone())?;
            flag::register_usize(number, stop.signal.clone(), number as usize)?;
            flag::register(number, stop.raised.clone())?;
        }
        Ok(stop)
    }

    /// For work that polls a flag.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.raised
    }

    /// An error once a signal came.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.signal.load(Relaxed) {
            0 => Ok(()),
            number => Err(Failure::Signal(
                u8::try_from(number).unwrap_or(u8::MAX >> 1),
            )),
        }
    }
}
