//! What a benchmark was run on: the line without which numbers say little.

use std::{fmt, fs, thread};

use serde::Serialize;

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

/// How many cores this process may use; 1 if nobody knows.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
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
    fn this_machine_has_a_name_and_a_kernel() {
        let machine = Machine::this();
        assert!(!machine.cpu.is_empty() && machine.cores > 0);
        assert!(machine.kernel.starts_with("Linux "));
    }
}
