//! Stuck requests: how long they have been answered, and how many each user has.
//!
//! WATCH-1: a request that does not come back from the back end (a dead NFS server below the
//! source, a nested mount whose server is stopped) holds up no other request, and not the end of
//! the mount.
//!
//! A thread records each request in its own cache line ([`Work`]): two stores. A watcher reads
//! these lines every [`TICK`], and a line that has not changed since its last look belongs to a
//! blocked thread, unless /proc says that the thread runs or waits for a processor. The watcher
//! reacts as follows:
//!
//! | the watcher sees                                 | reaction                                    |
//! |--------------------------------------------------|---------------------------------------------|
//! | all threads have been blocked for a tick         | one more thread                             |
//! | fewer threads than configured go on              | one more, to replace those that are blocked |
//! | more threads than configured go on, and have been enough for a while | spare threads end       |
//! | a user has half as many slow requests as may still become slow | further requests of that user are refused |
//! | the connection is cut, and all threads that are left are stuck | the mount ends without them   |
//!
//! A request is slow when it has taken [`SLOW`]. In each group of threads, as many requests may be
//! slow as the group has threads, with [`MOST_SPARE`] spare ones for all groups together. Root and
//! the daemon's user may have slow requests beyond that, in as many threads again.
//!
//! So no user takes more than half of the threads that are left, and no number of users takes the
//! last ones. Requests that are not slow yet count for nothing: a disk on which every request takes
//! a moment has no request refused.
//!
//! What this does not promise: threads are added one by one, a tick apart, and take requests in
//! the order in which they came. A user who sends many requests at once that become slow delays
//! requests of others until that user is refused, which takes some seconds at most; several such
//! users delay them for longer, up to the time in which the threads reach their bound (10 s).
//!
//! **A refused request gets `EAGAIN`**: nothing has been done, and it may succeed later. `EIO`
//! would say that data are damaged: databases stop for good on it, and nothing here is lost.
//! Requests that the kernel sends only once (FORGET, RELEASE, pages of a mapping) are never
//! refused.
//!
//! FORGET closes only `O_PATH` descriptors, for which the kernel asks no server. If it blocks
//! all the same, it counts as any request does.
//!
//! The lines and flags here guard nothing, and the watcher's view may be a tick old: relaxed
//! accesses are enough.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::caller::{self, UNTOLD};

/// The watcher's interval.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// A request that takes longer is slow, and its thread is replaced.
const SLOW: Duration = Duration::from_secs(1);
/// A request that takes longer is stuck. Slow disks are faster than this.
pub(crate) const STUCK: Duration = Duration::from_secs(5);
/// Most threads that are added to those of the device and of all rings, root's not counted.
const MOST_SPARE: usize = 100;

/// The state of a thread in one word: a serial number, whether it is busy, and for which user.
/// Only the thread writes `now` and `thread`, only the watcher writes the others.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Work {
    now: AtomicU64,
    /// The thread's id, or 0 as long as it has not begun.
    thread: AtomicU32,
    /// The word at the watcher's last look, and since when it has been the same, in
    /// milliseconds.
    seen: AtomicU64,
    since: AtomicU64,
}

const BUSY: u64 = 1 << 32;

impl Work {
    /// Records which thread does this work, so that the watcher can tell a blocked thread from one
    /// that waits for a processor.
    pub(crate) fn is_of(&self, thread: u32) {
        self.thread.store(thread, Relaxed);
    }

    /// Records that this thread answers a request of `uid` from now on, until it
    /// [idles](Work::idle). On a connection whose requests carry no user, `uid` is the caller's
    /// thread.
    pub(crate) fn begin(&self, uid: u32) {
        let serial = (self.now.load(Relaxed) >> 33).wrapping_add(1);
        self.now
            .store(serial << 33 | BUSY | u64::from(uid), Relaxed);
    }

    /// Records that this thread waits for the next request.
    pub(crate) fn idle(&self) {
        self.now.store(self.now.load(Relaxed) & !BUSY, Relaxed);
    }

    /// For the watcher: returns the user of the request under way, and how long it has taken.
    fn look(&self, now: Duration) -> Option<Busy> {
        let word = self.now.load(Relaxed);
        if self.seen.swap(word, Relaxed) != word {
            self.since.store(millis(now), Relaxed);
        }
        self.busy(word, now)
    }

