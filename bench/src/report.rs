//! A benchmark's result: one frame, one text table and one way to round for all of them.
//!
//! [`Report`] has what every result says; the details are the benchmark's own. Serialised,
//! both are one JSON document. A table sets rows as text.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use serde::Serialize;

use crate::machine::Machine;

/// The result of a benchmark. Serialised, it is the JSON document, with the details' fields
/// beside these.
#[derive(Clone, Debug, Serialize)]
pub struct Report<Details> {
    /// The benchmark's name.
    pub bench: &'static str,
    /// All contenders did and saw the same; there is no report otherwise.
    pub verified: bool,
    /// The measurements, and what only this benchmark says.
    #[serde(flatten)]
    pub details: Details,
    /// The machine it was measured on.
    pub machine: Machine,
}

impl<Details> Report<Details> {
    /// Of a benchmark whose results have been verified, on this machine.
    pub(crate) fn verified(bench: &'static str, details: Details) -> Self {
        Self {
            bench,
            verified: true,
            details,
            machine: Machine::this(),
        }
    }
}

impl<Details> Deref for Report<Details> {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.details
    }
}

impl<Details> DerefMut for Report<Details> {
    fn deref_mut(&mut self) -> &mut Details {
        &mut self.details
    }
}

/// Rows of cells, each column as wide as its widest cell. The first columns are words and
/// stand to the left; the others are numbers and stand to the right.
pub(crate) struct Table {
    words: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With `words` columns to the left, and the names of all columns with `|` between.
    pub(crate) fn new(words: usize, header: &str) -> Self {
        let names = header.split('|').map(|name| name.trim().to_owned());
        let rows = vec![names.collect()];
        Self { words, rows }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widest = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(widest).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(at, (cell, &width))| {
                if at < self.words {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// 1234567 as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// 0.125 as `12%`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Rounds `value` to `decimals` digits after the point: more would only look precise.
pub(crate) fn decimals(value: f64, decimals: i32) -> f64 {
    let unit = 10_f64.powi(decimals);
    (value * unit).round() / unit
}

/// Rounds `value` to `digits` significant digits, so that a small one does not become 0.
pub(crate) fn leading(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powf(f64::from(digits - 1) - value.abs().log10().floor());
    if scale.is_finite() {
        (value * scale).round() / scale
    } else {
        value
    }
}

/// Returns how many cores other programs kept busy on average, from pairs of elapsed time and
/// other programs' processor time.
pub(crate) fn other_programs(turns: impl Iterator<Item = (Duration, Duration)>) -> f64 {
    let sum =
        |sums: (Duration, Duration), turn: (Duration, Duration)| (sums.0 + turn.0, sums.1 + turn.1);
    let (elapsed, others) = turns.fold((Duration::ZERO, Duration::ZERO), sum);
    decimals(others.as_secs_f64() / elapsed.as_secs_f64(), 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(1, "contender | ns | ±");
        table.row(["ours".into(), "1,000".into(), "5%".into()]);
        let text = "contender     ns   ±\nours       1,000  5%\n";
        assert_eq!(table.to_string(), text);
    }

    #[test]
    fn the_document_has_the_details_beside_the_frame() {
        let details = std::collections::BTreeMap::from([("rounds", 7)]);
        let report = serde_json::to_value(Report::verified("x", details)).unwrap();
        assert_eq!(
            (&report["bench"], &report["rounds"]),
            (&"x".into(), &7.into())
        );
        assert_eq!(report["verified"], true);
        assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn digits_are_grouped_by_three() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn small_numbers_keep_their_leading_digits() {
        let cases = [
            (17.234567, 17.23),
            (0.000123456, 0.0001235),
            (1.0, 1.0),
            (0.0, 0.0),
        ];
        for (value, kept) in cases {
            assert!((leading(value, 4) - kept).abs() < 1e-12, "{value}");
        }
        assert_eq!(decimals(0.126, 2), 0.13);
    }
}
