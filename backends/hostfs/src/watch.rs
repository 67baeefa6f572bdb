//! Changes on the host, reported as they happen: [`Freshness::Watched`].
//!
//! | read                | to learn                                              |
//! |---------------------|-------------------------------------------------------|
//! | this file           | the reaction to a report, and why that is enough      |
//! | `watch/heard.rs`    | reports gathered, and new names that were missed      |
//! | `watch/fanotify.rs` | reports of a whole file system, for the privileged    |
//! | `watch/inotify.rs`  | reports of each directory that is cached              |
//! | `watch/mounts.rs`   | mounts of the host that come and go                   |
//! | `watch/tests.rs`    | everything below, tried on both                       |
//!
//! One thread per mount reads reports, and does one of these things:
//!
//! | the report is about                | reaction                                     |
//! |------------------------------------|----------------------------------------------|
//! | a name in a cached directory, or its file | all names of that directory become stale; its attributes are read again |
//! | a directory itself, or a file by no name or by one that may be gone | its attributes are read again, if it is cached |
//! | a new name, where reports name no files | its file's attributes are read again, if it is cached |
//! | a new name that was gone before that | everything becomes stale, ten times a second at most |
//! | a directory that has been removed (fanotify, the root's mount) | its inode is taken out of the cache |
//! | a directory without a descriptor that is not where it was found | everything becomes stale as well: its cache may become valid again when it is back |
//! | lost reports, or a mount of the host below the root that has come or gone | everything becomes stale |
//! | the end of all reports             | everything is stale from now on ([`WatchHealth`]) |
//!
//! A stale name costs one statx(2), when it is next used. Reports are gathered for a
//! millisecond, so a directory in which a thousand files are made becomes stale once, not a
//! thousand times. Changes that come from this process through the VFS are reported as well:
//! they cost one question more, unless the thread that makes them makes no others
//! ([`Listener::is_own`](rcuwalk::Listener::is_own)). Such reports are ignored: the VFS has the
//! directory locked, and publishes attributes that it has asked for after the change. After a
//! change that has failed, all names of its directory become stale ([`in_doubt`]).
//!
//! Where each change is reported with its file ([`Fanotify::tells_of`]), the reaction ends with
//! an [`Announcement`]: of the name, if it was made, moved or removed, and of each file whose
//! attributes were asked for.
//!
//! # Why it is enough
//!
//! *A lookup under way when the host changes.* Its stamp was read before the host was
//! asked, and the report is queued after the change: FRESH-1 (`rcuwalk`'s `fresh.rs`).
//!
//! *A directory that comes into the cache.* It is watched first ([`Watch::register`]),
//! then asked for its attributes, and names are looked up in it after that. A report of
//! a change in between finds the inode being read in, and waits for it.
//!
//! *Attributes.* Of two threads that ask for one file's, the one with the older answer may be
//! the last to publish it, after the report was handled. So an answer counts only if nothing
//! has been published since the question ([`publish_latest`]), and an answer to a report is
//! published even if it is unchanged: it makes earlier questions void.
//!
//! *A file that is not a directory* is valid by a name as long as it has that one alone, as far
//! as the cache knows. Take the first change after the last answer about it:
//!
//! - It came by that name. The name's directory reports that, and the name becomes stale.
//! - It was a second name. Fanotify reports the file itself. By inotify the new name is
//!   reported, and looked at; or it was gone by then, and everything becomes stale (see
//!   `heard.rs`). Either way the file has been asked for after that change.
//! - It came by a name that the file had before (a process that has it open writes to it).
//!   Fanotify reports the file with it. Inotify does not: see below.
//!
//! *A link* counts as another one if it has changed at all, because its target is cached with
//! it. So its inode is evicted, and its names are asked for.
//!
//! *A directory that is renamed* while it is cached: both its old and its new directory report
//! it, and both names become stale; the entries below keep their own reports. *One that is
//! moved out of the root* goes on being watched while it is cached; its old name becomes stale
//! like any other. *One that is removed* keeps its watch as long as it is held; when that ends,
//! its inode is taken out of the cache.
//!
//! # What is not heard
//!
//! Until a report has been read, which takes a millisecond or two, the cache may answer with
//! the old state. Where reports name no files (by inotify, and by fanotify on other mounts than
//! the root's), a change by a second name that is removed within these milliseconds shows after
//! a tenth of a second at most. And these changes are not reported at all:
//!
//! - changes by other hosts on a network file system, or below an overlay;
//! - writing by way of a memory mapping (times and blocks change when the host writes back),
//!   and reading: times of access are as old as the last question;
//! - where reports name no files, the second name that a file is given in a directory that is
//!   not cached: until one of its names is asked for again, it passes for a file of one name,
//!   and writes by the other name show as little;
//! - writes to a file by a descriptor that was opened by a name it has no more, or before it
//!   had one (`O_TMPFILE`): reported by fanotify on the root's mount, if that is ext4, xfs or
//!   tmpfs.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rcuwalk::{Announcement, Error, Inode, InodeKey, InodeRef, Name, Result, SuperBlock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::host::{self, as_fd};
use crate::identity::Stat;
use crate::pin::pinned;

