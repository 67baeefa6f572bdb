//! `rcuwalk serve`: a tree for others than this machine's kernel.
//!
//! | read                | to learn                                             |
//! |---------------------|------------------------------------------------------|
//! | this file           | the kinds                                            |
//! | `serve/virtiofs.rs` | `virtiofs`: for a virtual machine                    |
//! | `serve/page.rs`     | what its sockets tell: metrics and status            |
//! | `serve/nfs.rs`      | `nfs`: for other machines                            |
//! | `serve/key.rs`      | the key that signs NFS's file handles                |
//! | `serve/figures.rs`  | figures of an NFS server, for Prometheus and people  |

mod figures;
mod key;
mod nfs;
mod page;
mod virtiofs;

use std::ffi::OsString;

use crate::failure::Failure;

/// Serve a tree to other machines, or to a virtual one
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Nfs(nfs::Args),
    Virtiofs(virtiofs::Args),
}

/// `argv` are the process's arguments, to start a daemon with.
pub(crate) fn run(command: &Command, argv: &[OsString]) -> Result<(), Failure> {
    match command {
        Command::Nfs(args) => nfs::run(args, argv),
        Command::Virtiofs(args) => virtiofs::run(args, argv),
    }
}
