//! A FUSE front end for [`rcuwalk`]: a [`Vfs`] as a mounted file system.
//!
//! ```no_run
//! use rcuwalk::Vfs;
//! use rcuwalk_fuse::{Options, mount};
//! use rcuwalk_memfs::MemFs;
//!
//! let vfs = Vfs::new(MemFs::new())?;
//! let mut mounted = mount(vfs, "/mnt", &Options::default())?;
//! std::fs::write("/mnt/hello", "world")?;
//! mounted.unmount()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | read          | to learn                                                          |
//! |---------------|-------------------------------------------------------------------|
//! | this file     | mounting and unmounting                                           |
//! | `serve.rs`    | serving by an existing connection                                 |
//! | `nodes.rs`    | node ids: which inode has which, and for how long                 |
//! | `options.rs`  | the options of a mount                                            |
//! | `ops.rs`      | the operations, by node id; `ops/`: one file for each kind        |
//! | `remembered.rs` | where forgotten nodes were, for file handles                    |
//! | `removed.rs`  | files that have lost their last name                              |
//! | `pushed.rs`   | changes behind the mount that the kernel is told of               |
//! | `pressure.rs` | how many nodes there are and may be, and which requests wait      |
//! | `shrink.rs`   | the worker that asks the kernel for nodes back                    |
//! | `ahead.rs`    | how many open directories keep entries                            |
//! | `shares.rs`   | how much each user may hold                                       |
//! | `listing.rs`  | an open directory, and the positions in it                        |
//! | `handles.rs`  | open files and directories                                        |
//! | `metrics.rs`  | how many requests there were, and how long they took              |
//! | `through.rs`  | contents that the kernel reads and writes by itself               |
//! | `guess.rs`    | whether a new file will be small, and stay with requests          |
//! | `mount_point.rs` | a mount point, held through renames and links                  |
//! | `caller.rs`   | the credentials of a request's caller                             |
//! | `interrupt.rs` | INTERRUPT: requests that are cancelled                           |
//! | `own.rs`      | requests of our own threads                                       |
//! | `watch.rs`    | requests that are stuck                                           |
//! | `wire.rs`     | the wire: what a transport must do; `wire/device.rs`: the one that reads /dev/fuse |
//!
//! # Permissions
//!
//! Both sides check. The kernel does, on its cached attributes (`default_permissions`, with
//! ACLs), since it walks cached names without asking; and the VFS does, with the credentials of
//! the request. Supplementary groups and capabilities of a process are not in the request; they
//! are read from /proc, see `caller.rs`. User 0 counts as fully privileged, as far as the
//! kernel's own check lets it; but where the kernel leaves the check for CAP_FSETID or
//! CAP_SYS_ADMIN to us, its process must have that capability.
//!
//! # What the kernel keeps
//!
//! The kernel caches names, attributes and "no such name" for as long as [`Options`] say. A
//! change through the mount shows at once; a change behind it, on the host, shows when that
//! time is over and the back end has noticed. Where the back end announces changes
//! ([`Options::watch`]), the times are longer, and the kernel is told. File contents are cached by the page, and dropped
//! when size or time of the file have changed; with passthrough ([`Options::passthrough`]) the
//! mount has no pages of its own, and uses those of the host's file.
//!
//! # Limitations
//!
//! Locks across mounts, ioctl except the calls of lsattr and chattr, and device numbers of 2^32
//! and more. With a back end that goes by names (hostfs), an open file that has lost its last
//! name cannot be opened once more by way of /proc.

// The device's three ioctls, in `wire/device/ioctl.rs`, and the commands of its rings, in
// `wire/device/uring/ring.rs`, are the exceptions.
#![deny(unsafe_code)]
#![warn(missing_debug_implementations)]

mod ahead;
mod back;
mod caller;
mod guess;
mod handles;
mod interrupt;
mod listing;
mod metrics;
#[doc(hidden)]
pub mod mount_point;
mod nodes;
mod ops;
mod options;
mod own;
mod pressure;
mod pushed;
mod remembered;
mod removed;
mod serve;
mod shares;
mod shrink;
mod through;
mod watch;
mod weak_list;
mod wire;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rcuwalk::Vfs;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

