//! The transport: it reads messages from /dev/fuse, or from any descriptor that delivers them
//! one by one, and writes the answers.
//!
//! | read                  | to learn                                                   |
//! |-----------------------|------------------------------------------------------------|
//! | this file             | beginning and end                                          |
//! | `device/session.rs`   | the threads that answer, and the sources of requests        |
//! | `device/members.rs`   | which threads there are, and their end                     |
//! | `device/watcher.rs`   | more threads while these are blocked                       |
//! | `device/dispatch.rs`  | one message after the other; answers that do not arrive    |
//! | `device/decode.rs`    | from bytes to a request; `decode/fields.rs`: of what parts |
//! | `device/answer.rs`    | what each request asks of the tree, and its answer         |
//! | `device/encode.rs`    | from values to bytes                                       |
//! | `device/init.rs`      | INIT: the features that are agreed with the kernel         |
//! | `device/abi.rs`       | the protocol's numbers                                     |
//! | `device/ioctl.rs`     | ioctls of the device itself                                |
//! | `device/uring.rs`     | requests that come by rings instead                        |
//! | `device/carried.rs`   | requests that another crate's transport brings             |
//! | `device/rehearsal.rs` | the same without a connection, for a fuzzer                |
//!
//! Nothing here trusts the other side: a message that makes no sense is answered `EINVAL`, and
//! costs nothing else. Only a message that is shorter than a header, or has the number 0, gets
//! no answer: it is ignored.

mod abi;
mod answer;
pub(super) mod carried;
mod decode;
mod dispatch;
mod encode;
mod init;
mod ioctl;
mod members;
mod rehearsal;
mod session;
#[cfg(test)]
mod tests;
mod uring;
mod watcher;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;

pub use self::rehearsal::rehearse;
use self::session::Session;
use self::uring::{RingThread, RingThreads};
use super::{Handler, is_cut, is_device, mount};
use crate::Options;

/// Carries requests from the kernel to a [`Handler`], on threads of its own, and the answers back.
pub(crate) struct Transport {
    session: Arc<Session>,
    /// Another descriptor of the connection, which outlives its threads.
    connection: OwnedFd,
}

/// Starts the threads that answer requests from `device`. Waits for the first one, which is
/// INIT.
///
/// # Errors
/// The first message is no INIT, or not one that we support; errors of the descriptor; out of
/// threads.
pub(super) fn serve(
    handler: Arc<Handler>,
    device: OwnedFd,
    mount_point: Option<PathBuf>,
    options: &Options,
) -> io::Result<Transport> {
    let connection = device.try_clone()?;
    let may_ring = options.io_uring && is_device(&device)?;
    let threads = options.handlers();
    let session = Arc::new(Session::new(handler, device, mount_point, threads)?);
    let mut ring_threads = RingThreads::default();
    session.shake_hands(|| {
        if may_ring {
            match RingThreads::new(&session, options.threads) {
                Ok(made) => ring_threads = made,
                Err(err) => tracing::info!(%err, "requests do not come by io_uring"),
            }
        }
        !ring_threads.is_empty()
    })?;
    let (rings, mut threads) = ring_threads.register()?.into_parts();
    if may_ring && rings.is_empty() && session.mount_point.is_some() {
        uring::say_if_off();
    }
    let by_ring: Vec<_> = threads.iter().map(RingThread::slot).collect();
    let members = session.begin(rings, &by_ring);
    for (at, member) in members.into_iter().enumerate() {
        match session.start(member.clone(), format!("rcuwalk-fuse-{at}")) {
            Ok(()) => {}
            // Fewer threads are enough.
            Err(_) if at > 0 => session.leave(&member),
            Err(err) => return Err(err),
        }
    }
    for thread in threads.drain(..) {
        session.members.started(thread.answer());
    }
    watcher::start(&session)?;
    Ok(Transport {
        session,
        connection,
    })
}

/// Gives the calling thread a table of descriptors of its own, and in it a descriptor of the
/// connection of `of` that nothing else keeps open. See [`ioctl::keep_alone`].
///
/// # Errors
/// Those of the kernel; `of` can be used in any case.
pub(super) fn alone(of: impl AsFd) -> io::Result<OwnedFd> {
    ioctl::keep_alone(of.as_fd())?;
    let own = session::cloned(&of, OFlags::empty())?;
    ioctl::keep_alone(own.as_fd())?;
    Ok(own)
}

impl Transport {
    /// True once the last of its threads has nothing more to answer: it is not mounted any
    /// more, and not in use.
    pub(crate) fn is_over(&self) -> bool {
        is_cut(&self.connection) || self.session.has_ended()
    }

    /// True if requests come by io_uring.
    pub(crate) fn is_by_io_uring(&self) -> bool {
        self.session.has_rings()
    }

    /// Waits until the session is over, but not for threads that are stuck in the back end.
    ///
    /// # Errors
    /// The error with which a thread has ended.
    pub(crate) fn join(self) -> io::Result<()> {
        let are_ending = self.session.wait_for_end();
        if !are_ending {
            tracing::warn!("requests are stuck in the source: the mount ends without them");
        }
        self.session.members.join(are_ending)
    }

    /// Unmounts with the available help (fusermount3, for users); does not wait for the end.
    ///
    /// # Errors
    /// Those of the helper.
    pub(crate) fn unmount(&self) -> io::Result<()> {
        let mount_point = self.session.mount_point.as_deref();
        mount_point.map_or(Ok(()), mount::unmount)
    }

    /// Another descriptor of the connection, for a [`Notifier`](super::Notifier).
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn connection(&self) -> io::Result<OwnedFd> {
        self.connection.try_clone()
    }
}
