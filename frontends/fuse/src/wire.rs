//! The wire: requests come from the kernel, and answers go back.
//!
//! | read                  | to learn                                                     |
//! |-----------------------|--------------------------------------------------------------|
//! | this file             | a connection's beginning: mounted here, or handed over       |
//! | `wire/handler.rs`     | what it asks of the tree; where each operation begins and ends |
//! | `wire/notice.rs`      | notices to the kernel: stale caches, nodes to give back      |
//! | `wire/mount.rs`       | mount(2) and fusermount3                                     |
//! | `wire/values.rs`      | numbers in requests, and their meaning                       |
//! | `wire/device.rs`      | the transport that reads /dev/fuse itself                    |
//!
//! Nothing outside of `wire/device` knows the layout of messages, except `wire/notice.rs`.

mod device;
mod handler;
mod mount;
mod notice;
mod values;

use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::retry_on_intr;
use rustix::mount::UnmountFlags;

pub(crate) use device::Transport;
pub use device::carried::{Arrival, Carried, CarriedRequest, Carrier, carry};
pub use device::rehearse;
pub(crate) use handler::{Handler, Opcode, Request, Timeouts};
pub use notice::Notifier;

use crate::Options;

/// Mounts, calls `confine`, and starts the threads that answer.
///
/// # Errors
/// Those of the kernel or of fusermount3.
pub(crate) fn mount(
    handler: Arc<Handler>,
    at: &Path,
    options: &Options,
    confine: impl FnOnce() -> io::Result<()>,
) -> io::Result<Transport> {
    let connection = mount::mount(at, options)?;
    let serve = || device::serve(handler, connection, Some(at.to_owned()), options);
    let answering = confine().and_then(|()| serve());
    answering.inspect_err(|_| {
        // No thread would answer.
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        if rustix::mount::unmount(at, flags).is_err() {
            let _ = mount::unmount(at);
        }
    })
}

/// Starts the threads that answer requests from `device`. Waits for the first one, which is
/// INIT.
///
/// # Errors
/// The first message is no INIT, or not one that we support; errors of the descriptor.
pub(crate) fn serve(
    handler: Arc<Handler>,
    device: OwnedFd,
    options: &Options,
) -> io::Result<Transport> {
    device::serve(handler, device, None, options)
}

/// Tells a listing to stop when the answer is full.
fn full(is_full: bool) -> ControlFlow<()> {
    if is_full {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

/// True if the other end is gone. Asks the connection: the threads that answer take a moment to
/// notice, in which another mount may have been made in the same place.
fn is_cut(connection: &OwnedFd) -> bool {
    let mut connection = [PollFd::new(connection, PollFlags::empty())];
    let at_once = Timespec::default();
    let told = retry_on_intr(|| poll(&mut connection, Some(&at_once)));
    let gone = PollFlags::ERR | PollFlags::HUP;
    told.is_ok() && connection[0].revents().intersects(gone)
}

/// True for the kernel's own device: only that is opened once more for each thread.
fn is_device(connection: &OwnedFd) -> io::Result<bool> {
    let mode = fstat(connection)?.st_mode;
    Ok(FileType::from_raw_mode(mode).is_char_device())
}
