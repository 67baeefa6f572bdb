//! A virtiofs front end for [`rcuwalk`]: a [`Vfs`] as a device of a virtual machine.
//!
//! ```no_run
//! use std::os::unix::net::UnixListener;
//! use rcuwalk::Vfs;
//! use rcuwalk_fuse::Options;
//! use rcuwalk_memfs::MemFs;
//!
//! let listener = UnixListener::bind("/run/fs.sock")?;
//! // qemu -chardev socket,id=fs,path=/run/fs.sock -device vhost-user-fs-pci,chardev=fs,tag=home …
//! let (monitor, _) = listener.accept()?;
//! let vfs = Vfs::new(MemFs::new())?;
//! let served = rcuwalk_virtiofs::serve(vfs, monitor, &Default::default(), &Options::default())?;
//! // In the guest: mount -t virtiofs home /mnt
//! served.join()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | read           | to learn                                                             |
//! |----------------|----------------------------------------------------------------------|
//! | this file      | serving one machine, from its connection to the end                  |
//! | `device.rs`    | what the machine monitor says, and what it is answered               |
//! | `config.rs`    | the tag                                                              |
//! | `memory.rs`    | the guest's memory                                                   |
//! | `queues.rs`    | all queues, and how threads wait for requests                        |
//! | `ring.rs`      | one queue: requests taken and given back                             |
//! | `request.rs`   | a request that a thread has                                          |
//! | `chain.rs`     | where in the guest's memory a request is                             |
//!
//! The requests are those of FUSE, and [`rcuwalk_fuse::carry`] answers them, on its threads.
//!
//! # Trust
//!
//! The guest is not trusted. It writes requests, descriptors and rings, at any time: each is read
//! once, into memory of our own, and checked there. It reaches its own memory, and files of the
//! tree. Within the tree it is as trusted as its root is: its kernel checks permissions, and says
//! to which user a new file belongs.
//!
//! The monitor shares the guest's memory, as files. It can end this process by making one of them
//! shorter (`SIGBUS`), and reaches nothing else by that: a process serves one machine.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod chain;
mod config;
mod device;
mod memory;
mod queues;
mod request;
mod ring;

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rcuwalk::Vfs;
use rcuwalk_fuse::{Carried, MountError, Observer};
use vhost::vhost_user::{BackendReqHandler, Error};

pub use crate::config::Tag;
use crate::device::Device;
use crate::queues::Queues;

/// The most queues for requests.
pub const MOST_QUEUES: usize = 64;

/// The options of the device itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Queues for requests that a guest may use, [`MOST_QUEUES`] at most; 0 for as many as there
    /// are processors, eight at most. Any thread answers any queue.
    pub queues: usize,
    /// The tag, for monitors that ask the device for it. QEMU has it in its own options, and 7.1
    /// to 8.0 end when a device offers one.
    pub tag: Option<Tag>,
    /// How old a request gets before it is waited for no longer when the monitor stops a queue, as
    /// for a pause of the guest; it is `EIO` then. `None` for ten seconds.
    pub patience: Option<Duration>,
}

/// See [`DeviceOptions::patience`]. A request that waits for a disk or a server for as long as that
/// is stuck; and the monitor does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

rcuwalk::setters!(DeviceOptions {
    queues: usize,
    tag: Option<Tag>,
    patience: Option<Duration>,
});

/// Serves `vfs` to the machine whose monitor is at the other end of `connection` (vhost-user), on
/// threads of its own, until the monitor hangs up. Of the [`Options`](rcuwalk_fuse::Options),
/// those count that [`rcuwalk_fuse::carry`] names.
///
/// # Errors
/// [`MountError::Source`]; [`MountError::Device`] if there can be no thread or descriptor.
#[doc(alias("vhost-user-fs", "virtiofsd"))]
pub fn serve(
    vfs: Vfs,
    connection: UnixStream,
    device: &DeviceOptions,
    options: &rcuwalk_fuse::Options,
) -> Result<Served, MountError> {
    let requests = match device.queues {
        0 => thread::available_parallelism().map_or(1, |cores| cores.get().min(8)),
        queues => queues.min(MOST_QUEUES),
    };
    let queues = Arc::new(Queues::new(requests).map_err(MountError::Device)?);
    let ours = connection.try_clone().map_err(MountError::Device)?;
    let carried = rcuwalk_fuse::carry(vfs, queues.clone(), options);
    let carried = carried.inspect_err(|_| queues.end())?;
    let patience = device.patience.unwrap_or(PATIENCE);
    let device = Device::new(queues.clone(), device.tag.clone(), patience);
    let has_ended = Arc::new(AtomicBool::new(false));
    let connection = Arc::new(connection);
    let end = End {
        queues,
        connection: connection.clone(),
        has_ended: has_ended.clone(),
    };
    let listen = move || {
        let _end = end;
        let device = Arc::new(Mutex::new(device));
        listen(BackendReqHandler::from_stream(ours, device))
    };
    let thread = thread::Builder::new().name("rcuwalk-vhost".to_owned());
    let listening = thread.spawn(listen).map_err(MountError::Device)?;
    Ok(Served {
        carried,
        connection,
        listening,
        has_ended,
    })
}

/// Hangs up, and ends the threads that answer.
struct End {
    queues: Arc<Queues>,
    connection: Arc<UnixStream>,
    has_ended: Arc<AtomicBool>,
}

impl Drop for End {
    fn drop(&mut self) {
        // Other descriptors of it are open: the monitor would wait for an answer.
        let _ = self.connection.shutdown(Shutdown::Both);
        for ring in self.queues.rings() {
            ring.abandon();
        }
        self.queues.end();
        // Relaxed: nothing is read because of it.
        self.has_ended.store(true, Relaxed);
    }
}

/// Answers the monitor until it hangs up.
fn listen(mut monitor: BackendReqHandler<Mutex<Device>>) -> io::Result<()> {
    loop {
        match monitor.handle_request() {
            Ok(()) => {}
            // A monitor that is killed may do so in the middle of a message.
            Err(Error::Disconnected | Error::PartialMessage | Error::SocketBroken(_)) => {
                return Ok(());
            }
            Err(err) => return Err(io::Error::other(format!("the machine monitor: {err}"))),
        }
    }
}

/// A tree that is served to a virtual machine. Dropping this does not end the service: it goes on
/// until the monitor hangs up.
pub struct Served {
    carried: Carried<Queues>,
    connection: Arc<UnixStream>,
    listening: JoinHandle<io::Result<()>>,
    has_ended: Arc<AtomicBool>,
}

impl Served {
    /// Returns a handle from which other threads read statistics, now and later.
    pub fn observer(&self) -> Observer {
        self.carried.observer()
    }

    /// True once the monitor has hung up.
    pub fn is_over(&self) -> bool {
        self.has_ended.load(Relaxed)
    }

    /// Hangs up.
    pub fn end(&self) {
        // It fails if the monitor has.
        let _ = self.connection.shutdown(Shutdown::Both);
    }

    /// Waits until the monitor has hung up, and what it asked for is done; not for requests that
    /// are stuck in the back end.
    ///
    /// # Errors
    /// The monitor said something that makes no sense; a thread panicked.
    pub fn join(self) -> io::Result<()> {
        let panicked = |_| {
            Err(io::Error::other(
                "the thread that hears the monitor panicked",
            ))
        };
        let ended = self.listening.join().unwrap_or_else(panicked);
        let answered = self.carried.join();
        ended.and(answered)
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Served({:?})", self.carried)
    }
}
