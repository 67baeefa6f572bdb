//! Guesses whether a new file will be a small one.
//!
//! Handing a host's file to the kernel (see `through.rs`) costs about as much as answering a
//! WRITE or two, and has to be decided when the file is opened. How large a new file will
//! become is not known then. But a thread that makes files often makes many of a kind: an
//! unpacked archive, a build, a spool. So each thread (requests name no process) is remembered
//! with the sizes that the last files it made had when they were closed. A thread that has made
//! a few small ones in a row goes on by request, until a larger one shows that guess to be
//! wrong; all other threads are expected to make large ones.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Counts of recent small files, by thread. Two threads that share an entry disturb each
/// other's guesses, and nothing else.
pub(crate) struct Guess([AtomicU8; PLACES]);

const PLACES: usize = 1024;

/// Small files in a row after which the next one is expected to be small.
const ENOUGH: u8 = 4;

/// Data that one WRITE may carry at little cost.
const SMALL: u64 = 64 << 10;

impl Default for Guess {
    fn default() -> Guess {
        Guess([const { AtomicU8::new(0) }; PLACES])
    }
}

impl Guess {
    /// True if the file that thread `pid` is making is expected to be small.
    pub(crate) fn is_small(&self, pid: u32) -> bool {
        self.place(pid).load(Relaxed) >= ENOUGH
    }

    /// Records the size at close of a file that thread `pid` has made.
    pub(crate) fn closed(&self, pid: u32, size: u64) {
        let place = self.place(pid);
        let in_a_row = place.load(Relaxed);
        let now = if size <= SMALL {
            in_a_row.saturating_add(1).min(ENOUGH)
        } else {
            0
        };
        // Stored only when it changes: most threads go on as before.
        if now != in_a_row {
            place.store(now, Relaxed);
        }
    }

    fn place(&self, pid: u32) -> &AtomicU8 {
        &self.0[pid as usize % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_makes_small_files_goes_on_until_a_large_one() {
        let guess = Guess::default();
        for _ in 0..ENOUGH {
            assert!(!guess.is_small(7));
            guess.closed(7, 100);
        }
        assert!(guess.is_small(7) && !guess.is_small(8));
        guess.closed(7, SMALL);
        assert!(guess.is_small(7));
        guess.closed(7, SMALL + 1);
        assert!(!guess.is_small(7));
    }
}
