//! Changes behind the mount that the kernel is told of, so that it need not ask.
//!
//! Where the back end [announces](rcuwalk::Announcement) changes, the kernel gets answers that are
//! valid for [`TOLD`], and a notice of each change that makes one wrong.
//!
//! | read               | to learn                                                   |
//! |--------------------|------------------------------------------------------------|
//! | this file          | which changes the kernel is told of                        |
//! | `pushed/queue.rs`  | the notices that wait                                      |
//! | `pushed/given.rs`  | names for which the kernel has a long answer and no node   |
//! | `pushed/names.rs`  | the threads that send notices of names                     |
//! | `pushed/teller.rs` | the thread that sends all others; everything invalidated   |
//!
//! These threads hold no lock and answer no request.
//!
//! FRESH-1 for the kernel: no answer stays in its caches that was made before a change which the
//! back end has announced. A notice may come while such an answer is still under way. Why the
//! kernel drops that answer then:
//!
//! | answer            | notice         | because                                              |
//! |-------------------|----------------|------------------------------------------------------|
//! | a name, or none   | `INVAL_ENTRY`  | the request holds the directory's lock until the kernel has cached its answer, and the notice waits for that lock. A revalidation holds none, but the notice unhashes the name, so its answer counts for no later walk |
//! | none, of a name that is new | `EXPIRE_ONLY` | as above; and an answer with the new file is right. The kernel unmounts nothing that has been mounted on the new file by then |
//! | attributes of an inode that the kernel has | `INVAL_INODE` | the kernel drops answers to requests that it sent before the notice (`attr_version`) |
//! | attributes of an inode that it does not have yet | `INVAL_INODE` | fails, and is repeated until the kernel has the inode, or has forgotten the node |
//! | names, after lost reports | `EXPIRE_ONLY`, twice | see `pushed/teller.rs` |
//!
//! In the third case the node must be found. The back end publishes the attributes, then looks
//! for the node; LOOKUP adds the node, then reads the attributes. With a fence between the two
//! steps on both sides, one thread sees the other's first step ([`Ops::found`], [`Handler::hear`]).
//!
//! The kernel takes the attributes in answers to CREATE, LINK, SETATTR and the like without
//! comparing versions. So these answers carry the timeouts of [`Options`](crate::Options).
//!
//! **The mount's own changes** are known to the kernel, with these exceptions:
//!
//! | change                                   | its notice                                  |
//! |------------------------------------------|---------------------------------------------|
//! | a name made, moved or removed           | `INVAL_INODE` of the directory: the kernel marks the attributes that it has as outdated, but a GETATTR under way may bring older ones |
//! | an extended attribute; the file of a RENAME | `INVAL_INODE` of the file, for the same reason |
//! | one that has failed, and may have been made all the same | `INVAL_ENTRY` of the name  |
//! | a file opened for writing past the daemon | `INVAL_INODE`: no host reports writes to a mapping, so what LOOKUP gave for long ends here |
//!
//! [`Ops::found`]: crate::ops::Ops

mod given;
mod names;
mod queue;
mod teller;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rcuwalk::inode::NodeId;
use rcuwalk::{Announcement, Error, Listener};

use crate::wire::Handler;
use given::Given;
use queue::{How, Queue};

pub(crate) use teller::start;

/// How long names, missing ones too, and attributes are valid of which the kernel hears. Not for
/// ever: attributes also change in ways that no host reports, such as a write to a mapping, and
/// there are names that no notice reaches (docs/fuse.md).
pub(crate) const TOLD: Duration = Duration::from_secs(60);

/// The changes that the kernel has not been told of.
#[derive(Debug, Default)]
pub(crate) struct Pushed {
    queue: Mutex<Queue>,
    /// Wakes the teller.
    bell: Condvar,
    /// Wakes the threads that tell of names.
    names_bell: Condvar,
    /// The kernel is told of changes soon.
    is_prompt: AtomicBool,
    given: Given,
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

impl Pushed {
    /// True if the kernel may rely on notices: answers are valid for [`TOLD`].
    pub(crate) fn is_prompt(&self) -> bool {
        // Relaxed: an answer that is valid for too long by a moment is still under way when
        // everything is invalidated for the first time, and cached when it is for the second.
        self.is_prompt.load(Relaxed)
    }

    /// True if the kernel may be told that a name is missing, for [`TOLD`].
    pub(crate) fn keeps_missing(&self, dir: NodeId, name: &[u8]) -> bool {
        self.is_prompt() && self.given.note(dir, name)
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
        self.names_bell.notify_all();
    }

    /// A node is now known by another name than this one, which the kernel may still have.
    pub(crate) fn former(&self, dir: NodeId, name: &[u8]) {
        if !self.given.note(dir, name) {
            self.name(dir, name, How::Expire);
        }
    }

    /// A change through the mount is done, after which the kernel may take older attributes of that
    /// node for new ones. It is told a moment later, once for all changes until then.
    pub(crate) fn changed(&self, node: NodeId) {
        if !self.is_prompt() {
            return;
        }
        let mut queue = self.queue();
        let is_first = queue.changed.is_empty();
        if queue.is_open && queue.changed.insert(node) && is_first {
            queue.changed_since = Some(Instant::now());
            drop(queue);
            self.bell.notify_all();
        }
    }

    /// A change of that name through the mount has failed: the kernel takes it for undone.
    pub(crate) fn failed(&self, dir: NodeId, name: &[u8], err: &Error) {
        let is_undone = matches!(
            err,
            Error::NotFound
                | Error::Exists
                | Error::NotEmpty
                | Error::NotADirectory
                | Error::IsADirectory
                | Error::ReadOnly
                | Error::CrossDevice
                | Error::Invalid
        );
        if !is_undone && self.is_prompt() {
            self.name(dir, name, How::Invalidate);
        }
    }

    fn name(&self, dir: NodeId, name: &[u8], how: How) {
        let mut queue = self.queue();
        if !queue.is_open {
            return;
        }
        let was_empty = queue.names.is_empty();
        queue.add(dir, name, how);
        let (has_idle, dropped) = (queue.names.idle > 0, queue.dropped);
        drop(queue);
        if has_idle {
            self.names_bell.notify_one();
        }
        // Where all threads are busy, the teller looks after them.
        if dropped || was_empty && !has_idle {
            self.bell.notify_all();
        }
    }

    fn node(&self, node: NodeId) {
        let mut queue = self.queue();
        if queue.is_open && queue.nodes.insert(node) && queue.nodes.len() == 1 {
            drop(queue);
            self.bell.notify_all();
        }
    }

    fn everything(&self) {
        self.queue().lost = true;
        self.bell.notify_all();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for Handler {
    fn hear(&self, change: &Announcement<'_>) {
        // FRESH-1: pairs with the fence in `Ops::found`.
        fence(SeqCst);
        let pushed = &self.ops.pushed;
        // The kernel knows the changes that it has asked for.
        let is_own = |by: Option<u32>| by.is_some_and(|thread| self.is_own(thread));
        match *change {
            Announcement::Name {
                dir,
                name,
                is_new,
                by,
            } if !is_own(by) => {
                let how = if is_new { How::Expire } else { How::Invalidate };
                if let Some(dir) = self.ops.known(dir) {
                    pushed.name(dir, name, how);
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

    fn is_own(&self, thread: u32) -> bool {
        self.own.contain(thread)
    }
}
