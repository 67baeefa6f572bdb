//! A cheap clock for time-to-live checks.

use std::sync::OnceLock;
use std::time::Instant;

/// Milliseconds since the first call in this process.
///
/// Monotonic. Costs some 20 ns, so a walk asks at most once, and only when it
/// meets a name that can expire.
pub fn millis() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}
