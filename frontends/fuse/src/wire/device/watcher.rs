//! The watcher: a thread that observes the answering threads, and adds others while they are
//! blocked (WATCH-1).

use std::io;
use std::thread;
use std::time::Duration;

use super::members::Members;
use crate::watch::{Load, STUCK, TICK, Watch};

/// A session with threads that are watched.
pub(super) trait Watched: Clone + Send + 'static {
    fn members(&self) -> &Members;

    fn watch(&self) -> &Watch;

    /// The number of threads in each group while none is blocked.
    fn wanted(&self) -> Vec<usize>;

    /// Starts one more thread for a group in which too many are blocked.
    ///
    /// # Errors
    /// Out of threads or descriptors.
    fn add_spare(&self, group: usize) -> io::Result<()>;
}

/// Starts the watcher, which ends with the session.
///
/// # Errors
/// Out of threads.
pub(super) fn start(session: &impl Watched) -> io::Result<()> {
    let watched = session.clone();
    let thread = thread::Builder::new().name("rcuwalk-watch".to_owned());
    let thread = thread.spawn(move || {
        watch(&watched);
        Ok(())
    })?;
    session.members().started(thread);
    Ok(())
}

fn watch(session: &impl Watched) {
    let mut said = Duration::ZERO;
    let mut has_failed = false;
    while !session.members().wait_for_end(TICK) {
        let wanted = session.wanted().into_iter();
        let mut loads: Vec<Load> = wanted.map(Load::wanting).collect();
        session.members().look(session.watch(), &mut loads);
        for (group, load) in loads.iter().enumerate() {
            if !load.wants_more() {
                continue;
            }
            match session.add_spare(group) {
                Ok(()) => has_failed = false,
                // Out of threads or descriptors: the next tick tries again.
                Err(err) if !has_failed => {
                    has_failed = true;
                    tracing::warn!(%err, "all threads are blocked, and there can be no more");
                }
                Err(_) => {}
            }
        }
        said = say(session, said);
    }
}

/// Logs stuck requests: when the first one is stuck, each time its age has doubled, and when
/// none is left. Returns the age that was logged last.
fn say(session: &impl Watched, said: Duration) -> Duration {
    let now = session.watch().stuck();
    if now.stuck == 0 {
        if said > Duration::ZERO {
            tracing::info!("no request is stuck any more");
        }
        return Duration::ZERO;
    }
    if now.oldest < STUCK.max(2 * said) {
        return said;
    }
    tracing::warn!(
        "{} requests are stuck in the source, the oldest for {} s",
        now.stuck,
        now.oldest.as_secs()
    );
    now.oldest
}
