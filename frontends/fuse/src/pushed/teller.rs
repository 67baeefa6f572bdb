//! The threads that send the notices.
//!
//! | thread           | notices                     | waits in the kernel for                |
//! |------------------|-----------------------------|----------------------------------------|
//! | `rcuwalk-names`  | `INVAL_ENTRY`               | a directory's lock, so for requests in it |
//! | `rcuwalk-tell`   | `INVAL_INODE`, `INC_EPOCH`  | nothing                                |
//!
//! Neither holds a lock of ours meanwhile, and no thread that answers waits for either. So the
//! request in question comes back, unless it is stuck in the back end (WATCH-1). Then the second
//! thread sees that the first one does not get on: it invalidates everything, again and again,
//! and the kernel gets the ordinary timeouts until the request is over.
//!
//! **Everything** is invalidated by `INC_EPOCH`, after which the kernel looks each name up once
//! more, and `INVAL_INODE` for each node. The kernel unmounts a mount on a name that it
//! invalidates so. If there are mounts below this one, the names of all nodes expire instead,
//! one by one; a missing name stays missing for [`TOLD`](super::TOLD) at most.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rcuwalk::Result;
use rcuwalk::inode::NodeId;

use super::Pushed;
use crate::shrink::mount_points_below;
use crate::wire::{Handler, Notifier};

/// A notice of a name that takes longer than this waits for a stuck request.
const STUCK: Duration = Duration::from_millis(100);

/// How long the kernel gets the ordinary timeouts once everything had to be invalidated: answers
/// that were under way are over by then, and where that happens all the time, it is not worth it.
const QUIET: Duration = Duration::from_secs(1);

/// How soon the kernel is told of a node again that it does not have yet.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LAST_RETRY: Duration = Duration::from_millis(128);

/// Starts both threads, if the back end announces changes and the kernel knows epochs (6.16). They
/// end with the session.
///
/// # Errors
/// Out of threads or descriptors.
pub(crate) fn start(
    handler: &Arc<Handler>,
    notifier: impl Fn() -> io::Result<Notifier>,
    mount_point: &Path,
) -> io::Result<Vec<JoinHandle<()>>> {
    let told = notifier()?;
    // Asked first: a listener cannot be taken back. Nothing is cached yet.
    if told.begin_epoch().is_err() {
        return Ok(Vec::new());
    }
    let listener: Weak<Handler> = Arc::downgrade(handler);
    if !handler.ops.listen(listener) {
        return Ok(Vec::new());
    }
    let teller = Teller {
        handler: handler.clone(),
        notifier: told,
        mount_point: mount_point.to_owned(),
        again: Vec::new(),
        retry: FIRST_RETRY,
        quiet: None,
    };
    let (names, notifier) = (handler.clone(), notifier()?);
    let spawn = |name: &str| thread::Builder::new().name(name.to_owned());
    Ok(vec![
        spawn("rcuwalk-names").spawn(move || tell_names(&names.ops.pushed, &notifier))?,
        spawn("rcuwalk-tell").spawn(move || teller.run())?,
    ])
}

/// Until the session is over.
fn tell_names(pushed: &Pushed, notifier: &Notifier) {
    while let Some(names) = pushed.take_names() {
        for (dir, name) in names {
            pushed.queue().naming = Some(Instant::now());
            pushed.counts.names.fetch_add(1, Relaxed);
            // A name that the kernel does not know is no error, and any other one says that
            // the connection is over, or soon will be.
            let _ = notifier.invalidate_entry(dir, &name);
        }
        pushed.queue().naming = None;
    }
}

struct Teller {
    handler: Arc<Handler>,
    notifier: Notifier,
    mount_point: PathBuf,
    /// Nodes that the kernel did not have when it was told of them, though it is getting them.
    again: Vec<NodeId>,
    retry: Duration,
    /// Until then, the kernel gets the ordinary timeouts.
    quiet: Option<Instant>,
}