mod fanotify;
mod heard;
mod inotify;
mod mounts;
#[cfg(test)]
mod tests;

use fanotify::Fanotify;
use heard::{By, Dirs, Fresh, Heard, NameIs, Names, Report};
use inotify::Inotify;
use mounts::Mounts;

/// For so long reports gather before they are dealt with.
const GATHER: Duration = Duration::from_millis(1);

/// The same while the last ones were all about our own changes: a program that makes many is not
/// slowed down by so many wakeups.
const GATHER_OWN: Duration = Duration::from_millis(4);

/// Bytes that are read at once: a few thousand reports.
const BUFFER: usize = 64 << 10;

/// Shortest time between two invalidations of everything for missed new names: short-lived
/// files are common, and short-lived second names are not.
const INVALIDATE_EVERY: Duration = Duration::from_millis(100);

/// How often a question is repeated because others publish answers.
const ROUNDS: usize = 16;

/// How a [`HostFs`](crate::HostFs) hears of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Watcher {
    /// One mark for the whole file system. Needs CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH
    /// in the first user namespace, and is woken by changes outside of the root as well.
    #[doc(alias("FAN_MARK_FILESYSTEM", "fanotify(7)"))]
    Fanotify,
    /// A watch for each cached directory, out of `fs.inotify.max_user_watches`; a
    /// directory that there is none left for is asked at each use. Needs no privilege.
    #[doc(alias = "inotify(7)")]
    Inotify,
}

/// A directory's name in reports: a file handle, or a watch descriptor.
type Id = Box<[u8]>;

enum Source {
    Fanotify(Fanotify),
    Inotify(Inotify),
}

/// A host's changes, being watched. The thread ends when this is dropped.
pub(crate) struct Watch {
    ears: Arc<Ears>,
    /// The other event that the thread waits for: the write end has been closed.
    alive: (OwnedFd, OwnedFd),
}

/// State shared by the thread and all [`Registration`]s.
struct Ears {
    source: Source,
    mounts: Option<Mounts>,
    /// Which cached directories are meant.
    dirs: Mutex<Dirs>,
    /// Counts reports whose inode was looked for; see [`Watch::settle`].
    unplaced: AtomicU64,
    /// Why there are no reports any more.
    ended: Arc<OnceLock<Errno>>,
}

/// Tells whether a watched host directory still is watched: keep it beside the mount, by
/// [`HostFs::watch_health`](crate::HostFs::watch_health).
#[derive(Clone, Debug)]
pub struct WatchHealth {
    ended: Arc<OnceLock<Errno>>,
}

impl WatchHealth {
    /// Why the host reports no more changes, if it does not. From then on each use of a
    /// name costs a statx(2), as with [`Freshness::EachUse`](rcuwalk::Freshness::EachUse).
    pub fn lost(&self) -> Option<std::io::Error> {
        self.ended.get().map(|errno| (*errno).into())
    }
}

