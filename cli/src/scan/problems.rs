//! What could not be read: told at once, counted, and remembered, because nothing is
//! known of what is below.

use std::collections::HashSet;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::ProgressBar;

use super::record::ROOT;
use super::text::Escaped;

/// As many are told one by one.
const TOLD: u64 = 100;

/// As many are remembered by path.
const REMEMBERED: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct Problems(Mutex<State>);

#[derive(Default)]
struct State {
    count: u64,
    paths: HashSet<Vec<u8>>,
    /// Some were not remembered.
    forgotten: bool,
}

impl Problems {
    /// Notes one of the source as a whole. Which entries that costs, if any, they tell
    /// themselves.
    pub(crate) fn add_general(&self, told: impl Display) {
        self.lock().count += 1;
        drop(writeln!(io::stderr(), "rcuwalk: {told}"));
    }

    /// Notes one, and tells the user, past the progress that is shown.
    pub(crate) fn add(&self, path: &[u8], error: &dyn Error, bar: &ProgressBar) {
        let mut state = self.lock();
        state.count += 1;
        let path = if path.is_empty() { ROOT } else { path };
        if state.paths.len() < REMEMBERED {
            state.paths.insert(path.to_vec());
        } else {
            state.forgotten = true;
        }
        let line = match state.count {
            ..=TOLD => format!("rcuwalk: {}: {error}", shown(path)),
            n if n == TOLD + 1 => "rcuwalk: more of these are counted only".to_owned(),
            _ => return,
        };
        drop(state);
        // With standard error closed there is nobody left to tell.
        bar.suspend(|| drop(writeln!(io::stderr(), "{line}")));
    }

    pub(crate) fn count(&self) -> u64 {
        self.lock().count
    }

    /// True if `path` may be there, unseen because of one of these.
    pub(crate) fn cover(&self, path: &[u8]) -> bool {
        let state = self.lock();
        let above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let above = above.filter_map(|(end, _)| path.get(..end));
        let mut self_and_above = above.chain([path, ROOT]);
        state.forgotten
            || !state.paths.is_empty() && self_and_above.any(|path| state.paths.contains(path))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A path for a terminal: on one line, and without bytes that mean something there.
fn shown(path: &[u8]) -> String {
    let text = Escaped::of(path).text;
    if text.chars().any(char::is_control) {
        path.escape_ascii().to_string()
    } else {
        text.into_owned()
    }
}
