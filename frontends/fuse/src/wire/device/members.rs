//! The list of threads that answer, and their end.
//!
//! A member is in the list from before its thread begins until the thread has no more work. The
//! list is locked by the watcher, by an interrupt, and when threads start and end: never for an
//! ordinary request.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::interrupt::Slot;
use crate::watch::{Load, Watch};

/// A thread that answers, with its result.
pub(super) type Handle = JoinHandle<io::Result<()>>;

/// One thread's entry in the list.
#[derive(Debug)]
pub(super) struct Member {
    /// The descriptor by which it reads and answers requests; `None` if a
    /// [`Carrier`](super::carried::Carrier) brings them.
    pub(super) device: Option<Arc<OwnedFd>>,
    pub(super) slot: Arc<Slot>,
    /// For a spare thread at the device: where it waits for requests.
    pub(super) requests: Option<OwnedFd>,
    /// It was added because others were blocked, and ends when they have gone on for a while.
    pub(super) is_spare: bool,
}

impl Member {
    pub(super) fn new(
        device: Arc<OwnedFd>,
        slot: Arc<Slot>,
        requests: Option<OwnedFd>,
    ) -> Arc<Member> {
        Arc::new(Member {
            device: Some(device),
            slot,
            is_spare: requests.is_some(),
            requests,
        })
    }

    /// A thread whose requests a [`Carrier`](super::carried::Carrier) brings.
    pub(super) fn carried(is_spare: bool) -> Arc<Member> {
        Arc::new(Member {
            device: None,
            slot: Slot::of(0),
            requests: None,
            is_spare,
        })
    }

    fn is(&self, other: &Member) -> bool {
        Arc::ptr_eq(&self.slot, &other.slot)
    }
}

#[derive(Default)]
pub(super) struct Members {
    all: Mutex<Vec<Arc<Member>>>,
    handles: Mutex<Vec<Handle>>,
    living: AtomicUsize,
    /// The last thread has ended.
    has_ended: AtomicBool,
    /// Rung when `has_ended` is set.
    end: (Mutex<()>, Condvar),
}

impl Members {
    /// Adds these members, before the first thread starts.
    pub(super) fn begin(&self, members: impl IntoIterator<Item = Arc<Member>>) {
        let mut all = self.all();
        all.extend(members);
        self.living.store(all.len(), Relaxed);
    }

    /// Adds one more member, unless all have ended.
    pub(super) fn one_more(&self, member: Arc<Member>) -> bool {
        let one_more = |living| (living > 0).then_some(living + 1);
        let is_alive = self.living.fetch_update(Relaxed, Relaxed, one_more).is_ok();
        if is_alive {
            self.all().push(member);
        }
        is_alive
    }

    /// Removes a member whose thread no longer answers. The last one calls `at_the_end`.
    pub(super) fn leave(&self, member: &Arc<Member>, at_the_end: impl FnOnce()) {
        // AcqRel: pairs with itself; the last thread sees all nodes and handles of the others.
        if self.living.fetch_sub(1, AcqRel) == 1 {
            // The thread is still in the list: the back end may block it here as well.
            at_the_end();
            let _bell = self.end.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Release: pairs with the Acquire in `has_ended`; a thread that sees the end finds
            // nothing left.
            self.has_ended.store(true, Release);
            self.end.1.notify_all();
        }
        self.remove(member);
    }

    pub(super) fn has_ended(&self) -> bool {
        // Acquire: pairs with the Release of the last thread to leave.
        self.has_ended.load(Acquire)
    }

    /// Waits up to `time` for the end, and returns whether it has come.
    pub(super) fn wait_for_end(&self, time: Duration) -> bool {
        let bell = self.end.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_ended() {
            let _woken = self.end.1.wait_timeout(bell, time);
        }
        self.has_ended()
    }

    /// Shows all members to the watcher.
    pub(super) fn look(&self, watch: &Watch, loads: &mut [Load]) {
        let all = self.all();
        let works = all.iter().map(|one| (one.slot.group, &one.slot.work));
        watch.look(works, loads);
    }

    /// True if all remaining threads are stuck.
    pub(super) fn are_stuck(&self, watch: &Watch) -> bool {
        watch.are_stuck(self.all().iter().map(|one| &one.slot.work))
    }

    /// True if the spare thread `member` may end: at least `wanted` other threads of its group go
    /// on, and have been enough for a while. Takes it off the list at once, so that two spare
    /// threads do not rely on each other.
    pub(super) fn may_end(&self, member: &Arc<Member>, wanted: usize, watch: &Watch) -> bool {
        let mut all = self.all();
        let group = member.slot.group;
        let of_group = |one: &&Arc<Member>| one.slot.group == group;
        let works = all.iter().filter(of_group).map(|one| &one.slot.work);
        let may_end = member.is_spare && watch.has_too_many(group, wanted, works);
        if may_end {
            all.retain(|one| !one.is(member));
        }
        may_end
    }

    /// True if `is_it` returns true for some member; stops there.
    pub(super) fn any(&self, mut is_it: impl FnMut(&Member) -> bool) -> bool {
        self.all().iter().any(|one| is_it(one))
    }

    /// Returns the descriptors from which the threads read, each once.
    pub(super) fn devices(&self) -> Vec<Arc<OwnedFd>> {
        let mut devices: Vec<Arc<OwnedFd>> = Vec::new();
        for device in self.all().iter().filter_map(|one| one.device.as_ref()) {
            if !devices.iter().any(|known| Arc::ptr_eq(known, device)) {
                devices.push(device.clone());
            }
        }
        devices
    }

    /// Keeps the handle of a thread, to join it at the end.
    pub(super) fn started(&self, handle: Handle) {
        let mut handles = self.handles();
        // Spare threads come and go.
        handles.retain(|handle| !handle.is_finished());
        handles.push(handle);
    }

    /// Joins threads that have ended or are about to, and no others.
    ///
    /// # Errors
    /// The error with which one of them has ended.
    pub(super) fn join(&self, are_ending: bool) -> io::Result<()> {
        let handles = std::mem::take(&mut *self.handles());
        let mut ended = Ok(());
        // Joins all of them, even if the first has failed.
        for handle in handles {
            if are_ending || handle.is_finished() {
                let panicked = |_| Err(io::Error::other("a thread that answers panicked"));
                ended = ended.and(handle.join().unwrap_or_else(panicked));
            }
        }
        ended
    }

    fn remove(&self, member: &Arc<Member>) {
        self.all().retain(|one| !one.is(member));
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Member>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handles(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