/// A cached directory is being watched until this is dropped.
pub(crate) struct Registration {
    ears: Weak<Ears>,
    id: Id,
    key: InodeKey,
}

impl Watch {
    pub(crate) fn new(root: BorrowedFd<'_>, watcher: Watcher) -> Result<Watch> {
        let source = match watcher {
            Watcher::Fanotify => {
                let key = host::stat_fd(root)?.key;
                Fanotify::new(host::open_dir(root)?, key).map(Source::Fanotify)
            }
            Watcher::Inotify => Inotify::new(root).map(Source::Inotify),
        };
        Ok(Watch {
            ears: Arc::new(Ears {
                source: source.map_err(host::err)?,
                mounts: Mounts::new(root),
                dirs: Mutex::default(),
                unplaced: AtomicU64::new(0),
                ended: Arc::default(),
            }),
            alive: pipe_with(PipeFlags::CLOEXEC).map_err(host::err)?,
        })
    }

    pub(crate) fn watcher(&self) -> Watcher {
        match self.ears.source {
            Source::Fanotify(_) => Watcher::Fanotify,
            Source::Inotify(_) => Watcher::Inotify,
        }
    }

    pub(crate) fn health(&self) -> WatchHealth {
        WatchHealth {
            ended: self.ears.ended.clone(),
        }
    }

    /// Watches the directory `dir`, which is going to be cached as `key`. From now on changes
    /// are reported; so ask for its attributes after this. `None` if it cannot be watched: then
    /// its names must not be cached.
    pub(crate) fn register(&self, dir: BorrowedFd<'_>, key: InodeKey) -> Option<Registration> {
        // Locked over inotify's calls: a directory that is watched again while its old
        // watch is being given up has the same descriptor.
        let mut dirs = self.ears.dirs();
        let id = match &self.ears.source {
            Source::Fanotify(fanotify) => fanotify.watch(dir),
            Source::Inotify(inotify) => inotify.watch(dir),
        };
        let id = id.ok()?;
        dirs.add(id.clone(), key);
        Some(Registration {
            ears: Arc::downgrade(&self.ears),
            id,
            key,
        })
    }

    /// Returns whether each change of the file is reported with the file: then it is announced.
    pub(crate) fn announces(&self, file: InodeKey) -> bool {
        match &self.ears.source {
            Source::Fanotify(fanotify) => fanotify.tells_of(file),
            Source::Inotify(_) => false,
        }
    }

    /// A number for [`has_heard`](Self::has_heard), to be taken before the host is asked.
    pub(crate) fn unplaced(&self) -> u64 {
        self.ears.unplaced.load(Relaxed)
    }

    /// Returns whether a report came since `before`: it could be about an inode that the caller
    /// has now, and that was not in the cache yet.
    pub(crate) fn has_heard(&self, before: u64) -> bool {
        // Pairs with the fence in `Ears::ilookup`: either that looks for the inode after it was
        // cached, or its count is seen here.
        fence(SeqCst);
        self.unplaced() != before
    }

    /// Asks for the attributes of a new inode once more, if something has been reported
    /// since `before`.
    pub(crate) fn settle(
        &self,
        sb: &SuperBlock,
        inode: &InodeRef,
        before: u64,
        ask: impl Fn() -> Result<Option<Stat>>,
    ) -> Result<()> {
        if self.has_heard(before) {
            tell(sb, inode, ask)?;
        }
        Ok(())
    }

    /// Starts the thread, once.
    pub(crate) fn start(&self, sb: &Arc<SuperBlock>) -> Result<()> {
        let (ears, sb) = (self.ears.clone(), Arc::downgrade(sb));
        let alive = host::duplicate(as_fd(&self.alive.0))?;
        let thread = std::thread::Builder::new().name("hostfs-watch".into());
        thread.spawn(move || ears.listen(&sb, as_fd(&alive)))?;
        Ok(())
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dirs = self.ears.dirs().len();
        write!(f, "Watch({:?}, {dirs} directories)", self.watcher())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(ears) = self.ears.upgrade() else {
            return;
        };
        let mut dirs = ears.dirs();
        if dirs.remove(&self.id, self.key)
            && let Source::Inotify(inotify) = &ears.source
        {
            inotify.forget(&self.id);
        }
    }
}

