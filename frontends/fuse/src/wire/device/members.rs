//! The threads that answer: those there are, and their end.
//!
//! A member stands in the list from before its thread begins until that has nothing more to do.
//! The list is locked by the watcher, by an interrupt, and where threads come and go: never for
//! an ordinary request.

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
use crate::watch::{Look, Watch};

/// What a thread with an answer to give ends with.
pub(super) type Handle = JoinHandle<io::Result<()>>;

/// One thread's place.
#[derive(Debug)]
pub(super) struct Member {
    /// By which it reads requests, and answers them.
    pub(super) device: Arc<OwnedFd>,
    pub(super) slot: Arc<Slot>,
    /// It came because others were blocked, and ends when they go on.
    pub(super) is_spare: bool,
}

impl Member {
    fn is(&self, other: &Member) -> bool {
        Arc::ptr_eq(&self.slot, &other.slot)
    }
}

#[derive(Default)]
pub(super) struct Members {
    all: Mutex<Vec<Arc<Member>>>,
    handles: Mutex<Vec<Handle>>,
    living: AtomicUsize,
    /// The last of them is done.
    has_ended: AtomicBool,
    /// Rung when that is so.
    end: (Mutex<()>, Condvar),
}

impl Members {
    /// These threads will answer. Before any of them is there.
    pub(super) fn begin(&self, members: impl IntoIterator<Item = Arc<Member>>) {
        let mut all = self.all();
        all.extend(members);
        self.living.store(all.len(), Relaxed);
    }

    /// One more will answer, unless all have ended.
    pub(super) fn one_more(&self, member: Arc<Member>) -> bool {
        let one_more = |living| (living > 0).then_some(living + 1);
        let is_alive = self.living.fetch_update(Relaxed, Relaxed, one_more).is_ok();
        if is_alive {
            self.all().push(member);
        }
        is_alive
    }

    /// This one does not answer any more. The last one is to do what is due at the end.
    pub(super) fn leave(&self, member: &Arc<Member>, at_the_end: impl FnOnce()) {
        // AcqRel: pairs with itself; the last one sees what all others have handed out.
        if self.living.fetch_sub(1, AcqRel) == 1 {
            // It is still in the list: the back end may block this thread here as well.
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

    /// Waits for the end, for so long at most, and returns whether it has come.
    pub(super) fn wait_for_end(&self, time: Duration) -> bool {
        let bell = self.end.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_ended() {
            let _woken = self.end.1.wait_timeout(bell, time);
        }
        self.has_ended()
    }

    /// Has the watcher look at all.
    pub(super) fn look(&self, watch: &Watch, looks: &mut [Look]) {
        let all = self.all();
        let works = all.iter().map(|one| (one.slot.group, &one.slot.work));
        watch.look(works, looks);
    }

    /// Whether all that have not ended are stuck.
    pub(super) fn are_stuck(&self, watch: &Watch) -> bool {
        watch.are_stuck(self.all().iter().map(|one| &one.slot.work))
    }

    /// True if the idle spare thread `member` may end: at least `wanted` other threads of its
    /// group go on. Takes it off the list at once, so that two spare threads do not rely on
    /// each other.
    pub(super) fn may_end(&self, member: &Arc<Member>, wanted: usize, watch: &Watch) -> bool {
        let mut all = self.all();
        let of_group = |one: &&Arc<Member>| one.slot.group == member.slot.group;
        let works = all.iter().filter(of_group).map(|one| &one.slot.work);
        let may_end = member.is_spare && watch.going(works) > wanted;
        if may_end {
            all.retain(|one| !one.is(member));
        }
        may_end
    }

    /// True for the first that `is_it`.
    pub(super) fn any(&self, mut is_it: impl FnMut(&Member) -> bool) -> bool {
        self.all().iter().any(|one| is_it(one))
    }

    /// The descriptors that they read from, each once.
    pub(super) fn devices(&self) -> Vec<Arc<OwnedFd>> {
        let mut devices: Vec<Arc<OwnedFd>> = Vec::new();
        for one in self.all().iter() {
            if !devices.iter().any(|known| Arc::ptr_eq(known, &one.device)) {
                devices.push(one.device.clone());
            }
        }
        devices
    }

    /// To be waited for at the end.
    pub(super) fn started(&self, handle: Handle) {
        let mut handles = self.handles();
        // Spare threads come and go.
        handles.retain(|handle| !handle.is_finished());
        handles.push(handle);
    }

    /// Waits for threads that have ended or are about to; for no others.
    ///
    /// # Errors
    /// What one of them has ended with.
    pub(super) fn join(&self, are_ending: bool) -> io::Result<()> {
        let handles = std::mem::take(&mut *self.handles());
        let mut ended = Ok(());
        // All of them, whatever the first has ended with.
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
