//! inotify(7): a watch on each directory that is cached.
//!
//! It needs no privilege, only permission to read the directory, and /proc: a watch is
//! set by path, and the one path that cannot have become another directory's is that of
//! the descriptor.

use std::mem::MaybeUninit;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::Id;
use super::heard::{By, Change, NameIs, Report};

/// As fanotify's. With `EXCL_UNLINK`, writes by a removed name are not reported; otherwise
/// every temporary file without a name would be, without telling which file it is.
const WATCH: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

pub(super) struct Inotify(OwnedFd);

impl Inotify {
    /// With nothing watched yet. Fails as the first watch of `root` would.
    pub(super) fn new(root: BorrowedFd<'_>) -> Result<Inotify, Errno> {
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let inotify = Inotify(inotify::init(flags)?);
        inotify.watch(root)?;
        Ok(inotify)
    }

    /// Watches `dir`, and returns its name in reports. The caller holds the lock of the map, so
    /// that no [`forget`](Self::forget) comes in between.
    pub(super) fn watch(&self, dir: BorrowedFd<'_>) -> Result<Id, Errno> {
        let wd = inotify::add_watch(
            &self.0,
            rcuwalk_procfs::path_of(dir).ok_or(Errno::OPNOTSUPP)?,
            WATCH,
        )?;
        Ok(Box::from(wd.to_ne_bytes()))
    }

    /// It is no longer watched.
    pub(super) fn forget(&self, id: &[u8]) {
        if let Some(wd) = id.first_chunk() {
            // Gone already if the directory has been removed, or unmounted.
            let _ = inotify::remove_watch(&self.0, i32::from_ne_bytes(*wd));
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Hands out the queued reports, a bufferful at most; true if that was all.
    pub(super) fn read(
        &self,
        buf: &mut [MaybeUninit<u8>],
        mut report: impl FnMut(Report<'_>),
    ) -> Result<bool, Errno> {
        let mut reader = inotify::Reader::new(&self.0, buf);
        loop {
            match reader.next() {
                Ok(event) => tell(&event, &mut report),
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            }
            if reader.is_buffer_empty() {
                return Ok(rustix::io::ioctl_fionread(&self.0)? == 0);
            }
        }
    }
}

fn tell(event: &inotify::Event<'_>, report: &mut impl FnMut(Report<'_>)) {
    let what = event.events();
    if what.contains(ReadFlags::QUEUE_OVERFLOW) {
        return report(Report::Lost);
    }
    let dir = &event.wd().to_ne_bytes();
    if what.contains(ReadFlags::IGNORED) {
        // A watch that was given up, and is unknown by now; or one whose directory is gone. Its
        // file system stays as long as its watch is wanted, since a descriptor of its mount is
        // held.
        return report(Report::Ended { dir });
    }
    let Some(name) = event.file_name() else {
        let by = By::Others;
        return report(Report::Itself { dir, by });
    };
    report(Report::In {
        dir,
        name: name.to_bytes(),
        change: change(what, event.cookie()),
        name_is: match what {
            _ if what.contains(ReadFlags::CREATE) => NameIs::New,
            _ if what.intersects(ReadFlags::DELETE) => NameIs::Another,
            _ if what.intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO) => NameIs::Another,
            _ => NameIs::Same,
        },
        file: None,
        // Not said.
        by: By::Others,
    });
}

fn change(what: ReadFlags, cookie: u32) -> Change {
    if what.contains(ReadFlags::ISDIR) {
        Change::Other
    } else if what.contains(ReadFlags::CREATE) {
        Change::Made
    } else if what.contains(ReadFlags::MOVED_TO) {
        Change::Arrived(cookie)
    } else if what.contains(ReadFlags::MOVED_FROM) {
        Change::Left(cookie)
    } else if what.contains(ReadFlags::DELETE) {
        Change::Gone
    } else {
        Change::Other
    }
}
