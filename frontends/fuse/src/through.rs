//! Passthrough: contents that the kernel reads and writes by itself, in the host's file.
//!
//! The kernel has a rule: while a file is open, all its open files use one [`Way`]. The first
//! open decides, later ones follow, and the last close ends it. So a node has a [`Ways`], with
//! a weak reference to the current way, and each open file has a counted one. The kernel
//! reports a close after it is done with the file, so the files that it considers open are
//! always open here too.
//!
//! **Set-id bits.** The kernel writes with the credentials of the thread that registers the
//! host's file, and that is a privileged one: any user's write would leave set-id bits. So it
//! registers without the right to keep them ([`as_stripping`]), and the host clears them. A
//! file that has such bits when it is opened goes by request: there the writer is known, and
//! root's writes leave them. For a file that gets them meanwhile, the kernel asks for the
//! attributes at each use ([`AttrReply`](crate::ops::AttrReply)).
//!
//! **What it looks like.** The VFS does not see these writes. The kernel notices that size and
//! times have changed and asks; so while a file is open this way its attributes are read from
//! the host each time, and once more when it is closed ([`File::stat`]). A later write to a
//! mapping shows as a change on the host does.
//!
//! [`File::stat`]: rcuwalk::File::stat

use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// A host's file as registered with the kernel. Dropping it unregisters the file.
pub(crate) type Backing = Box<dyn Any + Send + Sync>;

/// How the contents of an open file are read and written.
pub(crate) enum Way {
    /// By requests from the kernel.
    ByRequest,
    /// By the kernel itself, in the host's file.
    Through(Backing),
}

impl Way {
    /// Returns the registered file, for a transport that registers with a `B`.
    pub(crate) fn backing<B: 'static>(&self) -> Option<&B> {
        match self {
            Way::ByRequest => None,
            Way::Through(backing) => backing.downcast_ref(),
        }
    }

    pub(crate) fn is_through(&self) -> bool {
        matches!(self, Way::Through(_))
    }
}

/// The way that all open files of one node share.
#[derive(Default)]
pub(crate) struct Ways {
    now: Mutex<Weak<Way>>,
    /// Set for good: most files never use passthrough, and need no lock to know that.
    ever_through: AtomicBool,
}

impl Ways {
    /// Returns the way of the open file, or lets `choose` decide if the file is not open yet.
    pub(crate) fn agree(&self, choose: impl FnOnce() -> Way) -> Arc<Way> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agreed) = now.upgrade() {
            return agreed;
        }
        let chosen = Arc::new(choose());
        if chosen.is_through() {
            // Before the kernel is told, and so before any write.
            self.ever_through.store(true, Relaxed);
        }
        *now = Arc::downgrade(&chosen);
        chosen
    }

    /// True if contents may change without a request.
    pub(crate) fn are_through(&self) -> bool {
        if !self.ever_through.load(Relaxed) {
            return false;
        }
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.upgrade().is_some_and(|way| way.is_through())
    }
}

/// Whether the kernel accepts files of the host at all.
#[derive(Default)]
pub(crate) struct Offer(AtomicBool);

impl Offer {
    /// Records that the kernel has agreed to passthrough.
    pub(crate) fn accepted(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn stands(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Returns the way for a file whose contents are in `host`: passthrough, if the kernel
    /// registers it.
    pub(crate) fn way(
        &self,
        host: BorrowedFd<'_>,
        register: impl FnOnce(BorrowedFd<'_>) -> io::Result<Backing>,
    ) -> Way {
        match as_stripping(|| register(host)) {
            Ok(backing) => Way::Through(backing),
            Err(err) => {
                if err.raw_os_error() == Some(Errno::PERM.raw_os_error()) {
                    // Registering needs CAP_SYS_ADMIN, and the next one would fail as well.
                    self.0.store(false, Relaxed);
                }
                // Out of memory, or a stacked file system, of which the kernel allows few
                // levels: this file goes by request as well.
                Way::ByRequest
            }
        }
    }
}

/// Runs `register` with credentials whose writes clear set-id bits: the kernel keeps the
/// credentials of the moment.
#[doc(alias("CAP_FSETID", "setattr_should_drop_suidgid"))]
fn as_stripping<T>(register: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mine = capabilities(None)?;
    if !mine.effective.contains(CapabilitySet::FSETID) {
        return register();
    }
    let mut less = mine;
    less.effective.remove(CapabilitySet::FSETID);
    set_capabilities(None, less)?;
    let _back = Restore(mine);
    register()
}

/// Restores this thread's capabilities, also after a panic. They are still in its permitted
/// set, so the kernel does not refuse.
struct Restore(rustix::thread::CapabilitySets);

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = set_capabilities(None, self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through() -> Way {
        Way::Through(Box::new(7_u32))
    }

    #[test]
    fn all_who_have_a_file_open_do_it_one_way() {
        let ways = Ways::default();
        assert!(!ways.are_through());
        let first = ways.agree(through);
        let second = ways.agree(|| Way::ByRequest);
        assert!(second.is_through() && ways.are_through());
        assert_eq!(second.backing::<u32>(), Some(&7));
        drop(first);
        assert!(ways.agree(|| Way::ByRequest).is_through(), "one is left");
        drop(second);
        assert!(!ways.are_through());
        let next = ways.agree(|| Way::ByRequest);
        assert!(!ways.agree(through).is_through());
        drop(next);
        assert!(
            ways.agree(through).is_through(),
            "anew when all have closed it"
        );
    }

    #[test]
    fn a_refusal_is_for_good_and_a_failure_for_once() {
        let offer = Offer::default();
        offer.accepted();
        let null = std::fs::File::open("/dev/null").unwrap();
        let host = std::os::fd::AsFd::as_fd(&null);
        let failing = |errno: Errno| move |_: BorrowedFd<'_>| Err(errno.into());
        assert!(!offer.way(host, failing(Errno::LOOP)).is_through());
        assert!(offer.stands());
        assert!(offer.way(host, |_| Ok(Box::new(()))).is_through());
        assert!(!offer.way(host, failing(Errno::PERM)).is_through());
        assert!(!offer.stands());
    }

    #[test]
    fn who_registers_gets_its_capabilities_back() {
        let before = capabilities(None).unwrap();
        let during = as_stripping(|| Ok(capabilities(None)?)).unwrap();
        assert!(!during.effective.contains(CapabilitySet::FSETID));
        assert_eq!(during.permitted, before.permitted);
        assert_eq!(capabilities(None).unwrap(), before);
    }
}
