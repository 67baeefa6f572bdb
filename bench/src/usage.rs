//! What this process has used: processor time as time(1) tells it, and memory; and what
//! the machine had to do besides.

use std::fs;
use std::time::Duration;

/// Time that the process has had a processor, all its threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    pub(crate) user: Duration,
    pub(crate) sys: Duration,
}

impl CpuTime {
    /// Time used so far, in steps of a clock tick (usually 10 ms). Zero if unknown.
    pub(crate) fn now() -> CpuTime {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
        let [user, sys] = ticks(&stat).unwrap_or_default();
        CpuTime {
            user: Duration::from_secs_f64(user as f64 * tick),
            sys: Duration::from_secs_f64(sys as f64 * tick),
        }
    }

    /// Returns the time used since `before`.
    pub(crate) fn since(self, before: CpuTime) -> CpuTime {
        CpuTime {
            user: self.user.saturating_sub(before.user),
            sys: self.sys.saturating_sub(before.sys),
        }
    }
}

/// The time that all processors together were busy with this process or others; zero if
/// unknown.
pub(crate) fn machine_busy() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
    Duration::from_secs_f64(busy_ticks(&stat).unwrap_or(0) as f64 * tick)
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
/// What a hypervisor took away counts as others' work.
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields = fields.split_whitespace().take(8).enumerate();
    let busy = fields.filter(|(at, _)| ![3, 4].contains(at));
    busy.map(|(_, ticks)| ticks.parse::<u64>().ok()).sum()
}

/// The fields 14 and 15 of `/proc/<pid>/stat`. The second one is the program's name, in
/// parentheses, and may hold anything.
fn ticks(stat: &str) -> Option<[u64; 2]> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(14 - 3);
    let mut field = || fields.next()?.parse().ok();
    Some([field()?, field()?])
}

/// Has [`peak_memory`] start anew. Where that is not allowed, it is the peak since the
/// process was started.
pub(crate) fn reset_peak_memory() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The peak of resident memory since [`reset_peak_memory`], in bytes; 0 if unknown.
pub(crate) fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    bytes_of("VmHWM:", &status).unwrap_or(0)
}

/// Resident memory that is not a file's, in bytes; 0 if unknown.
pub(crate) fn resident_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    bytes_of("RssAnon:", &status).unwrap_or(0)
}

fn bytes_of(field: &str, status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let kib = lines.find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = kib.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_programs_name_does_not_shift_the_fields() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 31 14 15";
        assert_eq!(ticks(stat), Some([250, 31]));
        assert_eq!(ticks("12 (a) S 1"), None);
    }

    #[test]
    fn idle_and_waiting_for_disks_are_not_busy() {
        let stat = "cpu  1 2 4 1000 2000 8 16 32 64 128\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(63));
        assert_eq!(busy_ticks("intr 1\n"), None);
    }

    #[test]
    fn memory_is_in_bytes() {
        let status = "Name:\tx\nVmHWM:\t    1234 kB\nVmRSS:\t  1 kB\n";
        assert_eq!(bytes_of("VmHWM:", status), Some(1234 << 10));
        assert_eq!(bytes_of("VmHWM:", "Name:\tx\n"), None);
    }

    #[test]
    fn work_takes_time_and_memory() {
        let (start, before) = (Instant::now(), CpuTime::now());
        reset_peak_memory();
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        assert!(resident_memory() >= block.len() as u64);
        while CpuTime::now().since(before).user.is_zero() {
            assert!(start.elapsed() < Duration::from_secs(60), "no time at all");
        }
        assert!(peak_memory() >= block.len() as u64);
    }
}
