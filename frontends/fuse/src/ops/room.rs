//! Waits for the space of a removed file, which comes back a moment later.
//!
//! unlink(2) and close(2) return before the kernel sends RELEASE and FORGET, and until then the
//! file may still be open. On a full file system the next system call could therefore fail with
//! `ENOSPC`, which never happens on a local one. So a request that finds no space a moment
//! after a removal waits a little and tries again, with nothing locked. One request waits at a
//! time: the other threads must handle the RELEASEs and FORGETs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::Result;

use crate::interrupt;

/// By then the space of a removed file is free, or another process uses the file.
const SOON: Duration = Duration::from_millis(50);
const STEP: Duration = Duration::from_millis(1);

/// Waits for space after a removal, see the module. Its atomics guard no other data: relaxed.
pub(super) struct Room {
    began: Instant,
    /// The time of the last removal, in milliseconds since `began`, plus one; 0 for none.
    removed: AtomicU64,
    is_waited_for: AtomicBool,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            began: Instant::now(),
            removed: AtomicU64::new(0),
            is_waited_for: AtomicBool::new(false),
        }
    }
}

impl Room {
    /// Records that a name has been removed, or a file without a name closed.
    pub(super) fn will_come(&self) {
        self.removed.store(self.now() + 1, Relaxed);
    }

    /// Calls `ask`, which takes space, and repeats it while space may come back. A call that
    /// fails for lack of space must have done nothing.
    pub(super) fn ask<T>(&self, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        match ask() {
            done if !is_full(&done) || !self.may_come() => done,
            done => self.ask_again(done, ask),
        }
    }

    #[cold]
    fn ask_again<T>(&self, mut done: Result<T>, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        if self.is_waited_for.swap(true, Relaxed) {
            return done;
        }
        let _waiting = Waiting(self);
        let until = Instant::now() + SOON;
        loop {
            thread::sleep(STEP);
            done = ask();
            if !is_full(&done) || Instant::now() >= until || !interrupt::is_wanted() {
                break;
            }
        }
        done
    }

    fn may_come(&self) -> bool {
        let soon = SOON.as_millis() as u64;
        match self.removed.load(Relaxed) {
            0 => false,
            removed => self.now() <= removed + soon,
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

/// Ends the wait, also if the request panics.
struct Waiting<'r>(&'r Room);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.is_waited_for.store(false, Relaxed);
    }
}

fn is_full<T>(done: &Result<T>) -> bool {
    matches!(done, Err(err) if err.errno() == libc::ENOSPC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcuwalk::Error;

    #[test]
    fn what_a_removed_file_leaves_is_waited_for() {
        let asked = |room: &Room, comes_with: u32| {
            let mut times = 0;
            let done = room.ask(|| {
                times += 1;
                match times == comes_with {
                    true => Ok(()),
                    false => Err(Error::NoSpace),
                }
            });
            (done.is_ok(), times)
        };
        let room = Room::default();
        assert_eq!(asked(&room, 2), (false, 1), "nothing was removed");
        room.will_come();
        assert_eq!(asked(&room, 1), (true, 1));
        // A removal in the future, so that it counts as recent however slow this thread is.
        room.removed.store(u64::MAX / 2, Relaxed);
        assert_eq!(asked(&room, 2), (true, 2));
        let (done, times) = asked(&room, 0);
        assert!(!done && times > 1, "not for ever");
        room.is_waited_for.store(true, Relaxed);
        assert_eq!(asked(&room, 2), (false, 1), "one at a time");
        let other = room.ask(|| Err::<(), _>(Error::Exists));
        assert!(matches!(other, Err(Error::Exists)));
    }
}