impl Pushed {
    /// Waits for names to tell of. `None` once the session is over.
    fn take_names(&self) -> Option<HashSet<(NodeId, Box<[u8]>)>> {
        let mut queue = self.queue();
        while queue.names.is_empty() && !queue.is_over {
            queue = self
                .bell
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        (!queue.is_over).then(|| std::mem::take(&mut queue.names))
    }

    /// Waits for other work, for `patience` if that is given. A stuck notice is work again from
    /// `pause` on. `None` once the session is over.
    fn take(&self, patience: Option<Duration>, pause: Option<Instant>) -> Option<Work> {
        let end = patience.map(|patience| Instant::now() + patience);
        let mut queue = self.queue();
        loop {
            if queue.is_over {
                return None;
            }
            let naming = queue.naming.map(|since| since.elapsed());
            let now = Instant::now();
            let paused = pause.map_or(Duration::ZERO, |end| end.saturating_duration_since(now));
            let is_stuck = paused.is_zero() && naming.is_some_and(|time| time >= STUCK);
            let is_time = end.is_some_and(|end| end <= now);
            if is_stuck || is_time || queue.everything || !queue.nodes.is_empty() {
                return Some(Work {
                    nodes: queue.nodes.drain().collect(),
                    everything: std::mem::take(&mut queue.everything),
                    is_stuck,
                });
            }
            let until_stuck = match naming {
                Some(time) => Some(STUCK.saturating_sub(time).max(paused)),
                None => (!queue.names.is_empty()).then_some(STUCK),
            };
            let until_end = end.map(|end| end - now);
            let wait = until_stuck.into_iter().chain(until_end).min();
            let wait = wait.unwrap_or(Duration::from_secs(3600));
            let woken = self.bell.wait_timeout(queue, wait);
            queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What the teller does next.
struct Work {
    nodes: Vec<NodeId>,
    everything: bool,
    /// A notice of a name is stuck.
    is_stuck: bool,
}

impl Teller {
    fn run(mut self) {
        self.pushed().is_prompt.store(true, Relaxed);
        while let Some(work) = self.take() {
            if work.everything || work.is_stuck {
                self.everything();
            } else if self.quiet.is_some_and(|end| end <= Instant::now()) {
                self.quiet = None;
                self.pushed().is_prompt.store(true, Relaxed);
            }
            for node in std::mem::take(&mut self.again) {
                self.tell(node);
            }
            for node in work.nodes {
                self.tell(node);
            }
            self.retry = match self.again.is_empty() {
                true => FIRST_RETRY,
                false => LAST_RETRY.min(2 * self.retry),
            };
        }
    }

    fn pushed(&self) -> &Pushed {
        &self.handler.ops.pushed
    }

    fn take(&self) -> Option<Work> {
        // Half of the ordinary timeouts in between: as long as the notice is stuck, these are what
        // the kernel gets, and all is invalidated before it may rely on notices again.
        let pause = self.quiet.map(|end| end - QUIET / 2);
        self.pushed().take(self.patience(), pause)
    }

    /// How long to wait for work; `None` for as long as it takes.
    fn patience(&self) -> Option<Duration> {
        let retry = (!self.again.is_empty()).then_some(self.retry);
        let now = Instant::now();
        let quiet = self.quiet.map(|end| end.saturating_duration_since(now));
        retry.into_iter().chain(quiet).min()
    }

    fn tell(&mut self, node: NodeId) {
        self.pushed().counts.inodes.fetch_add(1, Relaxed);
        let has_it = self.notifier.invalidate_known_inode(node);
        if has_it.is_ok_and(|has_it| !has_it) && self.handler.ops.knows(node) {
            self.again.push(node);
        }
    }

    fn everything(&mut self) {
        self.pushed().is_prompt.store(false, Relaxed);
        self.pushed().counts.everything.fetch_add(1, Relaxed);
        self.quiet = Some(Instant::now() + QUIET);
        let is_bare = mount_points_below(&self.mount_point).is_empty();
        if is_bare && let Err(err) = self.notifier.begin_epoch() {
            tracing::debug!(%err, "the kernel does not take a new epoch");
        }
        // Nodes that come meanwhile are those of later answers.
        for node in self.handler.ops.node_ids() {
            if !is_bare && let Err(err) = self.expire(node) {
                tracing::debug!(%err, "a name does not expire");
            }
            self.tell(node);
        }
    }

    fn expire(&self, node: NodeId) -> Result<()> {
        match self.handler.ops.name_of(node) {
            Some(name) => self.notifier.expire_entry(name.parent, name.name()),
            None => Ok(()),
        }
    }
}
