//! The thread that closes files that clients have not used for a while. To close a file may take as
//! long as its host likes (written data goes to a dead server, say), so no other thread does it that
//! clients wait for.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Shared;

/// How often it looks.
const TICK: Duration = Duration::from_secs(1);

/// What the thread is asked for.
#[derive(Default)]
pub(super) struct Closer {
    needs_descriptors: Mutex<bool>,
    asked: Condvar,
}

impl Closer {
    /// Has all open files closed soon, because there are no more descriptors.
    pub(super) fn needs_descriptors(&self) {
        *self.lock() = true;
        self.asked.notify_one();
    }

    /// Has the thread see that the server is over.
    pub(super) fn wake(&self) {
        // With the lock, or the thread could be about to wait.
        let _locked = self.lock();
        self.asked.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        let locked = self.needs_descriptors.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn run(shared: &Shared) {
    let closer = &shared.closer;
    let export = &shared.dispatcher.export;
    loop {
        let needs_descriptors = {
            let idles = |needs: &mut bool| !*needs && !shared.is_over();
            let waited = closer.asked.wait_timeout_while(closer.lock(), TICK, idles);
            let (mut needs, _) = waited.unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *needs)
        };
        if shared.is_over() {
            return;
        }
        match needs_descriptors {
            true => export.opened.close_all(),
            false => export.tick(Instant::now()),
        }
    }
}