impl Ears {
    fn dirs(&self) -> MutexGuard<'_, Dirs> {
        // Nothing panics under it.
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: until the mount is gone, or nothing is heard any more.
    fn listen(&self, sb: &Weak<SuperBlock>, alive: BorrowedFd<'_>) {
        let mut buf = vec![MaybeUninit::uninit(); BUFFER];
        let mut turns = Turns::default();
        let mut mounts = self.mounts.as_ref().map(|mounts| mounts.first);
        while let Some(remounted) = self.wait(alive, true, turns.patience()) {
            let Some(sb) = sb.upgrade() else { return };
            if remounted {
                let before = mounts;
                mounts = self.mounts.as_ref().map(Mounts::state);
                if mounts != before {
                    sb.invalidate_all();
                }
            }
            if let Err(errno) = self.turn(&mut buf, &mut turns, &sb) {
                let _first = self.ended.set(errno);
                sb.stop_watching();
            }
            if Arc::strong_count(&sb) == 1 {
                // Unmounted meanwhile, except for the inodes that were held just now.
                sb.evict_unused();
            }
            drop(sb);
            let gather = match turns.any {
                true => GATHER,
                false => GATHER_OWN,
            };
            if self.ended.get().is_some() || self.wait(alive, false, Some(gather)).is_none() {
                return;
            }
        }
    }

