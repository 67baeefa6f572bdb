//! The wire: what a transport between the kernel and the tree must do, and nothing of how.
//!
//! | read                  | to learn                                                     |
//! |-----------------------|--------------------------------------------------------------|
//! | this file             | what a transport must do                                     |
//! | `wire/handler.rs`     | what it asks of the tree; where each operation begins and ends |
//! | `wire/notice.rs`      | what the kernel is told unasked                              |
//! | `wire/mount.rs`       | mount(2) and fusermount3                                     |
//! | `wire/values.rs`      | numbers in requests, and what they mean                      |
//! | `wire/device.rs`      | the transport that reads /dev/fuse itself                    |
//! | `wire/fuser.rs`       | the transport by fuser, with the feature of that name        |
//!
//! Nothing outside of `wire/device` knows how messages look, but for `wire/notice.rs`, and
//! nothing outside of `wire/fuser` knows fuser. Another transport is a module beside them
//! that makes a [`Transport`] of a [`Handler`].

mod device;
#[cfg(feature = "fuser")]
mod fuser;
mod handler;
mod mount;
mod notice;
mod values;

use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::retry_on_intr;
use rustix::mount::UnmountFlags;

pub use device::rehearse;
pub(crate) use handler::{Handler, Opcode, Request};
pub use notice::Notifier;

use crate::Options;

/// What carries requests from the kernel and answers back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportKind {
    /// Messages are read from /dev/fuse, and decoded, here; or they come by io_uring, see
    /// [`Options::io_uring`].
    #[default]
    Device,
    /// By the crate fuser: to compare with, and to have something to fall back on. It knows no
    /// file without a name, no birth times and no interrupts, and trusts the other side; see
    /// docs/fuse.md.
    #[cfg(feature = "fuser")]
    Fuser,
}

/// Mounts, and has requests answered.
///
/// # Errors
/// What the kernel or fusermount3 say.
pub(crate) fn mount(
    handler: Arc<Handler>,
    at: &Path,
    options: &Options,
) -> io::Result<Box<dyn Transport>> {
    let connection = mount::mount(at, options)?;
    let answering = answer(handler, connection, Some(at.to_owned()), options);
    answering.inspect_err(|_| {
        // Nobody would answer.
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        if rustix::mount::unmount(at, flags).is_err() {
            let _ = mount::unmount(at);
        }
    })
}

/// Has requests answered that come by `device`, of which the first is INIT: waits for that.
///
/// # Errors
/// What came first is no INIT that is understood; what the descriptor reports.
pub(crate) fn serve(
    handler: Arc<Handler>,
    device: OwnedFd,
    options: &Options,
) -> io::Result<Box<dyn Transport>> {
    answer(handler, device, None, options)
}

fn answer(
    handler: Arc<Handler>,
    device: OwnedFd,
    mount_point: Option<PathBuf>,
    options: &Options,
) -> io::Result<Box<dyn Transport>> {
    match options.transport {
        TransportKind::Device => device::serve(handler, device, mount_point, options),
        #[cfg(feature = "fuser")]
        TransportKind::Fuser => fuser::serve(handler, device, mount_point, options),
    }
}

/// What carries requests from the kernel to a [`Handler`], on threads of its own, and the
/// answers back.
pub(crate) trait Transport: Send + Sync {
    /// True once the last of its threads has nothing more to answer: it is not mounted
    /// any more, and nobody uses it.
    fn is_over(&self) -> bool;

    /// Whether requests come by io_uring.
    fn is_by_io_uring(&self) -> bool {
        false
    }

    /// Waits for that.
    ///
    /// # Errors
    /// What a thread that answers has ended with.
    fn join(self: Box<Self>) -> io::Result<()>;

    /// Unmounts with what help it has (fusermount3, for users); does not wait for the end.
    ///
    /// # Errors
    /// What the helper says.
    fn unmount(&self) -> io::Result<()>;

    /// Another descriptor of the connection, for a [`Notifier`].
    ///
    /// # Errors
    /// Out of descriptors.
    fn connection(&self) -> io::Result<OwnedFd>;
}

/// Whether a listing goes on, for who takes its entries.
fn full(is_full: bool) -> ControlFlow<()> {
    if is_full {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

/// Whether the other end is gone. Asks the connection: the threads that answer take a moment
/// to notice, in which somebody else may have mounted in the same place.
fn is_cut(connection: &OwnedFd) -> bool {
    let mut connection = [PollFd::new(connection, PollFlags::empty())];
    let at_once = Timespec::default();
    let told = retry_on_intr(|| poll(&mut connection, Some(&at_once)));
    let gone = PollFlags::ERR | PollFlags::HUP;
    told.is_ok() && connection[0].revents().intersects(gone)
}

/// Whether it is the kernel's own device, which alone is opened once more for each thread.
fn is_device(connection: &OwnedFd) -> io::Result<bool> {
    let mode = fstat(connection)?.st_mode;
    Ok(FileType::from_raw_mode(mode).is_char_device())
}
