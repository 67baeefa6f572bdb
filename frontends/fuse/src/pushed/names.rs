//! The threads that send the notices of names.
//!
//! Each has a table of descriptors of its own ([`Notifier::alone`]), so these threads do nothing else:
//! they open and log nothing, and drop nothing that holds a descriptor.
//!
//! There is one, `rcuwalk-names`, and more while a notice waits for a stuck request (WATCH-1): see
//! [`Names::need_help`](super::queue::Names::need_help). The one that finds no work while another
//! waits for work ends.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rcuwalk::inode::NodeId;

use super::Pushed;
use super::queue::{How, InDir};
use crate::wire::{Handler, Notifier};

/// Most of them. If a notice is stuck on each, names wait, and the kernel gets the ordinary
/// timeouts.
pub(super) const MOST_THREADS: usize = 16;

/// How long a thread waits when the kernel is out of memory for a notice.
const PAUSE: Duration = Duration::from_millis(10);

/// A thread, and what it drops neither itself nor as the last.
pub(super) type Running = JoinHandle<(Arc<Handler>, Notifier)>;

/// Starts one, which ends with the session at the latest.
///
/// # Errors
/// Out of threads.
pub(super) fn start(handler: &Arc<Handler>, notifier: Notifier) -> io::Result<Running> {
    handler.ops.pushed.queue().names.threads += 1;
    let names = handler.clone();
    let thread = thread::Builder::new().name("rcuwalk-names".to_owned());
    let thread = thread.spawn(move || {
        let alone = notifier.alone();
        names
            .ops
            .pushed
            .tell_names(alone.as_ref().unwrap_or(&notifier));
        (names, notifier)
    });
    if thread.is_err() {
        handler.ops.pushed.queue().names.threads -= 1;
    }
    thread
}

impl Pushed {
    fn tell_names(&self, notifier: &Notifier) {
        while let Some((dir, names)) = self.take_names() {
            let mut left = InDir::new();
            for (name, how) in names {
                self.queue().names.begin(dir);
                self.counts.names.fetch_add(1, Relaxed);
                let told = match how {
                    How::Invalidate => notifier.invalidate_entry(dir, &name),
                    How::Expire => notifier.expire_entry(dir, &name),
                };
                // A name that the kernel does not know is no error, and any other one says that
                // the connection is over, or soon will be.
                if told.is_err_and(|err| err.errno() == libc::ENOMEM) {
                    left.insert(name, how);
                }
            }
            let pause = !left.is_empty();
            self.told_of(dir, left);
            if pause {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Waits for names to tell of. `None` once the session is over, or if there are more threads
    /// than needed.
    fn take_names(&self) -> Option<(NodeId, InDir)> {
        let mut queue = self.queue();
        queue.names.idle += 1;
        let taken = loop {
            if queue.is_over {
                break None;
            }
            let taken = queue.names.take();
            if taken.is_some() || queue.names.idle > 1 {
                break taken;
            }
            let woken = self.names_bell.wait(queue);
            queue = woken.unwrap_or_else(PoisonError::into_inner);
        };
        queue.names.idle -= 1;
        if taken.is_none() {
            queue.names.threads -= 1;
        }
        taken
    }

    fn told_of(&self, dir: NodeId, left: InDir) {
        let mut queue = self.queue();
        queue.told(dir, left);
        let is_awaited = queue.is_awaited || queue.dropped;
        drop(queue);
        if is_awaited {
            self.bell.notify_all();
        }
    }
}
