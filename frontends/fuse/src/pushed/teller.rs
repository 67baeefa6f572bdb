//! The thread that sends the other notices, and sees to it that names are told of.
//!
//! | thread           | notices                     | waits in the kernel for                |
//! |------------------|-----------------------------|----------------------------------------|
//! | `rcuwalk-names`  | `INVAL_ENTRY`               | a directory's lock, so for requests in it |
//! | `rcuwalk-tell`   | `INVAL_INODE`               | nothing                                |
//!
//! None holds a lock of ours meanwhile, and no thread that answers waits for one of them. So the
//! request in question comes back, unless it is stuck in the back end (WATCH-1). Then the second
//! thread starts another one of the first kind, which tells of names in other directories.
//!
//! **Everything** is invalidated so:
//!
//! ```text
//!   prompt --> lost --> first: all names expire, and all attributes are invalid
//!     ^                   |
//!     |                   v
//!     +--- second <--- pause, QUIET long <--+
//!          all names      |                 |
//!          expire         +-- lost again ---+
//! ```
//!
//! FRESH-1: from `lost` on, answers carry the ordinary timeouts. Those that were given before
//! expire in `first`, with these exceptions. The answer to a lookup may be under way: the notice
//! waits for its directory's lock. The answer to a revalidation may be: it is cached a moment
//! later, and expires in `second`.
//!
//! Names **expire**, and are not removed from the kernel's cache (`INVAL_ENTRY` without that flag,
//! `INC_EPOCH`). If they were, processes would lose their current directories, and the kernel would
//! unmount what is mounted on any of them: also on a copy of this mount, and in mount namespaces
//! that are not visible from here. And every user who may write to the file system of the host can
//! make reports be lost. The names are those of all nodes, and those in
//! [`Given`](super::given::Given).

use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rcuwalk::inode::NodeId;

use super::queue::STUCK;
use super::{Pushed, names};
use crate::wire::{Handler, Notifier};

/// How long the kernel gets the ordinary timeouts once everything had to be invalidated: answers
/// that were under way are over by then, and where that happens all the time, it is not worth it.
const QUIET: Duration = Duration::from_secs(1);

/// How soon the kernel is told of a node again that it does not have yet.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LAST_RETRY: Duration = Duration::from_millis(128);

/// For so long changes through the mount gather before the kernel is told.
const GATHER: Duration = Duration::from_millis(10);

/// Names of nodes that wait to be told of at a time, when all expire.
const AT_A_TIME: usize = 1024;

/// Starts the threads, if the back end announces changes and the kernel is new enough (6.16). They
/// end with the session, this one last.
///
/// # Errors
/// Out of threads or descriptors.
pub(crate) fn start(handler: &Arc<Handler>, told: Notifier) -> io::Result<Option<JoinHandle<()>>> {
    // Not for its effect (nothing is cached yet), but to know the kernel: older ones are not
    // tested, and before 6.13 two changes of a file may leave it the same times.
    if told.begin_epoch().is_err() {
        return Ok(None);
    }
    // Asked last: a listener cannot be taken back.
    let listener: Weak<Handler> = Arc::downgrade(handler);
    if !handler.ops.listen(listener) {
        return Ok(None);
    }
    let teller = Teller {
        names: vec![names::start(handler, told.clone())?],
        handler: handler.clone(),
        notifier: told,
        phase: Phase::Prompt,
        again: HashSet::new(),
        retry: FIRST_RETRY,
    };
    teller.pushed().queue().is_open = true;
    let tell = thread::Builder::new().name("rcuwalk-tell".to_owned());
    tell.spawn(move || teller.run()).map(Some)
}

struct Teller {
    handler: Arc<Handler>,
    notifier: Notifier,
    phase: Phase,
    /// Nodes that the kernel did not have when it was told of them, though it is getting them.
    again: HashSet<NodeId>,
    retry: Duration,
    /// The threads that tell of names.
    names: Vec<names::Running>,
}

/// See the picture above.
enum Phase {
    Prompt,
    /// Nodes whose names have not expired yet.
    First(Vec<NodeId>),
    Pause(Instant),
    Second(Vec<NodeId>),
}

/// What the teller does next.
struct Work {
    nodes: HashSet<NodeId>,
    lost: bool,
    dropped: bool,
    /// Another thread is needed that tells of names.
    help: bool,
}

