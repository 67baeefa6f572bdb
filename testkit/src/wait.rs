//! How long a test goes on, and waits: for events that another thread or the kernel brings about.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than an event takes on the slowest machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Waits until `done` returns true, for [`LONG`] at most. Returns whether it did.
pub fn comes_true(mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + LONG;
    while !done() {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Waits until `done` returns true.
///
/// # Panics
/// If it does not within [`LONG`].
pub fn wait_until(what: &str, done: impl FnMut() -> bool) {
    assert!(comes_true(done), "{what}: not after a minute");
}

/// A number from the environment: how long a test goes on, or how much it does.
///
/// # Panics
/// If the variable is set, and not to a number.
pub fn setting(name: &str, default: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.map_or(default, |text| text.parse().expect("a number"))
}

/// Sets its flag when it is dropped, so that the threads that watch the flag end also when
/// the thread that has this panics.
#[derive(Debug)]
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