    /// Where reports are read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Fanotify(fanotify) => fanotify.as_fd(),
            Source::Inotify(inotify) => inotify.as_fd(),
        }
    }

    /// Waits for reports, if they are wanted, for as long as that at most, and says whether
    /// mounts have changed; `None` at the end.
    fn wait(&self, alive: BorrowedFd<'_>, reports: bool, time: Option<Duration>) -> Option<bool> {
        let mounts = self.mounts.as_ref().map_or(alive, Mounts::as_fd);
        let mut fds = [
            PollFd::from_borrowed_fd(alive, PollFlags::empty()),
            PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(mounts, PollFlags::PRI),
        ];
        let fds = match reports {
            true => &mut fds[..],
            false => &mut fds[..1],
        };
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        // Woken early, by a signal, there is nothing to read, and that is all.
        let _ready = poll(fds, time.as_ref());
        let remounted = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
        fds[0].revents().is_empty().then_some(remounted)
    }

    /// Reads the queued reports, and handles them. An error says that no more will come.
    fn turn(
        &self,
        buf: &mut [MaybeUninit<u8>],
        turns: &mut Turns,
        sb: &SuperBlock,
    ) -> Result<(), Errno> {
        let mut heard = Heard::default();
        {
            let dirs = self.dirs();
            let follows = |dir| !self.opens_files_of(dir);
            let is_own = |thread| sb.is_own(thread);
            let note = |report: Report<'_>| {
                heard.note(&report, &dirs, &mut turns.fresh, is_own, follows);
            };
            let all = match &self.source {
                Source::Fanotify(fanotify) => fanotify.read(buf, note)?,
                Source::Inotify(inotify) => inotify.read(buf, note)?,
            };
            turns.missed |= turns.fresh.end_turn(all) | heard.missed;
        }
        turns.any = heard.any;
        // Without the lock: a thread that reads in an inode awaited below takes it.
        let done = match heard.lost {
            true => None,
            false => self.act_on(&heard, sb).ok(),
        };
        // Last: earlier reports about them find them.
        let ended = heard.ended.iter().all(|key| self.retire(sb, *key).is_ok());
        let done = done.filter(|_| ended);
        turns.missed |= done == Some(Done::Missed);
        if done.is_none() || turns.is_invalidation_due() {
            sb.invalidate_all();
            turns.invalidated();
        }
        Ok(())
    }

    /// An error says that something is not known that has to be.
    fn act_on(&self, heard: &Heard, sb: &SuperBlock) -> Result<Done> {
        let mut done = Done::All;
        for (key, names) in &heard.dirs {
            let Some(dir) = self.ilookup(sb, *key)? else {
                continue;
            };
            if names.changed {
                sb.invalidate_names(&dir);
                announce_names(sb, &dir, names);
            }
            // Not if the number has become another file's.
            let pin = match pinned(sb, &dir) {
                Err(Error::NotADirectory) => continue,
                Err(Error::Stale) if self.is_gone(*key, &names.id) => {
                    self.retire(sb, *key)?;
                    continue;
                }
                // It is not where it was found, or cannot be opened, and is not held. A lookup
                // at its new place reads its attributes; but it may come back to the old one,
                // and any new name in it may be a file's second name.
                Err(Error::Stale | Error::PermissionDenied) => {
                    done = Done::Missed;
                    continue;
                }
                pin => pin?,
            };
            tell(sb, &dir, || host::stat_fd(pin.fd()).map(Some))?;
            if let Some(by) = names.by {
                let (inode, by) = (&*dir, by.one());
                sb.announce(&Announcement::Attributes { inode, by });
            }
            for name in names.made.iter().filter_map(|name| Name::new(name).ok()) {
                self.tell_if_cached(sb, By::Others, || host::stat_at(pin.fd(), name))?;
            }
        }
        for (handle, by) in &heard.files {
            self.look_at(sb, handle, by.unwrap_or(By::Others))?;
        }
        Ok(done)
    }

    /// A directory that is gone is not to be taken for the next one with its number, which
    /// has no watch. By fanotify, that one's handle is another.
    fn retire(&self, sb: &SuperBlock, key: InodeKey) -> Result<()> {
        if let Some(dir) = self.ilookup(sb, key)? {
            sb.unhash(&dir);
        }
        Ok(())
    }

    /// A file that fanotify has reported by its handle.
    fn look_at(&self, sb: &SuperBlock, handle: &[u8], by: By) -> Result<()> {
        let Source::Fanotify(fanotify) = &self.source else {
            return Ok(());
        };
        if let Some(key) = fanotify.key_of(handle)
            && self.ilookup(sb, key)?.is_none()
        {
            return Ok(());
        }
        match fanotify.open(handle) {
            Ok(file) => self.tell_if_cached(sb, by, || host::stat_fd(as_fd(&file)).map(Some)),
            // Without a name and closed, or of another file system.
            Err(Errno::STALE) => Ok(()),
            Err(errno) => Err(host::err(errno)),
        }
    }

    /// Returns whether a directory that is not found any more has been removed, and not moved.
    fn is_gone(&self, dir: InodeKey, id: &[u8]) -> bool {
        match &self.source {
            Source::Fanotify(fanotify) if fanotify.opens_files_of(dir) => {
                fanotify.open(id).is_err_and(|errno| errno == Errno::STALE)
            }
            _ => false,
        }
    }

    /// Returns whether each file of this directory that gets another name has a report of its
    /// own.
    fn opens_files_of(&self, dir: InodeKey) -> bool {
        match &self.source {
            Source::Fanotify(fanotify) => fanotify.opens_files_of(dir),
            Source::Inotify(_) => false,
        }
    }

    /// The inode that a report is about. If it is not cached, a thread that is about to cache
    /// it learns that there was a report ([`Watch::has_heard`]).
    fn ilookup(&self, sb: &SuperBlock, key: InodeKey) -> Result<Option<InodeRef>> {
        self.unplaced.fetch_add(1, Relaxed);
        // Pairs with the fence in `has_heard`.
        fence(SeqCst);
        Ok(sb.ilookup(key)?)
    }

    /// A file that may be cached under a name without reports.
    fn tell_if_cached(
        &self,
        sb: &SuperBlock,
        by: By,
        ask: impl Fn() -> Result<Option<Stat>>,
    ) -> Result<()> {
        if let Some(stat) = ask()?
            && let Some(inode) = self.ilookup(sb, stat.key)?
        {
            tell(sb, &inode, ask)?;
            let (inode, by) = (&*inode, by.one());
            sb.announce(&Announcement::Attributes { inode, by });
        }
        Ok(())
    }
}

