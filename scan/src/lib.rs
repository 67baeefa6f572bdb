//! Scans of whole trees: every entry once, in parallel, past all caches.
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! use rcuwalk_scan::{Options, Scan, Silent};
//!
//! let tree = tempfile::tempdir()?;
//! std::fs::write(tree.path().join("file"), "contents")?;
//!
//! let scan = Scan::open(tree.path(), Options::default())?;
//! let done = scan.run(&AtomicBool::new(false), &Silent)?;
//! assert!(done.report.complete);
//! assert_eq!(done.report.entries(), 2); // the directory itself, and the file
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | read          | to learn                                                   |
//! |---------------|------------------------------------------------------------|
//! | `scan.rs`     | the options, and how a scan runs and ends                  |
//! | `source.rs`   | what can be scanned, and by which engine                   |
//! | `visit.rs`    | what a thread does with an entry                           |
//! | `summary.rs`  | the summary, as a page of text and as JSON                 |
//! | `record.rs`   | a row; `line.rs`, `columns.rs`: its fields in each format  |
//! | `output.rs`   | files that appear when they are complete                   |
//! | `since.rs`    | comparing with a time; reading earlier scans               |
//! | `changes.rs`  | comparing with an earlier scan; `previous.rs`: its memory  |
//! | `problems.rs` | entries that could not be read                             |
//!
//! The rule that holds it together: a result that is called complete is complete. A result
//! that lacks entries because the scan ended early is marked as partial, and refused as an
//! earlier scan.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod changes;
#[cfg(any(feature = "parquet", feature = "sqlite"))]
mod columns;
mod error;
mod line;
mod output;
#[cfg(feature = "parquet")]
mod parquet_file;
mod previous;
mod problems;
mod record;
mod scan;
mod since;
mod source;
#[cfg(feature = "sqlite")]
mod sqlite_file;
mod summary;
mod text;
mod visit;

pub use error::Error;
pub use output::{Format, OutputState};
pub use rcuwalk_ext4::Checksums;
pub use scan::{Finished, Options, Partial, Progress, Rows, Scan, Silent};
pub use since::Since;
pub use source::Order;
pub use summary::Report;

/// The README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
