//! Serving a tree by a connection that the caller provides.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rcuwalk::Vfs;

use crate::wire::{self, Handler, Notifier, Transport};
use crate::{MountError, Options};

/// Serves `vfs` by an existing connection: a descriptor of /dev/fuse that another process has
/// mounted (`mount -t fuse -o fd=N`, a container's manager), or one end of a `SOCK_SEQPACKET`
/// pair, which carries each message as the kernel would send it. Waits for the first message,
/// which is INIT. The [`Options`] about mounting have no effect here, nor has `max_nodes`: the
/// other side is asked for nothing back.
///
/// As INIT says, no answer is longer than a MiB: longer requests get less.
///
/// The other side is not trusted, see "Trust" in `docs/fuse.md`.
///
/// # Errors
/// [`MountError::Source`]; [`MountError::Device`] for a descriptor that brings no INIT, or whose
/// kernel offers io_uring and then refuses it.
#[doc(alias("fuse_session_custom_io", "fd="))]
pub fn serve(vfs: Vfs, device: OwnedFd, options: &Options) -> Result<Served, MountError> {
    let options = &options
        .clone()
        // Far more than memory could hold, and not near the end of the type's range.
        .max_nodes(usize::MAX >> 8);
    let handler = Arc::new(Handler::new(vfs, options).map_err(MountError::Source)?);
    let transport = wire::serve(handler.clone(), device, options);
    Ok(Served {
        transport: transport.map_err(MountError::Device)?,
        handler,
    })
}

/// A tree that is served by a connection. Dropping this does not end the service: it goes on
/// until the other side hangs up.
pub struct Served {
    transport: Transport,
    handler: Arc<Handler>,
}

impl Served {
    /// As [`Mounted::nodes`](crate::Mounted::nodes).
    pub fn nodes(&self) -> usize {
        self.handler.ops.nodes()
    }

    /// As [`Mounted::open`](crate::Mounted::open).
    pub fn open(&self) -> usize {
        self.handler.ops.open()
    }

    /// As [`Mounted::is_over`](crate::Mounted::is_over).
    pub fn is_over(&self) -> bool {
        self.transport.is_over()
    }

    /// As [`Mounted::notifier`](crate::Mounted::notifier).
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn notifier(&self) -> io::Result<Notifier> {
        self.transport.connection().map(Notifier::new)
    }

    /// Waits until the other side has hung up.
    ///
    /// # Errors
    /// What the descriptor reports; anything else if a thread that answers has panicked.
    pub fn join(self) -> io::Result<()> {
        self.transport.join()
    }
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Served({} nodes)", self.nodes())
    }
}
