//! What a benchmark was run on: the line without which numbers say little.

use std::hint::black_box;
use std::time::Instant;
use std::{fmt, fs, thread};

use serde::Serialize;

use crate::measure::median;
use crate::random::Random;

/// The machine, as far as it matters for a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The model of the processor, or the architecture where nothing says more.
    pub cpu: String,
    /// How many cores this process may use.
    pub cores: usize,
    /// Name and release of the kernel.
    pub kernel: String,
}

impl Machine {
    /// The machine that this runs on.
    pub fn this() -> Self {
        let uname = rustix::system::uname();
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = model(&info).unwrap_or_else(|| uname.machine().to_string_lossy().into());
        let kernel = format!(
            "{} {}",
            uname.sysname().to_string_lossy(),
            uname.release().to_string_lossy()
        );
        Self {
            cpu,
            cores: cores(),
            kernel,
        }
    }
}

/// The number of cores that this process may use; 1 if unknown.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Loads from all over a large block of memory, each waiting for the one before.
///
/// A table of a million inodes does not fit into a core's own cache, so its rates consist of
/// such loads, and their time depends on other users of the machine. Measured in the same
/// rounds, it tells whether two runs saw the same machine.
pub struct MemoryLatency {
    /// One cache line each; the first word is the number of the line to go to next.
    lines: Vec<[u64; 8]>,
    at: u64,
}

impl MemoryLatency {
    /// 64 MiB.
    const LINES: usize = 1 << 20;
    /// Few enough that most laps are not interrupted.
    const LOADS: usize = 500;
    const LAPS: usize = 15;

    /// Takes the memory, and links its lines to one ring in random order.
    pub fn new() -> Self {
        let mut order: Vec<u64> = (0..Self::LINES as u64).collect();
        let mut random = Random::new(1);
        for at in (1..Self::LINES).rev() {
            order.swap(at, random.below(at as u64) as usize);
        }
        let mut lines = vec![[0; 8]; Self::LINES];
        for (here, next) in order.iter().zip(order.iter().cycle().skip(1)) {
            lines[*here as usize][0] = *next;
        }
        Self { lines, at: 0 }
    }

    /// The nanoseconds of a load, now.
    pub fn sample(&mut self) -> f64 {
        median((0..Self::LAPS).map(|_| self.lap()).collect())
    }

    fn lap(&mut self) -> f64 {
        let start = Instant::now();
        for _ in 0..Self::LOADS {
            self.at = self.lines[self.at as usize][0];
        }
        black_box(self.at);
        start.elapsed().as_nanos() as f64 / Self::LOADS as f64
    }
}

impl Default for MemoryLatency {
    fn default() -> Self {
        Self::new()
    }
}

/// x86 says `model name`; most others say nothing that a person would recognise.
fn model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))?;
    let (_, model) = line.split_once(':')?;
    Some(model.split_whitespace().collect::<Vec<_>>().join(" "))
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = if self.cores == 1 { "core" } else { "cores" };
        write!(f, "{}, {} {cores}, {}", self.cpu, self.cores, self.kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_taken_from_cpuinfo_where_it_is_named() {
        let x86 = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Some  CPU @ 2.1GHz\n";
        assert_eq!(model(x86).as_deref(), Some("Some CPU @ 2.1GHz"));
        assert_eq!(model("processor : 0\nBogoMIPS : 50.00\n"), None);
    }

    #[test]
    fn the_ring_of_loads_goes_through_all_of_the_memory() {
        let memory = MemoryLatency::new();
        let mut at = 0;
        let round = (1..).find(|_| {
            at = memory.lines[at][0] as usize;
            at == 0
        });
        assert_eq!(round, Some(MemoryLatency::LINES));
    }

    #[test]
    fn this_machine_has_a_name_and_a_kernel() {
        let machine = Machine::this();
        assert!(!machine.cpu.is_empty() && machine.cores > 0);
        assert!(machine.kernel.starts_with("Linux "));
    }
}