    /// True if the thread runs, or would if it got a processor: another thread would get none
    /// either. False if the state is not known.
    fn has_work_to_do(&self) -> bool {
        let thread = self.thread.load(Relaxed);
        let stat = rcuwalk_procfs::read(format!("self/task/{thread}/stat")).unwrap_or_default();
        // The state comes after the name, which may contain anything but is in parentheses.
        let name = stat.iter().rposition(|byte| *byte == b')');
        name.is_some_and(|end| stat[end..].starts_with(b") R"))
    }

    /// For other threads: the age of the request, as of the watcher's last look.
    fn age(&self, now: Duration) -> Duration {
        let word = self.now.load(Relaxed);
        let is_seen = self.seen.load(Relaxed) == word;
        let busy = is_seen.then(|| self.busy(word, now)).flatten();
        busy.map_or(Duration::ZERO, |busy| busy.age)
    }

    fn busy(&self, word: u64, now: Duration) -> Option<Busy> {
        let since = Duration::from_millis(self.since.load(Relaxed));
        (word & BUSY != 0).then(|| Busy {
            // The lower half.
            uid: word as u32,
            age: now.saturating_sub(since),
        })
    }
}

/// A request that is being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Busy {
    uid: u32,
    age: Duration,
}

/// The load of a group: the threads that read from one device, or from one queue, as the watcher
/// sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// The number of threads while none is blocked.
    pub(crate) wanted: usize,
    threads: usize,
    /// Blocked since the last look, at least.
    blocked: usize,
    /// Slow requests: other threads take the places of theirs.
    slow: usize,
    stuck: usize,
    /// Most spare threads that answer all users.
    quota: usize,
    /// Most threads, including those that answer root and the daemon's user alone.
    limit: usize,
}

impl Load {
    /// An empty count for a group that wants this number of threads.
    pub(crate) fn wanting(wanted: usize) -> Load {
        Load {
            wanted,
            ..Load::default()
        }
    }

    /// True if one more thread is due.
    pub(crate) fn wants_more(&self) -> bool {
        let going = self.threads - self.slow;
        // Those beyond the quota refuse most requests, so they are hardly ever blocked: however
        // many others are stuck, there are threads for requests that are not refused.
        let needs_more = self.blocked == self.threads || going < self.wanted;
        needs_more && self.threads < self.limit
    }

    /// True if as many threads as are configured are blocked, and not replaced yet: without spare
    /// threads, requests would wait.
    fn is_short(&self) -> bool {
        self.blocked - self.slow >= self.wanted
    }

    fn spares(&self) -> usize {
        self.threads.saturating_sub(self.wanted)
    }

    /// Returns how many slow requests of one user there may be at most, for all users and for
    /// root and the daemon's user.
    fn shares(&self) -> Shares {
        // One thread stays for the requests of others. Where other groups have all the spare
        // threads, more come for root.
        let most = self.wanted + self.quota.saturating_sub(1);
        let half = |most: usize| most.saturating_sub(self.slow).div_ceil(2);
        Shares {
            of_all: half(most),
            of_trusted: half(self.limit.saturating_sub(1)),
        }
    }
}

/// Shares out the spare threads that there may be in all, given how many each group might have
/// at the last look. Those of a ring stay, so no group of several gets more than what is left
/// after that: a later one gets some as well.
fn share_spares(loads: &mut [Load], quotas: &mut Vec<usize>, most: usize) {
    let is_only = loads.len() == 1;
    quotas.resize(loads.len(), most);
    // Threads beyond the quota are root's. If they counted, the quota would grow with them.
    let taken = loads.iter().zip(&*quotas);
    let taken: Vec<usize> = taken
        .map(|(load, quota)| load.spares().min(*quota))
        .collect();
    let mut left = most.saturating_sub(taken.iter().sum());
    for ((load, quota), taken) in loads.iter_mut().zip(quotas).zip(taken) {
        let more = match is_only {
            true => left,
            false => left.saturating_sub(taken).div_ceil(2),
        };
        *quota = taken + more;
        load.quota = *quota;
        load.limit = 2 * (load.wanted + most);
        // A group gets one thread until the next look.
        left -= usize::from(more > 0 && load.wants_more());
    }
}

/// Most slow requests of one user in a group. With fewer, the next request is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    of_all: usize,
    /// Of root and the daemon's user: others must not keep these from the mount.
    of_trusted: usize,
}

