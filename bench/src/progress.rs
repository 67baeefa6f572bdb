//! Telling how far a benchmark is.

/// How far the benchmark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps that are done: rounds, or turns in them.
    pub done: u64,
    /// Steps in all; those with many threads take longer.
    pub total: u64,
}

pub(crate) struct Steps<'a> {
    at: Progress,
    tell: &'a mut (dyn FnMut(Progress) + Send),
}

impl<'a> Steps<'a> {
    pub(crate) fn new(total: usize, tell: &'a mut (dyn FnMut(Progress) + Send)) -> Self {
        let total = total as u64;
        let at = Progress { done: 0, total };
        tell(at);
        Self { at, tell }
    }

    pub(crate) fn one_done(&mut self) {
        self.at.done += 1;
        (self.tell)(self.at);
    }
}
