//! Memory while a scan streams through a small cache (MEM-1).
//!
//! A backup asks for each inode once. A cache without a budget grows with all it has
//! seen; ours is to grow to its budget and stay there.

use std::fmt::Write;
use std::io;

use crate::iget::{Got, InodeTable, OursTable, allowed, resident_bytes};

/// The size of the process after this number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Keys so far.
    pub keys: u64,
    /// Resident memory of its own.
    pub kib: u64,
}

/// Asks for `keys` different inodes, one after the other, of a cache that may keep
/// `budget` of them. Tells `sample` of the memory every `every` keys, first of all
/// before the first.
///
/// # Errors
///
/// If the kernel does not say how large the process is.
pub fn stream(
    keys: u64,
    budget: u64,
    every: u64,
    mut sample: impl FnMut(Sample),
) -> io::Result<()> {
    let cache = OursTable::new(budget);
    for key in 0..keys {
        if key % every == 0 {
            let kib = resident_bytes()? >> 10;
            sample(Sample { keys: key, kib });
        }
        assert!(matches!(cache.iget(key), Got::New(_)), "never seen before");
    }
    let kib = resident_bytes()? >> 10;
    sample(Sample { keys, kib });
    assert!(cache.len() as u64 <= allowed(budget), "MEM-1");
    Ok(())
}

/// The samples as a curve, in SVG.
pub fn plot(samples: &[Sample], budget: u64) -> String {
    const WIDTH: f64 = 640.0;
    const HEIGHT: f64 = 240.0;
    const LEFT: f64 = 56.0;
    const BOTTOM: f64 = 40.0;
    const TOP: f64 = 28.0;
    const RIGHT: f64 = 44.0;

    let last = samples.last().map_or(1, |sample| sample.keys.max(1)) as f64;
    let most = samples.iter().map(|sample| sample.kib).max().unwrap_or(1) as f64 / 1024.0;
    let step = nice_step(most);
    let top = (most / step).ceil().max(1.0) * step;
    let x = |keys: f64| LEFT + (WIDTH - LEFT - RIGHT) * keys / last;
    let y = |mib: f64| HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * mib / top;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"16\">resident MiB while {} keys stream through a budget of {} \
         inodes</text>\n",
        crate::report::grouped(last as u64),
        crate::report::grouped(budget)
    );
    // Writing to a string does not fail.
    let mut mark = 0.0;
    while mark <= top {
        let at = y(mark);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
        mark += step;
    }
    for part in 0..=5 {
        let keys = last * f64::from(part) / 5.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(keys),
            HEIGHT - BOTTOM + 18.0,
            crate::report::grouped(keys as u64)
        );
    }
    let points: Vec<_> = samples
        .iter()
        .map(|sample| {
            let (x, y) = (x(sample.keys as f64), y(sample.kib as f64 / 1024.0));
            format!("{x:.1},{y:.1}")
        })
        .collect();
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"#1565c0\" stroke-width=\"1.5\" points=\"{}\"/>\n</svg>",
        points.join(" ")
    );
    svg
}

/// 1, 2 or 5 times a power of ten, so that some four of them make up `most`.
fn nice_step(most: f64) -> f64 {
    let rough = (most / 4.0).max(1e-3);
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|n| n * power);
    steps.into_iter().find(|&n| n >= rough).unwrap_or(rough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_a_point_per_sample_and_marks_that_people_count_in() {
        let samples = [(0, 2048), (500, 14 << 10), (1000, 15 << 10)];
        let samples = samples.map(|(keys, kib)| Sample { keys, kib });
        let svg = plot(&samples, 100);
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next();
        assert_eq!(points.unwrap().split(' ').count(), 3);
        for mark in [">0<", ">5<", ">10<", ">15<", ">1,000<", "budget of 100 "] {
            assert!(svg.contains(mark), "no {mark} in {svg}");
        }
    }

    #[test]
    fn steps_are_round() {
        for (most, step) in [(15.0, 5.0), (30.0, 10.0), (130.0, 50.0), (7.0, 2.0)] {
            assert_eq!(nice_step(most), step, "{most}");
        }
    }
}
