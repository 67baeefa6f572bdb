//! The transport by fuser: it reads requests and writes answers.
//!
//! | read                    | to learn                                           |
//! |-------------------------|----------------------------------------------------|
//! | this file               | beginning and end                                  |
//! | `fuser/filesystem.rs`   | a method for each request that fuser decodes       |
//! | `fuser/reply.rs`        | asking the handler, and answering                  |
//! | `fuser/codec.rs`        | values on their way there and back                 |
//! | `fuser/init.rs`         | what the kernel is promised                        |
//! | `fuser/mount.rs`        | mount(2) and fusermount3                           |

mod codec;
mod filesystem;
mod init;
mod mount;
mod reply;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::{BackgroundSession, Config, Session, SessionACL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::retry_on_intr;
use rustix::mount::UnmountFlags;

use self::filesystem::Server;
use super::{Handler, Transport};
use crate::Options;

struct FuserTransport {
    session: BackgroundSession,
    /// The connection once more, of which fuser keeps its own to itself.
    connection: OwnedFd,
    /// Unless somebody else has mounted it.
    mount_point: Option<PathBuf>,
}

/// Mounts, and has requests answered.
///
/// # Errors
/// What the kernel or fusermount3 say.
pub(crate) fn mount(
    handler: Arc<Handler>,
    mount_point: &Path,
    options: &Options,
) -> io::Result<Box<dyn Transport>> {
    let connection = mount::mount(mount_point, options)?;
    let answering = connection
        .try_clone()
        .and_then(|connection| answer(handler, connection, options));
    let session = answering.inspect_err(|_| {
        // Nobody would answer.
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        if rustix::mount::unmount(mount_point, flags).is_err() {
            let _ = mount::unmount(mount_point);
        }
    })?;
    Ok(Box::new(FuserTransport {
        session,
        connection,
        mount_point: Some(mount_point.to_owned()),
    }))
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
    let connection = device.try_clone()?;
    Ok(Box::new(FuserTransport {
        session: answer(handler, device, options)?,
        connection,
        mount_point: None,
    }))
}

fn answer(
    handler: Arc<Handler>,
    device: OwnedFd,
    options: &Options,
) -> io::Result<BackgroundSession> {
    let (acl, mut config) = (acl(options), config(options));
    // Only the kernel's own device is opened once more for each thread.
    config.clone_fd = FileType::from_raw_mode(fstat(&device)?.st_mode).is_char_device();
    Session::from_fd(Server(handler), device, acl, config)?.spawn()
}

impl Transport for FuserTransport {
    /// Asks the connection: the threads that answer take a moment to notice, in which
    /// somebody else may have mounted in the same place.
    fn is_over(&self) -> bool {
        let mut connection = [PollFd::new(&self.connection, PollFlags::empty())];
        let at_once = Timespec::default();
        let told = retry_on_intr(|| poll(&mut connection, Some(&at_once)));
        let is_cut = told.is_ok()
            && connection[0]
                .revents()
                .intersects(PollFlags::ERR | PollFlags::HUP);
        is_cut || self.session.guard.is_finished()
    }

    fn join(self: Box<Self>) -> io::Result<()> {
        let ended = self.session.guard.join();
        ended.unwrap_or_else(|_| Err(io::Error::other("a thread that answers panicked")))
    }

    fn unmount(&self) -> io::Result<()> {
        self.mount_point.as_deref().map_or(Ok(()), mount::unmount)
    }

    fn connection(&self) -> io::Result<OwnedFd> {
        self.connection.try_clone()
    }
}

fn config(options: &Options) -> Config {
    let mut config = Config::default();
    config.acl = acl(options);
    config.n_threads = Some(options.handlers());
    config
}

fn acl(options: &Options) -> SessionACL {
    match options.allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    }
}