impl Pushed {
    /// Waits for work in this phase, until `end` if that is given. `None` once the session is over.
    fn take(&self, phase: &Phase, end: Option<Instant>) -> Option<Work> {
        let has_names = matches!(phase, Phase::First(_) | Phase::Second(_));
        let mut queue = self.queue();
        loop {
            if queue.is_over {
                return None;
            }
            let now = Instant::now();
            let can_help =
                matches!(phase, Phase::Prompt) || queue.names.threads < names::MOST_THREADS;
            let help = can_help && queue.names.need_help();
            let gathered = queue.changed_since.map(|since| since + GATHER);
            if gathered.is_some_and(|end| end <= now) {
                queue.changed_since = None;
                let changed = std::mem::take(&mut queue.changed);
                queue.nodes.extend(changed);
            }
            let is_time = end.is_some_and(|end| end <= now);
            let is_asked = queue.lost || queue.dropped || !queue.nodes.is_empty();
            if help || is_time || is_asked || has_names && queue.names.ready() < AT_A_TIME {
                queue.is_awaited = false;
                return Some(Work {
                    nodes: std::mem::take(&mut queue.nodes),
                    lost: std::mem::take(&mut queue.lost),
                    dropped: std::mem::take(&mut queue.dropped),
                    help,
                });
            }
            queue.is_awaited = has_names;
            // No bell rings when a notice gets stuck.
            let looks = (queue.names.ready() > 0).then_some(STUCK);
            let ends = end
                .into_iter()
                .chain(queue.changed_since.map(|since| since + GATHER));
            let until_end = ends.min().map(|end| end.saturating_duration_since(now));
            let wait = looks.into_iter().chain(until_end).min();
            let wait = wait.unwrap_or(Duration::from_secs(3600));
            let woken = self.bell.wait_timeout(queue, wait);
            queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn be_prompt(&self) {
        self.given.open();
        self.is_prompt.store(true, Relaxed);
    }

    /// Answers carry the ordinary timeouts from now on. Names that no node leads to expire.
    fn be_late(&self) {
        self.is_prompt.store(false, Relaxed);
        self.given
            .close(|dir, name| self.queue().names.expire(dir, name));
        self.names_bell.notify_all();
    }
}

impl Teller {
    fn run(mut self) {
        self.pushed().be_prompt();
        while let Some(work) = self.take() {
            if work.dropped || work.lost {
                self.lost(work.dropped);
            }
            self.go_on();
            for node in std::mem::take(&mut self.again)
                .into_iter()
                .chain(work.nodes)
            {
                self.tell(node);
            }
            self.retry = match self.again.is_empty() {
                true => FIRST_RETRY,
                false => LAST_RETRY.min(2 * self.retry),
            };
            if work.help {
                self.help();
            }
        }
        for names in self.names {
            // One that has panicked has said so.
            let _ = names.join();
        }
    }

    fn pushed(&self) -> &Pushed {
        &self.handler.ops.pushed
    }

    fn take(&self) -> Option<Work> {
        let retry = (!self.again.is_empty()).then(|| Instant::now() + self.retry);
        let pause = match &self.phase {
            Phase::Pause(end) => Some(*end),
            _ => None,
        };
        let end = retry.into_iter().chain(pause).min();
        self.pushed().take(&self.phase, end)
    }

    fn tell(&mut self, node: NodeId) {
        self.pushed().counts.inodes.fetch_add(1, Relaxed);
        let is_told = match self.notifier.invalidate_known_inode(node) {
            Ok(has_it) => has_it || !self.handler.ops.knows(node),
            Err(err) => err.errno() != libc::ENOMEM,
        };
        if !is_told {
            self.again.insert(node);
        }
    }

    /// Reports were lost, or notices dropped.
    fn lost(&mut self, dropped: bool) {
        self.pushed().counts.everything.fetch_add(1, Relaxed);
        match self.phase {
            // What was dropped may be names that were to expire.
            _ if dropped => self.everything(),
            Phase::Prompt => self.everything(),
            Phase::First(_) => {}
            Phase::Pause(_) | Phase::Second(_) => self.phase = pause(),
        }
    }

    fn everything(&mut self) {
        self.pushed().be_late();
        // Nodes that come meanwhile are those of later answers.
        let nodes = self.handler.ops.node_ids();
        for node in &nodes {
            self.tell(*node);
        }
        self.phase = Phase::First(nodes);
    }

    /// Lets more names expire, if it is time.
    fn go_on(&mut self) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Prompt) {
            Phase::First(nodes) if nodes.is_empty() => pause(),
            Phase::Second(nodes) if nodes.is_empty() => {
                self.pushed().be_prompt();
                Phase::Prompt
            }
            Phase::First(nodes) => Phase::First(self.expire(nodes)),
            Phase::Second(nodes) => Phase::Second(self.expire(nodes)),
            Phase::Pause(end) if end <= Instant::now() => {
                Phase::Second(self.handler.ops.node_ids())
            }
            phase => phase,
        };
    }

    /// Lets names of the last of these nodes expire; returns the others.
    fn expire(&self, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
        if self.pushed().queue().names.ready() >= AT_A_TIME {
            return nodes;
        }
        let some = nodes.split_off(nodes.len().saturating_sub(AT_A_TIME));
        let names: Vec<_> = some
            .into_iter()
            .flat_map(|node| self.handler.ops.names_of(node))
            .collect();
        let mut queue = self.pushed().queue();
        for (dir, name) in names {
            queue.names.expire(dir, &name);
        }
        drop(queue);
        self.pushed().names_bell.notify_all();
        nodes
    }

    /// Starts one more thread that tells of names. If there are too many, the kernel gets the
    /// ordinary timeouts: no name can expire before one of them is free again.
    fn help(&mut self) {
        self.names.retain(|names| !names.is_finished());
        let threads = self.pushed().queue().names.threads;
        if threads < names::MOST_THREADS {
            match names::start(&self.handler, self.notifier.clone()) {
                Ok(names) => self.names.push(names),
                Err(err) => {
                    tracing::debug!(%err, "no thread that tells of names");
                    thread::sleep(STUCK);
                }
            }
        } else if matches!(self.phase, Phase::Prompt) {
            self.lost(false);
        }
    }
}

fn pause() -> Phase {
    Phase::Pause(Instant::now() + QUIET)
}
