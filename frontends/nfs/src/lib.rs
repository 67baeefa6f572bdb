//! An NFSv3 front end for [`rcuwalk`]: a [`Vfs`](rcuwalk::Vfs) served to clients by TCP.
//!
//! ```
//! use rcuwalk::{HandleKey, Vfs};
//! use rcuwalk_memfs::MemFs;
//! use rcuwalk_nfs::{Listener, Options, Server};
//!
//! let vfs = Vfs::new(MemFs::new())?;
//! let listener = Listener::bind("127.0.0.1:0".parse()?)?;
//! // Draw the key at random, and keep it: handles are good for as long as it is the same.
//! let mut server = Server::start(listener, vfs, Options::new(HandleKey::new([7; 16])))?;
//! println!("mount -o port={0},mountport={0},tcp localhost:/ /mnt", server.address().port());
//! server.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | read          | to learn                                                            |
//! |---------------|---------------------------------------------------------------------|
//! | `server.rs`   | connections and threads                                             |
//! | `record.rs`   | a stream of bytes as records                                        |
//! | `dispatch.rs` | from a record to its reply                                          |
//! | `rpc.rs`      | the headers of calls and replies                                    |
//! | `replies.rs`  | calls that come again                                               |
//! | `ops.rs`      | the procedures; `ops/`: one file for each kind                      |
//! | `mount.rs`    | the MOUNT protocol                                                  |
//! | `export.rs`   | the tree, the verifier, and turns                                   |
//! | `files.rs`    | file handles, and the files that clients know                       |
//! | `opened.rs`   | files that stay open between requests                               |
//! | `caller.rs`   | the credentials of a call                                           |
//! | `attr.rs`     | attributes on the wire; `status.rs`: errors; `xdr.rs`: the encoding |
//! | `metrics.rs`  | how many calls there were, and how long they took                   |
//!
//! Both protocols, NFS and MOUNT, are at one port. There is no portmapper: clients are told the
//! port. Neither locks (NLM) nor ACLs (NFSACL) are served.
//!
//! The server cannot verify the user that a client names (AUTH_SYS). By default it therefore accepts
//! connections from this machine only, refuses ports that any user may use, and lets root act as
//! nobody. [`Options`] change each of these.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod attr;
mod caller;
mod dispatch;
mod export;
mod files;
mod metrics;
mod mount;
mod network;
mod opened;
mod ops;
mod options;
mod record;
#[doc(hidden)]
pub mod rehearse;
mod replies;
mod rpc;
mod server;
mod status;
mod xdr;

pub use metrics::{Observer, OperationStatistics, Statistics};
pub use network::Network;
pub use options::{NOBODY, Options, Squash};
pub use server::{Listener, Server};

/// The example of README.md is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
