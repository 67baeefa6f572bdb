//! `rcuwalk serve`: a tree for others than this machine's kernel.
//!
//! | read                | to learn                                             |
//! |---------------------|------------------------------------------------------|
//! | this file           | the kinds                                            |
//! | `serve/virtiofs.rs` | `virtiofs`: for a virtual machine                    |
//! | `serve/page.rs`     | what their sockets tell: metrics and status          |

mod page;
mod virtiofs;

use std::ffi::OsString;

use crate::failure::Failure;

/// Serve a tree to a virtual machine
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Virtiofs(virtiofs::Args),
}

/// `argv` are the process's arguments, to start a daemon with.
pub(crate) fn run(command: &Command, argv: &[OsString]) -> Result<(), Failure> {
    match command {
        Command::Virtiofs(args) => virtiofs::run(args, argv),
    }
}
