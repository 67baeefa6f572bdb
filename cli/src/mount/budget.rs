//! `--max-inodes`, `--max-memory`, `--max-fds`: limits of the caches, and their defaults.

use std::fs;
use std::path::Path;

use rcuwalk::Budget;

use crate::limits::raise_descriptor_limit;

/// Limits given by the user.
#[derive(clap::Args, Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Limits {
    /// Have the kernel hold N files at most, besides those in use; here, up to a quarter more stay cached [default: as many as --max-memory holds]
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) max_inodes: Option<usize>,
    /// Memory for caches, a KiB for each file: 512M, 2G [default: an eighth of the RAM, or of the control group's limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_memory: Option<usize>,
    /// Descriptors that stay open for cached directories; open files come on top [default: half of what the process may have]
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) max_fds: Option<usize>,
}

/// Resources of the machine.
struct Machine {
    memory: usize,
    descriptors: usize,
}

/// A node of the kernel's with its name and inode in our caches, and a share of the other
/// cached entries.
const BYTES_PER_NODE: usize = 1024;
const LEAST_MEMORY: usize = 8 << 20;
/// Without these, hardly anything works.
const SPARE_DESCRIPTORS: usize = 64;

impl Limits {
    /// Of `-o`: `max_inodes`, `max_memory`, `max_fds`. `None` if `name` is another.
    pub(crate) fn option(name: &str, value: &str) -> Option<Result<Limits, String>> {
        let none = Limits::default();
        Some(match name {
            "max_inodes" => count(value).map(|most| Limits {
                max_inodes: Some(most),
                ..none
            }),
            "max_memory" => size(value).map(|most| Limits {
                max_memory: Some(most),
                ..none
            }),
            "max_fds" => count(value).map(|most| Limits {
                max_fds: Some(most),
                ..none
            }),
            _ => return None,
        })
    }

    /// These, and `others` where they say nothing.
    pub(crate) fn or(self, others: Limits) -> Limits {
        Limits {
            max_inodes: self.max_inodes.or(others.max_inodes),
            max_memory: self.max_memory.or(others.max_memory),
            max_fds: self.max_fds.or(others.max_fds),
        }
    }

    /// Returns how many nodes the kernel may hold, and the caches' budget, on this machine.
    pub(crate) fn on_this_machine(self) -> (usize, Budget) {
        self.on(&Machine {
            memory: memory(),
            descriptors: raise_descriptor_limit(),
        })
    }

    /// Returns the most nodes for one that cannot be asked for any back, and the caches' budget. It
    /// may have what the limits say, or else as many as half of the memory holds.
    pub(crate) fn for_a_guest(self) -> (usize, Budget) {
        let (nodes, budget) = self.on_this_machine();
        match (self.max_inodes, self.max_memory) {
            (None, None) => (nodes.saturating_mul(4), budget),
            _ => (nodes, budget),
        }
    }

    fn on(self, machine: &Machine) -> (usize, Budget) {
        // A request for a number of inodes implies the memory for them.
        let asked = self.max_inodes.unwrap_or(0).saturating_mul(BYTES_PER_NODE);
        let memory = self.max_memory.unwrap_or((machine.memory / 8).max(asked));
        let memory = memory.max(LEAST_MEMORY);
        let fit = memory / BYTES_PER_NODE;
        let nodes = self.max_inodes.map_or(fit, |asked| asked.min(fit));
        let nodes = nodes.max(rcuwalk_fuse::FEWEST_NODES);
        let most = machine.descriptors.saturating_sub(SPARE_DESCRIPTORS);
        let fds = self.max_fds.unwrap_or(machine.descriptors / 2);
        // Each node holds one of both: more, or there would be room for no other. The other half of
        // the memory is for the nodes themselves.
        let budget = Budget::default()
            .inodes(nodes + nodes / 4)
            .dentries(nodes + nodes / 2)
            .bytes(memory / 2)
            .fds(fds.min(most));
        (nodes, budget)
    }
}

