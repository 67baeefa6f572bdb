//! Recognises requests that this process itself has made.
//!
//! Where the tree shows its own mount, a back end that asks about it asks us, and its thread
//! waits for another one of ours. A back end may know that ([`rcuwalk::FileSystem::shown`]); if
//! it does not, a request from an answering thread is a loop, and is answered `ELOOP` before
//! any back end call. Such threads have no other business with the mount.
//!
//! A thread is known by its number, which requests carry. Each request reads one word of a
//! table that changes only when threads start and end; if the bit is set, it looks the number
//! up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

const WORDS: usize = 16;

/// The threads that answer.
#[derive(Debug, Default)]
pub(crate) struct OwnThreads {
    /// Bits of their numbers. They guard nothing: a thread makes requests only after it has
    /// entered.
    bits: [AtomicU64; WORDS],
    all: Mutex<Vec<u32>>,
}

impl OwnThreads {
    /// Adds a thread that answers, until the result is dropped.
    pub(crate) fn enter(&self, thread: u32) -> Entered<'_> {
        self.change(|all| all.push(thread));
        Entered(self, thread)
    }

    /// True if the requesting thread is one that answers. 0 is a thread that is not visible
    /// from here.
    pub(crate) fn contain(&self, thread: u32) -> bool {
        let (word, bit) = place(thread);
        self.bits[word].load(Relaxed) & bit != 0 && self.contain_slow(thread)
    }

    #[cold]
    fn contain_slow(&self, thread: u32) -> bool {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        thread != 0 && all.contains(&thread)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<u32>)) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut all);
        let mut bits = [0; WORDS];
        for (word, bit) in all.iter().map(|thread| place(*thread)) {
            bits[word] |= bit;
        }
        for (word, bits) in self.bits.iter().zip(bits) {
            word.store(bits, Relaxed);
        }
    }
}

fn place(thread: u32) -> (usize, u64) {
    let bit = thread as usize % (64 * WORDS);
    (bit / 64, 1 << (bit % 64))
}

/// See [`OwnThreads::enter`].
pub(crate) struct Entered<'o>(&'o OwnThreads, u32);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.change(|all| all.retain(|thread| *thread != self.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_while_it_answers() {
        let own = OwnThreads::default();
        assert!(!own.contain(0) && !own.contain(5));
        let five = own.enter(5);
        let same_bit = own.enter(5 + 1024);
        assert!(own.contain(5) && own.contain(1029));
        assert!(!own.contain(2053), "another thread on the same bit");
        drop(five);
        assert!(!own.contain(5) && own.contain(1029));
        drop(same_bit);
        assert!(!own.contain(1029));
    }
}
