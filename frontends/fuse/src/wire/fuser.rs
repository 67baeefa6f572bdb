//! The transport by fuser: it reads requests and writes answers.
//!
//! | read                    | to learn                                           |
//! |-------------------------|----------------------------------------------------|
//! | this file               | beginning and end                                  |
//! | `fuser/filesystem.rs`   | a method for each request that fuser decodes       |
//! | `fuser/reply.rs`        | asking the handler, and answering                  |
//! | `fuser/codec.rs`        | values on their way there and back                 |
//! | `fuser/init.rs`         | what the kernel is promised                        |

mod codec;
mod filesystem;
mod init;
mod reply;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use fuser::{BackgroundSession, Config, Session, SessionACL};

use self::filesystem::Server;
use super::{Handler, Transport, is_cut, is_device, mount};
use crate::Options;

struct FuserTransport {
    session: BackgroundSession,
    /// The connection once more, of which fuser keeps its own to itself.
    connection: OwnedFd,
    /// Unless somebody else has mounted it.
    mount_point: Option<PathBuf>,
}

/// Has requests answered that come by `device`, of which the first is INIT: waits for that.
///
/// # Errors
/// What came first is no INIT that is understood; what the descriptor reports.
pub(super) fn serve(
    handler: Arc<Handler>,
    device: OwnedFd,
    mount_point: Option<PathBuf>,
    options: &Options,
) -> io::Result<Box<dyn Transport>> {
    let connection = device.try_clone()?;
    Ok(Box::new(FuserTransport {
        session: answer(handler, device, options)?,
        connection,
        mount_point,
    }))
}

fn answer(
    handler: Arc<Handler>,
    device: OwnedFd,
    options: &Options,
) -> io::Result<BackgroundSession> {
    let (acl, mut config) = (acl(options), config(options));
    // Only the kernel's own device is opened once more for each thread.
    config.clone_fd = is_device(&device)?;
    Session::from_fd(Server(handler), device, acl, config)?.spawn()
}

impl Transport for FuserTransport {
    fn is_over(&self) -> bool {
        is_cut(&self.connection) || self.session.guard.is_finished()
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