/// The watcher's results, for threads that answer and for readers of statistics.
pub(crate) struct Watch {
    began: Instant,
    /// Some user has used up the share of some group.
    is_strained: AtomicBool,
    /// Requests begin with a thread, not with a user. Set before any thread answers.
    by_thread: AtomicBool,
    /// The daemon's user.
    own: u32,
    /// Most spare threads of all groups.
    most_spare: usize,
    limits: Mutex<Limits>,
    threads: AtomicUsize,
    stuck: AtomicUsize,
    /// When the oldest request began, in milliseconds, or [`NONE`].
    oldest: AtomicU64,
    refused: AtomicU64,
    /// Our own threads that make a request only to get an answer.
    provoking: Mutex<Vec<i32>>,
}

const NONE: u64 = u64::MAX;

#[derive(Default)]
struct Limits {
    /// Slow requests of each user.
    slow: HashMap<u32, usize>,
    /// By group of threads.
    shares: Vec<Shares>,
    /// When each group was last short of threads.
    short: Vec<Option<Duration>>,
    /// Most spare threads of each group, except those that only root gets.
    quotas: Vec<usize>,
}

/// Statistics of stuck requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stuck {
    /// Threads that answer.
    pub threads: usize,
    /// Requests that have been answered for more than five seconds.
    pub stuck: usize,
    /// The age of the oldest request, give or take a tenth of a second.
    pub oldest: Duration,
    /// Requests that were refused (`EAGAIN`) because their users had too many slow ones.
    pub refused: u64,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // Each spare thread has a descriptor, and most of them must be left for files.
        let limit = usize::try_from(limit / 16).unwrap_or(usize::MAX);
        Watch::with_spares(MOST_SPARE.min(limit))
    }

    fn with_spares(most_spare: usize) -> Watch {
        Watch {
            most_spare,
            began: Instant::now(),
            is_strained: AtomicBool::new(false),
            by_thread: AtomicBool::new(false),
            own: rustix::process::geteuid().as_raw(),
            limits: Mutex::default(),
            threads: AtomicUsize::new(0),
            stuck: AtomicUsize::new(0),
            oldest: AtomicU64::new(NONE),
            refused: AtomicU64::new(0),
            provoking: Mutex::default(),
        }
    }

    /// Records that this thread makes requests only to get an answer, until the result is
    /// dropped.
    pub(crate) fn provoke(&self, thread: i32) -> Provoking<'_> {
        self.provoking().push(thread);
        Provoking(self, thread)
    }

    /// True if the request is one of those: it must not reach the back end.
    pub(crate) fn is_provoked(&self, thread: u32) -> bool {
        let thread = thread.cast_signed();
        self.provoking().contains(&thread)
    }

    /// Looks at all threads, each with its group; `loads` holds an empty count for each group.
    pub(crate) fn look<'w>(
        &self,
        threads: impl Iterator<Item = (usize, &'w Work)>,
        loads: &mut [Load],
    ) {
        self.look_at(self.began.elapsed(), threads, loads);
    }

    fn look_at<'w>(
        &self,
        now: Duration,
        threads: impl Iterator<Item = (usize, &'w Work)>,
        loads: &mut [Load],
    ) {
        let mut slow = HashMap::new();
        let mut oldest = Duration::ZERO;
        for (group, work) in threads {
            let load = &mut loads[group];
            load.threads += 1;
            let Some(Busy { uid, age }) = work.look(now) else {
                continue;
            };
            oldest = oldest.max(age);
            // Beyond that it is replaced in any case.
            let waits = age >= SLOW || age > Duration::ZERO && !work.has_work_to_do();
            load.blocked += usize::from(waits);
            load.stuck += usize::from(age >= STUCK);
            if age >= SLOW {
                load.slow += 1;
                *slow.entry(self.user(uid)).or_default() += 1;
            }
        }
        let sum = |of: fn(&Load) -> usize| loads.iter().map(of).sum();
        self.threads.store(sum(|load| load.threads), Relaxed);
        self.stuck.store(sum(|load| load.stuck), Relaxed);
        let since = match oldest {
            Duration::ZERO => NONE,
            oldest => millis(now.saturating_sub(oldest)),
        };
        self.oldest.store(since, Relaxed);
        let mut limits = self.limits();
        share_spares(loads, &mut limits.quotas, self.most_spare);
        limits.shares = loads.iter().map(Load::shares).collect();
        limits.slow = slow;
        let most = limits.slow.values().max().copied().unwrap_or_default();
        let is_strained = limits.shares.iter().any(|shares| most >= shares.of_all);
        limits.short.resize(loads.len(), None);
        for (short, load) in limits.short.iter_mut().zip(&*loads) {
            *short = if load.is_short() { Some(now) } else { *short };
        }
        // Under the lock, so that flag and reasons come from one look.
        self.is_strained.store(is_strained, Relaxed);
    }

    /// Records that requests carry only the caller's thread
    /// ([`Caller::is_checked`](caller::Caller::is_checked)).
    pub(crate) fn knows_threads_only(&self) {
        self.by_thread.store(true, Relaxed);
    }

    /// Returns the user that a request counts for, given the id with which its [`Work`] began.
    fn user(&self, id: u32) -> u32 {
        match self.by_thread.load(Relaxed) {
            // The thread waits for its answer, so it exists, unless it has been killed.
            true => caller::user_of_thread(id).unwrap_or(UNTOLD),
            false => id,
        }
    }

    /// True if some requests may be refused now.
    pub(crate) fn is_strained(&self) -> bool {
        self.is_strained.load(Relaxed)
    }

    /// True if a thread of this group may begin a request of `uid` that may block.
    pub(crate) fn admits(&self, uid: u32, group: usize) -> bool {
        !self.is_strained() || self.admits_slow(uid, group)
    }

    #[cold]
    fn admits_slow(&self, uid: u32, group: usize) -> bool {
        let is_admitted = {
            let limits = self.limits();
            let slow = limits.slow.get(&uid).copied().unwrap_or_default();
            // A group that is newer than the last look has nothing blocked.
            limits.shares.get(group).is_none_or(|shares| {
                let is_trusted = uid == 0 || uid == self.own;
                slow < match is_trusted {
                    true => shares.of_trusted,
                    false => shares.of_all,
                }
            })
        };
        if !is_admitted {
            self.refused.fetch_add(1, Relaxed);
        }
        is_admitted
    }

    /// True if these threads are all stuck. False if there are none.
    pub(crate) fn are_stuck<'w>(&self, mut threads: impl Iterator<Item = &'w Work>) -> bool {
        let now = self.began.elapsed();
        let mut stuck = |work: &Work| work.age(now) >= STUCK;
        threads.next().is_some_and(&mut stuck) && threads.all(stuck)
    }

    /// True if this group, with these threads, can do without one of them: more than `wanted` have
    /// not been blocked for a while, and those have been enough for as long.
    ///
    /// Does not ask how many requests come: under steady load a spare thread is never idle.
    pub(crate) fn has_too_many<'w>(
        &self,
        group: usize,
        wanted: usize,
        threads: impl Iterator<Item = &'w Work>,
    ) -> bool {
        self.has_too_many_at(self.began.elapsed(), group, wanted, threads)
    }

    fn has_too_many_at<'w>(
        &self,
        now: Duration,
        group: usize,
        wanted: usize,
        threads: impl Iterator<Item = &'w Work>,
    ) -> bool {
        let short = self.limits().short.get(group).copied().flatten();
        let is_short = short.is_some_and(|at| now.saturating_sub(at) < SLOW);
        !is_short && threads.filter(|work| work.age(now) < SLOW).count() > wanted
    }

    /// Returns the statistics of stuck requests.
    pub(crate) fn stuck(&self) -> Stuck {
        let now = millis(self.began.elapsed());
        let oldest = match self.oldest.load(Relaxed) {
            NONE => 0,
            since => now.saturating_sub(since),
        };
        Stuck {
            threads: self.threads.load(Relaxed),
            stuck: self.stuck.load(Relaxed),
            oldest: Duration::from_millis(oldest),
            refused: self.refused.load(Relaxed),
        }
    }

    fn provoking(&self) -> MutexGuard<'_, Vec<i32>> {
        self.provoking
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Watch::provoke`].
pub(crate) struct Provoking<'w>(&'w Watch, i32);

impl Drop for Provoking<'_> {
    fn drop(&mut self) {
        self.0.provoking().retain(|thread| *thread != self.1);
    }
}

fn millis(time: Duration) -> u64 {
    // Milliseconds of the mount's life fit.
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests;
