//! The `rcuwalk` command.
//!
//! | read         | to learn                                                      |
//! |--------------|---------------------------------------------------------------|
//! | this file    | the subcommands, and how each ends                            |
//! | `bench.rs`   | `rcuwalk bench`: the workloads against the kernel             |
//! | `resolve.rs` | `rcuwalk resolve`: how a path is resolved, step by step        |
//! | `scan.rs`    | `rcuwalk scan`: every entry of a tree, and what changed       |
//! | `failure.rs` | errors: one line on standard error, and the exit status       |
//! | `limits.rs`  | descriptors                                                   |
//! | `signals.rs` | Ctrl-C, without anything left behind                          |
//!
//! The rule: standard output holds what was asked for and nothing else; progress,
//! notes and errors go to standard error.

#![forbid(unsafe_code)]

mod bench;
mod failure;
mod limits;
mod resolve;
mod scan;
mod signals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The Linux VFS's name and inode caches, in user space
///
/// rcuwalk rebuilds the kernel's path walk as a library; this command measures it
/// against the kernel and shows what it does.
#[derive(Parser)]
#[command(name = "rcuwalk", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(bench::Args),
    Resolve(resolve::Args),
    Scan(scan::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Resolve(args) => resolve::run(&args),
        Command::Scan(args) => scan::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
