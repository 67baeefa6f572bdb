//! One scan: what each thread does with each entry.

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use rcuwalk::Timestamp;
use rcuwalk::scan::{ScanEntry, Visitor};

use crate::changes::{Compared, Comparison};
use crate::output::{Batch, Output};
use crate::problems::Problems;
use crate::record::{Change, Kind, Record};
use crate::scan::Progress;
use crate::summary::{Common, Summary};

/// Progress is reported for this number of entries at a time.
const STEP: u64 = 512;

/// The state that all threads share.
pub(crate) struct Job<'s> {
    pub(crate) output: Option<Output>,
    pub(crate) wanted: Wanted,
    pub(crate) problems: Problems,
    pub(crate) common: Common,
    pub(crate) progress: &'s dyn Progress,
    /// The root's row comes last: a text without it is not complete.
    pub(crate) root: Mutex<Option<Record>>,
}

/// Which entries become rows.
pub(crate) enum Wanted {
    All,
    /// Those changed at or after a moment.
    Since(Timestamp),
    /// Those that are not as they were.
    Changed(Box<Comparison>),
}

/// One thread's part.
pub(crate) struct ScanVisitor<'j> {
    job: &'j Job<'j>,
    pub(crate) summary: Summary,
    pub(crate) batch: Batch,
    record: Record,
    /// Entries not reported yet.
    steps: u64,
}

impl<'j> ScanVisitor<'j> {
    pub(crate) fn new(job: &'j Job<'j>) -> ScanVisitor<'j> {
        ScanVisitor {
            job,
            summary: Summary::default(),
            batch: Batch::default(),
            record: Record::blank(),
            steps: 0,
        }
    }

    /// Writes `self.record`.
    fn row(&mut self) -> ControlFlow<()> {
        if let Some(change) = &self.record.change {
            self.summary.add_change(change.kind, &self.record);
        }
        match &self.job.output {
            Some(output) => match output.add(&mut self.batch, &self.record) {
                Ok(()) => ControlFlow::Continue(()),
                Err(()) => ControlFlow::Break(()),
            },
            None => ControlFlow::Continue(()),
        }
    }

    /// Writes a record that was not delivered by the scan.
    pub(crate) fn late_row(&mut self, record: Record) -> ControlFlow<()> {
        self.record = record;
        self.row()
    }

    fn step(&mut self) {
        self.steps += 1;
        if self.steps == STEP {
            self.job.progress.entries(STEP);
            self.steps = 0;
        }
    }
}

impl Visitor for ScanVisitor<'_> {
    fn entry(&mut self, entry: &ScanEntry<'_>) -> ControlFlow<()> {
        self.step();
        self.record.fill(entry);
        match &self.job.wanted {
            Wanted::All => {
                self.summary.add(entry, &self.record.path, &self.job.common);
                if self.job.output.is_none() {
                    return ControlFlow::Continue(());
                }
                if self.record.is_root() {
                    let mut root = self.job.root.lock().unwrap_or_else(PoisonError::into_inner);
                    *root = Some(self.record.clone());
                    return ControlFlow::Continue(());
                }
            }
            Wanted::Since(moment) => {
                self.summary.entries += 1;
                match since(&self.record, *moment) {
                    Some(change) => self.record.change = Some(change),
                    None => return ControlFlow::Continue(()),
                }
            }
            Wanted::Changed(comparison) => {
                self.summary.entries += 1;
                match comparison.compare(&self.record) {
                    Compared::Changed(change) => self.record.change = Some(change),
                    Compared::Unchanged | Compared::Undecided => return ControlFlow::Continue(()),
                }
            }
        }
        self.row()
    }

    fn problem(&mut self, path: &[u8], error: &dyn Error) -> ControlFlow<()> {
        self.job.problems.add(path, error, self.job.progress);
        ControlFlow::Continue(())
    }
}

/// The change that a time alone can show: touched since then, or even born.
fn since(record: &Record, moment: Timestamp) -> Option<Change> {
    let attr = &record.attr;
    let times = [("mtime", attr.mtime), ("ctime", attr.ctime)];
    let what: Vec<_> = times
        .iter()
        .filter(|(_, time)| *time >= moment)
        .map(|(name, _)| *name)
        .collect();
    if what.is_empty() {
        return None;
    }
    let kind = match record.btime() {
        Some(born) if born >= moment => Kind::New,
        _ => Kind::Changed,
    };
    Some(Change {
        kind,
        what,
        from: None,
    })
}
