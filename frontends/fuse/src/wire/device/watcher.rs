//! The watcher: a thread that observes the answering threads, and adds others while they are
//! blocked (WATCH-1).

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::session::Session;
use crate::watch::{Load, STUCK, TICK};

/// Starts the watcher, which ends with the session.
///
/// # Errors
/// Out of threads.
pub(super) fn start(session: &Arc<Session>) -> io::Result<()> {
    let watched = session.clone();
    let thread = thread::Builder::new().name("rcuwalk-watch".to_owned());
    let thread = thread.spawn(move || {
        watch(&watched);
        Ok(())
    })?;
    session.members.started(thread);
    Ok(())
}

fn watch(session: &Arc<Session>) {
    let mut said = Duration::ZERO;
    let mut has_failed = false;
    while !session.members.wait_for_end(TICK) {
        let groups = session.groups();
        let mut loads: Vec<Load> = groups.iter().map(|one| Load::wanting(one.wanted)).collect();
        session.members.look(&session.handler.watch, &mut loads);
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
fn say(session: &Session, said: Duration) -> Duration {
    let now = session.handler.watch.stuck();
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
