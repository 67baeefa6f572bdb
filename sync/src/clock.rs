//! A cheap clock for time-to-live checks.
//!
//! The kernel publishes the time of its last tick, which takes a few instructions to read;
//! reading the hardware clock costs several times as much. Deadlines further away than a tick
//! need only the former.

use std::sync::OnceLock;

/// Ticks come at least as often, in milliseconds.
const TICK: u64 = 10;

/// Milliseconds since the first call in this process, as of the kernel's last tick: never ahead,
/// and a few milliseconds behind. Monotonic.
pub fn millis() -> u64 {
    since_start(last_tick())
}

/// True if `deadline`, a time of [`millis`], is still to come. Within a few milliseconds of it,
/// this reads the hardware clock, so that a late tick does not prolong the deadline. The
/// exception is a tick that is later than that, as on a virtual processor that has been
/// stopped.
#[inline]
pub fn is_to_come(deadline: u64) -> bool {
    let left = deadline.saturating_sub(millis());
    left > TICK || left > 0 && deadline > since_start(now())
}

fn since_start(millis: u64) -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    millis.saturating_sub(*START.get_or_init(last_tick))
}

#[cfg(target_os = "linux")]
fn last_tick() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

#[cfg(target_os = "linux")]
fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

#[cfg(target_os = "linux")]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable. Linux has both clocks, so it is filled in; neither is ever
    // negative.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

#[cfg(not(target_os = "linux"))]
fn last_tick() -> u64 {
    now()
}

#[cfg(not(target_os = "linux"))]
fn now() -> u64 {
    static BEFORE: OnceLock<std::time::Instant> = OnceLock::new();
    BEFORE
        .get_or_init(std::time::Instant::now)
        .elapsed()
        .as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_deadline_is_to_come_until_it_is_there_and_no_longer() {
        for ttl in [0, 1, 5, 30] {
            let deadline = millis() + ttl;
            while is_to_come(deadline) {
                thread::sleep(Duration::from_micros(200));
            }
            assert!(deadline <= since_start(now()), "{ttl} ms: too early");
            assert!(!is_to_come(deadline), "{ttl} ms: once more");
        }
        assert!(is_to_come(u64::MAX));
        assert!(!is_to_come(0), "never");
    }

    #[test]
    fn the_last_tick_is_not_ahead() {
        for _ in 0..1000 {
            let tick = last_tick();
            assert!(tick <= now());
        }
    }
}
