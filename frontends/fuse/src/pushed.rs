//! Changes behind the mount that the kernel is told of, so that it need not ask.
//!
//! Where the back end [announces](rcuwalk::Announcement) changes, the kernel gets answers that are
//! valid for [`TOLD`], and a notice of each change that makes one wrong. This file
//! collects the changes; `pushed/teller.rs` sends the notices, on threads that hold no lock and
//! answer no request.
//!
//! FRESH-1 for the kernel: no answer stays in its caches that was made before a change which the
//! back end has announced. A notice may come while such an answer is still under way. Why the
//! kernel drops that answer then:
//!
//! | answer            | notice         | because                                              |
//! |-------------------|----------------|------------------------------------------------------|
//! | a name, or none   | `INVAL_ENTRY`  | the request holds the directory's lock until the kernel has cached its answer, and the notice waits for that lock. A revalidation holds none, but the notice unhashes the name, so its answer counts for no later walk |
//! | attributes of an inode that the kernel has | `INVAL_INODE` | the kernel drops answers to requests that it sent before the notice (`attr_version`) |
//! | attributes of an inode that it does not have yet | `INVAL_INODE` | fails, and is repeated until the kernel has the inode, or has forgotten the node |
//! | names             | `INC_EPOCH`    | the kernel notes the epoch before it sends the request |
//!
//! In the third case the node must be found. The back end publishes the attributes, then looks
//! for the node; LOOKUP adds the node, then reads the attributes. With a fence between the two
//! steps on both sides, one thread sees the other's first step ([`Ops::found`], [`Handler::hear`]).
//!
//! The kernel takes the attributes in answers to CREATE, LINK, SETATTR and the like without
//! comparing versions. So these answers carry the timeouts of [`Options`](crate::Options).
//!
//! [`Ops::found`]: crate::ops::Ops

mod teller;

use std::collections::HashSet;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rcuwalk::inode::NodeId;
use rcuwalk::{Announcement, Listener};

use crate::wire::Handler;

pub(crate) use teller::start;

/// How long names, missing ones too, and attributes are valid of which the kernel hears. Not for
/// ever: attributes also change in ways that no host reports, such as a write to a mapping, and
/// there are names that no notice reaches (docs/fuse.md).
pub(crate) const TOLD: Duration = Duration::from_secs(60);

/// Most names that wait for their notices. If there are more, everything is invalidated.
const MOST: usize = 1 << 16;

/// The changes that the kernel has not been told of.
#[derive(Debug, Default)]
pub(crate) struct Pushed {
    queue: Mutex<Queue>,
    bell: Condvar,
    /// The kernel is told of changes soon.
    is_prompt: AtomicBool,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    names: AtomicU64,
    inodes: AtomicU64,
    everything: AtomicU64,
}

/// Notices of changes behind the mount that the kernel was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToldStatistics {
    /// Of a name that was made, moved or removed.
    pub names: u64,
    /// Of a file with other attributes or contents.
    pub inodes: u64,
    /// Times that everything was invalidated, since changes may have been missed.
    pub everything: u64,
}

#[derive(Debug, Default)]
struct Queue {
    names: HashSet<(NodeId, Box<[u8]>)>,
    nodes: HashSet<NodeId>,
    everything: bool,
    /// The start of the notice of a name that is under way.
    naming: Option<Instant>,
    is_over: bool,
}

impl Pushed {
    /// True if the kernel may rely on notices: answers are valid for [`TOLD`].
    pub(crate) fn is_prompt(&self) -> bool {
        // Relaxed: an answer that is valid for too long by a moment is still under way when
        // everything is invalidated.
        self.is_prompt.load(Relaxed)
    }

    pub(crate) fn statistics(&self) -> ToldStatistics {
        ToldStatistics {
            names: self.counts.names.load(Relaxed),
            inodes: self.counts.inodes.load(Relaxed),
            everything: self.counts.everything.load(Relaxed),
        }
    }

    /// The session is over.
    pub(crate) fn end(&self) {
        self.queue().is_over = true;
        self.bell.notify_all();
    }

    fn name(&self, dir: NodeId, name: &[u8]) {
        let mut queue = self.queue();
        if queue.names.len() < MOST {
            queue.names.insert((dir, Box::from(name)));
        } else {
            queue.lose();
        }
        self.bell.notify_all();
    }

    fn node(&self, node: NodeId) {
        self.queue().nodes.insert(node);
        self.bell.notify_all();
    }

    fn everything(&self) {
        self.queue().lose();
        self.bell.notify_all();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Everything is invalidated in place of the single changes.
    fn lose(&mut self) {
        self.names.clear();
        self.nodes.clear();
        self.everything = true;
    }
}

impl Listener for Handler {
    fn hear(&self, change: &Announcement<'_>) {
        // FRESH-1: pairs with the fence in `Ops::found`.
        fence(SeqCst);
        let pushed = &self.ops.pushed;
        // The kernel knows the changes that it has asked for.
        let is_own = |by: Option<u32>| by.is_some_and(|thread| self.own.contain(thread));
        match *change {
            Announcement::Name { dir, name, by } if !is_own(by) => {
                if let Some(dir) = self.ops.known(dir) {
                    pushed.name(dir, name);
                }
            }
            Announcement::Attributes { inode, by } if !is_own(by) => {
                if let Some(node) = self.ops.known(inode) {
                    pushed.node(node);
                }
            }
            Announcement::Everything => pushed.everything(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FRESH-1: what does not fit is not forgotten.
    #[test]
    fn more_names_than_fit_invalidate_everything() {
        let pushed = Pushed::default();
        for n in 0..MOST {
            pushed.name(NodeId(7), n.to_string().as_bytes());
        }
        assert!(!pushed.queue().everything);
        pushed.node(NodeId(8));
        pushed.name(NodeId(7), b"one more");
        let queue = pushed.queue();
        assert!(queue.everything, "FRESH-1");
        assert!(queue.names.is_empty() && queue.nodes.is_empty());
    }
}