pub(crate) fn count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{text:?} is no number above 0"))
}

/// Bytes, with K, M, G or T for powers of 1024.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let shift = match &*text[digits.len()..].to_ascii_uppercase() {
        "" => Some(0),
        "K" | "KB" | "KIB" => Some(10),
        "M" | "MB" | "MIB" => Some(20),
        "G" | "GB" | "GIB" => Some(30),
        "T" | "TB" | "TIB" => Some(40),
        _ => None,
    };
    let number = digits.parse().ok().filter(|number: &usize| *number > 0);
    let bytes = shift
        .zip(number)
        .and_then(|(shift, n)| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("{text:?} is no size, such as 512M"))
}

/// Memory that this process may use: the machine's, or less in a control group.
pub(crate) fn memory() -> usize {
    let info = rcuwalk_procfs::read_to_string("meminfo").unwrap_or_default();
    let groups = rcuwalk_procfs::read_to_string("self/cgroup").unwrap_or_default();
    // Without /proc, little.
    let all = total(&info).unwrap_or(1 << 30);
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let limit = group.and_then(|group| group_limit(Path::new("/sys/fs/cgroup"), group));
    all.min(limit.unwrap_or(usize::MAX))
}

/// `MemTotal:       24579564 kB`.
fn total(meminfo: &str) -> Option<usize> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The smallest limit of a group (of version 2) and those above it.
fn group_limit(top: &Path, group: &str) -> Option<usize> {
    let group = top.join(group);
    let groups = group.ancestors().take_while(|group| group.starts_with(top));
    let limits = groups.filter_map(|group| {
        let text = fs::read_to_string(group.join("memory.max")).ok()?;
        // Or `max`.
        text.trim().parse().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine {
        memory: 16 << 30,
        descriptors: 1024,
    };

    #[test]
    fn limits_follow_from_the_machine_and_from_each_other() {
        let (nodes, budget) = Limits::default().on(&MACHINE);
        assert_eq!((nodes, budget.bytes, budget.fds), (2 << 20, 1 << 30, 512));
        assert_eq!((budget.inodes, budget.dentries), (5 << 19, 3 << 20));
        let given = |text: &str| {
            let options = text.split(',').filter_map(|option| option.split_once('='));
            let limits = options.map(|(name, value)| Limits::option(name, value).unwrap().unwrap());
            limits.fold(Limits::default(), |limits, more| more.or(limits))
        };
        let (nodes, budget) = given("max_inodes=300000").on(&MACHINE);
        assert_eq!((nodes, budget.inodes), (300_000, 375_000));
        let (nodes, budget) = given("max_inodes=300000,max_memory=64M").on(&MACHINE);
        assert_eq!((nodes, budget.bytes), (65_536, 32 << 20), "what fits");
        let (nodes, budget) = given("max_inodes=8000000,max_fds=99").on(&MACHINE);
        assert_eq!((nodes, budget.fds), (8_000_000, 99), "the memory for them");
        assert!(budget.bytes > 3 << 30);
        let (nodes, budget) = given("max_inodes=1,max_fds=5000").on(&MACHINE);
        assert_eq!((nodes, budget.fds), (64, 960), "no less, and no more");
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("1", 1),
            ("4k", 4096),
            ("512M", 512 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "0", "-1M", "1.5G", "1Q", "99999999999T", "é"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(count("0").is_err() && count("x").is_err());
        assert!(Limits::option("colour", "1").is_none());
    }

    #[test]
    fn the_least_limit_of_the_groups_above_counts() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("a/b")).unwrap();
        let limit = || group_limit(top.path(), "a/b");
        assert_eq!(limit(), None);
        fs::write(top.path().join("a/b/memory.max"), "max\n").unwrap();
        assert_eq!(limit(), None);
        fs::write(top.path().join("a/memory.max"), "1048576\n").unwrap();
        assert_eq!(limit(), Some(1 << 20));
        assert_eq!(total("MemTotal:  8 kB\nMemFree: 1 kB"), Some(8192));
    }
}
