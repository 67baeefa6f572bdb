//! Entries that could not be read: reported at once, counted, and remembered, because nothing
//! is known of the entries below them.

use std::collections::HashSet;
use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::record::ROOT;
use crate::scan::Progress;
use crate::text::Escaped;

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
    /// Counts a problem of the source as a whole. Entries that are missing because of it are
    /// problems of their own.
    pub(crate) fn add_general(&self, text: &str, progress: &dyn Progress) {
        self.lock().count += 1;
        progress.note(text);
    }

    /// Counts one, and reports it.
    pub(crate) fn add(&self, path: &[u8], error: &dyn Error, progress: &dyn Progress) {
        let mut state = self.lock();
        state.count += 1;
        let path = if path.is_empty() { ROOT } else { path };
        if state.paths.len() < REMEMBERED {
            state.paths.insert(path.to_vec());
        } else {
            state.forgotten = true;
        }
        let count = state.count;
        drop(state);
        match count {
            ..=TOLD => progress.problem(&shown(path), &error),
            n if n == TOLD + 1 => progress.note("more of these are counted only"),
            _ => {}
        }
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