/// Passes on the result of a change of names in `dirs`. If it has failed, the host may have made it
/// all the same, or a part of it: then all names in them become stale.
pub(crate) fn in_doubt<T>(sb: &SuperBlock, dirs: &[&Inode], done: Result<T>) -> Result<T> {
    if done.is_err() {
        for dir in dirs {
            sb.invalidate_names(dir);
        }
    }
    done
}

/// Announces the names of a directory that were made, moved or removed.
fn announce_names(sb: &SuperBlock, dir: &InodeRef, names: &Names) {
    for (name, (name_is, by)) in &names.names {
        let (is_new, by) = (*name_is == NameIs::New, by.and_then(By::one));
        sb.announce(&Announcement::Name {
            dir,
            name,
            is_new,
            by,
        });
    }
}

/// How far reports were dealt with.
#[derive(PartialEq, Eq)]
enum Done {
    All,
    /// A change in some directory could not be read.
    Missed,
}

/// The thread's state from one turn to the next.
#[derive(Default)]
struct Turns {
    fresh: Fresh,
    /// New names were missed since everything last became stale, at that time.
    missed: bool,
    invalidated: Option<Instant>,
    /// The last reports were not only about our own changes.
    any: bool,
}

impl Turns {
    /// How long to wait for reports.
    fn patience(&self) -> Option<Duration> {
        if self.fresh.is_waiting() {
            return Some(Duration::ZERO);
        }
        self.missed.then(|| self.until_invalidation())
    }

    fn is_invalidation_due(&self) -> bool {
        self.missed && self.until_invalidation().is_zero()
    }

    fn until_invalidation(&self) -> Duration {
        let since = self
            .invalidated
            .map_or(INVALIDATE_EVERY, |then| then.elapsed());
        INVALIDATE_EVERY.saturating_sub(since)
    }

    fn invalidated(&mut self) {
        self.missed = false;
        self.invalidated = Some(Instant::now());
    }
}

/// Brings an inode up to date of which something has been reported. One that is another
/// file's by now, or a link that has changed, is taken out of the cache.
fn tell(sb: &SuperBlock, inode: &InodeRef, ask: impl Fn() -> Result<Option<Stat>>) -> Result<()> {
    let still = || Ok(ask()?.filter(|now| now.is_still(inode)));
    if !publish(inode, true, still)?
        && let Some(now) = ask()?
        && now.key == inode.inode_key()
        && !now.is_still(inode)
    {
        sb.unhash(inode);
    }
    Ok(())
}

/// Asks for attributes and publishes them; false if `ask` has no answer about this inode.
///
/// An answer counts if nothing has been published since the question; otherwise the question is
/// repeated. So the last to publish has asked after all others had published.
pub(crate) fn publish_latest(
    inode: &Inode,
    ask: impl FnMut() -> Result<Option<Stat>>,
) -> Result<bool> {
    publish(inode, false, ask)
}

/// `anyhow`: publishes an unchanged answer too, which makes earlier questions void.
fn publish(
    inode: &Inode,
    anyhow: bool,
    mut ask: impl FnMut() -> Result<Option<Stat>>,
) -> Result<bool> {
    for _ in 0..ROUNDS {
        let asked = inode.before_asking();
        let Some(stat) = ask()? else {
            return Ok(false);
        };
        if !anyhow && !stat.is_news(inode) || inode.set_attr_since(asked, &stat.attr) {
            break;
        }
    }
    // A thread that came in between twice has asked in between as well, and so after this
    // began. Not each round is lost to an answer (learning of an ACL counts as a change), but
    // of this many two are.
    Ok(true)
}