pub use crate::metrics::{Observer, OperationStatistics, Statistics};
use crate::mount_point::MountPoint;
pub use crate::options::{Contents, FEWEST_NODES, Options};
pub use crate::pressure::NodeStatistics;
pub use crate::pushed::ToldStatistics;
pub use crate::serve::{Served, serve};
use crate::shrink::Worker;
pub use crate::watch::Stuck;
#[doc(hidden)]
pub use crate::wire::rehearse;
pub use crate::wire::{Arrival, Carried, CarriedRequest, Carrier, Notifier, carry};
use crate::wire::{Handler, Transport};

/// The reason why a tree is not mounted. Displays as one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountError {
    /// The mount point cannot be used.
    MountPoint(PathBuf, io::Error),
    /// /dev/fuse cannot be used.
    Device(io::Error),
    /// The kernel or fusermount3 refuses.
    Refused(io::Error),
    /// The tree has no root to show.
    Source(rcuwalk::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::MountPoint(path, err) => {
                write!(f, "cannot mount on {}: {}", path.display(), Words(err))
            }
            MountError::Device(err) if err.kind() == io::ErrorKind::NotFound => f.write_str(
                "there is no /dev/fuse: load the kernel's module (modprobe fuse), or give the \
                 container the device",
            ),
            MountError::Device(err) => {
                let way_out = match err.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::ACCESS) => ": let this user open it (chmod 666 /dev/fuse), or run as root",
                    Some(Errno::PERM) => ": give the container the device (--device /dev/fuse)",
                    Some(Errno::NODEV | Errno::NXIO) => ": load the kernel's module (modprobe fuse)",
                    _ => "",
                };
                write!(f, "cannot use /dev/fuse: {}{way_out}", Words(err))
            }
            MountError::Refused(err) if err.kind() == io::ErrorKind::NotFound => f.write_str(
                "only root may mount by itself: install fusermount3 (package fuse3), or run as root",
            ),
            MountError::Refused(err) => write!(f, "cannot mount: {}", Words(err)),
            MountError::Source(err) => write!(f, "cannot show the tree: {err}"),
        }
    }
}

impl std::error::Error for MountError {}

/// Displays an error in one line, without its number.
struct Words<'e>(&'e io::Error);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let line = text.lines().next().unwrap_or_default();
        let words = line.split(" (os error").next().unwrap_or_default();
        f.write_str(words.trim_end())
    }
}

/// Mounts `vfs` on a directory, and serves it on threads of its own until it is unmounted.
///
/// # Errors
/// [`MountError`].
#[doc(alias("fuse_session_mount", "mount(2)"))]
pub fn mount(
    vfs: Vfs,
    mount_point: impl AsRef<Path>,
    options: &Options,
) -> Result<Mounted, MountError> {
    mount_confined(vfs, mount_point, options, || Ok(()))
}

/// Like [`mount`], but calls `confine` after mounting and before the first thread starts: every
/// thread that answers inherits the restrictions of the calling thread.
///
/// # Errors
/// [`MountError`]; [`MountError::Refused`] with what `confine` reports.
pub fn mount_confined(
    vfs: Vfs,
    mount_point: impl AsRef<Path>,
    options: &Options,
    confine: impl FnOnce() -> io::Result<()>,
) -> Result<Mounted, MountError> {
    let work = |worker: Worker<'_>| worker.run();
    mount_by(vfs, mount_point.as_ref(), options, confine, work)
}

/// Mounts; `work` is the worker's job, on a thread of its own.
fn mount_by(
    vfs: Vfs,
    given: &Path,
    options: &Options,
    confine: impl FnOnce() -> io::Result<()>,
    work: impl for<'o> FnOnce(Worker<'o>) + Send + 'static,
) -> Result<Mounted, MountError> {
    let at = |err| MountError::MountPoint(given.to_owned(), err);
    let mount_point = given.canonicalize().map_err(at)?;
    if !fs::metadata(&mount_point).map_err(at)?.is_dir() {
        return Err(at(io::ErrorKind::NotADirectory.into()));
    }
    let mut device = fs::File::options();
    let device = device.read(true).write(true).open("/dev/fuse");
    drop(device.map_err(MountError::Device)?);
    let place = MountPoint::open(&mount_point).map_err(at)?;
    let handler = Arc::new(Handler::new(vfs, options).map_err(MountError::Source)?);
    let transport = wire::mount(handler.clone(), &mount_point, options, confine);
    let transport = transport.map_err(MountError::Refused)?;
    let mut mounted = Mounted {
        transport: Some(transport),
        id: place.id().ok().flatten(),
        place: Some(place),
        unmounter: None,
        worker: None,
        teller: None,
        mount_point,
        handler,
    };
    let device = mounted.place.as_ref().map(|place| place.device(mounted.id));
    if let Some(Ok(device)) = device {
        mounted.handler.ops.shown_as(device);
    }
    mounted.start(work).map_err(MountError::Refused)?;
    if options.watch {
        mounted.tell_of_changes().map_err(MountError::Refused)?;
    }
    Ok(mounted)
}

