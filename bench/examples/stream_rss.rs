//! Streams ten million keys through a budget of a hundred thousand inodes, and prints
//! how large the process is meanwhile, as CSV. With an argument, writes the curve to
//! that file, as SVG: `docs/stream-rss.svg` was made so.

use std::{fs, io};

use rcuwalk_bench::scan;

const KEYS: u64 = 10_000_000;
const BUDGET: u64 = 100_000;

fn main() -> io::Result<()> {
    let mut samples = Vec::with_capacity(256);
    scan::stream(KEYS, BUDGET, KEYS / 200, |sample| samples.push(sample))?;
    println!("keys,resident_kib");
    for sample in &samples {
        println!("{},{}", sample.keys, sample.kib);
    }
    match std::env::args_os().nth(1) {
        Some(file) => fs::write(file, scan::plot(&samples, BUDGET)),
        None => Ok(()),
    }
}
