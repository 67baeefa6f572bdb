//! The wire: what a transport between the kernel and the tree must do, and nothing of how.
//!
//! | read                  | to learn                                                     |
//! |-----------------------|--------------------------------------------------------------|
//! | this file             | what a transport must do                                     |
//! | `wire/handler.rs`     | what it asks of the tree; where each operation begins and ends |
//! | `wire/notice.rs`      | what the kernel is told unasked                              |
//! | `wire/fuser.rs`       | the transport by fuser; `wire/fuser/`: its requests, its answers |
//!
//! Nothing outside of `wire/fuser` knows fuser. Another transport is a module beside it
//! that makes a [`Transport`] of a [`Handler`].

pub(crate) mod fuser;
mod handler;
mod notice;

use std::io;
use std::os::fd::OwnedFd;

pub(crate) use handler::{Handler, Opcode, Request};
pub use notice::Notifier;

/// What carries requests from the kernel to a [`Handler`], on threads of its own, and the
/// answers back. Dropped, it unmounts what it has mounted.
pub(crate) trait Transport: Send + Sync {
    /// True once the last of its threads has nothing more to answer: it is not mounted
    /// any more, and nobody uses it.
    fn is_over(&self) -> bool;

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
