//! What a cached inode takes, seen from outside: how much the process grows.
//!
//! A counting allocator would be more exact, and would slow down every allocation. So a fresh
//! process fills one table and reports its own size before and after: that includes the
//! overhead of the C library, our slabs, and the tables.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde::Serialize;

use super::InodeTable;

/// What cached inodes take.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// How many there were.
    pub inodes: u64,
    /// Resident bytes for each: key, private part, counts, lists and table.
    pub bytes_per_inode: BTreeMap<&'static str, f64>,
    /// What ours has from its allocator for each: the object and the heads of the table,
    /// without pages that are part empty.
    pub ours_from_allocator: Option<f64>,
}

/// What one inode takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InodeBytes {
    /// By how much the process grew.
    pub resident: f64,
    /// What an allocator of the table's own gave out, if there is one.
    pub allocated: Option<f64>,
}

pub(super) fn bytes_per_inode<T: InodeTable>(
    inodes: u64,
    make: impl Fn(u64) -> T,
) -> io::Result<InodeBytes> {
    let before = resident_bytes()?;
    // As for the hits: nothing may be evicted.
    let table = make(2 * inodes);
    let allocated_before = table.allocated();
    for key in 0..inodes {
        table.iget(key);
    }
    let after = resident_bytes()?;
    assert_eq!(table.len() as u64, inodes, "each is kept");
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / inodes as f64;
    let allocated = allocated_before.zip(table.allocated());
    Ok(InodeBytes {
        resident: each(before, after),
        allocated: allocated.map(|(before, after)| each(before, after)),
    })
}

/// How much memory of its own this process has, without files it has mapped.
///
/// # Errors
///
/// If /proc is not there, or says something else than it used to.
pub fn resident_bytes() -> io::Result<u64> {
    // `status` has it too, but behind by what threads have not added up yet.
    let kib = match fs::read_to_string("/proc/self/smaps_rollup") {
        Ok(text) => kib_of(&text, "Anonymous:"),
        Err(_) => kib_of(&fs::read_to_string("/proc/self/status")?, "RssAnon:"),
    };
    let unknown = || io::Error::other("/proc/self does not say how much memory is resident");
    Ok(kib.ok_or_else(unknown)? << 10)
}

fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_written_to_is_resident() {
        let before = resident_bytes().unwrap();
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = resident_bytes().unwrap();
        assert!(after - before > 48 << 20, "{before} to {after}");
        drop(block);
    }

    #[test]
    fn sizes_are_read_from_lines_like_these() {
        let text = "Rss:       1696 kB\nAnonymous:     140 kB\nSwap: 0 kB\n";
        assert_eq!(kib_of(text, "Anonymous:"), Some(140));
        assert_eq!(kib_of(text, "RssAnon:"), None);
    }
}