type Unmounter = dyn Fn(bool) -> io::Result<()> + Send + Sync;

/// A mounted tree. Dropping it unmounts the tree, or detaches it if it is in use.
#[must_use = "dropping it unmounts"]
pub struct Mounted {
    /// `None` once it is unmounted.
    transport: Option<Transport>,
    /// Ends with the session.
    worker: Option<JoinHandle<()>>,
    /// As well.
    teller: Option<JoinHandle<()>>,
    mount_point: PathBuf,
    /// `None` once it is unmounted.
    place: Option<MountPoint>,
    /// Unmounts on behalf of this process, which may not.
    unmounter: Option<Box<Unmounter>>,
    /// The kernel's id of the mount, while it is mounted.
    id: Option<u64>,
    handler: Arc<Handler>,
}

impl Mounted {
    /// Starts the worker that limits the number of nodes.
    fn start(&mut self, work: impl for<'o> FnOnce(Worker<'o>) + Send + 'static) -> io::Result<()> {
        let notifier = self.notifier()?;
        let (handler, at) = (self.handler.clone(), self.mount_point.clone());
        let thread = thread::Builder::new().name("rcuwalk-shrink".to_owned());
        let worker = thread.spawn(move || work(Worker::new(&handler.ops, notifier, &at)));
        self.worker = Some(worker?);
        Ok(())
    }

    /// Starts to tell the kernel of changes, if the back end announces them.
    fn tell_of_changes(&mut self) -> io::Result<()> {
        self.teller = pushed::start(&self.handler, self.notifier()?)?;
        Ok(())
    }

    /// True if the kernel caches names until it is told of changes
    /// ([`Options::watch`](Options)).
    pub fn is_told_of_changes(&self) -> bool {
        self.teller.is_some()
    }

    /// Makes `unmounter` unmount this mount from now on, detached if it is given true: for a
    /// process that has given up the right to do so.
    pub fn unmount_by(
        &mut self,
        unmounter: impl Fn(bool) -> io::Result<()> + Send + Sync + 'static,
    ) {
        self.unmounter = Some(Box::new(unmounter));
    }

    /// The path where it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// The kernel's id of the mount, which is unique while the mount exists. `None` if there is
    /// no procfs.
    pub fn mount_id(&self) -> Option<u64> {
        self.id
    }

    /// The number of nodes that the kernel knows, give or take requests under way: the root,
    /// and the nodes that it has looked up and not forgotten. Only the root when it is
    /// unmounted.
    pub fn nodes(&self) -> usize {
        self.handler.ops.nodes()
    }

    /// Returns the number of nodes that the kernel holds, and counters of the work that keeps
    /// it low. Takes no lock.
    pub fn node_statistics(&self) -> NodeStatistics {
        self.handler.ops.node_statistics()
    }

    /// The number of files and directories that are open through it.
    pub fn open(&self) -> usize {
        self.handler.ops.open()
    }

    /// Returns a handle from which other threads read the mount's statistics, now and later.
    pub fn observer(&self) -> Observer {
        Observer::of(&self.handler)
    }

    /// True if the kernel may read and write contents without asking
    /// ([`Options::passthrough`]).
    pub fn passes_through(&self) -> bool {
        self.handler.ops.offer.stands()
    }

    /// True if requests come by io_uring ([`Options::io_uring`]).
    pub fn is_by_io_uring(&self) -> bool {
        let transport = self.transport.as_ref();
        transport.is_some_and(|transport| transport.is_by_io_uring())
    }

    /// True once the mount has been unmounted from outside and is no longer in use.
    pub fn is_over(&self) -> bool {
        let transport = self.transport.as_ref();
        transport.is_none_or(|transport| transport.is_over())
    }

    /// Returns a notifier, which tells the kernel of changes behind the mount.
    ///
    /// # Errors
    /// `ENOTCONN` if it is not mounted any more; out of descriptors.
    pub fn notifier(&self) -> io::Result<Notifier> {
        let transport = self.transport.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        transport.connection().map(Notifier::new)
    }

    /// Unmounts it, and returns when the last answer has been given; does not wait for a
    /// request that has been stuck in the back end for five seconds. If the mount is visible
    /// elsewhere as well (by a bind mount, in another namespace), it is served there as long as
    /// this process lives, as after [`detach`](Self::detach).
    ///
    /// # Errors
    /// `EBUSY` if it is in use, or something else is mounted on top of it; then it stays
    /// mounted.
    pub fn unmount(&mut self) -> io::Result<()> {
        if !self.is_over() {
            match self.take_out(UnmountFlags::empty()) {
                Ok(()) => {}
                // fusermount3 has the right.
                Err(err) if err.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                    let transport = self.transport.as_ref();
                    transport.map_or(Ok(()), |transport| transport.unmount())?;
                }
                Err(err) => return Err(err),
            }
        }
        if self.ends_soon() {
            return self.join();
        }
        self.leave();
        Ok(())
    }

    /// Takes it out of the tree at once. Processes that use it may go on as long as this
    /// process lives; no other process can enter it.
    ///
    /// # Errors
    /// Those of umount2(2); `EBUSY` if something else is mounted on top of it.
    #[doc(alias = "MNT_DETACH")]
    pub fn detach(&mut self) -> io::Result<()> {
        self.take_out(UnmountFlags::DETACH)?;
        self.leave();
        Ok(())
    }

    /// True if the session ends within a second: the last umount(2) cuts the connection before
    /// it returns, or soon after.
    fn ends_soon(&self) -> bool {
        let end = Instant::now() + Duration::from_secs(1);
        while !self.is_over() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        self.is_over()
    }

    /// Leaves the mount to the processes that use it. Otherwise the drop would find it still in
    /// use, and unmount another mount that is at its path by now.
    fn leave(&mut self) {
        std::mem::forget(self.transport.take());
        self.place = None;
    }

    /// Unmounts this mount, and no other one that is at its path by now.
    fn take_out(&self, flags: UnmountFlags) -> io::Result<()> {
        if let Some(unmounter) = &self.unmounter {
            return unmounter(flags.contains(UnmountFlags::DETACH));
        }
        let Some(place) = &self.place else {
            return Ok(());
        };
        match place.unmount(self.id, flags) {
            // Another mount, a link or nothing is there. This mount is below it, was moved, or is
            // not in the tree any more.
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => {}
            done => return Ok(done?),
        }
        let Some((id, path)) = self.id.and_then(|id| Some((id, mounted_at(id)?))) else {
            return Ok(());
        };
        // The path leads to the other mount on top of this one.
        let place = MountPoint::open(&path).map_err(|_| Errno::BUSY)?;
        match place.unmount(Some(id), flags) {
            Err(Errno::INVAL) => Err(Errno::BUSY.into()),
            done => Ok(done?),
        }
    }

    fn join(&mut self) -> io::Result<()> {
        let transport = self.transport.take();
        transport.map_or(Ok(()), |transport| transport.join())?;
        self.join_notifiers()
    }

    /// Joins the threads that send notices, after those that answer: as long as one of these
    /// runs, a notice may wait for its answer.
    fn join_notifiers(&mut self) -> io::Result<()> {
        let worker = self.worker.take();
        for ended in worker.into_iter().chain(self.teller.take()) {
            let ended = ended.join();
            ended.map_err(|_| io::Error::other("a thread that sends notices panicked"))?;
        }
        Ok(())
    }
}

/// Returns the path of the mount `id` in this mount namespace; `None` if it is not in the tree.
fn mounted_at(id: u64) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let table = rcuwalk_procfs::read("thread-self/mountinfo").ok()?;
    let line = table.split(|byte| *byte == b'\n').find(|line| {
        let first = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        str::from_utf8(first).is_ok_and(|first| first.parse() == Ok(id))
    })?;
    let at = line.split(|byte| *byte == b' ').nth(4)?;
    Some(std::ffi::OsString::from_vec(shrink::unescape(at)).into())
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.transport.is_some() && self.unmount().is_err() {
            let _ = self.detach();
        }
    }
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mounted({:?}, {} nodes)", self.mount_point, self.nodes())
    }
}

/// The examples of README.md are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
